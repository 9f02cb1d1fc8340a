// SPDX-License-Identifier: Apache-2.0
#include "policies/placement/gpu_index.h"

#include <gtest/gtest.h>

#include <array>
#include <map>

#include "policies/placement/test_pools.h"

namespace consort::placement {
namespace {

using Slot = GpuIndex::Slot;

TEST(GpuIndex, FindsTheLeastKeyAmongThoseWithTheMemory) {
  GpuIndex index(1);
  index.Set(0, 0, 4 * kGiB, 10, std::array{1.0});
  index.Set(1, 0, 8 * kGiB, 11, std::array{2.0});
  index.Set(2, 0, 16 * kGiB, 12, std::array{3.0});
  EXPECT_EQ(index.Min(0, 0, 0), 0u);
  EXPECT_EQ(index.Min(0, 4 * kGiB, 0), 0u);
  EXPECT_EQ(index.Min(0, 4 * kGiB + 1, 0), 1u);
  EXPECT_EQ(index.Min(0, 16 * kGiB, 0), 2u);
  EXPECT_EQ(index.Min(0, 16 * kGiB + 1, 0), GpuIndex::kNone);
}

TEST(GpuIndex, OfEqualKeysTheLowerGidIsBetter) {
  GpuIndex index(1);
  index.Set(0, 0, kGiB, 7, std::array{1.0});
  index.Set(1, 0, 2 * kGiB, 3, std::array{1.0});
  EXPECT_EQ(index.Min(0, 0, 0), 1u);
}

TEST(GpuIndex, GroupsAreApart) {
  GpuIndex index(1);
  index.Set(0, 2, kGiB, 1, std::array{1.0});
  EXPECT_EQ(index.Min(0, 0, 0), GpuIndex::kNone);
  EXPECT_EQ(index.Min(2, 0, 0), 0u);
  EXPECT_EQ(index.Min(3, 0, 0), GpuIndex::kNone);
  index.Set(0, 1, kGiB, 1, std::array{1.0});
  EXPECT_EQ(index.Min(2, 0, 0), GpuIndex::kNone);
  EXPECT_EQ(index.Min(1, 0, 0), 0u);
}

// Random changes; every answer is compared with a search through all.
TEST(GpuIndex, AgreesWithASearchThroughAll) {
  struct Known {
    uint32_t group;
    Bytes free;
    Gid gid;
    std::array<double, 3> keys;
  };
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    TestRandom random(seed);
    GpuIndex index(3);
    std::map<Slot, Known> known;
    for (int step = 0; step < 4000; ++step) {
      const auto slot = static_cast<Slot>(random.Below(200));
      if (random.Below(5) == 0) {
        index.Remove(slot);
        known.erase(slot);
      } else {
        Known now{.group = static_cast<uint32_t>(random.Below(3)),
                  .free = random.Below(20) * kGiB,
                  .gid = slot * 31 % 257,
                  .keys = {}};
        if (known.contains(slot) && random.Below(2) == 0) {
          now.group = known[slot].group;
          now.free = known[slot].free;
        }
        for (double& key : now.keys) key = static_cast<double>(random.Below(8));
        index.Set(slot, now.group, now.free, now.gid, now.keys);
        known[slot] = now;
      }
      const auto group = static_cast<uint32_t>(random.Below(3));
      const auto key = static_cast<uint32_t>(random.Below(3));
      const Bytes need = random.Below(22) * kGiB;
      Slot best = GpuIndex::kNone;
      for (const auto& [other, what] : known) {
        if (what.group != group || what.free < need) continue;
        if (best == GpuIndex::kNone || std::pair(what.keys[key], what.gid) <
                                           std::pair(known[best].keys[key], known[best].gid)) {
          best = other;
        }
      }
      ASSERT_EQ(index.Min(group, need, key), best) << "seed " << seed << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace consort::placement
