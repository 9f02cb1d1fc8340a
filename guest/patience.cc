// SPDX-License-Identifier: Apache-2.0
#include "guest/patience.h"

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>

#include "guest/processors.h"

namespace consort::guest {
namespace {

struct Spin {
  int64_t nanos;         // in all
  int64_t yields_after;  // nanoseconds
};
constexpr Spin kLong = {10'000'000, 1'000'000};
constexpr int kLongSpinCores = 4;
// With few cores the worker may need this one.
constexpr Spin kFewCores = {100'000, 0};
constexpr Spin kAsleep = {20'000, 0};
constexpr int kLooksBetweenClocks = 32;
constexpr int64_t kNapPart = 100;
constexpr int64_t kNapLeast = 20'000;
constexpr int64_t kNapMost = 500'000;
// How late the kernel may end a sleep, to end several together; by default 50 us.
constexpr unsigned long kTimerSlack = 1'000;

int64_t NanosNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

void Nap(int64_t nanos) {
  const timespec time = {0, nanos};
  // The thread is the program's, and gets back what it had.
  const int slack = prctl(PR_GET_TIMERSLACK);
  const bool shorten = slack > static_cast<int>(kTimerSlack);
  if (shorten) (void)prctl(PR_SET_TIMERSLACK, kTimerSlack);
  nanosleep(&time, nullptr);
  if (shorten) (void)prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack));
}

}  // namespace

Patience::Patience(bool sleeps) : begin_(NanosNow()) {
  const Spin spin = sleeps ? kAsleep : ProcessorCount() >= kLongSpinCores ? kLong : kFewCores;
  spin_nanos_ = spin.nanos;
  yields_after_ = spin.yields_after;
}

void Patience::Pause() {
  if (naps()) {
    Nap(std::clamp(waited_ / kNapPart, kNapLeast, kNapMost));
  } else if (waited_ >= yields_after_) {
    sched_yield();
  } else {
    __builtin_ia32_pause();
    if (++looks_ % kLooksBetweenClocks != 0) return;
  }
  waited_ = NanosNow() - begin_;
}

}  // namespace consort::guest
