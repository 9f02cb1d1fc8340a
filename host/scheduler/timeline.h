// SPDX-License-Identifier: Apache-2.0
// host/scheduler/timeline.h: device events on the host's clock.
//
// A driver tells only the time between two events, as milliseconds in a float. So times are counted
// from a base event, which is replaced before a float gets coarse, and where the base lies on the
// host's clock follows from what is known of each event: it was not yet reached when last looked
// at, and is reached now. The clocks' drift is made up for in the same way. Owned by one session
// loop.
#ifndef CONSORT_HOST_SCHEDULER_TIMELINE_H_
#define CONSORT_HOST_SCHEDULER_TIMELINE_H_

#include <algorithm>

#include "base/units.h"

namespace consort::host {

class Timeline {
 public:
  // Past this a new base is due: 1 s in a float of milliseconds is good to 0.06 us.
  static constexpr Nanos kBaseAgeMax = kSecond;

  // Makes the event the base, which is seen to be reached at this time.
  void SetFirstBase(Nanos not_after) {
    base_ = not_after;
    has_base_ = true;
  }
  bool has_base() const { return has_base_; }

  // The time of an event `after_base` behind the base, reached between the two times.
  Nanos Place(Nanos after_base, Nanos not_before, Nanos not_after) {
    const Nanos told = base_ + after_base;
    const Nanos placed = std::max(std::min(told, not_after), std::min(not_before, not_after));
    base_ += placed - told;
    return placed;
  }

  // Makes an event the base that was placed `after_base` behind the old one.
  void MoveBase(Nanos after_base) { base_ += after_base; }

 private:
  Nanos base_ = 0;
  bool has_base_ = false;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SCHEDULER_TIMELINE_H_
