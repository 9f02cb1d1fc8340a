// SPDX-License-Identifier: Apache-2.0
// tests/api/kernels/linkmain.cu: one of two units that the linker joins; the other is
// linkhelper.cu. Each has a function and a variable of its own under the same name.
extern "C" {

extern __device__ unsigned scale(unsigned value);
extern __device__ unsigned offset;
__device__ unsigned factor = 3;

static __device__ __noinline__ unsigned own(unsigned value) { return value + 1; }
static __device__ unsigned table[2] = {10, 20};

// out[0]: by way of the other unit, out[1]: by this one's own.
__global__ void linked(unsigned* out, unsigned value) {
  out[0] = scale(value) + offset;
  out[1] = own(value) + table[value % 2];
}

}  // extern "C"
