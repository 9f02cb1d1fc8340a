// SPDX-License-Identifier: Apache-2.0
// What each policy says of itself, on small cases.
#include "policies/schedule/orders.h"

#include <gtest/gtest.h>

#include <optional>

#include "policies/schedule/fair_share.h"

namespace consort::schedule {
namespace {

constexpr Nanos kMs = kMillisecond;

// Starts whoever is chosen and lets it run alone for `length`.
ApplicationId RunOne(Policy* policy, Nanos length, Nanos* now) {
  const std::optional<ApplicationId> chosen = policy->Choose(*now, false);
  EXPECT_TRUE(chosen.has_value());
  policy->Start(*chosen, *now);
  *now += length;
  policy->Charge(*chosen, ServedAlone(length), *now);
  policy->Finish(*chosen, *now);
  return *chosen;
}

TEST(FirstCome, KeepsTheOrderOfArrival) {
  FirstCome policy{Options{}};
  for (const ApplicationId id : {2, 0, 1}) policy.Join({id, 0, 1}, 0);
  for (const ApplicationId id : {1, 2, 0}) policy.Wait(id, {}, 0);
  Nanos now = 0;
  for (const ApplicationId id : {1u, 2u, 0u}) EXPECT_EQ(RunOne(&policy, kMs, &now), id);
}

TEST(FirstCome, KeepsToItsBoundOfBatchesInFlightUnlessTheDeviceIsStalled) {
  Options options;
  options.batches_in_flight = 2;
  FirstCome policy{options};
  for (const ApplicationId id : {0, 1, 2}) {
    policy.Join({id, id, 1}, 0);
    policy.Wait(id, {}, 0);
  }
  policy.Start(0, 0);
  EXPECT_EQ(policy.Choose(0, false), 1u);
  policy.Start(1, 0);
  EXPECT_EQ(policy.Choose(0, false), std::nullopt);
  EXPECT_EQ(policy.Choose(0, true), 2u);
}

TEST(ShortestFirst, TakesTheUnknownThenTheShortest) {
  ShortestFirst policy{Options{}};
  const Nanos estimates[] = {5 * kMs, 1 * kMs, 0};
  for (ApplicationId id = 0; id < 3; ++id) {
    policy.Join({id, 0, 1}, 0);
    policy.Wait(id, {Phase::kKernel, estimates[id]}, 0);
  }
  Nanos now = 0;
  for (const ApplicationId id : {2u, 1u, 0u}) EXPECT_EQ(RunOne(&policy, kMs, &now), id);
}

TEST(ShortestFirst, ALongOneComesWhenItHasWaitedLong) {
  Options options;
  ShortestFirst policy{options};
  policy.Join({0, 0, 1}, 0);
  policy.Join({1, 1, 1}, 0);
  policy.Wait(0, {Phase::kKernel, 50 * kMs}, 0);
  policy.Wait(1, {Phase::kKernel, 1 * kMs}, options.patience);
  EXPECT_EQ(policy.Choose(options.patience, false), 1u);
  EXPECT_EQ(policy.Choose(options.patience + 1, false), 0u);
}

TEST(PhaseSelection, WakesWhoseePhaseIsFreeAndPrefersKernelsOtherwise) {
  Options options;
  options.batches_in_flight = 10;
  PhaseSelection policy{options};
  const Phase phases[] = {Phase::kToDevice, Phase::kToDevice, Phase::kKernel, Phase::kKernel,
                          Phase::kToHost};
  for (ApplicationId id = 0; id < 5; ++id) {
    policy.Join({id, id, 1}, 0);
    policy.Wait(id, {phases[id], kMs}, 0);
  }
  // A kernel, a copy in, a copy out beside each other; then the second kernel, then the second
  // copy.
  for (const ApplicationId id : {2u, 0u, 4u, 3u, 1u}) {
    ASSERT_EQ(policy.Choose(0, false), id);
    policy.Start(id, 0);
  }
  // The kernels are done: the next kernel has its phase to itself again.
  policy.Finish(2, 0);
  policy.Finish(3, 0);
  policy.Wait(4, {Phase::kToHost, kMs}, 0);
  policy.Wait(2, {Phase::kKernel, kMs}, 0);
  EXPECT_EQ(policy.Choose(0, false), 2u);
}

TEST(LeastAttained, ServesWhoeverHadLessOfLate) {
  LeastAttained policy{Options{}};
  policy.Join({0, 0, 1}, 0);
  policy.Join({1, 1, 1}, 0);
  policy.Charge(0, ServedAlone(4 * kMs), 0);
  policy.Charge(1, ServedAlone(3 * kMs), 0);
  policy.Wait(0, {}, 0);
  policy.Wait(1, {}, 0);
  Nanos now = 0;
  EXPECT_EQ(RunOne(&policy, 2 * kMs, &now), 1u);  // now 4 and 5
  policy.Wait(1, {}, now);
  EXPECT_EQ(policy.Choose(now, false), 0u);
}

// CGS_n = 0.8 GS_n + 0.2 CGS_(n-1), worked out by hand for two epochs of 10 ms.
TEST(LeastAttained, ForgetsByTheDocumentedFactor) {
  LeastAttained policy{Options{}};
  policy.Join({0, 0, 1}, 0);
  policy.Join({1, 1, 1}, 0);
  policy.Charge(0, ServedAlone(10 * kMs), 1 * kMs);  // epoch 0: CGS 8
  policy.Charge(1, ServedAlone(1 * kMs), 11 * kMs);  // epoch 1: CGS 0.8 beside 1.6
  policy.Wait(0, {}, 20 * kMs);
  policy.Wait(1, {}, 20 * kMs);
  EXPECT_EQ(policy.Choose(20 * kMs, false), 1u);
  policy.Charge(1, ServedAlone(Nanos{2} * kMs), 21 * kMs);  // epoch 2 open: 1.76 beside 0.32
  EXPECT_EQ(policy.Choose(21 * kMs, false), 0u);
}

TEST(Credit, WhoHasUsedItsCreditComesAfterWhoHasNot) {
  Credit policy{Options{}};
  policy.Join({0, 0, 3}, 0);
  policy.Join({1, 1, 1}, 0);
  policy.Charge(0, ServedAlone(7 * kMs), 10 * kMs);  // had 7.5 of the epoch
  policy.Charge(1, ServedAlone(7 * kMs), 10 * kMs);  // had 2.5
  policy.Wait(1, {}, 10 * kMs);
  policy.Wait(0, {}, 10 * kMs);
  EXPECT_EQ(policy.Choose(10 * kMs, false), 0u);
}

TEST(MaximumIdle, TheDeviceStaysWithOneUntilItHasLeftItIdleForTooLong) {
  Options options;
  options.idle_max = 10 * kMs;
  MaximumIdle policy{options};
  for (const ApplicationId id : {0, 1, 2}) policy.Join({id, id, 1}, 0);
  Nanos now = 0;
  for (const ApplicationId id : {1, 0, 2}) policy.Wait(id, {}, now);
  ASSERT_EQ(RunOne(&policy, kMs, &now), 1u) << "the first that came has it";
  // While it has none the others have a batch at a time; its next one comes first.
  ASSERT_EQ(policy.Choose(now, false), 0u);
  policy.Start(0, now);
  EXPECT_EQ(policy.Choose(now, false), std::nullopt) << "2 waits for 0";
  EXPECT_EQ(policy.Choose(now, true), 2u) << "but not for a device that is stalled";
  policy.Wait(1, {}, now);
  now += 2 * kMs;
  policy.Finish(0, now);
  ASSERT_EQ(RunOne(&policy, kMs, &now), 1u);
  // It comes back too late.
  now += options.idle_max;
  ASSERT_EQ(policy.Choose(now, false), 2u);
  policy.Wait(1, {}, now);
  EXPECT_EQ(policy.Choose(now, false), 2u) << "2 has it now";
  policy.Start(2, now);
  policy.Wait(2, {}, now);
  EXPECT_EQ(policy.Choose(now, false), 2u);
  policy.Leave(2, now);
  EXPECT_EQ(policy.Choose(now, false), 1u);
}

// Weights 1:1 and then 1:3, both always waiting: what each got of the second part.
void ExpectShares1And3AfterAChange(Policy* policy) {
  for (const ApplicationId id : {0, 1}) {
    policy->Join({id, id, 1}, 0);
    policy->Wait(id, {}, 0);
  }
  Nanos now = 0;
  Nanos got[2] = {};
  while (now < 4 * kSecond) {
    if (now == kSecond) policy->SetWeight(1, 3, now);
    const ApplicationId id = RunOne(policy, kMs, &now);
    if (now > 2 * kSecond) got[id] += kMs;
    policy->Wait(id, {}, now);
  }
  EXPECT_NEAR(static_cast<double>(got[1]) / static_cast<double>(got[0]), 3, 0.1);
}

TEST(Credit, AWeightMayChange) {
  Credit policy{Options{}};
  ExpectShares1And3AfterAChange(&policy);
}

TEST(FairShare, AWeightMayChange) {
  FairShare policy{Options{}};
  ExpectShares1And3AfterAChange(&policy);
}

TEST(FairShare, WhoOvershotWaitsUntilTheOthersHaveCaughtUp) {
  FairShare policy{Options{}};
  policy.Join({0, 0, 1}, 0);
  policy.Join({1, 1, 1}, 0);
  policy.Wait(0, {}, 0);
  policy.Wait(1, {}, 0);
  Nanos now = 0;
  policy.Start(0, now);
  now += 100 * kMs;  // a kernel that cannot be stopped
  policy.Charge(0, ServedAlone(100 * kMs), now);
  policy.Finish(0, now);
  policy.Wait(0, {}, now);
  int turns = 0;
  while (true) {
    const ApplicationId ran = RunOne(&policy, 10 * kMs, &now);
    if (ran == 0) break;
    policy.Wait(1, {}, now);
    ++turns;
  }
  EXPECT_EQ(turns, 10);
}

TEST(FairShare, OneThatWasIdleComesFirstButHoardsNothing) {
  Options options;
  FairShare policy{options};
  policy.Join({0, 0, 1}, 0);
  policy.Join({1, 1, 1}, 0);
  Nanos now = 0;
  for (int i = 0; i < 1000; ++i) {
    policy.Wait(0, {}, now);
    ASSERT_EQ(RunOne(&policy, kMs, &now), 0u);
  }
  policy.Wait(0, {}, now);
  policy.Wait(1, {}, now);
  // Of the second that it missed it gets no more than the memory.
  int first = 0;
  while (RunOne(&policy, kMs, &now) == 1) {
    policy.Wait(1, {}, now);
    ++first;
  }
  EXPECT_GE(first, 1);
  EXPECT_LE(first, options.memory / kMs + 1);
}

TEST(FairShare, WhatLiesBetweenPiecesOfWorkCountsForTheTimeAlone) {
  for (const FairShare::Shared shared :
       {FairShare::Shared::kDeviceTime, FairShare::Shared::kAloneTime}) {
    FairShare policy{Options{}, shared};
    policy.Join({0, 0, 1}, 0);
    policy.Join({1, 1, 1}, 0);
    policy.Wait(1, {}, 0);
    Nanos now = 0;
    for (int i = 0; i < 10; ++i, now += 100 * kMicrosecond) {
      policy.Wait(0, {}, now);
      policy.Start(0, now);
      now += 60 * kMicrosecond;
      policy.Charge(0, ServedAlone(60 * kMicrosecond), now);
      policy.Finish(0, now);
    }
    policy.Start(1, now);
    now += 650 * kMicrosecond;
    policy.Charge(1, ServedAlone(650 * kMicrosecond), now);
    policy.Finish(1, now);
    policy.Wait(0, {}, now);
    policy.Wait(1, {}, now);
    // 600 us of work and ten times the 8 us in which its program launched again.
    EXPECT_EQ(policy.Choose(now, false), shared == FairShare::Shared::kAloneTime ? 1u : 0u);
  }
}

TEST(FairShare, OneAheadMayOverlapWithinItsLeadOnly) {
  Options options;
  options.lead = 4 * kMs;
  FairShare policy{options};
  policy.Join({0, 0, 1}, 0);
  policy.Join({1, 1, 1}, 0);
  policy.Start(1, 0);  // long in flight, nothing measured yet
  policy.Charge(0, ServedAlone(1 * kMs), 0);
  policy.Wait(0, {}, 0);
  EXPECT_EQ(policy.Choose(0, false), 0u);
  policy.Charge(0, ServedAlone(4 * kMs), 0);
  EXPECT_EQ(policy.Choose(0, false), std::nullopt);
  EXPECT_EQ(policy.Choose(0, true), 0u) << "what is in flight does not move";
  policy.Charge(1, ServedAlone(4 * kMs), 0);
  EXPECT_EQ(policy.Choose(0, false), 0u);
}

TEST(FairShare, ApplicationsOfOneTenantShareItsPart) {
  FairShare policy{Options{}};
  policy.Join({0, 0, 2}, 0);
  policy.Join({1, 0, 2}, 0);
  policy.Join({2, 1, 2}, 0);
  Nanos now = 0;
  Nanos had[3] = {};
  for (const ApplicationId id : {0, 1, 2}) policy.Wait(id, {}, now);
  for (int i = 0; i < 1000; ++i) {
    const Nanos before = now;
    const ApplicationId ran = RunOne(&policy, kMs, &now);
    had[ran] += now - before;
    policy.Wait(ran, {}, now);
  }
  EXPECT_NEAR(static_cast<double>(had[0]), 250.0 * kMs, 5.0 * kMs);
  EXPECT_NEAR(static_cast<double>(had[1]), 250.0 * kMs, 5.0 * kMs);
  EXPECT_NEAR(static_cast<double>(had[2]), 500.0 * kMs, 5.0 * kMs);
}

}  // namespace
}  // namespace consort::schedule
