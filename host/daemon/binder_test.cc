// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/binder.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace consort::host {
namespace {

constexpr Bytes kMemory = 64 * kMiB;

class BinderTest : public ::testing::Test {
 protected:
  void SetUp() override { Make({}); }
  void Make(const gpool::MapperOptions& options) {
    auto made = Binder::Make(options);
    ASSERT_TRUE(made.ok()) << made.status();
    binder_ = *std::move(made);
  }
  uint32_t Choose(const Binder::Wanted& wanted) {
    return binder_->Choose(devices_, bound_, wanted, ++now_).device;
  }
  static Binder::Wanted Wanted(uint64_t session, Bytes memory = kMiB) {
    Binder::Wanted wanted;
    wanted.application = {session, "program", 0};
    wanted.memory = memory;
    wanted.others = {1};
    return wanted;
  }

  std::unique_ptr<Binder> binder_;
  std::vector<Binder::Device> devices_ = {{"cpu", kMemory}, {"cpu", kMemory}};
  std::vector<Binder::Application> bound_;
  Nanos now_ = 0;
};

TEST_F(BinderTest, OfEqualDevicesItStaysWhereItIs) {
  EXPECT_EQ(Choose(Wanted(1)), 0u);
  Binder::Wanted on_the_last = Wanted(1);
  on_the_last.application.device = 1;
  on_the_last.others = {0};
  EXPECT_EQ(Choose(on_the_last), 1u);
  bound_ = {{2, "program", 0}, {3, "program", 1}};
  EXPECT_EQ(Choose(Wanted(1)), 0u);
  EXPECT_EQ(Choose(on_the_last), 1u);
}

TEST_F(BinderTest, GoesWhereFewerAreBoundNow) {
  bound_ = {{2, "program", 0}};
  EXPECT_EQ(Choose(Wanted(1)), 1u);
  // They have gone, or are elsewhere: nothing of that is remembered.
  bound_ = {{2, "program", 1}};
  EXPECT_EQ(Choose(Wanted(1)), 0u);
  bound_ = {};
  EXPECT_EQ(Choose(Wanted(1)), 0u);
}

TEST_F(BinderTest, GoesOnlyWhereItMay) {
  bound_ = {{2, "program", 0}};
  Binder::Wanted wanted = Wanted(1);
  wanted.others = {};
  EXPECT_EQ(Choose(wanted), 0u);
}

TEST_F(BinderTest, GoesWhereItsMemoryFits) {
  devices_[0].memory_used = 48 * kMiB;
  EXPECT_EQ(Choose(Wanted(1, 16 * kMiB)), 0u);
  EXPECT_EQ(Choose(Wanted(1, 16 * kMiB + 1)), 1u);
  // Fewer there, but no room.
  bound_ = {{2, "program", 0}};
  devices_[0].memory_used = 0;
  devices_[1].memory_used = 60 * kMiB;
  EXPECT_EQ(Choose(Wanted(1, 8 * kMiB)), 0u);
  // No room anywhere.
  devices_[0].memory_used = 60 * kMiB;
  const Binder::Choice choice = binder_->Choose(devices_, bound_, Wanted(1, 8 * kMiB), ++now_);
  EXPECT_EQ(choice.device, 0u);
  EXPECT_NE(choice.why.find("memory"), std::string::npos) << choice.why;
}

TEST_F(BinderTest, ATenantsPolicyDecidesForIt) {
  bound_ = {{2, "program", 0}};
  Binder::Wanted wanted = Wanted(1);
  wanted.policy = "static";
  EXPECT_EQ(Choose(wanted), 0u);
  wanted.policy = "gmin";
  EXPECT_EQ(Choose(wanted), 1u);
}

// One long application of a program counts for more than two short ones of another, once that is
// known: then a policy that goes by what was measured decides otherwise than one that counts.
TEST_F(BinderTest, WhatWasMeasuredOfProgramsCounts) {
  Make({.policy = "rtf", .feedback_policy = ""});
  for (int i = 0; i < 20; ++i) {
    binder_->Record("long", "cpu", {.runtime = 100 * kSecond, .kernels = 50 * kSecond}, ++now_);
    binder_->Record("short", "cpu", {.runtime = kSecond, .kernels = kSecond / 2}, ++now_);
  }
  bound_ = {{2, "short", 0}, {3, "short", 0}, {4, "long", 1}};
  EXPECT_EQ(Choose(Wanted(1)), 0u);
  bound_ = {{5, "long", 0}, {6, "short", 1}, {7, "short", 1}};
  EXPECT_EQ(Choose(Wanted(1)), 1u);
}

TEST_F(BinderTest, RefusesPoliciesThatThereAreNot) {
  EXPECT_EQ(Binder::Make({.policy = "none"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Binder::Make({.policy = "/no/such.so"}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace consort::host
