// SPDX-License-Identifier: Apache-2.0
// Kernels whose fat binaries image_test.cc takes apart.
__constant__ float scale[4];

extern "C" __global__ void Axpy(const float* x, float* y, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] += scale[0] * x[i];
}
