// SPDX-License-Identifier: Apache-2.0
// tests/api/kernels/systematomics.cu: atomics that are for the host, too, for managed_test.cc.
extern "C" {

// Each thread adds 1 so many times.
__global__ void add_for_host(unsigned* word, unsigned rounds) {
  for (unsigned round = 0; round < rounds; ++round) atomicAdd_system(word, 1u);
}

// Adds 1 after so long.
__global__ void add_late(unsigned long long nanos, unsigned* word) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanos);
  atomicAdd_system(word, 1u);
}
}
