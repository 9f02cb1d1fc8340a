// SPDX-License-Identifier: Apache-2.0
#include "host/scheduler/share_meter.h"

#include <algorithm>

namespace consort::host {

ShareMeter::Interval ShareMeter::Begin(Owner owner, Nanos time) {
  const Interval interval = next_++;
  told_.emplace(interval, owner);
  ahead_.insert({std::max(time, horizon_), {interval, true}});
  return interval;
}

void ShareMeter::End(Interval interval, Nanos time) {
  ahead_.insert({std::max(time, horizon_), {interval, false}});
}

void ShareMeter::MoveTo(Nanos time) {
  if (!running_.empty()) {
    clock_ += static_cast<double>(time - horizon_) / static_cast<double>(running_.size());
  }
  horizon_ = time;
}

void ShareMeter::Charge(Running* running, Charges* charges) {
  // What is less than a nanosecond stays for the next time.
  const auto nanos = static_cast<Nanos>(clock_ - running->charged_to);
  running->charged_to += static_cast<double>(nanos);
  if (nanos > 0) charges->emplace_back(running->owner, nanos);
}

void ShareMeter::Advance(Nanos horizon, Charges* charges) {
  if (horizon <= horizon_) return;
  while (!ahead_.empty() && ahead_.begin()->first <= horizon) {
    const auto [time, boundary] = *ahead_.begin();
    ahead_.erase(ahead_.begin());
    MoveTo(time);
    const auto told = told_.find(boundary.interval);
    if (told == told_.end()) continue;  // forgotten
    if (boundary.begins) {
      running_[boundary.interval] = {told->second, clock_};
      continue;
    }
    const auto running = running_.find(boundary.interval);
    if (running == running_.end()) {
      // Its beginning is told to be after its end: nothing ran.
      told_.erase(told);
      continue;
    }
    Charge(&running->second, charges);
    running_.erase(running);
    told_.erase(told);
  }
  MoveTo(horizon);
  for (auto& [interval, running] : running_) Charge(&running, charges);
}

void ShareMeter::Forget(Owner owner) {
  std::erase_if(told_, [owner](const auto& told) { return told.second == owner; });
  std::erase_if(running_, [owner](const auto& running) { return running.second.owner == owner; });
}

}  // namespace consort::host
