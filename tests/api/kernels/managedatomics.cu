// SPDX-License-Identifier: Apache-2.0
// tests/api/kernels/managedatomics.cu: as systematomics.cu, of a managed variable.
extern "C" {

__managed__ unsigned counter = 5;

__global__ void count_late(unsigned long long nanos) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanos);
  atomicAdd_system(&counter, 1u);
}
}
