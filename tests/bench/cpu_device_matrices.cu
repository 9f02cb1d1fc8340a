// SPDX-License-Identifier: Apache-2.0
// tests/bench/cpu_device_matrices.cu: kernels of cpu_device_bench that multiply with the matrix
// instructions of warps (wmma), staging in shared memory. cpu_device_reference.cc has the same in
// C++.
//
// c = a * b: a by rows, b by columns, c by rows, all of size * size, which is a multiple of 64.
// Blocks are 256 threads, one for each 64 * 64 elements of c.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include <cstdint>

using namespace nvcuda;

constexpr int kSide = 64;
constexpr int kChunkBytes = 64;  // of each row of a and column of b, at a time
constexpr int kSkewBytes = 32;

// Element: of the factors; Number: its name in fragments, where that is another.
template <typename Element, typename Number, typename Sum, int kM, int kN, int kK>
__device__ void MultiplyMatrices(int size, const Element* a, const Element* b, Sum* c) {
  constexpr int kChunk = kChunkBytes / sizeof(Element);
  constexpr int kStride = (kChunkBytes + kSkewBytes) / sizeof(Element);
  // Eight warps: four lines of two, each of kDown * kRight tiles.
  constexpr int kDown = kSide / kM / 4, kRight = kSide / kN / 2;
  __shared__ alignas(32) Element a_lines[kSide][kStride];
  __shared__ alignas(32) Element b_lines[kSide][kStride];
  const int row = blockIdx.y * kSide, column = blockIdx.x * kSide;
  const int warp = threadIdx.x / 32;
  const int down = warp / 2 * kDown * kM, right = warp % 2 * kRight * kN;
  // Four threads a line.
  const int line = threadIdx.x / 4, part = threadIdx.x % 4;
  const int stride = size * static_cast<int>(sizeof(Element)) / 16;
  const int4* a_from = reinterpret_cast<const int4*>(a) + (row + line) * stride + part;
  const int4* b_from = reinterpret_cast<const int4*>(b) + (column + line) * stride + part;

  wmma::fragment<wmma::accumulator, kM, kN, kK, Sum> sums[kDown][kRight];
#pragma unroll
  for (int i = 0; i < kDown; ++i)
#pragma unroll
    for (int j = 0; j < kRight; ++j) wmma::fill_fragment(sums[i][j], static_cast<Sum>(0));
  for (int first = 0; first < size; first += kChunk) {
    reinterpret_cast<int4*>(a_lines[line])[part] = *a_from;
    reinterpret_cast<int4*>(b_lines[line])[part] = *b_from;
    a_from += kChunkBytes / 16;
    b_from += kChunkBytes / 16;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kChunk; k += kK) {
      wmma::fragment<wmma::matrix_a, kM, kN, kK, Number, wmma::row_major> rows[kDown];
      wmma::fragment<wmma::matrix_b, kM, kN, kK, Number, wmma::col_major> columns[kRight];
#pragma unroll
      for (int i = 0; i < kDown; ++i)
        wmma::load_matrix_sync(rows[i], &a_lines[down + i * kM][k], kStride);
#pragma unroll
      for (int j = 0; j < kRight; ++j)
        wmma::load_matrix_sync(columns[j], &b_lines[right + j * kN][k], kStride);
#pragma unroll
      for (int i = 0; i < kDown; ++i)
#pragma unroll
        for (int j = 0; j < kRight; ++j)
          wmma::mma_sync(sums[i][j], rows[i], columns[j], sums[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kDown; ++i)
#pragma unroll
    for (int j = 0; j < kRight; ++j)
      wmma::store_matrix_sync(c + (row + down + i * kM) * size + column + right + j * kN,
                              sums[i][j], size, wmma::mem_row_major);
}

extern "C" __global__ void MatrixHalf(int size, const __half* a, const __half* b, float* c) {
  MultiplyMatrices<__half, __half, float, 16, 16, 16>(size, a, b, c);
}

extern "C" __global__ void MatrixBfloat(int size, const __nv_bfloat16* a, const __nv_bfloat16* b,
                                        float* c) {
  MultiplyMatrices<__nv_bfloat16, __nv_bfloat16, float, 16, 16, 16>(size, a, b, c);
}

extern "C" __global__ void MatrixTf32(int size, const float* a, const float* b, float* c) {
  MultiplyMatrices<float, wmma::precision::tf32, float, 16, 16, 8>(size, a, b, c);
}

extern "C" __global__ void MatrixDouble(int size, const double* a, const double* b, double* c) {
  MultiplyMatrices<double, double, double, 8, 8, 4>(size, a, b, c);
}

extern "C" __global__ void MatrixByte(int size, const signed char* a, const signed char* b,
                                      int* c) {
  MultiplyMatrices<signed char, signed char, int, 16, 16, 16>(size, a, b, c);
}
