// SPDX-License-Identifier: Apache-2.0
#include "host/session/rate_limit.h"

#include <algorithm>

#include "host/limits.h"

namespace consort::host {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

void RateLimit::Rate::Set(uint64_t rate) {
  if (per_second.exchange(rate, kRelaxed) != rate) paid_until.store(0, kRelaxed);
}

Nanos RateLimit::Rate::Wait(Nanos now) const {
  if (per_second.load(kRelaxed) == 0) return 0;
  return std::max<Nanos>(paid_until.load(kRelaxed) - now - kRateBurst, 0);
}

void RateLimit::Rate::Take(uint64_t units, Nanos now) {
  const uint64_t rate = per_second.load(kRelaxed);
  if (rate == 0 || units == 0) return;
  const double nanos =
      static_cast<double>(units) / static_cast<double>(rate) * static_cast<double>(kSecond);
  Nanos before = paid_until.load(kRelaxed);
  Nanos after;
  do {
    const double from_now = static_cast<double>(std::max<Nanos>(before - now, 0)) + nanos;
    after = now + static_cast<Nanos>(std::min(from_now, static_cast<double>(kRateDebtMax)));
  } while (!paid_until.compare_exchange_weak(before, after, kRelaxed));
}

void RateLimit::Set(const TenantRates& rates) {
  launches_.Set(rates.launches_per_second);
  copy_bytes_.Set(rates.copy_bytes_per_second);
  limited_.store(rates != TenantRates(), kRelaxed);
}

Nanos RateLimit::WaitOf(RequestCost cost, Nanos now) const {
  if (cost == RequestCost::kNone) return 0;
  return cost == RequestCost::kKernel ? launches_.Wait(now) : copy_bytes_.Wait(now);
}

void RateLimit::Charge(RequestCost cost, uint64_t bytes, Nanos now) {
  if (cost == RequestCost::kKernel) {
    launches_.Take(1, now);
  } else {
    copy_bytes_.Take(bytes, now);
  }
}

}  // namespace consort::host
