// SPDX-License-Identifier: Apache-2.0
// base/lock_order_checks.cc: a release takes locks without checking their order.
//
// Debian builds Abseil without NDEBUG. Its absl::Mutex then notes at each lock which ones its
// thread holds, in one graph of the process behind one spinlock, to abort where an order could
// deadlock (absl/synchronization/mutex.h, OnDeadlockCycle). That is what tests want. It makes a
// lock that nobody holds cost 45 ns instead of 7, and 240 while one other thread takes locks of its
// own, measured on two cores: threads that share nothing wait for each other. Only the release
// preset links this file, into each program that uses consort_base.
#include "absl/synchronization/mutex.h"

namespace consort {
namespace {

[[maybe_unused]] const bool turned_off = [] {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return true;
}();

}  // namespace
}  // namespace consort
