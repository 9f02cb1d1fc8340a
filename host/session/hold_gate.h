// SPDX-License-Identifier: Apache-2.0
// host/session/hold_gate.h: keeps two things apart that would wait for each other for ever.
//
// Some driver calls (cuMemHostUnregister, cuMemFreeHost, loading code) return only when the whole
// context is idle, and keep all its other callers waiting meanwhile. A stream that waits for a
// guest's host function is idle only after that guest has answered, which its session must hear of:
// and that session may be the caller, or be kept waiting by it. Seen on driver 580: one such call
// with a held stream stops the worker. So such a call is made only while no stream of the worker is
// held, and no stream is held meanwhile. Thread safe; one for each worker.
#ifndef CONSORT_HOST_SESSION_HOLD_GATE_H_
#define CONSORT_HOST_SESSION_HOLD_GATE_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace consort::host {

class HoldGate {
 public:
  // Before a stream is made to wait for a guest; waits until no synchronising call is under way.
  void AddHold() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](HoldGate* gate) ABSL_NO_THREAD_SAFETY_ANALYSIS { return gate->inside_ == 0; }, this));
    ++holds_;
  }
  // The stream has gone on.
  void RemoveHold() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    --holds_;
  }

  // True: a synchronising call may be made now; Leave ends that.
  bool TryEnter() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (holds_ != 0) return false;
    ++inside_;
    return true;
  }
  // As TryEnter, but waits, as long as guests let it.
  void Enter() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](HoldGate* gate) ABSL_NO_THREAD_SAFETY_ANALYSIS { return gate->holds_ == 0; }, this));
    ++inside_;
  }
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    --inside_;
  }

 private:
  absl::Mutex mutex_;
  uint64_t holds_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t inside_ ABSL_GUARDED_BY(mutex_) = 0;
};

// From Enter until the end of its owner, if it was entered.
class HoldGateScope {
 public:
  explicit HoldGateScope(HoldGate* gate) : gate_(gate) {}
  HoldGateScope(const HoldGateScope&) = delete;
  HoldGateScope& operator=(const HoldGateScope&) = delete;
  ~HoldGateScope() {
    if (entered_) gate_->Leave();
  }
  void Enter() {
    gate_->Enter();
    entered_ = true;
  }

 private:
  HoldGate* const gate_;
  bool entered_ = false;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_HOLD_GATE_H_
