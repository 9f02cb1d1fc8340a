// SPDX-License-Identifier: Apache-2.0
#include "guest/patience.h"

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>

#include "guest/processors.h"

namespace consort::guest {
namespace {

constexpr int64_t kSpinNanos = 20'000;
constexpr int64_t kLongSpinNanos = 10'000'000;
constexpr int kLongSpinCores = 4;
constexpr int64_t kYieldsAfterNanos = 1'000'000;
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

Patience::Patience(bool sleeps)
    : spin_nanos_(!sleeps && ProcessorCount() >= kLongSpinCores ? kLongSpinNanos : kSpinNanos),
      begin_(NanosNow()) {}

void Patience::Pause() {
  if (naps()) {
    Nap(std::clamp(waited_ / kNapPart, kNapLeast, kNapMost));
  } else {
    __builtin_ia32_pause();
    if (++looks_ % kLooksBetweenClocks != 0) return;
    if (waited_ > kYieldsAfterNanos) sched_yield();
  }
  waited_ = NanosNow() - begin_;
}

}  // namespace consort::guest
