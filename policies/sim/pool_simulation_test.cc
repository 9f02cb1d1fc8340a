// SPDX-License-Identifier: Apache-2.0
#include "policies/sim/pool_simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "policies/placement/trace.h"

namespace consort::sim {
namespace {

PoolScenario TwoNodes() {
  PoolScenario scenario;
  scenario.models = {{.name = "large",
                      .sms = 14,
                      .memory_bandwidth = 144e9,
                      .copy_engines = 2,
                      .memory = 3 * kGiB},
                     {.name = "small", .sms = 4, .memory_bandwidth = 42e9, .memory = kGiB}};
  scenario.nodes = {{0, 1}, {0, 1}};
  scenario.programs = {{.name = "compute",
                        .cycles = 20,
                        .cpu = 2 * kMillisecond,
                        .to_device = kMiB,
                        .kernel = 20 * kMillisecond,
                        .sms = 14,
                        .bandwidth = 10e9,
                        .to_host = kMiB,
                        .memory = 300 * kMiB},
                       {.name = "memory",
                        .cycles = 20,
                        .cpu = 5 * kMillisecond,
                        .to_device = 8 * kMiB,
                        .kernel = 10 * kMillisecond,
                        .sms = 14,
                        .compute = 0.3,
                        .bandwidth = 130e9,
                        .to_host = 8 * kMiB,
                        .memory = 200 * kMiB}};
  scenario.streams = {{.program = 0, .node = 0, .tenant = 0, .gap_seconds = 0.5, .count = 60},
                      {.program = 1, .node = 1, .tenant = 1, .gap_seconds = 0.4, .count = 60}};
  scenario.placement.policy = "gwtmin";
  scenario.placement.feedback_policy = "mbf";
  return scenario;
}

PoolResult MustSimulate(const PoolScenario& scenario,
                        placement::MapperRecorder* recorder = nullptr) {
  std::string error;
  PoolResult result = SimulatePool(scenario, recorder, &error);
  EXPECT_EQ(error, "");
  return result;
}

double MeanTurnaround(const PoolResult& result) {
  double sum = 0;
  for (const auto& each : result.applications)
    sum += static_cast<double>(each.ended - each.arrived);
  return sum / static_cast<double>(result.applications.size()) / kSecond;
}

TEST(KernelModel, FewerSmsAndLessBandwidthTakeLonger) {
  const PoolScenario scenario = TwoNodes();
  const auto& [large, small] = std::pair(scenario.models[0], scenario.models[1]);
  const KernelOnModel compute = KernelOn(scenario, scenario.programs[0], large);
  EXPECT_DOUBLE_EQ(compute.duration, 20e6);
  EXPECT_DOUBLE_EQ(compute.demand.sms, 1);
  EXPECT_DOUBLE_EQ(KernelOn(scenario, scenario.programs[0], small).duration, 20e6 * 14 / 4);
  const KernelOnModel memory = KernelOn(scenario, scenario.programs[1], small);
  EXPECT_DOUBLE_EQ(memory.duration, 10e6 * 130 / 42);
  EXPECT_DOUBLE_EQ(memory.demand.bandwidth, 1);
  EXPECT_LT(memory.demand.sms, 0.4);
}

TEST(PoolSimulation, OneApplicationAloneTakesItsTimeAlone) {
  for (const bool packed : {true, false}) {
    PoolScenario scenario = TwoNodes();
    scenario.packed = packed;
    scenario.streams = {{.program = 0, .count = 1}};
    const PoolResult result = MustSimulate(scenario);
    ASSERT_EQ(result.applications.size(), 1u);
    const ApplicationRecord& only = result.applications[0];
    EXPECT_EQ(only.gid, 1u);
    EXPECT_NEAR(static_cast<double>(only.ended - only.arrived),
                static_cast<double>(TimeAlone(scenario, scenario.programs[0], scenario.models[0])),
                100);
  }
}

TEST(PoolSimulation, ARemoteGpuCostsRoundTripsAndTheNetwork) {
  PoolScenario scenario = TwoNodes();
  scenario.nodes = {{}, {0}};
  scenario.streams = {{.program = 1, .node = 0, .count = 1}};
  scenario.network_bandwidth = 1e9;
  const PoolResult result = MustSimulate(scenario);
  ASSERT_EQ(result.applications.size(), 1u);
  EXPECT_EQ(result.remote, 1u);
  const double bytes = 20 * 16.0 * kMiB;
  const double more = bytes / 1e9 - bytes / 6e9 + 20 * 3 * 100e-6;
  const ApplicationRecord& only = result.applications[0];
  EXPECT_NEAR(
      static_cast<double>(only.ended - only.arrived) / kSecond,
      static_cast<double>(TimeAlone(scenario, scenario.programs[1], scenario.models[0])) / kSecond +
          more,
      1e-6);
}

TEST(PoolSimulation, ThreadsOfAnApplicationWorkBesideEachOther) {
  PoolScenario scenario = TwoNodes();
  scenario.streams = {{.program = 0, .count = 1}};
  ProgramModel& program = scenario.programs[0];
  program = {.name = "threads", .cycles = 5, .threads = 2, .cpu = 10 * kMillisecond};
  program.kernel = 10 * kMillisecond;
  const auto time = [&scenario] {
    const PoolResult result = MustSimulate(scenario);
    return static_cast<double>(result.applications.at(0).ended) -
           static_cast<double>(result.applications.at(0).arrived);
  };
  // Kernels that need less than half of the device are not in each other's way: three cycles of one
  // thread, two of the other.
  program.sms = 7;
  EXPECT_NEAR(time(), 3 * 20e6, 10);
  EXPECT_NEAR(time(), static_cast<double>(TimeAlone(scenario, program, scenario.models[0])), 10);
  // Those that fill it are, while both threads have one: two at half speed, two again, then one.
  program.sms = 14;
  EXPECT_NEAR(time(), (30 + 30 + 20) * 1e6, 10);
  // More threads than cycles: one cycle each.
  program.sms = 1;
  program.threads = kThreadsMax;
  EXPECT_NEAR(time(), 20e6, 10);
}

// What the mapper was told of bandwidth, by program and model.
class BandwidthsTold final : public placement::MapperRecorder {
 public:
  void Begin(const placement::MapperOptions&) override {}
  void GpuAdded(const placement::Gpu&) override {}
  void GpuGone(placement::Gid) override {}
  void LoadSet(placement::Gid, const placement::Load&) override {}
  void WeightSet(placement::Gid, double) override {}
  void Recorded(const placement::Feedback& feedback, Nanos) override {
    told[{feedback.program, feedback.model}].insert(feedback.bandwidth);
  }
  void Placed(const placement::Application&, Nanos, const placement::Decision&) override {}
  void Bound(const placement::Application&, placement::Gid, Nanos) override {}
  void Unbound(placement::ApplicationId) override {}

  std::map<std::pair<placement::ProgramId, placement::ModelId>, std::set<double>> told;
};

TEST(PoolSimulation, BandwidthIsMeasuredWithTheErrorThatIsGivenOrNotAtAll) {
  PoolScenario scenario = TwoNodes();
  scenario.placement.policy = "grr";  // each program on each model
  scenario.placement.feedback_policy = "";
  BandwidthsTold right;
  MustSimulate(scenario, &right);
  ASSERT_EQ(right.told.size(), 4u);
  const auto of = [](const BandwidthsTold& all, placement::ProgramId program) {
    const auto& told = all.told.at({program, 0});
    EXPECT_EQ(told.size(), 1u);  // always the same
    return *told.begin();
  };
  EXPECT_NEAR(of(right, 0), 10e9, 1);
  EXPECT_NEAR(of(right, 1), 130e9, 1);
  // As much as the model has: bound by it.
  EXPECT_NEAR(*right.told.at({1, 1}).begin(), 42e9, 1);

  scenario.bandwidth_error = 0.5;
  double least = 1;
  double most = 1;
  for (scenario.seed = 1; scenario.seed <= 20; ++scenario.seed) {
    BandwidthsTold wrong;
    MustSimulate(scenario, &wrong);
    for (const placement::ProgramId program : {0, 1}) {
      const double part = of(wrong, program) / of(right, program);
      least = std::min(least, part);
      most = std::max(most, part);
    }
  }
  EXPECT_GE(least, 0.5);
  EXPECT_LT(least, 0.6);
  EXPECT_LE(most, 1.5);
  EXPECT_GT(most, 1.4);

  scenario.bandwidth_measured = false;
  BandwidthsTold none;
  MustSimulate(scenario, &none);
  EXPECT_EQ(of(none, 1), 0);
}

// Two GPUs; who is bound by memory and who computes arrive in turn. By the number of applications,
// or by the time of kernels, one GPU is as good as the other.
TEST(PoolSimulation, MbfKeepsThoseApartThatAreBoundByMemoryWhereItIsMeasured) {
  PoolScenario scenario = TwoNodes();
  scenario.nodes = {{0, 0}};
  for (ProgramModel& program : scenario.programs) {
    program.cpu = 0;
    program.kernel = 20 * kMillisecond;
    program.to_device = program.to_host = 0;
    program.cycles = 50;
  }
  scenario.programs[1].compute = 0.2;
  scenario.streams[1].node = 0;
  for (StreamModel& stream : scenario.streams) {
    stream.gap_seconds = 0.9;
    stream.count = 400;
  }
  const double measured = MeanTurnaround(MustSimulate(scenario));
  scenario.bandwidth_measured = false;
  const double unmeasured = MeanTurnaround(MustSimulate(scenario));
  EXPECT_GT(unmeasured, 1.1 * measured);
}

TEST(PoolSimulation, EverythingThatArrivesEndsAndTheGapsHaveTheirMean) {
  PoolScenario scenario = TwoNodes();
  scenario.streams[0].count = 2000;
  scenario.streams[1].count = 1000;
  const PoolResult result = MustSimulate(scenario);
  EXPECT_EQ(result.applications.size(), 3000u);
  EXPECT_EQ(result.never_placed, 0u);
  Nanos last = 0;
  for (const ApplicationRecord& each : result.applications) {
    EXPECT_GE(each.placed, each.arrived);
    EXPECT_GT(each.ended, each.placed);
    if (each.stream == 0) last = std::max(last, each.arrived);
  }
  EXPECT_NEAR(static_cast<double>(last) / kSecond, 2000 * 0.5, 100);
}

TEST(PoolSimulation, WhatNoGpuCanTakeIsSaid) {
  PoolScenario scenario = TwoNodes();
  scenario.programs[0].memory = 4 * kGiB;
  const PoolResult result = MustSimulate(scenario);
  EXPECT_EQ(result.never_placed, 60u);
  EXPECT_EQ(result.applications.size(), 60u);
}

TEST(PoolSimulation, MemoryOfAGpuIsNeverPromisedTwice) {
  PoolScenario scenario = TwoNodes();
  scenario.streams[0].gap_seconds = scenario.streams[1].gap_seconds = 0.01;
  const PoolResult result = MustSimulate(scenario);
  EXPECT_EQ(result.applications.size(), 120u);
  bool waited = false;
  for (placement::Gid gid = 1; gid <= 4; ++gid) {
    std::vector<std::pair<Nanos, int64_t>> changes;
    for (const ApplicationRecord& each : result.applications) {
      waited |= each.placed > each.arrived;
      if (each.gid != gid) continue;
      const auto need =
          static_cast<int64_t>(scenario.programs[scenario.streams[each.stream].program].memory);
      changes.emplace_back(each.placed, need);
      changes.emplace_back(each.ended, -need);
    }
    std::sort(changes.begin(), changes.end());  // at one moment ends come first
    int64_t used = 0;
    for (const auto& [time, change] : changes) {
      used += change;
      EXPECT_LE(used, static_cast<int64_t>(scenario.models[(gid - 1) % 2].memory));
    }
  }
  EXPECT_TRUE(waited);  // else nothing was shown
}

TEST(PoolSimulation, ArrivalsDoNotDependOnDecisions) {
  PoolScenario scenario = TwoNodes();
  const auto arrivals = [&](const char* policy) {
    scenario.placement.policy = policy;
    scenario.placement.feedback_policy.clear();
    std::vector<std::pair<uint32_t, Nanos>> all;
    for (const ApplicationRecord& each : MustSimulate(scenario).applications) {
      all.emplace_back(each.stream, each.arrived);
    }
    std::sort(all.begin(), all.end());
    return all;
  };
  EXPECT_EQ(arrivals("static"), arrivals("rtf"));
}

TEST(PoolSimulation, PackingIsFasterThanAContextAnApplication) {
  PoolScenario scenario = TwoNodes();
  const double packed = MeanTurnaround(MustSimulate(scenario));
  scenario.packed = false;
  EXPECT_GT(MeanTurnaround(MustSimulate(scenario)), 1.2 * packed);
}

TEST(PoolSimulation, TheArbiterComesToFeedback) {
  const PoolResult result = MustSimulate(TwoNodes());
  EXPECT_GT(result.by_feedback, 60u);
  EXPECT_LT(result.by_feedback, 120u);
}

TEST(PoolSimulation, ASchedulerDividesTheGpuAmongTenants) {
  PoolScenario scenario = TwoNodes();
  scenario.nodes = {{0}};
  scenario.scheduler = "tfs";
  for (StreamModel& stream : scenario.streams) {
    stream.program = 0;
    stream.node = 0;
    stream.gap_seconds = 0;
    stream.count = 4;
  }
  scenario.streams[1].weight = 3;
  const PoolResult result = MustSimulate(scenario);
  EXPECT_EQ(result.applications.size(), 8u);
  // Who weighs more is done first.
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(result.applications[i].stream, 1u);
}

TEST(PoolSimulation, StopsWhenToldAndCountsWhatIsUnderWay) {
  PoolScenario scenario = TwoNodes();
  scenario.nodes = {{0}};
  scenario.programs[0].cpu = 0;
  scenario.streams = {{.program = 0, .tenant = 0, .gap_seconds = 0, .count = 2},
                      {.program = 0, .tenant = 1, .gap_seconds = 0, .count = 2}};
  scenario.stop = 500 * kMillisecond;
  const PoolResult result = MustSimulate(scenario);
  EXPECT_TRUE(result.applications.empty());
  EXPECT_EQ(result.end, scenario.stop);
  EXPECT_NEAR(result.busy_seconds[0], 0.5, 0.01);
  EXPECT_NEAR(result.tenant_seconds[0] + result.tenant_seconds[1], result.busy_seconds[0], 1e-6);
}

TEST(PoolSimulation, RefusesWhatMakesNoSense) {
  const auto error_of = [](auto change) {
    PoolScenario scenario = TwoNodes();
    change(scenario);
    std::string error;
    SimulatePool(scenario, nullptr, &error);
    return error;
  };
  EXPECT_EQ(error_of([](PoolScenario&) {}), "");
  EXPECT_NE(error_of([](PoolScenario& s) { s.models.clear(); }), "");
  EXPECT_NE(error_of([](PoolScenario& s) { s.models[0].sms = 0; }), "");
  EXPECT_NE(error_of([](PoolScenario& s) { s.programs[0].cycles = 0; }), "");
  EXPECT_NE(error_of([](PoolScenario& s) { s.programs[0].threads = 0; }), "");
  EXPECT_EQ(error_of([](PoolScenario& s) { s.programs[0].threads = kThreadsMax; }), "");
  EXPECT_NE(error_of([](PoolScenario& s) { s.programs[0].threads = kThreadsMax + 1; }), "");
  EXPECT_EQ(error_of([](PoolScenario& s) { s.bandwidth_error = 1; }), "");
  EXPECT_NE(error_of([](PoolScenario& s) { s.bandwidth_error = 1.01; }), "");
  EXPECT_NE(error_of([](PoolScenario& s) { s.batches_in_flight = 0; }), "");
  EXPECT_NE(error_of([](PoolScenario& s) { s.programs[0] = {.name = "none"}; }), "");
  EXPECT_NE(error_of([](PoolScenario& s) { s.streams[0].program = 7; }), "");
  EXPECT_NE(error_of([](PoolScenario& s) { s.scheduler = "nosuch"; }), "");
  EXPECT_NE(error_of([](PoolScenario& s) { s.placement.policy = "nosuch"; }), "");
  EXPECT_NE(error_of([](PoolScenario& s) { s.network_bandwidth = 0; }), "");
}

class UnderEveryPolicy : public ::testing::TestWithParam<std::string_view> {};

TEST_P(UnderEveryPolicy, ATraceOfTheSimulatorReplays) {
  PoolScenario scenario = TwoNodes();
  scenario.placement.policy = std::string(GetParam());
  std::vector<std::string> lines;
  placement::TraceWriter writer([&](std::string_view line) { lines.emplace_back(line); });
  const PoolResult result = MustSimulate(scenario, &writer);
  placement::Replay replay;
  for (const std::string& line : lines) {
    ASSERT_EQ(replay.Line(line), placement::Replay::Result::kDone) << line;
  }
  EXPECT_GE(replay.decisions(), result.decisions);
}

TEST_P(UnderEveryPolicy, RepeatsItselfExactly) {
  PoolScenario scenario = TwoNodes();
  scenario.placement.policy = std::string(GetParam());
  const PoolResult one = MustSimulate(scenario);
  const PoolResult other = MustSimulate(scenario);
  ASSERT_EQ(one.applications.size(), other.applications.size());
  for (size_t i = 0; i < one.applications.size(); ++i) {
    ASSERT_EQ(one.applications[i].gid, other.applications[i].gid);
    ASSERT_EQ(one.applications[i].ended, other.applications[i].ended);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, UnderEveryPolicy, ::testing::ValuesIn(placement::PolicyNames()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace consort::sim
