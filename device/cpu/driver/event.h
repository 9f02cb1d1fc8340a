// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/event.h: a CUDA event: a name for the last point in a stream where it was
// recorded.
//
// Thread safe.
#ifndef CONSORT_DEVICE_CPU_DRIVER_EVENT_H_
#define CONSORT_DEVICE_CPU_DRIVER_EVENT_H_

#include <memory>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/units.h"
#include "device/cpu/driver/cuda_api.h"

namespace consort::cpu {

class Context;

// One recording. Waiters keep it (shared_ptr) while the event may be recorded anew.
struct EventRecord {
  Nanos time = 0;  // when the stream got there, monotonic; set before `reached`
  absl::Notification reached;
};

class Event {
 public:
  Event(std::shared_ptr<Context> context, unsigned int flags)
      : context_(std::move(context)), flags_(flags) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  const std::shared_ptr<Context>& context() const { return context_; }
  unsigned int flags() const { return flags_; }
  bool timed() const { return (flags_ & CU_EVENT_DISABLE_TIMING) == 0; }

  // The last recording, or null.
  std::shared_ptr<EventRecord> record() {
    absl::MutexLock lock(&mutex_);
    return record_;
  }
  void set_record(std::shared_ptr<EventRecord> record) {
    absl::MutexLock lock(&mutex_);
    record_ = std::move(record);
  }

 private:
  const std::shared_ptr<Context> context_;
  const unsigned int flags_;
  absl::Mutex mutex_;
  std::shared_ptr<EventRecord> record_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_EVENT_H_
