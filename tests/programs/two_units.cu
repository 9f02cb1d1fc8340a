// SPDX-License-Identifier: Apache-2.0
// tests/programs/two_units.cu: a program of two translation units, each with device code of its own
// under the same names.
#include <vector>

#include "check.h"
#include "two_units.h"

// Not the ones of two_units_second.cu: each unit is a module of its own.
static __device__ int offset = 1000;
static __global__ void Apply(const int* from, int* to, int count) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) to[index] = from[index] + offset;
}

int main() {
  constexpr int kCount = 777;
  std::vector<int> values(kCount), result(kCount);
  for (int i = 0; i < kCount; ++i) values[i] = 5 * i - 1000;
  int *device_a, *device_b, *device_c;
  CUDA_OK(cudaMalloc(&device_a, kCount * sizeof(int)));
  CUDA_OK(cudaMalloc(&device_b, kCount * sizeof(int)));
  CUDA_OK(cudaMalloc(&device_c, kCount * sizeof(int)));
  CUDA_OK(cudaMemcpy(device_a, values.data(), kCount * sizeof(int), cudaMemcpyHostToDevice));
  Apply<<<(kCount + 127) / 128, 128>>>(device_a, device_b, kCount);
  CUDA_OK(cudaGetLastError());
  ApplySecondUnit(device_b, device_c, kCount);
  CUDA_OK(cudaMemcpy(result.data(), device_c, kCount * sizeof(int), cudaMemcpyDeviceToHost));
  for (int i = 0; i < kCount; ++i) {
    const int expected = (values[i] + 1000) * 3 - 7;
    EXPECT(result[i] == expected, "element %d is %d, expected %d", i, result[i], expected);
  }
  CUDA_OK(cudaFree(device_a));
  CUDA_OK(cudaFree(device_b));
  CUDA_OK(cudaFree(device_c));
  std::printf("two_units: kernels and variables of the same names in two modules\n");
  return programs::Pass();
}
