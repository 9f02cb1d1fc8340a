// SPDX-License-Identifier: Apache-2.0
// Runs lane_kernels_for_test.cu in blocks of many shapes, against the same bodies in C++.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "device/cpu/engine/kernel_file_for_test.h"
#include "device/cpu/engine/lane_bodies_for_test.h"
#include "device/cpu/program.h"

namespace consort::cpu {
namespace {

constexpr uint32_t kSeed = 20250311;
constexpr uint32_t kWarp = 32;

// Whole warps in rows, short last warps, rows of half and quarter warps, rows of no such length,
// and blocks too small to be worth it.
constexpr std::array<uint32_t, 3> kBlocks[] = {{256, 1, 1}, {32, 4, 1},  {100, 1, 1}, {16, 16, 1},
                                               {8, 4, 4},   {24, 3, 1},  {5, 7, 3},   {7, 1, 1},
                                               {1, 1, 1},   {1024, 1, 1}};

class LaneKernels : public KernelFileTest {
 protected:
  using KernelFileTest::Shape;
  static LaunchShape Shape(uint32_t blocks, const std::array<uint32_t, 3>& block) {
    LaunchShape shape;
    shape.grid[0] = blocks;
    for (size_t i = 0; i < 3; ++i) shape.block[i] = block[i];
    return shape;
  }

  // As many blocks as `count` threads take.
  static LaunchShape Covering(uint32_t count, const std::array<uint32_t, 3>& block) {
    const uint32_t threads = block[0] * block[1] * block[2];
    return Shape((count + threads - 1) / threads, block);
  }

  template <typename T>
  std::vector<T> Random(size_t count) {
    std::vector<T> values(count);
    for (T& value : values) value = static_cast<T>(random_());
    return values;
  }

  // Runs `name` over `count` values in each shape and compares with body(in, i).
  template <typename T, typename Body, typename... More>
  void Compare(const std::string& name, const std::vector<T>& in, Body body, More... more) {
    const auto count = static_cast<uint32_t>(in.size());
    std::vector<T> expected;
    for (uint32_t i = 0; i < count; ++i) expected.push_back(body(in, i));
    for (const auto& block : kBlocks) {
      std::vector<T> out(count);
      Run(name, Covering(count, block), in.data(), out.data(), count, more...);
      EXPECT_EQ(out, expected) << name << " in blocks of " << block[0] << " x " << block[1] << " x "
                               << block[2];
    }
  }

  std::mt19937_64 random_{kSeed};
};

TEST_P(LaneKernels, NestedLoopsOfDifferentLengths) {
  for (const uint32_t limit : {0u, 5u, 20u}) {
    Compare(
        "RunNestedLoops", Random<uint32_t>(3000),
        [&](const auto& in, uint32_t i) { return NestedLoops(in[i], limit); }, limit);
  }
}

TEST_P(LaneKernels, SwitchesInLoops) {
  Compare("RunStateMachine", Random<uint32_t>(3000),
          [](const auto& in, uint32_t i) { return StateMachine(in[i]); });
}

TEST_P(LaneKernels, LanesThatDoNotDivideDoNotDivideByZero) {
  auto in = Random<int64_t>(3000);
  for (size_t i = 0; i < in.size(); ++i) {
    if (i % 3 == 0) in[i] = 0;
    if (i % 7 == 0) in[i] = -1;
    if (i % 11 == 0) in[i] = INT64_MIN;
  }
  Compare("RunGuardedDivision", in, [](const auto& values, uint32_t i) {
    return GuardedDivision(values[i], values[values.size() - 1 - i]);
  });
}

TEST_P(LaneKernels, EachThreadHasLocalArrays) {
  Compare("RunLocalArrays", Random<uint32_t>(3000),
          [](const auto& in, uint32_t i) { return LocalArrays(in[i]); });
}

TEST_P(LaneKernels, ValuesOfAllWidthsAtAllKindsOfAddresses) {
  constexpr uint32_t kCount = 3000;
  std::vector<Mixed> in(kCount);
  std::memset(in.data(), 0, in.size() * sizeof(Mixed));
  for (Mixed& value : in) {
    value.byte = static_cast<uint8_t>(random_());
    value.half = static_cast<int16_t>(random_());
    value.word = static_cast<uint32_t>(random_());
    value.wide = random_();
  }
  for (const auto& block : kBlocks) {
    std::vector<Mixed> out(kCount);
    Run("RunMixedWidths", Covering(kCount, block), in.data(), out.data(), kCount);
    for (uint32_t i = 0; i < kCount; ++i) {
      const Mixed expected = MixedWidths(in.data(), kCount, i);
      ASSERT_EQ(out[i].byte, expected.byte) << i;
      ASSERT_EQ(out[i].half, expected.half) << i;
      ASSERT_EQ(out[i].word, expected.word) << i;
      ASSERT_EQ(out[i].wide, expected.wide) << i;
    }
  }
}

TEST_P(LaneKernels, ValuesOf16BytesWhereverTheyLie) {
  using Quad = std::array<uint32_t, 4>;
  constexpr uint32_t kCount = 3001;
  struct alignas(16) Place {
    Quad quad;
  };
  std::vector<Place> in(kCount);
  for (Place& place : in) {
    for (uint32_t& word : place.quad) word = static_cast<uint32_t>(random_());
  }
  constexpr Quad kUntouched = {1, 2, 3, 4};
  std::vector<Quad> expected(kCount, kUntouched);
  for (uint32_t i = 0; i < kCount; ++i) {
    Quad value = in[(i * 7 + 3) % kCount].quad;
    if ((value[0] & 1) != 0) {
      const Quad& other = in[(i * 11 + 5) % kCount].quad;
      value[1] += other[0];
      value[3] ^= other[2];
    }
    if ((value[0] & 6) != 0) expected[(i * 13 + 1) % kCount] = value;
  }
  for (const auto& block : kBlocks) {
    std::vector<Place> out(kCount, {kUntouched});
    Run("RunQuads", Covering(kCount, block), in.data(), out.data(), kCount);
    for (uint32_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(out[i].quad, expected[i])
          << i << " in blocks of " << block[0] << " x " << block[1] << " x " << block[2];
    }
  }
}

TEST_P(LaneKernels, IndicesThatWrapBetweenTwoLanes) {
  constexpr uint32_t kCount = 500;
  const auto in = Random<uint32_t>(kCount);
  for (const uint32_t start : {0u, 0xFFFFFFF0u, 0xFFFFFFF3u, 0xFFFFFF00u, 0x7FFFFFF0u}) {
    constexpr uint32_t kBlocks = 3;
    constexpr uint32_t kThreads = 64;
    std::vector<uint32_t> out(kBlocks * kThreads);
    Run("WrappingIndices", Shape(kBlocks, {kThreads, 1, 1}), in.data(), out.data(), start, kCount);
    for (uint32_t t = 0; t < out.size(); ++t) {
      const uint32_t i = start + t;
      const uint32_t at = i + 8;
      EXPECT_EQ(out[t], at < kCount ? in[at] : ~in[kCount - 1 - (i & 7)]) << start << " " << t;
    }
  }
}

TEST_P(LaneKernels, PassByARegionWithASideOfItsOwn) {
  constexpr uint32_t kThreads = 96;
  for (const uint32_t enter : {0u, 9u}) {
    const auto in = Random<uint32_t>(kThreads);
    std::vector<uint32_t> out = in;
    Run("PassedBy", Shape(1, {kThreads, 1, 1}), out.data(), 3u, enter);
    for (uint32_t t = 0; t < kThreads; ++t) {
      uint32_t value = in[t];
      if (value % 3 == 1) value = (((value * 7 + 11) ^ 23) * 13 + 17) ^ 5;
      ASSERT_EQ(out[t], enter == 0 ? value + in[t] : in[t]) << enter << " " << t;
    }
  }
}

// Where both indices have wrapped, the first lane and the last are as far apart as if none had.
TEST_P(LaneKernels, WalksFromTwoIndicesThatWrapApart) {
  constexpr uint32_t kCount = 500;
  constexpr uint32_t kStepsMax = 5;
  const auto in = Random<uint32_t>(kCount + kStepsMax * 64);
  for (const uint32_t start : {0u, 0xFFFFFFE0u, 0xFFFFFFF0u, 0xFFFFFFD1u, 0x7FFFFFF0u}) {
    for (const uint32_t back : {0u, 3u, 16u}) {
      for (const uint32_t steps : {0u, 1u, kStepsMax}) {
        constexpr uint32_t kBlocks = 2;
        constexpr uint32_t kThreads = 96;
        std::vector<uint32_t> out(kBlocks * kThreads);
        Run("WrappingWalks", Shape(kBlocks, {kThreads, 1, 1}), in.data(), out.data(), start,
            start - back, steps, kCount);
        for (uint32_t t = 0; t < out.size(); ++t) {
          const uint32_t a = start + 2 * t, b = start - back + t;
          const uint64_t first = uint64_t{a} - b;
          uint32_t sum = 0;
          for (uint32_t k = 0; first < kCount && k < steps; ++k) sum = 3 * sum + in[first + k * 64];
          ASSERT_EQ(out[t], sum) << start << " " << back << " " << steps << " " << t;
        }
      }
    }
  }
}

TEST_P(LaneKernels, ThreadsThatReturnedMissNoBarrier) {
  for (const uint32_t threads : {32u, 64u, 100u, 256u}) {
    for (const uint32_t count : {1u, 31u, 33u, 200u, 512u}) {
      const auto in = Random<uint32_t>(count);
      const uint32_t blocks = (count + threads - 1) / threads + 1;
      std::vector<uint32_t> out(count);
      LaunchShape shape = Shape(blocks, {threads, 1, 1});
      shape.dynamic_shared_bytes = threads * 4;
      Run("ReturnBeforeBarrier", shape, in.data(), out.data(), count);
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t first = i / threads * threads;
        uint32_t sum = 0;
        for (uint32_t k = 0; k < threads && first + k < count; ++k) {
          sum += in[first + k] * (k + i % threads);
        }
        ASSERT_EQ(out[i], sum) << threads << " " << count << " " << i;
      }
    }
  }
}

TEST_P(LaneKernels, PredicatesOfABlock) {
  for (const uint32_t threads : {32u, 96u, 100u, 9u, 1u}) {
    constexpr uint32_t kBlocks = 5;
    auto in = Random<uint32_t>(kBlocks * threads);
    for (uint32_t i = 0; i < 2 * threads; ++i) in[i] |= 2;
    std::vector<uint32_t> out(in.size());
    Run("BlockVotes", Shape(kBlocks, {threads, 1, 1}), in.data(), out.data());
    for (uint32_t block = 0; block < kBlocks; ++block) {
      uint32_t count = 0, all = 1, any = 0;
      for (uint32_t i = block * threads; i < (block + 1) * threads; ++i) {
        count += in[i] & 1;
        all &= (in[i] & 6) != 0;
        any |= (in[i] & 63) == 63;
      }
      for (uint32_t i = block * threads; i < (block + 1) * threads; ++i) {
        ASSERT_EQ(out[i], count << 2 | all << 1 | any) << threads << " " << i;
      }
    }
  }
}

TEST_P(LaneKernels, PrefixSums) {
  for (const uint32_t threads : {32u, 128u, 1024u}) {
    constexpr uint32_t kBlocks = 3;
    const auto in = Random<uint32_t>(kBlocks * threads);
    std::vector<uint32_t> out(in.size());
    Run("Scan", Shape(kBlocks, {threads, 1, 1}), in.data(), out.data());
    uint32_t sum = 0;
    for (uint32_t i = 0; i < in.size(); ++i) {
      sum = i % threads == 0 ? in[i] : sum + in[i];
      ASSERT_EQ(out[i], sum) << threads << " " << i;
    }
  }
}

TEST_P(LaneKernels, WhatAWarpDecidesTogether) {
  constexpr uint32_t kThreads = 96;
  constexpr uint32_t kBlocks = 8;
  auto in = Random<uint32_t>(kThreads * kBlocks);
  for (uint32_t i = 0; i < kWarp; ++i) in[i] = 4000000000u + (in[i] % 1000) * 2;
  std::vector<uint32_t> out(in.size());
  Run("WarpTogether", Shape(kBlocks, {kThreads, 1, 1}), in.data(), out.data());
  const bool has_redux = std::string(GetParam()).find("90") != std::string::npos;
  for (uint32_t first = 0; first < in.size(); first += kWarp) {
    const uint32_t* value = &in[first];
    uint32_t ballot = 0, sum = 0, largest = 0, parity = 0;
    bool any = false, all = true, same = true;
    for (uint32_t i = 0; i < kWarp; ++i) {
      ballot |= (value[i] & 1) << i;
      any |= (value[i] & 15) == 7;
      all &= (value[i] & 14) != 0;
      same &= value[i] / 1000000000u == value[0] / 1000000000u;
      sum += value[i];
      largest = std::max(largest, value[i]);
      parity ^= value[i];
    }
    for (uint32_t lane = 0; lane < kWarp; ++lane) {
      uint32_t result = ballot;
      result ^= any ? 0x80000000u : 0;
      result ^= all ? 0x40000000u : 0;
      uint32_t alike = 0;
      for (uint32_t i = 0; i < kWarp; ++i) alike |= uint32_t{value[i] % 5 == value[lane] % 5} << i;
      result += alike * 3;
      result ^= same ? 0xFFFFFFFFu : 0;
      result += same ? 77 : 0;
      const uint32_t down = lane % 8 + 3 < 8 ? lane + 3 : lane;
      result += value[lane ^ 5] ^ value[down];
      result += value[value[lane] % 32];
      if (has_redux) result += sum ^ largest ^ parity;
      ASSERT_EQ(out[first + lane], result) << first << " " << lane;
    }
  }
}

TEST_P(LaneKernels, PartsOfAWarpFormGroups) {
  const auto in = Random<uint32_t>(1000);
  std::vector<uint32_t> counters(4), expected(4);
  for (const uint32_t value : in) {
    for (uint32_t k = 0; k < value % 4; ++k) ++expected[k];
  }
  Run("WarpAggregated", Shape(9, {128, 1, 1}), in.data(), counters.data(),
      static_cast<uint32_t>(in.size()));
  EXPECT_EQ(counters, expected);
}

TEST_P(LaneKernels, AtomicsToFewPlacesLoseNothing) {
  for (const uint32_t threads : {9u, 64u, 250u}) {
    constexpr uint32_t kBlocks = 7;
    const auto in = Random<uint32_t>(kBlocks * threads);
    std::vector<uint32_t> out(9), expected(9);
    uint64_t wide = 0, expected_wide = 0;
    float sum = 0, expected_sum = 0;
    for (const uint32_t value : in) {
      ++expected[value % 8];
      expected[8] = std::max(expected[8], value);
      expected_wide += uint64_t{value} << 8;
      if (value % 3 == 0) expected_sum += 1;
    }
    Run("SharedAndGlobalAtomics", Shape(kBlocks, {threads, 1, 1}), in.data(), out.data(), &wide,
        &sum);
    EXPECT_EQ(out, expected) << threads;
    EXPECT_EQ(wide, expected_wide);
    EXPECT_EQ(sum, expected_sum);
  }
}

TEST_P(LaneKernels, WhereAThreadIsAsBitsOfOtherTypes) {
  for (const auto& block : kBlocks) {
    const uint32_t threads = block[0] * block[1] * block[2];
    std::vector<std::array<uint32_t, 3>> floats(threads);
    std::vector<std::array<uint32_t, 3>> halves(threads);
    Run("PlacesAsFloats", Shape(1, block), floats.data());
    std::vector<uint32_t> lanes(threads);
    Run("PlacesAsHalves", Shape(1, block), halves.data());
    Run("LanesAsFloats", Shape(1, block), lanes.data());
    for (uint32_t i = 0; i < threads; ++i) {
      const uint32_t place[3] = {i % block[0], i / block[0] % block[1], i / block[0] / block[1]};
      for (size_t k = 0; k < 3; ++k) {
        ASSERT_EQ(floats[i][k], place[k] ^ 0x80000000u)
            << i << " in blocks of " << block[0] << " x " << block[1] << " x " << block[2];
        ASSERT_EQ(halves[i][k], place[k] ^ 0x80008000u);
      }
      ASSERT_EQ(lanes[i], i % kWarp ^ 0x80000000u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, LaneKernels,
                         testing::Values(CONSORT_TEST_PTX_75, CONSORT_TEST_PTX_90),
                         [](const auto& info) { return info.index == 0 ? "sm_75" : "sm_90"; });

}  // namespace
}  // namespace consort::cpu
