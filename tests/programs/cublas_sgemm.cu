// SPDX-License-Identifier: Apache-2.0
// tests/programs/cublas_sgemm.cu: a library of somebody else's kernels, linked dynamically. For
// machines with a GPU.
#include <cublas_v2.h>

#include <cmath>
#include <vector>

#include "check.h"

#define CUBLAS_OK(call)                                                           \
  do {                                                                            \
    const cublasStatus_t status = (call);                                         \
    EXPECT(status == CUBLAS_STATUS_SUCCESS, "%s", cublasGetStatusString(status)); \
  } while (false)

int main() {
  constexpr int kRows = 257, kInner = 129, kColumns = 65;  // column major, as cuBLAS has it
  programs::Random random(9);
  std::vector<float> a(kRows * kInner), b(kInner * kColumns), c(kRows * kColumns),
      result(kRows * kColumns);
  for (float& value : a) value = random.NextFloat(-1.0f, 1.0f);
  for (float& value : b) value = random.NextFloat(-1.0f, 1.0f);
  for (float& value : c) value = random.NextFloat(-1.0f, 1.0f);
  float *device_a, *device_b, *device_c;
  CUDA_OK(cudaMalloc(&device_a, a.size() * sizeof(float)));
  CUDA_OK(cudaMalloc(&device_b, b.size() * sizeof(float)));
  CUDA_OK(cudaMalloc(&device_c, c.size() * sizeof(float)));
  cublasHandle_t handle;
  CUBLAS_OK(cublasCreate(&handle));
  CUBLAS_OK(cublasSetMatrix(kRows, kInner, sizeof(float), a.data(), kRows, device_a, kRows));
  CUBLAS_OK(cublasSetMatrix(kInner, kColumns, sizeof(float), b.data(), kInner, device_b, kInner));
  CUBLAS_OK(cublasSetMatrix(kRows, kColumns, sizeof(float), c.data(), kRows, device_c, kRows));
  const float alpha = 1.5f, beta = -0.5f;
  CUBLAS_OK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, kRows, kColumns, kInner, &alpha, device_a,
                        kRows, device_b, kInner, &beta, device_c, kRows));
  CUBLAS_OK(cublasGetMatrix(kRows, kColumns, sizeof(float), device_c, kRows, result.data(), kRows));
  double error_max = 0.0;
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      double expected = 0.0;
      for (int k = 0; k < kInner; ++k)
        expected += static_cast<double>(a[k * kRows + row]) * b[column * kInner + k];
      expected = alpha * expected + beta * c[column * kRows + row];
      const double error = std::fabs(result[column * kRows + row] - expected);
      EXPECT(error < 1e-3, "element (%d, %d) is %g, expected %g", row, column,
             result[column * kRows + row], expected);
      error_max = std::fmax(error_max, error);
    }
  }
  CUBLAS_OK(cublasDestroy(handle));
  CUDA_OK(cudaFree(device_a));
  CUDA_OK(cudaFree(device_b));
  CUDA_OK(cudaFree(device_c));
  std::printf("cublas_sgemm: %dx%dx%d, largest error %.2g\n", kRows, kInner, kColumns, error_max);
  return programs::Pass();
}
