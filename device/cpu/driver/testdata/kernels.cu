// SPDX-License-Identifier: Apache-2.0
// Kernels that the driver's tests load.
__constant__ float scale[4];
__device__ int counter;
__device__ int table[8] = {1, 2, 3, 4, 5, 6, 7, 8};

extern "C" __global__ void VectorAdd(const float* a, const float* b, float* c, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) c[i] = a[i] + b[i];
}

extern "C" __global__ void ScaleBy(float* data, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] *= scale[1];
}

extern "C" __global__ void Count() { atomicAdd(&counter, 1); }

// Parameters of different sizes and alignments.
extern "C" __global__ void Mixed(char a, double b, short c, int* out) {
  out[0] = a;
  out[1] = static_cast<int>(b);
  out[2] = c;
}

// Reverses `count` ints of a block through dynamic shared memory.
extern "C" __global__ void Reverse(int* data, int count) {
  extern __shared__ int staged[];
  const int i = threadIdx.x;
  if (i < count) staged[i] = data[i];
  __syncthreads();
  if (i < count) data[i] = staged[count - 1 - i];
}

extern "C" __global__ void StoreAt(int* address, int value) { *address = value; }

extern "C" __global__ void Trap() { asm volatile("trap;"); }

extern "C" __global__ void __launch_bounds__(64) SmallBlocks(int* out) { out[threadIdx.x] = 1; }

// Runs until *flag is set: two of these, each setting the other's, need to run at the same time.
extern "C" __global__ void Meet(volatile int* mine, volatile int* other) {
  *mine = 1;
  while (*other == 0) {
  }
}
