// SPDX-License-Identifier: Apache-2.0
#include "host/scheduler/timeline.h"

#include <gtest/gtest.h>

namespace consort::host {
namespace {

TEST(Timeline, ComesCloserToTheTruthWithEachEventThatIsNoticedSooner) {
  // The base was reached at 1000 and noticed at 1400.
  Timeline timeline;
  timeline.SetFirstBase(1400);
  // An event of 2000, noticed at 2100: the base cannot have been later than 1100.
  EXPECT_EQ(timeline.Place(1000, 1500, 2100), 2100);
  EXPECT_EQ(timeline.Place(2000, 2200, 3010), 3010);
  EXPECT_EQ(timeline.Place(3000, 3000, 4500), 4010);
}

TEST(Timeline, FollowsAClockThatRunsSlow) {
  Timeline timeline;
  timeline.SetFirstBase(0);
  // Not reached at 1050 on the host's clock, though the device counts 1000.
  EXPECT_EQ(timeline.Place(1000, 1050, 1200), 1050);
  EXPECT_EQ(timeline.Place(2000, 1900, 2200), 2050);
}

TEST(Timeline, KeepsTimesWhenTheBaseMoves) {
  Timeline timeline;
  timeline.SetFirstBase(100);
  EXPECT_EQ(timeline.Place(1000, 0, 5000), 1100);
  timeline.MoveBase(1000);
  EXPECT_EQ(timeline.Place(500, 0, 5000), 1600);
}

}  // namespace
}  // namespace consort::host
