// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/layout.h: facts about a parsed module that its kernels share: where parameters
// and shared variables lie, who calls whom, and how kernels run the threads of a block.
//
// Immutable after Make; any thread.
#ifndef CONSORT_DEVICE_CPU_CODEGEN_LAYOUT_H_
#define CONSORT_DEVICE_CPU_CODEGEN_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "device/cpu/engine/thread_context.h"
#include "device/cpu/ptx/ast.h"

namespace consort::cpu {

// A parameter list packed with C alignment.
struct ParamLayout {
  std::vector<uint32_t> offsets;  // in declaration order
  uint32_t bytes = 0;
};

struct FunctionLayout {
  ParamLayout inputs;
  ParamLayout returns;
  std::vector<uint32_t> references;        // functions called or whose address is taken, sorted
  std::vector<uint32_t> shared_variables;  // module variables named in the body, sorted
  bool has_indirect_call = false;
  bool has_call = false;
  bool uses_reserved_shared = false;  // names one of %reserved_smem_offset_...
  bool has_collective = false;        // barriers, shuffles, votes, exit below the kernel
  bool has_alloca = false;
  bool may_poll = false;  // for what others write, in whatever way
  // Instructions that branch back over a load or atomic with which a thread may wait for memory
  // that another one changes; sorted.
  std::vector<uint32_t> polling_branches;
  uint32_t local_bytes = 0;  // .local variables
  uint32_t register_count = 0;
};

struct KernelLayout {
  std::vector<uint32_t> functions;  // the kernel and all it may call, sorted
  ThreadsMode mode = ThreadsMode::kLoop;
  bool may_poll = false;
  uint32_t static_shared_bytes = 0;
  bool uses_reserved_shared = false;
  bool uses_alloca = false;  // each thread needs a stack of its own, or one that is as before
  uint32_t local_bytes = 0;
};

struct ModuleLayout {
  std::vector<FunctionLayout> functions;  // parallel to Module::functions
  std::vector<KernelLayout> kernels;      // parallel to Module::functions; empty where no entry
  // Parallel to Module::variables. Offset in the shared window; extern arrays begin after all
  // others.
  std::vector<uint32_t> shared_offsets;
  std::vector<bool> function_address_taken;  // parallel to Module::functions

  // kOutOfRange: an unresolved symbol.
  static absl::StatusOr<ModuleLayout> Make(const ptx::Module& module);
};

// The value that the address of function number `index` has in a program: not an address, so that
// no data can make a kernel call anything but a function of its module.
inline uint64_t FunctionToken(uint32_t index) { return (uint64_t{index} + 1) << 4; }

// Packs parameters with C alignment. Source: PTX ISA, kernel function parameters.
ParamLayout PackParams(const ptx::Function& function, const std::vector<uint32_t>& symbols);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_CODEGEN_LAYOUT_H_
