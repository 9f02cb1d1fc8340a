// SPDX-License-Identifier: Apache-2.0
// host/scheduler/share_meter.h: splits device time between those who ran at the same time.
//
// It is told intervals in which batches ran, on one time line, each beginning and end when it comes
// to be known, which may be in any order. Up to the horizon, before which nothing new will be told,
// every moment is split evenly between the intervals that cover it. So all charges add up to the
// time in which anything ran. Pure; thread compatible. A boundary is O(log boundaries ahead of the
// horizon), Advance O(running) more.
#ifndef CONSORT_HOST_SCHEDULER_SHARE_METER_H_
#define CONSORT_HOST_SCHEDULER_SHARE_METER_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/units.h"

namespace consort::host {

class ShareMeter {
 public:
  using Owner = uint32_t;
  using Interval = uint64_t;
  using Charges = std::vector<std::pair<Owner, Nanos>>;

  // Times before the horizon count as the horizon: they were told too late.
  Interval Begin(Owner owner, Nanos time);
  void End(Interval interval, Nanos time);

  // Moves the horizon to `horizon`, if that is later, and appends what each owner is charged.
  void Advance(Nanos horizon, Charges* charges);

  // The owner's intervals count no more.
  void Forget(Owner owner);

 private:
  struct Running {
    Owner owner;
    double charged_to;  // of clock_
  };
  struct Boundary {
    Interval interval;
    bool begins;
  };
  void MoveTo(Nanos time);
  void Charge(Running* running, Charges* charges);

  std::map<Interval, Owner> told_;
  std::multimap<Nanos, Boundary> ahead_;  // of the horizon, in order of time, then of telling
  std::map<Interval, Running> running_;   // at the horizon
  Interval next_ = 1;
  Nanos horizon_ = 0;
  double clock_ = 0;  // what one interval that ran all the time would have been charged
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SCHEDULER_SHARE_METER_H_
