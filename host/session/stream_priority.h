// SPDX-License-Identifier: Apache-2.0
// host/session/stream_priority.h: which driver priority a tenant's stream gets.
//
// The driver's range, `greatest` (the lowest number) to `least`, is cut into a band for each level,
// so that no program outranks tenants of a higher level by asking for more. Within its band a
// stream lies as its program asked, as far as the band has room, or highest if it is *quick*: its
// kernels are short (streams.h):
//
//   0 to -5 (driver 580, H200):   low 0 -1   normal -2 -3   high -4 -5
//
// A device gives room that falls free to the highest priority, so short kernels do not wait for
// blocks of long ones that have begun before them, and long ones fill what is left: more gets done
// at once (docs/PERFORMANCE.md has how much). Who gets how much is the scheduler's business, which
// holds back who is ahead.
//
// Pure.
#ifndef CONSORT_HOST_SESSION_STREAM_PRIORITY_H_
#define CONSORT_HOST_SESSION_STREAM_PRIORITY_H_

#include <algorithm>
#include <cstdint>

namespace consort::host {

// Of a tenant; the numbers are OpenSession's.
enum class PriorityLevel : uint32_t { kLow = 0, kNormal = 1, kHigh = 2 };
inline constexpr int kPriorityLevels = 3;

// `asked` is brought into the range first.
constexpr int StreamPriority(PriorityLevel level, int asked, bool quick, int least, int greatest) {
  const int steps = least - greatest + 1;
  const int band = static_cast<int>(level);
  const int first = std::min(band * steps / kPriorityLevels, steps - 1);
  const int end = std::max(first + 1, (band + 1) * steps / kPriorityLevels);
  if (quick) return least - (end - 1);
  const int above_least = least - std::clamp(asked, greatest, least);
  return least - (first + above_least * (end - first) / steps);
}

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_STREAM_PRIORITY_H_
