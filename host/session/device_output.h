// SPDX-License-Identifier: Apache-2.0
// host/session/device_output.h: what the kernels of one session have printed and its program has
// not been told yet.
//
// Written by threads of the driver, taken by the session's loop at the points at which CUDA shows
// it. Bound: kDeviceOutputBytesMax for each of the two descriptors; beyond, the oldest is lost, as
// in CUDA's own buffer. Source: CUDA C++ Programming Guide, "Formatted Output". Thread safe.
#ifndef CONSORT_HOST_SESSION_DEVICE_OUTPUT_H_
#define CONSORT_HOST_SESSION_DEVICE_OUTPUT_H_

#include <atomic>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace consort::host {

class DeviceOutput {
 public:
  struct Text {
    int descriptor = 0;  // 1: stdout, 2: stderr
    std::string bytes;
  };

  void Append(int descriptor, absl::string_view text);
  // Append, for the driver: `owner` is a DeviceOutput.
  static void Write(void* owner, int descriptor, const char* text, size_t bytes) {
    static_cast<DeviceOutput*>(owner)->Append(descriptor, {text, bytes});
  }

  // Everything so far, which is then gone; stdout's first. What was written before the caller came
  // to know that its kernel has ended is in it.
  std::vector<Text> Take();

 private:
  // Relaxed: a hint for Take, which must not cost replies a lock; who knows that a kernel has ended
  // also sees what it stored.
  std::atomic<bool> any_{false};
  absl::Mutex mutex_;
  std::string out_ ABSL_GUARDED_BY(mutex_);
  std::string error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_DEVICE_OUTPUT_H_
