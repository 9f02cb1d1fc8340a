// SPDX-License-Identifier: Apache-2.0
// Runs nvcc_kernels_for_test.cu, compiled to PTX for two architectures, against C++ references.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "device/cpu/engine/kernel_file_for_test.h"
#include "device/cpu/program.h"

namespace consort::cpu {
namespace {

constexpr uint32_t kSeed = 20240607;

class NvccKernels : public KernelFileTest {
 protected:
  std::vector<float> RandomFloats(size_t count, float low, float high) {
    std::uniform_real_distribution<float> distribution(low, high);
    std::vector<float> values(count);
    for (float& value : values) value = distribution(random_);
    return values;
  }

  std::mt19937 random_{kSeed};
};

// The bits of a whole number that a half has.
uint16_t HalfOf(int number) {
  if (number == 0) return 0;
  const int exponent = static_cast<int>(std::log2(std::abs(number)));
  const int mantissa = (std::abs(number) << 10 >> exponent) & 0x3FF;
  return static_cast<uint16_t>((number < 0 ? 0x8000 : 0) | (exponent + 15) << 10 | mantissa);
}

TEST_P(NvccKernels, WarpsMultiplyMatrices) {
  // 64 columns of a and rows of b are the factors of four warps' tiles.
  constexpr int kSide = 16;
  constexpr int kPitch = 64;
  std::vector<uint16_t> a, b;
  std::vector<int> a_numbers, b_numbers;
  for (int i = 0; i < kSide * kPitch; ++i) {
    a_numbers.push_back(static_cast<int>(random_() % 33) - 16);
    b_numbers.push_back(static_cast<int>(random_() % 33) - 16);
    a.push_back(HalfOf(a_numbers.back()));
    b.push_back(HalfOf(b_numbers.back()));
  }
  std::vector<float> c(4 * kSide * kSide);
  for (float& value : c) value = static_cast<float>(random_() % 100);
  // With two warps that work of four, lanes of the block part before they multiply.
  for (const uint32_t first : {0u, 2u}) {
    std::vector<float> d(c.size(), -1);
    Run("MatrixTiles", Shape(1, 128), a.data(), b.data(), c.data(), d.data(), first);
    for (int warp = 0; warp < 4; ++warp) {
      for (int row = 0; row < kSide; ++row) {
        for (int column = 0; column < kSide; ++column) {
          float sum = c[static_cast<size_t>(warp * 256 + row * kSide + column)];
          for (int k = 0; k < kSide; ++k) {
            sum += static_cast<float>(
                a_numbers[static_cast<size_t>(row * kPitch + warp * kSide + k)] *
                b_numbers[static_cast<size_t>(column * kPitch + warp * kSide + k)]);
          }
          const float expected = warp < static_cast<int>(first) ? -1 : 2 * sum;
          ASSERT_EQ(d[static_cast<size_t>(warp * 256 + column * kSide + row)], expected)
              << "warp " << warp << ", row " << row << ", column " << column;
        }
      }
    }
  }
}

TEST_P(NvccKernels, WarpsMultiplyMatricesOfBytes) {
  std::vector<int8_t> a(32 * 32), b(16 * 16);
  for (int8_t& value : a) value = static_cast<int8_t>(random_());
  for (int8_t& value : b) value = static_cast<int8_t>(random_());
  std::vector<int> d(32 * 8);
  Run("MatrixTilesOfBytes", Shape(1, 32), a.data(), b.data(), d.data());
  for (size_t row = 0; row < 32; ++row) {
    for (size_t column = 0; column < 8; ++column) {
      int sum = 5;
      for (size_t k = 0; k < 16; ++k) sum += a[k * 32 + row] * b[k * 16 + column];
      ASSERT_EQ(d[row * 8 + column], sum) << "row " << row << ", column " << column;
    }
  }
}

TEST_P(NvccKernels, BarriersInSharedMemoryHandOver) {
  constexpr int kRounds = 6;
  std::vector<int> sums(64, -1);
  Run("HandOver", Shape(1, 128), sums.data(), kRounds);
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(sums[static_cast<size_t>(i)], (63 - i) * kRounds * (kRounds + 1) / 2) << i;
  }
}

TEST_P(NvccKernels, VectorAdd) {
  constexpr int kCount = 50000;
  const auto a = RandomFloats(kCount, -1, 1);
  const auto b = RandomFloats(kCount, -1, 1);
  std::vector<float> c(kCount, 0);
  Run("VectorAdd", Shape((kCount + 255) / 256, 256), a.data(), b.data(), c.data(), kCount);
  for (int i = 0; i < kCount; ++i) ASSERT_EQ(c[i], a[i] + b[i]);
}

TEST_P(NvccKernels, MatrixMultiply) {
  constexpr int kRows = 64, kInner = 96, kColumns = 128;
  const auto a = RandomFloats(kRows * kInner, -1, 1);
  const auto b = RandomFloats(kInner * kColumns, -1, 1);
  std::vector<float> c(kRows * kColumns, 0);
  LaunchShape shape = Shape(kColumns / 32, 32);
  shape.block[1] = 32;
  shape.grid[1] = kRows / 32;
  Run("MatrixMultiply", shape, c.data(), a.data(), b.data(), kInner, kColumns);
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      float sum = 0;
      for (int k = 0; k < kInner; ++k) {
        sum = std::fma(a[row * kInner + k], b[k * kColumns + column], sum);
      }
      ASSERT_EQ(c[row * kColumns + column], sum) << row << " " << column;
    }
  }
}

TEST_P(NvccKernels, ReduceWithSharedMemoryAndShuffles) {
  std::vector<int> in(100000);
  std::iota(in.begin(), in.end(), -30000);
  for (const uint32_t block : {64u, 256u, 1024u}) {
    std::vector<int> out(16, 0);
    Run("Reduce", Shape(16, block, block * 4), in.data(), out.data(),
        static_cast<unsigned>(in.size()));
    EXPECT_EQ(std::accumulate(out.begin(), out.end(), 0), std::accumulate(in.begin(), in.end(), 0));
  }
}

TEST_P(NvccKernels, CoalescedGroupsCountOnce) {
  std::vector<int> in(10000);
  std::uniform_int_distribution<int> distribution(0, 1000);
  for (int& value : in) value = distribution(random_);
  int counter = 0;
  Run("CountOdd", Shape(40, 256), in.data(), &counter, 10000);
  EXPECT_EQ(counter, std::count_if(in.begin(), in.end(), [](int v) { return v % 2 != 0; }));
}

TEST_P(NvccKernels, Histograms) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer counts every thread of a block as one of the process, and needs "
                  "a minute for these";
#endif
  std::vector<unsigned> data(20000);
  for (unsigned& word : data) word = random_() & random_();
  const unsigned words = static_cast<unsigned>(data.size());
  std::vector<unsigned> expected64(64, 0), expected256(256, 0);
  for (const unsigned word : data) {
    for (int byte = 0; byte < 4; ++byte) {
      ++expected64[word >> (8 * byte + 2) & 0x3F];
      ++expected256[word >> 8 * byte & 0xFF];
    }
  }
  // A byte counter holds 255: blocks * 64 threads must see at most 63 words each.
  std::vector<unsigned> partial(64 * 256, 0), histogram(256, 0);
  Run("Histogram64", Shape(8, 64), partial.data(), data.data(), words);
  Run("MergeHistograms", Shape(64, 256), histogram.data(), partial.data(), 8u, 64u);
  EXPECT_EQ(std::vector<unsigned>(histogram.begin(), histogram.begin() + 64), expected64);
  for (const char* kernel : {"Histogram256", "Histogram256Tagged"}) {
    std::fill(histogram.begin(), histogram.end(), 0);
    Run(kernel, Shape(10, 192), partial.data(), data.data(), words);
    Run("MergeHistograms", Shape(256, 256), histogram.data(), partial.data(), 10u, 256u);
    EXPECT_EQ(histogram, expected256) << kernel;
  }
}

TEST_P(NvccKernels, BlackScholes) {
  constexpr int kCount = 4000;
  const auto price = RandomFloats(kCount, 5, 30);
  const auto strike = RandomFloats(kCount, 1, 100);
  const auto years = RandomFloats(kCount, 0.25, 10);
  std::vector<float> call(kCount, 0), put(kCount, 0);
  constexpr float kRate = 0.02f, kVolatility = 0.30f;
  Run("BlackScholes", Shape((kCount / 2 + 127) / 128, 128), call.data(), put.data(), price.data(),
      strike.data(), years.data(), kRate, kVolatility, kCount / 2);
  auto normal = [](double d) { return 0.5 * std::erfc(-d / std::sqrt(2.0)); };
  double difference = 0, sum = 0;
  for (int i = 0; i < kCount; ++i) {
    const double s = price[i], x = strike[i], t = years[i];
    const double d1 = (std::log(s / x) + (kRate + 0.5 * kVolatility * kVolatility) * t) /
                      (kVolatility * std::sqrt(t));
    const double d2 = d1 - kVolatility * std::sqrt(t);
    const double discount = std::exp(-kRate * t);
    const double expected = s * normal(d1) - x * discount * normal(d2);
    difference += std::fabs(expected - call[i]);
    sum += std::fabs(expected);
    ASSERT_NEAR(put[i], expected - s + x * discount, 2e-4) << i;
  }
  EXPECT_LT(difference / sum, 1e-6);
}

TEST_P(NvccKernels, CallsWithLocalArraysAndConstants) {
  std::vector<double> out(32, 0);
  Run("CallFunctions", Shape(1, 32), out.data(), 3);
  for (int thread = 0; thread < 32; ++thread) {
    double expected = 0;
    for (int i = 0; i < 8; ++i) {
      expected += std::ldexp(0.5, -((i + 3 + thread) & 3)) * (thread * 8 + i);
    }
    EXPECT_EQ(out[thread], expected) << thread;
  }
  for (const VariableInfo& variable : program_->variables()) {
    if (variable.name != "calls") continue;
    EXPECT_EQ(*static_cast<int*>(variable.address), 32);
  }
}

TEST_P(NvccKernels, MathLibrary) {
  constexpr int kCount = 500;
  const auto in = RandomFloats(kCount, -4, 4);
  std::vector<float> out(kCount * 8, 0);
  Run("MathLibrary", Shape(1, 512), in.data(), out.data(), kCount);
  for (int i = 0; i < kCount; ++i) {
    const float x = in[i];
    const double w = static_cast<double>(x);
    const double expected[8] = {std::exp(w),
                                std::log(std::fabs(x) + 0.1f),
                                std::sin(static_cast<double>(x * 100.0f)),
                                std::pow(std::fabs(w), static_cast<double>(1.7f)),
                                std::erf(w),
                                std::exp(w),
                                std::fmod(x, 0.7f),
                                std::sqrt(std::fabs(w)) + std::cbrt(w)};
    for (int f = 0; f < 8; ++f) {
      EXPECT_NEAR(out[i * 8 + f], expected[f], std::max(1e-6, std::fabs(expected[f]) * 1e-6))
          << "function " << f << " of " << x;
    }
  }
}

TEST_P(NvccKernels, Print) {
  testing::internal::CaptureStdout();
  Run("Print", Shape(1, 4), 5);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "thread 1 of 4:  1.25 text x 1099511627776\n");
}

TEST_P(NvccKernels, LastBlockSumsWithCompareAndSwap) {
  const auto in = RandomFloats(20 * 96, 0, 1);
  std::vector<double> partial(20, 0);
  double total = 0;
  Run("LastBlockSums", Shape(20, 96), in.data(), partial.data(), &total);
  double expected = 0;
  for (const float value : in) expected += static_cast<double>(value);
  EXPECT_NEAR(total, expected, 1e-9);
}

TEST_P(NvccKernels, BlocksOfACooperativeGridWaitForEachOther) {
  constexpr int kRounds = 5;
  // More blocks than threads that run them; one whose blocks have an odd warp.
  for (const auto& [blocks, threads] : {std::pair{1, 32}, {19, 64}, {40, 33}}) {
    const int all = blocks * threads;
    std::vector<int> numbers(all, -1), sums(all, -1);
    LaunchShape shape = Shape(blocks, threads);
    shape.cooperative = true;
    Run("GridRounds", shape, numbers.data(), sums.data(), kRounds);
    for (int i = 0; i < all; ++i) {
      int sum = 0;
      for (int round = 0; round < kRounds; ++round) {
        sum += (i + (round + 1) * threads) % all + round;
      }
      ASSERT_EQ(sums[i], sum) << blocks << " blocks, thread " << i;
    }
  }
}

// As with CUDA: the grid's barrier is there in cooperative launches only.
TEST_P(NvccKernels, GridBarrierOfAnOrdinaryLaunchTraps) {
  std::vector<int> numbers(64), sums(64);
  EXPECT_EQ(Launch("GridRounds", Shape(1, 64), numbers.data(), sums.data(), 1), LaunchFault::kTrap);
}

TEST_P(NvccKernels, TilesOfSeveralWarpsMeetInReservedSharedMemory) {
  constexpr int kBlocks = 3, kThreads = 256;
  std::vector<int> in(kBlocks * kThreads), sums(in.size(), 0), kept(in.size(), 0);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<int>(i * i % 1001);
  Run("WideTiles", Shape(kBlocks, kThreads, kThreads * sizeof(int)), in.data(), sums.data(),
      kept.data());
  for (size_t i = 0; i < in.size(); ++i) {
    const auto tile = in.begin() + static_cast<ptrdiff_t>(i / 64 * 64);
    ASSERT_EQ(sums[i], std::accumulate(tile, tile + 64, 0)) << i;
    const int thread = static_cast<int>(i) % kThreads;
    ASSERT_EQ(kept[i], thread + 100 + thread % 3) << i;
  }
}

TEST_P(NvccKernels, FunctionsTakeAnyNumberOfArguments) {
  constexpr int kNumber = 7;
  constexpr double kValue = 0.5;
  std::vector<double> sums(96);
  Run("Variadic", Shape(2, 48), sums.data(), kNumber, kValue);
  for (int me = 0; me < 96; ++me) {
    const double pair = 100 * kValue * me + 1000 * (kNumber - me);
    double expected = kNumber + 10 * kValue + pair;
    if (me % 3 != 2) expected += me + kNumber + 30 * kValue + 2 * pair;
    ASSERT_EQ(sums[static_cast<size_t>(me)], expected) << me;
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, NvccKernels,
                         testing::Values(CONSORT_TEST_PTX_75, CONSORT_TEST_PTX_90),
                         [](const auto& info) { return info.index == 0 ? "sm_75" : "sm_90"; });

}  // namespace
}  // namespace consort::cpu
