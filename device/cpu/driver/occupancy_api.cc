// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/occupancy_api.cc: what programs ask of occupancy.h.
#include <algorithm>

#include "device/cpu/driver/limits.h"
#include "device/cpu/driver/occupancy.h"
#include "device/cpu/driver/state.h"

namespace consort::cpu {
namespace {

// Runs body(kernel info, current device) for a function or kernel, of whatever context.
template <typename Body>
CUresult WithKernelInfo(CUfunction handle, Body&& body) {
  return WithContext([&](State& state, const std::shared_ptr<Context>& context) {
    const std::shared_ptr<Function> function = state.functions.Find(handle);
    if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return body(function->info(), context->device());
  });
}

bool FlagsValid(unsigned int flags) {
  return (flags & ~CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) == 0;
}

}  // namespace

}  // namespace consort::cpu

using namespace consort::cpu;  // the entry points are global: their prototypes are cuda.h's

extern "C" {

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* numBlocks, CUfunction func, int blockSize, size_t dynamicSMemSize, unsigned int flags) {
  return WithKernelInfo(func, [&](const KernelInfo& info, const Device&) {
    if (numBlocks == nullptr || blockSize <= 0 || !FlagsValid(flags)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *numBlocks = BlocksPerMultiprocessor(info, static_cast<uint32_t>(blockSize), dynamicSMemSize);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, CUfunction func,
                                                             int blockSize,
                                                             size_t dynamicSMemSize) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
      numBlocks, func, blockSize, dynamicSMemSize, CU_OCCUPANCY_DEFAULT);
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSizeWithFlags(
    int* minGridSize, int* blockSize, CUfunction func,
    CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize, int blockSizeLimit,
    unsigned int flags) {
  return WithKernelInfo(func, [&](const KernelInfo& info, const Device& device) {
    if (minGridSize == nullptr || blockSize == nullptr || blockSizeLimit < 0 ||
        !FlagsValid(flags)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    uint32_t limit = std::min(info.threads_max, kBlockThreadsMax);
    if (blockSizeLimit > 0) limit = std::min(limit, static_cast<uint32_t>(blockSizeLimit));
    uint32_t best_threads = 0;
    int best_blocks = 0;
    // From the largest block down in whole warps; a smaller block must be better to be taken.
    for (uint32_t threads = limit; threads > 0;
         threads = threads % kWarpThreads != 0 ? threads / kWarpThreads * kWarpThreads
                                               : threads - kWarpThreads) {
      const size_t shared_bytes = blockSizeToDynamicSMemSize != nullptr
                                      ? blockSizeToDynamicSMemSize(static_cast<int>(threads))
                                      : dynamicSMemSize;
      const int blocks = BlocksPerMultiprocessor(info, threads, shared_bytes);
      if (static_cast<uint64_t>(blocks) * threads >
          static_cast<uint64_t>(best_blocks) * best_threads) {
        best_blocks = blocks;
        best_threads = threads;
      }
      if (static_cast<uint64_t>(best_blocks) * best_threads == kMultiprocessorThreads) break;
    }
    *blockSize = static_cast<int>(best_threads);
    *minGridSize = best_blocks * device.MultiprocessorCount();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(int* minGridSize, int* blockSize, CUfunction func,
                                                  CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                  size_t dynamicSMemSize, int blockSizeLimit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func,
                                                   blockSizeToDynamicSMemSize, dynamicSMemSize,
                                                   blockSizeLimit, CU_OCCUPANCY_DEFAULT);
}

CUresult CUDAAPI cuOccupancyAvailableDynamicSMemPerBlock(size_t* dynamicSmemSize, CUfunction func,
                                                         int numBlocks, int blockSize) {
  return WithKernelInfo(func, [&](const KernelInfo& info, const Device&) {
    if (dynamicSmemSize == nullptr || numBlocks <= 0 || blockSize <= 0 ||
        BlocksPerMultiprocessor(info, static_cast<uint32_t>(blockSize), 0) < numBlocks) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const uint32_t share = kSharedBytesMultiprocessor / static_cast<uint32_t>(numBlocks);
    const uint32_t bytes = std::min(share - kSharedBytesReserved, kSharedBytesOptIn);
    *dynamicSmemSize = bytes - info.static_shared_bytes;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
