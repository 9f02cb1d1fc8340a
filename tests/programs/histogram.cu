// SPDX-License-Identifier: Apache-2.0
// tests/programs/histogram.cu: atomics in shared and in global memory.
#include <vector>

#include "check.h"

constexpr int kBins = 256;

// Counts the bytes; a histogram a block in shared memory, added to the global one at the end.
__global__ void HistogramShared(const uint8_t* bytes, int count, unsigned* bins) {
  __shared__ unsigned block_bins[kBins];
  for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x) block_bins[bin] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    atomicAdd(&block_bins[bytes[i]], 1u);
  __syncthreads();
  for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x)
    atomicAdd(&bins[bin], block_bins[bin]);
}

struct Extremes {
  unsigned smallest;
  unsigned largest;
  unsigned bits_or;
  unsigned bits_xor;
  unsigned long long sum;
  unsigned tickets;  // by compare-and-swap
  float float_sum;
};

// The other atomic operations, all threads on the same few words.
__global__ void FindExtremes(const uint8_t* bytes, int count, Extremes* extremes) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= count) return;
  const unsigned value = bytes[index] * 16777619u + index;
  atomicMin(&extremes->smallest, value);
  atomicMax(&extremes->largest, value);
  atomicOr(&extremes->bits_or, value & 0x0f0f0f0fu);
  atomicXor(&extremes->bits_xor, value);
  atomicAdd(&extremes->sum, static_cast<unsigned long long>(value));
  atomicAdd(&extremes->float_sum, 1.0f);  // exact: far below 2^24
  unsigned seen = extremes->tickets;
  while (true) {
    const unsigned before = atomicCAS(&extremes->tickets, seen, seen + 2);
    if (before == seen) break;
    seen = before;
  }
}

int main() {
  constexpr int kCount = 60000, kThreads = 128;
  constexpr int kExtremeCount = 4000;  // all on one word: kept small
  programs::Random random(4);
  std::vector<uint8_t> bytes(kCount);
  for (uint8_t& value : bytes)
    value = static_cast<uint8_t>((random.Next() & 0xff) * (random.Next() & 0xff) >> 8);
  uint8_t* device_bytes;
  unsigned* device_bins;
  Extremes* device_extremes;
  CUDA_OK(cudaMalloc(&device_bytes, kCount));
  CUDA_OK(cudaMalloc(&device_bins, kBins * sizeof(unsigned)));
  CUDA_OK(cudaMalloc(&device_extremes, sizeof(Extremes)));
  CUDA_OK(cudaMemcpy(device_bytes, bytes.data(), kCount, cudaMemcpyHostToDevice));
  CUDA_OK(cudaMemset(device_bins, 0, kBins * sizeof(unsigned)));
  Extremes extremes{0xffffffffu, 0, 0, 0, 0, 0, 0.0f};
  CUDA_OK(cudaMemcpy(device_extremes, &extremes, sizeof extremes, cudaMemcpyHostToDevice));

  HistogramShared<<<16, kThreads>>>(device_bytes, kCount, device_bins);
  CUDA_OK(cudaGetLastError());
  FindExtremes<<<(kExtremeCount + kThreads - 1) / kThreads, kThreads>>>(device_bytes, kExtremeCount,
                                                                        device_extremes);
  CUDA_OK(cudaGetLastError());
  std::vector<unsigned> bins(kBins);
  CUDA_OK(cudaMemcpy(bins.data(), device_bins, kBins * sizeof(unsigned), cudaMemcpyDeviceToHost));
  CUDA_OK(cudaMemcpy(&extremes, device_extremes, sizeof extremes, cudaMemcpyDeviceToHost));

  std::vector<unsigned> expected_bins(kBins);
  for (uint8_t value : bytes) ++expected_bins[value];
  for (int bin = 0; bin < kBins; ++bin)
    EXPECT(bins[bin] == expected_bins[bin], "bin %d is %u, expected %u", bin, bins[bin],
           expected_bins[bin]);
  Extremes expected{0xffffffffu, 0, 0, 0, 0, 0, 0.0f};
  for (int i = 0; i < kExtremeCount; ++i) {
    const unsigned value = bytes[i] * 16777619u + i;
    if (value < expected.smallest) expected.smallest = value;
    if (value > expected.largest) expected.largest = value;
    expected.bits_or |= value & 0x0f0f0f0fu;
    expected.bits_xor ^= value;
    expected.sum += value;
  }
  EXPECT(extremes.smallest == expected.smallest, "atomicMin %u, expected %u", extremes.smallest,
         expected.smallest);
  EXPECT(extremes.largest == expected.largest, "atomicMax %u, expected %u", extremes.largest,
         expected.largest);
  EXPECT(extremes.bits_or == expected.bits_or, "atomicOr %#x, expected %#x", extremes.bits_or,
         expected.bits_or);
  EXPECT(extremes.bits_xor == expected.bits_xor, "atomicXor %#x, expected %#x", extremes.bits_xor,
         expected.bits_xor);
  EXPECT(extremes.sum == expected.sum, "64-bit atomicAdd %llu, expected %llu", extremes.sum,
         expected.sum);
  EXPECT(extremes.tickets == 2u * kExtremeCount, "atomicCAS %u, expected %u", extremes.tickets,
         2u * kExtremeCount);
  EXPECT(extremes.float_sum == kExtremeCount, "float atomicAdd %g, expected %d", extremes.float_sum,
         kExtremeCount);
  CUDA_OK(cudaFree(device_bytes));
  CUDA_OK(cudaFree(device_bins));
  CUDA_OK(cudaFree(device_extremes));
  std::printf("histogram: %d bytes in %d bins, %d threads on seven atomics\n", kCount, kBins,
              kExtremeCount);
  return programs::Pass();
}
