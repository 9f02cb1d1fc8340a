// SPDX-License-Identifier: Apache-2.0
// policies/schedule/fair_share.h: TFS and slowdown, weighted fair shares of tenants, with history.
//
// Each tenant has a clock that advances by service / weight, at once by what is expected of work
// that it starts, and set right by what that is charged: device time (TFS), or the time that
// its work would have taken alone (slowdown), for which what lies between a tenant's pieces of work
// counts too, as far as it would be there alone (kTurnaround). The latter slows all down alike
// where work overlaps that leaves parts of the device to others; of those that fill the device both
// are the same. Among
// tenants that compete (have a batch waiting or in flight) the one whose clock is most behind goes
// first, and one may start work only while it is at most `lead` of service ahead of the one most
// behind. So over any time in which a set of tenants competes without break, their services stand
// as their weights, but for the lead and the length of their batches; whoever overshot (a kernel
// cannot be stopped) waits until the others have caught up, however long that takes; and what one
// does not use, the others get by weight. A tenant that was idle forgoes what it would have had in
// that time, but for `memory`: it hoards nothing. What it missed in pauses shorter than that (it
// looked at a result, its thread was late) it may claim later, up to kPausesKept times as much.
// Applications of one tenant share its part evenly. After: Sengupta et al., "Scheduling
// Multi-tenant Cloud Workloads on Accelerator-based Systems" (SC 2014), section on the tenant
// fair-share policy; its epochs have become a continuous account.
#ifndef CONSORT_POLICIES_SCHEDULE_FAIR_SHARE_H_
#define CONSORT_POLICIES_SCHEDULE_FAIR_SHARE_H_

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "policies/schedule/policy.h"
#include "policies/schedule/roster.h"

namespace consort::schedule {

class FairShare final : public Policy {
 public:
  // What is shared by weight; see Service.
  enum class Shared { kDeviceTime, kAloneTime };

  explicit FairShare(const Options& options, Shared shared = Shared::kDeviceTime)
      : options_(options), shared_(shared) {}

  void Join(const Application& application, Nanos now) override;
  void Leave(ApplicationId id, Nanos now) override;
  void SetWeight(TenantId tenant, uint32_t weight, Nanos now) override;
  void Wait(ApplicationId id, const Batch& batch, Nanos now) override;
  void Withdraw(ApplicationId id, Nanos now) override;
  void Start(ApplicationId id, Nanos now) override;
  void Finish(ApplicationId id, Nanos now) override;
  void Charge(ApplicationId id, const Service& service, Nanos now) override;
  void Expect(ApplicationId id, Nanos expected, Nanos now) override;
  std::optional<ApplicationId> Choose(Nanos now, bool stalled) override;
  bool holds_back() const override { return true; }

 private:
  static constexpr int kPausesKept = 10;
  // From the end of a kernel that a program waits for to the beginning of its next one, with the
  // device to itself: launch and synchronise without the kernel's own time (H200, driver 580).
  static constexpr Nanos kTurnaround = 8 * kMicrosecond;

  // Service over weight. A double holds it to a nanosecond for 100 days.
  using Clock = double;
  struct Tenant {
    uint32_t weight = 1;
    Clock clock = 0;     // of what it was charged
    Nanos expected = 0;  // that it has started, and was not charged for
    uint32_t applications = 0;
    uint32_t in_flight = 0;
    // Of those that wait, by what each has had: the one with the least goes first.
    std::set<std::pair<Nanos, ApplicationId>> waiting;
    Nanos floor = 0;       // what the application that went first had had; never goes back
    Nanos idle_since = 0;  // where it does not compete
    Clock idle_from = 0;   // likewise, of passed_
    bool competes() const { return in_flight != 0 || !waiting.empty(); }
    // Where its clock will stand when all that it has started is charged.
    Clock tag() const { return clock + static_cast<Clock>(expected) / weight; }
  };
  // Of an application.
  struct Account {
    Nanos attained = 0;  // within the tenant; only the order matters
    Nanos expected = 0;  // its part of the tenant's
  };
  using Order = std::set<std::pair<Clock, TenantId>>;

  // Every change of a tenant's clock, weight or state: takes it out of the orders, lets `change`
  // have it, and puts it back.
  template <class Function>
  void Change(TenantId id, Nanos now, Function change);
  void Detach(TenantId id, const Tenant& tenant);
  void Attach(TenantId id, Tenant* tenant, bool competed, Nanos now);
  TenantId TenantOf(ApplicationId id) { return roster_.at(id).application.tenant; }

  const Options options_;
  const Shared shared_;
  Roster roster_;
  std::map<ApplicationId, Account> accounts_;
  std::map<TenantId, Tenant> tenants_;
  Order competing_;
  Order waiting_;
  uint64_t competing_weight_ = 0;
  Clock passed_ = 0;  // how far the clocks of those that compete went on, in the mean
  Clock floor_ = 0;   // of the one most behind that competes, or was the last to do so
};

}  // namespace consort::schedule

#endif  // CONSORT_POLICIES_SCHEDULE_FAIR_SHARE_H_
