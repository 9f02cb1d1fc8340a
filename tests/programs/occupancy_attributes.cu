// SPDX-License-Identifier: Apache-2.0
// tests/programs/occupancy_attributes.cu: what the driver knows of a kernel, large dynamic shared
// memory, occupancy.
#include <vector>

#include "check.h"

__global__ void __launch_bounds__(128) UsesStaticShared(int* out) {
  __shared__ int values[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) values[i] = i * 3;
  __syncthreads();
  out[threadIdx.x] = values[(threadIdx.x * 7) % 256];
}

// Fills all of the dynamic shared memory and sums it up.
__global__ void UsesDynamicShared(unsigned* sum, int words) {
  extern __shared__ unsigned dynamic_words[];
  for (int i = threadIdx.x; i < words; i += blockDim.x) dynamic_words[i] = i * 2654435761u;
  __syncthreads();
  unsigned mine = 0;
  for (int i = words - 1 - static_cast<int>(threadIdx.x); i >= 0; i -= blockDim.x)
    mine += dynamic_words[i];
  atomicAdd(sum, mine);
}

int main() {
  cudaDeviceProp properties;
  CUDA_OK(cudaGetDeviceProperties(&properties, 0));

  cudaFuncAttributes attributes;
  CUDA_OK(cudaFuncGetAttributes(&attributes, UsesStaticShared));
  EXPECT(attributes.sharedSizeBytes == 256 * sizeof(int), "%zu bytes of static shared memory",
         attributes.sharedSizeBytes);
  EXPECT(attributes.maxThreadsPerBlock == 128, "%d threads a block with __launch_bounds__(128)",
         attributes.maxThreadsPerBlock);
  EXPECT(attributes.ptxVersion >= 50 && attributes.binaryVersion >= 50,
         "PTX version %d, binary version %d", attributes.ptxVersion, attributes.binaryVersion);
  CUDA_OK(cudaFuncGetAttributes(&attributes, UsesDynamicShared));
  EXPECT(attributes.sharedSizeBytes == 0, "%zu bytes of static shared memory",
         attributes.sharedSizeBytes);
  EXPECT(attributes.maxThreadsPerBlock > 128 && attributes.maxThreadsPerBlock <= 1024,
         "%d threads a block", attributes.maxThreadsPerBlock);

  std::vector<int> result(128);
  int* device_result;
  CUDA_OK(cudaMalloc(&device_result, 128 * sizeof(int)));
  UsesStaticShared<<<1, 128>>>(device_result);
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaMemcpy(result.data(), device_result, 128 * sizeof(int), cudaMemcpyDeviceToHost));
  for (int i = 0; i < 128; ++i)
    EXPECT(result[i] == (i * 7) % 256 * 3, "element %d is %d", i, result[i]);
  UsesStaticShared<<<1, 160>>>(device_result);  // more than its launch bounds
  CUDA_ERROR_IS(cudaGetLastError(), cudaErrorInvalidValue);

  // More than 48 KiB of dynamic shared memory must be asked for. Source: CUDA C++ Programming
  // Guide, compute capability 7.x.
  const int bytes = static_cast<int>(properties.sharedMemPerBlockOptin);
  EXPECT(bytes > 48 * 1024, "no opt-in shared memory: %d bytes", bytes);
  const int words = bytes / 4;
  unsigned* device_sum;
  CUDA_OK(cudaMalloc(&device_sum, sizeof(unsigned)));
  CUDA_OK(cudaMemset(device_sum, 0, sizeof(unsigned)));
  UsesDynamicShared<<<1, 256, bytes>>>(device_sum, words);
  CUDA_ERROR_IS(cudaGetLastError(), cudaErrorInvalidValue);
  CUDA_ERROR_IS(cudaFuncSetAttribute(UsesDynamicShared, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     bytes + 4096),
                cudaErrorInvalidValue);
  CUDA_ERROR_IS(cudaGetLastError(), cudaErrorInvalidValue);
  CUDA_OK(
      cudaFuncSetAttribute(UsesDynamicShared, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  CUDA_OK(cudaFuncGetAttributes(&attributes, UsesDynamicShared));
  EXPECT(attributes.maxDynamicSharedSizeBytes == bytes, "limit reads %d, expected %d",
         attributes.maxDynamicSharedSizeBytes, bytes);
  UsesDynamicShared<<<1, 256, bytes>>>(device_sum, words);
  CUDA_OK(cudaGetLastError());
  unsigned sum = 0, expected_sum = 0;
  CUDA_OK(cudaMemcpy(&sum, device_sum, sizeof sum, cudaMemcpyDeviceToHost));
  for (int i = 0; i < words; ++i) expected_sum += i * 2654435761u;
  EXPECT(sum == expected_sum, "sum is %u, expected %u", sum, expected_sum);

  int blocks = 0, blocks_large = 0;
  CUDA_OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, UsesDynamicShared, 128, 0));
  CUDA_OK(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_large, UsesDynamicShared, 128, bytes));
  EXPECT(blocks >= 1 && blocks * 128 <= properties.maxThreadsPerMultiProcessor,
         "%d blocks of 128 threads", blocks);
  EXPECT(blocks_large == 1, "%d blocks with all of the shared memory", blocks_large);
  int grid = 0, block = 0;
  CUDA_OK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, UsesStaticShared));
  EXPECT(block >= 32 && block <= 128 && block % 32 == 0, "suggested block of %d", block);
  EXPECT(grid >= properties.multiProcessorCount, "suggested grid of %d for %d multiprocessors",
         grid, properties.multiProcessorCount);
  size_t available = 0;
  CUDA_OK(cudaOccupancyAvailableDynamicSMemPerBlock(&available, UsesDynamicShared, 1, 128));
  EXPECT(available >= 48 * 1024, "%zu bytes available to a lone block", available);
  CUDA_OK(cudaFree(device_result));
  CUDA_OK(cudaFree(device_sum));
  std::printf(
      "occupancy_attributes: %d bytes of dynamic shared memory, %d blocks of 128 a multiprocessor, "
      "suggested block %d\n",
      bytes, blocks, block);
  return programs::Pass();
}
