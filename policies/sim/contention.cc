// SPDX-License-Identifier: Apache-2.0
#include "policies/sim/contention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace consort::sim {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

// The speed at which so much of a resource is enough.
double SpeedAt(double level, double demand) { return demand > level ? level / demand : 1; }

// The most of one resource that any kernel may get so that all together use no more than there is,
// where no kernel may be faster than the other resource, of which each gets `other_level` at most,
// lets it be. Unbounded: there is enough for all.
double LevelOf(std::span<const Demand> demands, double Demand::*resource, double Demand::*other,
               double other_level) {
  double level = kUnbounded;
  while (true) {
    double used = 0;  // by those that want no more than `level`
    double more = 0;  // how many want more
    for (const Demand& demand : demands) {
      const double wanted = demand.*resource * SpeedAt(other_level, demand.*other);
      if (wanted <= level) {
        used += wanted;
      } else {
        ++more;
      }
    }
    if (level == kUnbounded) {
      if (used <= 1) return kUnbounded;
      level = 1 / static_cast<double>(demands.size());
      continue;
    }
    // Grows from round to round, and with it those that are content: ends within as many rounds.
    const double next = more > 0 ? (1 - used) / more : level;
    if (next <= level) return level;
    level = next;
  }
}

}  // namespace

void ShareGpu(std::span<const Demand> demands, std::span<double> speeds) {
  // Whom bandwidth holds back leaves issue slots to others, who then want more bandwidth: from
  // round to round the first level grows and the second falls, towards the one solution.
  constexpr int kRoundsMax = 64;
  constexpr double kClose = 1e-9;
  double sms = kUnbounded;
  double bandwidth = kUnbounded;
  for (int round = 0; round < kRoundsMax; ++round) {
    const double last = bandwidth;
    sms = LevelOf(demands, &Demand::sms, &Demand::bandwidth, bandwidth);
    bandwidth = LevelOf(demands, &Demand::bandwidth, &Demand::sms, sms);
    if (bandwidth == last || last - bandwidth < kClose) break;
  }
  for (size_t i = 0; i < demands.size(); ++i) {
    speeds[i] = std::min(SpeedAt(sms, demands[i].sms), SpeedAt(bandwidth, demands[i].bandwidth));
  }
}

}  // namespace consort::sim
