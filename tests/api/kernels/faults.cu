// SPDX-License-Identifier: Apache-2.0
// Kernels that end in an error: each case that launches one runs in a process of its own.

extern "C" {

__global__ void store_at(unsigned long long address) {
  *reinterpret_cast<volatile unsigned*>(address) = 1;
}

__global__ void trap_now() { asm volatile("trap;"); }

__global__ void misaligned(char* base) { *reinterpret_cast<volatile unsigned*>(base + 1) = 1; }

__device__ __noinline__ unsigned sum_of_depths(unsigned depth) {
  volatile unsigned cells[64];
  for (unsigned i = 0; i < 64; ++i) cells[i] = depth + i;
  if (depth > 0) cells[depth % 64] = sum_of_depths(depth - 1);
  return cells[depth * 7 % 64];
}

// Needs 256 bytes of stack a turn.
__global__ void recurse(unsigned* out, unsigned depth) { *out = sum_of_depths(depth); }

}  // extern "C"
