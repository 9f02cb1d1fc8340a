// SPDX-License-Identifier: Apache-2.0
// A chain of matrix products whose matrices need more memory than the device may have, while each
// product needs little.
//
//   matrix_chain [N [COUNT]]
//
// COUNT matrices of N x N words are filled, and a panel of kColumns columns is multiplied by one
// after the other, twice over. Words are integers that wrap, so the result is exact; it is compared
// with that of the same chain whose matrices are made where they are used.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "check.h"

constexpr int kColumns = 8;
constexpr int kThreads = 256;

__host__ __device__ unsigned Element(size_t row, size_t column, unsigned matrix) {
  return static_cast<unsigned>(row * 2654435761u + column * 40503u + matrix * 97u) >> 7 | 1u;
}

__global__ void Fill(unsigned* words, unsigned n, unsigned matrix) {
  const size_t row = blockIdx.x;
  for (unsigned column = threadIdx.x; column < n; column += kThreads)
    words[row * n + column] = Element(row, column, matrix);
}

// A block a row: y = a x. Without `a` its elements are made here.
__global__ void Multiply(const unsigned* a, const unsigned* x, unsigned* y, unsigned n,
                         unsigned matrix) {
  __shared__ unsigned sums[kThreads][kColumns];
  const size_t row = blockIdx.x;
  unsigned sum[kColumns] = {};
  for (unsigned k = threadIdx.x; k < n; k += kThreads) {
    const unsigned element = a != nullptr ? a[row * n + k] : Element(row, k, matrix);
    for (int column = 0; column < kColumns; ++column)
      sum[column] += element * x[size_t{k} * kColumns + column];
  }
  for (int column = 0; column < kColumns; ++column) sums[threadIdx.x][column] = sum[column];
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      for (int column = 0; column < kColumns; ++column)
        sums[threadIdx.x][column] += sums[threadIdx.x + half][column];
    }
  }
  if (threadIdx.x == 0) {
    for (int column = 0; column < kColumns; ++column) y[row * kColumns + column] = sums[0][column];
  }
}

int main(int argc, char** argv) {
  const unsigned n = argc > 1 ? std::atoi(argv[1]) : 512;
  const unsigned count = argc > 2 ? std::atoi(argv[2]) : 6;
  const size_t bytes = size_t{n} * n * sizeof(unsigned);
  const size_t panel_words = size_t{n} * kColumns;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<unsigned*> matrices(count);
  for (unsigned i = 0; i < count; ++i) {
    CUDA_OK(cudaMalloc(&matrices[i], bytes));
    Fill<<<n, kThreads>>>(matrices[i], n, i);
    CUDA_OK(cudaGetLastError());
  }
  std::vector<unsigned> panel(panel_words);
  for (size_t i = 0; i < panel_words; ++i) panel[i] = static_cast<unsigned>(i * i + 1);
  std::vector<unsigned> results[2];
  for (const bool stored : {true, false}) {
    unsigned* x = nullptr;
    unsigned* y = nullptr;
    CUDA_OK(cudaMalloc(&x, panel_words * sizeof(unsigned)));
    CUDA_OK(cudaMalloc(&y, panel_words * sizeof(unsigned)));
    CUDA_OK(cudaMemcpy(x, panel.data(), panel_words * sizeof(unsigned), cudaMemcpyHostToDevice));
    for (int round = 0; round < 2; ++round) {
      for (unsigned i = 0; i < count; ++i) {
        Multiply<<<n, kThreads>>>(stored ? matrices[i] : nullptr, x, y, n, i);
        CUDA_OK(cudaGetLastError());
        std::swap(x, y);
      }
    }
    std::vector<unsigned>& result = results[stored ? 0 : 1];
    result.resize(panel_words);
    CUDA_OK(cudaMemcpy(result.data(), x, panel_words * sizeof(unsigned), cudaMemcpyDeviceToHost));
    CUDA_OK(cudaFree(x));
    CUDA_OK(cudaFree(y));
  }
  // One element of the first product on the CPU: the two chains could be wrong alike.
  unsigned* y = nullptr;
  unsigned* x = nullptr;
  CUDA_OK(cudaMalloc(&x, panel_words * sizeof(unsigned)));
  CUDA_OK(cudaMalloc(&y, panel_words * sizeof(unsigned)));
  CUDA_OK(cudaMemcpy(x, panel.data(), panel_words * sizeof(unsigned), cudaMemcpyHostToDevice));
  Multiply<<<n, kThreads>>>(matrices[0], x, y, n, 0);
  unsigned got = 0;
  CUDA_OK(cudaMemcpy(&got, y + size_t{n - 1} * kColumns + 3, sizeof(got), cudaMemcpyDeviceToHost));
  unsigned expected = 0;
  for (unsigned k = 0; k < n; ++k)
    expected += Element(n - 1, k, 0) * panel[size_t{k} * kColumns + 3];
  EXPECT(got == expected, "one product gives %u, not %u", got, expected);
  for (size_t i = 0; i < panel_words; ++i) {
    EXPECT(results[0][i] == results[1][i], "word %zu is %u, not %u", i, results[0][i],
           results[1][i]);
  }
  for (unsigned* matrix : matrices) CUDA_OK(cudaFree(matrix));
  std::printf("%u matrices of %.0f MiB in %.2f s\nPASS\n", count, bytes / 1048576.0,
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return 0;
}
