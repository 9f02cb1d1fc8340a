// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/matrix_lanes.cc: matrices of numbers, eight columns at a time.
//
// Each sum is made as in matrix.cc: from the accumulator on, one place of the row after the other,
// fused in double; of integers any order gives the same. Each shape and layout has code of its
// own, so that sums stay in registers and places are known to the compiler. The first factor is
// widened where it lies, and its elements are spread one by one; of the second one rows are made.
#include "device/cpu/engine/matrix_lanes.h"

#include <immintrin.h>

#include <cstddef>
#include <cstring>

#include "device/cpu/engine/matrix_layout.h"

namespace consort::cpu {
namespace {

#define CONSORT_WIDE [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]]

constexpr uint32_t kTogether = 8;

// Rows whose sums are in registers at the same time, in rows of `n` columns.
constexpr uint32_t RowsTogether(uint32_t n) { return n == 32 ? 4 : 8; }

// Of the sums of mma that are words: eight in even columns, of two rows, and those in the odd
// columns beside them, lie apart (LayoutOfSums).
constexpr uint32_t kOddColumns = kWarpLanes;

constexpr bool IsWmma(const MatrixOperation& operation) {
  return operation.kind == MatrixKind::kWmma;
}

// --- Units of 32 bits: two narrow elements that follow each other in a column, or one ---

// lines[i] becomes unit i of eight columns, which lie at `from` as kUnits units of one column after
// the other.
template <uint32_t kUnits>
CONSORT_WIDE inline void TransposeUnits(const void* from, __m256i lines[kUnits]) {
  static_assert(kUnits == 4 || kUnits == 8);
  const auto* const columns = static_cast<const __m512i*>(from);
  // Of two vectors of four lines of four: lines 0 and 1, 2 and 3, as columns.
  const __m512i low = _mm512_set_epi32(29, 25, 21, 17, 13, 9, 5, 1, 28, 24, 20, 16, 12, 8, 4, 0);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(2));
  __m512i both[kUnits / 2];
  if constexpr (kUnits == 4) {
    const __m512i first = _mm512_loadu_si512(columns);
    const __m512i second = _mm512_loadu_si512(columns + 1);
    both[0] = _mm512_permutex2var_epi32(first, low, second);
    both[1] = _mm512_permutex2var_epi32(first, high, second);
  } else {
    // Of two vectors of two columns: units 0 to 3 of the four, 4 to 7.
    const __m512i near = _mm512_set_epi32(27, 19, 11, 3, 26, 18, 10, 2, 25, 17, 9, 1, 24, 16, 8, 0);
    const __m512i far = _mm512_add_epi32(near, _mm512_set1_epi32(4));
    // Of two vectors of four units: 0 and 1, 2 and 3.
    const __m512i outer = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i inner = _mm512_add_epi32(outer, _mm512_set1_epi32(8));
    __m512i pairs[4];
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; ++i) pairs[i] = _mm512_loadu_si512(columns + i);
#pragma GCC unroll 2
    for (uint32_t i = 0; i < 2; ++i) {
      const __m512i units = i == 0 ? near : far;
      const __m512i left = _mm512_permutex2var_epi32(pairs[0], units, pairs[1]);
      const __m512i right = _mm512_permutex2var_epi32(pairs[2], units, pairs[3]);
      both[2 * i] = _mm512_permutex2var_epi32(left, outer, right);
      both[2 * i + 1] = _mm512_permutex2var_epi32(left, inner, right);
    }
  }
#pragma GCC unroll 4
  for (uint32_t i = 0; i < kUnits / 2; ++i) {
    lines[2 * i] = _mm512_castsi512_si256(both[i]);
    lines[2 * i + 1] = _mm512_extracti64x4_epi64(both[i], 1);
  }
}

// --- Floats ---

// Eight elements as doubles.
template <MatrixType kType>
CONSORT_WIDE inline __m512d Widen(const uint8_t* from) {
  if constexpr (kType == MatrixType::kF16) {
    return _mm512_cvtps_pd(
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  } else if constexpr (kType == MatrixType::kBf16) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm512_cvtps_pd(
        _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16)));
  } else if constexpr (kType == MatrixType::kTf32) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    // 10 bits of the mantissa; what is below has no meaning.
    const __m256i kept = _mm256_set1_epi32(static_cast<int32_t>(0xFFFFE000));
    return _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_and_si256(words, kept)));
  } else if constexpr (kType == MatrixType::kF32) {
    return _mm512_cvtps_pd(_mm256_loadu_ps(reinterpret_cast<const float*>(from)));
  } else {
    return _mm512_loadu_pd(from);
  }
}

// Element number `index` of each of eight units, as doubles.
template <MatrixType kType>
CONSORT_WIDE inline __m512d WidenUnits(__m256i units, uint32_t index) {
  if constexpr (kType == MatrixType::kF16) {
    if (index == 1) units = _mm256_srli_epi32(units, 16);
    return _mm512_cvtps_pd(_mm256_cvtph_ps(_mm256_cvtepi32_epi16(units)));
  } else {
    // What is not of the element: the other bfloat, or what tf32 does not have.
    const auto kept = static_cast<int32_t>(kType == MatrixType::kBf16 ? 0xFFFF0000 : 0xFFFFE000);
    units = kType == MatrixType::kBf16 && index == 0
                ? _mm256_slli_epi32(units, 16)
                : _mm256_and_si256(units, _mm256_set1_epi32(kept));
    return _mm512_cvtps_pd(_mm256_castsi256_ps(units));
  }
}

// `kCount` elements as doubles: in `to`, or where they are if they are doubles.
template <MatrixType kType, uint32_t kCount>
CONSORT_WIDE inline const double* WidenAll(const uint8_t* from, double* to) {
  if constexpr (kType == MatrixType::kF64) {
    return reinterpret_cast<const double*>(from);
  } else {
#pragma GCC unroll 4
    for (uint32_t i = 0; i < kCount; i += kTogether) {
      _mm512_storeu_pd(to + i, Widen<kType>(from + size_t{i} * MatrixTypeBits(kType) / 8));
    }
    return to;
  }
}

// Eight doubles as elements of `kType`, rounded once.
template <MatrixType kType>
CONSORT_WIDE inline void Narrow(__m512d value, uint8_t* to) {
  if constexpr (kType == MatrixType::kF16) {
    // By way of floats that are odd where they are inexact, so that rounding twice is rounding
    // once.
    __m256 narrow = _mm512_cvt_roundpd_ps(value, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    const __mmask8 inexact = _mm512_cmp_pd_mask(_mm512_cvtps_pd(narrow), value, _CMP_NEQ_OQ);
    narrow = _mm256_castsi256_ps(_mm256_mask_or_epi32(
        _mm256_castps_si256(narrow), inexact, _mm256_castps_si256(narrow), _mm256_set1_epi32(1)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm256_cvtps_ph(narrow, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  } else if constexpr (kType == MatrixType::kF32) {
    _mm256_storeu_ps(reinterpret_cast<float*>(to), _mm512_cvtpd_ps(value));
  } else {
    _mm512_storeu_pd(to, value);
  }
}

// A line of four, and the one after the next.
CONSORT_WIDE inline __m512d TwoLines(const double* from, uint32_t stride) {
  return _mm512_insertf64x4(_mm512_castpd256_pd512(_mm256_loadu_pd(from)),
                            _mm256_loadu_pd(from + size_t{2} * stride), 1);
}

// Eight lines of four, one after the other, become four rows that are `to_stride` apart.
CONSORT_WIDE inline void TransposeDoubles(const double* from, double* to, uint32_t to_stride) {
  constexpr uint32_t kLine = 4;
  const __m512d even[2] = {TwoLines(from, kLine), TwoLines(from + 4 * kLine, kLine)};
  const __m512d odd[2] = {TwoLines(from + kLine, kLine), TwoLines(from + 5 * kLine, kLine)};
  // Of four lines: columns 0 and 2, then 1 and 3.
  const __m512d low[2] = {_mm512_unpacklo_pd(even[0], odd[0]), _mm512_unpacklo_pd(even[1], odd[1])};
  const __m512d high[2] = {_mm512_unpackhi_pd(even[0], odd[0]),
                           _mm512_unpackhi_pd(even[1], odd[1])};
  _mm512_storeu_pd(to, _mm512_shuffle_f64x2(low[0], low[1], 0x88));
  _mm512_storeu_pd(to + to_stride, _mm512_shuffle_f64x2(high[0], high[1], 0x88));
  _mm512_storeu_pd(to + size_t{2} * to_stride, _mm512_shuffle_f64x2(low[0], low[1], 0xDD));
  _mm512_storeu_pd(to + size_t{3} * to_stride, _mm512_shuffle_f64x2(high[0], high[1], 0xDD));
}

// The second factor by rows, as doubles: in `to`, or where it is if that is what it is.
template <MatrixOperation kOperation>
CONSORT_WIDE inline const double* SecondByRows(const uint8_t* from, double* to) {
  constexpr MatrixLayout kLayout = LayoutOfB(kOperation);
  constexpr MatrixType kType = kOperation.b;
  if constexpr (kLayout.column_stride == 1) {
    return WidenAll<kType, kOperation.k * kOperation.n>(from, to);
  } else {
    // Columns are whole in a tile, one after the other.
    static_assert(kLayout.row_stride == 1 && kLayout.column_stride == kLayout.tile_rows);
    constexpr uint32_t kElements = MatrixElementsOf(kType);
    for (uint32_t row = 0; row < kOperation.k; row += kLayout.tile_rows) {
      for (uint32_t column = 0; column < kOperation.n; column += kTogether) {
        const uint8_t* const block =
            from + size_t{kLayout.At(row, column)} * MatrixTypeBits(kType) / 8;
        double* const out = to + size_t{row} * kOperation.n + column;
        if constexpr (kType == MatrixType::kF64) {
          static_assert(kLayout.tile_rows == 4);
          TransposeDoubles(reinterpret_cast<const double*>(block), out, kOperation.n);
        } else {
          constexpr uint32_t kUnits = kLayout.tile_rows / kElements;
          __m256i lines[kUnits];
          TransposeUnits<kUnits>(block, lines);
#pragma GCC unroll 8
          for (uint32_t i = 0; i < kUnits; ++i) {
#pragma GCC unroll 2
            for (uint32_t j = 0; j < kElements; ++j) {
              _mm512_storeu_pd(out + size_t{i * kElements + j} * kOperation.n,
                               WidenUnits<kType>(lines[i], j));
            }
          }
        }
      }
    }
    return to;
  }
}

// The rows from `row` on of an accumulator of `kType`, as many as `sums` has. Those of mma are of
// one tile.
template <MatrixOperation kOperation, MatrixType kType, uint32_t kRows, uint32_t kVectors>
CONSORT_WIDE inline void LoadSums(const uint8_t* from, uint32_t row,
                                  __m512d (&sums)[kRows][kVectors]) {
  constexpr MatrixLayout kLayout = LayoutOfSums(kOperation, kType);
  constexpr uint32_t kBytes = MatrixTypeBits(kType) / 8;
  const uint8_t* const first = from + size_t{kLayout.At(row, 0)} * kBytes;
  if constexpr (kLayout.column_stride == 1) {
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (uint32_t v = 0; v < kVectors; ++v) {
        sums[i][v] = Widen<kType>(first + (i * kLayout.row_stride + v * kTogether) * kBytes);
      }
    }
  } else {
    const __m512i zipped = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
    const __m512i next = _mm512_add_epi64(zipped, _mm512_set1_epi64(4));
#pragma GCC unroll 4
    for (uint32_t i = 0; i < kRows; i += 2) {
      const uint8_t* const evens = first + size_t{i} * kLayout.row_stride * kBytes;
      const __m512d even = Widen<kType>(evens);
      const __m512d odd = Widen<kType>(evens + size_t{kOddColumns} * kBytes);
      sums[i][0] = _mm512_permutex2var_pd(even, zipped, odd);
      sums[i + 1][0] = _mm512_permutex2var_pd(even, next, odd);
    }
  }
}

template <MatrixOperation kOperation, MatrixType kType, uint32_t kRows, uint32_t kVectors>
CONSORT_WIDE inline void StoreSums(const __m512d (&sums)[kRows][kVectors], uint32_t row,
                                   uint8_t* to) {
  constexpr MatrixLayout kLayout = LayoutOfSums(kOperation, kType);
  constexpr uint32_t kBytes = MatrixTypeBits(kType) / 8;
  uint8_t* const first = to + size_t{kLayout.At(row, 0)} * kBytes;
  if constexpr (kLayout.column_stride == 1) {
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (uint32_t v = 0; v < kVectors; ++v) {
        Narrow<kType>(sums[i][v], first + (i * kLayout.row_stride + v * kTogether) * kBytes);
      }
    }
  } else {
    const __m512i even = _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_add_epi64(even, _mm512_set1_epi64(1));
#pragma GCC unroll 4
    for (uint32_t i = 0; i < kRows; i += 2) {
      uint8_t* const evens = first + size_t{i} * kLayout.row_stride * kBytes;
      Narrow<kType>(_mm512_permutex2var_pd(sums[i][0], even, sums[i + 1][0]), evens);
      Narrow<kType>(_mm512_permutex2var_pd(sums[i][0], odd, sums[i + 1][0]),
                    evens + size_t{kOddColumns} * kBytes);
    }
  }
}

// Of `kOperation` shape, layouts and the factors' type count; `operation` has the sums' types.
template <MatrixOperation kOperation>
CONSORT_WIDE void MultiplyFloats(const MatrixOperation& operation, WarpMatrices& warp) {
  constexpr MatrixLayout kLayout = LayoutOfA(kOperation);
  constexpr bool kDoubles = kOperation.a == MatrixType::kF64;
  constexpr uint32_t kColumns = kOperation.n;
  constexpr uint32_t kRows = RowsTogether(kColumns);
  constexpr uint32_t kVectors = kColumns / kTogether;
  static_assert(kLayout.tile_rows % kRows == 0);
  alignas(64) double first[kDoubles ? 1 : kOperation.m * kOperation.k];
  alignas(64) double second[kOperation.k * kColumns];
  const double* const a = WidenAll<kOperation.a, kOperation.m * kOperation.k>(warp.a, first);
  const double* const b = SecondByRows<kOperation>(warp.b, second);
  for (uint32_t row = 0; row < kOperation.m; row += kRows) {
    __m512d sums[kRows][kVectors];
    if constexpr (kDoubles) {
      LoadSums<kOperation, MatrixType::kF64>(warp.c, row, sums);
    } else if (operation.c == MatrixType::kF16) {
      LoadSums<kOperation, MatrixType::kF16>(warp.c, row, sums);
    } else {
      LoadSums<kOperation, MatrixType::kF32>(warp.c, row, sums);
    }
#pragma GCC unroll 4
    for (uint32_t at = 0; at < kOperation.k; ++at) {
      const double* const column = a + kLayout.At(row, at);
      __m512d line[kVectors];
#pragma GCC unroll 4
      for (uint32_t v = 0; v < kVectors; ++v) {
        line[v] = _mm512_loadu_pd(b + size_t{at} * kColumns + v * kTogether);
      }
#pragma GCC unroll 8
      for (uint32_t i = 0; i < kRows; ++i) {
        const __m512d factor = _mm512_set1_pd(column[size_t{i} * kLayout.row_stride]);
#pragma GCC unroll 4
        for (uint32_t v = 0; v < kVectors; ++v) {
          sums[i][v] = _mm512_fmadd_pd(factor, line[v], sums[i][v]);
        }
      }
    }
    if constexpr (kDoubles) {
      StoreSums<kOperation, MatrixType::kF64>(sums, row, warp.d);
    } else if (operation.d == MatrixType::kF16) {
      StoreSums<kOperation, MatrixType::kF16>(sums, row, warp.d);
    } else {
      StoreSums<kOperation, MatrixType::kF32>(sums, row, warp.d);
    }
  }
}

// --- Bytes, which are multiplied in pairs of 16 bits ---

// `kCount` bytes as numbers of 16 bits.
template <uint32_t kCount>
CONSORT_WIDE inline void WidenBytes(MatrixType type, const uint8_t* from, int32_t* to) {
  constexpr uint32_t kBytes = 32;
  static_assert(kCount % kBytes == 0);
  for (uint32_t i = 0; i < kCount; i += kBytes) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm512_storeu_si512(to + i / 2, type == MatrixType::kS8 ? _mm512_cvtepi8_epi16(bytes)
                                                            : _mm512_cvtepu8_epi16(bytes));
  }
}

// Makes pairs of lines 0 and 1, 2 and 3, ... of kLength bytes.
template <uint32_t kLines, uint32_t kLength>
CONSORT_WIDE inline void PairLines(MatrixType type, const uint8_t* from, int32_t* to) {
  const __m256i low = _mm256_set1_epi32(0xFFFF);
  for (uint32_t line = 0; line < kLines; line += 2) {
    for (uint32_t i = 0; i < kLength; i += kTogether) {
      __m256i both[2];
#pragma GCC unroll 2
      for (uint32_t j = 0; j < 2; ++j) {
        const __m128i bytes =
            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + (line + j) * kLength + i));
        both[j] =
            type == MatrixType::kS8 ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
      }
      const __m256i pairs =
          _mm256_or_si256(_mm256_and_si256(both[0], low), _mm256_slli_epi32(both[1], 16));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + line / 2 * kLength + i), pairs);
    }
  }
}

// Where FirstByPairs has the pair of the columns 2 * pair and the next.
template <MatrixOperation kOperation>
constexpr uint32_t FirstPairAt(uint32_t row, uint32_t pair) {
  return kOperation.a_by_columns ? pair * kOperation.m + row
                                 : LayoutOfA(kOperation).At(row, 2 * pair) / 2;
}

template <MatrixOperation kOperation>
CONSORT_WIDE inline void FirstByPairs(MatrixType type, const uint8_t* from, int32_t* to) {
  if constexpr (kOperation.a_by_columns) {
    PairLines<kOperation.k, kOperation.m>(type, from, to);
  } else {
    WidenBytes<kOperation.m * kOperation.k>(type, from, to);
  }
}

// Pairs of rows of the second factor, row by row.
template <MatrixOperation kOperation>
CONSORT_WIDE inline void SecondByPairs(MatrixType type, const uint8_t* from, int32_t* to) {
  constexpr MatrixLayout kLayout = LayoutOfB(kOperation);
  if constexpr (kLayout.column_stride == 1) {
    PairLines<kOperation.k, kOperation.n>(type, from, to);
  } else {
    static_assert(kLayout.row_stride == 1 && kLayout.column_stride == kLayout.tile_rows);
    constexpr uint32_t kPairs = kLayout.tile_rows / 2;
    alignas(64) int32_t columns[kOperation.k * kOperation.n / 2];
    WidenBytes<kOperation.k * kOperation.n>(type, from, columns);
    for (uint32_t row = 0; row < kOperation.k; row += kLayout.tile_rows) {
      for (uint32_t column = 0; column < kOperation.n; column += kTogether) {
        __m256i lines[kPairs];
        TransposeUnits<kPairs>(columns + kLayout.At(row, column) / 2, lines);
#pragma GCC unroll 8
        for (uint32_t i = 0; i < kPairs; ++i) {
          int32_t* const line = to + size_t{row / 2 + i} * kOperation.n + column;
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(line), lines[i]);
        }
      }
    }
  }
}

CONSORT_WIDE inline __m256i Plus(__m256i before, __m256i products, bool saturates) {
  if (!saturates) return _mm256_add_epi32(before, products);
  return _mm512_cvtsepi64_epi32(
      _mm512_add_epi64(_mm512_cvtepi32_epi64(before), _mm512_cvtepi32_epi64(products)));
}

// d = c + products, of the rows from `row` on.
template <MatrixOperation kOperation, uint32_t kRows, uint32_t kVectors>
CONSORT_WIDE inline void AddIntegers(const __m256i (&products)[kRows][kVectors], uint32_t row,
                                     bool saturates, WarpMatrices& warp) {
  constexpr MatrixLayout kLayout = LayoutOfSums(kOperation, MatrixType::kS32);
  const auto* const from = reinterpret_cast<const int32_t*>(warp.c) + kLayout.At(row, 0);
  auto* const to = reinterpret_cast<int32_t*>(warp.d) + kLayout.At(row, 0);
  if constexpr (kLayout.column_stride == 1) {
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (uint32_t v = 0; v < kVectors; ++v) {
        const uint32_t at = i * kLayout.row_stride + v * kTogether;
        const __m256i before = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at),
                            Plus(before, products[i][v], saturates));
      }
    }
  } else {
    const __m256i even = _mm256_set_epi32(14, 12, 10, 8, 6, 4, 2, 0);
#pragma GCC unroll 4
    for (uint32_t i = 0; i < kRows; i += 2) {
#pragma GCC unroll 2
      for (uint32_t odd = 0; odd < 2; ++odd) {
        const uint32_t at = i * kLayout.row_stride + odd * kOddColumns;
        const __m256i columns = _mm256_permutex2var_epi32(
            products[i][0], _mm256_add_epi32(even, _mm256_set1_epi32(static_cast<int32_t>(odd))),
            products[i + 1][0]);
        const __m256i before = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at), Plus(before, columns, saturates));
      }
    }
  }
}

// Of `kOperation` shape and layouts count.
template <MatrixOperation kOperation>
CONSORT_WIDE void MultiplyBytes(const MatrixOperation& operation, WarpMatrices& warp) {
  constexpr uint32_t kColumns = kOperation.n;
  constexpr uint32_t kRows = RowsTogether(kColumns);
  constexpr uint32_t kVectors = kColumns / kTogether;
  constexpr uint32_t kPairs = kOperation.k / 2;
  alignas(64) int32_t a[kOperation.m * kPairs];
  alignas(64) int32_t b[kPairs * kColumns];
  FirstByPairs<kOperation>(operation.a, warp.a, a);
  SecondByPairs<kOperation>(operation.b, warp.b, b);
  for (uint32_t row = 0; row < kOperation.m; row += kRows) {
    __m256i products[kRows][kVectors];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (uint32_t v = 0; v < kVectors; ++v) products[i][v] = _mm256_setzero_si256();
    }
    for (uint32_t at = 0; at < kPairs; ++at) {
      __m256i line[kVectors];
#pragma GCC unroll 4
      for (uint32_t v = 0; v < kVectors; ++v) {
        line[v] = _mm256_load_si256(
            reinterpret_cast<const __m256i*>(b + size_t{at} * kColumns + v * kTogether));
      }
#pragma GCC unroll 8
      for (uint32_t i = 0; i < kRows; ++i) {
        const __m256i pair = _mm256_set1_epi32(a[FirstPairAt<kOperation>(row + i, at)]);
#pragma GCC unroll 4
        for (uint32_t v = 0; v < kVectors; ++v) {
          products[i][v] = _mm256_add_epi32(products[i][v], _mm256_madd_epi16(pair, line[v]));
        }
      }
    }
    AddIntegers<kOperation>(products, row, operation.saturates, warp);
  }
}

// --- Which code is for an operation ---

template <MatrixOperation kOperation>
void Multiply(const MatrixOperation& operation, WarpMatrices& warp) {
  if constexpr (kOperation.a == MatrixType::kS8) {
    MultiplyBytes<kOperation>(operation, warp);
  } else {
    MultiplyFloats<kOperation>(operation, warp);
  }
}

constexpr MatrixOperation Shape(MatrixKind kind, MatrixType type, uint32_t m, uint32_t n,
                                uint32_t k, bool a_by_columns = false, bool b_by_columns = false) {
  MatrixOperation shape;
  shape.kind = kind;
  shape.m = m;
  shape.n = n;
  shape.k = k;
  shape.a = shape.b = type;
  shape.a_by_columns = a_by_columns;
  shape.b_by_columns = b_by_columns;
  return shape;
}

template <MatrixType kType, uint32_t kM, uint32_t kN, uint32_t kK>
void MultiplyMma(const MatrixOperation& operation, WarpMatrices& warp) {
  Multiply<Shape(MatrixKind::kMma, kType, kM, kN, kK)>(operation, warp);
}

template <MatrixType kType, uint32_t kM, uint32_t kN, uint32_t kK>
void MultiplyWmma(const MatrixOperation& operation, WarpMatrices& warp) {
  constexpr MatrixKind kWmma = MatrixKind::kWmma;
  if (operation.a_by_columns) {
    operation.b_by_columns
        ? Multiply<Shape(kWmma, kType, kM, kN, kK, true, true)>(operation, warp)
        : Multiply<Shape(kWmma, kType, kM, kN, kK, true, false)>(operation, warp);
  } else {
    operation.b_by_columns
        ? Multiply<Shape(kWmma, kType, kM, kN, kK, false, true)>(operation, warp)
        : Multiply<Shape(kWmma, kType, kM, kN, kK, false, false)>(operation, warp);
  }
}

// Of 16-bit elements, and of bytes: the three shapes of wmma.
template <MatrixType kType>
void MultiplyWmmaNarrow(const MatrixOperation& operation, WarpMatrices& warp) {
  switch (operation.m) {
    case 8:
      return MultiplyWmma<kType, 8, 32, 16>(operation, warp);
    case 16:
      return MultiplyWmma<kType, 16, 16, 16>(operation, warp);
    default:
      return MultiplyWmma<kType, 32, 8, 16>(operation, warp);
  }
}

template <MatrixType kType>
void MultiplyHalves(const MatrixOperation& operation, WarpMatrices& warp) {
  if (IsWmma(operation)) return MultiplyWmmaNarrow<kType>(operation, warp);
  operation.k == 16 ? MultiplyMma<kType, 16, 8, 16>(operation, warp)
                    : MultiplyMma<kType, 16, 8, 8>(operation, warp);
}

void MultiplyTf32(const MatrixOperation& operation, WarpMatrices& warp) {
  constexpr MatrixType kType = MatrixType::kTf32;
  if (IsWmma(operation)) return MultiplyWmma<kType, 16, 16, 8>(operation, warp);
  operation.k == 8 ? MultiplyMma<kType, 16, 8, 8>(operation, warp)
                   : MultiplyMma<kType, 16, 8, 4>(operation, warp);
}

void MultiplyDoubles(const MatrixOperation& operation, WarpMatrices& warp) {
  constexpr MatrixType kType = MatrixType::kF64;
  if (IsWmma(operation)) return MultiplyWmma<kType, 8, 8, 4>(operation, warp);
  if (operation.m == 8) return MultiplyMma<kType, 8, 8, 4>(operation, warp);
  switch (operation.k) {
    case 4:
      return MultiplyMma<kType, 16, 8, 4>(operation, warp);
    case 8:
      return MultiplyMma<kType, 16, 8, 8>(operation, warp);
    default:
      return MultiplyMma<kType, 16, 8, 16>(operation, warp);
  }
}

void MultiplyBytes(const MatrixOperation& operation, WarpMatrices& warp) {
  constexpr MatrixType kType = MatrixType::kS8;
  if (IsWmma(operation)) return MultiplyWmmaNarrow<kType>(operation, warp);
  if (operation.m == 8) return MultiplyMma<kType, 8, 8, 16>(operation, warp);
  operation.k == 16 ? MultiplyMma<kType, 16, 8, 16>(operation, warp)
                    : MultiplyMma<kType, 16, 8, 32>(operation, warp);
}

}  // namespace

bool MultiplyByLanes(const MatrixOperation& operation, WarpMatrices& warp) {
  // All CPUs with these have FMA and F16C.
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl")) {
    return false;
  }
  switch (operation.a) {
    case MatrixType::kF16:
      MultiplyHalves<MatrixType::kF16>(operation, warp);
      return true;
    case MatrixType::kBf16:
      MultiplyHalves<MatrixType::kBf16>(operation, warp);
      return true;
    case MatrixType::kTf32:
      MultiplyTf32(operation, warp);
      return true;
    case MatrixType::kF64:
      MultiplyDoubles(operation, warp);
      return true;
    case MatrixType::kS8:
    case MatrixType::kU8:
      MultiplyBytes(operation, warp);
      return true;
    default:
      return false;
  }
}

}  // namespace consort::cpu
