// SPDX-License-Identifier: Apache-2.0
#include "host/scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <thread>

#include "host/limits.h"

namespace consort::host {
namespace {

constexpr Nanos kMs = kMillisecond;

std::unique_ptr<schedule::Policy> Tfs() { return schedule::MakePolicy("tfs", {}); }

// One stream of an application that runs alone from `begin` to `end`.
void Ran(Scheduler* scheduler, Scheduler::Id id, Nanos begin, Nanos end) {
  scheduler->Ended(scheduler->Began(id, begin), end);
  scheduler->Poll(id, end, end);
  scheduler->Finish(id, end);
}

TEST(Scheduler, IsContendedOnlyWhileTwoAreActive) {
  Scheduler scheduler(Tfs());
  const auto a = scheduler.Join("a", 1, 0);
  const auto b = scheduler.Join("b", 1, 0);
  scheduler.SetActive(a, true);
  EXPECT_FALSE(scheduler.contended());
  scheduler.SetActive(b, true);
  EXPECT_TRUE(scheduler.contended());
  scheduler.SetActive(a, false);
  EXPECT_FALSE(scheduler.contended());
  scheduler.SetActive(a, true);
  scheduler.Leave(a, 0);
  EXPECT_FALSE(scheduler.contended());
}

TEST(Scheduler, WithoutAPolicyNobodyIsEverContended) {
  Scheduler scheduler(nullptr);
  for (const char* tenant : {"a", "b", "c"}) {
    scheduler.SetActive(scheduler.Join(tenant, 1, 0), true);
  }
  EXPECT_FALSE(scheduler.contended());
}

TEST(Scheduler, TheOneAheadWaitsUntilTheOtherHasCaughtUp) {
  Scheduler scheduler(Tfs());
  const auto a = scheduler.Join("a", 1, 0);
  const auto b = scheduler.Join("b", 1, 0);
  ASSERT_TRUE(scheduler.TryStart(a, {}, 0));
  ASSERT_TRUE(scheduler.TryStart(b, {}, 0));
  scheduler.Poll(b, 20 * kMs, 20 * kMs);  // nothing of it has begun
  Ran(&scheduler, a, 0, 20 * kMs);
  ASSERT_FALSE(scheduler.TryStart(a, {}, 20 * kMs)) << "b is in flight and has had nothing";
  Ran(&scheduler, b, 20 * kMs, 40 * kMs);
  EXPECT_TRUE(scheduler.TryStart(a, {}, 40 * kMs));
}

TEST(Scheduler, AWaitingThreadIsWokenByItsTurn) {
  Scheduler scheduler(Tfs());
  const auto a = scheduler.Join("a", 1, 0);
  const auto b = scheduler.Join("b", 1, 0);
  ASSERT_TRUE(scheduler.TryStart(a, {}, 0));
  ASSERT_TRUE(scheduler.TryStart(b, {}, 0));
  scheduler.Poll(b, 20 * kMs, 20 * kMs);  // nothing of it has begun
  Ran(&scheduler, a, 0, 20 * kMs);
  ASSERT_FALSE(scheduler.TryStart(a, {}, 20 * kMs));
  std::thread waiter([&] {
    while (!scheduler.TryStart(a, {}, 20 * kMs)) scheduler.Await(a, 1000 * kSecond);
  });
  scheduler.Leave(b, 21 * kMs);
  waiter.join();
}

TEST(Scheduler, OverlappedTimeIsSplitAndAddsUp) {
  Scheduler scheduler(Tfs());
  const auto a = scheduler.Join("a", 1, 0);
  const auto b = scheduler.Join("b", 1, 0);
  ASSERT_TRUE(scheduler.TryStart(a, {}, 0));
  ASSERT_TRUE(scheduler.TryStart(b, {}, 0));
  const auto of_a = scheduler.Began(a, 0);
  const auto of_b = scheduler.Began(b, 10 * kMs);
  scheduler.Ended(of_a, 30 * kMs);
  scheduler.Poll(a, 40 * kMs, 40 * kMs);
  scheduler.Ended(of_b, 40 * kMs);
  scheduler.Poll(b, 40 * kMs, 40 * kMs);
  EXPECT_EQ(scheduler.Leave(a, 40 * kMs).device_time, 20 * kMs);
  EXPECT_EQ(scheduler.Leave(b, 40 * kMs).device_time, 20 * kMs);
}

TEST(Scheduler, WhatDoesNotMoveKeepsNobodyWaitingForEver) {
  Scheduler scheduler(Tfs());
  const auto a = scheduler.Join("a", 1, 0);
  const auto b = scheduler.Join("b", 1, 0);
  ASSERT_TRUE(scheduler.TryStart(b, {}, 0));
  ASSERT_TRUE(scheduler.TryStart(a, {}, 0));
  scheduler.Poll(b, 20 * kMs, 20 * kMs);  // nothing of it has begun
  Ran(&scheduler, a, 0, 20 * kMs);
  // b's batch waits for something that is not the device.
  EXPECT_FALSE(scheduler.TryStart(a, {}, 20 * kMs + kSchedulerStall));
  EXPECT_TRUE(scheduler.TryStart(a, {}, 20 * kMs + kSchedulerStall + 1));
}

TEST(Scheduler, CountsHowLongBatchesWaited) {
  Scheduler scheduler(Tfs());
  const auto a = scheduler.Join("a", 1, 0);
  const auto b = scheduler.Join("b", 1, 0);
  ASSERT_TRUE(scheduler.TryStart(a, {}, 0));
  ASSERT_TRUE(scheduler.TryStart(b, {}, 0));
  scheduler.Poll(b, 20 * kMs, 20 * kMs);  // nothing of it has begun
  Ran(&scheduler, a, 0, 20 * kMs);
  ASSERT_FALSE(scheduler.TryStart(a, {}, 20 * kMs));
  Ran(&scheduler, b, 20 * kMs, 45 * kMs);
  ASSERT_TRUE(scheduler.TryStart(a, {}, 50 * kMs));
  const ApplicationUsage usage = scheduler.Leave(a, 50 * kMs);
  EXPECT_EQ(usage.waited, 25 * kMs);
  EXPECT_EQ(usage.batches, 2u);
}

}  // namespace
}  // namespace consort::host
