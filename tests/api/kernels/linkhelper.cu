// SPDX-License-Identifier: Apache-2.0
// tests/api/kernels/linkhelper.cu: see linkmain.cu.
extern "C" {

extern __device__ unsigned factor;
__device__ unsigned offset = 1000;

static __device__ __noinline__ unsigned own(unsigned value) { return value * 2; }
static __device__ unsigned table[2] = {500, 600};

__device__ unsigned scale(unsigned value) { return own(value) * factor + table[value % 2]; }

}  // extern "C"
