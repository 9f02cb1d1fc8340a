// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/warp_results.h: what the collectives of a warp give, from its lanes' values.
//
// `values` has one element for each lane of a warp; only those of lanes in `group` (a bit each) are
// read. Functions of their arguments; any thread.
// Source: PTX ISA 9.0, 9.7.9.6 shfl.sync, 9.7.13.9 vote.sync to 9.7.13.13 elect.sync.
#ifndef CONSORT_DEVICE_CPU_ENGINE_WARP_RESULTS_H_
#define CONSORT_DEVICE_CPU_ENGINE_WARP_RESULTS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "device/cpu/engine/runtime.h"

namespace consort::cpu {

// For lane `lane`: the value in the low half, the in-range predicate in bit 32.
uint64_t ShuffleResult(ShuffleMode mode, const uint64_t* values, uint32_t lane, uint32_t b,
                       uint32_t c, uint32_t group);

uint32_t VoteResult(VoteMode mode, const uint64_t* values, uint32_t group);

// The mask in the low half; with `all`, whether all values are equal in bit 32.
uint64_t MatchResult(bool all, const uint64_t* values, uint32_t lane, uint32_t group);

uint32_t ReduceResult(WarpReduce op, const uint64_t* values, uint32_t group);

// What a reduction makes of two values, for those of a warp and for those of surfaces. `Word` is
// unsigned. Source: PTX ISA 9.0, redux.sync and sured.
template <typename Word>
constexpr Word Reduced(WarpReduce op, Word a, Word b) {
  using Signed = std::make_signed_t<Word>;
  switch (op) {
    case WarpReduce::kAdd:
      return a + b;
    case WarpReduce::kMinSigned:
      return static_cast<Signed>(b) < static_cast<Signed>(a) ? b : a;
    case WarpReduce::kMinUnsigned:
      return std::min(a, b);
    case WarpReduce::kMaxSigned:
      return static_cast<Signed>(b) > static_cast<Signed>(a) ? b : a;
    case WarpReduce::kMaxUnsigned:
      return std::max(a, b);
    case WarpReduce::kAnd:
      return a & b;
    case WarpReduce::kOr:
      return a | b;
    case WarpReduce::kXor:
      return a ^ b;
  }
  return a;
}

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_WARP_RESULTS_H_
