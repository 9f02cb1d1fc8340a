// SPDX-License-Identifier: Apache-2.0
#include "policies/admission/admission.h"

#include <gtest/gtest.h>

#include "policies/admission/victims.h"

namespace consort::admission {
namespace {

const Waiter kLargeFirst[] = {{100, 1}, {10, 1}, {20, 2}, {10, 2}};

TEST(Admission, FifoWaitsForTheFirst) {
  EXPECT_EQ(NextAdmitted(Order::kFifo, kLargeFirst, 99), std::nullopt);
  EXPECT_EQ(NextAdmitted(Order::kFifo, kLargeFirst, 100), 0u);
  EXPECT_EQ(NextAdmitted(Order::kFifo, {}, 100), std::nullopt);
}

TEST(Admission, MmuTakesTheFirstThatFits) {
  EXPECT_EQ(NextAdmitted(Order::kMmu, kLargeFirst, 9), std::nullopt);
  EXPECT_EQ(NextAdmitted(Order::kMmu, kLargeFirst, 10), 1u);
  EXPECT_EQ(NextAdmitted(Order::kMmu, kLargeFirst, 100), 0u);
}

TEST(Admission, PriorityFifoWaitsForTheFirstOfTheHighestPriority) {
  EXPECT_EQ(NextAdmitted(Order::kPriorityFifo, kLargeFirst, 19), std::nullopt);
  EXPECT_EQ(NextAdmitted(Order::kPriorityFifo, kLargeFirst, 20), 2u);
}

TEST(Admission, PriorityMmuTakesTheHighestThatFits) {
  EXPECT_EQ(NextAdmitted(Order::kPriorityMmu, kLargeFirst, 10), 3u);
  EXPECT_EQ(NextAdmitted(Order::kPriorityMmu, kLargeFirst, 20), 2u);
  const Waiter low_fits[] = {{100, 5}, {10, 1}};
  EXPECT_EQ(NextAdmitted(Order::kPriorityMmu, low_fits, 10), 1u);
}

TEST(Admission, WithinTheSoftQuotaGoesFirst) {
  const Waiter waiters[] = {{10, 9, true}, {10, 1, false}};
  for (const Order order : {Order::kFifo, Order::kMmu, Order::kPriorityFifo, Order::kPriorityMmu}) {
    EXPECT_EQ(NextAdmitted(order, waiters, 10), 1u) << OrderName(order);
  }
}

TEST(Admission, NamesAreKnown) {
  for (const std::string_view name : OrderNames()) {
    ASSERT_TRUE(OrderByName(name).has_value());
    EXPECT_EQ(OrderName(*OrderByName(name)), name);
  }
  EXPECT_EQ(OrderNames().size(), 4u);
  EXPECT_EQ(OrderByName("lifo"), std::nullopt);
}

Candidate Idle(Bytes bytes, Nanos idle_for) { return {bytes, true, idle_for, 1000, false}; }
Candidate Busy(Bytes bytes, Nanos on_device_for) { return {bytes, false, 0, on_device_for, false}; }

TEST(Victims, TheLongestIdleGoFirst) {
  const Candidate candidates[] = {Idle(10, 50), Idle(10, 90), Idle(10, 70)};
  const Victims victims = ChooseVictims(candidates, {15, 0, 10, 500});
  EXPECT_TRUE(victims.enough);
  EXPECT_EQ(victims.leave, (std::vector<size_t>{1, 2}));
  EXPECT_TRUE(victims.ask.empty());
}

TEST(Victims, NobodyGoesForNothing) {
  // The second suffices alone.
  const Candidate candidates[] = {Idle(10, 90), Idle(30, 50)};
  EXPECT_EQ(ChooseVictims(candidates, {30, 0, 10, 500}).leave, (std::vector<size_t>{1}));
  // Even all of them do not suffice.
  const Victims victims = ChooseVictims(candidates, {41, 0, 10, 500});
  EXPECT_FALSE(victims.enough);
  EXPECT_TRUE(victims.leave.empty());
}

TEST(Victims, AShortPauseIsNoPhase) {
  const Candidate candidates[] = {Idle(10, 9)};
  EXPECT_FALSE(ChooseVictims(candidates, {10, 0, 10, 500}).enough);
}

TEST(Victims, OverItsSoftQuotaGoesFirst) {
  Candidate candidates[] = {Idle(10, 90), Idle(10, 20)};
  candidates[1].over_soft = true;
  EXPECT_EQ(ChooseVictims(candidates, {10, 0, 10, 500}).leave, (std::vector<size_t>{1}));
}

TEST(Victims, BusyOnesAreAskedWhenPatienceEnds) {
  const Candidate candidates[] = {Busy(10, 600), Busy(10, 900), Idle(10, 90), Busy(10, 100)};
  EXPECT_FALSE(ChooseVictims(candidates, {20, 499, 10, 500}).enough);
  const Victims victims = ChooseVictims(candidates, {20, 500, 10, 500});
  EXPECT_TRUE(victims.enough);
  EXPECT_EQ(victims.leave, (std::vector<size_t>{2}));
  EXPECT_EQ(victims.ask, (std::vector<size_t>{1}));
  // The last has only just come.
  EXPECT_FALSE(ChooseVictims(candidates, {31, 500, 10, 500}).enough);
}

}  // namespace
}  // namespace consort::admission
