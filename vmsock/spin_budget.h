// SPDX-License-Identifier: Apache-2.0
// vmsock/spin_budget.h: how long a waiter spins before it sleeps, learned from its last waits.
//
// A wait that was over within the time that the caller is ready to spin doubles the time of the
// next spin; a longer one halves it. So a side that mostly waits long, or whose peer gets no
// processor while it spins, comes to sleep at once, at the latency of having spun in vain.
//
// Who sleeps does not learn how short a wait could have been: on a virtual machine waking takes
// longer than many a reply. So each kTryEvery-th wait is spun for as long as the caller allows,
// whatever was learned; if that did not pay, nothing changes.
//
// Thread safe: the budget is a guess, so relaxed order is enough, and a count that is lost now and
// then does no harm. Needs no library.
#ifndef CONSORT_VMSOCK_SPIN_BUDGET_H_
#define CONSORT_VMSOCK_SPIN_BUDGET_H_

#include <atomic>
#include <cstdint>

#include "base/units.h"

namespace consort {

class SpinBudget {
 public:
  // How long to spin when the caller allows `spin` > 0.
  Nanos Allow(Nanos spin) {
    const Nanos budget = budget_.load(std::memory_order_relaxed);
    if (budget >= spin) return spin;
    const uint32_t waits = waits_.load(std::memory_order_relaxed) + 1;
    waits_.store(waits, std::memory_order_relaxed);
    return waits % kTryEvery == 0 ? spin : budget;
  }

  // The wait for which Allow(spin) gave `allowed` took `waited`, spinning and sleeping.
  void Learn(Nanos spin, Nanos allowed, Nanos waited) {
    const Nanos budget = budget_.load(std::memory_order_relaxed);
    if (waited > spin) {
      if (allowed / 2 < budget) budget_.store(allowed / 2, std::memory_order_relaxed);
    } else {
      budget_.store(allowed < kStart ? kStart : 2 * allowed, std::memory_order_relaxed);
    }
  }

 private:
  // The first spin after spinning was found not to pay: about what going to sleep and waking costs.
  static constexpr Nanos kStart = 5 * kMicrosecond;
  // Seldom enough that spinning in vain costs a wait little on average.
  static constexpr uint32_t kTryEvery = 16;

  // At first as much as any caller allows.
  std::atomic<Nanos> budget_{kSecond};
  std::atomic<uint32_t> waits_{0};  // for which it gave less than it was allowed
};

}  // namespace consort

#endif  // CONSORT_VMSOCK_SPIN_BUDGET_H_
