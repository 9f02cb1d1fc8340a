// SPDX-License-Identifier: Apache-2.0
// policies/sim/random.h: SplitMix64: small, good enough, and the same everywhere.
#ifndef CONSORT_POLICIES_SIM_RANDOM_H_
#define CONSORT_POLICIES_SIM_RANDOM_H_

#include <cmath>
#include <cstdint>

#include "base/units.h"

namespace consort::sim {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  Nanos Between(Nanos low, Nanos high) {
    const auto span = static_cast<uint64_t>(high - low) + 1;
    return low + static_cast<Nanos>(Next() % span);
  }
  // Above 0, at most 1.
  double Even() { return (static_cast<double>(Next() >> 11) + 1) / 9007199254740992.0; }
  // Negative exponential with that mean.
  double Exponential(double mean) { return -mean * std::log(Even()); }

 private:
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t state_;
};

}  // namespace consort::sim

#endif  // CONSORT_POLICIES_SIM_RANDOM_H_
