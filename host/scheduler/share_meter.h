// SPDX-License-Identifier: Apache-2.0
// host/scheduler/share_meter.h: splits device time between those who ran at the same time.
//
// It is told intervals in which batches ran, on one time line, each beginning and end when it comes
// to be known, which may be in any order. Up to the horizon, before which nothing new will be told,
// every moment is split between the intervals that cover it, by their speeds: how fast each went on
// beside the others, as part of how fast it goes on alone. So what an owner pays is what it got,
// whatever its work waited for, and all charges add up to the time in which anything ran. Pure;
// thread compatible. A boundary is O(log boundaries ahead of the horizon), Advance O(running) more.
#ifndef CONSORT_HOST_SCHEDULER_SHARE_METER_H_
#define CONSORT_HOST_SCHEDULER_SHARE_METER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/units.h"

namespace consort::host {

class ShareMeter {
 public:
  using Owner = uint32_t;
  using Interval = uint64_t;
  using Charges = std::vector<std::pair<Owner, Nanos>>;

  // How fast work goes on beside other work, in parts of how fast it does alone.
  using Speed = uint32_t;
  static constexpr Speed kFullSpeed = 1024;

  // Times before the horizon count as the horizon: they were told too late. `speed`, not 0: as far
  // as it is known, or for all the same.
  Interval Begin(Owner owner, Nanos time, Speed speed = kFullSpeed);
  // `speed`: what it was. Counts if the horizon has not come to the interval's beginning.
  void End(Interval interval, Nanos time, std::optional<Speed> speed = std::nullopt);

  // Moves the horizon to `horizon`, if that is later, and appends what each owner is charged. So
  // that speeds are known it stays at the beginning of what has no end yet, at most for `patience`.
  void Advance(Nanos horizon, Charges* charges, Nanos patience = 0);

  // The owner's intervals count no more.
  void Forget(Owner owner);

 private:
  struct Told {
    Owner owner;
    Speed speed;
    Nanos begin;
  };
  struct Running {
    Told told;
    double charged_to;  // of clock_
  };
  struct Boundary {
    Interval interval;
    bool begins;
  };
  void MoveTo(Nanos time);
  void Charge(Running* running, Charges* charges);

  std::set<std::pair<Nanos, Interval>> open_;  // beginnings of what has no end yet
  std::map<Interval, Told> told_;
  std::multimap<Nanos, Boundary> ahead_;  // of the horizon, in order of time, then of telling
  std::map<Interval, Running> running_;   // at the horizon
  Interval next_ = 1;
  Nanos horizon_ = 0;
  uint64_t speeds_ = 0;  // of all that run
  // What one interval of speed 1 that ran all the time would have been charged.
  double clock_ = 0;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SCHEDULER_SHARE_METER_H_
