// SPDX-License-Identifier: Apache-2.0
// base/units.h: integers with a unit. Plain values; need no library, so the guest may use them too.
#ifndef CONSORT_BASE_UNITS_H_
#define CONSORT_BASE_UNITS_H_

#include <cstdint>

namespace consort {

// Bytes are plain u64 by name; the constants below make sizes readable.
using Bytes = uint64_t;
inline constexpr Bytes kKiB = 1024;
inline constexpr Bytes kMiB = 1024 * kKiB;
inline constexpr Bytes kGiB = 1024 * kMiB;
inline constexpr Bytes kTiB = 1024 * kGiB;

// Nanoseconds on a monotonic clock, or a span of them.
using Nanos = int64_t;
inline constexpr Nanos kMicrosecond = 1000;
inline constexpr Nanos kMillisecond = 1000 * kMicrosecond;
inline constexpr Nanos kSecond = 1000 * kMillisecond;

// `value` rounded up to a multiple of `alignment`, a power of two. Wraps to 0 past 2^64.
constexpr uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

}  // namespace consort

#endif  // CONSORT_BASE_UNITS_H_
