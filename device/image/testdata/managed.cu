// SPDX-License-Identifier: Apache-2.0
// Managed variables in all the ways in which nvcc was seen to write them.
#include <cstdio>

struct Pair {
  int number;
  double value;
};
__managed__ int counter = -7;
__managed__ float table[4] = {1.5f, 2.0f, 3.0f, 4.0f};
__managed__ unsigned long long large[2] = {0xFFFFFFFFFFFFFFFFull, 5};
__managed__ double ratio = 0.25;
__managed__ char bytes[3] = {'a', 'b', 'c'};
__managed__ Pair pair;
__managed__ int* pointer;
static __managed__ unsigned long long hidden;
__device__ int plain[3] = {1, 2, 3};

template <class Number>
__device__ __noinline__ void Add(Number* to, Number value) {
  atomicAdd(to, value);
}

__global__ void Numbers(int index) {
  counter += index;
  table[index] *= 2;
  pair.value = pair.number + ratio;
  pointer = &plain[1];
  Add(&hidden, 5ull);
  atomicAdd(&counter, 1);
  if (index > 3) bytes[index - 4] = 'x';
  for (int i = 0; i < index; ++i) large[1] += large[0] * static_cast<unsigned long long>(i);
}

__global__ void Vectors(float4* out, int** addresses) {
  *out = *reinterpret_cast<float4*>(table);
  *reinterpret_cast<float4*>(table) = out[1];
  asm volatile("prefetch.global.L1 [%0];" ::"l"(&counter));
  addresses[0] = &counter;
  printf("%d\n", counter);
}
