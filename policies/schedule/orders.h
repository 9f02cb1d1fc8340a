// SPDX-License-Identifier: Apache-2.0
// policies/schedule/orders.h: first come first served, shortest batch first, phase selection, least
// attained service, credit and maximum idle time: policies that differ in the order of batches.
// Thread compatible.
//
// After: Sengupta et al., "Scheduling Multi-tenant Cloud Workloads on Accelerator-based Systems"
// (SC 2014): PS and LAS. Credit: Xen's credit scheduler, without its boost.
#ifndef CONSORT_POLICIES_SCHEDULE_ORDERS_H_
#define CONSORT_POLICIES_SCHEDULE_ORDERS_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "policies/schedule/batch_order.h"

namespace consort::schedule {

// Batches start in the order in which they were ready.
class FirstCome final : public BatchOrder {
 public:
  explicit FirstCome(const Options& options) : BatchOrder(options) {}

 private:
  std::optional<ApplicationId> Pick(Nanos) override { return oldest(); }
};

// The batch with the smallest estimate first; one of which nothing is known counts as small, so
// that it becomes known.
class ShortestFirst final : public BatchOrder {
 public:
  explicit ShortestFirst(const Options& options) : BatchOrder(options) {}

 private:
  using Key = std::tuple<Nanos, uint64_t, ApplicationId>;
  Key KeyOf(ApplicationId id) {
    const Roster::Entry& entry = roster_.at(id);
    return {entry.batch.estimate, entry.sequence, id};
  }
  void OnWait(ApplicationId id, Nanos) override { waiting_.insert(KeyOf(id)); }
  void OnWaitOver(ApplicationId id, Nanos) override { waiting_.erase(KeyOf(id)); }
  std::optional<ApplicationId> Pick(Nanos) override { return std::get<2>(*waiting_.begin()); }

  std::set<Key> waiting_;
};

// Batches of different phases run beside each other: first one whose phase nobody has in flight;
// where there is none, kernels before copies to the device, copies to the host and the rest. Within
// a phase first come first served.
class PhaseSelection final : public BatchOrder {
 public:
  explicit PhaseSelection(const Options& options) : BatchOrder(options) {}
  bool tells_phases_apart() const override { return true; }

 private:
  using Key = std::pair<uint64_t, ApplicationId>;
  void OnLeave(ApplicationId id, Nanos) override;
  void OnWait(ApplicationId id, Nanos) override;
  void OnWaitOver(ApplicationId id, Nanos) override;
  void OnStart(ApplicationId id, Phase phase) override;
  void OnFinish(ApplicationId id, Nanos) override;
  std::optional<ApplicationId> Pick(Nanos) override;

  std::array<std::set<Key>, kPhases> waiting_;
  std::array<uint32_t, kPhases> in_flight_ = {};
  // Of each application, oldest first: its batches finish in about the order of their starts.
  std::map<ApplicationId, std::deque<Phase>> phases_;
};

// The application with the least service of late first: at the end of epoch n,
// CGS_n = k * GS_n + (1 - k) * CGS_(n-1), with GS_n the device time of the epoch and k = 0.8;
// within an epoch counts what CGS would be if it ended now. The end of an epoch makes all of these
// smaller by the same factor, so it is kept once for all.
class LeastAttained final : public BatchOrder {
 public:
  explicit LeastAttained(const Options& options) : BatchOrder(options) {}

 private:
  static constexpr double kNewest = 0.8;
  // Below it numbers are brought to scale 1 again: O(applications), once in 143 epochs at most.
  static constexpr double kScaleLeast = 1e-100;
  using Key = std::tuple<double, uint64_t, ApplicationId>;
  Key KeyOf(ApplicationId id) { return {service_[id], roster_.at(id).sequence, id}; }
  void CloseEpochs(Nanos now);
  void OnJoin(ApplicationId id, Nanos now) override;
  void OnLeave(ApplicationId id, Nanos) override { service_.erase(id); }
  void OnWait(ApplicationId id, Nanos now) override;
  void OnWaitOver(ApplicationId id, Nanos) override { waiting_.erase(KeyOf(id)); }
  void OnCharge(ApplicationId id, Nanos device_time, Nanos now) override;
  std::optional<ApplicationId> Pick(Nanos now) override;

  std::map<ApplicationId, double> service_;  // times scale_: nanoseconds
  double scale_ = 1;
  std::set<Key> waiting_;
  Nanos epoch_begin_ = 0;
};

// Each epoch a tenant gets credit for device time by weight and pays for what it used. Tenants with
// credit go before those without, and within both groups first come goes first. What a unit of
// weight has got so far is kept once for all; a tenant's account is brought up to date when it is
// looked at.
class Credit final : public BatchOrder {
 public:
  explicit Credit(const Options& options) : BatchOrder(options) {}

 private:
  using Key = std::tuple<bool, uint64_t, ApplicationId>;
  struct Account {
    uint32_t weight = 1;
    uint32_t applications = 0;
    double credit = 0;  // when what a unit of weight has got was `paid_to`
    double paid_to = 0;
    bool over = false;  // has no credit
    std::set<std::pair<uint64_t, ApplicationId>> waiting;
    double out_of_debt_at() const { return paid_to - credit / weight; }
  };
  Account& AccountOf(ApplicationId id) { return accounts_[roster_.at(id).application.tenant]; }
  Key KeyOf(ApplicationId id) { return {AccountOf(id).over, roster_.at(id).sequence, id}; }
  void CloseEpochs(Nanos now);
  // Every change of an account goes through here: `change` finds it up to date.
  template <class Function>
  void Change(TenantId tenant, Function change);
  void OnJoin(ApplicationId id, Nanos now) override;
  void OnLeave(ApplicationId id, Nanos) override;
  void OnSetWeight(TenantId tenant, uint32_t weight, Nanos now) override;
  void OnWait(ApplicationId id, Nanos now) override;
  void OnWaitOver(ApplicationId id, Nanos) override;
  void OnCharge(ApplicationId id, Nanos device_time, Nanos now) override;
  std::optional<ApplicationId> Pick(Nanos now) override;

  std::map<TenantId, Account> accounts_;
  std::set<std::pair<double, TenantId>> over_;  // by out_of_debt_at
  uint64_t weights_ = 0;                        // of all accounts
  double paid_ = 0;                             // to a unit of weight, since the beginning
  std::set<Key> waiting_;
  Nanos epoch_begin_ = 0;
};

// One application has the device to itself until it has left it idle for `idle_max` while another
// waited, or has had it for `tenure_max`; then the one that has waited longest gets it. Until then
// the others' batches run one at a time while the owner has none, and its next one comes before
// theirs.
class MaximumIdle final : public BatchOrder {
 public:
  explicit MaximumIdle(const Options& options) : BatchOrder(options) {}

 private:
  void OnLeave(ApplicationId id, Nanos) override;
  void OnFinish(ApplicationId id, Nanos now) override;
  std::optional<ApplicationId> Pick(Nanos now) override;

  std::optional<ApplicationId> owner_;
  Nanos owner_since_ = 0;
  Nanos idle_since_ = 0;  // of the owner, while it has nothing in flight
};

}  // namespace consort::schedule

#endif  // CONSORT_POLICIES_SCHEDULE_ORDERS_H_
