// SPDX-License-Identifier: Apache-2.0
// Shares of simulated devices: weights, bursts, idle tenants, hundreds of tenants.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "policies/schedule/policy.h"
#include "policies/schedule/trace.h"
#include "policies/sim/device_simulation.h"

namespace consort::sim {
namespace {

using schedule::MakePolicy;
using schedule::Phase;
using schedule::PolicyNames;

constexpr Nanos kMs = kMillisecond;
constexpr Nanos kUs = kMicrosecond;

ApplicationModel Endless(const std::string& tenant, uint32_t weight, Nanos shortest,
                         Nanos longest) {
  ApplicationModel model;
  model.tenant = tenant;
  model.weight = weight;
  model.cycle = {{Phase::kKernel, shortest, longest, 1.0}};
  return model;
}

// Device time of each tenant as part of all.
std::map<std::string, double> Shares(const Scenario& scenario, const Result& result) {
  double sum = 0;
  for (const ApplicationResult& each : result.applications)
    sum += static_cast<double>(each.device_time);
  std::map<std::string, double> shares;
  for (size_t i = 0; i < scenario.applications.size(); ++i) {
    shares[scenario.applications[i].tenant] +=
        static_cast<double>(result.applications[i].device_time) / sum;
  }
  return shares;
}

Result RunUnder(const Scenario& scenario, std::string_view policy) {
  const auto made = MakePolicy(policy, schedule::Options{});
  return Simulate(scenario, made.get());
}

TEST(FairShares, FollowWeightsWithinThreePercentWithUnequalKernels) {
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    Scenario scenario;
    scenario.seed = seed;
    scenario.duration = 4 * kSecond;
    scenario.applications = {
        Endless("one", 1, 50 * kUs, 300 * kUs), Endless("two", 2, 3 * kMs, 9 * kMs),
        Endless("four", 4, 200 * kUs, 2 * kMs), Endless("eight", 8, 10 * kUs, 5 * kMs)};
    auto shares = Shares(scenario, RunUnder(scenario, "tfs"));
    EXPECT_NEAR(shares["one"] / (1 / 15.0), 1, 0.03) << "seed " << seed;
    EXPECT_NEAR(shares["two"] / (2 / 15.0), 1, 0.03) << "seed " << seed;
    EXPECT_NEAR(shares["four"] / (4 / 15.0), 1, 0.03) << "seed " << seed;
    EXPECT_NEAR(shares["eight"] / (8 / 15.0), 1, 0.03) << "seed " << seed;
  }
}

// A kernel of 2 ms is 1.5 % of what weight 2 of 15 has in a second, and each has several in flight.
TEST(FairShares, FollowWeightsInEachSecond) {
  for (const uint32_t in_flight : {2, 4}) {
    Scenario scenario;
    scenario.batches_in_flight = in_flight;
    scenario.applications = {Endless("one", 1, kMs, kMs), Endless("two", 2, 2 * kMs, 2 * kMs),
                             Endless("four", 4, 2 * kMs, 2 * kMs),
                             Endless("eight", 8, 2 * kMs, 2 * kMs)};
    std::vector<Nanos> before(4);
    for (int second = 1; second <= 8; ++second) {
      scenario.duration = second * kSecond;
      const Result result = RunUnder(scenario, "tfs");
      for (size_t i = 0; i < before.size(); ++i) {
        const Nanos so_far = result.applications[i].device_time;
        const double part = static_cast<double>(so_far - before[i]) / kSecond;
        before[i] = so_far;
        if (second == 1) continue;  // they all begin at once
        EXPECT_NEAR(part * 15 / scenario.applications[i].weight, 1, 0.015)
            << scenario.applications[i].tenant << " in second " << second << ", " << in_flight
            << " batches in flight";
      }
    }
  }
}

// What the shares are without: the test above could not fail if the device did it by itself.
TEST(FairShares, AreNotWhatTheDeviceGivesByItself) {
  Scenario scenario;
  scenario.duration = 4 * kSecond;
  scenario.applications = {Endless("one", 1, kMs, kMs), Endless("four", 4, kMs, kMs)};
  auto shares = Shares(scenario, Simulate(scenario, nullptr));
  EXPECT_NEAR(shares["four"], 0.5, 0.01);
}

TEST(FairShares, WhatOneLeavesUnusedGoesToTheOthersByWeight) {
  Scenario scenario;
  scenario.duration = 4 * kSecond;
  scenario.applications = {Endless("one", 1, kMs, 2 * kMs), Endless("two", 2, 500 * kUs, 4 * kMs),
                           Endless("idle", 5, kMs, kMs)};
  scenario.applications[2].stop = 0;
  auto shares = Shares(scenario, RunUnder(scenario, "tfs"));
  EXPECT_NEAR(shares["one"] / (1 / 3.0), 1, 0.03);
  EXPECT_NEAR(shares["two"] / (2 / 3.0), 1, 0.03);
  EXPECT_EQ(shares["idle"], 0);
}

// It asks for a fifth of the device, and has a right to half.
TEST(FairShares, OneThatNeedsLessThanItsShareGetsAllItNeeds) {
  Scenario scenario;
  scenario.duration = 4 * kSecond;
  ApplicationModel modest = Endless("modest", 1, kMs, kMs);
  modest.think = 4 * kMs;
  scenario.applications = {modest, Endless("greedy", 1, 100 * kUs, kMs)};
  const Result result = RunUnder(scenario, "tfs");
  const std::vector<Nanos> alone = WorkAlone(scenario);
  EXPECT_GT(static_cast<double>(result.applications[0].work), 0.75 * static_cast<double>(alone[0]));
  EXPECT_GT(static_cast<double>(result.busy), 0.999 * static_cast<double>(scenario.duration));
}

// It looks at each result for a while, and has a right to half: it would get 0.4 if every pause
// cost it its turn for as long as the other's batch takes.
TEST(FairShares, PausesDoNotCostTheShare) {
  Scenario scenario;
  scenario.duration = 4 * kSecond;
  ApplicationModel pausing = Endless("pausing", 1, 2 * kMs, 4 * kMs);
  pausing.think = 100 * kUs;
  scenario.applications = {pausing, Endless("steady", 1, 2 * kMs, 4 * kMs)};
  auto shares = Shares(scenario, RunUnder(scenario, "tfs"));
  EXPECT_NEAR(shares["pausing"] / 0.5, 1, 0.03);
}

TEST(FairShares, OneThatReturnsGetsItsShareAtOnceAndNoMore) {
  Scenario scenario;
  scenario.duration = 2 * kSecond;
  ApplicationModel late = Endless("late", 1, kMs, 2 * kMs);
  late.start = kSecond;
  scenario.applications = {Endless("early", 1, kMs, 2 * kMs), late};
  const Result result = RunUnder(scenario, "tfs");
  EXPECT_NEAR(static_cast<double>(result.applications[1].device_time), 0.5 * kSecond,
              0.03 * 0.5 * kSecond);
}

// Equal alone, of unequal shape, each with half of the device. The bounds are those that
// sharing_bench is held to on a GPU.
TEST(FairShares, EightOfUnequalShapeAreSlowedAlike) {
  Scenario scenario;
  scenario.duration = 8 * kSecond;
  scenario.applications = {
      Endless("short", 1, 60 * kUs, 60 * kUs), Endless("long", 1, 5 * kMs, 5 * kMs),
      Endless("mixed", 1, 10 * kUs, 4 * kMs),  Endless("steady", 1, kMs, kMs),
      Endless("waits", 1, kMs, 2 * kMs),       Endless("thinks", 1, 2 * kMs, 2 * kMs),
      Endless("other", 1, kMs, kMs),           Endless("deep", 1, 200 * kUs, 200 * kUs)};
  for (ApplicationModel& each : scenario.applications) each.cycle[0].demand = 0.5;
  scenario.applications[4].synchronises = true;
  scenario.applications[5].think = 100 * kUs;
  const std::vector<Nanos> alone = WorkAlone(scenario);
  const auto slowdowns = [&](const Result& result) {
    std::vector<double> all;
    for (size_t i = 0; i < alone.size(); ++i)
      all.push_back(static_cast<double>(alone[i]) /
                    static_cast<double>(result.applications[i].work));
    std::sort(all.begin(), all.end());
    return all;
  };
  const Result fair = RunUnder(scenario, "tfs");
  const std::vector<double> slowed = slowdowns(fair);
  EXPECT_LE(slowed.back() / slowed.front(), 1.15);
  EXPECT_LE(slowed.back(), 5.8);
  const Metrics metrics = Measure(scenario, fair, alone);
  EXPECT_GE(metrics.jain, 0.98);
  EXPECT_GE(metrics.weighted_speedup, 1.4);
  // It could fail: in order of arrival the shortest wait for the longest.
  const std::vector<double> by_arrival = slowdowns(RunUnder(scenario, "fcfs"));
  EXPECT_GT(by_arrival.back() / by_arrival.front(), 10);
}

// 100 us every 10 ms, at most 250 us from launch to end, where a flood leaves half of the device.
TEST(FairShares, AnInteractiveTenantWaitsForNoFlood) {
  Scenario scenario;
  scenario.duration = 8 * kSecond;
  scenario.batches_in_flight = 4;
  ApplicationModel person = Endless("person", 1, 100 * kUs, 100 * kUs);
  person.think = 10 * kMs;
  scenario.applications = {person, Endless("flood", 1, 2 * kMs, 2 * kMs)};
  for (ApplicationModel& each : scenario.applications) each.cycle[0].demand = 0.5;
  const Result result = RunUnder(scenario, "tfs");
  EXPECT_GT(result.applications[0].batches, 780u);
  EXPECT_LE(result.applications[0].waited_longest, 150 * kUs);
  EXPECT_GE(static_cast<double>(result.applications[1].work),
            0.97 * static_cast<double>(WorkAlone(scenario)[1]));
  EXPECT_GT(RunUnder(scenario, "fcfs").applications[0].waited_longest, kMs);
}

TEST(FairShares, HundredsOfTenants) {
  Scenario scenario;
  scenario.duration = 20 * kSecond;
  for (int i = 0; i < 300; ++i) {
    scenario.applications.push_back(
        Endless(absl::StrCat("t", i), i % 2 == 0 ? 1 : 3, 100 * kUs, (1 + i % 5) * kMs));
  }
  const Result result = RunUnder(scenario, "tfs");
  const std::vector<Nanos> alone(scenario.applications.size(), 1);
  EXPECT_GT(Measure(scenario, result, alone).jain, 0.99);
}

// It looks at some epochs of 10 ms only, so batches of 4 ms leave their mark.
TEST(LeastAttained, ServesEqualApplicationsAboutEqually) {
  Scenario scenario;
  scenario.duration = 4 * kSecond;
  scenario.applications = {Endless("a", 1, 100 * kUs, kMs), Endless("b", 1, 3 * kMs, 5 * kMs),
                           Endless("c", 1, 2 * kMs, 2 * kMs)};
  for (const auto& [name, share] : Shares(scenario, RunUnder(scenario, "las"))) {
    EXPECT_NEAR(share * 3, 1, 0.1) << name;
  }
}

TEST(Credit, FollowsWeightsCoarsely) {
  Scenario scenario;
  scenario.duration = 4 * kSecond;
  scenario.batches_in_flight = 1;
  scenario.applications = {Endless("one", 1, kMs, kMs), Endless("three", 3, kMs, kMs)};
  schedule::Options options;
  options.batches_in_flight = 1;
  const auto policy = MakePolicy("credit", options);
  auto shares = Shares(scenario, Simulate(scenario, policy.get()));
  EXPECT_NEAR(shares["three"] / 0.75, 1, 0.1);
}

// Of two applications that copy and compute, one computes while the other copies.
TEST(PhaseSelection, OverlapsContrastingPhasesBetterThanFirstCome) {
  Scenario scenario;
  scenario.duration = 4 * kSecond;
  ApplicationModel model;
  model.synchronises = true;
  // A copy uses a small part of the device beside a kernel.
  model.cycle = {{Phase::kToDevice, kMs, kMs, 0.1},
                 {Phase::kKernel, kMs, kMs, 0.9},
                 {Phase::kToHost, kMs, kMs, 0.1}};
  for (int i = 0; i < 4; ++i) {
    model.tenant = absl::StrCat("t", i);
    scenario.applications.push_back(model);
  }
  scenario.batches_in_flight = 1;
  schedule::Options options;
  options.batches_in_flight = 2;
  const std::vector<Nanos> alone = WorkAlone(scenario);
  const auto by_phase = MakePolicy("ps", options);
  const auto by_arrival = MakePolicy("fcfs", options);
  EXPECT_GT(Measure(scenario, Simulate(scenario, by_phase.get()), alone).weighted_speedup,
            1.1 * Measure(scenario, Simulate(scenario, by_arrival.get()), alone).weighted_speedup);
}

// One computes and the other copies most of the time: who is ahead waits for nobody.
TEST(PhaseSelection, OverlapsContrastingPhasesBetterThanFairShare) {
  Scenario scenario;
  scenario.duration = 4 * kSecond;
  ApplicationModel computes;
  computes.tenant = "computes";
  computes.synchronises = true;
  computes.cycle = {{Phase::kToDevice, kMs, kMs, 0.1}, {Phase::kKernel, 8 * kMs, 8 * kMs, 0.9}};
  ApplicationModel copies = computes;
  copies.tenant = "copies";
  copies.cycle = {{Phase::kToDevice, 3 * kMs, 3 * kMs, 0.1},
                  {Phase::kKernel, kMs, kMs, 0.9},
                  {Phase::kToHost, 3 * kMs, 3 * kMs, 0.1}};
  copies.think = 3 * kMs;
  scenario.applications = {computes, copies};
  const std::vector<Nanos> alone = WorkAlone(scenario);
  const auto speedup = [&](std::string_view policy) {
    return Measure(scenario, RunUnder(scenario, policy), alone).weighted_speedup;
  };
  EXPECT_GT(speedup("ps"), 1.05 * speedup("tfs"));
}

class EveryPolicy : public ::testing::TestWithParam<std::string_view> {};

TEST_P(EveryPolicy, IsWorkConservingAndStarvesNobody) {
  Scenario scenario;
  scenario.duration = 5 * kSecond;
  scenario.applications = {Endless("short", 1, 10 * kUs, 50 * kUs),
                           Endless("long", 1, 20 * kMs, 40 * kMs),
                           Endless("heavy", 8, kMs, 3 * kMs)};
  ApplicationModel copies = Endless("copies", 2, kMs, kMs);
  copies.cycle = {{Phase::kToDevice, kMs, 2 * kMs, 0.3}, {Phase::kToHost, kMs, kMs, 0.3}};
  copies.think = kMs;
  scenario.applications.push_back(copies);
  const Result result = RunUnder(scenario, GetParam());
  EXPECT_EQ(result.idle_with_waiting, 0);
  for (const ApplicationResult& each : result.applications) {
    EXPECT_GT(each.batches, 5u);
    EXPECT_LT(each.waited_longest, kSecond);
  }
}

TEST_P(EveryPolicy, RepeatsItselfExactly) {
  Scenario scenario;
  scenario.duration = kSecond;
  scenario.seed = 77;
  scenario.applications = {Endless("a", 1, 10 * kUs, 5 * kMs), Endless("b", 3, 10 * kUs, 5 * kMs)};
  const Result first = RunUnder(scenario, GetParam());
  const Result second = RunUnder(scenario, GetParam());
  for (size_t i = 0; i < first.applications.size(); ++i) {
    EXPECT_EQ(first.applications[i].device_time, second.applications[i].device_time);
    EXPECT_EQ(first.applications[i].batches, second.applications[i].batches);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy, ::testing::ValuesIn(PolicyNames()),
                         [](const auto& info) { return std::string(info.param); });

// A trace of the simulator is as good as one of a worker: policies do not know where they are.
TEST(SimulatedTrace, GivesTheSameDecisionsAgain) {
  for (const std::string_view name : PolicyNames()) {
    SCOPED_TRACE(name);
    Scenario scenario;
    scenario.applications = {Endless("one", 1, 50 * kUs, 300 * kUs),
                             Endless("two", 2, 3 * kMs, 9 * kMs),
                             Endless("one", 1, 200 * kUs, 2 * kMs)};
    schedule::TraceLog log(64 << 20);
    const auto policy = schedule::Record(name, MakePolicy(name, schedule::Options()), &log);
    Simulate(scenario, policy.get());
    const schedule::Replay replay =
        schedule::ReplayTrace(log.Take(), std::nullopt, schedule::Options());
    EXPECT_EQ(replay.error, "");
    EXPECT_GT(replay.decisions, 500u);
    EXPECT_EQ(replay.different, 0u) << "first in line " << replay.first_different;
  }
}

}  // namespace
}  // namespace consort::sim
