// SPDX-License-Identifier: Apache-2.0
#include "host/scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "base/log.h"
#include "host/limits.h"

namespace consort::host {

Scheduler::Scheduler(std::unique_ptr<schedule::Policy> policy) : policy_(std::move(policy)) {}

Scheduler::Id Scheduler::Join(const std::string& tenant, uint32_t weight, Nanos now) {
  absl::MutexLock lock(&mutex_);
  Id id = 0;
  while (id < members_.size() && members_[id]->joined) ++id;
  if (id == members_.size()) members_.push_back(std::make_unique<Member>());
  members_[id] = std::make_unique<Member>();
  members_[id]->joined = true;
  const auto tenant_id =
      tenants_.emplace(tenant, static_cast<schedule::TenantId>(tenants_.size())).first->second;
  if (policy_ != nullptr) policy_->Join({id, tenant_id, weight}, now);
  return id;
}

ApplicationUsage Scheduler::Leave(Id id, Nanos now) {
  absl::MutexLock lock(&mutex_);
  Settle(now);
  Member& member = *members_[id];
  const ApplicationUsage usage = member.usage;
  member.joined = false;
  member.active = false;
  member.waits = false;
  member.in_flight = 0;
  meter_.Forget(id);
  CountActive();
  if (policy_ != nullptr) policy_->Leave(id, now);
  Grant(now);
  return usage;
}

void Scheduler::SetActive(Id id, bool active) {
  absl::MutexLock lock(&mutex_);
  members_[id]->active = active;
  CountActive();
}

void Scheduler::CountActive() {
  const auto active = std::count_if(members_.begin(), members_.end(),
                                    [](const auto& member) { return member->active; });
  contended_.store(policy_ != nullptr && active > 1, std::memory_order_relaxed);
}

void Scheduler::Grant(Nanos now) {
  if (policy_ == nullptr) return;
  while (true) {
    const bool stalled = now - last_progress_ > kSchedulerStall;
    const auto chosen = policy_->Choose(now, stalled);
    if (!chosen.has_value()) return;
    Member& member = *members_[*chosen];
    CHECK(member.waits) << "the policy chose one that does not wait";
    policy_->Start(*chosen, now);
    last_progress_ = now;
    member.waits = false;
    member.granted = true;
    if (member.in_flight++ == 0) member.known_until = now;
    member.usage.waited += now - member.waits_since;
    ++member.usage.batches;
    member.turn.Signal();
  }
}

bool Scheduler::TryStart(Id id, const schedule::Batch& batch, Nanos now) {
  absl::MutexLock lock(&mutex_);
  Member& member = *members_[id];
  if (!member.granted && !member.waits) {
    member.waits = true;
    member.waits_since = now;
    policy_->Wait(id, batch, now);
  }
  if (!member.granted) Grant(now);
  return std::exchange(member.granted, false);
}

void Scheduler::Await(Id id, Nanos timeout) {
  absl::MutexLock lock(&mutex_);
  Member& member = *members_[id];
  if (member.granted) return;
  member.turn.WaitWithTimeout(&mutex_, absl::Nanoseconds(timeout));
}

void Scheduler::Start(Id id, Nanos now) {
  absl::MutexLock lock(&mutex_);
  if (policy_ == nullptr) return;
  Member& member = *members_[id];
  policy_->Start(id, now);
  last_progress_ = now;
  if (member.in_flight++ == 0) member.known_until = now;
}

void Scheduler::Finish(Id id, Nanos now) {
  absl::MutexLock lock(&mutex_);
  if (policy_ == nullptr) return;
  --members_[id]->in_flight;
  last_progress_ = now;
  // What it is to pay comes first: the next turn depends on it.
  Settle(now);
  policy_->Finish(id, now);
}

Scheduler::Interval Scheduler::Began(Id id, Nanos begin) {
  absl::MutexLock lock(&mutex_);
  return meter_.Begin(id, begin);
}

void Scheduler::Ended(Interval interval, Nanos end) {
  absl::MutexLock lock(&mutex_);
  meter_.End(interval, end);
}

void Scheduler::Poll(Id id, Nanos known_until, Nanos now) {
  absl::MutexLock lock(&mutex_);
  members_[id]->known_until = known_until;
  Settle(now);
  Grant(now);
}

void Scheduler::Settle(Nanos now) {
  Nanos horizon = now;
  for (const auto& member : members_) {
    if (member->in_flight != 0) horizon = std::min(horizon, member->known_until);
  }
  // A session that is kept from looking holds the others up for so long only.
  horizon = std::max(horizon, now - kSchedulerLag);
  charges_.clear();
  meter_.Advance(horizon, &charges_);
  for (const auto& [id, nanos] : charges_) {
    members_[id]->usage.device_time += nanos;
    if (policy_ != nullptr) policy_->Charge(id, nanos, now);
  }
}

}  // namespace consort::host
