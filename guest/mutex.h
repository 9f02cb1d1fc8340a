// SPDX-License-Identifier: Apache-2.0
// guest/mutex.h: pthread's lock and condition with scopes; Abseil's may not be loaded into
// strangers' processes. Constant-initialised, so usable in globals without constructors; never
// destroyed.
#ifndef CONSORT_GUEST_MUTEX_H_
#define CONSORT_GUEST_MUTEX_H_

#include <pthread.h>

namespace consort::guest {

class Mutex {
 public:
  constexpr Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void Lock() { pthread_mutex_lock(&mutex_); }
  bool TryLock() { return pthread_mutex_trylock(&mutex_) == 0; }
  void Unlock() { pthread_mutex_unlock(&mutex_); }

 private:
  friend class Condition;
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

class MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) : mutex_(mutex) { mutex_->Lock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  ~MutexLock() { mutex_->Unlock(); }

 private:
  Mutex* mutex_;
};

class Condition {
 public:
  constexpr Condition() = default;
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;
  // `mutex` is held; it is released while waiting. May return early.
  void Wait(Mutex* mutex) { pthread_cond_wait(&condition_, &mutex->mutex_); }
  void Broadcast() { pthread_cond_broadcast(&condition_); }

 private:
  pthread_cond_t condition_ = PTHREAD_COND_INITIALIZER;
};

}  // namespace consort::guest

#endif  // CONSORT_GUEST_MUTEX_H_
