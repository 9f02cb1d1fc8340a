// SPDX-License-Identifier: Apache-2.0
// policies/schedule/batch_order.h: what policies that put batches in an order have in common: a
// bound on batches in flight, and patience: whoever has waited too long goes first. Thread
// compatible.
#ifndef CONSORT_POLICIES_SCHEDULE_BATCH_ORDER_H_
#define CONSORT_POLICIES_SCHEDULE_BATCH_ORDER_H_

#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "policies/schedule/policy.h"
#include "policies/schedule/roster.h"

namespace consort::schedule {

class BatchOrder : public Policy {
 public:
  void Join(const Application& application, Nanos now) final {
    roster_.Join(application);
    OnJoin(application.id, now);
  }
  void Leave(ApplicationId id, Nanos now) final {
    Withdraw(id, now);
    OnLeave(id, now);
    roster_.Leave(id);
  }
  void SetWeight(TenantId tenant, uint32_t weight, Nanos now) final {
    OnSetWeight(tenant, weight, now);
  }
  void Wait(ApplicationId id, const Batch& batch, Nanos now) final {
    roster_.Wait(id, batch, now);
    by_age_.insert({roster_.at(id).sequence, id});
    OnWait(id, now);
  }
  void Withdraw(ApplicationId id, Nanos now) final {
    if (!roster_.at(id).waits) return;
    OnWaitOver(id, now);
    by_age_.erase({roster_.at(id).sequence, id});
    roster_.Withdraw(id);
  }
  void Start(ApplicationId id, Nanos now) final {
    const Phase phase = roster_.at(id).waits ? roster_.at(id).batch.phase : Phase::kNone;
    Withdraw(id, now);
    roster_.Start(id);
    OnStart(id, phase);
  }
  void Finish(ApplicationId id, Nanos now) final {
    roster_.Finish(id);
    OnFinish(id, now);
  }
  void Charge(ApplicationId id, const Service& service, Nanos now) final {
    OnCharge(id, service.device_time, now);
  }
  std::optional<ApplicationId> Choose(Nanos now, bool stalled) final {
    if (roster_.waiting() == 0) return std::nullopt;
    if (roster_.in_flight() >= options_.batches_in_flight && !stalled) return std::nullopt;
    const ApplicationId oldest = by_age_.begin()->second;
    if (now - roster_.at(oldest).waits_since > options_.patience) return oldest;
    const std::optional<ApplicationId> picked = Pick(now);
    return picked.has_value() || !stalled ? picked : oldest;
  }

 protected:
  explicit BatchOrder(const Options& options) : options_(options) {}

  // What follows happens beside the bookkeeping here. `Pick` is asked only while somebody waits,
  // and may name nobody only while something is in flight.
  virtual void OnJoin(ApplicationId, Nanos) {}
  virtual void OnLeave(ApplicationId, Nanos) {}
  virtual void OnSetWeight(TenantId, uint32_t, Nanos) {}
  virtual void OnWait(ApplicationId, Nanos) {}
  virtual void OnWaitOver(ApplicationId, Nanos) {}
  virtual void OnStart(ApplicationId, Phase) {}
  virtual void OnFinish(ApplicationId, Nanos) {}
  virtual void OnCharge(ApplicationId, Nanos, Nanos) {}
  virtual std::optional<ApplicationId> Pick(Nanos now) = 0;

  ApplicationId oldest() const { return by_age_.begin()->second; }

  const Options options_;
  Roster roster_;

 private:
  std::set<std::pair<uint64_t, ApplicationId>> by_age_;  // of those that wait
};

}  // namespace consort::schedule

#endif  // CONSORT_POLICIES_SCHEDULE_BATCH_ORDER_H_
