// SPDX-License-Identifier: Apache-2.0
#include "host/session/stream_priority.h"

#include <gtest/gtest.h>

namespace consort::host {
namespace {

constexpr PriorityLevel kLevels[] = {PriorityLevel::kLow, PriorityLevel::kNormal,
                                     PriorityLevel::kHigh};

TEST(StreamPriority, ALevelHasItsBand) {
  const int wanted[3][6] = {
      {0, 0, 0, -1, -1, -1}, {-2, -2, -2, -3, -3, -3}, {-4, -4, -4, -5, -5, -5}};
  for (const PriorityLevel level : kLevels) {
    for (int asked = 0; asked >= -5; --asked) {
      EXPECT_EQ(StreamPriority(level, asked, false, 0, -5),
                wanted[static_cast<int>(level)][-asked]);
      EXPECT_EQ(StreamPriority(level, asked, true, 0, -5), wanted[static_cast<int>(level)][5]);
    }
  }
}

TEST(StreamPriority, WhateverTheRangeLevelsAndProgramsKeepTheirOrder) {
  for (int steps = 1; steps <= 12; ++steps) {
    const int greatest = -(steps - 1);
    int highest_of_lower = 1;
    for (const PriorityLevel level : kLevels) {
      int before = StreamPriority(level, 0, false, 0, greatest);
      EXPECT_LE(before, highest_of_lower) << steps;
      for (int asked = 3; asked >= greatest - 3; --asked) {
        const int got = StreamPriority(level, asked, false, 0, greatest);
        EXPECT_LE(got, before) << steps << ", asked for " << asked;
        EXPECT_GE(got, greatest);
        EXPECT_LE(got, 0);
        before = got;
      }
      if (steps >= kPriorityLevels) {
        EXPECT_LT(before, highest_of_lower);
      }
      EXPECT_EQ(StreamPriority(level, 0, true, 0, greatest), before) << steps;
      highest_of_lower = before;
    }
  }
}

TEST(StreamPriority, ADriverWithoutPrioritiesGetsItsOnlyOne) {
  for (const PriorityLevel level : kLevels) EXPECT_EQ(StreamPriority(level, -2, true, 0, 0), 0);
}

}  // namespace
}  // namespace consort::host
