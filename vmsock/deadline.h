// SPDX-License-Identifier: Apache-2.0
// vmsock/deadline.h: time limits of system calls. Immutable; any thread. Needs no library.
//
// Channels wait on the kernel, so they read the kernel's clock themselves: there is nothing to
// fake.
#ifndef CONSORT_VMSOCK_DEADLINE_H_
#define CONSORT_VMSOCK_DEADLINE_H_

#include <time.h>

#include <cstdint>

#include "base/units.h"

namespace consort {

inline Nanos MonotonicNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

// A point in time `timeout` after its construction; a negative timeout is never reached.
class Deadline {
 public:
  explicit Deadline(Nanos timeout) : at_(timeout < 0 ? INT64_MAX : Add(MonotonicNow(), timeout)) {}

  // Never negative; INT64_MAX when there is no limit.
  Nanos Left() const {
    if (at_ == INT64_MAX) return INT64_MAX;
    const Nanos left = at_ - MonotonicNow();
    return left > 0 ? left : 0;
  }
  // For poll(2), rounded up so that a wait is never too short; -1 when there is no limit.
  int LeftMs() const { return ToPollMs(Left()); }

  static int ToPollMs(Nanos left) {
    if (left == INT64_MAX) return -1;
    if (left / kMillisecond >= INT32_MAX - 1) return INT32_MAX;
    return static_cast<int>((left + kMillisecond - 1) / kMillisecond);
  }

 private:
  static Nanos Add(Nanos now, Nanos timeout) {
    return timeout > INT64_MAX - 1 - now ? INT64_MAX : now + timeout;
  }
  Nanos at_;
};

}  // namespace consort

#endif  // CONSORT_VMSOCK_DEADLINE_H_
