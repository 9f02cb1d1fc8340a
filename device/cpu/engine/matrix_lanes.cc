// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/matrix_lanes.cc: matrices of numbers, eight columns at a time.
//
// Each sum is made as in matrix.cc: from the accumulator on, one place of the row after the other,
// fused in double; of integers any order gives the same.
#include "device/cpu/engine/matrix_lanes.h"

#include <immintrin.h>

#include <cstddef>
#include <cstring>

#include "device/cpu/engine/matrix_layout.h"

namespace consort::cpu {
namespace {

#define CONSORT_WIDE [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]]

constexpr uint32_t kTogether = 8;
// Elements of a factor: m32n8k16, m16n8k16 of f64, m16n8k32 of bytes.
constexpr uint32_t kElementsMax = 512;
constexpr uint32_t kSumsMax = 256;

// --- Floats ---

// Eight elements as doubles.
CONSORT_WIDE inline __m512d Widen(MatrixType type, const uint8_t* from) {
  switch (type) {
    case MatrixType::kF16:
      return _mm512_cvtps_pd(
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
    case MatrixType::kBf16: {
      const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      return _mm512_cvtps_pd(
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16)));
    }
    case MatrixType::kTf32: {
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
      // 10 bits of the mantissa; what is below has no meaning.
      const __m256i kept = _mm256_set1_epi32(static_cast<int32_t>(0xFFFFE000));
      return _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_and_si256(words, kept)));
    }
    case MatrixType::kF32:
      return _mm512_cvtps_pd(_mm256_loadu_ps(reinterpret_cast<const float*>(from)));
    default:
      return _mm512_loadu_pd(from);
  }
}

CONSORT_WIDE void WidenAll(MatrixType type, const uint8_t* from, uint32_t count, double* to) {
  const uint32_t bytes = MatrixTypeBits(type);  // of eight
  for (uint32_t i = 0; i < count; i += kTogether) {
    _mm512_storeu_pd(to + i, Widen(type, from + size_t{i} / kTogether * bytes));
  }
}

// Eight doubles as elements of `type`, rounded once.
CONSORT_WIDE inline void Narrow(MatrixType type, __m512d value, uint8_t* to) {
  if (type == MatrixType::kF16) {
    // By way of floats that are odd where they are inexact, so that rounding twice is rounding
    // once.
    __m256 narrow = _mm512_cvt_roundpd_ps(value, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    const __mmask8 inexact = _mm512_cmp_pd_mask(_mm512_cvtps_pd(narrow), value, _CMP_NEQ_OQ);
    narrow = _mm256_castsi256_ps(_mm256_mask_or_epi32(
        _mm256_castps_si256(narrow), inexact, _mm256_castps_si256(narrow), _mm256_set1_epi32(1)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm256_cvtps_ph(narrow, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  } else if (type == MatrixType::kF32) {
    _mm256_storeu_ps(reinterpret_cast<float*>(to), _mm512_cvtpd_ps(value));
  } else {
    _mm512_storeu_pd(to, value);
  }
}

// Eight lines of eight, `stride` apart, become eight columns of lines that are `to_stride` apart.
CONSORT_WIDE inline void Transpose(const double* from, uint32_t stride, double* to,
                                   uint32_t to_stride) {
  __m512d pairs[8];
  for (uint32_t i = 0; i < 8; i += 2) {
    const __m512d even = _mm512_loadu_pd(from + size_t{i} * stride);
    const __m512d odd = _mm512_loadu_pd(from + size_t{i + 1} * stride);
    pairs[i] = _mm512_unpacklo_pd(even, odd);      // columns 0, 2, 4, 6 of two lines
    pairs[i + 1] = _mm512_unpackhi_pd(even, odd);  // 1, 3, 5, 7
  }
  for (uint32_t odd = 0; odd < 2; ++odd) {
    // Of four lines: columns 0 and 4, or 2 and 6; each pair of 128 bits is one column.
    const __m512d low[2] = {_mm512_shuffle_f64x2(pairs[odd], pairs[2 + odd], 0x88),
                            _mm512_shuffle_f64x2(pairs[odd], pairs[2 + odd], 0xDD)};
    const __m512d high[2] = {_mm512_shuffle_f64x2(pairs[4 + odd], pairs[6 + odd], 0x88),
                             _mm512_shuffle_f64x2(pairs[4 + odd], pairs[6 + odd], 0xDD)};
    for (uint32_t i = 0; i < 2; ++i) {
      double* const first = to + size_t{odd + 2 * i} * to_stride;
      _mm512_storeu_pd(first, _mm512_shuffle_f64x2(low[i], high[i], 0x88));
      _mm512_storeu_pd(first + size_t{4} * to_stride, _mm512_shuffle_f64x2(low[i], high[i], 0xDD));
    }
  }
}

// A line of four, and the one after the next.
CONSORT_WIDE inline __m512d TwoLines(const double* from, uint32_t stride) {
  return _mm512_insertf64x4(_mm512_castpd256_pd512(_mm256_loadu_pd(from)),
                            _mm256_loadu_pd(from + size_t{2} * stride), 1);
}

// The same of eight lines of four.
CONSORT_WIDE inline void TransposeHalf(const double* from, uint32_t stride, double* to,
                                       uint32_t to_stride) {
  const __m512d even[2] = {TwoLines(from, stride), TwoLines(from + size_t{4} * stride, stride)};
  const __m512d odd[2] = {TwoLines(from + stride, stride),
                          TwoLines(from + size_t{5} * stride, stride)};
  // Of four lines: columns 0 and 2, then 1 and 3.
  const __m512d low[2] = {_mm512_unpacklo_pd(even[0], odd[0]), _mm512_unpacklo_pd(even[1], odd[1])};
  const __m512d high[2] = {_mm512_unpackhi_pd(even[0], odd[0]),
                           _mm512_unpackhi_pd(even[1], odd[1])};
  _mm512_storeu_pd(to, _mm512_shuffle_f64x2(low[0], low[1], 0x88));
  _mm512_storeu_pd(to + to_stride, _mm512_shuffle_f64x2(high[0], high[1], 0x88));
  _mm512_storeu_pd(to + size_t{2} * to_stride, _mm512_shuffle_f64x2(low[0], low[1], 0xDD));
  _mm512_storeu_pd(to + size_t{3} * to_stride, _mm512_shuffle_f64x2(high[0], high[1], 0xDD));
}

// The second factor by rows: `from`, or made of it in `scratch`.
CONSORT_WIDE const double* ByRows(const MatrixOperation& operation, const MatrixLayout& layout,
                                  const double* from, double* scratch) {
  if (layout.column_stride == 1) return from;
  const uint32_t step = layout.tile_rows % kTogether == 0 ? kTogether : 4;
  for (uint32_t row = 0; row < operation.k; row += step) {
    for (uint32_t column = 0; column < operation.n; column += kTogether) {
      const double* const block = from + layout.At(row, column);
      double* const to = scratch + size_t{row} * operation.n + column;
      if (step == kTogether) {
        Transpose(block, layout.column_stride, to, operation.n);
        continue;
      }
      TransposeHalf(block, layout.column_stride, to, operation.n);
    }
  }
  return scratch;
}

// What a product is of: the first factor where its layout has it, the second one by rows, sums by
// rows.
struct Product {
  const MatrixOperation& operation;
  const MatrixLayout& layout_of_a;
  const double* a;
  const double* b;
  double* sums;
};

// Rows `row` to `row` + kRows, which are in one tile.
template <uint32_t kRows, uint32_t kColumns>
CONSORT_WIDE inline void AddProducts(const Product& product, uint32_t row) {
  constexpr uint32_t kVectors = kColumns / kTogether;
  __m512d sums[kRows][kVectors];
  double* const out = product.sums + size_t{row} * kColumns;
#pragma GCC unroll 8
  for (uint32_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (uint32_t v = 0; v < kVectors; ++v) {
      sums[i][v] = _mm512_loadu_pd(out + i * kColumns + v * kTogether);
    }
  }
  const MatrixLayout& layout = product.layout_of_a;
  const uint32_t row_stride = layout.row_stride;
  for (uint32_t at = 0; at < product.operation.k; ++at) {
    const double* const a = product.a + layout.At(row, at);
    const double* const b = product.b + size_t{at} * kColumns;
    __m512d line[kVectors];
#pragma GCC unroll 4
    for (uint32_t v = 0; v < kVectors; ++v) line[v] = _mm512_loadu_pd(b + v * kTogether);
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kRows; ++i) {
      const __m512d factor = _mm512_set1_pd(a[size_t{i} * row_stride]);
#pragma GCC unroll 4
      for (uint32_t v = 0; v < kVectors; ++v) {
        sums[i][v] = _mm512_fmadd_pd(factor, line[v], sums[i][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (uint32_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (uint32_t v = 0; v < kVectors; ++v) {
      _mm512_storeu_pd(out + i * kColumns + v * kTogether, sums[i][v]);
    }
  }
}

template <uint32_t kRows, uint32_t kColumns>
CONSORT_WIDE void AddAllProducts(const Product& product) {
  for (uint32_t row = 0; row < product.operation.m; row += kRows) {
    AddProducts<kRows, kColumns>(product, row);
  }
}

// A line of eight sums, whose even and odd columns may lie apart.
CONSORT_WIDE inline __m512d LoadSums(MatrixType type, const MatrixLayout& layout,
                                     const uint8_t* from, uint32_t position) {
  const uint32_t bytes = MatrixTypeBits(type) / 8;
  const uint8_t* const evens = from + size_t{position} * bytes;
  if (layout.column_stride == 1) return Widen(type, evens);
  const uint8_t* const odds = evens + size_t{layout.column_stride} * bytes;
  const __m512i zipped = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
  // What is behind the last four is in the operand or in the next one.
  return _mm512_permutex2var_pd(Widen(type, evens), zipped, Widen(type, odds));
}

CONSORT_WIDE inline void StoreSums(MatrixType type, const MatrixLayout& layout, __m512d sums,
                                   uint8_t* to, uint32_t position) {
  const uint32_t bytes = MatrixTypeBits(type) / 8;
  uint8_t* const evens = to + size_t{position} * bytes;
  if (layout.column_stride == 1) return Narrow(type, sums, evens);
  uint8_t* const odds = evens + size_t{layout.column_stride} * bytes;
  alignas(64) uint8_t both[64];
  Narrow(type, _mm512_permutexvar_pd(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), sums), both);
  std::memcpy(evens, both, size_t{bytes} * 4);
  std::memcpy(odds, both + size_t{bytes} * 4, size_t{bytes} * 4);
}

CONSORT_WIDE void MultiplyFloats(const MatrixOperation& operation, WarpMatrices& warp) {
  const MatrixLayout layout_of_a = LayoutOfA(operation);
  alignas(64) double a[kElementsMax];
  alignas(64) double b[kElementsMax];
  alignas(64) double scratch[kElementsMax];
  alignas(64) double sums[kSumsMax];
  WidenAll(operation.a, warp.a, operation.m * operation.k, a);
  WidenAll(operation.b, warp.b, operation.k * operation.n, b);
  const MatrixLayout from = LayoutOfSums(operation, operation.c);
  const MatrixLayout to = LayoutOfSums(operation, operation.d);
  for (uint32_t row = 0; row < operation.m; ++row) {
    for (uint32_t column = 0; column < operation.n; column += kTogether) {
      _mm512_storeu_pd(sums + row * operation.n + column,
                       LoadSums(operation.c, from, warp.c, from.At(row, column)));
    }
  }
  const Product product{operation, layout_of_a, a,
                        ByRows(operation, LayoutOfB(operation), b, scratch), sums};
  switch (operation.n) {
    case 8:
      AddAllProducts<8, 8>(product);
      break;
    case 16:
      AddAllProducts<8, 16>(product);
      break;
    default:
      AddAllProducts<4, 32>(product);
      break;
  }
  for (uint32_t row = 0; row < operation.m; ++row) {
    for (uint32_t column = 0; column < operation.n; column += kTogether) {
      StoreSums(operation.d, to, _mm512_loadu_pd(sums + row * operation.n + column), warp.d,
                to.At(row, column));
    }
  }
}

// --- Bytes ---

CONSORT_WIDE void WidenBytes(MatrixType type, const uint8_t* from, uint32_t count, int16_t* to) {
  constexpr uint32_t kBytes = 32;
  for (uint32_t i = 0; i < count; i += kBytes) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm512_storeu_si512(to + i, type == MatrixType::kS8 ? _mm512_cvtepi8_epi16(bytes)
                                                        : _mm512_cvtepu8_epi16(bytes));
  }
}

// Puts pairs of elements, which are neighbours in a row of the first factor or in a column of the
// second, where the products take them: to[i * to_stride] has the pair at first + i * stride.
inline void PutPairs(const int16_t* first, uint32_t stride, uint32_t in_pair, int32_t* to,
                     uint32_t to_stride) {
  for (uint32_t i = 0; i < kTogether; ++i) {
    const int16_t* const at = first + size_t{i} * stride;
    to[size_t{i} * to_stride] =
        static_cast<int32_t>(static_cast<uint16_t>(at[0]) |
                             static_cast<uint32_t>(static_cast<uint16_t>(at[in_pair])) << 16);
  }
}

// A line of eight sums; see LoadSums.
CONSORT_WIDE inline __m256i LoadIntegers(const MatrixLayout& layout, const int32_t* from) {
  const __m256i evens = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  if (layout.column_stride == 1) return evens;
  const __m256i odds =
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + layout.column_stride));
  return _mm256_permutex2var_epi32(evens, _mm256_set_epi32(11, 3, 10, 2, 9, 1, 8, 0), odds);
}

CONSORT_WIDE inline void StoreIntegers(const MatrixLayout& layout, __m256i sums, int32_t* to) {
  if (layout.column_stride == 1) {
    return _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), sums);
  }
  const __m256i both = _mm256_permutevar8x32_epi32(sums, _mm256_set_epi32(7, 5, 3, 1, 6, 4, 2, 0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(both));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + layout.column_stride),
                   _mm256_extracti128_si256(both, 1));
}

CONSORT_WIDE void MultiplyBytes(const MatrixOperation& operation, WarpMatrices& warp) {
  constexpr uint32_t kPairsMax = kElementsMax / 2;
  alignas(64) int16_t elements[kElementsMax];
  alignas(64) int32_t a[kPairsMax];  // by rows
  alignas(64) int32_t b[kPairsMax];  // by rows of pairs
  const uint32_t pairs = operation.k / 2;
  const MatrixLayout layout_of_a = LayoutOfA(operation);
  const MatrixLayout layout_of_b = LayoutOfB(operation);
  WidenBytes(operation.a, warp.a, operation.m * operation.k, elements);
  for (uint32_t row = 0; row < operation.m; row += kTogether) {
    for (uint32_t at = 0; at < pairs; ++at) {
      PutPairs(elements + layout_of_a.At(row, 2 * at), layout_of_a.row_stride,
               layout_of_a.column_stride, a + row * pairs + at, pairs);
    }
  }
  WidenBytes(operation.b, warp.b, operation.k * operation.n, elements);
  for (uint32_t at = 0; at < pairs; ++at) {
    for (uint32_t column = 0; column < operation.n; column += kTogether) {
      PutPairs(elements + layout_of_b.At(2 * at, column), layout_of_b.column_stride,
               layout_of_b.row_stride, b + at * operation.n + column, 1);
    }
  }
  const MatrixLayout layout = LayoutOfSums(operation, operation.c);
  for (uint32_t row = 0; row < operation.m; ++row) {
    for (uint32_t column = 0; column < operation.n; column += kTogether) {
      __m256i products = _mm256_setzero_si256();
      for (uint32_t at = 0; at < pairs; ++at) {
        const auto* const line =
            reinterpret_cast<const __m256i*>(b + size_t{at} * operation.n + column);
        products = _mm256_add_epi32(
            products,
            _mm256_madd_epi16(_mm256_set1_epi32(a[row * pairs + at]), _mm256_load_si256(line)));
      }
      const size_t position = layout.At(row, column);
      const __m256i before =
          LoadIntegers(layout, reinterpret_cast<const int32_t*>(warp.c) + position);
      __m256i after = _mm256_add_epi32(before, products);
      if (operation.saturates) {
        after = _mm512_cvtsepi64_epi32(
            _mm512_add_epi64(_mm512_cvtepi32_epi64(before), _mm512_cvtepi32_epi64(products)));
      }
      StoreIntegers(layout, after, reinterpret_cast<int32_t*>(warp.d) + position);
    }
  }
}

}  // namespace

bool MultiplyByLanes(const MatrixOperation& operation, WarpMatrices& warp) {
  // All CPUs with these have FMA and F16C.
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl") || MatrixTypeBits(operation.a) < 8) {
    return false;
  }
  if (operation.a == MatrixType::kS8 || operation.a == MatrixType::kU8) {
    MultiplyBytes(operation, warp);
  } else {
    MultiplyFloats(operation, warp);
  }
  return true;
}

}  // namespace consort::cpu
