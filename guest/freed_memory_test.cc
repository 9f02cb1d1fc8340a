// SPDX-License-Identifier: Apache-2.0
#include "guest/freed_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace consort::guest {
namespace {

constexpr uint64_t kMiB = 1024 * 1024;

TEST(FreedMemoryTest, GivesABlockToTheContextThatFreedIt) {
  FreedMemory freed;
  ASSERT_TRUE(freed.Keep({.address = 0x1000, .bytes = 64, .context_id = 1}));
  EXPECT_EQ(freed.Take(2, 64), 0u);
  EXPECT_EQ(freed.Take(1, 63), 0u);
  EXPECT_EQ(freed.Take(1, 65), 0u);
  EXPECT_EQ(freed.Take(1, 64), 0x1000u);
  EXPECT_EQ(freed.Take(1, 64), 0u);
}

TEST(FreedMemoryTest, GivesTheLatestOfASizeFirst) {
  FreedMemory freed;
  ASSERT_TRUE(freed.Keep({.address = 0x1000, .bytes = 64, .context_id = 1}));
  ASSERT_TRUE(freed.Keep({.address = 0x2000, .bytes = 64, .context_id = 1}));
  ASSERT_TRUE(freed.Keep({.address = 0x3000, .bytes = 32, .context_id = 1}));
  EXPECT_EQ(freed.Take(1, 64), 0x2000u);
  EXPECT_EQ(freed.Take(1, 64), 0x1000u);
  EXPECT_EQ(freed.Take(1, 32), 0x3000u);
}

TEST(FreedMemoryTest, KeepsNoMoreThanItsLimits) {
  FreedMemory freed;
  EXPECT_FALSE(
      freed.Keep({.address = 0x1000, .bytes = FreedMemory::kBytesMax + 1, .context_id = 1}));
  constexpr uint64_t kLess = kMiB / 2;
  ASSERT_TRUE(freed.Keep({.address = 0x1000, .bytes = kLess, .context_id = 1}));
  ASSERT_TRUE(
      freed.Keep({.address = 0x2000, .bytes = FreedMemory::kBytesMax - kLess, .context_id = 1}));
  EXPECT_FALSE(freed.Keep({.address = 0x3000, .bytes = 1, .context_id = 1}));
  ASSERT_EQ(freed.Take(1, kLess), 0x1000u);
  for (size_t i = 1; i < FreedMemory::kBlocksMax; ++i)
    ASSERT_TRUE(freed.Keep({.address = 0x10000 * i, .bytes = 1, .context_id = 1}));
  EXPECT_FALSE(freed.Keep({.address = 0x3000, .bytes = 1, .context_id = 1}));
}

TEST(FreedMemoryTest, GivesEverythingBackTheLongestKeptFirst) {
  FreedMemory freed;
  FreedMemory::Block block;
  EXPECT_FALSE(freed.TakeAny(&block));
  ASSERT_TRUE(freed.Keep({.address = 0x1000, .bytes = kMiB, .context_id = 1}));
  ASSERT_TRUE(freed.Keep({.address = 0x2000, .bytes = kMiB, .context_id = 2}));
  ASSERT_TRUE(freed.TakeAny(&block));
  EXPECT_EQ(block.address, 0x1000u);
  ASSERT_TRUE(freed.TakeAny(&block));
  EXPECT_EQ(block.address, 0x2000u);
  EXPECT_FALSE(freed.TakeAny(&block));
  // And has room again.
  EXPECT_TRUE(freed.Keep({.address = 0x3000, .bytes = FreedMemory::kBytesMax, .context_id = 1}));
}

TEST(FreedMemoryTest, ForgetsAContextThatEnds) {
  FreedMemory freed;
  ASSERT_TRUE(freed.Keep({.address = 0x1000, .bytes = 64, .context_id = 1}));
  ASSERT_TRUE(freed.Keep({.address = 0x2000, .bytes = 64, .context_id = 2}));
  ASSERT_TRUE(freed.Keep({.address = 0x3000, .bytes = 64, .context_id = 1}));
  freed.Forget(1);
  EXPECT_EQ(freed.Take(1, 64), 0u);
  EXPECT_EQ(freed.Take(2, 64), 0x2000u);
}

TEST(FreedMemoryTest, GivesEachBlockToOneThread) {
  FreedMemory freed;
  constexpr int kThreads = 4;
  constexpr int kRounds = 20000;
  std::atomic<int> used[FreedMemory::kBlocksMax + 1] = {};
  std::atomic<bool> twice{false};
  for (uint64_t address = 1; address <= FreedMemory::kBlocksMax; ++address)
    ASSERT_TRUE(freed.Keep({.address = address, .bytes = 64, .context_id = 1}));
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const uint64_t address = freed.Take(1, 64);
        if (address == 0) continue;
        if (used[address].fetch_add(1) != 0) twice = true;
        used[address].fetch_sub(1);
        if (!freed.Keep({.address = address, .bytes = 64, .context_id = 1})) twice = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(twice);
  FreedMemory::Block block;
  size_t left = 0;
  while (freed.TakeAny(&block)) ++left;
  EXPECT_EQ(left, FreedMemory::kBlocksMax);
}

}  // namespace
}  // namespace consort::guest
