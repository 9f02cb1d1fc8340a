// SPDX-License-Identifier: Apache-2.0
// policies/placement/sensitivity.h: how much an application would lose on a GPU of another node.
//
// Its life is cut into bins of equal length. In each, bytes / interval / bandwidth is the part of
// the time that the network would be busy for it, and to that comes the time for which it waits for
// answers: round trips times the delay of one, as part of the interval. S is the mean over the
// bins. After: Merritt et al., "Slices: Provisioning Heterogeneous HPC Systems" (XSEDE 2014).
// Thread compatible.
#ifndef CONSORT_POLICIES_PLACEMENT_SENSITIVITY_H_
#define CONSORT_POLICIES_PLACEMENT_SENSITIVITY_H_

#include <cstdint>

#include "base/units.h"

namespace consort::placement {

class SensitivityMeter {
 public:
  struct Network {
    double bandwidth = 1.25e9;  // bytes a second, > 0
    Nanos round_trip = 100 * kMicrosecond;
  };
  static constexpr Nanos kBin = 100 * kMillisecond;

  SensitivityMeter(const Network& network, Nanos begin) : network_(network), bin_begin_(begin) {}

  // What happened up to `now`, which never goes back: bytes that crossed or would cross the
  // network, and calls for whose answer the application waited.
  void Add(Bytes bytes, uint64_t blocking_calls, Nanos now);
  // Over the bins that are over at `now`; before the first one is over, over what there is of it.
  double Value(Nanos now) const;

 private:
  double OfBin(Nanos interval) const;

  const Network network_;
  Nanos bin_begin_;
  Bytes bytes_ = 0;  // of the open bin, likewise
  uint64_t blocking_calls_ = 0;
  double sum_ = 0;  // of closed bins
  uint64_t bins_ = 0;
};

}  // namespace consort::placement

#endif  // CONSORT_POLICIES_PLACEMENT_SENSITIVITY_H_
