// SPDX-License-Identifier: Apache-2.0
// host/daemon/share_window.h: which part of a device's time each session had of late.
//
// It is given the device times of all sessions of a device after each report, and compares the
// newest with those of kShareWindow before. Pure; owned by consortd's loop.
#ifndef CONSORT_HOST_DAEMON_SHARE_WINDOW_H_
#define CONSORT_HOST_DAEMON_SHARE_WINDOW_H_

#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "base/units.h"

namespace consort::host {

class ShareWindow {
 public:
  using DeviceTimes = std::map<uint64_t, uint64_t>;  // session to nanoseconds since it began

  void Add(Nanos now, DeviceTimes times);

  // Device time of each session within the window; those without any are left out.
  DeviceTimes Used() const;
  // How long the window is: kShareWindow, or a little more, or less while reports are few.
  Nanos span() const;

 private:
  std::deque<std::pair<Nanos, DeviceTimes>> reports_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_SHARE_WINDOW_H_
