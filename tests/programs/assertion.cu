// SPDX-License-Identifier: Apache-2.0
// A device assert that fails: what it says comes to the program's own stderr, at the
// synchronisation that returns cudaErrorAssert, and what kernels had printed before to its stdout.
// Source: CUDA C++ Programming Guide, "Assertion".
#include <cuda_runtime.h>

#include <cassert>
#include <cstdio>

#include "check.h"

namespace {

__global__ void CheckRange(int value) {
  printf("device: the value is %d\n", value);
  assert(value < 3);
}

}  // namespace

int main() {
  CheckRange<<<1, 1>>>(2);
  CUDA_OK(cudaDeviceSynchronize());
  std::printf("host: the first was right\n");
  CheckRange<<<1, 1>>>(5);
  CUDA_ERROR_IS(cudaDeviceSynchronize(), cudaErrorAssert);
  // For good.
  CUDA_ERROR_IS(cudaDeviceSynchronize(), cudaErrorAssert);
  return programs::Pass();
}
