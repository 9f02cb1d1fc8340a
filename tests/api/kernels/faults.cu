// SPDX-License-Identifier: Apache-2.0
// Kernels that end in an error: each case that launches one runs in a process of its own.

extern "C" {

__global__ void store_at(unsigned long long address) {
  *reinterpret_cast<volatile unsigned*>(address) = 1;
}

__global__ void trap_now() { asm volatile("trap;"); }

__global__ void misaligned(char* base) { *reinterpret_cast<volatile unsigned*>(base + 1) = 1; }

}  // extern "C"
