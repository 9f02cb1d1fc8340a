// SPDX-License-Identifier: Apache-2.0
#include "host/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "host/limits.h"

namespace consort::host {
namespace {

constexpr Nanos kMs = kMillisecond;

std::unique_ptr<schedule::Policy> Make(std::string_view name) {
  std::unique_ptr<schedule::Policy> policy;
  EXPECT_TRUE(MakeSchedulerPolicy(name, &policy)) << name;
  return policy;
}

// Two tenants of weight 1, with an application each.
class SchedulerTest : public ::testing::Test {
 protected:
  // Its oldest batch, on one stream, has the device to itself from `begin` to `end`.
  void Ran(Scheduler::Id id, Nanos begin, Nanos end,
           schedule::Phase phase = schedule::Phase::kKernel) {
    const Scheduler::BatchNumber batch = ++finished_[id];
    scheduler_.Ended(scheduler_.Began(id, batch, phase, begin), end);
    scheduler_.Poll(id, end, end);
    scheduler_.Finish(id, batch, end);
  }
  // Both are in flight from `now` on; a's batch has the device for `lasts`, b's has not begun.
  void LetAGetAhead(Nanos now, Nanos lasts) {
    ASSERT_TRUE(scheduler_.TryStart(a_, {}, now));
    ASSERT_TRUE(scheduler_.TryStart(b_, {}, now));
    scheduler_.Poll(b_, now + lasts, now + lasts);
    Ran(a_, now, now + lasts);
  }
  // Both always want to have two batches in flight, of 1 ms each, from `now` for `lasts`; the
  // device runs them in the order of their starts. What each got.
  std::pair<Nanos, Nanos> Flood(Nanos now, Nanos lasts) {
    std::map<Scheduler::Id, Nanos> got;
    std::deque<Scheduler::Id> in_flight;
    const auto start = [&](Scheduler::Id id, Nanos time) {
      while (std::count(in_flight.begin(), in_flight.end(), id) < 2 &&
             scheduler_.TryStart(id, {}, time)) {
        in_flight.push_back(id);
      }
    };
    for (const Nanos end = now + lasts; now < end; now += kMs) {
      start(a_, now);
      start(b_, now);
      const Scheduler::Id runs = in_flight.front();
      Ran(runs, now, now + kMs);
      in_flight.pop_front();
      // The other one looks too, and has nothing to tell.
      scheduler_.Poll(runs == a_ ? b_ : a_, now + kMs, now + kMs);
      got[runs] += kMs;
    }
    for (const Scheduler::Id id : in_flight) scheduler_.Finish(id, ++finished_[id], now);
    return {got[a_], got[b_]};
  }
  ApplicationState StateOf(uint64_t session, Nanos now = 0) {
    for (const ApplicationState& state : scheduler_.States(now)) {
      if (state.session == session) return state;
    }
    return {};
  }

  Scheduler scheduler_{Make("tfs")};
  const Scheduler::Id a_ = scheduler_.Join("a", 1, 0, 17);
  const Scheduler::Id b_ = scheduler_.Join("b", 1, 0, 18);
  std::map<Scheduler::Id, Scheduler::BatchNumber> finished_;
};

TEST_F(SchedulerTest, IsContendedOnlyWhileTwoAreActive) {
  scheduler_.SetActive(a_, true);
  EXPECT_FALSE(scheduler_.contended());
  scheduler_.SetActive(b_, true);
  EXPECT_TRUE(scheduler_.contended());
  scheduler_.SetActive(a_, false);
  EXPECT_FALSE(scheduler_.contended());
  scheduler_.SetActive(a_, true);
  scheduler_.Leave(a_, 0);
  EXPECT_FALSE(scheduler_.contended());
}

TEST_F(SchedulerTest, WithoutAPolicyNobodyIsEverContended) {
  scheduler_.SetActive(a_, true);
  scheduler_.SetActive(b_, true);
  scheduler_.SetPolicy(kNoScheduler, nullptr, 0);
  EXPECT_FALSE(scheduler_.contended());
  scheduler_.SetPolicy("las", Make("las"), 0);
  EXPECT_TRUE(scheduler_.contended());
}

TEST_F(SchedulerTest, TheOneAheadWaitsUntilTheOtherHasCaughtUp) {
  LetAGetAhead(0, 20 * kMs);
  ASSERT_FALSE(scheduler_.TryStart(a_, {}, 20 * kMs)) << "b is in flight and has had nothing";
  Ran(b_, 20 * kMs, 40 * kMs);
  EXPECT_TRUE(scheduler_.TryStart(a_, {}, 40 * kMs));
}

// Of what it has in flight nothing is charged yet, but it is known what that will take.
TEST_F(SchedulerTest, WhatIsInFlightCountsAsFarAsItIsKnown) {
  const schedule::Batch long_one = {.alone = 20 * kMs};
  ASSERT_TRUE(scheduler_.TryStart(b_, {.alone = kMs}, 0));
  ASSERT_TRUE(scheduler_.TryStart(a_, long_one, 0));
  ASSERT_FALSE(scheduler_.TryStart(a_, long_one, 0)) << "a is 20 ms ahead of b";
  // It was wrong: what took 1 ms is charged for 1 ms, and forgotten.
  Ran(a_, 0, kMs);
  Ran(b_, kMs, 2 * kMs);
  EXPECT_TRUE(scheduler_.TryStart(a_, long_one, 2 * kMs));
}

TEST_F(SchedulerTest, WhatIsInFlightIsCountedOnce) {
  ASSERT_TRUE(scheduler_.TryStart(b_, {.alone = 10 * kMs}, 0));
  ASSERT_TRUE(scheduler_.TryStart(a_, {.alone = 10 * kMs}, 0));
  // Nine of a's ten are charged, none of b's: both will have had ten.
  scheduler_.Began(a_, 1, schedule::Phase::kKernel, 0);
  scheduler_.Poll(b_, 9 * kMs, 9 * kMs);
  scheduler_.Poll(a_, 9 * kMs, 9 * kMs);
  ASSERT_EQ(StateOf(17, 9 * kMs).usage.device_time_sum(), 9 * kMs);
  EXPECT_TRUE(scheduler_.TryStart(a_, {.alone = kMs}, 9 * kMs));
}

TEST_F(SchedulerTest, AWaitingThreadIsWokenByItsTurn) {
  LetAGetAhead(0, 20 * kMs);
  ASSERT_FALSE(scheduler_.TryStart(a_, {}, 20 * kMs));
  std::thread waiter([&] {
    while (!scheduler_.TryStart(a_, {}, 20 * kMs)) scheduler_.Await(a_, 1000 * kSecond);
  });
  scheduler_.Leave(b_, 21 * kMs);
  waiter.join();
}

TEST_F(SchedulerTest, OverlappedTimeIsSplitAndAddsUp) {
  ASSERT_TRUE(scheduler_.TryStart(a_, {}, 0));
  ASSERT_TRUE(scheduler_.TryStart(b_, {}, 0));
  const auto of_a = scheduler_.Began(a_, 1, schedule::Phase::kKernel, 0);
  const auto of_b = scheduler_.Began(b_, 1, schedule::Phase::kToHost, 10 * kMs);
  scheduler_.Ended(of_a, 30 * kMs);
  scheduler_.Poll(a_, 40 * kMs, 40 * kMs);
  scheduler_.Ended(of_b, 40 * kMs);
  scheduler_.Poll(b_, 40 * kMs, 40 * kMs);
  EXPECT_THAT(scheduler_.Leave(a_, 40 * kMs).device_time, testing::ElementsAre(0, 20 * kMs, 0, 0));
  EXPECT_THAT(scheduler_.Leave(b_, 40 * kMs).device_time, testing::ElementsAre(0, 0, 0, 20 * kMs));
}

// What has not ended is settled later, but told at once.
TEST_F(SchedulerTest, TellsOfTimeWhoseWorkHasNotEnded) {
  ASSERT_TRUE(scheduler_.TryStart(a_, {}, 0));
  const auto of_a = scheduler_.Began(a_, 1, schedule::Phase::kKernel, 0);
  scheduler_.Poll(a_, 3 * kMs, 3 * kMs);
  EXPECT_EQ(StateOf(17).usage.device_time_sum(), 0);
  EXPECT_EQ(StateOf(17, 3 * kMs).usage.device_time_sum(), 3 * kMs);
  scheduler_.Ended(of_a, 4 * kMs);
  scheduler_.Poll(a_, 4 * kMs, 4 * kMs);
  EXPECT_EQ(StateOf(17, 4 * kMs).usage.device_time_sum(), 4 * kMs);
}

TEST_F(SchedulerTest, WhatDoesNotMoveKeepsNobodyWaitingForEver) {
  LetAGetAhead(0, 20 * kMs);
  // b's batch waits for something that is not the device.
  for (Nanos waited = 0; waited <= kSchedulerStall; waited += kSchedulerUnseen) {
    EXPECT_FALSE(scheduler_.TryStart(a_, {}, 20 * kMs + waited));
  }
  EXPECT_TRUE(scheduler_.TryStart(a_, {}, 20 * kMs + kSchedulerStall + 1));
}

// The machine did something else meanwhile, and what b has in flight may have ended long ago.
TEST_F(SchedulerTest, TimeInWhichNobodyLookedIsNoStandstill) {
  LetAGetAhead(0, 20 * kMs);
  EXPECT_FALSE(scheduler_.TryStart(a_, {}, 20 * kMs));
  EXPECT_FALSE(scheduler_.TryStart(a_, {}, 20 * kMs + 3 * kSchedulerStall));
}

TEST_F(SchedulerTest, CountsHowLongBatchesWaited) {
  LetAGetAhead(0, 20 * kMs);
  ASSERT_FALSE(scheduler_.TryStart(a_, {}, 20 * kMs));
  EXPECT_TRUE(StateOf(17).waits);
  EXPECT_EQ(StateOf(18).in_flight, 1u);
  Ran(b_, 20 * kMs, 45 * kMs);
  ASSERT_TRUE(scheduler_.TryStart(a_, {}, 50 * kMs));
  EXPECT_FALSE(StateOf(17).waits);
  const ApplicationUsage usage = scheduler_.Leave(a_, 50 * kMs);
  EXPECT_EQ(usage.waited, 25 * kMs);
  EXPECT_EQ(usage.batches, 2u);
  // One not at all, one for up to 30 ms.
  EXPECT_THAT(usage.delays, testing::ElementsAre(1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0));
}

TEST_F(SchedulerTest, AWeightCountsFromTheNextTurnOn) {
  const auto [even_a, even_b] = Flood(0, kSecond);
  EXPECT_NEAR(static_cast<double>(even_b) / static_cast<double>(even_a), 1, 0.03);
  scheduler_.SetWeight("b", 3, kSecond);
  scheduler_.SetWeight("nobody", 3, kSecond);
  const auto [got_a, got_b] = Flood(kSecond, kSecond);
  EXPECT_NEAR(static_cast<double>(got_b) / static_cast<double>(got_a), 3, 0.09);
}

TEST_F(SchedulerTest, AWeightHoldsForWhoJoinsLaterWithAnOlderOne) {
  scheduler_.Leave(b_, 0);
  scheduler_.SetWeight("b", 3, 0);
  ASSERT_EQ(scheduler_.Join("b", 1, 0), b_);
  const auto [got_a, got_b] = Flood(0, kSecond);
  EXPECT_NEAR(static_cast<double>(got_b) / static_cast<double>(got_a), 3, 0.09);
}

TEST_F(SchedulerTest, AnotherPolicyLosesNoWork) {
  Nanos now = 0;
  for (const std::string_view name : schedule::PolicyNames()) {
    SCOPED_TRACE(name);
    scheduler_.SetPolicy("tfs", Make("tfs"), now);
    LetAGetAhead(now, 20 * kMs);
    now += 20 * kMs;
    ASSERT_FALSE(scheduler_.TryStart(a_, {}, now));
    scheduler_.SetPolicy(name, Make(name), now);
    Ran(b_, now, now + 20 * kMs);
    now += 20 * kMs;
    EXPECT_TRUE(scheduler_.TryStart(a_, {}, now));
    Ran(a_, now, now + kMs);
    now += kSecond;
    EXPECT_EQ(StateOf(17).in_flight + StateOf(18).in_flight, 0u);
  }
  EXPECT_EQ(StateOf(17).usage.batches, 2 * schedule::PolicyNames().size());
}

TEST_F(SchedulerTest, WhatWaitsGoesAtOnceWhereNoPolicyFollows) {
  LetAGetAhead(0, 20 * kMs);
  ASSERT_FALSE(scheduler_.TryStart(a_, {}, 20 * kMs));
  scheduler_.SetPolicy(kNoScheduler, nullptr, 21 * kMs);
  EXPECT_TRUE(scheduler_.TryStart(a_, {}, 21 * kMs));
  EXPECT_TRUE(scheduler_.TryStart(a_, {}, 21 * kMs)) << "one that looked before the change";
  Ran(b_, 20 * kMs, 30 * kMs);
  EXPECT_EQ(StateOf(17).in_flight, 2u);
  // What is in flight is known to the policy that comes next.
  scheduler_.SetPolicy("tfs", Make("tfs"), 30 * kMs);
  Ran(a_, 30 * kMs, 31 * kMs);
  Ran(a_, 31 * kMs, 32 * kMs);
  EXPECT_TRUE(scheduler_.TryStart(b_, {}, 32 * kMs));
}

TEST_F(SchedulerTest, ItsTraceGivesTheSameDecisionsOverAChangeOfPolicy) {
  scheduler_.StartTrace("tfs", Make("tfs"), 0);
  Flood(0, 200 * kMs);
  scheduler_.SetWeight("b", 4, 200 * kMs);
  Flood(200 * kMs, 200 * kMs);
  scheduler_.SetPolicy("las", Make("las"), 400 * kMs);
  Flood(400 * kMs, 200 * kMs);
  bool full = false;
  const std::string trace = scheduler_.TakeTrace(&full);
  EXPECT_FALSE(full);
  const schedule::Replay replay = schedule::ReplayTrace(trace, std::nullopt, schedule::Options());
  EXPECT_EQ(replay.error, "");
  EXPECT_GT(replay.decisions, 600u);
  EXPECT_EQ(replay.different, 0u) << "first in line " << replay.first_different;
  EXPECT_GT(schedule::ReplayTrace(trace, "fcfs", schedule::Options()).different, 0u);
}

TEST_F(SchedulerTest, ATraceThatBeginsWithApplicationsAtWorkGivesTheSameDecisions) {
  Flood(0, 200 * kMs);
  scheduler_.StartTrace("tfs", Make("tfs"), 200 * kMs);
  Flood(200 * kMs, 200 * kMs);
  const std::string trace = scheduler_.StopTrace("tfs", Make("tfs"), 400 * kMs);
  const schedule::Replay replay = schedule::ReplayTrace(trace, std::nullopt, schedule::Options());
  EXPECT_EQ(replay.error, "");
  EXPECT_GT(replay.decisions, 100u);
  EXPECT_EQ(replay.different, 0u) << "first in line " << replay.first_different;
  // Work goes on, and nothing is written down any more.
  Flood(400 * kMs, 200 * kMs);
  bool full = false;
  EXPECT_EQ(scheduler_.TakeTrace(&full), "");
  EXPECT_EQ(scheduler_.StopTrace("tfs", Make("tfs"), 600 * kMs), "");
}

TEST(Scheduler, KnowsThePoliciesAndNone) {
  std::unique_ptr<schedule::Policy> policy;
  EXPECT_TRUE(MakeSchedulerPolicy("none", &policy));
  EXPECT_EQ(policy, nullptr);
  EXPECT_FALSE(MakeSchedulerPolicy("fairest", &policy));
  EXPECT_TRUE(MakeSchedulerPolicy("ps", &policy));
  EXPECT_TRUE(policy->tells_phases_apart());
}

}  // namespace
}  // namespace consort::host
