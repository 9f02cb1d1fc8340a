// SPDX-License-Identifier: Apache-2.0
#include "memmgr/range_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>
#include <vector>

namespace consort::memmgr {
namespace {

TEST(RangeAllocator, TakesTheSmallestRangeThatFits) {
  RangeAllocator ranges(100);
  EXPECT_EQ(ranges.Take(10), 0u);
  EXPECT_EQ(ranges.Take(5), 10u);
  EXPECT_EQ(ranges.Take(10), 15u);
  ranges.Return(0, 10);
  ranges.Return(10, 5);  // joins: 15 numbers from 0
  EXPECT_EQ(ranges.Take(15), 0u);
  EXPECT_EQ(ranges.largest_free(), 75u);
}

TEST(RangeAllocator, SaysWhenNothingIsLongEnoughThoughTheSumWouldBe) {
  RangeAllocator ranges(30);
  ASSERT_EQ(ranges.Take(10), 0u);
  ASSERT_EQ(ranges.Take(10), 10u);
  ASSERT_EQ(ranges.Take(10), 20u);
  ranges.Return(0, 10);
  ranges.Return(20, 10);
  EXPECT_EQ(ranges.Take(11), std::nullopt);
  EXPECT_EQ(ranges.free_total(), 20u);
  EXPECT_EQ(ranges.Take(10), 0u);
}

TEST(RangeAllocatorDeathTest, RefusesToTakeBackWhatIsFree) {
  RangeAllocator ranges(30);
  ASSERT_EQ(ranges.Take(10), 0u);
  ranges.Return(0, 10);
  EXPECT_DEATH(ranges.Return(5, 1), "returned twice");
}

// Random use against a plain array of flags. CONSORT_TEST_SEED repeats a run.
TEST(RangeAllocator, AgreesWithAnArrayOfFlagsUnderRandomUse) {
  const char* given = std::getenv("CONSORT_TEST_SEED");
  const auto seed =
      given != nullptr ? static_cast<unsigned>(std::atoi(given)) : std::random_device()();
  SCOPED_TRACE(::testing::Message() << "CONSORT_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  constexpr uint64_t kLength = 500;
  RangeAllocator ranges(kLength);
  std::vector<bool> taken(kLength, false);
  std::vector<std::pair<uint64_t, uint64_t>> held;
  for (int step = 0; step < 20000; ++step) {
    if (random() % 2 == 0) {
      const uint64_t length = 1 + random() % 40;
      uint64_t longest = 0, run = 0, free_total = 0;
      for (uint64_t i = 0; i < kLength; ++i) {
        run = taken[i] ? 0 : run + 1;
        longest = std::max(longest, run);
        free_total += taken[i] ? 0 : 1;
      }
      ASSERT_EQ(ranges.largest_free(), longest);
      ASSERT_EQ(ranges.free_total(), free_total);
      const uint64_t wish = random() % kLength;
      const bool at_wish = random() % 2 == 0;
      const bool wish_free = wish + length <= kLength &&
                             std::none_of(taken.begin() + static_cast<ptrdiff_t>(wish),
                                          taken.begin() + static_cast<ptrdiff_t>(wish + length),
                                          [](bool is_taken) { return is_taken; });
      std::optional<uint64_t> first;
      if (at_wish) {
        ASSERT_EQ(ranges.TakeAt(wish, length), wish_free);
        if (wish_free) first = wish;
      } else {
        first = ranges.Take(length);
        ASSERT_EQ(first.has_value(), longest >= length);
      }
      if (!first.has_value()) continue;
      for (uint64_t i = *first; i < *first + length; ++i) {
        ASSERT_FALSE(taken[i]);
        taken[i] = true;
      }
      held.emplace_back(*first, length);
    } else if (!held.empty()) {
      const size_t which = random() % held.size();
      const auto [first, length] = held[which];
      held[which] = held.back();
      held.pop_back();
      ranges.Return(first, length);
      for (uint64_t i = first; i < first + length; ++i) taken[i] = false;
    }
  }
}

}  // namespace
}  // namespace consort::memmgr
