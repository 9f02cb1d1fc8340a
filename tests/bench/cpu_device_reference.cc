// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/cpu_device_reference.h"

#include <cmath>
#include <type_traits>

#include "device/cpu/engine/half.h"

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

// The elements of matrices, as numbers to compute with.
inline double Wide(Half half) { return consort::cpu::WidenHalf(half.bits); }
inline double Wide(Bfloat bfloat) { return consort::cpu::WidenBfloat(bfloat.bits); }
inline double Wide(float number) { return number; }
inline double Wide(double number) { return number; }
inline int32_t Wide(int8_t number) { return number; }

inline double MultiplyAdd(double a, double b, double sum) { return std::fma(a, b, sum); }
inline int32_t MultiplyAdd(int32_t a, int32_t b, int32_t sum) { return a * b + sum; }

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

template <typename Element, typename Total>
void MultiplyMatrices(int first, int end, int size, const Element* __restrict a,
                      const Element* __restrict b, Total* __restrict c) {
  using Number = decltype(Wide(Element{}));
  constexpr int kStep = std::is_same_v<Element, float> ? 8 : 16;
  for (int row = first; row < end; row += kTile) {
    for (int column = 0; column < size; column += kTile) {
      Total totals[kTile][kTile] = {};
      for (int k = 0; k < size; k += kStep) {
        Number factors[kTile][kStep];
        Number lines[kStep][kTile];
        for (int i = 0; i < kTile; ++i)
          for (int l = 0; l < kStep; ++l) factors[i][l] = Wide(a[(row + i) * size + k + l]);
        for (int j = 0; j < kTile; ++j)
          for (int l = 0; l < kStep; ++l) lines[l][j] = Wide(b[(column + j) * size + k + l]);
        for (int i = 0; i < kTile; ++i) {
          Number sums[kTile];
          for (int j = 0; j < kTile; ++j) sums[j] = totals[i][j];
          for (int l = 0; l < kStep; ++l)
            for (int j = 0; j < kTile; ++j)
              sums[j] = MultiplyAdd(factors[i][l], lines[l][j], sums[j]);
          for (int j = 0; j < kTile; ++j) totals[i][j] = static_cast<Total>(sums[j]);
        }
      }
      for (int i = 0; i < kTile; ++i)
        for (int j = 0; j < kTile; ++j) c[(row + i) * size + column + j] = totals[i][j];
    }
  }
}

template void MultiplyMatrices(int, int, int, const Half*, const Half*, float*);
template void MultiplyMatrices(int, int, int, const Bfloat*, const Bfloat*, float*);
template void MultiplyMatrices(int, int, int, const float*, const float*, float*);
template void MultiplyMatrices(int, int, int, const double*, const double*, double*);
template void MultiplyMatrices(int, int, int, const int8_t*, const int8_t*, int32_t*);

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
