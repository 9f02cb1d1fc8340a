// SPDX-License-Identifier: Apache-2.0
// tools/tsan/absl_synchronization.cc: tells ThreadSanitizer what Abseil's locks order.
//
// Debian's Abseil is built without the sanitizer, so that it sees none of the memory order that an
// absl::Mutex gives and would report everything behind one. This library is linked ahead of
// Abseil's into all that the tsan preset builds: each function below takes the place of Abseil's,
// calls it, and says what it ordered. That makes a release of each unlock and an acquire of each
// lock; that two readers do not order each other is lost, and so is the order of locks (deadlocks).
//
// An absl::Condition is called by whatever thread gives the lock away, inside Abseil, after the
// release that we told of: reads in there are not judged.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

// Of the sanitizer's run-time; in none of its headers.
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);

namespace {

class ReadsUnjudged {
 public:
  ReadsUnjudged() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~ReadsUnjudged() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
  ReadsUnjudged(const ReadsUnjudged&) = delete;
  ReadsUnjudged& operator=(const ReadsUnjudged&) = delete;
};

// Abseil's own function. In the Itanium C++ ABI a member function is one whose first argument is
// the object.
template <typename Function>
Function* Original(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  if (found == nullptr) {
    std::fprintf(stderr, "tools/tsan: this Abseil has no %s\n", name);
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

}  // namespace

// Abseil's inline namespace, as Debian configured it, in mangled names.
#define CONSORT_ABSL(rest) "4absl7debian3" rest

namespace absl {
ABSL_NAMESPACE_BEGIN

#define CONSORT_LOCKS(function, name)                                                        \
  void Mutex::function() {                                                                   \
    static auto* const original = Original<void(Mutex*)>("_ZN" CONSORT_ABSL("5Mutex" name)); \
    const ReadsUnjudged unjudged;                                                            \
    original(this);                                                                          \
    __tsan_acquire(this);                                                                    \
  }
#define CONSORT_TRIES(function, name)                                                        \
  bool Mutex::function() {                                                                   \
    static auto* const original = Original<bool(Mutex*)>("_ZN" CONSORT_ABSL("5Mutex" name)); \
    const bool locked = original(this);                                                      \
    if (locked) __tsan_acquire(this);                                                        \
    return locked;                                                                           \
  }
#define CONSORT_UNLOCKS(function, name)                                                      \
  void Mutex::function() {                                                                   \
    static auto* const original = Original<void(Mutex*)>("_ZN" CONSORT_ABSL("5Mutex" name)); \
    __tsan_release(this);                                                                    \
    const ReadsUnjudged unjudged;                                                            \
    original(this);                                                                          \
  }
CONSORT_LOCKS(Lock, "4LockEv")
CONSORT_LOCKS(ReaderLock, "10ReaderLockEv")
CONSORT_TRIES(TryLock, "7TryLockEv")
CONSORT_TRIES(ReaderTryLock, "13ReaderTryLockEv")
CONSORT_UNLOCKS(Unlock, "6UnlockEv")
CONSORT_UNLOCKS(ReaderUnlock, "12ReaderUnlockEv")

// Gives the lock away while it waits (`before` tells), or takes it when the condition holds.
#define CONSORT_WAITS(before, result, function, parameters, arguments, name, ...) \
  result Mutex::function parameters {                                             \
    static auto* const original =                                                 \
        Original<result(Mutex*, __VA_ARGS__)>("_ZN" CONSORT_ABSL("5Mutex" name)); \
    before;                                                                       \
    const ReadsUnjudged unjudged;                                                 \
    const AcquireAtEnd acquire{this};                                             \
    return original arguments;                                                    \
  }
namespace {
struct AcquireAtEnd {
  void* lock;
  ~AcquireAtEnd() { __tsan_acquire(lock); }
};
}  // namespace
CONSORT_WAITS(__tsan_release(this), void, Await, (const Condition& condition), (this, condition),
              "5AwaitERKNS0_9ConditionE", const Condition&)
CONSORT_WAITS(__tsan_release(this), bool, AwaitWithTimeout,
              (const Condition& condition, Duration timeout), (this, condition, timeout),
              "16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE", const Condition&, Duration)
CONSORT_WAITS(__tsan_release(this), bool, AwaitWithDeadline,
              (const Condition& condition, Time deadline), (this, condition, deadline),
              "17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE", const Condition&, Time)
CONSORT_WAITS(, void, LockWhen, (const Condition& condition), (this, condition),
              "8LockWhenERKNS0_9ConditionE", const Condition&)
CONSORT_WAITS(, bool, LockWhenWithTimeout, (const Condition& condition, Duration timeout),
              (this, condition, timeout), "19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE",
              const Condition&, Duration)
CONSORT_WAITS(, bool, LockWhenWithDeadline, (const Condition& condition, Time deadline),
              (this, condition, deadline), "20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE",
              const Condition&, Time)
CONSORT_WAITS(, void, ReaderLockWhen, (const Condition& condition), (this, condition),
              "14ReaderLockWhenERKNS0_9ConditionE", const Condition&)
CONSORT_WAITS(, bool, ReaderLockWhenWithTimeout, (const Condition& condition, Duration timeout),
              (this, condition, timeout),
              "25ReaderLockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE", const Condition&,
              Duration)
CONSORT_WAITS(, bool, ReaderLockWhenWithDeadline, (const Condition& condition, Time deadline),
              (this, condition, deadline),
              "26ReaderLockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE", const Condition&, Time)

void CondVar::Wait(Mutex* mutex) {
  static auto* const original =
      Original<void(CondVar*, Mutex*)>("_ZN" CONSORT_ABSL("7CondVar4WaitEPNS0_5MutexE"));
  __tsan_release(mutex);
  const ReadsUnjudged unjudged;
  original(this, mutex);
  __tsan_acquire(mutex);
}
bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static auto* const original = Original<bool(CondVar*, Mutex*, Duration)>(
      "_ZN" CONSORT_ABSL("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE"));
  __tsan_release(mutex);
  const ReadsUnjudged unjudged;
  const AcquireAtEnd acquire{mutex};
  return original(this, mutex, timeout);
}
bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static auto* const original = Original<bool(CondVar*, Mutex*, Time)>(
      "_ZN" CONSORT_ABSL("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"));
  __tsan_release(mutex);
  const ReadsUnjudged unjudged;
  const AcquireAtEnd acquire{mutex};
  return original(this, mutex, deadline);
}

// Who asks HasBeenNotified, which is inline, looks at the atomic behind the lock and takes no lock.
// Source: absl/synchronization/notification.h, private members.
void Notification::Notify() {
  static auto* const original =
      Original<void(Notification*)>("_ZN" CONSORT_ABSL("12Notification6NotifyEv"));
  __tsan_release(this);
  __tsan_release(reinterpret_cast<char*>(this) + sizeof(Mutex));
  original(this);
}
void Notification::WaitForNotification() const {
  static auto* const original = Original<void(const Notification*)>(
      "_ZNK" CONSORT_ABSL("12Notification19WaitForNotificationEv"));
  original(this);
  __tsan_acquire(const_cast<Notification*>(this));
}
bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static auto* const original = Original<bool(const Notification*, Duration)>(
      "_ZNK" CONSORT_ABSL("12Notification30WaitForNotificationWithTimeoutENS0_8DurationE"));
  const bool notified = original(this, timeout);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}
bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  static auto* const original = Original<bool(const Notification*, Time)>(
      "_ZNK" CONSORT_ABSL("12Notification31WaitForNotificationWithDeadlineENS0_4TimeE"));
  const bool notified = original(this, deadline);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

ABSL_NAMESPACE_END
}  // namespace absl
