// SPDX-License-Identifier: Apache-2.0
// Kernels whose results the host can compute: used by most cases. Names are C names, so no
// demangling is needed.

extern "C" {

__device__ unsigned counter;
__device__ unsigned initialized[4] = {11, 22, 33, 44};
__constant__ unsigned factor = 3;

// Adds one to `counter` from every thread. Takes no parameters.
__global__ void bump() { atomicAdd(&counter, 1u); }

__global__ void fill_index(unsigned* out, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = i;
}

__global__ void vector_add(const float* a, const float* b, float* c, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

__global__ void store(unsigned* out, unsigned value) { *out = value; }

__global__ void add_to(unsigned* out, unsigned value) { *out += value; }

__global__ void copy_word(unsigned* out, const unsigned* in) { *out = *in; }

__global__ void times_factor(unsigned* out, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = i * factor;
}

// One word per thread of the whole grid: block.x, block.y, block.z, thread.x, thread.y, thread.z in
// 5 bits each.
__global__ void coordinates(unsigned* out) {
  unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * (blockDim.x * blockDim.y * blockDim.z) + thread] =
      blockIdx.x | blockIdx.y << 5 | blockIdx.z << 10 | threadIdx.x << 15 | threadIdx.y << 20 |
      threadIdx.z << 25;
}

// out[i] = in[blockDim.x - 1 - i] through static shared memory; at most 256 threads.
__global__ void reverse_static(unsigned* out, const unsigned* in) {
  __shared__ unsigned tile[256];
  tile[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

// Fills `words` words of dynamic shared memory and writes their sum to out[blockIdx.x].
__global__ void sum_dynamic(unsigned* out, unsigned words) {
  extern __shared__ unsigned scratch[];
  for (unsigned i = threadIdx.x; i < words; i += blockDim.x) scratch[i] = i;
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned sum = 0;
    for (unsigned i = 0; i < words; ++i) sum += scratch[i];
    out[blockIdx.x] = sum;
  }
}

}  // extern "C"
