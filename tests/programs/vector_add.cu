// SPDX-License-Identifier: Apache-2.0
// tests/programs/vector_add.cu: the smallest whole path: allocate, copy in, launch, copy out, free.
#include <vector>

#include "check.h"

__global__ void VectorAdd(const float* a, const float* b, float* sum, int count) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) sum[index] = a[index] + b[index];
}

int main() {
  constexpr int kCount = 50001;  // not a multiple of the block
  constexpr size_t kBytes = kCount * sizeof(float);
  programs::Random random(1);
  std::vector<float> a(kCount), b(kCount), sum(kCount, -1.0f);
  for (int i = 0; i < kCount; ++i) {
    a[i] = random.NextFloat(-100.0f, 100.0f);
    b[i] = random.NextFloat(-100.0f, 100.0f);
  }
  float *device_a, *device_b, *device_sum;
  CUDA_OK(cudaMalloc(&device_a, kBytes));
  CUDA_OK(cudaMalloc(&device_b, kBytes));
  CUDA_OK(cudaMalloc(&device_sum, kBytes));
  CUDA_OK(cudaMemcpy(device_a, a.data(), kBytes, cudaMemcpyHostToDevice));
  CUDA_OK(cudaMemcpy(device_b, b.data(), kBytes, cudaMemcpyHostToDevice));
  VectorAdd<<<(kCount + 255) / 256, 256>>>(device_a, device_b, device_sum, kCount);
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaMemcpy(sum.data(), device_sum, kBytes, cudaMemcpyDeviceToHost));
  for (int i = 0; i < kCount; ++i) {
    EXPECT(sum[i] == a[i] + b[i], "element %d is %g, expected %g", i, sum[i], a[i] + b[i]);
  }
  CUDA_OK(cudaFree(device_a));
  CUDA_OK(cudaFree(device_b));
  CUDA_OK(cudaFree(device_sum));
  std::printf("vector_add: %d sums equal the CPU's\n", kCount);
  return programs::Pass();
}
