// SPDX-License-Identifier: Apache-2.0
// Kernels in the manner of common CUDA programs, which nvcc turns into PTX for nvcc_kernels_test.
#include <mma.h>
#include <cuda/barrier>

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

#include <cstdarg>
#include <cstdio>

namespace cg = cooperative_groups;

constexpr int kWarp = 32;

extern "C" __global__ void VectorAdd(const float* a, const float* b, float* c, int count) {
  const int i = blockDim.x * blockIdx.x + threadIdx.x;
  if (i < count) c[i] = a[i] + b[i];
}

constexpr int kTile = 32;

extern "C" __global__ void MatrixMultiply(float* c, const float* a, const float* b, int a_width,
                                          int b_width) {
  __shared__ float a_tile[kTile][kTile];
  __shared__ float b_tile[kTile][kTile];
  const int row = blockIdx.y * kTile + threadIdx.y;
  const int column = blockIdx.x * kTile + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < a_width; k += kTile) {
    a_tile[threadIdx.y][threadIdx.x] = a[row * a_width + k + threadIdx.x];
    b_tile[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * b_width + column];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile; ++i) sum += a_tile[threadIdx.y][i] * b_tile[i][threadIdx.x];
    __syncthreads();
  }
  c[row * b_width + column] = sum;
}

// Sums a block through shared memory and then a warp through shuffles.
extern "C" __global__ void Reduce(const int* in, int* out, unsigned count) {
  extern __shared__ int partial[];
  cg::thread_block block = cg::this_thread_block();
  int sum = 0;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    sum += in[i];
  }
  partial[threadIdx.x] = sum;
  cg::sync(block);
  for (unsigned offset = blockDim.x / 2; offset >= kWarp; offset /= 2) {
    if (threadIdx.x < offset) partial[threadIdx.x] = sum = sum + partial[threadIdx.x + offset];
    cg::sync(block);
  }
  cg::thread_block_tile<kWarp> warp = cg::tiled_partition<kWarp>(block);
  if (block.thread_rank() < kWarp) {
    for (int offset = warp.size() / 2; offset > 0; offset /= 2) {
      sum += warp.shfl_down(sum, offset);
    }
  }
  if (block.thread_rank() == 0) out[blockIdx.x] = sum;
}

// One warp-aggregated atomic for the lanes that meet.
extern "C" __global__ void CountOdd(const int* in, int* counter, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count && in[i] % 2 != 0) {
    cg::coalesced_group active = cg::coalesced_threads();
    int first = 0;
    if (active.thread_rank() == 0) first = atomicAdd(counter, active.size());
    if (active.shfl(first, 0) < 0) *counter = -1;
  }
}

// 64 bins, four byte counters packed in a word, each thread with its own column of bytes.
constexpr int kBins64 = 64;
constexpr int kThreads64 = 64;
extern "C" __global__ void Histogram64(unsigned* partial, const unsigned* data, unsigned words) {
  __shared__ unsigned char counters[kThreads64 * kBins64];
  cg::thread_block block = cg::this_thread_block();
  // The position of this thread's byte in each row, spread over the banks of shared memory.
  const unsigned position =
      (threadIdx.x & ~63u) | ((threadIdx.x & 15u) << 2) | ((threadIdx.x & 48u) >> 4);
  unsigned* as_words = reinterpret_cast<unsigned*>(counters);
  for (int i = 0; i < kBins64 / 4; ++i) as_words[threadIdx.x + i * kThreads64] = 0;
  cg::sync(block);
  unsigned char* mine = counters + position;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += blockDim.x * gridDim.x) {
    const unsigned word = data[i];
    mine[(word >> 2 & 0x3F) * kThreads64]++;
    mine[(word >> 10 & 0x3F) * kThreads64]++;
    mine[(word >> 18 & 0x3F) * kThreads64]++;
    mine[(word >> 26 & 0x3F) * kThreads64]++;
  }
  cg::sync(block);
  if (threadIdx.x < kBins64) {
    const unsigned char* row = counters + threadIdx.x * kThreads64;
    unsigned sum = 0;
    unsigned at = 4 * (threadIdx.x & 15);
    for (int i = 0; i < kThreads64 / 4; ++i) {
      sum += row[at] + row[at + 1] + row[at + 2] + row[at + 3];
      at = (at + 4) & (kThreads64 - 1);
    }
    partial[blockIdx.x * kBins64 + threadIdx.x] = sum;
  }
}

// 256 bins, one histogram a warp, counted without atomics: the lane whose tag stays has counted.
constexpr int kWarps256 = 6;
extern "C" __global__ void Histogram256Tagged(unsigned* partial, const unsigned* data,
                                              unsigned words) {
  __shared__ volatile unsigned counters[kWarps256][256];
  cg::thread_block block = cg::this_thread_block();
  for (unsigned i = threadIdx.x; i < kWarps256 * 256; i += blockDim.x)
    counters[i / 256][i % 256] = 0;
  cg::sync(block);
  const unsigned tag = threadIdx.x << 27;
  volatile unsigned* mine = counters[threadIdx.x / kWarp];
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += blockDim.x * gridDim.x) {
    for (int byte = 0; byte < 4; ++byte) {
      const unsigned bin = data[i] >> (8 * byte) & 0xFF;
      unsigned count;
      do {
        count = mine[bin] & 0x07FFFFFF;
        count = tag | (count + 1);
        mine[bin] = count;
      } while (mine[bin] != count);
    }
  }
  cg::sync(block);
  for (unsigned bin = threadIdx.x; bin < 256; bin += blockDim.x) {
    unsigned sum = 0;
    for (int warp = 0; warp < kWarps256; ++warp) sum += counters[warp][bin] & 0x07FFFFFF;
    partial[blockIdx.x * 256 + bin] = sum;
  }
}

extern "C" __global__ void Histogram256(unsigned* partial, const unsigned* data, unsigned words) {
  __shared__ unsigned counters[kWarps256 * 256];
  cg::thread_block block = cg::this_thread_block();
  for (unsigned i = threadIdx.x; i < kWarps256 * 256; i += blockDim.x) counters[i] = 0;
  cg::sync(block);
  unsigned* mine = counters + threadIdx.x / kWarp * 256;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += blockDim.x * gridDim.x) {
    const unsigned word = data[i];
    atomicAdd(mine + (word & 0xFF), 1);
    atomicAdd(mine + (word >> 8 & 0xFF), 1);
    atomicAdd(mine + (word >> 16 & 0xFF), 1);
    atomicAdd(mine + (word >> 24), 1);
  }
  cg::sync(block);
  for (unsigned bin = threadIdx.x; bin < 256; bin += blockDim.x) {
    unsigned sum = 0;
    for (int warp = 0; warp < kWarps256; ++warp) sum += counters[bin + warp * 256];
    partial[blockIdx.x * 256 + bin] = sum;
  }
}

// One block a bin sums the partial histograms.
extern "C" __global__ void MergeHistograms(unsigned* histogram, const unsigned* partial,
                                           unsigned count, unsigned bins) {
  __shared__ unsigned sums[256];
  cg::thread_block block = cg::this_thread_block();
  unsigned sum = 0;
  for (unsigned i = threadIdx.x; i < count; i += 256) sum += partial[blockIdx.x + i * bins];
  sums[threadIdx.x] = sum;
  for (unsigned stride = 128; stride > 0; stride >>= 1) {
    cg::sync(block);
    if (threadIdx.x < stride) sums[threadIdx.x] += sums[threadIdx.x + stride];
  }
  if (threadIdx.x == 0) histogram[blockIdx.x] = sums[0];
}

// The cumulative normal distribution by the polynomial of Abramowitz and Stegun, 26.2.17.
__device__ inline float CumulativeNormal(float d) {
  const float k = __fdividef(1.0f, 1.0f + 0.2316419f * fabsf(d));
  const float polynomial =
      k * (0.31938153f +
           k * (-0.356563782f + k * (1.781477937f + k * (-1.821255978f + k * 1.330274429f))));
  const float tail = 0.39894228040143267794f * __expf(-0.5f * d * d) * polynomial;
  return d > 0 ? 1.0f - tail : tail;
}

extern "C" __global__ __launch_bounds__(128) void BlackScholes(float2* call, float2* put,
                                                               const float2* price,
                                                               const float2* strike,
                                                               const float2* years, float rate,
                                                               float volatility, int pairs) {
  const int i = blockDim.x * blockIdx.x + threadIdx.x;
  if (i >= pairs) return;
  auto one = [=](float s, float x, float t, float& call_out, float& put_out) {
    const float root = __fdividef(1.0f, rsqrtf(t));
    const float d1 =
        __fdividef(__logf(s / x) + (rate + 0.5f * volatility * volatility) * t, volatility * root);
    const float d2 = d1 - volatility * root;
    const float n1 = CumulativeNormal(d1);
    const float n2 = CumulativeNormal(d2);
    const float discount = __expf(-rate * t);
    call_out = s * n1 - x * discount * n2;
    put_out = x * discount * (1.0f - n2) - s * (1.0f - n1);
  };
  float2 call_value, put_value;
  one(price[i].x, strike[i].x, years[i].x, call_value.x, put_value.x);
  one(price[i].y, strike[i].y, years[i].y, call_value.y, put_value.y);
  call[i] = call_value;
  put[i] = put_value;
}

__constant__ double weights[4] = {0.5, 0.25, 0.125, 0.0625};
__device__ int calls = 0;

__noinline__ __device__ double Weighted(const int* values, int count, int rotate) {
  int local[8];
  for (int i = 0; i < count; ++i) local[(i + rotate) & 7] = values[i];
  double sum = 0;
  for (int i = 0; i < 8; ++i) sum += weights[i & 3] * local[i];
  return sum;
}

extern "C" __global__ void CallFunctions(double* out, int rotate) {
  int values[8];
  for (int i = 0; i < 8; ++i) values[i] = threadIdx.x * 8 + i;
  out[threadIdx.x] = Weighted(values, 8, rotate + threadIdx.x);
  atomicAdd(&calls, 1);
}

// What the C++ math library does on the device, beyond the basic instructions.
extern "C" __global__ void MathLibrary(const float* in, float* out, int count) {
  const int i = threadIdx.x;
  if (i >= count) return;
  const float x = in[i];
  out[i * 8 + 0] = expf(x);
  out[i * 8 + 1] = logf(fabsf(x) + 0.1f);
  out[i * 8 + 2] = sinf(x * 100.0f);
  out[i * 8 + 3] = powf(fabsf(x), 1.7f);
  out[i * 8 + 4] = erff(x);
  out[i * 8 + 5] = static_cast<float>(exp(static_cast<double>(x)));
  out[i * 8 + 6] = fmodf(x, 0.7f);
  out[i * 8 + 7] = static_cast<float>(sqrt(fabs(static_cast<double>(x))) + cbrt(double(x)));
}

extern "C" __global__ void Print(int number) {
  if (threadIdx.x == 1)
    printf("thread %d of %d: %5.2f %s %c %lld\n", threadIdx.x, blockDim.x, number / 4.0, "text",
           'x', 1ll << 40);
}

// A double sum by compare and swap, as before atomicAdd(double), and the last block's sum.
__device__ unsigned blocks_done = 0;
extern "C" __global__ void LastBlockSums(const float* in, double* partial, double* total) {
  __shared__ double block_sum;
  __shared__ bool is_last;
  if (threadIdx.x == 0) block_sum = 0;
  __syncthreads();
  unsigned long long* as_bits = reinterpret_cast<unsigned long long*>(&block_sum);
  unsigned long long old = *as_bits, assumed;
  do {
    assumed = old;
    old = atomicCAS(as_bits, assumed,
                    __double_as_longlong(in[blockIdx.x * blockDim.x + threadIdx.x] +
                                         __longlong_as_double(assumed)));
  } while (assumed != old);
  __syncthreads();
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = block_sum;
    __threadfence();
    is_last = atomicInc(&blocks_done, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (is_last && threadIdx.x == 0) {
    double sum = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += reinterpret_cast<volatile double*>(partial)[i];
    *total = sum;
    blocks_done = 0;
  }
}

// A tile of 16 x 16 of the product of halves, by each warp. Warps from `first` on work.
extern "C" __global__ void MatrixTiles(const __half* a, const __half* b, const float* c, float* d,
                                       unsigned first) {
  using namespace nvcuda;
  const unsigned warp = threadIdx.x / 32;
  if (warp < first) return;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> right;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::load_matrix_sync(left, a + 16 * warp, 64);
  wmma::load_matrix_sync(right, b + 16 * warp, 64);
  wmma::load_matrix_sync(sum, c + 256 * warp, 16, wmma::mem_row_major);
  wmma::mma_sync(sum, left, right, sum);
  for (int i = 0; i < sum.num_elements; ++i) sum.x[i] *= 2;
  wmma::store_matrix_sync(d + 256 * warp, sum, 16, wmma::mem_col_major);
}

extern "C" __global__ void MatrixTilesOfBytes(const signed char* a, const signed char* b, int* d) {
  using namespace nvcuda;
  wmma::fragment<wmma::matrix_a, 32, 8, 16, signed char, wmma::col_major> left;
  wmma::fragment<wmma::matrix_b, 32, 8, 16, signed char, wmma::row_major> right;
  wmma::fragment<wmma::accumulator, 32, 8, 16, int> sum;
  wmma::fill_fragment(sum, 5);
  wmma::load_matrix_sync(left, a, 32);
  wmma::load_matrix_sync(right, b, 16);
  wmma::mma_sync(sum, left, right, sum);
  wmma::store_matrix_sync(d, sum, 8, wmma::mem_row_major);
}

// The first half of the block makes numbers for the second one, round by round.
extern "C" __global__ void HandOver(int* sums, int rounds) {
  using Barrier = cuda::barrier<cuda::thread_scope_block>;
  __shared__ alignas(Barrier) unsigned char memory[2][sizeof(Barrier)];
  __shared__ int numbers[512];
  auto* const filled = reinterpret_cast<Barrier*>(memory[0]);
  auto* const taken = reinterpret_cast<Barrier*>(memory[1]);
  const unsigned half = blockDim.x / 2;
  if (threadIdx.x == 0) {
    init(filled, blockDim.x);
    init(taken, blockDim.x);
  }
  __syncthreads();
  int sum = 0;
  for (int round = 0; round < rounds; ++round) {
    if (threadIdx.x < half) {
      numbers[threadIdx.x] = static_cast<int>(threadIdx.x) * (round + 1);
      (void)filled->arrive();
      taken->arrive_and_wait();
    } else {
      filled->arrive_and_wait();
      sum += numbers[blockDim.x - 1 - threadIdx.x];
      (void)taken->arrive();
    }
  }
  if (threadIdx.x >= half) sums[threadIdx.x - half] = sum;
}

// Each block reads in each round what the next one wrote in the round before.
extern "C" __global__ void GridRounds(int* numbers, int* sums, int rounds) {
  const cg::grid_group grid = cg::this_grid();
  const unsigned long long me = grid.thread_rank(), all = grid.size();
  int sum = 0;
  numbers[me] = static_cast<int>(me);
  for (int round = 0; round < rounds; ++round) {
    grid.sync();
    const int seen = numbers[(me + blockDim.x) % all];
    sum += seen;
    grid.sync();
    numbers[me] = seen + 1;
  }
  sums[me] = sum;
}

// Sums over tiles of two warps, which meet through shared memory that the system reserves. The
// kernel's own shared memory must stay as it is.
extern "C" __global__ void WideTiles(const int* in, int* sums, int* kept) {
  __shared__ cg::block_tile_memory<256> memory;
  __shared__ int fixed[3];
  extern __shared__ int dynamic[];
  if (threadIdx.x < 3) fixed[threadIdx.x] = 100 + static_cast<int>(threadIdx.x);
  dynamic[threadIdx.x] = static_cast<int>(threadIdx.x);
  const cg::thread_block block = cg::this_thread_block(memory);
  const auto tile = cg::tiled_partition<64>(block);
  const int number = in[blockIdx.x * blockDim.x + threadIdx.x];
  sums[blockIdx.x * blockDim.x + threadIdx.x] = cg::reduce(tile, number, cg::plus<int>());
  block.sync();
  kept[blockIdx.x * blockDim.x + threadIdx.x] = dynamic[threadIdx.x] + fixed[threadIdx.x % 3];
}

struct Pair {
  double first;
  int second;
};

// `count` times an int, a double and a Pair; then -1.
__device__ __noinline__ double SumOf(int count, ...) {
  va_list arguments;
  va_start(arguments, count);
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    sum += va_arg(arguments, int);
    sum += 10 * va_arg(arguments, double);
    const Pair pair = va_arg(arguments, Pair);
    sum += 100 * pair.first + 1000 * pair.second;
  }
  va_list copy;
  va_copy(copy, arguments);
  const bool ended = va_arg(arguments, long long) == -1 && va_arg(copy, long long) == -1;
  va_end(copy);
  va_end(arguments);
  return ended ? sum : -1e9;
}

__device__ double (*sum_of)(int, ...) = SumOf;

// Through a pointer, too, and without anything between.
extern "C" __global__ void Variadic(double* sums, int number, double value) {
  const int me = blockIdx.x * blockDim.x + threadIdx.x;
  double (*const sum)(int, ...) = me % 3 == 2 ? nullptr : sum_of;
  const Pair pair = {value * me, number - me};
  double all = SumOf(0, -1ll) + SumOf(1, number, value, pair, -1ll);
  if (sum != nullptr) all += sum(2, me, value, pair, number, 2 * value, pair, -1ll);
  sums[me] = all;
}
