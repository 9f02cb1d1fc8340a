// SPDX-License-Identifier: Apache-2.0
#include "gpool/clock.h"

#include <time.h>

namespace consort::gpool {
namespace {

Nanos Read(clockid_t which) {
  timespec now;
  clock_gettime(which, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

class SystemClock final : public Clock {
 public:
  Nanos Monotonic() const override { return Read(CLOCK_MONOTONIC); }
  Nanos Unix() const override { return Read(CLOCK_REALTIME); }
};

}  // namespace

const Clock* Clock::System() {
  static const SystemClock clock;
  return &clock;
}

}  // namespace consort::gpool
