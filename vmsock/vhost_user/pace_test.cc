// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/pace.h"

#include "gtest/gtest.h"

namespace consort::vhost_user {
namespace {

constexpr uint64_t kTaken = 256 * kKiB;

// Steps of so many bytes a second, for `bytes`. Returns when it ends.
Nanos Take(Pace* pace, uint64_t bytes, uint64_t bytes_per_second, Nanos now) {
  for (uint64_t taken = 0; taken < bytes; taken += kTaken) {
    now += static_cast<Nanos>(kTaken * kSecond / bytes_per_second);
    pace->Took(kTaken, now);
  }
  return now;
}

TEST(Pace, TellsReadersFromThoseWhoOnlyTake) {
  Pace pace;
  EXPECT_FALSE(pace.faster_than_reading());
  Nanos now = Take(&pace, 8 * kMiB, 5'000'000'000, kSecond);
  EXPECT_FALSE(pace.faster_than_reading());
  now = Take(&pace, Pace::kJudgedBytes, 25'000'000'000, now);
  EXPECT_TRUE(pace.faster_than_reading());
  now = Take(&pace, Pace::kJudgedBytes, 5'000'000'000, now);
  EXPECT_FALSE(pace.faster_than_reading());
  now = Take(&pace, Pace::kJudgedBytes, Pace::kBytesPerSecondRead + 100'000'000, now);
  EXPECT_TRUE(pace.faster_than_reading());
  Take(&pace, Pace::kJudgedBytes, Pace::kBytesPerSecondRead - 100'000'000, now);
  EXPECT_FALSE(pace.faster_than_reading());
}

TEST(Pace, NothingIsSaidOfAFewBytesOrOfTheFirst) {
  Pace pace;
  Nanos now = Take(&pace, Pace::kJudgedBytes, 100'000'000'000, kSecond);
  EXPECT_FALSE(pace.faster_than_reading()) << "nobody knows when they began";
  now = Take(&pace, Pace::kJudgedBytes - kTaken, 100'000'000'000, now);
  EXPECT_FALSE(pace.faster_than_reading());
  Take(&pace, kTaken, 100'000'000'000, now);
  EXPECT_TRUE(pace.faster_than_reading());
}

// Many that wait between their bytes are no faster for taking each at once.
TEST(Pace, RestsCount) {
  Pace pace;
  Nanos now = Take(&pace, 2 * Pace::kJudgedBytes, 30'000'000'000, kSecond);
  EXPECT_TRUE(pace.faster_than_reading());
  for (int i = 0; i < 16; ++i) now = Take(&pace, kTaken, 30'000'000'000, now + kMillisecond);
  EXPECT_FALSE(pace.faster_than_reading());
}

}  // namespace
}  // namespace consort::vhost_user
