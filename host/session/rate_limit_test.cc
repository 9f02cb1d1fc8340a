// SPDX-License-Identifier: Apache-2.0
#include "host/session/rate_limit.h"

#include <gtest/gtest.h>

#include "host/limits.h"

namespace consort::host {
namespace {

constexpr Nanos kStart = 1000 * kSecond;

// How many requests go by `end`, of a tenant that always has one.
uint64_t Goes(RateLimit* limit, RequestCost cost, uint64_t bytes, Nanos start, Nanos end) {
  uint64_t count = 0;
  for (Nanos now = start; now < end;) {
    const Nanos wait = limit->WaitOf(cost, now);
    now += wait;
    if (wait != 0) continue;
    limit->Charge(cost, bytes, now);
    ++count;
  }
  return count;
}

TEST(RateLimit, WithoutRatesNothingWaits) {
  RateLimit limit;
  EXPECT_FALSE(limit.limited());
  limit.Charge(RequestCost::kKernel, 0, kStart);
  limit.Charge(RequestCost::kToDevice, kGiB, kStart);
  EXPECT_EQ(limit.WaitOf(RequestCost::kKernel, kStart), 0);
  EXPECT_EQ(limit.WaitOf(RequestCost::kToDevice, kStart), 0);
}

TEST(RateLimit, LaunchesComeToTheRateAndOneBurst) {
  RateLimit limit;
  limit.Set({.launches_per_second = 1000});
  EXPECT_TRUE(limit.limited());
  // 10 s of them, and 100 ms at once.
  EXPECT_EQ(Goes(&limit, RequestCost::kKernel, 0, kStart, kStart + 10 * kSecond), 10'100u);
  // Copies have no rate here.
  EXPECT_EQ(limit.WaitOf(RequestCost::kToHost, kStart), 0);
}

TEST(RateLimit, CopiesComeToTheRateHoweverLargeTheyAre) {
  for (const Bytes piece : {64 * kKiB, 16 * kMiB}) {
    RateLimit limit;
    limit.Set({.copy_bytes_per_second = 64 * kMiB});
    const uint64_t count = Goes(&limit, RequestCost::kCopy, piece, kStart, kStart + 10 * kSecond);
    const Bytes expected = 640 * kMiB;
    EXPECT_GE(count * piece, expected);
    EXPECT_LE(count * piece, expected + 64 * kMiB / 10 + 2 * piece);
    EXPECT_EQ(limit.WaitOf(RequestCost::kKernel, kStart), 0);
  }
}

TEST(RateLimit, WhatWasNotUsedIsNotSavedUpBeyondTheBurst) {
  RateLimit limit;
  limit.Set({.launches_per_second = 1000});
  EXPECT_EQ(Goes(&limit, RequestCost::kKernel, 0, kStart, kStart + kSecond), 1'100u);
  const Nanos later = kStart + 1000 * kSecond;
  EXPECT_EQ(Goes(&limit, RequestCost::kKernel, 0, later, later + kSecond), 1'100u);
}

TEST(RateLimit, AHugeCopyWaitsNoLongerThanTheBound) {
  RateLimit limit;
  limit.Set({.copy_bytes_per_second = kCopyRateLeast});
  limit.Charge(RequestCost::kToHost, kTiB, kStart);
  EXPECT_EQ(limit.WaitOf(RequestCost::kToHost, kStart), kRateDebtMax - kRateBurst);
}

TEST(RateLimit, AnotherRateForgetsWhatWasOwedAndTheSameOneDoesNot) {
  RateLimit limit;
  limit.Set({.copy_bytes_per_second = kMiB});
  limit.Charge(RequestCost::kToHost, kGiB, kStart);
  limit.Set({.launches_per_second = 5, .copy_bytes_per_second = kMiB});
  EXPECT_GT(limit.WaitOf(RequestCost::kToHost, kStart), 0);
  limit.Set({.copy_bytes_per_second = 2 * kMiB});
  EXPECT_EQ(limit.WaitOf(RequestCost::kToHost, kStart), 0);
  limit.Charge(RequestCost::kToHost, kGiB, kStart);
  limit.Set({});
  EXPECT_FALSE(limit.limited());
  EXPECT_EQ(limit.WaitOf(RequestCost::kToHost, kStart), 0);
}

}  // namespace
}  // namespace consort::host
