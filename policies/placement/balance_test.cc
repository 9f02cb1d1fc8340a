// SPDX-License-Identifier: Apache-2.0
#include "policies/placement/balance.h"

#include <gtest/gtest.h>

#include <vector>

namespace consort::placement {
namespace {

constexpr uint64_t kAnywhere = UINT64_MAX;

BalanceDevice Idle(double speed = 1) { return {speed, true, kBalanceIdle}; }
BalanceDevice InUse(double speed = 1) { return {speed, true, 0}; }
BalanceApplication Working(uint64_t session, uint32_t device, double use) {
  return {session, device, kAnywhere, use, kBalanceSettled};
}

using Devices = std::vector<BalanceDevice>;
using Applications = std::vector<BalanceApplication>;

TEST(Balance, OneOfTwoThatShareADeviceGoesToAnIdleOne) {
  EXPECT_EQ(
      ChooseMove(Devices{InUse(), Idle()}, Applications{Working(1, 0, 0.4), Working(2, 0, 0.5)}),
      (BalanceMove{2, 1}));
}

TEST(Balance, OneByItselfGoesToAFasterDeviceAndStaysThere) {
  const Applications slow = {Working(7, 0, 0.9)};
  EXPECT_EQ(ChooseMove(Devices{InUse(0.5), Idle(1)}, slow), (BalanceMove{7, 1}));
  EXPECT_EQ(ChooseMove(Devices{InUse(0.9), Idle(1)}, slow), std::nullopt);
  EXPECT_EQ(ChooseMove(Devices{InUse(1), Idle(0.5)}, slow), std::nullopt);
}

TEST(Balance, TheGreatestGainIsTaken) {
  const Applications both = {Working(1, 0, 0.9), Working(2, 1, 0.9)};
  EXPECT_EQ(ChooseMove(Devices{InUse(0.5), InUse(0.25), Idle(1), Idle(2)}, both),
            (BalanceMove{2, 3}));
}

// Where there is room for all of them a second device makes nothing faster.
TEST(Balance, ADeviceThatIsNotFullIsShared) {
  const Applications light = {Working(1, 0, 0.3), Working(2, 0, 0.3)};
  EXPECT_EQ(ChooseMove(Devices{InUse(), Idle()}, light), std::nullopt);
  const Applications full = {Working(1, 0, 0.3), Working(2, 0, 0.3), Working(3, 0, 0.2)};
  EXPECT_TRUE(ChooseMove(Devices{InUse(), Idle()}, full).has_value());
}

TEST(Balance, WhoHardlyUsesItsDeviceStays) {
  EXPECT_EQ(ChooseMove(Devices{InUse(0.1), Idle(1)}, Applications{Working(1, 0, 0.2)}),
            std::nullopt);
  // Nor is it one of two that share a full device.
  EXPECT_EQ(
      ChooseMove(Devices{InUse(), Idle()}, Applications{Working(1, 0, 0.04), Working(2, 0, 0.9)}),
      std::nullopt);
}

TEST(Balance, ADeviceMustBeIdleForAWhileAndTakeApplications) {
  const Applications two = {Working(1, 0, 0.5), Working(2, 0, 0.5)};
  BalanceDevice device = Idle();
  --device.idle;
  EXPECT_EQ(ChooseMove(Devices{InUse(), device}, two), std::nullopt);
  device = Idle();
  device.takes = false;
  EXPECT_EQ(ChooseMove(Devices{InUse(), device}, two), std::nullopt);
}

TEST(Balance, WhoCameOfLateOrMayNotGoStays) {
  Applications two = {Working(1, 0, 0.5), Working(2, 0, 0.5)};
  two[0].settled = kBalanceSettled - 1;
  EXPECT_EQ(ChooseMove(Devices{InUse(), Idle()}, two), (BalanceMove{2, 1}));
  two[1].allowed = 1;
  EXPECT_EQ(ChooseMove(Devices{InUse(), Idle()}, two), std::nullopt);
}

// However it begins, some moves later nothing would be gained by another.
TEST(Balance, ComesToRest) {
  const Devices speeds = {InUse(1), InUse(0.5), InUse(2), InUse(1)};
  for (uint32_t begin = 0; begin < 256; ++begin) {
    Applications applications;
    for (uint32_t i = 0; i < 4; ++i) applications.push_back(Working(i + 1, begin >> 2 * i & 3, 0));
    int moves = 0;
    for (;; ++moves) {
      ASSERT_LT(moves, 16) << begin;
      Devices devices = speeds;
      std::vector<uint32_t> on(4);
      for (const auto& application : applications) ++on[application.device];
      for (auto& application : applications) application.use = 1.0 / on[application.device];
      for (uint32_t i = 0; i < 4; ++i) devices[i].idle = on[i] == 0 ? kBalanceIdle : 0;
      const auto move = ChooseMove(devices, applications);
      if (!move.has_value()) break;
      applications[move->session - 1].device = move->to;
    }
    std::vector<uint32_t> on(4);
    for (const auto& application : applications) ++on[application.device];
    EXPECT_GT(on[2], 0u) << "the fastest is idle, begun as " << begin;
  }
}

}  // namespace
}  // namespace consort::placement
