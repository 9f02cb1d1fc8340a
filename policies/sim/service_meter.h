// SPDX-License-Identifier: Apache-2.0
// policies/sim/service_meter.h: what a policy is to be told that an application got, in whole
// nanoseconds.
#ifndef CONSORT_POLICIES_SIM_SERVICE_METER_H_
#define CONSORT_POLICIES_SIM_SERVICE_METER_H_

#include <algorithm>

#include "base/units.h"
#include "policies/schedule/policy.h"

namespace consort::sim {

class ServiceMeter {
 public:
  // It got so much device time, and work done that takes `alone` by itself. What is less than a
  // nanosecond stays for the next time.
  schedule::Service Take(double device_time, double alone) {
    return {Whole(device_time, &device_time_), Whole(std::max(alone, device_time), &alone_)};
  }

 private:
  static Nanos Whole(double more, double* kept) {
    *kept += more;
    const auto nanos = static_cast<Nanos>(*kept);
    *kept -= static_cast<double>(nanos);
    return nanos;
  }

  double device_time_ = 0;
  double alone_ = 0;
};

}  // namespace consort::sim

#endif  // CONSORT_POLICIES_SIM_SERVICE_METER_H_
