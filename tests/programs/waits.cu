// SPDX-License-Identifier: Apache-2.0
// Rounds of what an inference does: a kernel, its result copied back to pageable memory and the
// stream waited for once more, as libraries do; and the next input copied from pinned memory.
//
//   waits [ROUNDS]
#include <cstdio>
#include <cstdlib>

#include "check.h"

__global__ void Next(unsigned* state, const unsigned* input) { *state = *state * 3 + *input; }

int main(int argc, char** argv) {
  const unsigned rounds = argc > 1 ? static_cast<unsigned>(atoi(argv[1])) : 50;
  unsigned* device = nullptr;  // the state, and the input
  unsigned* pinned = nullptr;
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA_OK(cudaMalloc(&device, 2 * sizeof(unsigned)));
  CUDA_OK(cudaMallocHost(&pinned, sizeof(unsigned)));
  CUDA_OK(cudaMemset(device, 0, 2 * sizeof(unsigned)));
  CUDA_OK(cudaDeviceSynchronize());
  unsigned wanted = 0;
  for (unsigned round = 0; round < rounds; ++round) {
    *pinned = round;
    CUDA_OK(cudaMemcpy(device + 1, pinned, sizeof(unsigned), cudaMemcpyHostToDevice));
    Next<<<1, 1, 0, stream>>>(device, device + 1);
    wanted = wanted * 3 + round;
    unsigned got = ~wanted;
    CUDA_OK(cudaMemcpyAsync(&got, device, sizeof(got), cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT(got == wanted, "round %u: %u instead of %u", round, got, wanted);
  }
  return programs::Pass();
}
