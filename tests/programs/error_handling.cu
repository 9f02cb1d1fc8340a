// SPDX-License-Identifier: Apache-2.0
// tests/programs/error_handling.cu: mistakes get the documented errors, and a kernel's bad store a
// sticky one, last.
#include <string>
#include <vector>

#include "check.h"

__global__ void Fill(int* values, int value) {
  values[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

// The call fails with `expected`, which is then the last error and is cleared by reading it.
#define FAILS_WITH(call, expected)                  \
  do {                                              \
    CUDA_ERROR_IS(call, expected);                  \
    CUDA_ERROR_IS(cudaPeekAtLastError(), expected); \
    CUDA_ERROR_IS(cudaGetLastError(), expected);    \
    CUDA_ERROR_IS(cudaGetLastError(), cudaSuccess); \
  } while (false)

void TestBadArguments() {
  int* device;
  int host = 0;
  CUDA_OK(cudaMalloc(&device, 256 * sizeof(int)));
  FAILS_WITH(cudaMalloc(static_cast<void**>(nullptr), 16), cudaErrorInvalidValue);
  void* memory = nullptr;
  FAILS_WITH(cudaMalloc(&memory, size_t{1} << 46), cudaErrorMemoryAllocation);
  FAILS_WITH(cudaSetDevice(4096), cudaErrorInvalidDevice);
  FAILS_WITH(cudaMemcpy(device, &host, sizeof host, static_cast<cudaMemcpyKind>(42)),
             cudaErrorInvalidMemcpyDirection);
  FAILS_WITH(cudaMemcpy(&host, nullptr, sizeof host, cudaMemcpyDeviceToHost),
             cudaErrorInvalidValue);
  FAILS_WITH(cudaMemcpy2D(device, 8, &host, 4, 16, 1, cudaMemcpyHostToDevice),
             cudaErrorInvalidValue);
  FAILS_WITH(cudaFree(&host), cudaErrorInvalidValue);
  CUDA_OK(cudaFree(nullptr));

  // Driver 580 with runtime 13.0 says cudaErrorInvalidValue of any impossible launch.
  Fill<<<1, 2048>>>(device, 1);  // more threads than a block has
  CUDA_ERROR_IS(cudaGetLastError(), cudaErrorInvalidValue);
  Fill<<<0, 32>>>(device, 1);
  CUDA_ERROR_IS(cudaGetLastError(), cudaErrorInvalidValue);
  Fill<<<1, 32, 1 << 20>>>(device, 1);  // 1 MiB of shared memory
  CUDA_ERROR_IS(cudaGetLastError(), cudaErrorInvalidValue);
  CUDA_OK(cudaDeviceSynchronize());

  // After all these the context still works.
  Fill<<<1, 256>>>(device, 5);
  CUDA_OK(cudaGetLastError());
  std::vector<int> values(256);
  CUDA_OK(cudaMemcpy(values.data(), device, 256 * sizeof(int), cudaMemcpyDeviceToHost));
  for (int value : values) EXPECT(value == 5, "%d after harmless errors", value);
  CUDA_OK(cudaFree(device));
  FAILS_WITH(cudaFree(device), cudaErrorInvalidValue);  // twice
  EXPECT(cudaGetErrorName(cudaErrorIllegalAddress) == std::string("cudaErrorIllegalAddress"),
         "name of an error");
}

// A store outside every allocation ends the context: each later call says so. Source: CUDA Runtime
// API, cudaErrorIllegalAddress: "This leaves the process in an inconsistent state and any further
// CUDA work will return the same error."
void TestStickyError() {
  int* device;
  CUDA_OK(cudaMalloc(&device, 256 * sizeof(int)));
  Fill<<<1, 32>>>(reinterpret_cast<int*>(uintptr_t{0x100}), 1);
  CUDA_OK(cudaGetLastError());  // the launch itself is fine
  CUDA_ERROR_IS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  CUDA_ERROR_IS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  std::vector<int> values(256);
  CUDA_ERROR_IS(cudaMemcpy(values.data(), device, 256 * sizeof(int), cudaMemcpyDeviceToHost),
                cudaErrorIllegalAddress);
  void* memory = nullptr;
  CUDA_ERROR_IS(cudaMalloc(&memory, 16), cudaErrorIllegalAddress);
  Fill<<<1, 32>>>(device, 1);
  CUDA_ERROR_IS(cudaGetLastError(), cudaErrorIllegalAddress);
  CUDA_ERROR_IS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
}

int main() {
  TestBadArguments();
  TestStickyError();
  std::printf("error_handling: bad arguments refused, the illegal address stays\n");
  return programs::Pass();
}
