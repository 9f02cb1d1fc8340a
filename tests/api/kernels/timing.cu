// SPDX-License-Identifier: Apache-2.0
// A kernel that keeps the device busy for a bounded time.

extern "C" __global__ void spin(unsigned long long nanos, unsigned* out, unsigned value) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanos);
  *out = value;
}
