// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/attention.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace consort::vhost_user {
namespace {

constexpr Nanos kStep = 1 * kMicrosecond;

// Looks in steps from `now` on until it rests; returns when it does.
Nanos RestsAt(Attention* attention, Nanos now) {
  while (attention->LookOn(false, now)) now += kStep;
  return now;
}

TEST(Attention, RestsAtOnceWhereNotificationsAreSeldom) {
  Attention attention;
  Nanos now = kSecond;
  EXPECT_FALSE(attention.LookOn(false, now));
  for (int packets = 0; packets < 5; ++packets) {
    now += kMillisecond;
    EXPECT_TRUE(attention.LookOn(true, now)) << "there may be more already";
    EXPECT_EQ(RestsAt(&attention, now), now);
  }
}

TEST(Attention, LooksLongerWhenTheGuestNotifiesSoonAfterItWentToRest) {
  Attention attention;
  Nanos now = kSecond;
  for (const Nanos expected :
       {Nanos{0}, 1 * Attention::kLeast, 2 * Attention::kLeast, 4 * Attention::kLeast,
        8 * Attention::kLeast, 16 * Attention::kLeast, Attention::kMost, Attention::kMost}) {
    EXPECT_TRUE(attention.LookOn(true, now));
    const Nanos rests = RestsAt(&attention, now);
    EXPECT_EQ(rests - now, expected);
    now = rests + Attention::kMost;
  }
  // A nanosecond too late, again and again: shorter, and at last not at all.
  Nanos before = Attention::kMost;
  while (before > 0) {
    EXPECT_TRUE(attention.LookOn(true, ++now));
    const Nanos rests = RestsAt(&attention, now);
    ASSERT_LT(rests - now, before);
    before = rests - now;
    now = rests + Attention::kMost;
  }
}

TEST(Attention, NeverRestsWhilePacketsComeWithinIt) {
  Attention attention;
  Nanos now = kSecond;
  attention.LookOn(true, now);
  now = RestsAt(&attention, now) + kStep;
  for (int packets = 0; packets < 1000; ++packets) {
    ASSERT_TRUE(attention.LookOn(true, now)) << packets;
    for (int looks = 1; looks < 10; ++looks) {
      ASSERT_TRUE(attention.LookOn(false, now += kStep)) << packets;
    }
  }
}

TEST(Attention, ItsTimeHasABound) {
  Attention attention;
  Nanos now = kSecond;
  for (int rounds = 0; rounds < 100; ++rounds) {
    attention.LookOn(true, now);
    const Nanos rests = RestsAt(&attention, now);
    ASSERT_LE(rests - now, Attention::kMost);
    now = rests + kStep;
  }
}

}  // namespace
}  // namespace consort::vhost_user
