// SPDX-License-Identifier: Apache-2.0
#include "host/scheduler/share_meter.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace consort::host {
namespace {

std::map<ShareMeter::Owner, Nanos> Advance(ShareMeter* meter, Nanos horizon) {
  ShareMeter::Charges charges;
  meter->Advance(horizon, &charges);
  std::map<ShareMeter::Owner, Nanos> sums;
  for (const ShareMeter::Charge& charge : charges) {
    if (charge.time > 0) sums[charge.owner] += charge.time;
  }
  return sums;
}

using Sums = std::map<ShareMeter::Owner, Nanos>;

struct Paid {
  ShareMeter::Owner owner;
  Nanos time;
  Nanos alone;
  bool operator==(const Paid&) const = default;
};

std::vector<Paid> ChargesTo(ShareMeter* meter, Nanos horizon, Nanos patience = 0) {
  ShareMeter::Charges charges;
  meter->Advance(horizon, &charges, patience);
  std::vector<Paid> paid;
  for (const ShareMeter::Charge& charge : charges) {
    paid.push_back({charge.owner, charge.time, charge.alone});
  }
  return paid;
}

Nanos AloneTo(ShareMeter* meter, Nanos horizon) {
  Nanos sum = 0;
  for (const Paid& paid : ChargesTo(meter, horizon)) sum += paid.alone;
  return sum;
}

TEST(ShareMeter, SplitsTimeThatOverlapsEvenly) {
  ShareMeter meter;
  meter.End(meter.Begin(1, 100), 500);
  meter.End(meter.Begin(2, 300), 600);
  EXPECT_EQ(Advance(&meter, 1000), (Sums{{1, 300}, {2, 200}}));
  EXPECT_EQ(Advance(&meter, 2000), Sums{});
}

TEST(ShareMeter, ChargesWhatStillRunsUpToTheHorizonOnly) {
  ShareMeter meter;
  const auto interval = meter.Begin(1, 100);
  EXPECT_EQ(Advance(&meter, 300), (Sums{{1, 200}}));
  EXPECT_EQ(Advance(&meter, 300), Sums{});
  meter.End(interval, 350);
  EXPECT_EQ(Advance(&meter, 1000), (Sums{{1, 50}}));
}

TEST(ShareMeter, DoesNotMindTheOrderInWhichItIsTold) {
  ShareMeter meter;
  const auto long_one = meter.Begin(1, 0);
  const auto second = meter.Begin(2, 600);
  const auto first = meter.Begin(2, 200);
  meter.End(second, 800);
  meter.End(first, 400);
  meter.End(long_one, 1000);
  EXPECT_EQ(Advance(&meter, 1000), (Sums{{1, 800}, {2, 200}}));
}

TEST(ShareMeter, TwoStreamsOfOneOwnerAreTwoShares) {
  ShareMeter meter;
  meter.Begin(1, 0);
  meter.Begin(1, 0);
  meter.Begin(2, 0);
  EXPECT_EQ(Advance(&meter, 300), (Sums{{1, 200}, {2, 100}}));
}

TEST(ShareMeter, WhatIsSlowedMoreByOthersPaysLess) {
  ShareMeter meter;
  // Both run for 600; the first gets done in it what takes 600 alone, the other one 300.
  const auto full = meter.Begin(1, 0);
  const auto half = meter.Begin(2, 0);
  meter.End(full, 600, {.alone = 600});
  meter.End(half, 600, {.alone = 300});
  EXPECT_EQ(Advance(&meter, 600), (Sums{{1, 400}, {2, 200}}));
  // What runs alone pays for all of it, however slow.
  meter.End(meter.Begin(2, 600), 1000, {.alone = 100});
  EXPECT_EQ(Advance(&meter, 1000), (Sums{{2, 400}}));
}

TEST(ShareMeter, WhatItDidByItselfSaysNothingOfItsSpeedBesideOthers) {
  ShareMeter meter;
  // 800 by itself, then 100 done in 400 beside the other one.
  const auto first = meter.Begin(1, 0);
  const auto second = meter.Begin(2, 800);
  meter.End(first, 1200, {.alone = 900});
  meter.End(second, 1200, {.alone = 300});
  EXPECT_EQ(Advance(&meter, 1200), (Sums{{1, 800 + 100}, {2, 300}}));
}

TEST(ShareMeter, StreamsOfOneOwnerShareWhatItGetsByItself) {
  ShareMeter meter;
  // Two at once for 400, each of which gets done what takes 200; then 25 each beside another for
  // 100.
  for (int i = 0; i < 2; ++i) meter.End(meter.Begin(1, 0), 500, {.alone = 225});
  meter.End(meter.Begin(2, 400), 500, {.alone = 50});
  EXPECT_EQ(Advance(&meter, 500), (Sums{{1, 450}, {2, 50}}));
}

TEST(ShareMeter, SpeedsOfLateHoldForWhatHasNotEnded) {
  ShareMeter meter;
  // Alone or beside others, the first does everything and the second a quarter of it.
  const Nanos ms = kMillisecond;
  meter.End(meter.Begin(1, 0), 1000 * ms, {.alone = 1000 * ms});
  meter.End(meter.Begin(2, 0), 1000 * ms, {.alone = 250 * ms});
  Advance(&meter, 1000 * ms);
  meter.End(meter.Begin(2, 1000 * ms), 3000 * ms, {.alone = 2000 * ms});  // by itself: says nothing
  Advance(&meter, 3000 * ms);
  meter.Begin(1, 3000 * ms);
  meter.Begin(2, 3000 * ms);
  const Sums sums = Advance(&meter, 3100 * ms);
  EXPECT_NEAR(static_cast<double>(sums.at(1)), 80.0 * ms, 0.5 * ms);
  EXPECT_NEAR(static_cast<double>(sums.at(2)), 20.0 * ms, 0.5 * ms);
}

// Wherever the horizon is held: at what began before it was anywhere, or later.
TEST(ShareMeter, WaitsForTheEndThatTellsTheSpeed) {
  for (const Nanos begin : {0, 1000}) {
    ShareMeter meter;
    const auto first = meter.Begin(1, begin);
    const auto second = meter.Begin(2, begin);
    EXPECT_TRUE(ChargesTo(&meter, begin + 300, 1000).empty());
    meter.End(first, begin + 300, {.alone = 150, .room = Room::kLeft});
    meter.End(second, begin + 300, {.alone = 75, .room = Room::kLeft});
    EXPECT_EQ(ChargesTo(&meter, begin + 400, 1000),
              (std::vector<Paid>{{1, 200, 150}, {2, 100, 75}}))
        << begin;
  }
}

TEST(ShareMeter, WaitsNoLongerThanItsPatience) {
  ShareMeter meter;
  const auto interval = meter.Begin(1, 0);
  EXPECT_EQ(ChargesTo(&meter, 1500, 1000), (std::vector<Paid>{{1, 500, 500}}));
  meter.End(interval, 1500, {.alone = 400});
  EXPECT_EQ(ChargesTo(&meter, 1500, 1000), (std::vector<Paid>{{1, 1000, 1000}}));
}

TEST(ShareMeter, SaysWhichChargeOfAnIntervalIsItsLast) {
  ShareMeter meter;
  const auto first = meter.Begin(1, 0);
  const auto second = meter.Begin(2, 0);
  const auto never = meter.Begin(3, 200);
  meter.End(never, 100);  // told to have ended before it began
  meter.End(first, 100);
  std::map<ShareMeter::Interval, std::vector<bool>> last;
  const auto advance = [&](Nanos horizon) {
    ShareMeter::Charges charges;
    meter.Advance(horizon, &charges);
    for (const ShareMeter::Charge& charge : charges) last[charge.interval].push_back(charge.last);
  };
  advance(50);
  advance(300);
  meter.End(second, 300);  // whose time is charged already
  advance(400);
  EXPECT_EQ(last[first], (std::vector<bool>{false, true}));
  EXPECT_EQ(last[second], (std::vector<bool>{false, false, true}));
  EXPECT_EQ(last[never], std::vector<bool>{true});
}

TEST(ShareMeter, SaysHowLongItWouldHaveTakenAlone) {
  ShareMeter meter;
  // They hinder each other little: 1.65 s of work a second.
  meter.End(meter.Begin(1, 0), 690, {.alone = 690, .room = Room::kLeft});
  meter.End(meter.Begin(2, 0), 690, {.alone = 897 / 2, .room = Room::kLeft});
  const std::vector<Paid> charges = ChargesTo(&meter, 690);
  ASSERT_EQ(charges.size(), 2u);
  EXPECT_NEAR(static_cast<double>(charges[0].time), 690 / 1.65, 2);
  EXPECT_NEAR(static_cast<double>(charges[0].alone), 690, 2);
  EXPECT_NEAR(static_cast<double>(charges[1].time), 690 * 0.65 / 1.65, 2);
  EXPECT_NEAR(static_cast<double>(charges[1].alone), 690 * 0.65, 2);
}

TEST(ShareMeter, WhatHinderedEachOtherWouldHaveTakenLessAlone) {
  ShareMeter meter;
  // 0.8 s of work a second: they pay for the whole second, and did a part of it.
  meter.End(meter.Begin(1, 0), 1000, {.alone = 400, .room = Room::kLeft});
  meter.End(meter.Begin(2, 0), 1000, {.alone = 400, .room = Room::kLeft});
  EXPECT_EQ(ChargesTo(&meter, 1000), (std::vector<Paid>{{1, 500, 400}, {2, 500, 400}}));
}

TEST(ShareMeter, WhatFillsTheDeviceGetsDoneWhatItHadTimeFor) {
  ShareMeter meter;
  // Estimates say 1.2 s of work a second, which cannot be.
  meter.End(meter.Begin(1, 0), 1000, {.alone = 800, .room = Room::kNone});
  meter.End(meter.Begin(2, 0), 1000, {.alone = 400, .room = Room::kNone});
  const std::vector<Paid> charges = ChargesTo(&meter, 1000);
  ASSERT_EQ(charges.size(), 2u);
  EXPECT_NEAR(static_cast<double>(charges[0].time), 667, 1);
  EXPECT_EQ(charges[0].alone, charges[0].time);
  EXPECT_NEAR(static_cast<double>(charges[1].time), 333, 1);
  EXPECT_EQ(charges[1].alone, charges[1].time);
}

TEST(ShareMeter, BesideWhatLeavesRoomWhatFillsTheDeviceGoesBySpeeds) {
  ShareMeter meter;
  // 1.2 s of work a second in the first 1000, when one of them leaves room.
  meter.End(meter.Begin(1, 0), 1000, {.alone = 900, .room = Room::kNone});
  meter.End(meter.Begin(2, 0), 1000, {.alone = 300, .room = Room::kLeft});
  EXPECT_EQ(ChargesTo(&meter, 1000), (std::vector<Paid>{{1, 750, 900}, {2, 250, 300}}));
}

TEST(ShareMeter, WhatLeftRoomLatelyCountsAsIfItDidStill) {
  ShareMeter meter;
  meter.End(meter.Begin(1, 0), 1000, {.alone = 900, .room = Room::kNone});
  meter.End(meter.Begin(2, 0), 1000, {.alone = 300, .room = Room::kLeft});
  ChargesTo(&meter, 1000);
  // Now all fill the device, and go on getting done what takes 1.2 times as long alone.
  Nanos now = 1000;
  const auto both_fill = [&](Nanos until) {
    for (; now < until; now += kMillisecond) {
      meter.End(meter.Begin(1, now), now + kMillisecond,
                {.alone = 900 * kMicrosecond, .room = Room::kNone});
      meter.End(meter.Begin(2, now), now + kMillisecond,
                {.alone = 300 * kMicrosecond, .room = Room::kNone});
    }
    return static_cast<double>(AloneTo(&meter, now));
  };
  EXPECT_NEAR(both_fill(50 * kMillisecond), 1.2 * 50 * kMillisecond, kMillisecond);
  both_fill(110 * kMillisecond);
  // For so long that it is forgotten: nothing takes longer alone than there was time for.
  EXPECT_NEAR(both_fill(210 * kMillisecond), 100 * kMillisecond, kMillisecond / 10);
}

TEST(ShareMeter, WhereNothingIsKnownOfOneAllAreChargedTheDevicesTime) {
  ShareMeter meter;
  meter.End(meter.Begin(1, 0), 1000, {.alone = 1000, .room = Room::kLeft});
  meter.End(meter.Begin(2, 0), 500);
  EXPECT_EQ(ChargesTo(&meter, 500), (std::vector<Paid>{{2, 250, 250}, {1, 250, 250}}));
}

TEST(ShareMeter, OfWhatHasNotEndedItsOwnersWorkOfLateTellsOfRoom) {
  ShareMeter meter;
  meter.End(meter.Begin(1, 0), 1000, {.alone = 900, .room = Room::kNone});
  meter.End(meter.Begin(2, 0), 1000, {.alone = 300, .room = Room::kLeft});
  ChargesTo(&meter, 1000);
  // Beside each other for moments only, so that their speeds are still taken to be full.
  meter.Begin(1, 1000);
  meter.Begin(2, 1000);
  EXPECT_NEAR(static_cast<double>(AloneTo(&meter, 2000)), 2000, 10);
  // Of this owner nothing is known.
  meter.Begin(3, 2000);
  EXPECT_NEAR(static_cast<double>(AloneTo(&meter, 3000)), 1000, 10);
}

// As a batch with a memset between others.
TEST(ShareMeter, WhatIsNotKnownBetweenKnownWorkDoesNotTurnEstimatesOff) {
  ShareMeter meter;
  Nanos from = 0;
  const auto run = [&](bool every_second_is_known) {
    for (int i = 0; i < 100; ++i) {
      const Nanos at = from + i * kMillisecond;
      meter.End(meter.Begin(1, at), at + kMillisecond,
                {.alone = 900 * kMicrosecond, .room = Room::kLeft});
      const bool known = every_second_is_known || i % 2 == 0;
      meter.End(
          meter.Begin(2, at), at + kMillisecond,
          known ? IntervalWork{.alone = 700 * kMicrosecond, .room = Room::kLeft} : IntervalWork{});
    }
    from += 100 * kMillisecond;
    return static_cast<double>(AloneTo(&meter, from));
  };
  const double known = run(true);
  EXPECT_NEAR(known, 1.6 * 100 * kMillisecond, 2 * kMillisecond);
  EXPECT_NEAR(run(false), known, known / 50);
}

TEST(ShareMeter, LearnsFromWhatRanAloneHowFarEstimatesAreOff) {
  ShareMeter meter;
  ShareMeter::Charges charges;
  // Alone what is said to take 1 ms takes 1.25 ms.
  Nanos now = 0;
  for (int i = 0; i < 200; ++i, now += 1250 * kMicrosecond) {
    meter.End(meter.Begin(1, now), now + 1250 * kMicrosecond, {.alone = kMillisecond});
    meter.Advance(now + 1250 * kMicrosecond, &charges);
  }
  charges.clear();
  // Beside another one it takes twice that, and the other one as long as its own.
  meter.End(meter.Begin(1, now), now + 2500 * kMicrosecond, {.alone = kMillisecond});
  meter.End(meter.Begin(2, now), now + 2500 * kMicrosecond, {.alone = 1250 * kMicrosecond});
  meter.Advance(now + 2500 * kMicrosecond, &charges);
  ASSERT_EQ(charges.size(), 2u);
  EXPECT_NEAR(static_cast<double>(charges[0].time), static_cast<double>(charges[1].time), 1e3);
  EXPECT_NEAR(static_cast<double>(charges[0].alone), 1250e3, 2e3);
}

TEST(ShareMeter, WhatIsForgottenIsNotWaitedFor) {
  ShareMeter meter;
  meter.Begin(1, 0);
  meter.End(meter.Begin(2, 0), 100);
  meter.Forget(1);
  EXPECT_EQ(ChargesTo(&meter, 100, 1000), (std::vector<Paid>{{2, 100, 100}}));
}

TEST(ShareMeter, TheSpeedOfWhatIsForgottenCountsNoMore) {
  ShareMeter meter;
  meter.End(meter.Begin(1, 0), 100, {.alone = 10});
  meter.Begin(2, 0);
  meter.Forget(2);
  EXPECT_EQ(Advance(&meter, 100), (Sums{{1, 100}}));
}

TEST(ShareMeter, WhatIsToldTooLateCountsFromTheHorizon) {
  ShareMeter meter;
  EXPECT_EQ(Advance(&meter, 1000), Sums{});
  const auto interval = meter.Begin(1, 500);
  meter.End(interval, 900);
  EXPECT_EQ(Advance(&meter, 2000), Sums{});
  meter.End(meter.Begin(1, 1500), 2500);
  EXPECT_EQ(Advance(&meter, 3000), (Sums{{1, 500}}));
}

TEST(ShareMeter, ForgetsWhoLeaves) {
  ShareMeter meter;
  const auto gone = meter.Begin(1, 0);
  meter.Begin(2, 0);
  EXPECT_EQ(Advance(&meter, 100), (Sums{{1, 50}, {2, 50}}));
  meter.Begin(1, 150);
  meter.Forget(1);
  meter.End(gone, 160);
  EXPECT_EQ(Advance(&meter, 300), (Sums{{2, 200}}));
}

// Charges add up to the time in which anything ran, to the nanosecond of each interval.
TEST(ShareMeter, AddsUpToTheBusyTime) {
  ShareMeter meter;
  Nanos sum = 0;
  for (Nanos t = 0; t < 3000; t += 7) meter.End(meter.Begin(t % 5, t), t + 31);
  for (Nanos horizon = 11; horizon < 4000; horizon += 11) {
    for (const auto& [owner, nanos] : Advance(&meter, horizon)) sum += nanos;
  }
  EXPECT_NEAR(static_cast<double>(sum), 2996 + 31, 430);
}

}  // namespace
}  // namespace consort::host
