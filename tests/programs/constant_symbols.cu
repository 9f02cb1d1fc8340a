// SPDX-License-Identifier: Apache-2.0
// tests/programs/constant_symbols.cu: __constant__ and __device__ variables, initialised, written
// and read by both sides.
#include <vector>

#include "check.h"

__constant__ float polynomial[4] = {1.0f, -2.0f, 0.5f, 0.25f};
__constant__ uint32_t table[1024];
__device__ unsigned launches = 100;
__device__ double last_sum;
__device__ uint8_t bytes[7] = {1, 2, 3, 4, 5, 6, 7};
static __device__ uint32_t hidden[16];

// Horner's rule on the constants; one thread also counts the launch.
__global__ void Evaluate(const float* x, float* y, int count) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index == 0) atomicAdd(&launches, 1u);
  if (index >= count) return;
  float value = 0.0f;
  for (int i = 3; i >= 0; --i) value = value * x[index] + polynomial[i];
  y[index] = value;
}

// Indices differ between the threads of a warp.
__global__ void LookUp(const uint32_t* indices, uint32_t* values, int count) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count)
    values[index] = table[indices[index] % 1024] + bytes[index % 7] + hidden[index % 16];
}

__global__ void StoreSum(double a, double b) { last_sum = a + b; }

float EvaluateOnCpu(const float* constants, float x) {
  float value = 0.0f;
  for (int i = 3; i >= 0; --i) value = value * x + constants[i];
  return value;
}

int main() {
  constexpr int kCount = 500, kGrid = (kCount + 127) / 128;
  std::vector<float> x(kCount), y(kCount);
  for (int i = 0; i < kCount; ++i)
    x[i] = static_cast<float>(i % 32) * 0.25f;  // exact in float, with or without FMA
  float *device_x, *device_y;
  CUDA_OK(cudaMalloc(&device_x, kCount * sizeof(float)));
  CUDA_OK(cudaMalloc(&device_y, kCount * sizeof(float)));
  CUDA_OK(cudaMemcpy(device_x, x.data(), kCount * sizeof(float), cudaMemcpyHostToDevice));

  const float initial[4] = {1.0f, -2.0f, 0.5f, 0.25f};
  Evaluate<<<kGrid, 128>>>(device_x, device_y, kCount);
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaMemcpy(y.data(), device_y, kCount * sizeof(float), cudaMemcpyDeviceToHost));
  for (int i = 0; i < kCount; ++i)
    EXPECT(y[i] == EvaluateOnCpu(initial, x[i]), "initial constants: p(%g) is %g, expected %g",
           x[i], y[i], EvaluateOnCpu(initial, x[i]));

  // Part of the array, at an offset, between two launches.
  const float changed[4] = {1.0f, -2.0f, 4.0f, 8.0f};
  CUDA_OK(cudaMemcpyToSymbol(polynomial, changed + 2, 2 * sizeof(float), 2 * sizeof(float)));
  Evaluate<<<kGrid, 128>>>(device_x, device_y, kCount);
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaMemcpy(y.data(), device_y, kCount * sizeof(float), cudaMemcpyDeviceToHost));
  for (int i = 0; i < kCount; ++i)
    EXPECT(y[i] == EvaluateOnCpu(changed, x[i]), "changed constants: p(%g) is %g, expected %g",
           x[i], y[i], EvaluateOnCpu(changed, x[i]));
  float read_back[4];
  CUDA_OK(cudaMemcpyFromSymbol(read_back, polynomial, sizeof read_back));
  for (int i = 0; i < 4; ++i)
    EXPECT(read_back[i] == changed[i], "polynomial[%d] reads %g, expected %g", i, read_back[i],
           changed[i]);
  unsigned launch_count = 0;
  CUDA_OK(cudaMemcpyFromSymbol(&launch_count, launches, sizeof launch_count));
  EXPECT(launch_count == 102, "the kernel counted %u, expected 102", launch_count);

  std::vector<uint32_t> values(1024), hidden_values(16), indices(kCount), found(kCount);
  programs::Random random(7);
  for (uint32_t& value : values) value = random.Next();
  for (uint32_t& value : hidden_values) value = random.Next();
  for (uint32_t& value : indices) value = random.Next();
  uint32_t *device_indices, *device_found;
  CUDA_OK(cudaMalloc(&device_indices, kCount * sizeof(uint32_t)));
  CUDA_OK(cudaMalloc(&device_found, kCount * sizeof(uint32_t)));
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreate(&stream));
  CUDA_OK(cudaMemcpyToSymbolAsync(table, values.data(), 1024 * sizeof(uint32_t), 0,
                                  cudaMemcpyHostToDevice, stream));
  CUDA_OK(cudaMemcpyToSymbolAsync(hidden, hidden_values.data(), 16 * sizeof(uint32_t), 0,
                                  cudaMemcpyHostToDevice, stream));
  CUDA_OK(cudaMemcpyAsync(device_indices, indices.data(), kCount * sizeof(uint32_t),
                          cudaMemcpyHostToDevice, stream));
  LookUp<<<kGrid, 128, 0, stream>>>(device_indices, device_found, kCount);
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaMemcpyAsync(found.data(), device_found, kCount * sizeof(uint32_t),
                          cudaMemcpyDeviceToHost, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  for (int i = 0; i < kCount; ++i) {
    const uint32_t expected = values[indices[i] % 1024] + (i % 7 + 1) + hidden_values[i % 16];
    EXPECT(found[i] == expected, "table look-up %d is %u, expected %u", i, found[i], expected);
  }

  StoreSum<<<1, 1>>>(0.1, 0.2);
  double sum = 0.0;
  CUDA_OK(cudaMemcpyFromSymbol(&sum, last_sum, sizeof sum));
  EXPECT(sum == 0.1 + 0.2, "last_sum is %.17g", sum);
  size_t size = 0;
  CUDA_OK(cudaGetSymbolSize(&size, table));
  EXPECT(size == 4096, "table has %zu bytes", size);
  CUDA_OK(cudaGetSymbolSize(&size, bytes));
  EXPECT(size == 7, "bytes has %zu bytes", size);
  void* address = nullptr;
  CUDA_OK(cudaGetSymbolAddress(&address, hidden));
  uint32_t element = 0;
  CUDA_OK(cudaMemcpy(&element, static_cast<uint32_t*>(address) + 9, sizeof element,
                     cudaMemcpyDeviceToHost));
  EXPECT(element == hidden_values[9], "through the symbol's address: %u, expected %u", element,
         hidden_values[9]);
  const uint64_t too_much[2] = {};
  CUDA_ERROR_IS(cudaMemcpyToSymbol(bytes, too_much, 8), cudaErrorInvalidValue);
  CUDA_ERROR_IS(cudaGetLastError(), cudaErrorInvalidValue);
  CUDA_OK(cudaStreamDestroy(stream));
  CUDA_OK(cudaFree(device_x));
  CUDA_OK(cudaFree(device_y));
  CUDA_OK(cudaFree(device_indices));
  CUDA_OK(cudaFree(device_found));
  std::printf(
      "constant_symbols: constants initialised and rewritten, device variables counted %u "
      "launches\n",
      launch_count);
  return programs::Pass();
}
