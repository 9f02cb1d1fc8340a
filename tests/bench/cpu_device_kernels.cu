// SPDX-License-Identifier: Apache-2.0
// tests/bench/cpu_device_kernels.cu: the kernels of cpu_device_bench, as a CUDA programmer writes
// them who knows of no CPU device. cpu_device_reference.cc has the same in C++.
#include <cstdint>

constexpr int kTile = 32;
constexpr int kReduceThreads = 256;
constexpr int kBins = 256;

extern "C" __global__ void Saxpy(int count, float a, const float* x, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = a * x[i] + y[i];
}

// c = a * b, all of size * size, a thread an element.
extern "C" __global__ void MultiplyNaive(int size, const float* a, const float* b, float* c) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= size || column >= size) return;
  float sum = 0;
  for (int k = 0; k < size; ++k) sum += a[row * size + k] * b[k * size + column];
  c[row * size + column] = sum;
}

// The same by tiles in shared memory; size is a multiple of kTile, blocks are kTile * kTile.
extern "C" __global__ void MultiplyTiled(int size, const float* a, const float* b, float* c) {
  __shared__ float a_tile[kTile][kTile];
  __shared__ float b_tile[kTile][kTile];
  const int x = threadIdx.x, y = threadIdx.y;
  const int column = blockIdx.x * kTile + x;
  const int row = blockIdx.y * kTile + y;
  float sum = 0;
  for (int first = 0; first < size; first += kTile) {
    a_tile[y][x] = a[row * size + first + x];
    b_tile[y][x] = b[(first + y) * size + column];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kTile; ++k) sum += a_tile[y][k] * b_tile[k][x];
    __syncthreads();
  }
  c[row * size + column] = sum;
}

// One sum a block: a tree in shared memory.
template <typename T>
__device__ void ReduceTree(int count, const T* values, T* sums) {
  __shared__ T tree[kReduceThreads];
  T sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    sum += values[i];
  tree[threadIdx.x] = sum;
  for (int width = blockDim.x / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) tree[threadIdx.x] += tree[threadIdx.x + width];
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = tree[0];
}

extern "C" __global__ void ReduceTreeFloat(int count, const float* values, float* sums) {
  ReduceTree(count, values, sums);
}

extern "C" __global__ void ReduceTreeInt(int count, const uint32_t* values, uint32_t* sums) {
  ReduceTree(count, values, sums);
}

// One element a thread, and a tree as deep as the block: as much waiting as adding.
extern "C" __global__ void ReduceShallow(int count, const float* values, float* sums) {
  __shared__ float tree[kReduceThreads];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  tree[threadIdx.x] = i < count ? values[i] : 0;
  for (int width = blockDim.x / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) tree[threadIdx.x] += tree[threadIdx.x + width];
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = tree[0];
}

// One sum a block: shuffles within warps, shared memory between them.
extern "C" __global__ void ReduceShuffle(int count, const float* values, float* sums) {
  __shared__ float warp_sums[32];
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    sum += values[i];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(~0u, sum, offset);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) warp_sums[warp] = sum;
  __syncthreads();
  if (warp != 0) return;
  sum = lane < blockDim.x / 32 ? warp_sums[lane] : 0;
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(~0u, sum, offset);
  if (lane == 0) sums[blockIdx.x] = sum;
}

// Blocks of kTile * 8 threads turn tiles of kTile * kTile; size is a multiple of kTile.
extern "C" __global__ void TransposeNaive(int size, const float* in, float* out) {
  const int x = blockIdx.x * kTile + threadIdx.x;
  const int y = blockIdx.y * kTile + threadIdx.y;
  for (int i = 0; i < kTile; i += blockDim.y) out[x * size + y + i] = in[(y + i) * size + x];
}

extern "C" __global__ void TransposeTiled(int size, const float* in, float* out) {
  __shared__ float tile[kTile][kTile + 1];
  int x = blockIdx.x * kTile + threadIdx.x;
  int y = blockIdx.y * kTile + threadIdx.y;
  for (int i = 0; i < kTile; i += blockDim.y)
    tile[threadIdx.y + i][threadIdx.x] = in[(y + i) * size + x];
  __syncthreads();
  x = blockIdx.y * kTile + threadIdx.x;
  y = blockIdx.x * kTile + threadIdx.y;
  for (int i = 0; i < kTile; i += blockDim.y)
    out[(y + i) * size + x] = tile[threadIdx.x][threadIdx.y + i];
}

// Source of the polynomial: Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.2.17.
template <bool kApproximate>
__device__ float Normal(float d) {
  const float k = 1 / (1 + 0.2316419f * fabsf(d));
  const float square = -0.5f * d * d;
  const float density = 0.39894228040143267794f * (kApproximate ? __expf(square) : expf(square));
  const float tail =
      density *
      (k * (0.31938153f +
            k * (-0.356563782f + k * (1.781477937f + k * (-1.821255978f + k * 1.330274429f)))));
  return d > 0 ? 1 - tail : tail;
}

template <bool kApproximate>
__device__ void Price(int count, const float* prices, const float* strikes, const float* years,
                      float rate, float volatility, float* calls, float* puts) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float price = prices[i], strike = strikes[i], time = years[i];
  const float deviation = volatility * sqrtf(time);
  const float ratio = price / strike;
  const float logarithm = kApproximate ? __logf(ratio) : logf(ratio);
  const float d1 = (logarithm + (rate + 0.5f * volatility * volatility) * time) / deviation;
  const float d2 = d1 - deviation;
  const float n1 = Normal<kApproximate>(d1), n2 = Normal<kApproximate>(d2);
  const float discounted = strike * (kApproximate ? __expf(-rate * time) : expf(-rate * time));
  calls[i] = price * n1 - discounted * n2;
  puts[i] = discounted * (1 - n2) - price * (1 - n1);
}

extern "C" __global__ void BlackScholes(int count, const float* prices, const float* strikes,
                                        const float* years, float rate, float volatility,
                                        float* calls, float* puts) {
  Price<false>(count, prices, strikes, years, rate, volatility, calls, puts);
}

extern "C" __global__ void BlackScholesFast(int count, const float* prices, const float* strikes,
                                            const float* years, float rate, float volatility,
                                            float* calls, float* puts) {
  Price<true>(count, prices, strikes, years, rate, volatility, calls, puts);
}

// Of bytes, four a word: counts of the block in shared memory, then in global memory.
extern "C" __global__ void Histogram(int words, const uint32_t* values, uint32_t* counts) {
  __shared__ uint32_t bins[kBins];
  for (int i = threadIdx.x; i < kBins; i += blockDim.x) bins[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) {
    const uint32_t four = values[i];
    atomicAdd(&bins[four & 255], 1);
    atomicAdd(&bins[four >> 8 & 255], 1);
    atomicAdd(&bins[four >> 16 & 255], 1);
    atomicAdd(&bins[four >> 24], 1);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kBins; i += blockDim.x) atomicAdd(&counts[i], bins[i]);
}
