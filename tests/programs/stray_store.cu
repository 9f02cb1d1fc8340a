// SPDX-License-Identifier: Apache-2.0
// tests/programs/stray_store.cu: stores an int at an index, the argument, of an array of 25 that
// lies among others of its size; "freed" stores into it after it was freed. Prints what CUDA says.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "check.h"

__global__ void Store(int* values, int index) { values[index] = 1; }

int main(int count, char** arguments) {
  const char* const where = count > 1 ? arguments[1] : "24";
  int* arrays[3] = {};
  for (int*& array : arrays) CUDA_OK(cudaMalloc(&array, 25 * sizeof(int)));
  int index = 0;
  if (std::strcmp(where, "freed") == 0) {
    CUDA_OK(cudaFree(arrays[1]));
  } else {
    index = std::atoi(where);
  }
  Store<<<1, 1>>>(arrays[1], index);
  std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
  std::printf("PASS\n");
  return 0;
}
