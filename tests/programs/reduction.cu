// SPDX-License-Identifier: Apache-2.0
// tests/programs/reduction.cu: warp shuffles, votes, shared memory and barriers; sums, a scan and
// dynamic shared memory.
#include <algorithm>
#include <vector>

#include "check.h"

constexpr unsigned kAllLanes = 0xffffffffu;

// One partial sum a block: shuffles inside warps, shared memory between them. blockDim.x is a
// multiple of 32.
__global__ void SumBlocks(const uint32_t* values, int count, unsigned long long* block_sums) {
  __shared__ unsigned long long warp_sums[32];
  unsigned long long sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    sum += values[i];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(kAllLanes, sum, offset);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) warp_sums[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    sum = lane < blockDim.x / 32 ? warp_sums[lane] : 0;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
    if (lane == 0) block_sums[blockIdx.x] = sum;
  }
}

// The largest value of each block, as a tree in dynamic shared memory. blockDim.x is a power of
// two.
__global__ void MaxBlocks(const uint32_t* values, int count, uint32_t* block_maxima) {
  extern __shared__ uint32_t tree[];
  uint32_t largest = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    largest = max(largest, values[i]);
  tree[threadIdx.x] = largest;
  for (int width = blockDim.x / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) tree[threadIdx.x] = max(tree[threadIdx.x], tree[threadIdx.x + width]);
  }
  if (threadIdx.x == 0) block_maxima[blockIdx.x] = tree[0];
}

// Inclusive prefix sum of one warp by __shfl_up_sync, and how many lanes hold an odd value by a
// vote.
__global__ void ScanWarp(const uint32_t* values, uint32_t* prefix_sums, uint32_t* odd_counts) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  const int lane = threadIdx.x % 32;
  uint32_t sum = values[index];
  const unsigned odd = __ballot_sync(kAllLanes, sum & 1);
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint32_t below = __shfl_up_sync(kAllLanes, sum, offset);
    if (lane >= offset) sum += below;
  }
  prefix_sums[index] = sum;
  if (lane == 0) odd_counts[index / 32] = __popc(odd);
}

int main() {
  constexpr int kCount = 40000, kBlocks = 12, kThreads = 128;
  programs::Random random(3);
  std::vector<uint32_t> values(kCount);
  for (uint32_t& value : values) value = random.Next();
  uint32_t *device_values, *device_maxima, *device_prefix, *device_odd;
  unsigned long long* device_sums;
  CUDA_OK(cudaMalloc(&device_values, kCount * sizeof(uint32_t)));
  CUDA_OK(cudaMalloc(&device_sums, kBlocks * sizeof(unsigned long long)));
  CUDA_OK(cudaMalloc(&device_maxima, kBlocks * sizeof(uint32_t)));
  CUDA_OK(cudaMalloc(&device_prefix, kCount * sizeof(uint32_t)));
  CUDA_OK(cudaMalloc(&device_odd, kCount / 32 * sizeof(uint32_t)));
  CUDA_OK(
      cudaMemcpy(device_values, values.data(), kCount * sizeof(uint32_t), cudaMemcpyHostToDevice));

  SumBlocks<<<kBlocks, kThreads>>>(device_values, kCount, device_sums);
  CUDA_OK(cudaGetLastError());
  MaxBlocks<<<kBlocks, kThreads, kThreads * sizeof(uint32_t)>>>(device_values, kCount,
                                                                device_maxima);
  CUDA_OK(cudaGetLastError());
  constexpr int kScanned = kCount / 64 * 64;
  ScanWarp<<<kScanned / 64, 64>>>(device_values, device_prefix, device_odd);
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaDeviceSynchronize());

  std::vector<unsigned long long> block_sums(kBlocks);
  std::vector<uint32_t> block_maxima(kBlocks), prefix_sums(kScanned), odd_counts(kScanned / 32);
  CUDA_OK(cudaMemcpy(block_sums.data(), device_sums, kBlocks * sizeof(unsigned long long),
                     cudaMemcpyDeviceToHost));
  CUDA_OK(cudaMemcpy(block_maxima.data(), device_maxima, kBlocks * sizeof(uint32_t),
                     cudaMemcpyDeviceToHost));
  CUDA_OK(cudaMemcpy(prefix_sums.data(), device_prefix, kScanned * sizeof(uint32_t),
                     cudaMemcpyDeviceToHost));
  CUDA_OK(cudaMemcpy(odd_counts.data(), device_odd, kScanned / 32 * sizeof(uint32_t),
                     cudaMemcpyDeviceToHost));

  unsigned long long sum = 0, expected_sum = 0;
  for (unsigned long long value : block_sums) sum += value;
  for (uint32_t value : values) expected_sum += value;
  EXPECT(sum == expected_sum, "sum is %llu, expected %llu", sum, expected_sum);
  const uint32_t largest = *std::max_element(block_maxima.begin(), block_maxima.end());
  const uint32_t expected_largest = *std::max_element(values.begin(), values.end());
  EXPECT(largest == expected_largest, "maximum is %u, expected %u", largest, expected_largest);
  for (int warp = 0; warp < kScanned / 32; ++warp) {
    uint32_t prefix = 0, odd = 0;
    for (int lane = 0; lane < 32; ++lane) {
      const int index = warp * 32 + lane;
      prefix += values[index];
      odd += values[index] & 1;
      EXPECT(prefix_sums[index] == prefix, "prefix sum %d is %u, expected %u", index,
             prefix_sums[index], prefix);
    }
    EXPECT(odd_counts[warp] == odd, "warp %d counted %u odd values, expected %u", warp,
           odd_counts[warp], odd);
  }
  CUDA_OK(cudaFree(device_values));
  CUDA_OK(cudaFree(device_sums));
  CUDA_OK(cudaFree(device_maxima));
  CUDA_OK(cudaFree(device_prefix));
  CUDA_OK(cudaFree(device_odd));
  std::printf("reduction: sum %llu and maximum %u of %d values, %d prefix sums\n", sum, largest,
              kCount, kScanned);
  return programs::Pass();
}
