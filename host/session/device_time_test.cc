// SPDX-License-Identifier: Apache-2.0
#include "host/session/device_time.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

namespace consort::host {
namespace {

constexpr uint64_t kThreads = 256;

// Of so many launches that are not measured, before which it would have been.
uint64_t Due(DeviceTime::Kernel* kernel, uint64_t launches) {
  uint64_t due = 0;
  for (uint64_t i = 0; i < launches; ++i, ++kernel->launches) {
    if (DeviceTime::SamplesNext(*kernel, kThreads)) ++due;
  }
  return due;
}

TEST(DeviceTime, MeasuresFewerThanOneOfAHundredOfWhatIsKnown) {
  DeviceTime::Kernel kernel;
  EXPECT_EQ(Due(&kernel, 12800), 400u);
  for (uint32_t i = 1; i < DeviceTime::kAloneSamples; ++i) kernel.LearnAlone(kThreads, 1000);
  EXPECT_EQ(Due(&kernel, 12800), 400u);
  kernel.LearnAlone(kThreads, 1000);
  kernel.latest_nanos = DeviceTime::kShortNanos;
  EXPECT_EQ(Due(&kernel, 12800), 100u);
  kernel.latest_nanos = DeviceTime::kShortNanos - 1;
  EXPECT_EQ(Due(&kernel, 12800), 25u);
  kernel.sampled = MonotonicNow() + kSecond;  // just now, however slow this is
  EXPECT_EQ(Due(&kernel, 12800), 0u);
  kernel.latest_nanos = DeviceTime::kShortNanos;
  EXPECT_EQ(Due(&kernel, 12800), 100u);
}

TEST(DeviceTime, WhatIsKnownOfAnotherSizeIsNothing) {
  DeviceTime::Kernel kernel;
  for (uint32_t i = 0; i < DeviceTime::kAloneSamples; ++i) kernel.LearnAlone(2 * kThreads, 1000);
  EXPECT_EQ(Due(&kernel, 12800), 400u);
}

TEST(DeviceTime, MeasuresWhatWasPartOfChainsForLong) {
  DeviceTime::Kernel kernel;
  kernel.launches = 1;
  EXPECT_FALSE(DeviceTime::SamplesNext(kernel, kThreads));
  kernel.chained = DeviceTime::kChainedPerSample;
  EXPECT_TRUE(DeviceTime::SamplesNext(kernel, kThreads));
}

// A device whose clock says when it passed each event, in the order of their records.
struct FakeClock {
  std::vector<uint64_t> passed;  // nanoseconds
  size_t recorded = 0;
};
FakeClock clock_of_device;

device::DriverTable FakeDriver() {
  device::DriverTable table = {};
  table.cuEventCreate = [](CUevent* event, unsigned int) {
    *event = reinterpret_cast<CUevent>(new uint64_t(0));
    return CUDA_SUCCESS;
  };
  table.cuEventDestroy_v2 = [](CUevent event) {
    delete reinterpret_cast<uint64_t*>(event);
    return CUDA_SUCCESS;
  };
  table.cuEventRecord = [](CUevent event, CUstream) {
    *reinterpret_cast<uint64_t*>(event) = clock_of_device.passed.at(clock_of_device.recorded++);
    return CUDA_SUCCESS;
  };
  table.cuEventQuery = [](CUevent) { return CUDA_SUCCESS; };
  table.cuEventElapsedTime = [](float* milliseconds, CUevent begin, CUevent end) {
    const uint64_t nanos = *reinterpret_cast<uint64_t*>(end) - *reinterpret_cast<uint64_t*>(begin);
    *milliseconds = static_cast<float>(nanos) / 1e6f;
    return CUDA_SUCCESS;
  };
  return table;
}

// What the first launch of a kernel is measured to take, with such events before it, in front of it
// and behind it.
uint64_t FirstLaunchOf(DeviceTime* time, std::vector<uint64_t> passed) {
  clock_of_device = {std::move(passed)};
  const auto kernel = std::make_shared<DeviceTime::Kernel>();
  time->BeginLaunch(kernel, nullptr, kThreads, /*may_sample=*/true, /*beside=*/0);
  time->EndLaunch(nullptr);
  time->Poll(/*alone=*/false);
  EXPECT_EQ(clock_of_device.recorded, clock_of_device.passed.size());
  return kernel->latest_nanos;
}

TEST(DeviceTime, OfALaunchIsWithoutWhatEventsAdd) {
  const device::DriverTable driver = FakeDriver();
  DeviceTime time(driver, kThreads);
  EXPECT_NEAR(FirstLaunchOf(&time, {1000, 3000, 13000}), 8000, 2);
  // The least of the gaps counts.
  EXPECT_NEAR(FirstLaunchOf(&time, {1000, 2000, 12000}), 9000, 2);
  EXPECT_NEAR(FirstLaunchOf(&time, {1000, 4000, 14000}), 9000, 2);
  EXPECT_NEAR(time.nanos(), 26000, 6);
}

// The device may stand still anywhere, as one does whose host's processor has other work.
TEST(DeviceTime, AGapInWhichTheDeviceStoodStillTakesNothingAway) {
  const device::DriverTable driver = FakeDriver();
  DeviceTime time(driver, kThreads);
  EXPECT_NEAR(FirstLaunchOf(&time, {1000, 51000, 61000}), 10000, 2);
  EXPECT_NEAR(time.nanos(), 10000, 2);
  // One that did not is the least then.
  EXPECT_NEAR(FirstLaunchOf(&time, {1000, 2000, 12000}), 9000, 2);
}

}  // namespace
}  // namespace consort::host
