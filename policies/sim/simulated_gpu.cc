// SPDX-License-Identifier: Apache-2.0
#include "policies/sim/simulated_gpu.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace consort::sim {

using schedule::Phase;

SimulatedGpu::Guest SimulatedGpu::Join(uint32_t tenant, uint32_t weight, Nanos now) {
  Guest guest = static_cast<Guest>(guests_.size());
  if (free_guests_.empty()) {
    guests_.emplace_back();
  } else {
    guest = free_guests_.back();
    free_guests_.pop_back();
  }
  guests_[guest] = GuestState{};
  if (policy_ != nullptr) policy_->Join({guest, tenant, weight}, now);
  return guest;
}

void SimulatedGpu::Leave(Guest guest, Nanos now) {
  if (policy_ != nullptr) policy_->Leave(guest, now);
  if (last_guest_ == guest) last_guest_ = UINT32_MAX;
  free_guests_.push_back(guest);
}

int SimulatedGpu::EngineOf(Phase phase) const {
  // One context at a time: everything shares one engine.
  if (!settings_.packed || phase == Phase::kKernel || phase == Phase::kNone) return kKernels;
  return phase == Phase::kToHost && settings_.copy_engines >= 2 ? kToHost : kToDevice;
}

double SimulatedGpu::Speed() const { return 1 / std::max({1.0, sms_, bandwidth_}); }

void SimulatedGpu::PassTo(Nanos now) {
  const auto passed = static_cast<double>(now - last_);
  last_ = now;
  if (passed <= 0 || running_count_ == 0) return;
  busy_ += passed;
  const double served = passed * Speed();
  virtual_now_ += served;
  const double share = passed / static_cast<double>(running_count_);
  for (size_t engine = 0; engine < running_.size(); ++engine) {
    const double alone = engine == kKernels ? served : passed;
    for (const Running& each : running_[engine]) {
      GuestState& guest = guests_[each.guest];
      guest.device_time += share;
      if (policy_ == nullptr) continue;
      policy_->Charge(each.guest, guest.meter.Take(share, alone), now);
    }
  }
}

void SimulatedGpu::Submit(Guest guest, const Work& work, Nanos now) {
  PassTo(now);
  guests_[guest].work = work;
  if (policy_ != nullptr) {
    policy_->Wait(guest, {work.phase, static_cast<Nanos>(std::min(work.length, 1e18))}, now);
  } else {
    waiting_.push_back(guest);
  }
  StartWhatMay(now);
}

void SimulatedGpu::StartWhatMay(Nanos now) {
  while (settings_.packed || running_count_ == 0) {
    if (policy_ != nullptr) {
      const std::optional<schedule::ApplicationId> chosen = policy_->Choose(now, false);
      if (!chosen.has_value()) return;
      policy_->Start(*chosen, now);
      Begin(*chosen, now);
    } else {
      if (waiting_.empty()) return;
      const Guest first = waiting_.front();
      waiting_.pop_front();
      Begin(first, now);
    }
  }
}

void SimulatedGpu::Begin(Guest guest, Nanos now) {
  const int engine = EngineOf(guests_[guest].work.phase);
  queued_[engine].push_back(guest);
  FillEngine(engine, now);
}

void SimulatedGpu::FillEngine(int engine, Nanos now) {
  std::deque<Guest>& queue = queued_[engine];
  std::vector<Running>& running = running_[engine];
  const size_t room = engine == kKernels && settings_.packed ? settings_.kernels_max : 1;
  while (!queue.empty() && running.size() < room) {
    const Guest guest = queue.front();
    queue.pop_front();
    const Work& work = guests_[guest].work;
    double length = work.length;
    if (!settings_.packed) {
      if (last_guest_ != guest && last_guest_ != UINT32_MAX) {
        length += static_cast<double>(settings_.context_switch);
      }
      last_guest_ = guest;
    }
    const double begin = engine == kKernels ? virtual_now_ : static_cast<double>(now);
    running.push_back({.guest = guest, .end = begin + length, .work = work});
    ++running_count_;
    if (engine == kKernels && work.phase == Phase::kKernel) {
      sms_ += work.sms;
      bandwidth_ += work.bandwidth;
    }
  }
}

Nanos SimulatedGpu::NextEnd() const {
  double next = INFINITY;
  for (const Running& each : running_[kKernels]) {
    next = std::min(next, static_cast<double>(last_) + (each.end - virtual_now_) / Speed());
  }
  for (const int engine : {kToDevice, kToHost}) {
    for (const Running& each : running_[engine]) next = std::min(next, each.end);
  }
  // Beyond that no simulation comes; it is far from the end of the type.
  constexpr double kLongest = 4e18;
  if (next > kLongest) return kNever;
  return std::max(last_, static_cast<Nanos>(std::ceil(next)));
}

SimulatedGpu::Guest SimulatedGpu::Finish(Nanos now) {
  PassTo(now);
  int engine = kKernels;
  size_t which = 0;
  double least = INFINITY;
  for (const int each : {kKernels, kToDevice, kToHost}) {
    for (size_t i = 0; i < running_[each].size(); ++i) {
      const double left =
          running_[each][i].end - (each == kKernels ? virtual_now_ : static_cast<double>(now));
      if (left < least) {
        least = left;
        engine = each;
        which = i;
      }
    }
  }
  std::vector<Running>& running = running_[engine];
  const Running over = running[which];
  running.erase(running.begin() + static_cast<std::ptrdiff_t>(which));
  --running_count_;
  if (engine == kKernels) {
    // Made anew, so that no rounding is left behind.
    sms_ = bandwidth_ = 0;
    for (const Running& each : running) {
      if (each.work.phase != Phase::kKernel) continue;
      sms_ += each.work.sms;
      bandwidth_ += each.work.bandwidth;
    }
  }
  if (policy_ != nullptr) policy_->Finish(over.guest, now);
  FillEngine(engine, now);
  return over.guest;
}

}  // namespace consort::sim
