// SPDX-License-Identifier: Apache-2.0
// tests/programs/driver_api_kernels.cu: compiled to PTX, which driver_api carries as text.

extern "C" {

__device__ unsigned scale_calls = 7;
__constant__ float scale_bias[2];

// The argument block has a gap: `value` is a byte in front of a pointer.
__global__ void Scale(char factor, float* values, int count) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index == 0) atomicAdd(&scale_calls, 1u);
  if (index < count) values[index] = values[index] * factor + scale_bias[index % 2];
}

__global__ void ReverseBlocks(const unsigned* from, unsigned* to) {
  extern __shared__ unsigned block_values[];
  block_values[threadIdx.x] = from[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  to[blockIdx.x * blockDim.x + threadIdx.x] = block_values[blockDim.x - 1 - threadIdx.x];
}

}  // extern "C"
