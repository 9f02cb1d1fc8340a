// SPDX-License-Identifier: Apache-2.0
#include "policies/schedule/fair_share.h"

#include <algorithm>

namespace consort::schedule {

void FairShare::Detach(TenantId id, const Tenant& tenant) {
  if (tenant.competes()) {
    competing_.erase({tenant.tag(), id});
    competing_weight_ -= tenant.weight;
  }
  if (!tenant.waiting.empty()) waiting_.erase({tenant.tag(), id});
}

void FairShare::Attach(TenantId id, Tenant* tenant, bool competed, Nanos now) {
  if (tenant->competes()) {
    if (!competed) {
      // The clocks of the others went on at most so far meanwhile: as the time did, or faster where
      // their work overlapped.
      const Nanos idle = now - tenant->idle_since;
      const Clock forgone = std::max(
          static_cast<Clock>(idle) / static_cast<Clock>(std::max<uint64_t>(competing_weight_, 1)),
          passed_ - tenant->idle_from);
      const Nanos kept = idle > options_.memory ? options_.memory : kPausesKept * options_.memory;
      const Clock oldest = floor_ - static_cast<Clock>(kept) /
                                        static_cast<Clock>(competing_weight_ + tenant->weight);
      tenant->clock = std::max(tenant->clock, std::min(tenant->clock + forgone, oldest));
      if (shared_ == Shared::kAloneTime) {
        tenant->clock += static_cast<Clock>(std::min(idle, kTurnaround)) / tenant->weight;
      }
    }
    competing_weight_ += tenant->weight;
    competing_.insert({tenant->tag(), id});
  } else if (competed) {
    tenant->idle_since = now;
    tenant->idle_from = passed_;
  }
  if (!tenant->waiting.empty()) waiting_.insert({tenant->tag(), id});
  if (!competing_.empty()) floor_ = competing_.begin()->first;
}

template <class Function>
void FairShare::Change(TenantId id, Nanos now, Function change) {
  Tenant& tenant = tenants_[id];
  Detach(id, tenant);
  const bool competed = tenant.competes();
  change(&tenant);
  Attach(id, &tenant, competed, now);
}

void FairShare::Join(const Application& application, Nanos now) {
  // Those that are gone and owe nothing are as good as new.
  for (auto it = tenants_.begin(); it != tenants_.end();) {
    if (it->second.applications == 0 && it->second.clock <= floor_) {
      it = tenants_.erase(it);
    } else {
      ++it;
    }
  }
  roster_.Join(application);
  const auto [it, is_new] = tenants_.try_emplace(application.tenant);
  Tenant& tenant = it->second;
  if (is_new) {
    tenant.clock = floor_;
    tenant.idle_since = now;
    tenant.idle_from = passed_;
  }
  Change(application.tenant, now, [&](Tenant* changed) {
    changed->weight = application.weight;
    ++changed->applications;
  });
  accounts_[application.id] = {.attained = tenant.floor};
}

void FairShare::Leave(ApplicationId id, Nanos now) {
  const uint32_t in_flight = roster_.at(id).in_flight;
  const Account account = accounts_[id];
  Change(TenantOf(id), now, [&](Tenant* tenant) {
    tenant->waiting.erase({account.attained, id});
    tenant->in_flight -= in_flight;
    tenant->expected -= account.expected;
    --tenant->applications;
  });
  accounts_.erase(id);
  roster_.Leave(id);
}

void FairShare::SetWeight(TenantId tenant_id, uint32_t weight, Nanos now) {
  Change(tenant_id, now, [&](Tenant* tenant) { tenant->weight = weight; });
}

void FairShare::Wait(ApplicationId id, const Batch& batch, Nanos now) {
  roster_.Wait(id, batch, now);
  Change(TenantOf(id), now, [&](Tenant* tenant) {
    // One that was idle while its siblings ran does not hold them up for as long.
    Nanos& attained = accounts_[id].attained;
    attained = std::max(attained, tenant->floor - options_.memory);
    tenant->waiting.insert({attained, id});
  });
}

void FairShare::Withdraw(ApplicationId id, Nanos now) {
  if (!roster_.at(id).waits) return;
  roster_.Withdraw(id);
  Change(TenantOf(id), now, [&](Tenant* tenant) {
    tenant->waiting.erase({accounts_[id].attained, id});
  });
}

void FairShare::Start(ApplicationId id, Nanos now) {
  roster_.Start(id);
  Change(TenantOf(id), now, [&](Tenant* tenant) {
    const Nanos attained = accounts_[id].attained;
    if (tenant->waiting.erase({attained, id}) != 0) {
      tenant->floor = std::max(tenant->floor, attained);
    }
    ++tenant->in_flight;
  });
}

void FairShare::Finish(ApplicationId id, Nanos now) {
  roster_.Finish(id);
  Change(TenantOf(id), now, [](Tenant* tenant) { --tenant->in_flight; });
}

void FairShare::Charge(ApplicationId id, const Service& service, Nanos now) {
  const Nanos served = shared_ == Shared::kDeviceTime ? service.device_time : service.alone_time;
  passed_ +=
      static_cast<Clock>(served) / static_cast<Clock>(std::max<uint64_t>(competing_weight_, 1));
  Change(TenantOf(id), now, [&](Tenant* tenant) {
    Nanos& attained = accounts_[id].attained;
    const bool waits = tenant->waiting.erase({attained, id}) != 0;
    attained += served;
    if (waits) tenant->waiting.insert({attained, id});
    tenant->clock += static_cast<Clock>(served) / tenant->weight;
  });
}

void FairShare::Expect(ApplicationId id, Nanos expected, Nanos now) {
  const Nanos more = expected - std::exchange(accounts_[id].expected, expected);
  if (more == 0) return;
  Change(TenantOf(id), now, [&](Tenant* tenant) { tenant->expected += more; });
}

std::optional<ApplicationId> FairShare::Choose(Nanos, bool stalled) {
  if (waiting_.empty()) return std::nullopt;
  const auto& [tag, tenant_id] = *waiting_.begin();
  const Clock lead = static_cast<Clock>(options_.lead) / static_cast<Clock>(competing_weight_);
  if (!stalled && tag > competing_.begin()->first + lead) return std::nullopt;
  return tenants_[tenant_id].waiting.begin()->second;
}

}  // namespace consort::schedule
