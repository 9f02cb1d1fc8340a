// SPDX-License-Identifier: Apache-2.0
#include "vmsock/spin_budget.h"

#include "gtest/gtest.h"

namespace consort {
namespace {

TEST(SpinBudget, ComesToNothingWhereWaitsAreLong) {
  SpinBudget budget;
  EXPECT_EQ(budget.Allow(50 * kMicrosecond), 50 * kMicrosecond);
  for (int wait = 0; wait < 20; ++wait) {
    budget.Learn(50 * kMicrosecond, budget.Allow(50 * kMicrosecond), kMillisecond);
  }
  EXPECT_EQ(budget.Allow(50 * kMicrosecond), 0);
}

// Each wait would be short, but takes long for who sleeps.
TEST(SpinBudget, ComesBackThoughWhoSleepsWakesLate) {
  SpinBudget budget;
  for (int wait = 0; wait < 20; ++wait) {
    budget.Learn(20 * kMicrosecond, budget.Allow(20 * kMicrosecond), kMillisecond);
  }
  int late = 0;
  for (int wait = 0; wait < 100; ++wait) {
    const Nanos allowed = budget.Allow(20 * kMicrosecond);
    const bool slept = allowed < 2 * kMicrosecond;
    late += slept ? 1 : 0;
    budget.Learn(20 * kMicrosecond, allowed, slept ? 60 * kMicrosecond : 2 * kMicrosecond);
  }
  EXPECT_LE(late, 16);
}

TEST(SpinBudget, TriesSeldomWhereWaitsStayLong) {
  SpinBudget budget;
  Nanos spun = 0;
  for (int wait = 0; wait < 1020; ++wait) {
    const Nanos allowed = budget.Allow(20 * kMicrosecond);
    if (wait >= 20) spun += allowed;
    budget.Learn(20 * kMicrosecond, allowed, kMillisecond);
  }
  EXPECT_GT(spun, 0);
  EXPECT_LE(spun, 1000 * 20 * kMicrosecond / 15);
}

TEST(SpinBudget, ComesBackWhereTheyAreShort) {
  SpinBudget budget;
  budget.Learn(kMicrosecond, 0, kMillisecond);
  EXPECT_EQ(budget.Allow(50 * kMicrosecond), 0);
  for (int wait = 0; wait < 5; ++wait) {
    budget.Learn(50 * kMicrosecond, budget.Allow(50 * kMicrosecond), 40 * kMicrosecond);
  }
  EXPECT_EQ(budget.Allow(50 * kMicrosecond), 50 * kMicrosecond);
  EXPECT_EQ(budget.Allow(20 * kMicrosecond), 20 * kMicrosecond);
}

}  // namespace
}  // namespace consort
