// SPDX-License-Identifier: Apache-2.0
// Occupancy. Source: CUDA Driver API reference 13.0, "Occupancy".
#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using OccupancyTest = ContextTest;

API_TEST(OccupancyTest, ActiveBlocksAreWithinTheMultiprocessor) {
  Module module(kBasicPtx);
  const CUfunction function = module.Function("vector_add");
  for (int block : {32, 64, 128, 256, 512, 1024}) {
    int blocks = 0;
    EXPECT_OK(Drv().cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, block, 0));
    EXPECT_GE(blocks, 1) << block;
    EXPECT_LE(blocks * block, Attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR))
        << block;
    EXPECT_LE(blocks, Attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR)) << block;
  }
}

API_TEST(OccupancyTest, MoreSharedMemoryMeansNoMoreBlocks) {
  Module module(kBasicPtx);
  const CUfunction function = module.Function("sum_dynamic");
  int without = 0;
  int with = 0;
  EXPECT_OK(Drv().cuOccupancyMaxActiveBlocksPerMultiprocessor(&without, function, 64, 0));
  EXPECT_OK(Drv().cuOccupancyMaxActiveBlocksPerMultiprocessor(&with, function, 64, 48 << 10));
  EXPECT_LE(with, without);
  EXPECT_GE(with, 1);
}

API_TEST(OccupancyTest, FlagsOfZeroChangeNothing) {
  Module module(kBasicPtx);
  const CUfunction function = module.Function("vector_add");
  int plain = 0;
  int with_flags = 0;
  EXPECT_OK(Drv().cuOccupancyMaxActiveBlocksPerMultiprocessor(&plain, function, 256, 0));
  EXPECT_OK(Drv().cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&with_flags, function, 256,
                                                                       0, CU_OCCUPANCY_DEFAULT));
  EXPECT_EQ(plain, with_flags);
}

API_TEST(OccupancyTest, RefusesBadArguments) {
  Module module(kBasicPtx);
  const CUfunction function = module.Function("vector_add");
  int blocks = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 0, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, -1, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuOccupancyMaxActiveBlocksPerMultiprocessor(nullptr, function, 32, 0));
}

API_TEST(OccupancyTest, SuggestedBlockSizeCanBeLaunched) {
  Module module(kBasicPtx);
  const CUfunction function = module.Function("fill_index");
  int grid = 0;
  int block = 0;
  ASSERT_OK(Drv().cuOccupancyMaxPotentialBlockSize(&grid, &block, function, nullptr, 0, 0));
  EXPECT_GE(grid, 1);
  ASSERT_GE(block, 32);
  ASSERT_LE(block, 1024);
  EXPECT_EQ(block % Attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE), 0);
  DeviceBuffer out(4096);
  EXPECT_OK(Launch(function,
                   (1024 + static_cast<unsigned>(block) - 1) / static_cast<unsigned>(block),
                   static_cast<unsigned>(block), nullptr, out.get(), 1024u));
  EXPECT_EQ(out.Read<unsigned>(1024), Iota(1024));
}

API_TEST(OccupancyTest, SuggestedBlockSizeRespectsTheLimit) {
  Module module(kBasicPtx);
  int grid = 0;
  int block = 0;
  EXPECT_OK(Drv().cuOccupancyMaxPotentialBlockSize(&grid, &block, module.Function("fill_index"),
                                                   nullptr, 0, 128));
  EXPECT_LE(block, 128);
  EXPECT_GE(block, 1);
}

API_TEST(OccupancyTest, SuggestionAsksTheCallersFunction) {
  Module module(kBasicPtx);
  int grid = 0;
  int block = 0;
  static int calls;
  calls = 0;
  const CUoccupancyB2DSize bytes_for = [](int block_size) -> size_t {
    ++calls;
    return static_cast<size_t>(block_size) * 4;
  };
  EXPECT_OK(Drv().cuOccupancyMaxPotentialBlockSizeWithFlags(
      &grid, &block, module.Function("sum_dynamic"), bytes_for, 0, 0, CU_OCCUPANCY_DEFAULT));
  EXPECT_GT(calls, 0);
  EXPECT_GE(block, 1);
}

API_TEST(OccupancyTest, AvailableDynamicSharedMemoryFits) {
  Module module(kBasicPtx);
  const CUfunction function = module.Function("sum_dynamic");
  size_t one = 0;
  size_t two = 0;
  EXPECT_OK(Drv().cuOccupancyAvailableDynamicSMemPerBlock(&one, function, 1, 64));
  EXPECT_OK(Drv().cuOccupancyAvailableDynamicSMemPerBlock(&two, function, 2, 64));
  EXPECT_GT(one, 0u);
  EXPECT_LE(two, one);
  EXPECT_LE(one, static_cast<size_t>(
                     Attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)));
}

}  // namespace
}  // namespace consort::tests::api
