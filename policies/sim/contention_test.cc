// SPDX-License-Identifier: Apache-2.0
#include "policies/sim/contention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "policies/sim/random.h"

namespace consort::sim {
namespace {

std::vector<double> SpeedsOf(const std::vector<Demand>& demands) {
  std::vector<double> speeds(demands.size());
  ShareGpu(demands, speeds);
  return speeds;
}

void ExpectSpeeds(const std::vector<Demand>& demands, const std::vector<double>& expected) {
  const std::vector<double> speeds = SpeedsOf(demands);
  ASSERT_EQ(speeds.size(), expected.size());
  for (size_t i = 0; i < speeds.size(); ++i) EXPECT_NEAR(speeds[i], expected[i], 1e-8) << i;
}

TEST(Contention, WhereThereIsEnoughForAllEachHasItsFullSpeed) {
  ExpectSpeeds({}, {});
  ExpectSpeeds({{1, 1}}, {1});
  ExpectSpeeds({{0.25, 0.5}, {0.75, 0.5}}, {1, 1});
}

TEST(Contention, TwoThatAreBoundByMemorySlowEachOther) {
  ExpectSpeeds({{0.2, 0.8}, {0.2, 0.8}}, {0.625, 0.625});
  ExpectSpeeds({{0.2, 1}, {0.2, 0.8}}, {0.5, 0.625});  // half of the bandwidth each
}

TEST(Contention, OneThatIsBoundByMemoryAndOneThatComputesDoNot) {
  ExpectSpeeds({{0.2, 0.9}, {0.8, 0.1}}, {1, 1});
}

TEST(Contention, WhoWantsLessThanAnEqualPartGetsAllOfIt) {
  ExpectSpeeds({{1, 0}, {1, 0}, {0.2, 0}}, {0.4, 0.4, 1});
  ExpectSpeeds({{0, 1}, {0, 0.1}}, {0.9, 1});
}

TEST(Contention, WhomMemoryHoldsBackLeavesIssueSlotsToOthers) {
  // Both at half speed for their bandwidth, with a tenth of the issue slots each.
  ExpectSpeeds({{0.2, 1}, {0.2, 1}, {1, 0}}, {0.5, 0.5, 0.8});
  // The second would get 0.6 of 0.6 by issue slots, and 0.5 of 0.8 by bandwidth; 0.375 and 0.1 of
  // the issue slots are then taken.
  ExpectSpeeds({{1, 0}, {0.6, 0.8}, {0.2, 1}}, {0.525, 0.625, 0.5});
}

// The definition, on kernels made from a seed.
TEST(Contention, EachIsAtFullSpeedOrGetsTheMostOfSomethingThatIsUsedUp) {
  Random random(5);
  const auto part = [&random] { return static_cast<double>(random.Between(0, 100)) / 100; };
  int slowed = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<Demand> demands(static_cast<size_t>(random.Between(1, 16)));
    for (Demand& demand : demands) demand = {part(), part()};
    const std::vector<double> speeds = SpeedsOf(demands);
    Demand used;
    Demand most;
    for (size_t k = 0; k < demands.size(); ++k) {
      used.sms += demands[k].sms * speeds[k];
      used.bandwidth += demands[k].bandwidth * speeds[k];
      most.sms = std::max(most.sms, demands[k].sms * speeds[k]);
      most.bandwidth = std::max(most.bandwidth, demands[k].bandwidth * speeds[k]);
    }
    constexpr double kClose = 1e-6;
    ASSERT_LE(used.sms, 1 + kClose);
    ASSERT_LE(used.bandwidth, 1 + kClose);
    for (size_t k = 0; k < demands.size(); ++k) {
      ASSERT_GT(speeds[k], 0);
      ASSERT_LE(speeds[k], 1);
      if (speeds[k] == 1) continue;
      ++slowed;
      const bool by_sms = used.sms > 1 - kClose && demands[k].sms * speeds[k] > most.sms - kClose;
      const bool by_bandwidth =
          used.bandwidth > 1 - kClose && demands[k].bandwidth * speeds[k] > most.bandwidth - kClose;
      ASSERT_TRUE(by_sms || by_bandwidth) << "kernel " << k << " of set " << i;
    }
  }
  EXPECT_GT(slowed, 5000);  // else nothing was shown
}

}  // namespace
}  // namespace consort::sim
