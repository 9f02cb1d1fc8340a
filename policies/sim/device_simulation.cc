// SPDX-License-Identifier: Apache-2.0
#include "policies/sim/device_simulation.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <optional>

#include "policies/sim/random.h"
#include "policies/sim/service_meter.h"

namespace consort::sim {
namespace {

using schedule::ApplicationId;
using schedule::TenantId;

struct Piece {
  schedule::Phase phase;
  double left;  // nanoseconds alone on the device
  double demand;
};

struct State {
  explicit State(uint64_t seed) : random(seed) {}
  Random random;
  size_t next_in_cycle = 0;
  std::optional<Piece> offered;  // waits, or may be started
  Nanos offered_at = 0;
  std::deque<Piece> in_flight;
  Nanos ready_at = 0;     // begins no batch before
  bool draining = false;  // the cycle is over: waits for what is in flight
  ServiceMeter meter;
};

class DeviceSimulation {
 public:
  DeviceSimulation(const Scenario& scenario, schedule::Policy* policy)
      : scenario_(scenario), policy_(policy) {
    std::map<std::string, TenantId> tenants;
    for (size_t i = 0; i < scenario.applications.size(); ++i) {
      const ApplicationModel& model = scenario.applications[i];
      const auto tenant =
          tenants.emplace(model.tenant, static_cast<TenantId>(tenants.size())).first->second;
      State& state = states_.emplace_back(scenario.seed * 1000003 + i);
      state.ready_at = model.start;
      if (policy_ != nullptr) {
        policy_->Join({static_cast<ApplicationId>(i), tenant, model.weight}, 0);
      }
    }
    result_.applications.resize(states_.size());
  }

  Result Run() {
    while (now_ < scenario_.duration) {
      for (size_t i = 0; i < states_.size(); ++i) Offer(i);
      StartChosen();
      Advance();
    }
    return std::move(result_);
  }

 private:
  // What the application does next, if it may do anything.
  void Offer(size_t i) {
    State& state = states_[i];
    const ApplicationModel& model = scenario_.applications[i];
    if (state.draining && state.in_flight.empty()) {
      state.draining = false;
      state.ready_at = now_ + model.think;
    }
    if (state.offered.has_value() || state.draining || now_ < state.ready_at ||
        state.in_flight.size() >= scenario_.batches_in_flight ||
        (model.stop >= 0 && now_ >= model.stop)) {
      return;
    }
    const BatchModel& batch = model.cycle[state.next_in_cycle];
    state.next_in_cycle = (state.next_in_cycle + 1) % model.cycle.size();
    const Nanos length = state.random.Between(batch.shortest, batch.longest);
    state.offered = {batch.phase, static_cast<double>(length), batch.demand};
    state.offered_at = now_;
    if (policy_ != nullptr) {
      policy_->Wait(static_cast<ApplicationId>(i), {batch.phase, length, length}, now_);
    }
  }

  void StartChosen() {
    if (policy_ == nullptr) {
      for (size_t i = 0; i < states_.size(); ++i) {
        while (states_[i].offered.has_value()) {
          Start(i);
          Offer(i);
        }
      }
      return;
    }
    while (const auto chosen = policy_->Choose(now_, /*stalled=*/false)) {
      Start(*chosen);
      Offer(*chosen);
    }
  }

  void Start(size_t i) {
    State& state = states_[i];
    ApplicationResult& result = result_.applications[i];
    const Nanos waited = now_ - state.offered_at;
    result.waited += waited;
    result.waited_longest = std::max(result.waited_longest, waited);
    state.in_flight.push_back(*state.offered);
    state.offered.reset();
    const ApplicationModel& model = scenario_.applications[i];
    state.draining = state.next_in_cycle == 0 && (model.think != 0 || model.synchronises);
    if (policy_ == nullptr) return;
    policy_->Start(static_cast<ApplicationId>(i), now_);
    Expect(i);
  }

  // What is to come of what the application has started.
  void Expect(size_t i) {
    double left = 0;
    for (const Piece& piece : states_[i].in_flight) left += piece.left;
    policy_->Expect(static_cast<ApplicationId>(i), static_cast<Nanos>(left), now_);
  }

  void Advance() {
    double demand = 0;
    size_t running = 0;
    bool waiting = false;
    Nanos next = scenario_.duration;
    for (size_t i = 0; i < states_.size(); ++i) {
      const State& state = states_[i];
      if (!state.in_flight.empty()) {
        demand += state.in_flight.front().demand;
        ++running;
      }
      waiting |= state.offered.has_value();
      if (state.ready_at > now_) next = std::min(next, state.ready_at);
    }
    const double rate = demand > 1 ? 1 / demand : 1;
    for (const State& state : states_) {
      if (state.in_flight.empty()) continue;
      const double ends = std::ceil(state.in_flight.front().left / rate);
      next = std::min(next, now_ + std::max<Nanos>(1, static_cast<Nanos>(ends)));
    }
    const Nanos passed = next - now_;
    now_ = next;
    if (running == 0) {
      if (waiting) result_.idle_with_waiting += passed;
      return;
    }
    result_.busy += passed;
    for (size_t i = 0; i < states_.size(); ++i) Progress(i, passed, rate, running);
  }

  void Progress(size_t i, Nanos passed, double rate, size_t running) {
    State& state = states_[i];
    if (state.in_flight.empty()) return;
    const auto id = static_cast<ApplicationId>(i);
    ApplicationResult& result = result_.applications[i];
    Piece& piece = state.in_flight.front();
    const double done = std::min(piece.left, static_cast<double>(passed) * rate);
    piece.left -= done;
    result.work += static_cast<Nanos>(done);
    const schedule::Service service =
        state.meter.Take(static_cast<double>(passed) / static_cast<double>(running), done);
    result.device_time += service.device_time;
    const bool finished = piece.left <= 0;
    if (finished) {
      state.in_flight.pop_front();
      ++result.batches;
    }
    if (policy_ == nullptr) return;
    policy_->Charge(id, service, now_);
    Expect(i);
    if (finished) policy_->Finish(id, now_);
  }

  const Scenario& scenario_;
  schedule::Policy* const policy_;
  std::vector<State> states_;
  Nanos now_ = 0;
  Result result_;
};

}  // namespace

Result Simulate(const Scenario& scenario, schedule::Policy* policy) {
  return DeviceSimulation(scenario, policy).Run();
}

std::vector<Nanos> WorkAlone(const Scenario& scenario) {
  std::vector<Nanos> alone;
  for (const ApplicationModel& application : scenario.applications) {
    Scenario one = scenario;
    one.applications = {application};
    alone.push_back(Simulate(one, nullptr).applications[0].work);
  }
  return alone;
}

Metrics Measure(const Scenario& scenario, const Result& result, const std::vector<Nanos>& alone) {
  struct Tenant {
    double device_time = 0;
    double weight = 1;
  };
  std::map<std::string, Tenant> tenants;
  Metrics metrics;
  for (size_t i = 0; i < scenario.applications.size(); ++i) {
    const ApplicationModel& model = scenario.applications[i];
    Tenant& tenant = tenants[model.tenant];
    tenant.weight = model.weight;
    tenant.device_time += static_cast<double>(result.applications[i].device_time);
    if (alone[i] != 0) {
      metrics.weighted_speedup +=
          static_cast<double>(result.applications[i].work) / static_cast<double>(alone[i]);
    }
  }
  double sum = 0;
  double squares = 0;
  for (const auto& [name, tenant] : tenants) {
    const double share = tenant.device_time / tenant.weight;
    sum += share;
    squares += share * share;
  }
  if (squares > 0) metrics.jain = sum * sum / (static_cast<double>(tenants.size()) * squares);
  metrics.busy = static_cast<double>(result.busy) / static_cast<double>(scenario.duration);
  return metrics;
}

}  // namespace consort::sim
