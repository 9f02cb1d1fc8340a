// SPDX-License-Identifier: Apache-2.0
#include "policies/placement/sensitivity.h"

#include <gtest/gtest.h>

namespace consort::placement {
namespace {

constexpr Nanos kBin = SensitivityMeter::kBin;

TEST(Sensitivity, IsTheMeanOverBinsOfNetworkTimeAndWaiting) {
  SensitivityMeter meter({.bandwidth = 1e9, .round_trip = kMillisecond}, 0);
  // Bin 1: 50 MB of the 100 MB that fit. Bin 2: 20 answers of 1 ms in 100 ms. Bin 3: nothing.
  meter.Add(50'000'000, 0, kBin / 2);
  meter.Add(0, 20, kBin + 1);
  EXPECT_DOUBLE_EQ(meter.Value(2 * kBin), (0.5 + 0.2) / 2);
  EXPECT_DOUBLE_EQ(meter.Value(3 * kBin), (0.5 + 0.2) / 3);
}

TEST(Sensitivity, IsKnownBeforeTheFirstBinIsOver) {
  SensitivityMeter meter({.bandwidth = 1e9, .round_trip = 0}, 0);
  EXPECT_EQ(meter.Value(0), 0);
  meter.Add(10'000'000, 0, kBin / 2);
  EXPECT_DOUBLE_EQ(meter.Value(kBin / 2), 0.2);
}

TEST(Sensitivity, AnOpenBinDoesNotCountOnceOthersAreOver) {
  SensitivityMeter meter({.bandwidth = 1e9, .round_trip = 0}, 0);
  meter.Add(0, 0, kBin);
  meter.Add(1'000'000'000, 0, kBin + 1);
  EXPECT_DOUBLE_EQ(meter.Value(kBin + 2), 0);
  EXPECT_DOUBLE_EQ(meter.Value(2 * kBin), 5);
}

}  // namespace
}  // namespace consort::placement
