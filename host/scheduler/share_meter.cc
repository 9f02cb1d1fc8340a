// SPDX-License-Identifier: Apache-2.0
#include "host/scheduler/share_meter.h"

#include <algorithm>

namespace consort::host {
namespace {

// However slow its work is beside others', an owner is charged for that much of it.
constexpr double kSpeedLeast = 1.0 / 64;

// Time beside others after which half of what was known of an owner's speed is forgotten.
constexpr double kSpeedHalf = 2.0 * kMillisecond;

// Time by itself after which half of what was known of how far its estimates are off is forgotten,
// and the most that they are taken to be off.
constexpr double kCorrectionHalf = 5.0 * kMillisecond;
constexpr double kCorrectionMost = 1.5;

// How long it counts that something left room: to charge now estimates and now the device's time,
// as who leaves room comes and goes, would favour those of whom estimates say less. Chosen, and far
// more than the milliseconds that such work takes between two pieces.
constexpr Nanos kRoomLingers = 100 * kMillisecond;

// Of what took `beside` beside others and would have taken `alone` by itself.
double SpeedOf(double alone, double beside) { return std::clamp(alone / beside, kSpeedLeast, 1.0); }

}  // namespace

ShareMeter::Interval ShareMeter::Begin(Owner owner, Nanos time) {
  const Interval interval = next_++;
  told_.emplace(interval, Told{owner, time, {}, {}});
  open_.insert({time, interval});
  ahead_.insert({std::max(time, horizon_), {interval, true}});
  return interval;
}

void ShareMeter::End(Interval interval, Nanos time, const IntervalWork& work) {
  const auto told = told_.find(interval);
  if (told == told_.end()) return;  // forgotten
  open_.erase({told->second.begin, interval});
  told->second.end = std::max(time, horizon_);
  told->second.work = work;
  ahead_.insert({*told->second.end, {interval, false}});
}

void ShareMeter::MoveTo(Nanos time) {
  if (!running_.empty()) {
    const auto passed = static_cast<double>(time - horizon_);
    clock_ += passed / speeds_;
    OwnerState& owner = owners_[running_.begin()->second.owner];
    const bool solo = owner.running == running_.size();
    if (solo) {
      owner.solo.time += passed;
      owner.solo.work += passed / owner.running;
    }
    if (RunningOf(Room::kLeft) > 0) room_until_ = time + kRoomLingers;
    const bool by_speed = !solo && RunningOf(Room::kUnknown) == 0 && horizon_ < room_until_;
    alone_clock_ += by_speed ? passed : passed / speeds_;
  }
  horizon_ = time;
}

ShareMeter::Solo ShareMeter::SoloAhead(const Told& told) const {
  Solo solo;
  const auto state = owners_.find(told.owner);
  uint64_t own = state == owners_.end() ? 1 : state->second.running + 1;
  uint64_t all = running_.size() + 1;
  Nanos at = horizon_;
  const auto until = [&](Nanos time) {
    if (own == all) {
      solo.time += static_cast<double>(time - at);
      solo.work += static_cast<double>(time - at) / static_cast<double>(own);
    }
    at = time;
  };
  for (const auto& [time, boundary] : ahead_) {
    if (time >= *told.end) break;
    const auto of = told_.find(boundary.interval);
    if (of == told_.end()) continue;  // forgotten
    until(time);
    const bool is_own = of->second.owner == told.owner;
    all += boundary.begins ? 1 : -1;
    if (is_own) own += boundary.begins ? 1 : -1;
  }
  until(*told.end);
  return solo;
}

void ShareMeter::BeginAtHorizon(Interval interval, const Told& told) {
  double speed = owners_[told.owner].speed;
  Room room = told.end.has_value() ? told.work.room : Room::kUnknown;
  if (room == Room::kUnknown) room = owners_[told.owner].room;
  if (told.end.has_value() && told.work.alone.has_value()) {
    const Solo solo = SoloAhead(told);
    const double beside = static_cast<double>(*told.end - horizon_) - solo.time;
    if (beside >= 1) {
      const double alone = static_cast<double>(*told.work.alone) * owners_[told.owner].correction;
      speed = SpeedOf(alone - solo.work, beside);
    }
  }
  OwnerState& owner = owners_[told.owner];
  running_[interval] = {told.owner, speed, room, clock_, alone_clock_, horizon_, owner.solo};
  ++owner.running;
  speeds_ += speed;
  ++RunningOf(room);
}

void ShareMeter::EndAtHorizon(std::map<Interval, Running>::iterator running, const Told& told) {
  const Running& ended = running->second;
  OwnerState& owner = owners_[ended.owner];
  const double beside =
      static_cast<double>(horizon_ - ended.begin) - (owner.solo.time - ended.solo_from.time);
  if (told.work.room != Room::kUnknown) owner.room = told.work.room;
  if (told.work.alone.has_value()) {
    const auto alone = static_cast<double>(*told.work.alone);
    const double work = owner.solo.work - ended.solo_from.work;
    if (beside >= 1) {
      const double seen = SpeedOf(alone * owner.correction - work, beside);
      owner.speed += (seen - owner.speed) * beside / (beside + kSpeedHalf);
    } else if (work >= 1) {
      const double seen = std::clamp(work / alone, 1 / kCorrectionMost, kCorrectionMost);
      owner.correction += (seen - owner.correction) * work / (work + kCorrectionHalf);
    }
  }
  --owner.running;
  speeds_ -= ended.speed;
  --RunningOf(ended.room);
  running_.erase(running);
  if (running_.empty()) speeds_ = 0;  // of what rounding left
}

void ShareMeter::Settle(Interval interval, Running* running, bool ended, Charges* charges) {
  // What is less than a nanosecond stays for the next time.
  const auto take = [running](double clock, double* to) {
    const auto nanos = static_cast<Nanos>((clock - *to) * running->speed);
    *to += static_cast<double>(nanos) / running->speed;
    return nanos;
  };
  const Nanos time = take(clock_, &running->charged_to);
  const Nanos alone = take(alone_clock_, &running->alone_to);
  if (time > 0 || alone > 0 || ended) {
    charges->push_back({running->owner, time, alone, interval, ended});
  }
}

void ShareMeter::Advance(Nanos horizon, Charges* charges, Nanos patience) {
  // Where the horizon is held at a beginning, that is taken when its end is told, and so its speed.
  bool held = false;
  if (patience != 0 && !open_.empty()) {
    const Nanos begin = std::max(open_.begin()->first, horizon_);
    held = begin <= horizon && begin > horizon - patience;
    horizon = std::min(horizon, std::max(begin, horizon - patience));
  }
  if (horizon <= horizon_) return;
  while (!ahead_.empty() && ahead_.begin()->first <= horizon) {
    const auto [time, boundary] = *ahead_.begin();
    if (held && time == horizon && boundary.begins) break;
    ahead_.erase(ahead_.begin());
    MoveTo(time);
    const auto told = told_.find(boundary.interval);
    if (told == told_.end()) continue;  // forgotten
    if (boundary.begins) {
      BeginAtHorizon(boundary.interval, told->second);
      continue;
    }
    // One whose beginning is told to be after its end has not run.
    const auto running = running_.find(boundary.interval);
    if (running != running_.end()) {
      Settle(boundary.interval, &running->second, /*ended=*/true, charges);
      EndAtHorizon(running, told->second);
    } else {
      charges->push_back({told->second.owner, 0, 0, boundary.interval, true});
    }
    told_.erase(told);
  }
  MoveTo(horizon);
  for (auto& [interval, running] : running_) {
    Settle(interval, &running, /*ended=*/false, charges);
  }
}

void ShareMeter::Forget(Owner owner) {
  std::erase_if(open_, [&](const auto& open) { return told_.at(open.second).owner == owner; });
  std::erase_if(told_, [owner](const auto& told) { return told.second.owner == owner; });
  std::erase_if(running_, [&](const auto& running) {
    if (running.second.owner != owner) return false;
    speeds_ -= running.second.speed;
    --RunningOf(running.second.room);
    return true;
  });
  if (running_.empty()) speeds_ = 0;
  owners_.erase(owner);
}

}  // namespace consort::host
