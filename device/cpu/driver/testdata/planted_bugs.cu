// SPDX-License-Identifier: Apache-2.0
// Kernels with one bug each, for driver_sanitize_test.cc. What is wrong depends on an argument, so
// that no compiler sees it; with a good argument each is in order. Lines marked BUG are what a
// report has to name.
#include <cstdarg>

extern "C" {

__constant__ int constants[4] = {1, 2, 3, 4};
__device__ int module_table[4];

__global__ void WriteGlobal(int* data, long long index) {
  data[threadIdx.x + index] = 1;  // BUG WriteGlobal
}

__global__ void ReadGlobal(const int* data, long long index, int* out) { *out = data[index]; }

__global__ void WriteByte(char* data, long long index) { data[index] = 1; }

__global__ void ReadVector(const float4* data, long long index, float* out) {
  const float4 value = data[index];
  *out = value.x + value.w;
}

__global__ void AddAtomically(int* data, long long index) { atomicAdd(data + index, 1); }

__global__ void ReadUnaligned(const char* data, long long index, int* out) {
  *out = *reinterpret_cast<const int*>(data + index);
}

__global__ void WriteStaticShared(int* out, int index) {
  __shared__ int cells[32];
  cells[threadIdx.x] = 1;
  __syncthreads();
  cells[threadIdx.x + index] = 2;  // BUG WriteStaticShared
  __syncthreads();
  out[threadIdx.x] = cells[threadIdx.x];
}

__global__ void WriteDynamicShared(int* out, int index) {
  extern __shared__ int dynamic[];
  dynamic[threadIdx.x + index] = 2;
  __syncthreads();
  out[threadIdx.x] = dynamic[threadIdx.x];
}

__device__ __noinline__ void StoreThrough(int* address, int value) { *address = value; }

// The same through a generic address.
__global__ void WriteSharedThroughPointer(int* out, int index) {
  __shared__ int cells[32];
  cells[threadIdx.x] = 0;
  __syncthreads();
  StoreThrough(cells + threadIdx.x + index, 3);
  __syncthreads();
  out[threadIdx.x] = cells[threadIdx.x];
}

__device__ __noinline__ int LastOf(int count, ...) {
  va_list arguments;
  va_start(arguments, count);
  int last = 0;
  for (int i = 0; i < count; ++i) last = va_arg(arguments, int);
  va_end(arguments);
  return last;
}

__global__ void ReadArguments(int* out, int extra) {
  out[threadIdx.x] = LastOf(2 + extra, 5, 6) + LastOf(1, 7);
}

__global__ void WriteLocal(int* out, int index) {
  int cells[8] = {};
  cells[index] = 7;
  int sum = 0;
  for (int i = 0; i < 8; ++i) sum += cells[(i + index) & 7];
  *out = sum;
}

__device__ __noinline__ int SumOfLocals(int count, int index) {
  int cells[6];
  for (int i = 0; i < 6; ++i) cells[i] = count + i;
  StoreThrough(cells + index, 1);
  return cells[(index + 1) % 6];
}

// In a called function, through a generic address.
__global__ void WriteLocalOfFunction(int* out, int index) { *out = SumOfLocals(*out, index); }

__global__ void ReadConstant(int* out, int index) { *out = constants[index]; }

__global__ void WriteVariable(int index) { module_table[index] = 1; }

__global__ void WriteMalloc(int* out, int index) {
  int* block = static_cast<int*>(malloc(4 * sizeof(int)));
  block[index] = 5;
  *out = block[index];
  free(block);
}

__global__ void WriteFreedMalloc(int* out, int late) {
  int* block = static_cast<int*>(malloc(4 * sizeof(int)));
  block[0] = 5;
  if (late != 0) free(block);
  StoreThrough(block, 6);
  *out = 1;
  if (late == 0) free(block);
}

__global__ void FreeTwice(int* out, int twice) {
  void* block = malloc(16);
  free(block);
  if (twice != 0) free(block);
  *out = 1;
}

// cp.async of 16 bytes.
__global__ void CopyAsync(const char* from, long long index, int* out) {
  __shared__ __align__(16) char staged[16];
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(staged));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;\n cp.async.wait_all;" ::"r"(to),
               "l"(from + index));
  *out = staged[0];
}

__global__ void Fetch(unsigned long long texture, int* out) {
  int x = 0, y = 0, z = 0, w = 0;
  asm volatile("tex.1d.v4.s32.s32 {%0, %1, %2, %3}, [%4, {%5}];"
               : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
               : "l"(texture), "r"(0));
  *out = x | (y & z & w);
}

// A parameter whose elements are chosen at run time: the compiler takes its address.
struct Numbers {
  int values[8];
};
__global__ void ReadParameter(Numbers numbers, int index, int* out) {
  *out = numbers.values[index];
}

__device__ __noinline__ int Depth(int depth) {
  int cells[64];
  for (int i = 0; i < 64; ++i) cells[i] = depth + i;
  if (depth > 0) cells[depth & 63] += Depth(depth - 1);
  return cells[(depth * 7) & 63];
}

__global__ void Recurse(int* out, int depth) { *out = Depth(depth); }

__global__ void LoopWhile(volatile int* flag) {
  while (*flag != 0) {
  }
}

__global__ void LoopWithBarrier(volatile int* flag) {
  while (*flag != 0) __syncthreads();
}

}  // extern "C"
