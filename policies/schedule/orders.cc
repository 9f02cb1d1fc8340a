// SPDX-License-Identifier: Apache-2.0
#include "policies/schedule/orders.h"

#include <algorithm>
#include <cmath>

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
  const double idle = std::pow(1 - kNewest, static_cast<double>(epochs - 1));
  for (auto& [id, service] : service_) {
    service.attained = service.key() * idle;
    service.this_epoch = 0;
  }
  std::set<Key> waiting;
  for (const Key& key : waiting_) waiting.insert(KeyOf(std::get<2>(key)));
  waiting_.swap(waiting);
}

void LeastAttained::OnJoin(ApplicationId id, Nanos now) {
  CloseEpochs(now);
  service_[id] = {};
}

void LeastAttained::OnWait(ApplicationId id, Nanos now) {
  CloseEpochs(now);
  waiting_.insert(KeyOf(id));
}

void LeastAttained::OnCharge(ApplicationId id, Nanos device_time, Nanos now) {
  CloseEpochs(now);
  const bool waits = roster_.at(id).waits;
  if (waits) waiting_.erase(KeyOf(id));
  service_[id].this_epoch += device_time;
  if (waits) waiting_.insert(KeyOf(id));
}

std::optional<ApplicationId> LeastAttained::Pick(Nanos now) {
  CloseEpochs(now);
  return std::get<2>(*waiting_.begin());
}

void Credit::SetCredit(Account* account, double credit) {
  const bool was_over = account->credit < 0;
  account->credit = credit;
  if (was_over == (credit < 0)) return;
  for (const auto& [sequence, id] : account->waiting) {
    waiting_.erase({was_over, sequence, id});
    waiting_.insert({!was_over, sequence, id});
  }
}

void Credit::CloseEpochs(Nanos now) {
  if (now - epoch_begin_ < options_.epoch) return;
  const Nanos epochs = (now - epoch_begin_) / options_.epoch;
  epoch_begin_ += epochs * options_.epoch;
  double weights = 0;
  for (const auto& [id, account] : accounts_) weights += account.weight;
  const auto income = static_cast<double>(epochs * options_.epoch);
  const auto most = static_cast<double>(options_.memory);
  for (auto& [id, account] : accounts_) {
    SetCredit(&account, std::min(account.credit + income * account.weight / weights, most));
  }
}

void Credit::OnJoin(ApplicationId id, Nanos now) {
  CloseEpochs(now);
  const Application& application = roster_.at(id).application;
  Account& account = accounts_[application.tenant];
  account.weight = application.weight;
  ++account.applications;
}

void Credit::OnLeave(ApplicationId id, Nanos) {
  const TenantId tenant = roster_.at(id).application.tenant;
  if (--accounts_[tenant].applications == 0) accounts_.erase(tenant);
}

void Credit::OnSetWeight(TenantId tenant, uint32_t weight, Nanos now) {
  CloseEpochs(now);
  accounts_[tenant].weight = weight;
}

void Credit::OnWait(ApplicationId id, Nanos now) {
  CloseEpochs(now);
  waiting_.insert(KeyOf(id));
  accounts_[roster_.at(id).application.tenant].waiting.insert({roster_.at(id).sequence, id});
}

void Credit::OnWaitOver(ApplicationId id, Nanos) {
  waiting_.erase(KeyOf(id));
  accounts_[roster_.at(id).application.tenant].waiting.erase({roster_.at(id).sequence, id});
}

void Credit::OnCharge(ApplicationId id, Nanos device_time, Nanos now) {
  CloseEpochs(now);
  Account& account = accounts_[roster_.at(id).application.tenant];
  SetCredit(&account, account.credit - static_cast<double>(device_time));
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
    if (owner.waits) return owner_;
    if (owner.in_flight == 0 && now - idle_since_ >= options_.idle_max) owner_.reset();
  }
  if (!owner_.has_value()) {
    owner_ = oldest();
    idle_since_ = now;
    return owner_;
  }
  if (roster_.in_flight() != 0) return std::nullopt;
  return oldest();
}

}  // namespace consort::schedule
