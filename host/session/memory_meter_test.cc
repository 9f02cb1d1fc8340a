// SPDX-License-Identifier: Apache-2.0
#include "host/session/memory_meter.h"

#include <gtest/gtest.h>

namespace consort::host {
namespace {

TEST(MemoryMeter, MultipliesBytesAndTime) {
  MemoryMeter meter;
  meter.Set(3 * kGiB, 10 * kSecond);
  meter.Set(1 * kGiB, 12 * kSecond);
  const MemoryMeter::Reading reading = meter.Read(16 * kSecond);
  EXPECT_EQ(reading.held, 1 * kGiB);
  EXPECT_EQ(reading.peak, 3 * kGiB);
  EXPECT_EQ(reading.byte_seconds, (3 * 2 + 1 * 4) * kGiB);
}

TEST(MemoryMeter, ReadingChangesNothing) {
  MemoryMeter meter;
  meter.Set(100, 0);
  for (Nanos now = 0; now < kSecond; now += kMillisecond) meter.Read(now);
  EXPECT_EQ(meter.Read(kSecond).byte_seconds, 100u);
}

TEST(MemoryMeter, AYearOfALargeDeviceFits) {
  MemoryMeter meter;
  constexpr Nanos kYear = 366 * 86400 * kSecond;
  meter.Set(256 * kGiB, 0);
  EXPECT_EQ(meter.Read(kYear).byte_seconds, 256 * kGiB * 366 * 86400);
}

}  // namespace
}  // namespace consort::host
