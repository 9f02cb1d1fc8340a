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
