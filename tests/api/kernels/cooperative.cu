// SPDX-License-Identifier: Apache-2.0
// A barrier over the whole grid: only a cooperative launch promises that it ends.

__device__ static unsigned long long Nanos() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Every block adds to state[0], waits until all have, then adds what it sees to state[1]. The wait
// is bounded by ten seconds; a block that gives up sets state[2].
extern "C" __global__ void grid_barrier(unsigned* state) {
  if (threadIdx.x != 0) return;
  atomicAdd(&state[0], 1u);
  volatile unsigned* arrived = state;
  const unsigned long long start = Nanos();
  while (*arrived != gridDim.x) {
    if (Nanos() - start > 10000000000ull) {
      state[2] = 1;
      return;
    }
  }
  atomicAdd(&state[1], *arrived);
}
