// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/collectives.cc: BlockRunner's barriers and warp collectives.
// Source: PTX ISA 9.0, 9.7.9.6 shfl.sync, 9.7.13.1 bar, 9.7.13.9 vote.sync to 9.7.13.13 elect.sync.
#include <algorithm>

#include "device/cpu/engine/block_runner.h"
#include "device/cpu/engine/warp_results.h"

namespace consort::cpu {

BlockRunner::Thread& BlockRunner::LaneOf(const Thread& thread, uint32_t lane) {
  return *threads_[thread.context.warp * kWarpLanes + lane];
}

// Mask of the warp's lanes that have not left the kernel.
uint32_t BlockRunner::LiveLanes(uint32_t warp) const {
  uint32_t mask = 0;
  const uint32_t first = warp * kWarpLanes;
  const uint32_t end = std::min(thread_count_, first + kWarpLanes);
  for (uint32_t i = first; i < end; ++i) {
    if (threads_[i]->state != State::kDone) mask |= 1u << (i - first);
  }
  return mask;
}

// What the thread, or the group that begins with it, counts for. Counts are in whole warps: a last
// warp with fewer lanes counts for 32 threads all the same.
uint32_t BlockRunner::WeightAtBarrier(uint32_t index) const {
  const uint32_t threads = job_->Threads();
  const uint32_t whole = (threads + kWarpLanes - 1) / kWarpLanes * kWarpLanes;
  if (job_->lanes > 1) return index + job_->lanes >= threads ? whole - index : job_->lanes;
  const uint32_t odd_lanes = threads % kWarpLanes;
  return odd_lanes != 0 && index == threads - odd_lanes ? 1 + kWarpLanes - odd_lanes : 1;
}

inline void BlockRunner::ArriveAtBarrier(const Thread& thread, const Arrival& arrival) {
  if (arrival.barrier >= kBarriers) Abandon(LaunchFault::kTrap);
  if (arrival.barrier == 0 && at_block_barrier_ != 0) CountBlockAtBarrier();
  BarrierState& state = barriers_[arrival.barrier];
  state.arrived += thread.weight;
  arrived_barriers_ |= 1u << arrival.barrier;
  state.expected = arrival.count;
  state.op = arrival.op;
  state.popc += arrival.popc;
  state.votes += arrival.votes;
}

void BlockRunner::ReleaseBarrier(uint32_t barrier) {
  BarrierState& state = barriers_[barrier];
  uint64_t result = 0;
  if (state.op == BarrierReduce::kPopc) result = state.popc;
  if (state.op == BarrierReduce::kAnd) result = state.popc == state.votes;
  if (state.op == BarrierReduce::kOr) result = state.popc > 0;
  if (state.waiting > 0) {
    for (uint32_t i = 0; i < thread_count_; ++i) {
      Thread& thread = *threads_[i];
      if (thread.state != State::kBarrier || thread.barrier != barrier) continue;
      thread.context.result = result;
      thread.state = State::kReady;
    }
  }
  state = BarrierState();
  arrived_barriers_ &= ~(1u << barrier);
}

inline uint32_t BlockRunner::WaitAtBarrier(Thread& thread, const Arrival& arrival) {
  ArriveAtBarrier(thread, arrival);
  // Waits like the others, so that the release gives it the result as well.
  ++barriers_[arrival.barrier].waiting;
  thread.barrier = arrival.barrier;
  thread.state = State::kBarrier;
  if (!CompleteBarrier(arrival.barrier)) Leave(thread);
  return static_cast<uint32_t>(thread.context.result);
}

void BlockRunner::WaitAtAnyBarrier(Thread& thread, uint32_t barrier, uint32_t count) {
  WaitAtBarrier(thread, {barrier, count});
}

void BlockRunner::CountBlockAtBarrier() {
  BarrierState& state = barriers_[0];
  state.arrived = state.votes = state.waiting = at_block_barrier_;
  arrived_barriers_ |= 1;
  at_block_barrier_ = 0;
  for (uint32_t i = 0; i < thread_count_; ++i) {
    Thread& thread = *threads_[i];
    if (thread.state != block_state_) continue;
    thread.barrier = 0;
    thread.state = State::kBarrier;
  }
}

void BlockRunner::BarrierArrive(ThreadContext* context, uint32_t barrier, uint32_t count) {
  ArriveAtBarrier(Of(context), {barrier, count});
  CompleteBarrier(barrier);
}

uint32_t BlockRunner::BarrierReduction(ThreadContext* context, uint32_t barrier, uint32_t count,
                                       BarrierReduce op, bool predicate) {
  return WaitAtBarrier(Of(context), {barrier, count, op, predicate ? 1u : 0u, 1});
}

uint32_t BlockRunner::GroupBarrierReduction(ThreadContext* context, uint32_t barrier,
                                            uint32_t count, BarrierReduce op, uint32_t popc,
                                            uint32_t votes) {
  return WaitAtBarrier(Of(context), {barrier, count, op, popc, votes});
}

uint64_t BlockRunner::EnterCollective(ThreadContext* context, Collective collective, uint32_t mode,
                                      uint64_t value, uint32_t b, uint32_t c, uint32_t mask) {
  Thread& thread = Of(context);
  thread.collective = collective;
  thread.mode = mode;
  thread.value = value;
  thread.b = b;
  thread.c = c;
  // A mask without the lane itself is undefined behaviour; the lane then counts as named.
  thread.mask = mask | 1u << context->lane;
  thread.state = State::kWarp;
  if (!CompleteCollective(thread)) Leave(thread);
  return thread.context.result;
}

// Releases all lanes named by the thread's mask if each of them waits at the same collective or has
// left the kernel.
bool BlockRunner::CompleteCollective(Thread& thread) {
  const uint32_t group = thread.mask & LiveLanes(thread.context.warp);
  uint64_t values[kWarpLanes];
  for (uint32_t rest = group; rest != 0; rest &= rest - 1) {
    const uint32_t number = static_cast<uint32_t>(__builtin_ctz(rest));
    const Thread& lane = LaneOf(thread, number);
    values[number] = lane.value;
    if (lane.state != State::kWarp || lane.collective != thread.collective ||
        lane.mask != thread.mask) {
      return false;
    }
  }
  if (thread.collective == Collective::kMatrix) {
    MatrixSlots* slots[kWarpLanes] = {};
    for (uint32_t rest = group; rest != 0; rest &= rest - 1) {
      const uint32_t number = static_cast<uint32_t>(__builtin_ctz(rest));
      slots[number] = reinterpret_cast<MatrixSlots*>(values[number]);
    }
    RunMatrix(MatrixOperation::Unpack(thread.mode), slots);
  }
  for (uint32_t rest = group; rest != 0; rest &= rest - 1) {
    Thread& lane = LaneOf(thread, static_cast<uint32_t>(__builtin_ctz(rest)));
    lane.context.result = CollectiveResult(lane, values, group);
  }
  for (uint32_t rest = group; rest != 0; rest &= rest - 1) {
    LaneOf(thread, static_cast<uint32_t>(__builtin_ctz(rest))).state = State::kReady;
  }
  return true;
}

uint64_t BlockRunner::CollectiveResult(const Thread& thread, const uint64_t* values,
                                       uint32_t group) {
  switch (thread.collective) {
    case Collective::kSync:
    case Collective::kMatrix:  // in the lanes' slots
      return 0;
    case Collective::kShuffle:
      return ShuffleResult(static_cast<ShuffleMode>(thread.mode), values, thread.context.lane,
                           thread.b, thread.c, group);
    case Collective::kVote:
      return VoteResult(static_cast<VoteMode>(thread.mode), values, group);
    case Collective::kMatch:
      return MatchResult(thread.mode != 0, values, thread.context.lane, group);
    case Collective::kReduce:
      return ReduceResult(static_cast<WarpReduce>(thread.mode), values, group);
  }
  return 0;
}

void BlockRunner::WarpSync(ThreadContext* context, uint32_t mask) {
  EnterCollective(context, Collective::kSync, 0, 0, 0, 0, mask);
}

uint64_t BlockRunner::Shuffle(ThreadContext* context, ShuffleMode mode, uint32_t value, uint32_t b,
                              uint32_t c, uint32_t mask) {
  return EnterCollective(context, Collective::kShuffle, static_cast<uint32_t>(mode), value, b, c,
                         mask);
}

uint32_t BlockRunner::Vote(ThreadContext* context, VoteMode mode, bool predicate, uint32_t mask) {
  return static_cast<uint32_t>(EnterCollective(context, Collective::kVote,
                                               static_cast<uint32_t>(mode), predicate, 0, 0, mask));
}

uint64_t BlockRunner::Match(ThreadContext* context, bool all, uint64_t value, uint32_t mask) {
  return EnterCollective(context, Collective::kMatch, all, value, 0, 0, mask);
}

uint32_t BlockRunner::Reduce(ThreadContext* context, WarpReduce op, uint32_t value, uint32_t mask) {
  return static_cast<uint32_t>(
      EnterCollective(context, Collective::kReduce, static_cast<uint32_t>(op), value, 0, 0, mask));
}

void BlockRunner::Matrix(ThreadContext* context, uint32_t operation, MatrixSlots* slots) {
  constexpr uint32_t kAllLanes = 0xFFFFFFFF;
  EnterCollective(context, Collective::kMatrix, operation, reinterpret_cast<uint64_t>(slots), 0, 0,
                  kAllLanes);
}

uint32_t BlockRunner::ActiveMask(ThreadContext* context, uint32_t place) {
  Thread& thread = Of(context);
  thread.place = place;
  asked_active_ = true;
  Wait(thread, State::kActive);
  return static_cast<uint32_t>(thread.context.result);
}

// No lane of the warp is ready: those that ask at one place are the ones that a GPU would have
// converged there. Answers one such group. False if nobody asks.
bool BlockRunner::AnswerActiveMask(uint32_t warp) {
  if (!asked_active_) return false;
  const uint32_t first = warp * kWarpLanes;
  const uint32_t end = std::min(thread_count_, first + kWarpLanes);
  const Thread* leader = nullptr;
  uint32_t mask = 0;
  for (uint32_t i = first; i < end; ++i) {
    if (threads_[i]->state != State::kActive) continue;
    if (leader == nullptr) leader = threads_[i].get();
    if (threads_[i]->place == leader->place) mask |= 1u << (i - first);
  }
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    Thread& thread = *threads_[first + static_cast<uint32_t>(__builtin_ctz(rest))];
    thread.context.result = mask;
    thread.state = State::kReady;
  }
  return mask != 0;
}

}  // namespace consort::cpu
