// SPDX-License-Identifier: Apache-2.0
#include "host/session/device_time.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace consort::host
