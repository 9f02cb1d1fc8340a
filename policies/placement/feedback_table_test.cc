// SPDX-License-Identifier: Apache-2.0
#include "policies/placement/feedback_table.h"

#include <gtest/gtest.h>

#include <limits>

namespace consort::placement {
namespace {

constexpr ProgramId kProgram = 77;

Feedback Measured(Nanos runtime, Nanos gpu_time, ModelId model = 0) {
  return Feedback{.program = kProgram, .model = model, .runtime = runtime, .gpu_time = gpu_time};
}

TEST(FeedbackTable, AProgramIsKnownFromEnoughMeasurementsUntilTheyAreOld) {
  FeedbackTable table({.half_life = 100 * kSecond, .enough = 2});
  EXPECT_FALSE(table.Knows(kProgram, 0));
  table.Record(Measured(kSecond, 0), 0);
  EXPECT_FALSE(table.Knows(kProgram, 0));
  table.Record(Measured(kSecond, 0), 0);
  EXPECT_TRUE(table.Knows(kProgram, 0));
  EXPECT_FALSE(table.Knows(kProgram, kSecond));
  table.Record(Measured(kSecond, 0), kSecond);
  EXPECT_TRUE(table.Knows(kProgram, 50 * kSecond));
  EXPECT_FALSE(table.Knows(kProgram, 100 * kSecond));
}

TEST(FeedbackTable, NewMeasurementsOutweighOldOnes) {
  FeedbackTable table({.half_life = 10 * kSecond, .enough = 1});
  for (int i = 0; i < 10; ++i) table.Record(Measured(kSecond, 0), 0);
  for (int i = 0; i < 3; ++i) table.Record(Measured(5 * kSecond, 0), 100 * kSecond);
  const Profile profile = table.Estimate(kProgram, 0, 100 * kSecond);
  EXPECT_TRUE(profile.known);
  EXPECT_GT(profile.runtime, 4900 * kMillisecond);
}

TEST(FeedbackTable, CarriesDeviceTimeOverToAnotherModelByWeight) {
  FeedbackTable table({.enough = 1});
  table.SetModel(0, {.weight = 1, .memory_bandwidth = 100e9});
  table.SetModel(1, {.weight = 4, .memory_bandwidth = 400e9});
  Feedback measured = Measured(10 * kSecond, 8 * kSecond, 0);
  measured.bandwidth = 25e9;
  table.Record(measured, 0);
  const Profile profile = table.Estimate(kProgram, 1, 0);
  EXPECT_EQ(profile.runtime, 4 * kSecond);
  EXPECT_EQ(profile.compute, kWhole / 2);
  EXPECT_EQ(profile.bandwidth, kWhole / 4);
}

TEST(FeedbackTable, WhatWasMeasuredOnAModelGoesBeforeWhatIsCarriedOver) {
  FeedbackTable table({.enough = 1});
  table.SetModel(1, {.weight = 4});
  for (int i = 0; i < 5; ++i) table.Record(Measured(10 * kSecond, 10 * kSecond, 0), 0);
  table.Record(Measured(7 * kSecond, 7 * kSecond, 1), 0);
  EXPECT_EQ(table.Estimate(kProgram, 1, 0).runtime, 7 * kSecond);
}

TEST(FeedbackTable, AnUnknownProgramIsExpectedToBeLikeTheOthers) {
  FeedbackTable table({.enough = 1});
  EXPECT_FALSE(table.Estimate(1, 0, 0).known);
  table.Record(Measured(2 * kSecond, kSecond), 0);
  table.Record(Measured(4 * kSecond, 2 * kSecond), 0);
  const Profile profile = table.Estimate(kProgram + 1, 0, 0);
  EXPECT_FALSE(profile.known);
  EXPECT_EQ(profile.runtime, 3 * kSecond);
  EXPECT_EQ(profile.compute, kWhole / 2);
}

TEST(FeedbackTable, RefusesWhatCannotBe) {
  FeedbackTable table({});
  EXPECT_FALSE(table.Record(Measured(0, 0), 0));
  EXPECT_FALSE(table.Record(Measured(kSecond, -1), 0));
  EXPECT_FALSE(table.Record(Measured(kRuntimeMax + 1, 0), 0));
  EXPECT_FALSE(table.Record(Measured(kSecond, 5 * kSecond), 0));
  EXPECT_FALSE(table.Record(Measured(kSecond, 0, kModelsMax), 0));
  Feedback endless = Measured(kSecond, 0);
  endless.bandwidth = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(table.Record(endless, 0));
  endless.bandwidth = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(table.Record(endless, 0));
  EXPECT_EQ(table.size(), 0u);
  EXPECT_TRUE(table.Record(Measured(kSecond, 0, kModelsMax - 1), 0));
  EXPECT_TRUE(table.Record(Measured(kRuntimeMax, 0), 0));
}

TEST(FeedbackTable, ForgetsTheProgramNotMeasuredForLongestAtItsBound) {
  FeedbackTable table({.enough = 1});
  for (ProgramId program = 0; program < kHistoriesMax; ++program) {
    table.Record({.program = program, .runtime = kSecond}, static_cast<Nanos>(program));
  }
  const Nanos now = kHistoriesMax;
  EXPECT_EQ(table.size(), kHistoriesMax);
  table.Record({.program = 0, .runtime = kSecond}, now);
  EXPECT_TRUE(table.Estimate(1, 0, 1).known);
  table.Record({.program = kHistoriesMax, .runtime = kSecond}, now);
  EXPECT_EQ(table.size(), kHistoriesMax);
  EXPECT_FALSE(table.Estimate(1, 0, 1).known);
  EXPECT_TRUE(table.Estimate(0, 0, now).known);
  EXPECT_TRUE(table.Estimate(kHistoriesMax, 0, now).known);
}

}  // namespace
}  // namespace consort::placement
