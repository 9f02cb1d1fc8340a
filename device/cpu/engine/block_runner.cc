// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/engine/block_runner.h"

#include <sched.h>
#include <x86intrin.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <new>

#include "base/log.h"
#include "base/units.h"

namespace consort::cpu {
namespace {

// The runner whose fiber this thread is on. Initial-exec, so that reading it in a signal handler
// neither allocates nor locks.
__attribute__((tls_model("initial-exec"))) thread_local BlockRunner* t_running = nullptr;

// Room on a stack for the calls of generated code and of the C library below the .local variables.
constexpr size_t kStackBytes = size_t{192} * 1024;
// Threads that run in step have registers of as many lanes, which may have to lie on the stack.
constexpr size_t kGroupStackBytes = size_t{2} << 20;
// With recursion .local variables stand on the stack many times; deeper recursion faults.
constexpr size_t kLocalCopies = 4;
// After so many turns of its warps a block of a cooperative launch lets others go on, as its loop
// around a barrier may wait for one of them.
constexpr uint32_t kCooperativeRounds = 4096;
// What a thread takes of a launch's blocks at a time, where they do not wait for each other, is as
// many as it runs in this time: tens of microseconds, of which sharing a counter with other threads
// is little, and so short that all of them end at about the same time.
constexpr uint64_t kTogetherCycles = 50'000;

// Of a block's shared memory, up to where its last part ends.
size_t SharedBytes(const LaunchJob& job) {
  const size_t own = size_t{AlignUp(job.static_shared_bytes, kDynamicSharedAlign)} +
                     job.shape.dynamic_shared_bytes;
  if (job.reserved_shared_bytes == 0) return own;
  return AlignUp(own, size_t{kReservedSharedAlign}) + job.reserved_shared_bytes;
}

}  // namespace

Nanos LaunchClockNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

BlockRunner* BlockRunner::Running() { return t_running; }

void BlockRunner::RunBlocks(LaunchJob& job) {
  job_ = &job;
  if (!Prepare(job)) {
    job.fault.store(LaunchFault::kTrap, std::memory_order_relaxed);
    return;
  }
  const uint64_t blocks = job.Blocks();
  uint64_t together = 1;
  while (job.fault.load(std::memory_order_relaxed) == LaunchFault::kNone) {
    block_ = job.next_block.fetch_add(together, std::memory_order_relaxed);
    if (block_ >= blocks) return;
    blocks_end_ = std::min(blocks, block_ + together);
    fault_ = LaunchFault::kNone;
    const uint64_t begun = __rdtsc();
    if (job.MayWait()) {
      StartBlocks();
      while (!RunThreads()) sched_yield();  // what they poll for comes from another thread
    } else {
      RunLoop();
    }
    PublishFault();
    // Where a block may wait for one before it, each thread takes no more than the one it runs.
    if (job.MayWait() && job.may_poll) continue;
    together = __rdtsc() - begun < kTogetherCycles ? together * 2 : (together + 1) / 2;
    together = std::clamp<uint64_t>((blocks - blocks_end_) / (2 * job.workers), 1, together);
  }
}

BlockRunner::Progress BlockRunner::BeginBlock(LaunchJob& job, uint64_t number) {
  job_ = &job;
  fault_ = LaunchFault::kNone;
  if (!Prepare(job)) {
    fault_ = LaunchFault::kTrap;
    PublishFault();
    return Progress::kEnded;
  }
  block_ = number;
  blocks_end_ = number + 1;
  if (job.MayWait()) {
    StartBlocks();
    return ContinueBlock();
  }
  RunLoop();
  PublishFault();
  return Progress::kEnded;
}

BlockRunner::Progress BlockRunner::ContinueBlock() {
  moved_ = false;
  if (!RunThreads()) return moved_ ? Progress::kMoved : Progress::kPolled;
  PublishFault();
  return Progress::kEnded;
}

std::array<uint32_t, 3> BlockRunner::BlockIndex(const LaunchJob& job, uint64_t number) {
  const uint64_t row = number / job.shape.grid[0];
  return {static_cast<uint32_t>(number % job.shape.grid[0]),
          static_cast<uint32_t>(row % job.shape.grid[1]),
          static_cast<uint32_t>(row / job.shape.grid[1])};
}

void BlockRunner::PublishFault() {
  if (fault_ == LaunchFault::kNone) return;
  LaunchFault none = LaunchFault::kNone;
  job_->fault.compare_exchange_strong(none, fault_, std::memory_order_relaxed);
}

// Shared memory, stacks and contexts for the job's shape; keeps what earlier jobs left if it fits.
bool BlockRunner::Prepare(LaunchJob& job) {
  thread_count_ = (job.Threads() + job.lanes - 1) / job.lanes;
  absl::Status status;
  if (shared_.base() == nullptr) status = shared_.Reserve();
  if (status.ok()) {
    status = shared_.Prepare(SharedBytes(job));
  }
  const size_t stack_bytes =
      (job.lanes > 1 ? kGroupStackBytes : kStackBytes) + kLocalCopies * job.local_bytes * job.lanes;
  const size_t fibers = job.mode == ThreadsMode::kFibers ? thread_count_ : 1;
  const bool scheduled = fibers > 1 || job.mode == ThreadsMode::kCoroutines;
  const size_t threads = scheduled ? thread_count_ : 1;
  if (!threads_.empty() && threads_[0]->fiber.stack_bytes() < stack_bytes) {
    threads_.clear();
    fibers_ = 0;
  }
  while (threads_.size() < threads) {
    threads_.push_back(std::make_unique<Thread>());
    threads_.back()->index = static_cast<uint32_t>(threads_.size() - 1);
    threads_.back()->runner = this;
    threads_.back()->context.owner = threads_.back().get();
  }
  for (; status.ok() && fibers_ < fibers; ++fibers_) {
    status = threads_[fibers_]->fiber.Allocate(stack_bytes, fibers_);
    if (!status.ok()) break;
  }
  if (!status.ok()) {
    LOG(ERROR) << "cannot run a block of " << thread_count_ << " threads: " << status;
    return false;
  }
  for (uint32_t i = 0; i < threads; ++i) FillContext(*threads_[i], i * job.lanes);
  if (job.checked != nullptr) checker_.Begin(*job.checked);
  return true;
}

// All but the block's index.
void BlockRunner::FillContext(Thread& thread, uint32_t index) {
  ThreadContext& context = thread.context;
  for (int i = 0; i < 3; ++i) {
    context.ntid[i] = job_->shape.block[i];
    context.nctaid[i] = job_->shape.grid[i];
  }
  context.warp_count = (job_->Threads() + kWarpLanes - 1) / kWarpLanes;
  context.static_shared_bytes = AlignUp(job_->static_shared_bytes, kDynamicSharedAlign);
  context.dynamic_shared_bytes = job_->shape.dynamic_shared_bytes;
  context.worker = worker_;
  context.shared = shared_.base();
  context.stack_low = thread.fiber.stack_low();
  context.stack_high = thread.fiber.stack_high();
  context.grid_id = job_->grid_id;
  context.grid_workspace =
      job_->shape.cooperative ? reinterpret_cast<uint64_t>(job_->grid_workspace.data()) : 0;
  context.runner = this;
  thread.weight = WeightAtBarrier(index);
  SetThreadIndex(context, index);
}

void BlockRunner::SetBlockIndex(ThreadContext& context, const std::array<uint32_t, 3>& block) {
  std::copy(block.begin(), block.end(), context.ctaid);
}

void BlockRunner::NextBlockIndex(ThreadContext& context) {
  if (++context.ctaid[0] < context.nctaid[0]) return;
  context.ctaid[0] = 0;
  if (++context.ctaid[1] < context.nctaid[1]) return;
  context.ctaid[1] = 0;
  ++context.ctaid[2];
}

void BlockRunner::SetThreadIndex(ThreadContext& context, uint32_t index) {
  const uint32_t row = index / context.ntid[0];
  context.tid[0] = index % context.ntid[0];
  context.tid[1] = row % context.ntid[1];
  context.tid[2] = row / context.ntid[1];
  context.lane = index % kWarpLanes;
  context.warp = index / kWarpLanes;
  context.thread_index = index;
}

// Counts up without the divisions of SetThreadIndex, which cost as much as a small kernel.
void BlockRunner::AdvanceThreadIndex(ThreadContext& context, uint32_t step) {
  context.thread_index += step;
  context.lane = context.thread_index % kWarpLanes;
  context.warp = context.thread_index / kWarpLanes;
  context.tid[0] += step;
  while (context.tid[0] >= context.ntid[0]) {
    context.tid[0] -= context.ntid[0];
    if (++context.tid[1] < context.ntid[1]) continue;
    context.tid[1] = 0;
    ++context.tid[2];
  }
}

void BlockRunner::SelectLane(ThreadContext* context, uint32_t lane) {
  SetThreadIndex(*context, context->thread_index + lane);
}

void BlockRunner::ResumeFiber(Fiber& fiber) {
  running_ = &fiber;
  t_running = this;
  fiber.Resume();
  t_running = nullptr;
  running_ = nullptr;
}

inline void BlockRunner::ResumeCoroutine(Thread& thread) {
  void* const frame = thread.context.frame;
  if (frame == nullptr) {
    job_->entry(&thread.context, job_->params, nullptr);
  } else {
    // A frame begins with the function that resumes it. Source: LLVM 19, "Coroutines in LLVM".
    (*static_cast<void (**)(void*)>(frame))(frame);
  }
}

void BlockRunner::FreeFrames::operator()(uint8_t* frames) const {
  ::operator delete (frames, std::align_val_t{kFrameAlign});
}

void* BlockRunner::CoroutineFrame(ThreadContext* context, uint32_t bytes) {
  const size_t stride = (size_t{bytes} + kFrameAlign - 1) / kFrameAlign * kFrameAlign;
  // Only for the first thread of the first block, when no frame is in use.
  if (frames_bytes_ < stride * thread_count_) {
    frames_.reset(static_cast<uint8_t*>(
        ::operator new (stride* thread_count_, std::align_val_t{kFrameAlign})));
    frames_bytes_ = stride * thread_count_;
  }
  return frames_.get() + stride * Of(context).index;
}

void BlockRunner::CoroutineDone(ThreadContext* context) { Of(context).state = State::kDone; }

void BlockRunner::RunLoopBlock(ThreadContext& context) {
  const KernelEntry entry = job_->entry;
  const uint8_t* const params = job_->params;
  if (job_->mode == ThreadsMode::kBlockLoop) {
    entry(&context, params, nullptr);
    return;
  }
  const uint32_t lanes = job_->lanes;
  SetThreadIndex(context, 0);
  for (uint32_t i = 0; i < thread_count_; ++i) {
    entry(&context, params, nullptr);
    AdvanceThreadIndex(context, lanes);
  }
}

void BlockRunner::LoopBody(void* argument) {
  Thread& thread = *static_cast<Thread*>(argument);
  BlockRunner& runner = *thread.runner;
  const std::atomic<LaunchFault>& fault = runner.job_->fault;
  runner.RunLoopBlock(thread.context);
  while (++runner.block_ < runner.blocks_end_ &&
         fault.load(std::memory_order_relaxed) == LaunchFault::kNone) {
    NextBlockIndex(thread.context);
    runner.RunLoopBlock(thread.context);
  }
  thread.fiber.Suspend(true);
}

// From block_ on, none of whose threads waits for anything.
void BlockRunner::RunLoop() {
  Thread& thread = *threads_[0];
  SetBlockIndex(thread.context, BlockIndex(*job_, block_));
  thread.fiber.Start(&LoopBody, &thread);
  ResumeFiber(thread.fiber);
}

void BlockRunner::ThreadBody(void* argument) {
  Thread& thread = *static_cast<Thread*>(argument);
  thread.runner->job_->entry(&thread.context, thread.runner->job_->params, nullptr);
  thread.state = State::kDone;
  thread.fiber.Suspend(true);
}

void BlockRunner::ScheduleBody(void* argument) {
  Thread& first = *static_cast<Thread*>(argument);
  while (!first.runner->ScheduleBlocks()) first.fiber.Suspend(false);
  first.runner->schedule_over_ = true;
  first.fiber.Suspend(true);
}

void BlockRunner::StartBlocks() {
  StartThreads();
  if (job_->mode == ThreadsMode::kFibers) return;
  schedule_over_ = false;
  threads_[0]->fiber.Start(&ScheduleBody, threads_[0].get());
}

// Those of block_.
void BlockRunner::StartThreads() {
  const std::array<uint32_t, 3> block = BlockIndex(*job_, block_);
  const bool fibers = job_->mode == ThreadsMode::kFibers;
  // They are as new where all that arrived at them went on.
  if (arrived_barriers_ != 0) barriers_.fill(BarrierState());
  arrived_barriers_ = 0;
  at_block_barrier_ = 0;
  asked_active_ = false;
  live_weight_ = threads_[0]->context.warp_count * kWarpLanes;
  for (uint32_t i = 0; i < thread_count_; ++i) {
    Thread& thread = *threads_[i];
    SetBlockIndex(thread.context, block);
    thread.context.yield_count = 0;
    thread.state = State::kReady;
    thread.context.frame = nullptr;
    if (fibers) thread.fiber.Start(&ThreadBody, &thread);
  }
}

// Runs the threads of block_ and of those after it until all are over, or, false, until they can
// only poll.
bool BlockRunner::RunThreads() {
  if (job_->mode == ThreadsMode::kFibers) return ScheduleBlocks();
  ResumeFiber(threads_[0]->fiber);
  // A fault leaves the fiber without coming back to its body.
  return schedule_over_ || fault_ != LaunchFault::kNone;
}

// As RunThreads, for kCoroutines from inside the one fiber.
bool BlockRunner::ScheduleBlocks() {
  while (Schedule()) {
    if (++block_ >= blocks_end_ || fault_ != LaunchFault::kNone ||
        job_->fault.load(std::memory_order_relaxed) != LaunchFault::kNone) {
      return true;
    }
    StartThreads();
  }
  return false;
}

// The same, of one block.
bool BlockRunner::Schedule() {
  const uint32_t warps = (thread_count_ + kWarpLanes - 1) / kWarpLanes;
  uint32_t rounds = 0;
  while (live_weight_ > 0) {
    bool progress = false;
    for (uint32_t warp = 0; warp < warps; ++warp) {
      while (RunWarp(warp) || (fault_ == LaunchFault::kNone && AnswerActiveMask(warp))) {
        progress = true;
        if (job_->shape.cooperative && ++rounds == kCooperativeRounds) return live_weight_ == 0;
      }
      if (fault_ != LaunchFault::kNone) return true;
    }
    if (progress || live_weight_ == 0) continue;
    bool polls = false;
    for (uint32_t i = 0; i < thread_count_; ++i) {
      if (threads_[i]->state != State::kYielded) continue;
      threads_[i]->state = State::kReady;
      polls = true;
    }
    if (!polls) {
      fault_ = LaunchFault::kDeadlock;
      return true;
    }
    // What they poll for may come from another block.
    return job_->fault.load(std::memory_order_relaxed) != LaunchFault::kNone;
  }
  return true;
}

// Runs each ready lane of the warp once, in order. False if there was none.
bool BlockRunner::RunWarp(uint32_t warp) {
  const bool fibers = job_->mode == ThreadsMode::kFibers;
  const std::unique_ptr<Thread>* const threads = threads_.data();
  bool ran = false;
  const uint32_t end = std::min(thread_count_, (warp + 1) * kWarpLanes);
  for (uint32_t i = warp * kWarpLanes; i < end; ++i) {
    Thread& thread = *threads[i];
    if (!IsReady(thread.state)) continue;
    ran = true;
    if (fibers) {
      ResumeFiber(thread.fiber);
      // A coroutine's fault would not come back here.
      if (fault_ != LaunchFault::kNone) return false;
    } else {
      ResumeCoroutine(thread);
    }
    if (thread.state == block_state_) continue;  // the usual
    moved_ |= thread.state != State::kYielded;
    if (thread.state == State::kDone) ThreadLeft(thread);
  }
  return ran;
}

// After its last instruction: barriers and collectives that only waited for this thread complete.
void BlockRunner::ThreadLeft(Thread& thread) {
  live_weight_ -= thread.weight;
  if (at_block_barrier_ != 0 && at_block_barrier_ == live_weight_) ReleaseBlock();
  for (uint32_t rest = arrived_barriers_; rest != 0; rest &= rest - 1) {
    CompleteBarrier(static_cast<uint32_t>(std::countr_zero(rest)));
  }
  if (job_->lanes > 1) return;
  const uint32_t first = thread.context.warp * kWarpLanes;
  const uint32_t end = std::min(thread_count_, first + kWarpLanes);
  for (uint32_t i = first; i < end; ++i) {
    if (threads_[i]->state == State::kWarp) CompleteCollective(*threads_[i]);
  }
}

void BlockRunner::Wait(Thread& thread, State state) {
  thread.state = state;
  Leave(thread);
}

void BlockRunner::Yield(ThreadContext* context) {
  // A loop that polls goes round a few times before it is worth asking others.
  constexpr uint32_t kYieldInterval = 16;
  if (++context->yield_count % kYieldInterval != 0) return;
  Wait(Of(context), State::kYielded);
}

void BlockRunner::ExitThread(ThreadContext* context) {
  Thread& thread = Of(context);
  thread.state = State::kDone;
  thread.fiber.Suspend(true);
  __builtin_unreachable();
}

void BlockRunner::WatchTime() {
  constexpr uint32_t kLookInterval = 256;
  if (++watch_count_ % kLookInterval != 0) return;
  if (LaunchClockNow() >= job_->deadline) Abandon(LaunchFault::kTimeout);
  // What it waits for may have been a block that failed.
  EndOn(job_->fault.load(std::memory_order_relaxed));
}

void BlockRunner::Abandon(LaunchFault fault) {
  fault_ = fault;
  running_->Suspend(true);
  __builtin_unreachable();
}

}  // namespace consort::cpu
