// SPDX-License-Identifier: Apache-2.0
// Kernels that print in every way in which code gets to printf, and some that do not.
#include <cassert>
#include <cstdio>

__device__ __noinline__ void Helper(int value) { printf("helper %d\n", value); }
__device__ __noinline__ void Other(int value) { __nanosleep(value); }
__device__ void (*functions[2])(int) = {Helper, Other};

extern "C" __global__ void Prints(int value) { printf("%d\n", value); }
extern "C" __global__ void PrintsByHelper(int value) { Helper(value); }
extern "C" __global__ void PrintsByPointer(int value) { functions[value](value); }
extern "C" __global__ void Asserts(int value) { assert(value > 3); }
extern "C" __global__ void Allocates(void** memory) { *memory = malloc(8); }
extern "C" __global__ void Quiet(int* value) { *value = 3; }
