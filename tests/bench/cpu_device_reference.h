// SPDX-License-Identifier: Apache-2.0
// tests/bench/cpu_device_reference.h: what the kernels of cpu_device_bench compute, in plain C++.
//
// Each function does the part [first, end) of the work, so that threads share it; what of the
// output a part writes, no other does. Built with -O3 for this machine's CPU, without fast-math.
#ifndef CONSORT_TESTS_BENCH_CPU_DEVICE_REFERENCE_H_
#define CONSORT_TESTS_BENCH_CPU_DEVICE_REFERENCE_H_

#include <cstdint>

namespace consort::bench {

void Saxpy(int first, int end, float a, const float* x, float* y);

// Rows [first, end) of c = a * b. By rows and columns, a sum at a time, as the naive kernel does.
void MultiplyByElement(int first, int end, int size, const float* a, const float* b, float* c);
// With the loop over columns innermost, which compilers vectorise.
void MultiplyByRow(int first, int end, int size, const float* a, const float* b, float* c);
// The same by tiles, which stay in the cache. first, end and size are multiples of 32.
void MultiplyTiled(int first, int end, int size, const float* a, const float* b, float* c);

// Elements of matrices that the CPU does not compute with.
struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

// Rows [first, end) of c = a * b: a and c by rows, b by columns; all are multiples of 32. A sum is
// made as the CPU device's matrix instructions make it: 16 products (8 of float, which has 10 bits
// of the mantissa then) are added in double, or int32_t, and the sum becomes a Total.
// There are: Half, Bfloat and float to float, double to double, int8_t to int32_t.
template <typename Element, typename Total>
void MultiplyMatrices(int first, int end, int size, const Element* a, const Element* b, Total* c);

float Sum(int first, int end, const float* values);
uint32_t Sum(int first, int end, const uint32_t* values);

// Rows [first, end) of `in`.
void Transpose(int first, int end, int size, const float* in, float* out);
// By tiles of 32 * 32; first, end and size are multiples of that.
void TransposeTiled(int first, int end, int size, const float* in, float* out);

struct Options {
  const float* prices;
  const float* strikes;
  const float* years;
  float* calls;
  float* puts;
};
void BlackScholes(int first, int end, const Options& options, float rate, float volatility);

// Adds to `counts`, 256 numbers of the caller's own.
void Histogram(int first, int end, const uint8_t* values, uint32_t* counts);

}  // namespace consort::bench

#endif  // CONSORT_TESTS_BENCH_CPU_DEVICE_REFERENCE_H_
