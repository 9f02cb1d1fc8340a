// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/cpu_device_reference.h"

#include <cmath>

namespace consort::bench {
namespace {

constexpr int kTile = 32;

// Source of the polynomial: Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.2.17.
inline float Normal(float d) {
  const float k = 1 / (1 + 0.2316419f * std::fabs(d));
  const float density = 0.39894228040143267794f * std::exp(-0.5f * d * d);
  const float tail =
      density *
      (k * (0.31938153f +
            k * (-0.356563782f + k * (1.781477937f + k * (-1.821255978f + k * 1.330274429f)))));
  return d > 0 ? 1 - tail : tail;
}

}  // namespace

void Saxpy(int first, int end, float a, const float* __restrict x, float* __restrict y) {
  for (int i = first; i < end; ++i) y[i] = a * x[i] + y[i];
}

void MultiplyByElement(int first, int end, int size, const float* __restrict a,
                       const float* __restrict b, float* __restrict c) {
  for (int row = first; row < end; ++row) {
    for (int column = 0; column < size; ++column) {
      float sum = 0;
      for (int k = 0; k < size; ++k) sum += a[row * size + k] * b[k * size + column];
      c[row * size + column] = sum;
    }
  }
}

void MultiplyByRow(int first, int end, int size, const float* __restrict a,
                   const float* __restrict b, float* __restrict c) {
  for (int row = first; row < end; ++row) {
    for (int column = 0; column < size; ++column) c[row * size + column] = 0;
    for (int k = 0; k < size; ++k) {
      const float factor = a[row * size + k];
      for (int column = 0; column < size; ++column)
        c[row * size + column] += factor * b[k * size + column];
    }
  }
}

void MultiplyTiled(int first, int end, int size, const float* __restrict a,
                   const float* __restrict b, float* __restrict c) {
  for (int row = first; row < end; row += kTile) {
    for (int column = 0; column < size; column += kTile) {
      float sums[kTile][kTile] = {};
      for (int k = 0; k < size; k += kTile) {
        for (int i = 0; i < kTile; ++i) {
          for (int l = 0; l < kTile; ++l) {
            const float factor = a[(row + i) * size + k + l];
            for (int j = 0; j < kTile; ++j) sums[i][j] += factor * b[(k + l) * size + column + j];
          }
        }
      }
      for (int i = 0; i < kTile; ++i)
        for (int j = 0; j < kTile; ++j) c[(row + i) * size + column + j] = sums[i][j];
    }
  }
}

float Sum(int first, int end, const float* values) {
  float sum = 0;
  for (int i = first; i < end; ++i) sum += values[i];
  return sum;
}

uint32_t Sum(int first, int end, const uint32_t* values) {
  uint32_t sum = 0;
  for (int i = first; i < end; ++i) sum += values[i];
  return sum;
}

void Transpose(int first, int end, int size, const float* __restrict in, float* __restrict out) {
  for (int row = first; row < end; ++row)
    for (int column = 0; column < size; ++column)
      out[column * size + row] = in[row * size + column];
}

void TransposeTiled(int first, int end, int size, const float* __restrict in,
                    float* __restrict out) {
  for (int row = first; row < end; row += kTile)
    for (int column = 0; column < size; column += kTile)
      for (int i = row; i < row + kTile; ++i)
        for (int j = column; j < column + kTile; ++j) out[j * size + i] = in[i * size + j];
}

void BlackScholes(int first, int end, const Options& options, float rate, float volatility) {
  for (int i = first; i < end; ++i) {
    const float price = options.prices[i], strike = options.strikes[i], time = options.years[i];
    const float deviation = volatility * std::sqrt(time);
    const float d1 =
        (std::log(price / strike) + (rate + 0.5f * volatility * volatility) * time) / deviation;
    const float d2 = d1 - deviation;
    const float n1 = Normal(d1), n2 = Normal(d2);
    const float discounted = strike * std::exp(-rate * time);
    options.calls[i] = price * n1 - discounted * n2;
    options.puts[i] = discounted * (1 - n2) - price * (1 - n1);
  }
}

void Histogram(int first, int end, const uint8_t* values, uint32_t* counts) {
  for (int i = first; i < end; ++i) ++counts[values[i]];
}

}  // namespace consort::bench
