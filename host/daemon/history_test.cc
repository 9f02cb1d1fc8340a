// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/history.h"

#include <gtest/gtest.h>

#include "host/limits.h"

namespace consort::host {
namespace {

using Totals = std::map<UsageKey, UsageTotals>;

uint32_t EveryoneOne(const std::string&) { return 1; }

TEST(History, ASampleIsWhatWasUsedInItsStep) {
  History history;
  Totals totals;
  totals[{"a", "x", 0}].used.device_nanos = 5 * kSecond;
  history.Add(totals, EveryoneOne, 2, 100 * kSecond, 1'000);
  EXPECT_TRUE(history.fine().empty());  // nothing to compare with
  totals[{"a", "x", 0}].used.device_nanos += 600 * kMillisecond;
  totals[{"a", "y", 1}].used.device_nanos += 1 * kSecond;
  totals[{"b", "x", 0}].used.device_nanos += 400 * kMillisecond;
  totals[{"b", "x", 0}].used.memory_bytes = 7;
  totals[{"c", "x", 0}];
  history.Add(totals, EveryoneOne, 2, 102 * kSecond, 3'000);
  ASSERT_EQ(history.fine().size(), 1u);
  const HistorySample& sample = history.fine()[0];
  EXPECT_EQ(sample.number, 1u);
  EXPECT_EQ(sample.unix_millis, 3'000u);
  ASSERT_EQ(sample.tenants.size(), 2u);
  EXPECT_DOUBLE_EQ(sample.tenants.at("a").used, 0.8);
  EXPECT_DOUBLE_EQ(sample.tenants.at("b").used, 0.2);
  EXPECT_EQ(sample.devices, (std::vector<double>{0.5, 0.5}));
  EXPECT_EQ(sample.memory_bytes, (std::vector<uint64_t>{7, 0}));
}

TEST(History, CoarseSamplesAreTheMeanOfTheirSteps) {
  History history;
  Totals totals;
  history.Add(totals, EveryoneOne, 1, 0, 0);
  for (uint32_t step = 1; step <= 2 * kHistoryCoarseSteps; ++step) {
    // Busy in the first coarse step, idle in the second.
    if (step <= kHistoryCoarseSteps) totals[{"a", "x", 0}].used.device_nanos += kSecond / 4;
    history.Add(totals, EveryoneOne, 1, step * kSecond, step * 1000);
  }
  ASSERT_EQ(history.coarse().size(), 2u);
  EXPECT_DOUBLE_EQ(history.coarse()[0].devices[0], 0.25);
  EXPECT_DOUBLE_EQ(history.coarse()[1].devices[0], 0);
  EXPECT_TRUE(history.coarse()[1].tenants.empty());
  EXPECT_EQ(history.coarse()[1].number, 2u);
}

TEST(History, TargetsAreByWeightAmongThoseWhoWantADevice) {
  History history;
  Totals totals;
  const auto weights = [](const std::string& tenant) {
    return tenant == "a" ? 3u : tenant == "d" ? 100u : 1u;
  };
  history.Add(totals, weights, 2, 0, 0);
  totals[{"a", "x", 0}].used.device_nanos = kSecond / 2;
  totals[{"b", "x", 0}].used.queued_nanos = kSecond;  // has waited only
  totals[{"b", "x", 1}].used.device_nanos = kSecond;  // alone there
  totals[{"d", "x", 0}];                              // wants nothing
  history.Add(totals, weights, 2, kSecond, 0);
  const HistorySample& sample = history.fine().back();
  EXPECT_DOUBLE_EQ(sample.tenants.at("a").target, 0.5 * 3 / 4);
  EXPECT_DOUBLE_EQ(sample.tenants.at("b").target, 0.5 * 1 / 4 + 1);
  EXPECT_FALSE(sample.tenants.contains("d"));
}

TEST(History, IsBounded) {
  History history;
  for (uint64_t step = 0; step <= kHistoryFine + 1; ++step) {
    history.Add({}, EveryoneOne, 1, static_cast<Nanos>(step) * kSecond, step);
  }
  ASSERT_EQ(history.fine().size(), kHistoryFine);
  EXPECT_EQ(history.fine().front().number, 2u);
}

}  // namespace
}  // namespace consort::host
