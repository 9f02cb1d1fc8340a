// SPDX-License-Identifier: Apache-2.0
// tests/api/kernels/managed.cu: managed variables, for managed_test.cc.
extern "C" {

__managed__ unsigned total = 40;
__managed__ unsigned values[300];
__device__ unsigned ordinary = 2;

// total += the sum of the values of the block's threads + what is ordinary, once.
__global__ void accumulate() {
  atomicAdd(&total, values[threadIdx.x]);
  if (threadIdx.x == 0) atomicAdd(&total, ordinary);
  values[threadIdx.x] = 0;
}
}
