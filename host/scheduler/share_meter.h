// SPDX-License-Identifier: Apache-2.0
// host/scheduler/share_meter.h: splits device time between those who ran at the same time.
//
// It is told intervals in which batches ran, on one time line, each beginning and end when it comes
// to be known, which may be in any order. Up to the horizon, before which nothing new will be told,
// every moment is split between the intervals that cover it, by their speeds: how fast each went on
// beside the others, as part of how fast it goes on alone. So what an owner pays is what it got,
// whatever its work waited for, and all charged time adds up to that in which anything ran. Each
// charge says too how long that would have taken alone, by its own speed whatever the others' are:
// more than it pays where work overlaps, less where it is in each other's way. Where nothing runs,
// and for a while nothing has run, that leaves room on the device there is nothing to overlap, and
// both are the same by definition, so that no estimate is in it. So they are where something runs
// of an owner of whose work nothing is known.
//
// A speed follows from what the interval would have taken alone, less what it got done while no
// other owner had any: so it is known at its end. Of one that is charged before, what the owner's
// intervals of late did beside others is taken. What intervals would take alone is corrected by how
// long the owner's did take that had the device to themselves. Pure; thread compatible. A boundary
// is O(log boundaries ahead of the horizon), an interval O(boundaries within it), Advance
// O(running) more.
#ifndef CONSORT_HOST_SCHEDULER_SHARE_METER_H_
#define CONSORT_HOST_SCHEDULER_SHARE_METER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/units.h"

namespace consort::host {

// Whether work leaves room on the device for others'. Of what is not known its owner's latest work
// tells of which it is.
enum class Room : uint8_t { kUnknown, kNone, kLeft };

// What is known of what ran in an interval, at its end.
struct IntervalWork {
  // How long it would have taken if nobody else had had work. Not known: it is taken to have gone
  // on at full speed, or as others of its owner did.
  std::optional<Nanos> alone;
  Room room = Room::kUnknown;
};

class ShareMeter {
 public:
  using Owner = uint32_t;
  using Interval = uint64_t;
  struct Charge {
    Owner owner;
    Nanos time;
    Nanos alone;
    Interval interval;
    bool last;  // nothing more comes of the interval
  };
  using Charges = std::vector<Charge>;

  // Times before the horizon count as the horizon: they were told too late.
  Interval Begin(Owner owner, Nanos time);
  void End(Interval interval, Nanos time, const IntervalWork& work = {});

  // Moves the horizon to `horizon`, if that is later, and appends what each owner is charged. So
  // that speeds are known it stays at the beginning of what has no end yet, at most for `patience`;
  // that interval itself has begun then, and goes by its owner's speed of late.
  void Advance(Nanos horizon, Charges* charges, Nanos patience = 0);

  // The owner's intervals count no more.
  void Forget(Owner owner);

 private:
  struct Told {
    Owner owner;
    Nanos begin;
    std::optional<Nanos> end;
    IntervalWork work;
  };
  // Time in which only one owner's intervals ran, and what each of them got done in it: they are
  // taken to share the device evenly.
  struct Solo {
    double time = 0;
    double work = 0;
  };
  struct Running {
    Owner owner;
    double speed;
    Room room;
    double charged_to;  // of clock_
    double alone_to;    // of alone_clock_
    Nanos begin;
    Solo solo_from;  // of its owner's
  };
  struct OwnerState {
    uint32_t running = 0;
    Solo solo;
    double speed = 1;            // beside others, of late
    Room room = Room::kUnknown;  // likewise
    double correction = 1;       // what its work takes by itself, in parts of what End was told
  };
  struct Boundary {
    Interval interval;
    bool begins;
  };
  void MoveTo(Nanos time);
  void BeginAtHorizon(Interval interval, const Told& told);
  void EndAtHorizon(std::map<Interval, Running>::iterator running, const Told& told);
  // What `told`, which begins at the horizon, will have got by itself until its end.
  Solo SoloAhead(const Told& told) const;
  void Settle(Interval interval, Running* running, bool ended, Charges* charges);
  uint32_t& RunningOf(Room room) { return room_[static_cast<size_t>(room)]; }

  std::set<std::pair<Nanos, Interval>> open_;  // beginnings of what has no end yet
  std::map<Interval, Told> told_;
  std::multimap<Nanos, Boundary> ahead_;  // of the horizon, in order of time, then of telling
  std::map<Interval, Running> running_;   // at the horizon
  Interval next_ = 1;
  Nanos horizon_ = 0;
  std::map<Owner, OwnerState> owners_;
  double speeds_ = 0;               // of all that run
  std::array<uint32_t, 3> room_{};  // how many of those that run are of each Room
  // What one interval of speed 1 that ran all the time would have been charged.
  double clock_ = 0;
  // Likewise, of what it would have taken alone: time beside others, clock_ where there are none,
  // where none leaves room and for a while none did, and where of one's owner nothing is known.
  double alone_clock_ = 0;
  Nanos room_until_ = 0;  // before that estimates count: something left room lately
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SCHEDULER_SHARE_METER_H_
