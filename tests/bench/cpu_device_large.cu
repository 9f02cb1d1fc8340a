// SPDX-License-Identifier: Apache-2.0
// tests/bench/cpu_device_large.cu: a large program, for how long the CPU device takes to load one:
// kernels of several kinds, made for many sizes and types as libraries do, 10,000 lines of PTX and
// more. Each takes a size first and ends at once where that is 0.
#include <cmath>
#include <cstdint>

// Bitonic sort of a block's kCount values in shared memory, the steps unrolled.
template <typename T, int kCount>
__global__ void Sort(int count, const T* in, T* out) {
  __shared__ T values[kCount];
  if (blockIdx.x * kCount >= count) return;
  for (int i = threadIdx.x; i < kCount; i += blockDim.x) values[i] = in[blockIdx.x * kCount + i];
#pragma unroll
  for (int width = 2; width <= kCount; width *= 2) {
#pragma unroll
    for (int stride = width / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < kCount / 2; i += blockDim.x) {
        const int low = 2 * i - (i & (stride - 1)), high = low + stride;
        const bool ascending = (low & width) == 0;
        if ((values[low] > values[high]) == ascending) {
          const T kept = values[low];
          values[low] = values[high];
          values[high] = kept;
        }
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kCount; i += blockDim.x) out[blockIdx.x * kCount + i] = values[i];
}

// A star of kRadius points each way in three dimensions.
template <typename T, int kRadius>
__global__ void Stencil(int nx, int ny, int nz, const T* in, T* out) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x < kRadius || x >= nx - kRadius || y < kRadius || y >= ny - kRadius) return;
  for (int z = kRadius; z < nz - kRadius; ++z) {
    const int at = (z * ny + y) * nx + x;
    T sum = in[at];
#pragma unroll
    for (int i = 1; i <= kRadius; ++i) {
      sum += T(1) / T(i) *
             (in[at + i] + in[at - i] + in[at + i * nx] + in[at - i * nx] + in[at + i * nx * ny] +
              in[at - i * nx * ny]);
    }
    out[at] = sum;
  }
}

// A thread's kSide * kSide elements of c = a * b.
template <typename T, int kSide>
__global__ void Multiply(int size, const T* a, const T* b, T* c) {
  const int row = (blockIdx.y * blockDim.y + threadIdx.y) * kSide;
  const int column = (blockIdx.x * blockDim.x + threadIdx.x) * kSide;
  if (row >= size || column >= size) return;
  T sums[kSide][kSide] = {};
  for (int k = 0; k < size; ++k) {
#pragma unroll
    for (int i = 0; i < kSide; ++i)
#pragma unroll
      for (int j = 0; j < kSide; ++j)
        sums[i][j] += a[(row + i) * size + k] * b[k * size + column + j];
  }
#pragma unroll
  for (int i = 0; i < kSide; ++i)
#pragma unroll
    for (int j = 0; j < kSide; ++j) c[(row + i) * size + column + j] = sums[i][j];
}

// A Fourier transform of kCount values in a thread's registers, and its power spectrum.
template <typename T, int kCount>
__global__ void Transform(int count, const T* in, T* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  T re[kCount], im[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    re[k] = in[i * kCount + k];
    im[k] = 0;
  }
#pragma unroll
  for (int half = kCount / 2; half > 0; half /= 2) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (k & half) continue;
      T sine, cosine;
      sincospi(T(-(k & (half - 1))) / T(half), &sine, &cosine);
      const T dr = re[k] - re[k + half], di = im[k] - im[k + half];
      re[k] += re[k + half];
      im[k] += im[k + half];
      re[k + half] = dr * cosine - di * sine;
      im[k + half] = dr * sine + di * cosine;
    }
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) out[i * kCount + k] = re[k] * re[k] + im[k] * im[k];
}

// A path of kSteps steps of a price, by a generator of random numbers in registers.
template <typename T, int kSteps>
__global__ void Walk(int count, uint32_t seed, T* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  uint32_t state = seed ^ (i * 2654435761u);
  T price = 100;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    state = state * 1664525u + 1013904223u;
    const T u = (T(state >> 8) + T(0.5)) / T(1 << 24);
    price *= exp(T(0.01) * sqrt(-2 * log(u)) - T(0.001));
  }
  out[i] = price;
}

template <typename T>
void* const* KernelsOf() {
  static void* const kernels[] = {
      (void*)Sort<T, 256>,    (void*)Sort<T, 512>,    (void*)Stencil<T, 1>,  (void*)Stencil<T, 2>,
      (void*)Stencil<T, 4>,   (void*)Multiply<T, 1>,  (void*)Multiply<T, 2>, (void*)Multiply<T, 4>,
      (void*)Transform<T, 4>, (void*)Transform<T, 8>, (void*)Walk<T, 1>,     (void*)Walk<T, 4>,
  };
  return kernels;
}

// What makes nvcc emit them.
void* const* FloatKernels() { return KernelsOf<float>(); }
void* const* DoubleKernels() { return KernelsOf<double>(); }
