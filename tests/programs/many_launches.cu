// SPDX-License-Identifier: Apache-2.0
// Launches that nobody waits for: many kernels, then one synchronisation, and that again. Before
// each the kernel's shared memory is set and a limit asked for, as cuBLAS does.
//
//   many_launches [LAUNCHES [ROUNDS]]
#include <cstdio>
#include <cstdlib>

#include "check.h"

__global__ void Add(unsigned* value, unsigned what) { *value = *value * 3 + what; }

int main(int argc, char** argv) {
  const unsigned launches = argc > 1 ? static_cast<unsigned>(atoi(argv[1])) : 500;
  const unsigned rounds = argc > 2 ? static_cast<unsigned>(atoi(argv[2])) : 3;
  unsigned* value = nullptr;
  CUDA_OK(cudaMalloc(&value, sizeof(unsigned)));
  CUDA_OK(cudaMemset(value, 0, sizeof(unsigned)));
  unsigned wanted = 0;
  for (unsigned round = 0; round < rounds; ++round) {
    for (unsigned i = 0; i < launches; ++i) {
      size_t limit = 0;
      CUDA_OK(cudaDeviceGetLimit(&limit, cudaLimitStackSize));
      CUDA_OK(cudaFuncSetAttribute(Add, cudaFuncAttributeMaxDynamicSharedMemorySize, 1024));
      Add<<<1, 1>>>(value, i);
      wanted = wanted * 3 + i;
    }
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaDeviceSynchronize());
  }
  unsigned got = 0;
  CUDA_OK(cudaMemcpy(&got, value, sizeof(got), cudaMemcpyDeviceToHost));
  EXPECT(got == wanted, "%u instead of %u", got, wanted);
  printf("%u launches, %u synchronisations\n", launches * rounds, rounds);
  return programs::Pass();
}
