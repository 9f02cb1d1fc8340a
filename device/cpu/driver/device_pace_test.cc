// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/device_pace_test.cc: what the pace of a device promises, in moments of no
// clock.
#include "device/cpu/driver/device_pace.h"

#include "gtest/gtest.h"

namespace consort::cpu {
namespace {

TEST(ComputePaceTest, AKernelKeepsADeviceOfHalfSpeedTwiceAsLong) {
  ComputePace pace(0.5);
  pace.Begin(100);
  EXPECT_EQ(pace.End(130), 160);
  EXPECT_EQ(pace.busy_until(), 160);
  pace.Begin(1000);
  EXPECT_EQ(pace.End(1010), 1020) << "time in which nothing ran is not owed";
}

TEST(ComputePaceTest, AFullSpeedDeviceIsNeverBusyAfterItsKernels) {
  ComputePace pace(1);
  pace.Begin(100);
  EXPECT_EQ(pace.End(130), 130);
}

// Two kernels side by side, which share the machine, are one time of the device and not two.
TEST(ComputePaceTest, KernelsOfTwoStreamsShareTheDevice) {
  ComputePace pace(0.5);
  pace.Begin(0);
  pace.Begin(0);
  EXPECT_EQ(pace.End(20), 40);
  EXPECT_EQ(pace.End(20), 40);
  // One begins in the middle of the other: 40 to 70 something ran.
  pace.Begin(40);
  pace.Begin(50);
  EXPECT_EQ(pace.End(60), 80);
  EXPECT_EQ(pace.End(70), 90);
}

TEST(CopyPaceTest, CopiesFollowEachOther) {
  CopyPace pace(1'000'000'000);
  EXPECT_EQ(pace.Copy(100, 50), 150);
  EXPECT_EQ(pace.Copy(110, 50), 200);
  EXPECT_EQ(pace.Copy(500, 50), 550);
}

TEST(CopyPaceTest, NoBoundMeansNoWaiting) {
  CopyPace pace(0);
  EXPECT_EQ(pace.Copy(100, kGiB), 100);
}

TEST(DevicePaceTest, RunsWhatItIsGivenOnce) {
  DevicePace slow({.speed = 0.5, .launch = 1, .copy_bytes_per_second = kGiB});
  int ran = 0;
  slow.RunKernel([&] { ++ran; });
  slow.RunCopy(1, /*to_device=*/true, [&] { ++ran; });
  EXPECT_EQ(ran, 2);
  EXPECT_TRUE(slow.paces_copies());
  EXPECT_FALSE(DevicePace(PaceOptions()).paces_copies());
}

}  // namespace
}  // namespace consort::cpu
