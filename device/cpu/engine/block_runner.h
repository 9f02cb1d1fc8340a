// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/block_runner.h: runs the threads of one block at a time, on one thread.
//
// Kernel code always runs on a fiber, never on the caller's stack, so that a fault, a trap or an
// exit can drop a stack without unwinding it. A kernel without barriers runs all threads of a block
// in a loop on one fiber. Otherwise each PTX thread is a coroutine, all of them and their scheduler
// on one fiber, or, where that cannot be, a fiber of its own (ThreadsMode). Block follows block
// there, as one may take less time than to start a fiber or to ask which block is next.
//
// States of a thread:
//
//   kReady      may run
//   kYielded    may run, but only polls memory
//   kEven, kOdd came to barrier 0 to wait for the whole block, as most that wait do: to its first,
//               third, ... or to its second, fourth, ...; those of block_state_ wait, the others,
//               who came to the one before, may run
//   kBarrier    waits at barrier `barrier` for more threads
//   kWarp       waits for the lanes of `mask` at the same collective
//   kActive     asked which lanes are active; answered when its warp can do nothing else
//   kDone       left the kernel
//
// Where the kernel's code runs several threads in step (LaunchJob::lanes), such a group stands for
// a thread in all of this: it does by itself what its warp does together, and only waits at
// barriers.
//
// Of a cooperative launch each block has a runner of its own. When such a block can only poll, or
// has run for long, its runner hands the thread back, which goes on with another block
// (Engine::RunTogether).
//
// A round runs every warp until none of its lanes is ready. A round that changes nothing and in
// which no thread polls means that the threads wait for each other for ever:
// LaunchFault::kDeadlock.
//
// Owned by the engine; used by one thread at a time. Source: PTX ISA 9.0, 3 "PTX Machine Model",
// 9.7.13 "Parallel Synchronization and Communication Instructions".
#ifndef CONSORT_DEVICE_CPU_ENGINE_BLOCK_RUNNER_H_
#define CONSORT_DEVICE_CPU_ENGINE_BLOCK_RUNNER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/units.h"
#include "device/cpu/engine/access_checker.h"
#include "device/cpu/engine/fiber.h"
#include "device/cpu/engine/matrix.h"
#include "device/cpu/engine/runtime.h"
#include "device/cpu/engine/shared_window.h"
#include "device/cpu/engine/thread_context.h"
#include "device/cpu/program.h"

namespace consort::cpu {

// One launch, as all its runners see it.
struct LaunchJob {
  KernelEntry entry = nullptr;
  ThreadsMode mode = ThreadsMode::kLoop;
  uint32_t lanes = 1;    // threads of a block that run in step
  bool may_poll = true;  // for what another block writes
  LaunchShape shape;
  LaunchOutput output;
  const uint8_t* params = nullptr;
  uint32_t static_shared_bytes = 0;
  uint32_t reserved_shared_bytes = 0;  // kReservedSharedBytes, or 0 where no code asks for them
  uint32_t local_bytes = 0;            // a thread, of .local variables
  uint64_t grid_id = 0;
  uint32_t workers = 1;              // threads of the process that may take part
  CheckedLaunch* checked = nullptr;  // null: the code checks nothing
  Nanos deadline = 0;                // as LaunchClockNow counts; 0: none
  // Words by which the blocks of a cooperative launch meet, zero when it begins: what the code of
  // cooperative groups finds by %envreg1 and %envreg2.
  alignas(64) std::array<uint8_t, kGridWorkspaceBytes> grid_workspace{};
  // Written by all threads all the time, unlike what they look at between blocks.
  alignas(64) std::atomic<uint64_t> next_block{0};
  // The first fault; others stop when they see one. Relaxed: the launch's end synchronises.
  alignas(64) std::atomic<LaunchFault> fault{LaunchFault::kNone};

  // Whether threads of a block may have to wait for each other, or for another block.
  bool MayWait() const { return mode == ThreadsMode::kFibers || mode == ThreadsMode::kCoroutines; }
  uint32_t Threads() const { return shape.block[0] * shape.block[1] * shape.block[2]; }
  uint64_t Blocks() const { return uint64_t{shape.grid[0]} * shape.grid[1] * shape.grid[2]; }
};

// The clock of deadlines.
Nanos LaunchClockNow();

class BlockRunner {
 public:
  // `worker` is what %smid reads.
  explicit BlockRunner(uint32_t worker) : worker_(worker) {}

  // Takes blocks of `job` until none is left or one faults, which is then in job.fault. The calling
  // thread must have an alternate signal stack (see FaultGuard).
  void RunBlocks(LaunchJob& job);

  // For cooperative launches: begins block `number` of `job`, or goes on with it, until it ends,
  // can only poll, or others should have a turn. A fault is an end and in job.fault. The thread
  // must be as for RunBlocks, and the same for all of a block.
  enum class Progress { kEnded, kMoved, kPolled };
  Progress BeginBlock(LaunchJob& job, uint64_t number);
  Progress ContinueBlock();

  // --- From a kernel's fiber, through runtime.cc ---

  // Inline, as in kernels that mostly wait this is much of all that is done.
  void Barrier(ThreadContext* context, uint32_t barrier, uint32_t count) {
    Thread& thread = Of(context);
    if ((barrier | count | (arrived_barriers_ & 1)) != 0) {
      return WaitAtAnyBarrier(thread, barrier, count);
    }
    thread.state = block_state_;
    moved_ = true;
    at_block_barrier_ += thread.weight;
    if (at_block_barrier_ != live_weight_) return Leave(thread);
    ReleaseBlock();
  }
  void BarrierArrive(ThreadContext* context, uint32_t barrier, uint32_t count);
  uint32_t BarrierReduction(ThreadContext* context, uint32_t barrier, uint32_t count,
                            BarrierReduce op, bool predicate);
  // The same for a group of `votes` threads, `popc` of which have a true predicate.
  uint32_t GroupBarrierReduction(ThreadContext* context, uint32_t barrier, uint32_t count,
                                 BarrierReduce op, uint32_t popc, uint32_t votes);
  // Makes the group's context that of one of its threads.
  static void SelectLane(ThreadContext* context, uint32_t lane);
  void WarpSync(ThreadContext* context, uint32_t mask);
  uint64_t Shuffle(ThreadContext* context, ShuffleMode mode, uint32_t value, uint32_t b, uint32_t c,
                   uint32_t mask);
  uint32_t Vote(ThreadContext* context, VoteMode mode, bool predicate, uint32_t mask);
  uint64_t Match(ThreadContext* context, bool all, uint64_t value, uint32_t mask);
  uint32_t Reduce(ThreadContext* context, WarpReduce op, uint32_t value, uint32_t mask);
  void Matrix(ThreadContext* context, uint32_t operation, MatrixSlots* slots);
  uint32_t ActiveMask(ThreadContext* context, uint32_t place);
  void Yield(ThreadContext* context);
  // Memory for the frame of the thread's coroutine, aligned to kFrameAlign; all threads of a launch
  // ask for the same size.
  void* CoroutineFrame(ThreadContext* context, uint32_t bytes);
  // After a coroutine's last instruction.
  void CoroutineDone(ThreadContext* context);
  [[noreturn]] void ExitThread(ThreadContext* context);
  // Ends the launch if its time is over; looks at the clock from time to time only.
  void WatchTime();
  // Abandons but for kNone.
  void EndOn(LaunchFault fault) {
    if (fault != LaunchFault::kNone) Abandon(fault);
  }
  const LaunchOutput& output() const { return job_->output; }
  bool is_checked() const { return job_->checked != nullptr; }
  AccessChecker& checker() { return checker_; }
  // Ends the launch: the present fiber and all others of the block are dropped.
  [[noreturn]] void Abandon(LaunchFault fault);

  // The runner whose kernel code the calling thread is in, or null. Async-signal safe.
  static BlockRunner* Running();
  // The ends of the stack in use; a signal handler may start anew at the high one.
  const uint8_t* RunningStackLow() const { return running_->stack_low(); }
  const uint8_t* RunningStackHigh() const { return running_->stack_high(); }
  bool IsBelowRunningStack(uintptr_t address) const { return running_->IsBelowStack(address); }

 private:
  enum class State : uint8_t { kReady, kYielded, kEven, kOdd, kBarrier, kWarp, kActive, kDone };
  enum class Collective : uint8_t { kSync, kShuffle, kVote, kMatch, kReduce, kMatrix };

  struct Thread;
  // What runtime functions are given leads back to its thread.
  struct OwnedContext : ThreadContext {
    Thread* owner = nullptr;
  };

  struct Thread {
    State state = State::kReady;
    uint32_t index = 0;   // in threads_
    uint32_t weight = 1;  // what it counts for at barriers
    // kBarrier
    uint32_t barrier = 0;
    // kWarp
    Collective collective = Collective::kSync;
    uint32_t mode = 0;
    uint32_t mask = 0;
    uint64_t value = 0;
    uint32_t b = 0;
    uint32_t c = 0;
    // kActive
    uint32_t place = 0;
    BlockRunner* runner = nullptr;
    OwnedContext context;
    Fiber fiber;  // but in kFibers, only the first thread has a stack
  };

  struct BarrierState {
    uint32_t arrived = 0;   // the weight of those that did
    uint32_t expected = 0;  // 0: all that are alive
    BarrierReduce op = BarrierReduce::kNone;
    uint32_t popc = 0;
    uint32_t votes = 0;
    uint32_t waiting = 0;
  };

  static constexpr uint32_t Bit(State state) { return 1u << static_cast<uint32_t>(state); }
  bool IsReady(State state) const { return (ready_states_ & Bit(state)) != 0; }

  // Source: PTX ISA, bar: 16 barriers of a block.
  static constexpr uint32_t kBarriers = 16;

  bool Prepare(LaunchJob& job);
  static std::array<uint32_t, 3> BlockIndex(const LaunchJob& job, uint64_t number);
  void PublishFault();
  void FillContext(Thread& thread, uint32_t index);
  static void SetBlockIndex(ThreadContext& context, const std::array<uint32_t, 3>& block);
  static void NextBlockIndex(ThreadContext& context);
  static void SetThreadIndex(ThreadContext& context, uint32_t index);
  static void AdvanceThreadIndex(ThreadContext& context, uint32_t step);
  void RunLoop();
  void RunLoopBlock(ThreadContext& context);
  void StartBlocks();
  void StartThreads();
  bool RunThreads();
  bool ScheduleBlocks();
  bool Schedule();
  bool RunWarp(uint32_t warp);
  bool AnswerActiveMask(uint32_t warp);
  void ResumeCoroutine(Thread& thread);
  void ResumeFiber(Fiber& fiber);
  static void LoopBody(void* argument);
  static void ThreadBody(void* argument);
  static void ScheduleBody(void* argument);

  static Thread& Of(ThreadContext* context) { return *static_cast<OwnedContext*>(context)->owner; }
  Thread& LaneOf(const Thread& thread, uint32_t lane);
  uint32_t LiveLanes(uint32_t warp) const;
  void Wait(Thread& thread, State state);
  // Lets others run until the thread is ready. A coroutine does so by itself, after it returns from
  // here.
  void Leave(Thread& thread) {
    if (job_->mode == ThreadsMode::kFibers) thread.fiber.Suspend(false);
  }
  struct Arrival {
    uint32_t barrier = 0;
    uint32_t count = 0;
    BarrierReduce op = BarrierReduce::kNone;
    uint32_t popc = 0;
    uint32_t votes = 1;
  };
  uint32_t WeightAtBarrier(uint32_t index) const;
  void ArriveAtBarrier(const Thread& thread, const Arrival& arrival);
  uint32_t WaitAtBarrier(Thread& thread, const Arrival& arrival);
  void WaitAtAnyBarrier(Thread& thread, uint32_t barrier, uint32_t count);
  // Releases the waiting threads if all have arrived.
  bool CompleteBarrier(uint32_t barrier) {
    const BarrierState& state = barriers_[barrier];
    const uint32_t expected = state.expected != 0 ? state.expected : live_weight_;
    if (state.arrived == 0 || state.arrived < expected) return false;
    ReleaseBarrier(barrier);
    return true;
  }
  void ReleaseBarrier(uint32_t barrier);
  // All that are alive are in block_state_, and may run without being touched one by one.
  void ReleaseBlock() {
    at_block_barrier_ = 0;
    ready_states_ = Bit(State::kReady) | Bit(block_state_);
    block_state_ = block_state_ == State::kEven ? State::kOdd : State::kEven;
  }
  // From now on those in block_state_ wait in kBarrier.
  void CountBlockAtBarrier();
  uint64_t EnterCollective(ThreadContext* context, Collective collective, uint32_t mode,
                           uint64_t value, uint32_t b, uint32_t c, uint32_t mask);
  bool CompleteCollective(Thread& thread);
  uint64_t CollectiveResult(const Thread& thread, const uint64_t* values, uint32_t group);
  void ThreadLeft(Thread& thread);

  const uint32_t worker_;
  SharedWindow shared_;
  std::vector<std::unique_ptr<Thread>> threads_;
  size_t fibers_ = 0;  // how many of them, from the first, have a stack
  LaunchJob* job_ = nullptr;
  Fiber* running_ = nullptr;
  struct FreeFrames {
    void operator()(uint8_t* frames) const;
  };
  std::unique_ptr<uint8_t, FreeFrames> frames_;
  size_t frames_bytes_ = 0;
  uint32_t thread_count_ = 0;  // of a block; of groups where threads run in step
  uint32_t live_weight_ = 0;   // of the threads that have not left the kernel
  LaunchFault fault_ = LaunchFault::kNone;
  AccessChecker checker_;
  uint32_t watch_count_ = 0;
  bool schedule_over_ = false;  // in kCoroutines: the fiber has run the blocks to their end
  bool asked_active_ = false;   // a thread of the block has been in kActive
  bool moved_ = false;          // a thread has done more than poll since that was last asked
  std::array<BarrierState, kBarriers> barriers_;
  uint32_t arrived_barriers_ = 0;  // a bit for each that threads have arrived at
  // Weight of the threads in block_state_, which wait; 0 while barrier 0 has arrivals.
  uint32_t at_block_barrier_ = 0;
  State block_state_ = State::kEven;
  uint32_t ready_states_ = Bit(State::kReady) | Bit(State::kOdd);
  // The block that is run, and the end of those that follow it.
  uint64_t block_ = 0;
  uint64_t blocks_end_ = 0;
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_BLOCK_RUNNER_H_
