// SPDX-License-Identifier: Apache-2.0
// vmsock/spin_budget.h: how long a waiter spins before it sleeps, learned from its last waits.
//
// A wait that was over within the time that the caller is ready to spin doubles the time of the
// next spin; a longer one halves it. So a side that mostly waits long, or whose peer gets no
// processor while it spins, comes to sleep at once, at the latency of having spun in vain. Thread
// safe: the budget is a guess, so relaxed order is enough. Needs no library.
#ifndef CONSORT_VMSOCK_SPIN_BUDGET_H_
#define CONSORT_VMSOCK_SPIN_BUDGET_H_

#include <atomic>

#include "base/units.h"

namespace consort {

class SpinBudget {
 public:
  // How long to spin when the caller allows `spin` > 0.
  Nanos Allow(Nanos spin) const {
    const Nanos budget = budget_.load(std::memory_order_relaxed);
    return budget < spin ? budget : spin;
  }

  // The wait for which Allow(spin) gave `allowed` took `waited`, spinning and sleeping.
  void Learn(Nanos spin, Nanos allowed, Nanos waited) {
    if (waited > spin) {
      budget_.store(allowed / 2, std::memory_order_relaxed);
    } else {
      budget_.store(allowed < kStart ? kStart : 2 * allowed, std::memory_order_relaxed);
    }
  }

 private:
  // The first spin after spinning was found not to pay: about what going to sleep and waking costs.
  static constexpr Nanos kStart = 5 * kMicrosecond;

  // At first as much as any caller allows.
  std::atomic<Nanos> budget_{kSecond};
};

}  // namespace consort

#endif  // CONSORT_VMSOCK_SPIN_BUDGET_H_
