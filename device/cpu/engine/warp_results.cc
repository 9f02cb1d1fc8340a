// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/engine/warp_results.h"

namespace consort::cpu {
namespace {

template <typename Visit>
void ForLanes(uint32_t group, Visit visit) {
  for (uint32_t rest = group; rest != 0; rest &= rest - 1) {
    visit(static_cast<uint32_t>(__builtin_ctz(rest)));
  }
}

}  // namespace

uint64_t ShuffleResult(ShuffleMode mode, const uint64_t* values, uint32_t lane, uint32_t b,
                       uint32_t c, uint32_t group) {
  b &= 31;
  const uint32_t clamp = c & 31;
  const uint32_t segment = c >> 8 & 31;
  const uint32_t limit = (lane & segment) | (clamp & ~segment);  // maxLane of the ISA
  uint32_t from = lane;
  bool inside = false;
  switch (mode) {
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
  return uint64_t{static_cast<uint32_t>(values[from])} | uint64_t{inside} << 32;
}

uint32_t VoteResult(VoteMode mode, const uint64_t* values, uint32_t group) {
  uint32_t ballot = 0;
  ForLanes(group, [&](uint32_t lane) { ballot |= uint32_t{values[lane] != 0} << lane; });
  switch (mode) {
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

uint64_t MatchResult(bool all, const uint64_t* values, uint32_t lane, uint32_t group) {
  uint32_t same = 0;
  ForLanes(group,
           [&](uint32_t other) { same |= uint32_t{values[other] == values[lane]} << other; });
  if (!all) return same;
  return same == group ? uint64_t{group} | uint64_t{1} << 32 : 0;
}

uint32_t ReduceResult(WarpReduce op, const uint64_t* values, uint32_t group) {
  uint32_t result = static_cast<uint32_t>(values[__builtin_ctz(group)]);
  ForLanes(group & (group - 1), [&](uint32_t lane) {
    result = Reduced(op, result, static_cast<uint32_t>(values[lane]));
  });
  return result;
}

}  // namespace consort::cpu
