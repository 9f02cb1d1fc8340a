// SPDX-License-Identifier: Apache-2.0
#include "host/scheduler/scheduler.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/time/time.h"
#include "base/log.h"
#include "host/limits.h"

namespace consort::host {

bool MakeSchedulerPolicy(std::string_view name, std::unique_ptr<schedule::Policy>* policy) {
  *policy = schedule::MakePolicy(name, schedule::Options());
  return *policy != nullptr || name == kNoScheduler;
}

namespace {

// Applications of the meter are told apart by their phases too.
ShareMeter::Owner OwnerOf(Scheduler::Id id, size_t phase) {
  return id * schedule::kPhases + static_cast<ShareMeter::Owner>(phase);
}

}  // namespace

Scheduler::Scheduler(std::unique_ptr<schedule::Policy> policy) {
  absl::MutexLock lock(&mutex_);
  Install({}, std::move(policy), 0);
}

void Scheduler::Install(std::string_view name, std::unique_ptr<schedule::Policy> policy,
                        Nanos now) {
  if (trace_ != nullptr && policy != nullptr) {
    policy = schedule::Record(name, std::move(policy), trace_.get());
  }
  policy_ = std::move(policy);
  tells_phases_apart_.store(policy_ != nullptr && policy_->tells_phases_apart(),
                            std::memory_order_relaxed);
  holds_back_.store(policy_ != nullptr && policy_->holds_back(), std::memory_order_relaxed);
  CountActive();
  std::vector<Member*> waiting;
  for (const auto& member : members_) {
    if (!member->joined) continue;
    if (member->waits) waiting.push_back(member.get());
    if (policy_ == nullptr) continue;
    policy_->Join(member->application, now);
    for (uint32_t i = 0; i < member->in_flight; ++i) policy_->Start(member->application.id, now);
    member->expected = 0;
    TellExpected(member.get(), now);
  }
  std::sort(waiting.begin(), waiting.end(), [](const Member* a, const Member* b) {
    return std::tie(a->waits_since, a->application.id) <
           std::tie(b->waits_since, b->application.id);
  });
  for (Member* member : waiting) {
    if (policy_ != nullptr) {
      policy_->Wait(member->application.id, member->batch, now);
    } else {
      GiveTurn(member, now);
    }
  }
}

void Scheduler::SetPolicy(std::string_view name, std::unique_ptr<schedule::Policy> policy,
                          Nanos now) {
  absl::MutexLock lock(&mutex_);
  Settle(now);
  Install(name, std::move(policy), now);
  Grant(now);
}

void Scheduler::SetWeight(const std::string& tenant, uint32_t weight, Nanos now) {
  absl::MutexLock lock(&mutex_);
  Tenant& known = FindTenant(tenant);
  known.weight = weight;
  Settle(now);
  bool any = false;
  for (const auto& member : members_) {
    if (!member->joined || member->application.tenant != known.id) continue;
    member->application.weight = weight;
    any = true;
  }
  if (!any || policy_ == nullptr) return;
  policy_->SetWeight(known.id, weight, now);
  Grant(now);
}

Scheduler::Tenant& Scheduler::FindTenant(const std::string& name) {
  const auto [it, is_new] = tenants_.try_emplace(name);
  if (is_new) it->second.id = static_cast<schedule::TenantId>(tenants_.size() - 1);
  return it->second;
}

void Scheduler::StartTrace(std::string_view name, std::unique_ptr<schedule::Policy> policy,
                           Nanos now) {
  absl::MutexLock lock(&mutex_);
  Settle(now);
  policy_.reset();  // it may write into the trace that ends
  trace_ = std::make_unique<schedule::TraceLog>(kTraceBytesMax);
  Install(name, std::move(policy), now);
  Grant(now);
}

std::string Scheduler::StopTrace(std::string_view name, std::unique_ptr<schedule::Policy> policy,
                                 Nanos now) {
  absl::MutexLock lock(&mutex_);
  if (trace_ == nullptr) return {};
  Settle(now);
  policy_.reset();
  std::string rest = trace_->Take();
  trace_.reset();
  Install(name, std::move(policy), now);
  Grant(now);
  return rest;
}

std::string Scheduler::TakeTrace(bool* full) {
  absl::MutexLock lock(&mutex_);
  if (trace_ == nullptr) return {};
  *full = trace_->full();
  return trace_->Take();
}

Scheduler::Id Scheduler::Join(const std::string& tenant, uint32_t weight, Nanos now,
                              uint64_t session) {
  absl::MutexLock lock(&mutex_);
  Id id = 0;
  while (id < members_.size() && members_[id]->joined) ++id;
  if (id == members_.size()) members_.push_back(std::make_unique<Member>());
  members_[id] = std::make_unique<Member>();
  Member& member = *members_[id];
  member.joined = true;
  member.session = session;
  const Tenant& known = FindTenant(tenant);
  member.application = {id, known.id, known.weight.value_or(weight)};
  if (policy_ != nullptr) policy_->Join(member.application, now);
  return id;
}

ApplicationUsage Scheduler::Leave(Id id, Nanos now) {
  absl::MutexLock lock(&mutex_);
  Settle(now, /*patience=*/0);
  Member& member = *members_[id];
  const ApplicationUsage usage = member.usage;
  member.joined = false;
  member.active = false;
  member.waits = false;
  member.in_flight = 0;
  member.started.clear();
  for (size_t phase = 0; phase < schedule::kPhases; ++phase) meter_.Forget(OwnerOf(id, phase));
  std::erase_if(batch_of_, [id](const auto& each) { return each.second.first == id; });
  CountActive();
  if (policy_ != nullptr) policy_->Leave(id, now);
  Grant(now);
  return usage;
}

std::vector<ApplicationState> Scheduler::States(Nanos now) {
  absl::MutexLock lock(&mutex_);
  Settle(now, /*patience=*/0);
  std::vector<ApplicationState> states;
  for (const auto& member : members_) {
    if (!member->joined) continue;
    states.push_back({member->session, member->usage, member->waits, member->in_flight});
  }
  return states;
}

void Scheduler::SetActive(Id id, bool active) {
  absl::MutexLock lock(&mutex_);
  members_[id]->active = active;
  CountActive();
}

void Scheduler::CountActive() {
  const auto active = std::count_if(members_.begin(), members_.end(),
                                    [](const auto& member) { return member->active; });
  crowded_.store(active > 1, std::memory_order_relaxed);
  contended_.store(policy_ != nullptr && active > 1, std::memory_order_relaxed);
}

void Scheduler::GiveTurn(Member* member, Nanos now) {
  last_progress_ = now;
  member->waits = false;
  member->granted = true;
  if (member->in_flight++ == 0) member->known_until = now;
  member->started[++member->latest] = {.alone = member->batch.alone};
  const Nanos waited = now - member->waits_since;
  member->usage.waited += waited;
  ++member->usage.batches;
  const auto bound = std::lower_bound(kQueueDelayBounds.begin(), kQueueDelayBounds.end(), waited);
  ++member->usage.delays[static_cast<size_t>(bound - kQueueDelayBounds.begin())];
  member->turn.Signal();
}

void Scheduler::Grant(Nanos now) {
  if (policy_ == nullptr) return;
  // A busy host that kept all sessions from looking has not shown that the device stands still.
  if (now - last_look_ > kSchedulerUnseen) last_progress_ += now - last_look_;
  last_look_ = now;
  while (true) {
    const bool stalled = now - last_progress_ > kSchedulerStall;
    const auto chosen = policy_->Choose(now, stalled);
    if (!chosen.has_value()) return;
    Member& member = *members_[*chosen];
    CHECK(member.waits) << "the policy chose one that does not wait";
    policy_->Start(*chosen, now);
    GiveTurn(&member, now);
    TellExpected(&member, now);
  }
}

std::optional<Scheduler::BatchNumber> Scheduler::TryStart(Id id, const schedule::Batch& batch,
                                                          Nanos now) {
  absl::MutexLock lock(&mutex_);
  Member& member = *members_[id];
  if (!member.granted && !member.waits) {
    member.waits = true;
    member.waits_since = now;
    member.batch = batch;
    if (policy_ != nullptr) {
      policy_->Wait(id, batch, now);
    } else {
      GiveTurn(&member, now);
    }
  }
  if (!member.granted) Grant(now);
  if (!std::exchange(member.granted, false)) return std::nullopt;
  return member.latest;
}

void Scheduler::Await(Id id, Nanos timeout) {
  absl::MutexLock lock(&mutex_);
  Member& member = *members_[id];
  if (member.granted) return;
  member.turn.WaitWithTimeout(&mutex_, absl::Nanoseconds(timeout));
}

Scheduler::BatchNumber Scheduler::Start(Id id, Nanos now) {
  absl::MutexLock lock(&mutex_);
  Member& member = *members_[id];
  if (policy_ != nullptr) policy_->Start(id, now);
  last_progress_ = now;
  if (member.in_flight++ == 0) member.known_until = now;
  member.started[++member.latest] = {};
  return member.latest;
}

void Scheduler::Finish(Id id, BatchNumber batch, Nanos now) {
  absl::MutexLock lock(&mutex_);
  Member& member = *members_[id];
  --member.in_flight;
  member.started[batch].finished = true;
  last_progress_ = now;
  // What it is to pay comes first: the next turn depends on it.
  Settle(now);
  EndIfCharged(&member, batch);
  TellExpected(&member, now);
  if (policy_ != nullptr) policy_->Finish(id, now);
}

Scheduler::Interval Scheduler::Began(Id id, BatchNumber batch, schedule::Phase phase, Nanos begin) {
  absl::MutexLock lock(&mutex_);
  ++members_[id]->started[batch].intervals;
  const Interval interval = meter_.Begin(OwnerOf(id, static_cast<size_t>(phase)), begin);
  batch_of_[interval] = {id, batch};
  return interval;
}

void Scheduler::Ended(Interval interval, Nanos end, const IntervalWork& work) {
  absl::MutexLock lock(&mutex_);
  meter_.End(interval, end, work);
}

void Scheduler::Poll(Id id, Nanos known_until, Nanos now) {
  absl::MutexLock lock(&mutex_);
  members_[id]->known_until = known_until;
  Settle(now);
  Grant(now);
}

void Scheduler::Settle(Nanos now, Nanos patience) {
  Nanos horizon = now;
  for (const auto& member : members_) {
    if (member->in_flight != 0) horizon = std::min(horizon, member->known_until);
  }
  // A session that is kept from looking holds the others up for so long only.
  horizon = std::max(horizon, now - kSchedulerLag);
  charges_.clear();
  meter_.Advance(horizon, &charges_, patience);
  for (const ShareMeter::Charge& charge : charges_) {
    const Id id = charge.owner / schedule::kPhases;
    members_[id]->usage.device_time[charge.owner % schedule::kPhases] += charge.time;
    if (policy_ != nullptr) policy_->Charge(id, {charge.time, charge.alone}, now);
    const auto of = batch_of_.find(charge.interval);
    Started& started = members_[id]->started[of->second.second];
    started.charged += charge.alone;
    if (!charge.last) continue;
    --started.intervals;
    EndIfCharged(members_[id].get(), of->second.second);
    batch_of_.erase(of);
  }
  for (const ShareMeter::Charge& charge : charges_) {
    TellExpected(members_[charge.owner / schedule::kPhases].get(), now);
  }
}

void Scheduler::EndIfCharged(Member* member, BatchNumber batch) {
  const auto it = member->started.find(batch);
  if (it == member->started.end() || !it->second.finished || it->second.intervals != 0) return;
  member->started.erase(it);
}

void Scheduler::TellExpected(Member* member, Nanos now) {
  if (policy_ == nullptr) return;
  Nanos expected = 0;
  for (const auto& [number, started] : member->started) {
    expected += std::max<Nanos>(started.alone - started.charged, 0);
  }
  if (expected == std::exchange(member->expected, expected)) return;
  policy_->Expect(member->application.id, expected, now);
}

}  // namespace consort::host
