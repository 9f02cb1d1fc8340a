// SPDX-License-Identifier: Apache-2.0
// Kernels whose fat binaries image_test.cc and variables_test.cc take apart.
__constant__ float scale[4];
__device__ int counted;
// Not to be taken for a constant, whichever entry a driver loads.
#if __CUDA_ARCH__ >= 900
__constant__ int by_architecture = 3;
#else
__device__ int by_architecture = 3;
#endif

extern "C" __global__ void Axpy(const float* x, float* y, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] += scale[0] * x[i];
  if (i == by_architecture) ++counted;
}
