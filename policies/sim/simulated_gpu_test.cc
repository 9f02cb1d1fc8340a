// SPDX-License-Identifier: Apache-2.0
// What runs beside what on a simulated GPU, and how fast.
#include "policies/sim/simulated_gpu.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

namespace consort::sim {
namespace {

using schedule::Phase;
using Guest = SimulatedGpu::Guest;

constexpr double kMillisecondNanos = 1e6;

SimulatedGpu::Work Kernel(double ms, double sms, double bandwidth = 0) {
  return {.phase = Phase::kKernel, .length = ms * kMillisecondNanos, .demand = {sms, bandwidth}};
}
SimulatedGpu::Work Copy(double ms, Phase phase = Phase::kToDevice) {
  return {.phase = phase, .length = ms * kMillisecondNanos};
}

// Submits one piece of each at time 0; when each is over, in milliseconds.
std::map<Guest, double> EndsOf(SimulatedGpu* gpu, std::vector<SimulatedGpu::Work> works) {
  for (SimulatedGpu::Work& work : works) {
    const Guest guest = gpu->Join(0, 1, 0);
    work.thread = guest;
    gpu->Submit(guest, work, 0);
  }
  std::map<Guest, double> ends;
  while (gpu->NextEnd() != SimulatedGpu::kNever) {
    const Nanos now = gpu->NextEnd();
    ends[gpu->Finish(now)] = static_cast<double>(now) / kMillisecondNanos;
    gpu->Continue(now);
  }
  return ends;
}

SimulatedGpu Packed(uint32_t copy_engines = 2) {
  return SimulatedGpu({.packed = true, .copy_engines = copy_engines}, nullptr);
}

TEST(SimulatedGpu, KernelsThatFitRunBesideEachOther) {
  SimulatedGpu gpu = Packed();
  const auto ends = EndsOf(&gpu, {Kernel(10, 0.5), Kernel(6, 0.5)});
  EXPECT_DOUBLE_EQ(ends.at(0), 10);
  EXPECT_DOUBLE_EQ(ends.at(1), 6);
  EXPECT_DOUBLE_EQ(gpu.busy(), 10 * kMillisecondNanos);
}

TEST(SimulatedGpu, KernelsThatAskForMoreThanTheWholeSlowDownAlike) {
  SimulatedGpu gpu = Packed();
  // Half speed until 20 ms; then the second one is alone with 10 ms left.
  const auto ends = EndsOf(&gpu, {Kernel(10, 1), Kernel(20, 1)});
  EXPECT_DOUBLE_EQ(ends.at(0), 20);
  EXPECT_DOUBLE_EQ(ends.at(1), 30);
}

TEST(SimulatedGpu, BandwidthIsAResourceOfItsOwn) {
  SimulatedGpu both_memory = Packed();
  EXPECT_DOUBLE_EQ(EndsOf(&both_memory, {Kernel(10, 0.2, 1), Kernel(10, 0.2, 1)}).at(1), 20);
  SimulatedGpu one_each = Packed();
  EXPECT_DOUBLE_EQ(EndsOf(&one_each, {Kernel(10, 0.2, 0.9), Kernel(10, 0.8, 0.1)}).at(1), 10);
}

TEST(SimulatedGpu, WhoComputesLosesLittleBesideTwoThatAreBoundByMemory) {
  SimulatedGpu gpu = Packed();
  // The two at half speed, with a tenth of the issue slots each, until 20 ms. By then the third has
  // done 16 ms at 0.8; the rest is alone.
  const auto ends = EndsOf(&gpu, {Kernel(10, 0.2, 1), Kernel(10, 0.2, 1), Kernel(20, 1)});
  EXPECT_DOUBLE_EQ(ends.at(0), 20);
  EXPECT_DOUBLE_EQ(ends.at(1), 20);
  EXPECT_DOUBLE_EQ(ends.at(2), 24);
}

TEST(SimulatedGpu, WorksOfOneGuestRunBesideEachOther) {
  for (const bool with_policy : {false, true}) {
    SimulatedGpu gpu({.packed = true, .copy_engines = 2},
                     with_policy ? schedule::MakePolicy("las", schedule::Options()) : nullptr);
    const Guest guest = gpu.Join(0, 1, 0);
    std::vector<SimulatedGpu::Work> works = {Kernel(10, 0.5), Copy(4), Kernel(6, 0.5)};
    for (uint32_t thread = 0; thread < 3; ++thread) {
      works[thread].thread = 7 + thread;
      gpu.Submit(guest, works[thread], 0);
    }
    std::vector<std::pair<uint32_t, double>> ends;
    while (gpu.NextEnd() != SimulatedGpu::kNever) {
      const Nanos now = gpu.NextEnd();
      ends.emplace_back(gpu.Finish(now), static_cast<double>(now) / kMillisecondNanos);
      gpu.Continue(now);
    }
    EXPECT_EQ(ends, (std::vector<std::pair<uint32_t, double>>{{8, 4}, {9, 6}, {7, 10}}));
    EXPECT_NEAR(gpu.DeviceTime(guest), 10 * kMillisecondNanos, 1);
  }
}

TEST(SimulatedGpu, NoMoreKernelsThanTheDeviceTakes) {
  SimulatedGpu gpu({.packed = true, .kernels_max = 2}, nullptr);
  const auto ends = EndsOf(&gpu, {Kernel(4, 0.1), Kernel(6, 0.1), Kernel(4, 0.1)});
  EXPECT_DOUBLE_EQ(ends.at(2), 8);
}

TEST(SimulatedGpu, CopiesRunBesideKernelsAndOneAfterTheOtherOnTheirEngine) {
  SimulatedGpu two = Packed(2);
  auto ends = EndsOf(&two, {Kernel(10, 1), Copy(4), Copy(3), Copy(5, Phase::kToHost)});
  EXPECT_DOUBLE_EQ(ends.at(0), 10);
  EXPECT_DOUBLE_EQ(ends.at(1), 4);
  EXPECT_DOUBLE_EQ(ends.at(2), 7);
  EXPECT_DOUBLE_EQ(ends.at(3), 5);
  SimulatedGpu one = Packed(1);
  ends = EndsOf(&one, {Copy(4), Copy(5, Phase::kToHost)});
  EXPECT_DOUBLE_EQ(ends.at(1), 9);
}

TEST(SimulatedGpu, AContextAnApplicationMeansOneThingAtATimeAndSwitches) {
  SimulatedGpu gpu({.packed = false, .context_switch = kMillisecond}, nullptr);
  const auto ends = EndsOf(&gpu, {Kernel(10, 0.1), Copy(4), Kernel(6, 0.1)});
  EXPECT_DOUBLE_EQ(ends.at(0), 10);
  EXPECT_DOUBLE_EQ(ends.at(1), 15);
  EXPECT_DOUBLE_EQ(ends.at(2), 22);
}

TEST(SimulatedGpu, DeviceTimesAddUpToTheTimeInWhichItWasBusy) {
  SimulatedGpu gpu = Packed();
  EndsOf(&gpu, {Kernel(10, 0.4), Kernel(6, 0.9), Copy(4), Copy(30, Phase::kToHost)});
  double sum = 0;
  for (Guest guest = 0; guest < 4; ++guest) sum += gpu.DeviceTime(guest);
  EXPECT_NEAR(sum, gpu.busy(), 1);
}

TEST(SimulatedGpu, ASchedulingPolicyDividesTheDeviceByWeight) {
  SimulatedGpu gpu({.packed = true}, schedule::MakePolicy("tfs", schedule::Options()));
  const Guest light = gpu.Join(0, 1, 0);
  const Guest heavy = gpu.Join(1, 3, 0);
  const auto submit = [&gpu](Guest guest, Nanos now) {
    SimulatedGpu::Work work = Kernel(1, 1);
    work.thread = guest;
    gpu.Submit(guest, work, now);
  };
  submit(light, 0);
  submit(heavy, 0);
  Nanos now = 0;
  while (now < 4 * kSecond) {
    now = gpu.NextEnd();
    ASSERT_NE(now, SimulatedGpu::kNever);
    submit(gpu.Finish(now), now);
    gpu.Continue(now);
  }
  EXPECT_NEAR(gpu.DeviceTime(heavy) / gpu.DeviceTime(light), 3, 0.05);
}

}  // namespace
}  // namespace consort::sim
