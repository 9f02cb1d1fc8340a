// SPDX-License-Identifier: Apache-2.0
// Runs clang_kernels_for_test.cu, compiled to PTX by clang without and with its optimiser and by a
// newer LLVM, against C++ references.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "device/cpu/engine/kernel_file_for_test.h"
#include "device/cpu/program.h"

namespace consort::cpu {
namespace {

class ClangKernels : public KernelFileTest {};

TEST_P(ClangKernels, Saxpy) {
  constexpr uint32_t kCount = 1000;
  std::vector<float> x(kCount), y(kCount);
  for (uint32_t i = 0; i < kCount; ++i) {
    x[i] = static_cast<float>(i) / 7;
    y[i] = static_cast<float>(i % 13);
  }
  const std::vector<float> before = y;
  Run("Saxpy", Shape(4, 256), 1.3f, x.data(), y.data(), kCount);
  for (uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(y[i], std::fma(1.3f, x[i], before[i])) << i;
}

TEST_P(ClangKernels, SharedMemoryAndBarrier) {
  constexpr uint32_t kBlocks = 3, kThreads = 200;
  std::vector<uint32_t> data(kBlocks * kThreads);
  std::iota(data.begin(), data.end(), 5);
  Run("Reverse", Shape(kBlocks, kThreads), data.data());
  for (uint32_t i = 0; i < data.size(); ++i) {
    ASSERT_EQ(data[i], i / kThreads * kThreads + (kThreads - 1 - i % kThreads) + 5) << i;
  }
}

TEST_P(ClangKernels, Shuffles) {
  std::vector<int> in(512), sums(16, 0);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<int>(i * i % 509) - 200;
  Run("WarpSums", Shape(4, 128), in.data(), sums.data());
  for (size_t warp = 0; warp < sums.size(); ++warp) {
    const auto first = in.begin() + static_cast<ptrdiff_t>(warp * 32);
    EXPECT_EQ(sums[warp], std::accumulate(first, first + 32, 0)) << warp;
  }
}

TEST_P(ClangKernels, Atomics) {
  constexpr uint32_t kCount = 5000;
  std::vector<uint32_t> in(kCount), bins(16, 0), expected(16, 0);
  uint64_t total = 0, expected_total = 0;
  for (uint32_t i = 0; i < kCount; ++i) {
    in[i] = i * 2654435761u;
    ++expected[in[i] % 16];
    expected_total += in[i];
  }
  Run("Histogram", Shape(5, 96), in.data(), bins.data(), &total, kCount);
  EXPECT_EQ(bins, expected);
  EXPECT_EQ(total, expected_total);
}

uint32_t Descend(uint32_t depth, const uint32_t* outer) {
  const uint32_t frame[4] = {depth, outer[0] + 1, outer[1] ^ depth, 7};
  if (depth == 0) return frame[1] + frame[2];
  return Descend(depth - 1, frame) + frame[depth % 4];
}

TEST_P(ClangKernels, CallsWithStructsStacksAndPointersToFunctions) {
  struct Mixed {
    char letter;
    double weight;
    int16_t pair[2];
    uint64_t wide;
  };
  const Mixed mixed = {'B', 6.5, {-30000, 20000}, 0xFEDCBA9876543210};
  constexpr uint32_t kThreads = 20;
  std::vector<double> out(kThreads, 0);
  std::vector<uint32_t> deep(kThreads, 0);
  Run("Calls", Shape(1, kThreads), mixed, out.data(), deep.data());
  std::vector<double> expected(kThreads, -1);
  expected[0] = 6.5 * 0.125;
  expected[1] = -50000;
  expected[2] = static_cast<double>(mixed.wide % 1000003);
  expected[5] = static_cast<double>(static_cast<int64_t>(mixed.wide) / -7);
  expected[9] = std::sqrt(6.5);
  EXPECT_EQ(out, expected);
  for (uint32_t i = 0; i < kThreads; ++i) {
    const uint32_t start[2] = {i, 100};
    const uint32_t value = Descend(i, start);
    EXPECT_EQ(deep[i], i % 2 != 0 ? value + i : value * i) << i;
  }
  bool found = false;
  for (const VariableInfo& variable : program_->variables()) {
    if (variable.name != "calls") continue;
    found = true;
    EXPECT_EQ(*static_cast<uint32_t*>(variable.address), kThreads);
  }
  EXPECT_TRUE(found);
}

TEST_P(ClangKernels, LocalArrays) {
  std::vector<int> data(64 * 8);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<int>(i * 7919 % 1009) - 500;
  std::vector<int> expected = data;
  for (auto at = expected.begin(); at != expected.end(); at += 8) std::sort(at, at + 8);
  Run("SortEights", Shape(2, 32), data.data());
  EXPECT_EQ(data, expected);
}

std::string CompilerName(const testing::TestParamInfo<const char*>& info) {
  constexpr const char* kNames[] = {"clang_O0", "clang_O2", "llc"};
  return kNames[info.index];
}

INSTANTIATE_TEST_SUITE_P(Compilers, ClangKernels,
                         testing::Values(CONSORT_TEST_PTX_PLAIN, CONSORT_TEST_PTX_OPTIMISED,
                                         CONSORT_TEST_PTX_NEWER),
                         CompilerName);

}  // namespace
}  // namespace consort::cpu
