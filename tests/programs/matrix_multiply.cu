// SPDX-License-Identifier: Apache-2.0
// tests/programs/matrix_multiply.cu: tiles in shared memory, a two-dimensional grid and a barrier
// in a loop.
#include <cmath>
#include <vector>

#include "check.h"

constexpr int kTile = 16;

// c (rows x columns) = a (rows x inner) * b (inner x columns), row major; sizes need not be
// multiples of kTile.
__global__ void MatrixMultiply(const float* a, const float* b, float* c, int rows, int inner,
                               int columns) {
  __shared__ float a_tile[kTile][kTile];
  __shared__ float b_tile[kTile][kTile];
  const int row = blockIdx.y * kTile + threadIdx.y;
  const int column = blockIdx.x * kTile + threadIdx.x;
  float sum = 0.0f;
  for (int start = 0; start < inner; start += kTile) {
    const int a_column = start + threadIdx.x;
    const int b_row = start + threadIdx.y;
    a_tile[threadIdx.y][threadIdx.x] =
        row < rows && a_column < inner ? a[row * inner + a_column] : 0.0f;
    b_tile[threadIdx.y][threadIdx.x] =
        b_row < inner && column < columns ? b[b_row * columns + column] : 0.0f;
    __syncthreads();
    for (int k = 0; k < kTile; ++k) sum += a_tile[threadIdx.y][k] * b_tile[k][threadIdx.x];
    __syncthreads();
  }
  if (row < rows && column < columns) c[row * columns + column] = sum;
}

int main() {
  constexpr int kRows = 70, kInner = 93, kColumns = 50;
  programs::Random random(2);
  std::vector<float> a(kRows * kInner), b(kInner * kColumns), c(kRows * kColumns, NAN);
  for (float& value : a) value = random.NextFloat(-1.0f, 1.0f);
  for (float& value : b) value = random.NextFloat(-1.0f, 1.0f);
  float *device_a, *device_b, *device_c;
  CUDA_OK(cudaMalloc(&device_a, a.size() * sizeof(float)));
  CUDA_OK(cudaMalloc(&device_b, b.size() * sizeof(float)));
  CUDA_OK(cudaMalloc(&device_c, c.size() * sizeof(float)));
  CUDA_OK(cudaMemcpy(device_a, a.data(), a.size() * sizeof(float), cudaMemcpyHostToDevice));
  CUDA_OK(cudaMemcpy(device_b, b.data(), b.size() * sizeof(float), cudaMemcpyHostToDevice));
  const dim3 block(kTile, kTile);
  const dim3 grid((kColumns + kTile - 1) / kTile, (kRows + kTile - 1) / kTile);
  MatrixMultiply<<<grid, block>>>(device_a, device_b, device_c, kRows, kInner, kColumns);
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaMemcpy(c.data(), device_c, c.size() * sizeof(float), cudaMemcpyDeviceToHost));
  double error_max = 0.0;
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      double expected = 0.0;
      for (int k = 0; k < kInner; ++k)
        expected += static_cast<double>(a[row * kInner + k]) * b[k * kColumns + column];
      const double error = std::fabs(c[row * kColumns + column] - expected);
      // 93 products below 1, each rounded to 2^-24 of a sum below 93: far below 1e-4.
      EXPECT(error < 1e-4, "c[%d][%d] is %g, expected %g", row, column, c[row * kColumns + column],
             expected);
      if (error > error_max) error_max = error;
    }
  }
  CUDA_OK(cudaFree(device_a));
  CUDA_OK(cudaFree(device_b));
  CUDA_OK(cudaFree(device_c));
  std::printf("matrix_multiply: %dx%dx%d, largest error %.2g\n", kRows, kInner, kColumns,
              error_max);
  return programs::Pass();
}
