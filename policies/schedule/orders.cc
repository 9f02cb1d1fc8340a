// SPDX-License-Identifier: Apache-2.0
#include "policies/schedule/orders.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace consort::schedule {
namespace {

constexpr size_t Index(Phase phase) { return static_cast<size_t>(phase); }

// Where nobody's phase is free.
constexpr Phase kPhaseOrder[] = {Phase::kKernel, Phase::kToDevice, Phase::kToHost, Phase::kNone};

}  // namespace

void PhaseSelection::OnLeave(ApplicationId id, Nanos) {
  for (const Phase phase : phases_[id]) --in_flight_[Index(phase)];
  phases_.erase(id);
}

void PhaseSelection::OnWait(ApplicationId id, Nanos) {
  const Roster::Entry& entry = roster_.at(id);
  waiting_[Index(entry.batch.phase)].insert({entry.sequence, id});
}

void PhaseSelection::OnWaitOver(ApplicationId id, Nanos) {
  const Roster::Entry& entry = roster_.at(id);
  waiting_[Index(entry.batch.phase)].erase({entry.sequence, id});
}

void PhaseSelection::OnStart(ApplicationId id, Phase phase) {
  ++in_flight_[Index(phase)];
  phases_[id].push_back(phase);
}

void PhaseSelection::OnFinish(ApplicationId id, Nanos) {
  --in_flight_[Index(phases_[id].front())];
  phases_[id].pop_front();
}

std::optional<ApplicationId> PhaseSelection::Pick(Nanos) {
  const std::set<Key>* first = nullptr;
  for (const Phase phase : kPhaseOrder) {
    const std::set<Key>& waiting = waiting_[Index(phase)];
    if (waiting.empty()) continue;
    if (in_flight_[Index(phase)] == 0) return waiting.begin()->second;
    if (first == nullptr) first = &waiting;
  }
  return first->begin()->second;
}

void LeastAttained::CloseEpochs(Nanos now) {
  if (now - epoch_begin_ < options_.epoch) return;
  const Nanos epochs = (now - epoch_begin_) / options_.epoch;
  epoch_begin_ += epochs * options_.epoch;
  scale_ *= std::pow(1 - kNewest, static_cast<double>(epochs));
  if (scale_ >= kScaleLeast) return;
  for (auto& [id, service] : service_) service *= scale_;
  scale_ = 1;
  std::set<Key> waiting;
  for (const Key& key : waiting_) waiting.insert(KeyOf(std::get<2>(key)));
  waiting_.swap(waiting);
}

void LeastAttained::OnJoin(ApplicationId id, Nanos now) {
  CloseEpochs(now);
  service_[id] = 0;
}

void LeastAttained::OnWait(ApplicationId id, Nanos now) {
  CloseEpochs(now);
  waiting_.insert(KeyOf(id));
}

void LeastAttained::OnCharge(ApplicationId id, Nanos device_time, Nanos now) {
  CloseEpochs(now);
  const bool waits = roster_.at(id).waits;
  if (waits) waiting_.erase(KeyOf(id));
  service_[id] += kNewest * static_cast<double>(device_time) / scale_;
  if (waits) waiting_.insert(KeyOf(id));
}

std::optional<ApplicationId> LeastAttained::Pick(Nanos now) {
  CloseEpochs(now);
  return std::get<2>(*waiting_.begin());
}

template <class Function>
void Credit::Change(TenantId tenant, Function change) {
  Account& account = accounts_[tenant];
  if (account.over) over_.erase({account.out_of_debt_at(), tenant});
  const double income = (paid_ - account.paid_to) * account.weight;
  account.credit = std::min(account.credit + income, static_cast<double>(options_.memory));
  account.paid_to = paid_;
  weights_ -= account.weight;
  change(&account);
  weights_ += account.weight;
  const bool was_over = std::exchange(account.over, account.credit < 0);
  if (account.over) over_.insert({account.out_of_debt_at(), tenant});
  if (was_over == account.over) return;
  for (const auto& [sequence, id] : account.waiting) {
    waiting_.erase({was_over, sequence, id});
    waiting_.insert({account.over, sequence, id});
  }
}

void Credit::CloseEpochs(Nanos now) {
  if (now - epoch_begin_ < options_.epoch) return;
  const Nanos epochs = (now - epoch_begin_) / options_.epoch;
  epoch_begin_ += epochs * options_.epoch;
  if (weights_ == 0) return;
  paid_ += static_cast<double>(epochs * options_.epoch) / static_cast<double>(weights_);
  while (!over_.empty() && over_.begin()->first <= paid_) {
    // Rounding may leave it a hair below.
    Change(over_.begin()->second,
           [](Account* account) { account->credit = std::max(account->credit, 0.0); });
  }
}

void Credit::OnJoin(ApplicationId id, Nanos now) {
  CloseEpochs(now);
  const Application& application = roster_.at(id).application;
  const auto [it, is_new] = accounts_.try_emplace(application.tenant);
  if (is_new) {
    it->second.paid_to = paid_;
    weights_ += it->second.weight;
  }
  Change(application.tenant, [&](Account* account) {
    account->weight = application.weight;
    ++account->applications;
  });
}

void Credit::OnLeave(ApplicationId id, Nanos) {
  const TenantId tenant = roster_.at(id).application.tenant;
  Account& account = accounts_[tenant];
  if (--account.applications != 0) return;
  if (account.over) over_.erase({account.out_of_debt_at(), tenant});
  weights_ -= account.weight;
  accounts_.erase(tenant);
}

void Credit::OnSetWeight(TenantId tenant, uint32_t weight, Nanos now) {
  CloseEpochs(now);
  if (!accounts_.contains(tenant)) return;
  Change(tenant, [&](Account* account) { account->weight = weight; });
}

void Credit::OnWait(ApplicationId id, Nanos now) {
  CloseEpochs(now);
  waiting_.insert(KeyOf(id));
  AccountOf(id).waiting.insert({roster_.at(id).sequence, id});
}

void Credit::OnWaitOver(ApplicationId id, Nanos) {
  waiting_.erase(KeyOf(id));
  AccountOf(id).waiting.erase({roster_.at(id).sequence, id});
}

void Credit::OnCharge(ApplicationId id, Nanos device_time, Nanos now) {
  CloseEpochs(now);
  Change(roster_.at(id).application.tenant,
         [&](Account* account) { account->credit -= static_cast<double>(device_time); });
}

std::optional<ApplicationId> Credit::Pick(Nanos now) {
  CloseEpochs(now);
  return std::get<2>(*waiting_.begin());
}

void MaximumIdle::OnLeave(ApplicationId id, Nanos) {
  if (owner_ == id) owner_.reset();
}

void MaximumIdle::OnFinish(ApplicationId id, Nanos now) {
  if (owner_ == id && roster_.at(id).in_flight == 0) idle_since_ = now;
}

std::optional<ApplicationId> MaximumIdle::Pick(Nanos now) {
  if (owner_.has_value()) {
    const Roster::Entry& owner = roster_.at(*owner_);
    const bool over = now - owner_since_ >= options_.tenure_max;
    if (owner.waits && !over) return owner_;
    const bool idle = owner.in_flight == 0 && now - idle_since_ >= options_.idle_max;
    if (over || idle) owner_.reset();
  }
  if (!owner_.has_value()) {
    owner_ = oldest();
    owner_since_ = idle_since_ = now;
    return owner_;
  }
  if (roster_.in_flight() != 0) return std::nullopt;
  return oldest();
}

}  // namespace consort::schedule
