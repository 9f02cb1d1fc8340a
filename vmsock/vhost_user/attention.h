// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/attention.h: for how long a device looks at its queues by itself before it asks
// the guest to notify it. Pure logic; thread compatible.
//
// A notification makes a virtual CPU exit, which costs more than the packet that it tells of; a
// look costs the device's thread some hundred nanoseconds. So the device looks on for a while after
// each packet, and the while adapts, as in KVM's halt polling (Linux, Documentation/virt/kvm/
// halt-polling.rst): it grows when the guest notified soon after the device had gone to rest, and
// shrinks when it notified so late that no while would have been long enough.
#ifndef CONSORT_VMSOCK_VHOST_USER_ATTENTION_H_
#define CONSORT_VMSOCK_VHOST_USER_ATTENTION_H_

#include <algorithm>

#include "base/units.h"

namespace consort::vhost_user {

class Attention {
 public:
  static constexpr Nanos kLeast = 10 * kMicrosecond;
  static constexpr Nanos kMost = 200 * kMicrosecond;  // as Linux's halt_poll_ns on x86

  // After a look at the queues at `now`; `came`: there were packets. True: look again, without
  // waiting. False: rest until something happens.
  bool LookOn(bool came, Nanos now) {
    if (came) {
      if (resting_ && now - rested_ <= kMost) {
        while_ = std::clamp(2 * while_, kLeast, kMost);
      } else if (resting_) {
        while_ = while_ > kLeast ? while_ / 2 : 0;
      }
      resting_ = false;
      until_ = now + while_;
      return true;
    }
    if (resting_) return false;
    if (now < until_) return true;
    resting_ = true;
    rested_ = now;
    return false;
  }

 private:
  Nanos while_ = 0;
  Nanos until_ = 0;
  bool resting_ = true;
  Nanos rested_ = -kMost - 1;  // long ago
};

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_ATTENTION_H_
