// SPDX-License-Identifier: Apache-2.0
// host/session/rate_limit.h: how fast one tenant may launch and copy on one device.
//
// What is over the limit waits; nothing fails. How much a request takes is known when it has been
// submitted, so it is paid for afterwards: a request may go while the tenant is ahead of its rate
// by at most kRateBurst, and then puts it ahead by what it took. All that is kept is up to when the
// tenant has paid, one moment a rate.
//
// One a tenant and worker, shared by the sessions' threads. Thread safe, without a lock: sessions
// that look at the same moment may each let one request go.
// Source: ITU-T I.371, annex A, the generic cell rate algorithm as virtual scheduling.
#ifndef CONSORT_HOST_SESSION_RATE_LIMIT_H_
#define CONSORT_HOST_SESSION_RATE_LIMIT_H_

#include <atomic>
#include <cstdint>

#include "base/units.h"
#include "gen/host/handlers.h"
#include "host/control/messages.h"

namespace consort::host {

class RateLimit {
 public:
  // From now on; 0 of a rate: it has no bound. The same rates again change nothing; others begin
  // with nothing owed.
  void Set(const TenantRates& rates);
  bool limited() const { return limited_.load(std::memory_order_relaxed); }

  // How long a request of such cost has to wait from `now` on (CLOCK_MONOTONIC); 0: it may go.
  // Kernels and fills go by launches, copies by bytes.
  Nanos WaitOf(RequestCost cost, Nanos now) const;
  // It went, with so many bytes copied between host and device.
  void Charge(RequestCost cost, uint64_t bytes, Nanos now);

 private:
  struct Rate {
    // Relaxed: each is read by itself, and one that is late or lost is one request's worth.
    std::atomic<uint64_t> per_second{0};
    std::atomic<Nanos> paid_until{0};

    void Set(uint64_t rate);
    Nanos Wait(Nanos now) const;
    void Take(uint64_t units, Nanos now);
  };

  std::atomic<bool> limited_{false};
  Rate launches_;
  Rate copy_bytes_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_RATE_LIMIT_H_
