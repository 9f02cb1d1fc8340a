// SPDX-License-Identifier: Apache-2.0
// tests/programs/allocations.cu: memory that is allocated and freed again and again.
//
//   allocations [ROUNDS]
//
// Each block is its owner's alone, and what was freed counts as free, whatever the driver keeps for
// the next allocation.
#include <vector>

#include "check.h"

constexpr size_t kBytes = 1 << 20;
constexpr uint32_t kCount = kBytes / sizeof(uint32_t);
constexpr int kThreads = 256, kGrid = kCount / kThreads;

__global__ void Fill(uint32_t* values, uint32_t first) {
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
  values[index] = first + index;
}

void ExpectFilled(const uint32_t* device, uint32_t first) {
  std::vector<uint32_t> got(kCount);
  CUDA_OK(cudaMemcpy(got.data(), device, kBytes, cudaMemcpyDeviceToHost));
  for (uint32_t i = 0; i < kCount; ++i)
    EXPECT(got[i] == first + i, "element %u is %u, expected %u", i, got[i], first + i);
}

size_t FreeBytes() {
  size_t free = 0, total = 0;
  CUDA_OK(cudaMemGetInfo(&free, &total));
  return free;
}

// Two blocks at a time, of which the second comes where an earlier one was, perhaps.
void TestContents() {
  uint32_t* before = nullptr;
  CUDA_OK(cudaMalloc(&before, kBytes));
  Fill<<<kGrid, kThreads>>>(before, 0);
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaDeviceSynchronize());
  for (uint32_t round = 1; round <= 16; ++round) {
    uint32_t* values = nullptr;
    CUDA_OK(cudaMalloc(&values, kBytes));
    Fill<<<kGrid, kThreads>>>(values, round * kCount);
    CUDA_OK(cudaGetLastError());
    if (round % 2 == 0) CUDA_OK(cudaDeviceSynchronize());
    ExpectFilled(before, (round - 1) * kCount);
    CUDA_OK(cudaFree(before));
    before = values;
  }
  ExpectFilled(before, 16 * kCount);
  CUDA_OK(cudaFree(before));
}

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 500;
  TestContents();
  CUDA_OK(cudaDeviceSynchronize());
  const size_t before = FreeBytes();
  for (int round = 0; round < rounds; ++round) {
    void* memory = nullptr;
    CUDA_OK(cudaMalloc(&memory, kBytes));
    CUDA_OK(cudaFree(memory));
  }
  const size_t after = FreeBytes();
  EXPECT(after == before, "%zu bytes are free, %zu were before", after, before);
  return programs::Pass();
}
