// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/compiler.h: kernels of one parsed module to machine code.
//
// A kernel is compiled, with all it may call, into an LLVM module of its own, so that a large
// library costs only what is used of it. No LLVM type shows here. Thread compatible.
#ifndef CONSORT_DEVICE_CPU_CODEGEN_COMPILER_H_
#define CONSORT_DEVICE_CPU_CODEGEN_COMPILER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/cpu/codegen/layout.h"
#include "device/cpu/engine/thread_context.h"
#include "device/cpu/ptx/ast.h"

namespace consort::cpu {

class Compiler {
 public:
  // All three outlive the Compiler. `variable_addresses` is parallel to ptx.variables.
  // kInternal: LLVM cannot make code for this machine.
  static absl::StatusOr<std::unique_ptr<Compiler>> Create(
      const ptx::Module& ptx, const ModuleLayout& layout,
      const std::vector<void*>& variable_addresses);
  ~Compiler();
  Compiler(const Compiler&) = delete;
  Compiler& operator=(const Compiler&) = delete;

  // Emits every function and throws the code away: finds what this device does not support.
  // kUnimplemented, kInvalidArgument, kOutOfRange with "line N: ". kInternal: malformed LLVM IR.
  absl::Status Check();

  // The kernel's code, valid for the Compiler's life. `function` indexes ptx.functions.
  // kInternal: LLVM failed.
  absl::StatusOr<KernelEntry> Compile(uint32_t function);

 private:
  struct Jit;
  Compiler(const ptx::Module& ptx, const ModuleLayout& layout,
           const std::vector<void*>& variable_addresses, std::unique_ptr<Jit> jit);

  const ptx::Module& ptx_;
  const ModuleLayout& layout_;
  const std::vector<void*>& variable_addresses_;
  std::unique_ptr<Jit> jit_;
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_CODEGEN_COMPILER_H_
