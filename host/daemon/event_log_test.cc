// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/event_log.h"

#include <gtest/gtest.h>

#include <string>

#include "host/limits.h"

namespace consort::host {
namespace {

TEST(EventLog, ForgetsTheOldestBeyondItsBound) {
  EventLog log([] { return 5; });
  for (uint32_t i = 0; i <= kEventsMax; ++i) log.Add(EventLevel::kInfo, std::to_string(i));
  ASSERT_EQ(log.events().size(), kEventsMax);
  EXPECT_EQ(log.events().front().text, "1");
  EXPECT_EQ(log.events().back().number, kEventsMax + 1);
}

TEST(EventLog, WhatRepeatsSoonIsOneEventWithACount) {
  uint64_t now = 1000;
  EventLog log([&now] { return now; });
  log.Add(EventLevel::kWarning, "refused");
  log.Add(EventLevel::kInfo, "other");
  now += static_cast<uint64_t>(kEventRepeat / kSecond);
  log.Add(EventLevel::kWarning, "refused");
  ASSERT_EQ(log.events().size(), 2u);
  EXPECT_EQ(log.events().back().text, "refused");
  EXPECT_EQ(log.events().back().times, 2u);
  EXPECT_EQ(log.events().back().number, 3u);
  EXPECT_EQ(log.events().back().unix_seconds, now);
}

TEST(EventLog, WhatRepeatsLaterOrAtAnotherLevelIsAnEventOfItsOwn) {
  uint64_t now = 1000;
  EventLog log([&now] { return now; });
  log.Add(EventLevel::kWarning, "refused");
  log.Add(EventLevel::kError, "refused");
  now += static_cast<uint64_t>(kEventRepeat / kSecond) + 1;
  log.Add(EventLevel::kWarning, "refused");
  EXPECT_EQ(log.events().size(), 3u);
}

}  // namespace
}  // namespace consort::host
