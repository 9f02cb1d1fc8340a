// SPDX-License-Identifier: Apache-2.0
#include "memmgr/pinned_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "memmgr/limits.h"

namespace consort::memmgr {
namespace {

constexpr Bytes kBlock = 4 * kGranuleBytes;

int registered = 0;
int unregistered = 0;

CUresult Register(void*, size_t bytes, unsigned) {
  EXPECT_EQ(bytes, kBlock);
  ++registered;
  return CUDA_SUCCESS;
}
CUresult Unregister(void*) {
  ++unregistered;
  return CUDA_SUCCESS;
}

class PinnedPoolTest : public ::testing::Test {
 protected:
  PinnedPoolTest() {
    registered = unregistered = 0;
    driver_.cuMemHostRegister_v2 = Register;
    driver_.cuMemHostUnregister = Unregister;
  }
  device::DriverTable driver_ = {};
};

Bytes SumOf(const PinnedPool::Runs& runs) {
  Bytes sum = 0;
  for (const auto& run : runs) sum += run.size();
  return sum;
}

TEST_F(PinnedPoolTest, EveryGranuleCanBeUsedHoweverTheyComeAndGo) {
  PinnedPool pool(driver_, 8 * kBlock + kGranuleBytes, kBlock);
  EXPECT_EQ(pool.capacity(), 8 * kBlock);
  std::mt19937 random(20261122);
  std::vector<PinnedPool::Runs> taken;
  Bytes out = 0;
  for (int step = 0; step < 3000; ++step) {
    const Bytes bytes = (1 + random() % 4) * kGranuleBytes;
    if (random() % 2 == 0) {
      const PinnedPool::Runs runs = pool.Take(bytes);
      // There is so much exactly if nobody has it.
      ASSERT_EQ(runs.empty(), out + bytes > pool.capacity());
      if (runs.empty()) continue;
      ASSERT_EQ(SumOf(runs), bytes);
      for (const auto& run : runs) std::memset(run.data(), static_cast<int>(taken.size()), 8);
      out += bytes;
      taken.push_back(runs);
    } else if (!taken.empty()) {
      std::swap(taken[random() % taken.size()], taken.back());
      out -= SumOf(taken.back());
      pool.Return(taken.back());
      taken.pop_back();
    }
    std::set<std::byte*> granules;
    for (const auto& runs : taken) {
      for (const auto& run : runs) {
        for (Bytes at = 0; at < run.size(); at += kGranuleBytes) {
          ASSERT_TRUE(granules.insert(run.data() + at).second) << "given out twice";
        }
      }
    }
  }
  EXPECT_EQ(registered, 8);
  EXPECT_EQ(unregistered, 0);
  for (const auto& runs : taken) pool.Return(runs);
  // Blocks are whole again.
  for (int i = 0; i < 8; ++i) EXPECT_EQ(pool.Take(kBlock).size(), 1u);
}

TEST_F(PinnedPoolTest, IsMadeAheadUpToItsLimitAndGivenBackAtTheEnd) {
  {
    PinnedPool pool(driver_, 2 * kBlock, kBlock);
    EXPECT_TRUE(pool.Prepare());
    EXPECT_TRUE(pool.Prepare());
    EXPECT_FALSE(pool.Prepare());
    const PinnedPool::Runs all = pool.Take(2 * kBlock);
    EXPECT_EQ(SumOf(all), 2 * kBlock);
    EXPECT_TRUE(pool.Take(kGranuleBytes).empty());
    pool.Return(all);
  }
  EXPECT_EQ(unregistered, 2);
}

}  // namespace
}  // namespace consort::memmgr
