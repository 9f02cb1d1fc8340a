// SPDX-License-Identifier: Apache-2.0
// host/session/memory_meter.h: how much device memory a session holds, and has held for how long.
//
// Set by the session's loop whenever the number changes; read by any thread. Thread safe. The
// product of bytes and time is exact to a byte second at each change.
#ifndef CONSORT_HOST_SESSION_MEMORY_METER_H_
#define CONSORT_HOST_SESSION_MEMORY_METER_H_

#include <algorithm>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/units.h"

namespace consort::host {

class MemoryMeter {
 public:
  struct Reading {
    Bytes held = 0;
    Bytes peak = 0;
    uint64_t byte_seconds = 0;  // never goes back
  };

  // `held` bytes from `now` on, a time of the monotonic clock.
  void Set(Bytes held, Nanos now) {
    absl::MutexLock lock(&mutex_);
    byte_seconds_ += SinceLocked(now);
    held_ = held;
    peak_ = std::max(peak_, held);
    since_ = now;
  }

  Reading Read(Nanos now) const {
    absl::MutexLock lock(&mutex_);
    return {held_, peak_, static_cast<uint64_t>(byte_seconds_ + SinceLocked(now))};
  }

 private:
  // In double: bytes times nanoseconds would not fit 64 bits for a minute of one GPU's memory.
  double SinceLocked(Nanos now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return static_cast<double>(held_) * static_cast<double>(std::max<Nanos>(now - since_, 0)) /
           static_cast<double>(kSecond);
  }

  mutable absl::Mutex mutex_;
  Bytes held_ ABSL_GUARDED_BY(mutex_) = 0;
  Bytes peak_ ABSL_GUARDED_BY(mutex_) = 0;
  Nanos since_ ABSL_GUARDED_BY(mutex_) = 0;
  double byte_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_MEMORY_METER_H_
