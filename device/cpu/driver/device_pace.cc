// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/driver/device_pace.h"

#include <errno.h>
#include <time.h>

#include <algorithm>

namespace consort::cpu {

Nanos MonotonicNow() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

void ComputePace::Begin(Nanos now) {
  if (running_++ == 0) counted_ = now;
}

Nanos ComputePace::End(Nanos now) {
  const double ran = static_cast<double>(now - counted_);
  counted_ = now;
  --running_;
  busy_until_ = std::max(busy_until_, now) + static_cast<Nanos>(ran * (1 / speed_ - 1));
  return busy_until_;
}

Nanos CopyPace::Copy(Nanos now, Bytes bytes) {
  if (bytes_per_second_ == 0) return now;
  const double seconds = static_cast<double>(bytes) / static_cast<double>(bytes_per_second_);
  busy_until_ = std::max(busy_until_, now) + static_cast<Nanos>(seconds * kSecond);
  return busy_until_;
}

DevicePace::DevicePace(const PaceOptions& options)
    : paces_kernels_(options.speed != 1 || options.launch != 0),
      paces_copies_(options.copy_bytes_per_second != 0),
      launch_(options.launch),
      compute_(options.speed),
      to_device_(options.copy_bytes_per_second),
      to_host_(options.copy_bytes_per_second) {}

void DevicePace::SleepUntil(Nanos moment) {
  const timespec until = {moment / kSecond, moment % kSecond};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

void DevicePace::BeginKernel() {
  Nanos ready = MonotonicNow() + launch_;
  while (true) {
    SleepUntil(ready);
    absl::MutexLock lock(&mutex_);
    const Nanos now = MonotonicNow();
    if (compute_.busy_until() <= now) return compute_.Begin(now);
    ready = compute_.busy_until();
  }
}

void DevicePace::EndKernel() {
  Nanos end = 0;
  {
    absl::MutexLock lock(&mutex_);
    end = compute_.End(MonotonicNow());
  }
  SleepUntil(end);
}

Nanos DevicePace::EndOfCopy(Bytes bytes, bool to_device) {
  absl::MutexLock lock(&mutex_);
  return (to_device ? to_device_ : to_host_).Copy(MonotonicNow(), bytes);
}

}  // namespace consort::cpu
