// SPDX-License-Identifier: Apache-2.0
// device/cpu/program.h: one loaded PTX module, compiled for the CPU, and how its kernels are run.
//
// The seam between the PTX half of the CPU device (parser, code generator, launch engine: below
// this header) and its driver half (contexts, streams, events, memory: above it).
//
// A Program is immutable after Load and thread safe: several streams may run its kernels at once.
// Device memory is plain memory of this process: a device address is a host address.
// Source: PTX ISA 9.0 (cited by section in the implementation).
#ifndef CONSORT_DEVICE_CPU_PROGRAM_H_
#define CONSORT_DEVICE_CPU_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/units.h"

namespace consort::cpu {

class MemoryMap;

// One kernel parameter: where it lies in the packed parameter buffer, in bytes (C alignment, no
// tail padding). Source: PTX ISA, kernel function parameters.
struct KernelParam {
  uint32_t offset = 0;
  uint32_t bytes = 0;
};

struct KernelInfo {
  std::string name;
  std::vector<KernelParam> params;  // in declaration order
  uint32_t param_bytes = 0;         // size of the packed parameter buffer
  uint32_t static_shared_bytes = 0;
  uint32_t constant_bytes = 0;  // of the module, user .const variables
  uint32_t local_bytes = 0;     // a thread: .local variables and stack
  uint32_t register_count = 0;  // an estimate, 1..255; never 0 (libraries divide by it)
  uint32_t threads_max = 1024;  // from .maxntid / .reqntid, else 1024
  uint32_t ptx_version = 0;     // major * 10 + minor of .version
  uint32_t target = 0;          // 75 for .target sm_75
};

struct VariableInfo {
  std::string name;
  void* address = nullptr;  // the variable's memory, owned by the Program
  uint64_t bytes = 0;
  bool constant = false;  // .const; else .global
  bool managed = false;   // its memory is of LoadOptions::managed
};

struct LaunchShape {
  uint32_t grid[3] = {1, 1, 1};   // blocks, each >= 1
  uint32_t block[3] = {1, 1, 1};  // threads a block, product <= KernelInfo::threads_max
  uint32_t dynamic_shared_bytes = 0;
  // All blocks are under way at once and may wait for each other. Source: CUDA driver API,
  // cuLaunchCooperativeKernel.
  bool cooperative = false;
};

// Where what a launch prints goes. `write` is called by any of the launch's threads, what
// one printf prints at a time; null: to this process's stdout (descriptor 1) and stderr (2).
struct LaunchOutput {
  void (*write)(void* owner, int descriptor, const char* text, size_t bytes) = nullptr;
  void* owner = nullptr;
};

// How a launch ended when it did not end well.
enum class LaunchFault {
  kNone,
  kIllegalAddress,  // a load or store hit unmapped memory  (CUDA_ERROR_ILLEGAL_ADDRESS)
  kTrap,            // trap, or a failed device-side assert  (CUDA_ERROR_LAUNCH_FAILED / ASSERT)
  kAssert,
  kMisaligned,     // only in checked code (CUDA_ERROR_MISALIGNED_ADDRESS)
  kStackOverflow,  // a call went deeper than the thread's stack
  kTimeout,        // LoadOptions::time_limit is over (CUDA_ERROR_LAUNCH_TIMEOUT)
  kDeadlock,       // threads wait at a barrier that can never complete (CUDA_ERROR_LAUNCH_FAILED)
};

// Where a program's managed variables lie, if other processes are to see them, too. `take` gives
// memory of so many bytes that outlives the Program, at a multiple of a page, or null, when they
// are like other variables; `*fresh` 0: what is there already are their values.
struct ManagedMemory {
  void* (*take)(void* owner, uint64_t bytes, int* fresh) = nullptr;
  void* owner = nullptr;
};

struct LoadOptions {
  // Where compiled code is kept for the next start; empty: nowhere. See codegen/code_cache.h.
  std::string cache_directory;
  // Kernels ask it before each access, and end at the first that it does not allow; outlives the
  // Program. Null: they do not ask, and run several times as fast.
  const MemoryMap* memory = nullptr;
  Nanos time_limit = 0;   // of each launch; 0: none
  ManagedMemory managed;  // asked during Load
};

class Program {
 public:
  // Parses, checks and compiles `ptx`. kInvalidArgument: syntax error; kUnimplemented: a directive
  // or instruction this device does not know; both messages read "line N: ..." and name the
  // instruction. kOutOfRange: an unresolved symbol. Takes milliseconds to seconds; any thread.
  static absl::StatusOr<std::unique_ptr<Program>> Load(std::string_view ptx,
                                                       const LoadOptions& options = {});

  virtual ~Program() = default;
  // Kernels and variables in order of definition; valid for the Program's life.
  virtual std::span<const KernelInfo> kernels() const = 0;
  virtual std::span<const VariableInfo> variables() const = 0;

  // Runs kernel `kernel_index` to its end on the calling thread plus up to `worker_count - 1`
  // others (the engine's own pool). `params` holds param_bytes bytes, read before Run returns.
  // `dynamic_shared_bytes + static_shared_bytes` <= 227 KiB, checked by the caller.
  virtual LaunchFault Run(size_t kernel_index, const LaunchShape& shape, const void* params,
                          int worker_count, const LaunchOutput& output = {}) const = 0;

  // How many pieces of code were compiled so far, and not found in the cache.
  virtual uint64_t compilations() const = 0;
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_PROGRAM_H_
