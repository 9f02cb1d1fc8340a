// SPDX-License-Identifier: Apache-2.0
// The promises of policy.h, for every policy, over random sequences of events.
//
// A failure prints its seed; CONSORT_TEST_SEED=N runs that one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "policies/schedule/policy.h"

namespace consort::schedule {
namespace {

class Conformance : public ::testing::TestWithParam<std::string_view> {
 protected:
  static std::vector<uint64_t> Seeds() {
    const char* seed = getenv("CONSORT_TEST_SEED");
    if (seed != nullptr) return {strtoull(seed, nullptr, 0)};
    return {1, 2, 3, 4, 5, 6, 7, 8};
  }
  std::unique_ptr<Policy> policy_ = MakePolicy(GetParam(), Options{});
  Nanos now_ = 1'000'000'007;
};

TEST_P(Conformance, SaysWhatItPromises) { EXPECT_NE(PolicyPromise(GetParam()), ""); }

TEST_P(Conformance, ChoosesNobodyWhereNobodyWaits) {
  EXPECT_EQ(policy_->Choose(now_, false), std::nullopt);
  policy_->Join({0, 0, 1}, now_);
  EXPECT_EQ(policy_->Choose(now_, true), std::nullopt);
  policy_->Wait(0, {}, now_);
  policy_->Withdraw(0, now_);
  EXPECT_EQ(policy_->Choose(now_, true), std::nullopt);
}

TEST_P(Conformance, OneAloneAlwaysRuns) {
  policy_->Join({3, 1, 7}, now_);
  for (int i = 0; i < 1000; ++i) {
    policy_->Wait(3, {Phase::kKernel, 5 * kMillisecond}, now_);
    ASSERT_EQ(policy_->Choose(now_, false), 3u);
    policy_->Start(3, now_);
    now_ += 5 * kMillisecond;
    policy_->Charge(3, ServedAlone(5 * kMillisecond), now_);
    policy_->Finish(3, now_);
  }
}

TEST_P(Conformance, ForgetsWhoLeavesWithWorkWaitingAndInFlight) {
  policy_->Join({0, 0, 1}, now_);
  policy_->Join({1, 0, 1}, now_);
  for (int i = 0; i < 3; ++i) policy_->Start(0, now_);
  policy_->Wait(0, {}, now_);
  policy_->Leave(0, now_);
  policy_->Wait(1, {}, now_);
  EXPECT_EQ(policy_->Choose(now_, false), 1u);
  policy_->Join({0, 0, 1}, now_);  // the number is used again
  policy_->Wait(0, {}, now_);
  policy_->Start(1, now_);
  policy_->Finish(1, now_);
  EXPECT_EQ(policy_->Choose(now_, false), 0u);
}

// Random events that a scheduler may bring: whoever is chosen waits, and nobody waits beside an
// idle device.
TEST_P(Conformance, ChoosesOnlyThoseThatWaitAndKeepsTheDeviceBusy) {
  for (const uint64_t seed : Seeds()) {
    SCOPED_TRACE(testing::Message() << "CONSORT_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    const auto policy = MakePolicy(GetParam(), Options{});
    struct Known {
      bool joined = false;
      bool waits = false;
      int in_flight = 0;
    };
    std::vector<Known> known(12);
    int in_flight = 0;
    for (int step = 0; step < 20000; ++step) {
      now_ += static_cast<Nanos>(random() % 300) * kMicrosecond;
      const auto id = static_cast<ApplicationId>(random() % known.size());
      Known& one = known[id];
      switch (random() % 8) {
        case 0:
          if (!one.joined) {
            policy->Join({id, id / 2, 1 + id % 3}, now_);
            one.joined = true;
          } else if (random() % 8 == 0) {
            policy->Leave(id, now_);
            in_flight -= one.in_flight;
            one = {};
          }
          break;
        case 1:
          if (one.waits) policy->Withdraw(id, now_);
          one.waits = false;
          break;
        case 2:
        case 3:
          if (one.joined && !one.waits) {
            policy->Wait(id,
                         {static_cast<Phase>(random() % kPhases),
                          static_cast<Nanos>(random() % (3 * kMillisecond))},
                         now_);
            one.waits = true;
          }
          break;
        case 4:
          // Started without having been announced.
          if (one.joined && !one.waits && random() % 16 == 0) {
            policy->Start(id, now_);
            ++one.in_flight;
            ++in_flight;
          }
          break;
        default:
          if (one.in_flight != 0) {
            policy->Charge(id, ServedAlone(static_cast<Nanos>(random() % (4 * kMillisecond))),
                           now_);
            policy->Finish(id, now_);
            --one.in_flight;
            --in_flight;
          }
      }
      bool waits = false;
      for (const Known& each : known) waits |= each.waits;
      const bool stalled = random() % 64 == 0;
      const std::optional<ApplicationId> chosen = policy->Choose(now_, stalled);
      if (chosen.has_value()) {
        ASSERT_LT(*chosen, known.size());
        ASSERT_TRUE(known[*chosen].waits);
        policy->Start(*chosen, now_);
        known[*chosen].waits = false;
        ++known[*chosen].in_flight;
        ++in_flight;
      } else {
        ASSERT_FALSE(waits && (in_flight == 0 || stalled));
      }
    }
  }
}

// Everybody asks again at once, one batch is longer than all others: each is chosen again within
// what the others' turns take.
TEST_P(Conformance, StarvesNobody) {
  constexpr ApplicationId kApplications = 20;
  std::vector<Nanos> waits_since(kApplications, now_);
  std::vector<int> turns(kApplications, 0);
  const auto length = [](ApplicationId id) {
    return (1 + 10 * Nanos{id % 7}) * 100 * kMicrosecond;
  };
  const auto wait = [&](ApplicationId id) {
    policy_->Wait(id, {static_cast<Phase>(id % kPhases), length(id)}, now_);
    waits_since[id] = now_;
  };
  for (ApplicationId id = 0; id < kApplications; ++id) {
    policy_->Join({id, id / 3, 1 + id % 4}, now_);
    wait(id);
  }
  const Nanos end = now_ + 20 * kSecond;
  while (now_ < end) {
    const auto chosen = policy_->Choose(now_, false);
    ASSERT_TRUE(chosen.has_value());
    ASSERT_LT(now_ - waits_since[*chosen], 2 * kSecond) << *chosen;
    policy_->Start(*chosen, now_);
    now_ += length(*chosen);
    policy_->Charge(*chosen, ServedAlone(length(*chosen)), now_);
    policy_->Finish(*chosen, now_);
    ++turns[*chosen];
    wait(*chosen);
  }
  for (const int count : turns) EXPECT_GT(count, 0);
}

INSTANTIATE_TEST_SUITE_P(Policies, Conformance, ::testing::ValuesIn(PolicyNames()),
                         [](const auto& info) { return std::string(info.param); });

TEST(Registry, KnowsNoOtherName) {
  EXPECT_EQ(MakePolicy("fairest", Options{}), nullptr);
  EXPECT_EQ(PolicyPromise("fairest"), "");
}

}  // namespace
}  // namespace consort::schedule
