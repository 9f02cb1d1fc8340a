// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/compiler.h: kernels of one parsed module to machine code.
//
// A kernel is compiled, with all it may call, into an LLVM module of its own, so that a large
// library costs only what is used of it. No LLVM type shows here. Thread compatible.
#ifndef CONSORT_DEVICE_CPU_CODEGEN_COMPILER_H_
#define CONSORT_DEVICE_CPU_CODEGEN_COMPILER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/cpu/codegen/code_cache.h"
#include "device/cpu/codegen/layout.h"
#include "device/cpu/engine/thread_context.h"
#include "device/cpu/ptx/ast.h"

namespace consort::cpu {

// What kind of code to make.
struct CodeOptions {
  // False: as quickly as LLVM can, for tests that only want to know that it can.
  bool optimise = true;
  // Each access of memory asks AccessChecker first; threads run one by one.
  bool check_accesses = false;
  // Loops look from time to time whether the launch has run for too long (LaunchJob::deadline).
  bool watch_time = false;
};

// A kernel's code and how the engine is to run it.
struct CompiledKernel {
  KernelEntry entry = nullptr;
  ThreadsMode mode = ThreadsMode::kLoop;
  uint32_t lanes = 1;  // threads that one call of `entry` runs in step
};

// What of a block's shape decides which code runs it.
struct GroupShape {
  uint32_t lanes = 1;  // 1: thread by thread
  bool rows = false;   // see LaneGroup
  bool flat = false;
  bool partial = false;

  static GroupShape Of(const uint32_t block[3]);
  // Different for different shapes, below kGroupShapes.
  uint32_t Number() const;
};
inline constexpr uint32_t kGroupShapes = 32;

class Compiler {
 public:
  // All outlive the Compiler. `variable_addresses` is parallel to ptx.variables.
  // kInternal: LLVM cannot make code for this machine.
  static absl::StatusOr<std::unique_ptr<Compiler>> Create(
      const ptx::Module& ptx, const ModuleLayout& layout,
      const std::vector<void*>& variable_addresses, const CodeCache& cache,
      const CodeOptions& options = {});
  ~Compiler();
  Compiler(const Compiler&) = delete;
  Compiler& operator=(const Compiler&) = delete;

  // Emits every function and throws the code away: finds what this device does not support. Does
  // nothing for a module that the cache knows to be good.
  // kUnimplemented, kInvalidArgument, kOutOfRange with "line N: ". kInternal: malformed LLVM IR.
  absl::Status Check();

  // The kernel's code for blocks of that shape, valid for the Compiler's life. `function` indexes
  // ptx.functions. kInternal: LLVM failed.
  absl::StatusOr<CompiledKernel> Compile(uint32_t function, const GroupShape& shape);

  // How often code was made by LLVM, and not found in the cache.
  uint64_t compilations() const { return compilations_; }

 private:
  struct Jit;
  struct Unit;
  // A kernel's code before it is linked.
  struct Object {
    ThreadsMode mode = ThreadsMode::kLoop;
    uint32_t lanes = 1;
    std::string symbol;
    std::string bytes;  // an ELF object
  };
  Compiler(const ptx::Module& ptx, const ModuleLayout& layout, const CodeCache& cache,
           const CodeOptions& options, std::unique_ptr<Jit> jit);
  std::string Key(std::string_view what) const;
  absl::StatusOr<Unit> Emit(uint32_t function, bool one_thread);
  absl::StatusOr<Object> Make(uint32_t function, const GroupShape& shape);
  absl::Status Finish(Unit unit, const GroupShape& shape, Object& object);
  std::optional<Object> FindObject(const std::string& key) const;
  void PutObject(const std::string& key, const Object& object) const;

  const ptx::Module& ptx_;
  const ModuleLayout& layout_;
  const CodeCache& cache_;
  const CodeOptions options_;
  std::unique_ptr<Jit> jit_;
  std::string identity_;  // of all but the kernel that code depends on
  absl::flat_hash_map<std::string, KernelEntry> linked_;  // by symbol
  uint64_t compilations_ = 0;
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_CODEGEN_COMPILER_H_
