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

void SimulatedGpu::PassTo(Nanos now) {
  const auto passed = static_cast<double>(now - last_);
  last_ = now;
  if (passed <= 0 || running_count_ == 0) return;
  busy_ += passed;
  const double share = passed / static_cast<double>(running_count_);
  for (std::vector<Running>& running : running_) {
    for (Running& each : running) {
      const double served = passed * each.speed;
      each.left -= served;
      GuestState& guest = guests_[each.guest];
      guest.device_time += share;
      if (policy_ == nullptr) continue;
      policy_->Charge(each.guest, guest.meter.Take(share, served), now);
    }
  }
}

void SimulatedGpu::Submit(Guest guest, const Work& work, Nanos now) {
  PassTo(now);
  guests_[guest].waiting.push_back(work);
  if (policy_ == nullptr) {
    waiting_.push_back(guest);
  } else if (guests_[guest].waiting.size() == 1) {
    Wait(guest, now);
  }
  StartWhatMay(now);
}

// The policy learns of the guest's oldest work; of one at a time.
void SimulatedGpu::Wait(Guest guest, Nanos now) {
  const Work& work = guests_[guest].waiting.front();
  policy_->Wait(guest, {work.phase, static_cast<Nanos>(std::min(work.length, 1e18))}, now);
}

void SimulatedGpu::StartWhatMay(Nanos now) {
  while (settings_.packed || running_count_ == 0) {
    if (policy_ != nullptr) {
      const std::optional<schedule::ApplicationId> chosen = policy_->Choose(now, false);
      if (!chosen.has_value()) return;
      policy_->Start(*chosen, now);
      Begin(*chosen);
      if (!guests_[*chosen].waiting.empty()) Wait(*chosen, now);
    } else {
      if (waiting_.empty()) return;
      const Guest first = waiting_.front();
      waiting_.pop_front();
      Begin(first);
    }
  }
}

void SimulatedGpu::Begin(Guest guest) {
  std::vector<Work>& waiting = guests_[guest].waiting;
  const int engine = EngineOf(waiting.front().phase);
  queued_[engine].push_back({guest, waiting.front()});
  waiting.erase(waiting.begin());
  FillEngine(engine);
}

void SimulatedGpu::FillEngine(int engine) {
  std::deque<Queued>& queue = queued_[engine];
  std::vector<Running>& running = running_[engine];
  const size_t room = engine == kKernels && settings_.packed ? settings_.kernels_max : 1;
  while (!queue.empty() && running.size() < room) {
    const auto [guest, work] = queue.front();
    queue.pop_front();
    double length = work.length;
    if (!settings_.packed) {
      if (last_guest_ != guest && last_guest_ != UINT32_MAX) {
        length += static_cast<double>(settings_.context_switch);
      }
      last_guest_ = guest;
    }
    running.push_back({.guest = guest, .left = length, .work = work});
    ++running_count_;
  }
  if (engine == kKernels) SetSpeeds();
}

void SimulatedGpu::SetSpeeds() {
  std::vector<Running>& running = running_[kKernels];
  demands_.clear();
  for (const Running& each : running) demands_.push_back(each.work.demand);
  speeds_.resize(running.size());
  ShareGpu(demands_, speeds_);
  for (size_t i = 0; i < running.size(); ++i) running[i].speed = speeds_[i];
}

Nanos SimulatedGpu::NextEnd() const {
  double next = INFINITY;
  for (const std::vector<Running>& running : running_) {
    for (const Running& each : running) next = std::min(next, each.left / each.speed);
  }
  // Beyond that no simulation comes; it is far from the end of the type.
  constexpr double kLongest = 4e18;
  if (next > kLongest) return kNever;
  // What is left of less than this came of rounding.
  constexpr double kNothing = 1e-3;
  return last_ + static_cast<Nanos>(std::ceil(std::max(0.0, next - kNothing)));
}

uint32_t SimulatedGpu::Finish(Nanos now) {
  PassTo(now);
  int engine = kKernels;
  size_t which = 0;
  double least = INFINITY;
  for (const int each : {kKernels, kToDevice, kToHost}) {
    for (size_t i = 0; i < running_[each].size(); ++i) {
      const double left = running_[each][i].left / running_[each][i].speed;
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
  if (policy_ != nullptr) policy_->Finish(over.guest, now);
  FillEngine(engine);
  return over.work.thread;
}

}  // namespace consort::sim
