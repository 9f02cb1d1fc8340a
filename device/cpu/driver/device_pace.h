// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/device_pace.h: how slow a device is to be: when its kernels may begin and end,
// and when its copies end.
//
// A device is never faster than this machine. What it is slower by is slept and not burned, after
// the work, in the thread of the stream; events of that stream are recorded afterwards and so have
// the model's time. ComputePace and CopyPace only compute: moments in, moments out (monotonic
// nanoseconds), and every moment given is at or after the one before. DevicePace adds the clock and
// the lock. Thread safe.
#ifndef CONSORT_DEVICE_CPU_DRIVER_DEVICE_PACE_H_
#define CONSORT_DEVICE_CPU_DRIVER_DEVICE_PACE_H_

#include <cstdint>

#include "absl/synchronization/mutex.h"
#include "base/units.h"

namespace consort::cpu {

// The monotonic clock, of this driver's events too.
Nanos MonotonicNow();

// Kernels of all streams share the device: however many run at once, a second in which any of them
// ran keeps a device of speed 0.5 busy for two.
class ComputePace {
 public:
  // `speed` in (0, 1].
  explicit ComputePace(double speed) : speed_(speed) {}

  // No kernel may begin before this.
  Nanos busy_until() const { return busy_until_; }
  void Begin(Nanos now);
  // When the device is done with a kernel that ended at `now`.
  Nanos End(Nanos now);

 private:
  const double speed_;
  int running_ = 0;
  Nanos counted_ = 0;  // up to here the time in which kernels ran is in busy_until_
  Nanos busy_until_ = 0;
};

// One copy engine: copies one after the other.
class CopyPace {
 public:
  explicit CopyPace(Bytes bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // When a copy of `bytes` that could begin at `now` is over.
  Nanos Copy(Nanos now, Bytes bytes);

 private:
  const Bytes bytes_per_second_;  // 0: no bound
  Nanos busy_until_ = 0;
};

struct PaceOptions {
  double speed = 1;
  Nanos launch = 0;                 // from when a stream gets to a kernel until it begins
  Bytes copy_bytes_per_second = 0;  // each way, between host and device; 0: as fast as it goes
};

class DevicePace {
 public:
  explicit DevicePace(const PaceOptions& options);
  DevicePace(const DevicePace&) = delete;
  DevicePace& operator=(const DevicePace&) = delete;

  // Waits until the device takes a kernel, runs it, and waits until the device is done with it.
  template <typename Kernel>
  void RunKernel(Kernel&& kernel) {
    if (!paces_kernels_) return kernel();
    BeginKernel();
    kernel();
    EndKernel();
  }

  bool paces_copies() const { return paces_copies_; }
  // Runs a copy between the host and the device, and waits until its engine is done with it.
  template <typename Copy>
  void RunCopy(Bytes bytes, bool to_device, Copy&& copy) {
    const Nanos end = EndOfCopy(bytes, to_device);
    copy();
    SleepUntil(end);
  }

 private:
  static void SleepUntil(Nanos moment);
  void BeginKernel();
  void EndKernel();
  Nanos EndOfCopy(Bytes bytes, bool to_device);

  const bool paces_kernels_;
  const bool paces_copies_;
  const Nanos launch_;
  absl::Mutex mutex_;
  ComputePace compute_ ABSL_GUARDED_BY(mutex_);
  CopyPace to_device_ ABSL_GUARDED_BY(mutex_);
  CopyPace to_host_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_DEVICE_PACE_H_
