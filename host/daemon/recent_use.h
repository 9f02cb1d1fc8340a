// SPDX-License-Identifier: Apache-2.0
// host/daemon/recent_use.h: how much of the last second a session's kernels ran, of its worker's
// reports. Value type; the caller brings the time.
#ifndef CONSORT_HOST_DAEMON_RECENT_USE_H_
#define CONSORT_HOST_DAEMON_RECENT_USE_H_

#include <algorithm>
#include <cstdint>

#include "base/units.h"

namespace consort::host {

class RecentUse {
 public:
  static constexpr Nanos kWindow = kSecond;

  // The session's kernels had run `busy_nanos` in all when the report came at `now`. Reports come
  // in order of time, at most some each window; without one nothing has changed.
  void Report(Nanos now, uint64_t busy_nanos) {
    std::copy_backward(points_, points_ + kPoints - 1, points_ + kPoints);
    points_[0] = {now, busy_nanos};
  }

  // Of the window that ends now, in percent: 0 to 100.
  uint32_t BusyPercent(Nanos now) const {
    // What was so before the window: the newest report that is older, else the oldest one kept; the
    // session began with 0.
    uint64_t before = points_[kPoints - 1].busy_nanos;
    for (const Point& point : points_) {
      if (point.when > now - kWindow) continue;
      before = point.busy_nanos;
      break;
    }
    const uint64_t busy = points_[0].busy_nanos - std::min(before, points_[0].busy_nanos);
    return static_cast<uint32_t>(std::min<uint64_t>(100, busy * 100 / kWindow));
  }

 private:
  // Reports come twice a second; one more is older than the window, one is to spare.
  static constexpr int kPoints = 4;
  struct Point {
    Nanos when = 0;
    uint64_t busy_nanos = 0;
  };
  Point points_[kPoints];  // the newest first
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_RECENT_USE_H_
