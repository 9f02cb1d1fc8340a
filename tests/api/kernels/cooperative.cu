// SPDX-License-Identifier: Apache-2.0
// A barrier over the whole grid: only a cooperative launch promises that it ends.

// Every block adds to state[0], waits until all have, then adds what it sees to state[1]. The wait is bounded; a block that
// gives up sets state[2].
extern "C" __global__ void grid_barrier(unsigned* state) {
  if (threadIdx.x != 0) return;
  atomicAdd(&state[0], 1u);
  volatile unsigned* arrived = state;
  for (unsigned tries = 0; *arrived != gridDim.x; ++tries) {
    if (tries == 1u << 26) {
      state[2] = 1;
      return;
    }
  }
  atomicAdd(&state[1], *arrived);
}
