// SPDX-License-Identifier: Apache-2.0
// tests/programs/black_scholes.cu: the math library: log, exp, sqrt, division and erfc, in float
// and in double.
#include <cmath>
#include <vector>

#include "check.h"

template <typename Real>
struct Option {
  Real price, strike, years;
};

// European call and put. Source: Black and Scholes, "The Pricing of Options and Corporate
// Liabilities", 1973.
template <typename Real>
__host__ __device__ void Price(const Option<Real>& option, Real rate, Real volatility, Real* call,
                               Real* put) {
  const Real deviation = volatility * sqrt(option.years);
  const Real d1 = (log(option.price / option.strike) +
                   (rate + Real(0.5) * volatility * volatility) * option.years) /
                  deviation;
  const Real d2 = d1 - deviation;
  const Real half_root = Real(0.70710678118654752440);
  const Real n1 = Real(0.5) * erfc(-d1 * half_root), n2 = Real(0.5) * erfc(-d2 * half_root);
  const Real discounted = option.strike * exp(-rate * option.years);
  *call = option.price * n1 - discounted * n2;
  *put = discounted * (Real(1) - n2) - option.price * (Real(1) - n1);
}

template <typename Real>
__global__ void PriceAll(const Option<Real>* options, int count, Real rate, Real volatility,
                         Real* calls, Real* puts) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) Price(options[index], rate, volatility, &calls[index], &puts[index]);
}

// Returns the largest error against the CPU's double result; more than `tolerance` ends the
// program.
template <typename Real>
double Run(int count, double tolerance) {
  programs::Random random(5);
  std::vector<Option<Real>> options(count);
  for (auto& option : options) {
    option.price = random.NextFloat(5.0f, 30.0f);
    option.strike = random.NextFloat(1.0f, 100.0f);
    option.years = random.NextFloat(0.25f, 10.0f);
  }
  const Real rate = Real(0.02), volatility = Real(0.30);
  Option<Real>* device_options;
  Real *device_calls, *device_puts;
  CUDA_OK(cudaMalloc(&device_options, count * sizeof(Option<Real>)));
  CUDA_OK(cudaMalloc(&device_calls, count * sizeof(Real)));
  CUDA_OK(cudaMalloc(&device_puts, count * sizeof(Real)));
  CUDA_OK(cudaMemcpy(device_options, options.data(), count * sizeof(Option<Real>),
                     cudaMemcpyHostToDevice));
  PriceAll<Real><<<(count + 127) / 128, 128>>>(device_options, count, rate, volatility,
                                               device_calls, device_puts);
  CUDA_OK(cudaGetLastError());
  std::vector<Real> calls(count), puts(count);
  CUDA_OK(cudaMemcpy(calls.data(), device_calls, count * sizeof(Real), cudaMemcpyDeviceToHost));
  CUDA_OK(cudaMemcpy(puts.data(), device_puts, count * sizeof(Real), cudaMemcpyDeviceToHost));
  double error_max = 0.0;
  for (int i = 0; i < count; ++i) {
    const Option<double> exact{options[i].price, options[i].strike, options[i].years};
    double call, put;
    Price<double>(exact, rate, volatility, &call, &put);
    const double error = std::fmax(std::fabs(calls[i] - call), std::fabs(puts[i] - put));
    EXPECT(error <= tolerance, "option %d: call %.9g put %.9g, expected %.9g %.9g", i,
           static_cast<double>(calls[i]), static_cast<double>(puts[i]), call, put);
    error_max = std::fmax(error_max, error);
  }
  CUDA_OK(cudaFree(device_options));
  CUDA_OK(cudaFree(device_calls));
  CUDA_OK(cudaFree(device_puts));
  return error_max;
}

int main() {
  constexpr int kCount = 8000;
  // Prices reach 100: in float one rounding is 4e-6 and the formula subtracts two of them.
  const double float_error = Run<float>(kCount, 1e-4);
  const double double_error = Run<double>(kCount, 1e-11);
  std::printf("black_scholes: %d options, largest error %.2g in float, %.2g in double\n", kCount,
              float_error, double_error);
  return programs::Pass();
}
