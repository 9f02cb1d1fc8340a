// SPDX-License-Identifier: Apache-2.0
#include "host/scheduler/share_meter.h"

#include <algorithm>

namespace consort::host {

ShareMeter::Interval ShareMeter::Begin(Owner owner, Nanos time, Speed speed) {
  const Interval interval = next_++;
  told_.emplace(interval, Told{owner, speed, time});
  open_.insert({time, interval});
  ahead_.insert({std::max(time, horizon_), {interval, true}});
  return interval;
}

void ShareMeter::End(Interval interval, Nanos time, std::optional<Speed> speed) {
  const auto told = told_.find(interval);
  if (told == told_.end()) return;  // forgotten
  open_.erase({told->second.begin, interval});
  if (speed.has_value()) told->second.speed = *speed;
  ahead_.insert({std::max(time, horizon_), {interval, false}});
}

void ShareMeter::MoveTo(Nanos time) {
  if (speeds_ != 0) {
    clock_ += static_cast<double>(time - horizon_) / static_cast<double>(speeds_);
  }
  horizon_ = time;
}

void ShareMeter::Charge(Running* running, Charges* charges) {
  // What is less than a nanosecond stays for the next time.
  const auto speed = static_cast<double>(running->told.speed);
  const auto nanos = static_cast<Nanos>((clock_ - running->charged_to) * speed);
  running->charged_to += static_cast<double>(nanos) / speed;
  if (nanos > 0) charges->emplace_back(running->told.owner, nanos);
}

void ShareMeter::Advance(Nanos horizon, Charges* charges, Nanos patience) {
  if (patience != 0 && !open_.empty()) {
    horizon = std::min(horizon, std::max(open_.begin()->first, horizon - patience));
  }
  if (horizon <= horizon_) return;
  while (!ahead_.empty() && ahead_.begin()->first <= horizon) {
    const auto [time, boundary] = *ahead_.begin();
    ahead_.erase(ahead_.begin());
    MoveTo(time);
    const auto told = told_.find(boundary.interval);
    if (told == told_.end()) continue;  // forgotten
    if (boundary.begins) {
      running_[boundary.interval] = {told->second, clock_};
      speeds_ += told->second.speed;
      continue;
    }
    const auto running = running_.find(boundary.interval);
    if (running == running_.end()) {
      // Its beginning is told to be after its end: nothing ran.
      told_.erase(told);
      continue;
    }
    Charge(&running->second, charges);
    speeds_ -= running->second.told.speed;
    running_.erase(running);
    told_.erase(told);
  }
  MoveTo(horizon);
  for (auto& [interval, running] : running_) Charge(&running, charges);
}

void ShareMeter::Forget(Owner owner) {
  std::erase_if(open_, [&](const auto& open) { return told_.at(open.second).owner == owner; });
  std::erase_if(told_, [owner](const auto& told) { return told.second.owner == owner; });
  std::erase_if(running_, [&](const auto& running) {
    if (running.second.told.owner != owner) return false;
    speeds_ -= running.second.told.speed;
    return true;
  });
}

}  // namespace consort::host
