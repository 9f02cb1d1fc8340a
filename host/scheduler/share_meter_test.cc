// SPDX-License-Identifier: Apache-2.0
#include "host/scheduler/share_meter.h"

#include <gtest/gtest.h>

#include <map>

namespace consort::host {
namespace {

std::map<ShareMeter::Owner, Nanos> Advance(ShareMeter* meter, Nanos horizon) {
  ShareMeter::Charges charges;
  meter->Advance(horizon, &charges);
  std::map<ShareMeter::Owner, Nanos> sums;
  for (const auto& [owner, nanos] : charges) sums[owner] += nanos;
  return sums;
}

using Sums = std::map<ShareMeter::Owner, Nanos>;

TEST(ShareMeter, SplitsTimeThatOverlapsEvenly) {
  ShareMeter meter;
  meter.End(meter.Begin(1, 100), 500);
  meter.End(meter.Begin(2, 300), 600);
  EXPECT_EQ(Advance(&meter, 1000), (Sums{{1, 300}, {2, 200}}));
  EXPECT_EQ(Advance(&meter, 2000), Sums{});
}

TEST(ShareMeter, ChargesWhatStillRunsUpToTheHorizonOnly) {
  ShareMeter meter;
  const auto interval = meter.Begin(1, 100);
  EXPECT_EQ(Advance(&meter, 300), (Sums{{1, 200}}));
  EXPECT_EQ(Advance(&meter, 300), Sums{});
  meter.End(interval, 350);
  EXPECT_EQ(Advance(&meter, 1000), (Sums{{1, 50}}));
}

TEST(ShareMeter, DoesNotMindTheOrderInWhichItIsTold) {
  ShareMeter meter;
  const auto long_one = meter.Begin(1, 0);
  const auto second = meter.Begin(2, 600);
  const auto first = meter.Begin(2, 200);
  meter.End(second, 800);
  meter.End(first, 400);
  meter.End(long_one, 1000);
  EXPECT_EQ(Advance(&meter, 1000), (Sums{{1, 800}, {2, 200}}));
}

TEST(ShareMeter, TwoStreamsOfOneOwnerAreTwoShares) {
  ShareMeter meter;
  meter.Begin(1, 0);
  meter.Begin(1, 0);
  meter.Begin(2, 0);
  EXPECT_EQ(Advance(&meter, 300), (Sums{{1, 200}, {2, 100}}));
}

TEST(ShareMeter, WhatIsSlowedMoreByOthersPaysLess) {
  ShareMeter meter;
  const auto full = meter.Begin(1, 0);
  const auto half = meter.Begin(2, 0, ShareMeter::kFullSpeed / 2);
  EXPECT_EQ(Advance(&meter, 300), (Sums{{1, 200}, {2, 100}}));
  meter.End(full, 600);
  // What runs alone pays for all of it, however slow.
  meter.End(half, 1000);
  EXPECT_EQ(Advance(&meter, 1000), (Sums{{1, 200}, {2, 500}}));
  meter.Begin(3, 1000);
  EXPECT_EQ(Advance(&meter, 1100), (Sums{{3, 100}}));
}

TEST(ShareMeter, WaitsForTheEndThatTellsTheSpeed) {
  ShareMeter meter;
  const auto first = meter.Begin(1, 0);
  const auto second = meter.Begin(2, 0);
  ShareMeter::Charges charges;
  meter.Advance(300, &charges, 1000);
  EXPECT_TRUE(charges.empty());
  meter.End(first, 300, ShareMeter::kFullSpeed / 2);
  meter.End(second, 300, ShareMeter::kFullSpeed / 4);
  meter.Advance(400, &charges, 1000);
  EXPECT_EQ(charges, (ShareMeter::Charges{{1, 200}, {2, 100}}));
}

TEST(ShareMeter, WaitsNoLongerThanItsPatience) {
  ShareMeter meter;
  const auto interval = meter.Begin(1, 0);
  ShareMeter::Charges charges;
  meter.Advance(1500, &charges, 1000);
  EXPECT_EQ(charges, (ShareMeter::Charges{{1, 500}}));
  charges.clear();
  meter.End(interval, 1500, ShareMeter::kFullSpeed / 4);
  meter.Advance(1500, &charges, 1000);
  EXPECT_EQ(charges, (ShareMeter::Charges{{1, 1000}}));
}

TEST(ShareMeter, WhatIsForgottenIsNotWaitedFor) {
  ShareMeter meter;
  meter.Begin(1, 0);
  meter.End(meter.Begin(2, 0), 100);
  meter.Forget(1);
  ShareMeter::Charges charges;
  meter.Advance(100, &charges, 1000);
  EXPECT_EQ(charges, (ShareMeter::Charges{{2, 100}}));
}

TEST(ShareMeter, TheSpeedOfWhatIsForgottenCountsNoMore) {
  ShareMeter meter;
  meter.Begin(1, 0, ShareMeter::kFullSpeed / 8);
  meter.Begin(2, 0);
  meter.Forget(2);
  EXPECT_EQ(Advance(&meter, 100), (Sums{{1, 100}}));
}

TEST(ShareMeter, WhatIsToldTooLateCountsFromTheHorizon) {
  ShareMeter meter;
  EXPECT_EQ(Advance(&meter, 1000), Sums{});
  const auto interval = meter.Begin(1, 500);
  meter.End(interval, 900);
  EXPECT_EQ(Advance(&meter, 2000), Sums{});
  meter.End(meter.Begin(1, 1500), 2500);
  EXPECT_EQ(Advance(&meter, 3000), (Sums{{1, 500}}));
}

TEST(ShareMeter, ForgetsWhoLeaves) {
  ShareMeter meter;
  const auto gone = meter.Begin(1, 0);
  meter.Begin(2, 0);
  EXPECT_EQ(Advance(&meter, 100), (Sums{{1, 50}, {2, 50}}));
  meter.Begin(1, 150);
  meter.Forget(1);
  meter.End(gone, 160);
  EXPECT_EQ(Advance(&meter, 300), (Sums{{2, 200}}));
}

// Charges add up to the time in which anything ran, to the nanosecond of each interval.
TEST(ShareMeter, AddsUpToTheBusyTime) {
  ShareMeter meter;
  Nanos sum = 0;
  for (Nanos t = 0; t < 3000; t += 7) meter.End(meter.Begin(t % 5, t), t + 31);
  for (Nanos horizon = 11; horizon < 4000; horizon += 11) {
    for (const auto& [owner, nanos] : Advance(&meter, horizon)) sum += nanos;
  }
  EXPECT_NEAR(static_cast<double>(sum), 2996 + 31, 430);
}

}  // namespace
}  // namespace consort::host
