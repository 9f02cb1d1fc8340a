// SPDX-License-Identifier: Apache-2.0
// Every device that there is computes, all at the same time, and each on memory of its own.
#include <cstdio>
#include <vector>

#include "check.h"

constexpr int kElements = 1 << 16;

__global__ void Square(unsigned* values, unsigned add) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  values[i] = i * i + add;
}

int main() {
  int count = 0;
  CUDA_OK(cudaGetDeviceCount(&count));
  std::vector<unsigned*> values(count);
  for (int device = 0; device < count; ++device) {
    CUDA_OK(cudaSetDevice(device));
    CUDA_OK(cudaMalloc(&values[device], kElements * sizeof(unsigned)));
    for (int other = 0; other < device; ++other) {
      EXPECT(values[device] != values[other], "devices %d and %d have one address", device, other);
    }
    Square<<<kElements / 256, 256>>>(values[device], device);
    CUDA_OK(cudaGetLastError());
  }
  for (int device = 0; device < count; ++device) {
    CUDA_OK(cudaSetDevice(device));
    std::vector<unsigned> got(kElements);
    CUDA_OK(cudaMemcpy(got.data(), values[device], kElements * sizeof(unsigned),
                       cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < kElements; ++i) {
      EXPECT(got[i] == i * i + device, "device %d, element %u: %u", device, i, got[i]);
    }
    CUDA_OK(cudaFree(values[device]));
  }
  printf("%d devices\n", count);
  return programs::Pass();
}
