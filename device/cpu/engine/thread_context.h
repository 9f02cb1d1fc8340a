// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/thread_context.h: what compiled kernel code knows about the thread it runs.
//
// The code generator reads these fields by their offsets, so the struct has standard layout. One
// context a PTX thread, written by the engine before the thread starts and constant while it runs
// (the generated code loads fields once), except where a comment says otherwise.
// Source of the meanings: PTX ISA 9.0, 10 "Special Registers".
#ifndef CONSORT_DEVICE_CPU_ENGINE_THREAD_CONTEXT_H_
#define CONSORT_DEVICE_CPU_ENGINE_THREAD_CONTEXT_H_

#include <cstdint>
#include <type_traits>

namespace consort::cpu {

inline constexpr uint32_t kWarpLanes = 32;

class BlockRunner;
struct StackBlock;

// How the threads of a block run.
enum class ThreadsMode : uint8_t {
  kBlockLoop,   // no thread waits or calls: the code of the kernel loops over the block itself
  kLoop,        // no thread waits: the engine calls the kernel for one thread after the other
  kCoroutines,  // only the kernel's own instructions wait: each thread is an LLVM coroutine
  kFibers,      // called functions wait, or .local memory outlives a wait: a stack for each thread
};

// Of a coroutine's frame, in bytes: a 64-bit value of each lane of a warp.
inline constexpr uint32_t kFrameAlign = 256;

// Extern .shared arrays begin at a multiple of this, as any of CUDA's vector types may lie there.
inline constexpr uint32_t kDynamicSharedAlign = 16;

// Shared memory of a block that belongs to the system (%reserved_smem_offset_...), behind what the
// kernel has of its own: the libraries of nvcc keep what blocks exchange there. Each of the two
// parts is as large as what a GPU reserves in all.
inline constexpr uint32_t kReservedSharedAlign = 128;
inline constexpr uint32_t kReservedSharedBytes = 2048;

// What a cooperative launch has for its blocks to meet by.
inline constexpr uint32_t kGridWorkspaceBytes = 256;

struct ThreadContext {
  uint32_t tid[3] = {};
  uint32_t ntid[3] = {};
  uint32_t ctaid[3] = {};
  uint32_t nctaid[3] = {};
  uint32_t lane = 0;
  uint32_t warp = 0;
  uint32_t warp_count = 0;
  uint32_t static_shared_bytes = 0;  // where the extern .shared arrays begin
  uint32_t dynamic_shared_bytes = 0;
  uint32_t worker = 0;                 // %smid
  uint8_t* shared = nullptr;           // address 0 of the shared state space
  const uint8_t* stack_low = nullptr;  // this thread's stack, where .local variables lie
  const uint8_t* stack_high = nullptr;
  uint64_t grid_id = 0;
  uint64_t grid_workspace =
      0;  // address of what the blocks of a cooperative launch meet by, else 0
  BlockRunner* runner = nullptr;
  uint32_t thread_index = 0;  // tid.x + tid.y * ntid.x + ...
  uint32_t yield_count = 0;   // changes: see consort_rt_yield
  uint64_t result = 0;        // changes: of the last thing it waited for
  void* frame = nullptr;      // changes: of the coroutine, which writes it when it starts
  // Changes: of the functions that run, the last one first. Only in checked code, which empties it
  // when the kernel starts.
  const StackBlock* stack_blocks = nullptr;
};
static_assert(std::is_standard_layout_v<ThreadContext>);

// A compiled kernel: runs one thread or a group of threads in step, whose context is that of the
// first, up to its first wait if that is a coroutine; or all threads of a block (ThreadsMode).
// `params` is the packed parameter buffer, aligned to 16 bytes.
using KernelEntry = void (*)(ThreadContext* context, const uint8_t* params, uint8_t* returns);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_THREAD_CONTEXT_H_
