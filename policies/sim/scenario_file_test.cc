// SPDX-License-Identifier: Apache-2.0
#include "policies/sim/scenario_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace consort::sim {
namespace {

constexpr char kGood[] = R"(
seed = 7
stop_seconds = 100
mode = "process"
scheduler = "tfs"
batches_in_flight = 9
context_switch_us = 250
[placement]
policy = "gmin"
feedback_policy = "rtf"
enter_percent = 80
leave_percent = 20
sensitivity_max = 0.5
offload_threshold = 3
half_life_seconds = 60
enough = 4
bandwidth_measured = false
bandwidth_error = 0.25
[network]
gigabytes_a_second = 2.5
round_trip_us = 40
[[model]]
name = "large"
sms = 14
sm_speed = 1.15
memory_gigabytes_a_second = 144
copy_gigabytes_a_second = 6
copy_engines = 2
kernels_max = 16
memory_mib = 3072
[[model]]
name = "small"
[[node]]
gpus = ["large", "small"]
count = 2
[[program]]
name = "one"
cycles = 5
threads = 2
cpu_us = 10
to_device_kib = 1024
kernel_us = 1500.5
sms = 8
compute = 0.5
gigabytes_a_second = 100
to_host_kib = 1
calls = 4
memory_mib = 256
[[stream]]
program = "one"
node = 0
nodes = 2
tenant = 1
weight = 3
device = 1
gap_seconds = 0.25
count = 10
start_seconds = 2
)";

std::string ErrorOf(const std::string& text) {
  const auto scenario = ParseScenario("s.toml", text);
  return scenario.ok() ? "" : std::string(scenario.status().message());
}

TEST(ScenarioFile, ReadsEveryKey) {
  const auto read = ParseScenario("s.toml", kGood);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->seed, 7u);
  EXPECT_EQ(read->stop, 100 * kSecond);
  EXPECT_FALSE(read->packed);
  EXPECT_EQ(read->scheduler, "tfs");
  EXPECT_EQ(read->batches_in_flight, 9u);
  EXPECT_EQ(read->context_switch, 250 * kMicrosecond);
  EXPECT_EQ(read->placement.policy, "gmin");
  EXPECT_EQ(read->placement.feedback_policy, "rtf");
  EXPECT_EQ(read->placement.enter, 800'000);
  EXPECT_EQ(read->placement.leave, 200'000);
  EXPECT_EQ(read->placement.sensitivity_max, 0.5);
  EXPECT_EQ(read->placement.offload_threshold, 3u);
  EXPECT_EQ(read->placement.feedback.half_life, 60 * kSecond);
  EXPECT_EQ(read->placement.feedback.enough, 4);
  EXPECT_FALSE(read->bandwidth_measured);
  EXPECT_EQ(read->bandwidth_error, 0.25);
  EXPECT_EQ(read->network_bandwidth, 2.5e9);
  EXPECT_EQ(read->round_trip, 40 * kMicrosecond);
  ASSERT_EQ(read->models.size(), 2u);
  EXPECT_EQ(read->models[0].sms, 14);
  EXPECT_EQ(read->models[0].sm_speed, 1.15);
  EXPECT_EQ(read->models[0].memory_bandwidth, 144e9);
  EXPECT_EQ(read->models[0].copy_bandwidth, 6e9);
  EXPECT_EQ(read->models[0].copy_engines, 2u);
  EXPECT_EQ(read->models[0].kernels_max, 16u);
  EXPECT_EQ(read->models[0].memory, 3 * kGiB);
  ASSERT_EQ(read->nodes.size(), 2u);
  EXPECT_EQ(read->nodes[1], (std::vector<uint32_t>{0, 1}));
  ASSERT_EQ(read->programs.size(), 1u);
  const ProgramModel& program = read->programs[0];
  EXPECT_EQ(program.cycles, 5u);
  EXPECT_EQ(program.threads, 2u);
  EXPECT_EQ(program.cpu, 10 * kMicrosecond);
  EXPECT_EQ(program.to_device, kMiB);
  EXPECT_EQ(program.kernel, 1'500'500);
  EXPECT_EQ(program.sms, 8);
  EXPECT_EQ(program.compute, 0.5);
  EXPECT_EQ(program.bandwidth, 100e9);
  EXPECT_EQ(program.to_host, kKiB);
  EXPECT_EQ(program.calls, 4u);
  EXPECT_EQ(program.memory, 256 * kMiB);
  ASSERT_EQ(read->streams.size(), 2u);
  const StreamModel& stream = read->streams[1];
  EXPECT_EQ(stream.node, 1u);
  EXPECT_EQ(stream.tenant, 1u);
  EXPECT_EQ(stream.weight, 3u);
  EXPECT_EQ(stream.device, 1u);
  EXPECT_EQ(stream.gap_seconds, 0.25);
  EXPECT_EQ(stream.count, 10u);
  EXPECT_EQ(stream.start, 2 * kSecond);
}

TEST(ScenarioFile, SaysWhereAMistakeIs) {
  using ::testing::HasSubstr;
  EXPECT_THAT(ErrorOf("sed = 1"), HasSubstr("s.toml:1:1: unknown key sed"));
  EXPECT_THAT(ErrorOf("seed = -1"), HasSubstr("seed wants a whole number"));
  EXPECT_THAT(ErrorOf("seed = \"x\""), HasSubstr("seed wants a whole number"));
  EXPECT_THAT(ErrorOf("mode = \"both\""), HasSubstr("\"packed\" or \"process\""));
  EXPECT_THAT(ErrorOf("placement = 1"), HasSubstr("[placement]"));
  EXPECT_THAT(ErrorOf("[placement]\npolicy = 3"), HasSubstr("s.toml:2:10: policy wants text"));
  EXPECT_THAT(ErrorOf("model = 1"), HasSubstr("[[model]]"));
  EXPECT_THAT(ErrorOf("[placement]\nbandwidth_measured = 1"), HasSubstr("true or false"));
  EXPECT_THAT(ErrorOf("[[model]]\nsms = 1"), HasSubstr("needs a name"));
  EXPECT_THAT(ErrorOf("[[model]]\nname = \"a\"\n[[model]]\nname = \"a\""),
              HasSubstr("two of the name a"));
  EXPECT_THAT(ErrorOf("[[model]]\nname = \"a\"\nsms = -2"), HasSubstr("sms wants a number"));
  EXPECT_THAT(ErrorOf("[[model]]\nname = \"a\"\n[[node]]\ngpus = [\"b\"]"),
              HasSubstr("gpus wants one of a"));
  EXPECT_THAT(ErrorOf("[[node]]\ngpus = \"a\""), HasSubstr("list of names"));
  EXPECT_THAT(ErrorOf("[[node]]\ncount = 16385"), HasSubstr("at most 16384"));
  EXPECT_THAT(ErrorOf("[[stream]]\nprogram = \"p\""), HasSubstr("program wants one of"));
  EXPECT_THAT(ErrorOf("[[stream]]\ntenant = 65536"), HasSubstr("at most 65536 tenants"));
  EXPECT_THAT(ErrorOf("seed = "), HasSubstr("s.toml:1:"));
}

}  // namespace
}  // namespace consort::sim
