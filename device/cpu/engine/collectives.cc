// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/collectives.cc: BlockRunner's barriers and warp collectives.
// Source: PTX ISA 9.0, 9.7.9.6 shfl.sync, 9.7.13.1 bar, 9.7.13.9 vote.sync to 9.7.13.13 elect.sync.
#include <algorithm>

#include "device/cpu/engine/block_runner.h"

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

void BlockRunner::ArriveAtBarrier(Thread& thread, uint32_t barrier, uint32_t count,
                                  BarrierReduce op, bool predicate) {
  if (barrier >= kBarriers) Abandon(LaunchFault::kTrap);
  BarrierState& state = barriers_[barrier];
  // Counts are in whole warps: a last warp with fewer lanes counts for 32 threads all the same.
  uint32_t weight = 1;
  const uint32_t odd_lanes = thread_count_ % kWarpLanes;
  const bool in_last_warp = thread.context.thread_index >= thread_count_ - odd_lanes;
  if (count != 0 && in_last_warp && thread.context.lane == 0) weight += kWarpLanes - odd_lanes;
  state.arrived += weight;
  state.expected = count;
  state.op = op;
  if (predicate) ++state.popc;
  ++state.votes;
}

// Releases the waiting threads if all have arrived.
bool BlockRunner::CompleteBarrier(uint32_t barrier) {
  BarrierState& state = barriers_[barrier];
  const uint32_t expected = state.expected != 0 ? state.expected : live_threads_;
  if (state.arrived == 0 || state.arrived < expected) return false;
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
  return true;
}

void BlockRunner::Barrier(ThreadContext* context, uint32_t barrier, uint32_t count) {
  BarrierReduction(context, barrier, count, BarrierReduce::kNone, false);
}

void BlockRunner::BarrierArrive(ThreadContext* context, uint32_t barrier, uint32_t count) {
  ArriveAtBarrier(Of(context), barrier, count, BarrierReduce::kNone, false);
  CompleteBarrier(barrier);
}

uint32_t BlockRunner::BarrierReduction(ThreadContext* context, uint32_t barrier, uint32_t count,
                                       BarrierReduce op, bool predicate) {
  Thread& thread = Of(context);
  ArriveAtBarrier(thread, barrier, count, op, predicate);
  // Waits like the others, so that the release gives it the result as well.
  ++barriers_[barrier].waiting;
  thread.barrier = barrier;
  thread.state = State::kBarrier;
  if (CompleteBarrier(barrier)) return static_cast<uint32_t>(thread.context.result);
  Leave(thread);
  return static_cast<uint32_t>(thread.context.result);
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
  for (uint32_t rest = group; rest != 0; rest &= rest - 1) {
    const Thread& lane = LaneOf(thread, static_cast<uint32_t>(__builtin_ctz(rest)));
    if (lane.state != State::kWarp || lane.collective != thread.collective ||
        lane.mask != thread.mask) {
      return false;
    }
  }
  for (uint32_t rest = group; rest != 0; rest &= rest - 1) {
    Thread& lane = LaneOf(thread, static_cast<uint32_t>(__builtin_ctz(rest)));
    lane.context.result = CollectiveResult(lane, group);
  }
  for (uint32_t rest = group; rest != 0; rest &= rest - 1) {
    LaneOf(thread, static_cast<uint32_t>(__builtin_ctz(rest))).state = State::kReady;
  }
  return true;
}

uint64_t BlockRunner::ShuffleResult(const Thread& thread, uint32_t group) {
  const uint32_t lane = thread.context.lane;
  const uint32_t b = thread.b & 31;
  const uint32_t clamp = thread.c & 31;
  const uint32_t segment = thread.c >> 8 & 31;
  const uint32_t limit = (lane & segment) | (clamp & ~segment);  // maxLane of the ISA
  uint32_t from = lane;
  bool inside = false;
  switch (static_cast<ShuffleMode>(thread.mode)) {
    case ShuffleMode::kUp:
      from = lane - b;
      inside = static_cast<int32_t>(from) >= static_cast<int32_t>(limit);
      break;
    case ShuffleMode::kDown:
      from = lane + b;
      inside = from <= limit;
      break;
    case ShuffleMode::kButterfly:
      from = lane ^ b;
      inside = from <= limit;
      break;
    case ShuffleMode::kIndex:
      from = (lane & segment) | (b & ~segment);
      inside = from <= limit;
      break;
  }
  // Out of range, or from a lane that takes no part (undefined): the lane's own value.
  if (!inside || (group >> (from & 31) & 1) == 0) from = lane;
  const uint64_t value = static_cast<uint32_t>(LaneOf(thread, from).value);
  return value | uint64_t{inside} << 32;
}

uint64_t BlockRunner::CollectiveResult(const Thread& thread, uint32_t group) {
  auto each = [&](auto visit) {
    for (uint32_t rest = group; rest != 0; rest &= rest - 1) {
      const uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
      visit(lane, LaneOf(thread, lane).value);
    }
  };
  switch (thread.collective) {
    case Collective::kSync:
      return 0;
    case Collective::kShuffle:
      return ShuffleResult(thread, group);
    case Collective::kVote: {
      uint32_t ballot = 0;
      each([&](uint32_t lane, uint64_t value) { ballot |= uint32_t{value != 0} << lane; });
      switch (static_cast<VoteMode>(thread.mode)) {
        case VoteMode::kAll:
          return ballot == group;
        case VoteMode::kAny:
          return ballot != 0;
        case VoteMode::kUniform:
          return ballot == 0 || ballot == group;
        case VoteMode::kBallot:
          return ballot;
      }
      return 0;
    }
    case Collective::kMatch: {
      uint32_t same = 0;
      each([&](uint32_t lane, uint64_t value) { same |= uint32_t{value == thread.value} << lane; });
      const bool is_all = thread.mode != 0;
      if (!is_all) return same;
      return same == group ? uint64_t{group} | uint64_t{1} << 32 : 0;
    }
    case Collective::kReduce: {
      bool first = true;
      uint32_t sum = 0;
      each([&](uint32_t, uint64_t wide) {
        const uint32_t value = static_cast<uint32_t>(wide);
        const int32_t as_signed = static_cast<int32_t>(value);
        const int32_t sum_signed = static_cast<int32_t>(sum);
        if (first) {
          sum = value;
          first = false;
          return;
        }
        switch (static_cast<WarpReduce>(thread.mode)) {
          case WarpReduce::kAdd:
            sum += value;
            break;
          case WarpReduce::kMinSigned:
            sum = static_cast<uint32_t>(std::min(sum_signed, as_signed));
            break;
          case WarpReduce::kMinUnsigned:
            sum = std::min(sum, value);
            break;
          case WarpReduce::kMaxSigned:
            sum = static_cast<uint32_t>(std::max(sum_signed, as_signed));
            break;
          case WarpReduce::kMaxUnsigned:
            sum = std::max(sum, value);
            break;
          case WarpReduce::kAnd:
            sum &= value;
            break;
          case WarpReduce::kOr:
            sum |= value;
            break;
          case WarpReduce::kXor:
            sum ^= value;
            break;
        }
      });
      return sum;
    }
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

uint32_t BlockRunner::ActiveMask(ThreadContext* context, uint32_t place) {
  Thread& thread = Of(context);
  thread.place = place;
  Wait(thread, State::kActive);
  return static_cast<uint32_t>(thread.context.result);
}

// No lane of the warp is ready: those that ask at one place are the ones that a GPU would have
// converged there. Answers one such group. False if nobody asks.
bool BlockRunner::AnswerActiveMask(uint32_t warp) {
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
