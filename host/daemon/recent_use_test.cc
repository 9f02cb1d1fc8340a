// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/recent_use.h"

#include "gtest/gtest.h"

namespace consort::host {
namespace {

constexpr Nanos kStart = 1000 * kSecond;
constexpr Nanos kHalf = kSecond / 2;

TEST(RecentUse, NothingReportedIsIdle) { EXPECT_EQ(RecentUse().BusyPercent(kStart), 0u); }

TEST(RecentUse, CountsWhatRanInTheLastSecond) {
  RecentUse use;
  use.Report(kStart, 10 * kSecond);
  use.Report(kStart + kHalf, 10 * kSecond + 200 * kMillisecond);
  use.Report(kStart + 2 * kHalf, 10 * kSecond + 300 * kMillisecond);
  EXPECT_EQ(use.BusyPercent(kStart + 2 * kHalf), 30u);
}

TEST(RecentUse, IsIdleAgainWhenReportsStop) {
  RecentUse use;
  use.Report(kStart, 0);
  use.Report(kStart + kHalf, 400 * kMillisecond);
  EXPECT_EQ(use.BusyPercent(kStart + kHalf), 40u);
  EXPECT_EQ(use.BusyPercent(kStart + kHalf + kSecond), 0u);
}

TEST(RecentUse, ANewSessionBeganWithNothing) {
  RecentUse use;
  use.Report(kStart, 250 * kMillisecond);
  EXPECT_EQ(use.BusyPercent(kStart), 25u);
}

// Several streams at once, and reports that come late.
TEST(RecentUse, IsAtMostAHundredPercent) {
  RecentUse use;
  use.Report(kStart, 0);
  use.Report(kStart + kSecond, 3 * kSecond);
  EXPECT_EQ(use.BusyPercent(kStart + kSecond), 100u);
}

}  // namespace
}  // namespace consort::host
