// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/engine/matrix.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "device/cpu/engine/half.h"

namespace consort::cpu {
namespace {

constexpr uint32_t kLanes = 32;
// Elements of a factor: m32n8k16 in floating point, m16n8k256 in bits. Kernels' stacks are small.
constexpr uint32_t kFloatsMax = 512;
constexpr uint32_t kIntegersMax = 4096;
constexpr uint32_t kSumsMax = 256;

uint32_t Log2(uint32_t power) { return static_cast<uint32_t>(std::countr_zero(power)); }

uint32_t RegisterBits(MatrixType type) { return type == MatrixType::kF64 ? 64 : 32; }
uint32_t ElementsOf(MatrixType type) { return RegisterBits(type) / MatrixTypeBits(type); }

double ToDouble(MatrixType type, uint64_t bits) {
  switch (type) {
    case MatrixType::kF16:
      return static_cast<double>(WidenHalf(static_cast<uint16_t>(bits)));
    case MatrixType::kBf16:
      return static_cast<double>(WidenBfloat(static_cast<uint16_t>(bits)));
    case MatrixType::kTf32:
      // 10 bits of the mantissa; what is below has no meaning.
      return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits) & 0xFFFFE000));
    case MatrixType::kF32:
      return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits)));
    default:
      return std::bit_cast<double>(bits);
  }
}

uint64_t FromDouble(MatrixType type, double value) {
  switch (type) {
    case MatrixType::kF16: {
      // By way of a float that is odd where it is inexact, so that rounding twice is rounding once.
      float narrow = static_cast<float>(value);
      if (static_cast<double>(narrow) != value && std::isfinite(narrow)) {
        auto bits = std::bit_cast<uint32_t>(narrow);
        if (std::fabs(static_cast<double>(narrow)) > std::fabs(value)) --bits;
        narrow = std::bit_cast<float>(bits | 1);
      }
      return NarrowToHalfBits(narrow);
    }
    case MatrixType::kF32:
      return std::bit_cast<uint32_t>(static_cast<float>(value));
    default:
      return std::bit_cast<uint64_t>(value);
  }
}

int64_t ToInteger(MatrixType type, uint64_t bits) {
  switch (type) {
    case MatrixType::kS8:
      return static_cast<int8_t>(bits);
    case MatrixType::kU8:
      return static_cast<uint8_t>(bits);
    case MatrixType::kS4:
      return static_cast<int64_t>(bits << 60) >> 60;
    case MatrixType::kU4:
      return static_cast<int64_t>(bits & 15);
    case MatrixType::kB1:
      return static_cast<int64_t>(bits & 1);
    default:
      return static_cast<int32_t>(bits);
  }
}

// Elements that a lane has of a factor in wmma. Fragments of halves have room for all shapes.
uint32_t WmmaCount(MatrixType type, uint32_t elements) {
  return type == MatrixType::kF16 ? kMatrixRegisters * 2 : elements / kLanes;
}

// Where an element is: whose register of which operand, and at which bit.
struct Place {
  uint32_t lane;
  uint32_t index;
  uint32_t shift;
};

// The `elements` of a wmma fragment, `count` of them a lane one after the other: use(at, place)
// with the number that each has by rows.
template <typename Use>
void ForEachOfFragment(MatrixType type, uint32_t count, uint32_t elements, Use use) {
  const uint32_t bits = MatrixTypeBits(type);
  const uint32_t in_register = ElementsOf(type);
  for (uint32_t at = 0, lane = 0; at < elements; ++lane) {
    for (uint32_t i = 0; i < count && at < elements; ++i, ++at) {
      use(at, Place{lane, i >> Log2(in_register), i % in_register * bits});
    }
  }
}

// The same of the matrices of an operation. Of mma, lanes are counted in groups of four; a lane has
// neighbouring elements of one row of the first factor, and of one column of the second.

template <typename Use>
void ForEachOfA(const MatrixOperation& operation, Use use) {
  const uint32_t elements = operation.m * operation.k;
  if (operation.kind == MatrixKind::kWmma) {
    return ForEachOfFragment(operation.a, WmmaCount(operation.a, elements), elements, use);
  }
  const uint32_t in_register = ElementsOf(operation.a);
  const uint32_t tiles = operation.m / 8;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    for (uint32_t index = 0; index < elements / kLanes / in_register; ++index) {
      const uint32_t row = index % tiles * 8 + lane / 4;
      const uint32_t column = (index / tiles * 4 + lane % 4) * in_register;
      for (uint32_t i = 0; i < in_register; ++i) {
        use(row * operation.k + column + i, Place{lane, index, i * MatrixTypeBits(operation.a)});
      }
    }
  }
}

template <typename Use>
void ForEachOfB(const MatrixOperation& operation, Use use) {
  const uint32_t elements = operation.k * operation.n;
  if (operation.kind == MatrixKind::kWmma) {
    return ForEachOfFragment(operation.b, WmmaCount(operation.b, elements), elements, use);
  }
  const uint32_t in_register = ElementsOf(operation.b);
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    for (uint32_t index = 0; index < elements / kLanes / in_register; ++index) {
      const uint32_t row = (index * 4 + lane % 4) * in_register;
      for (uint32_t i = 0; i < in_register; ++i) {
        use((row + i) * operation.n + lane / 4,
            Place{lane, index, i * MatrixTypeBits(operation.b)});
      }
    }
  }
}

// Of the accumulator or the result, whose elements are of `type`.
template <typename Use>
void ForEachOfC(const MatrixOperation& operation, MatrixType type, Use use) {
  const uint32_t elements = operation.m * operation.n;
  const uint32_t count = elements / kLanes;
  if (operation.kind == MatrixKind::kWmma) {
    return ForEachOfFragment(type, count, elements, use);
  }
  const uint32_t in_register = ElementsOf(type);
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t row = i / 2 * 8 + lane / 4;
      const uint32_t column = lane % 4 * 2 + i % 2;
      use(row * operation.n + column,
          Place{lane, i >> Log2(in_register), i % in_register * MatrixTypeBits(type)});
    }
  }
}

uint64_t Cut(uint64_t bits, MatrixType type) {
  const uint32_t width = MatrixTypeBits(type);
  return width == 64 ? bits : bits & ((uint64_t{1} << width) - 1);
}

using Operand = uint64_t (MatrixSlots::*)[kMatrixRegisters];

uint64_t Take(MatrixSlots* const lanes[kLanes], Operand operand, const Place& place,
              MatrixType type) {
  const MatrixSlots* lane = lanes[place.lane];
  return lane == nullptr ? 0 : Cut((lane->*operand)[place.index] >> place.shift, type);
}

void Put(MatrixSlots* const lanes[kLanes], const Place& place, uint64_t bits) {
  MatrixSlots* lane = lanes[place.lane];
  if (lane == nullptr) return;
  uint64_t& slot = lane->d[place.index];
  slot = place.shift == 0 ? bits : slot | bits << place.shift;
}

bool IsFloat(MatrixType type) { return type <= MatrixType::kF64; }

// Both factors by rows; what absent lanes would have is 0.
template <typename Number, uint32_t kMax, typename Convert>
struct Factors {
  Number a[kMax] = {};
  Number b[kMax] = {};
  Factors(const MatrixOperation& operation, MatrixSlots* const lanes[kLanes], Convert convert) {
    ForEachOfA(operation, [&](uint32_t at, const Place& place) {
      a[at] = static_cast<Number>(
          convert(operation.a, Take(lanes, &MatrixSlots::a, place, operation.a)));
    });
    ForEachOfB(operation, [&](uint32_t at, const Place& place) {
      b[at] = static_cast<Number>(
          convert(operation.b, Take(lanes, &MatrixSlots::b, place, operation.b)));
    });
  }
};

// Adds to the sums the products of a row of `a` and all columns of `b`, one place of the row after
// the other: eight columns at a time, of which all matrices have a multiple.
constexpr uint32_t kColumnsTogether = 8;

void AddProducts(const MatrixOperation& operation, const double* a, const double* b, double* sums) {
  for (uint32_t at = 0; at < operation.k; ++at) {
    for (uint32_t column = 0; column < operation.n; ++column) {
      sums[column] = std::fma(a[at], b[at * operation.n + column], sums[column]);
    }
  }
}

[[gnu::target("avx512f")]] void AddProductsWide(const MatrixOperation& operation, const double* a,
                                                const double* b, double* sums) {
  for (uint32_t column = 0; column < operation.n; column += kColumnsTogether) {
    __m512d sum = _mm512_loadu_pd(sums + column);
    for (uint32_t at = 0; at < operation.k; ++at) {
      const __m512d factor = _mm512_set1_pd(a[at]);
      sum = _mm512_fmadd_pd(factor, _mm512_loadu_pd(b + at * operation.n + column), sum);
    }
    _mm512_storeu_pd(sums + column, sum);
  }
}

void MultiplyFloats(const MatrixOperation& operation, MatrixSlots* const lanes[kLanes]) {
  const Factors<double, kFloatsMax, decltype(&ToDouble)> factors(operation, lanes, &ToDouble);
  double sums[kSumsMax];
  ForEachOfC(operation, operation.c, [&](uint32_t at, const Place& place) {
    sums[at] = ToDouble(operation.c, Take(lanes, &MatrixSlots::c, place, operation.c));
  });
  const auto add = __builtin_cpu_supports("avx512f") ? &AddProductsWide : &AddProducts;
  for (uint32_t row = 0; row < operation.m; ++row) {
    add(operation, factors.a + row * operation.k, factors.b, sums + row * operation.n);
  }
  ForEachOfC(operation, operation.d, [&](uint32_t at, const Place& place) {
    Put(lanes, place, FromDouble(operation.d, sums[at]));
  });
}

void MultiplyIntegers(const MatrixOperation& operation, MatrixSlots* const lanes[kLanes]) {
  const Factors<int16_t, kIntegersMax, decltype(&ToInteger)> factors(operation, lanes, &ToInteger);
  const bool is_bits = operation.a == MatrixType::kB1;
  const bool is_xor = is_bits && !operation.saturates;
  int64_t sums[kSumsMax];
  ForEachOfC(operation, operation.c, [&](uint32_t at, const Place& place) {
    sums[at] = ToInteger(operation.c, Take(lanes, &MatrixSlots::c, place, operation.c));
  });
  for (uint32_t row = 0; row < operation.m; ++row) {
    int64_t* const row_sums = sums + row * operation.n;
    for (uint32_t at = 0; at < operation.k; ++at) {
      const int16_t a = factors.a[row * operation.k + at];
      const int16_t* const b = factors.b + at * operation.n;
      for (uint32_t column = 0; column < operation.n; ++column) {
        row_sums[column] += is_xor ? a ^ b[column] : a * b[column];
      }
    }
  }
  ForEachOfC(operation, operation.d, [&](uint32_t at, const Place& place) {
    const bool clamps = operation.saturates && !is_bits;
    const int64_t sum = clamps ? std::clamp<int64_t>(sums[at], INT32_MIN, INT32_MAX) : sums[at];
    Put(lanes, place, static_cast<uint32_t>(sum));
  });
}

// Eight rows of eight 16-bit elements: lane l has row l / 4, and of it the pair l % 4.
constexpr uint32_t kTile = 8;

// Lanes 8i to 8i + 7 bring the addresses of the rows of matrix i.
uint16_t* RowOf(MatrixSlots* const lanes[kLanes], uint32_t matrix, uint32_t row) {
  const MatrixSlots* lane = lanes[matrix * kTile + row];
  return lane == nullptr ? nullptr : reinterpret_cast<uint16_t*>(lane->a[0]);
}

void LoadTiles(const MatrixOperation& operation, MatrixSlots* const lanes[kLanes]) {
  uint64_t results[4][kLanes] = {};
  for (uint32_t matrix = 0; matrix < operation.m; ++matrix) {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t along = lane % 4 * 2 + i;
        const uint32_t row = operation.transposes ? along : lane / 4;
        const uint32_t column = operation.transposes ? lane / 4 : along;
        const uint16_t* from = RowOf(lanes, matrix, row);
        if (from != nullptr) results[matrix][lane] |= uint64_t{from[column]} << (16 * i);
      }
    }
  }
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    for (uint32_t i = 0; i < operation.m && lanes[lane] != nullptr; ++i) {
      lanes[lane]->d[i] = results[i][lane];
    }
  }
}

void StoreTiles(const MatrixOperation& operation, MatrixSlots* const lanes[kLanes]) {
  for (uint32_t matrix = 0; matrix < operation.m; ++matrix) {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      if (lanes[lane] == nullptr) continue;
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t along = lane % 4 * 2 + i;
        const uint32_t row = operation.transposes ? along : lane / 4;
        const uint32_t column = operation.transposes ? lane / 4 : along;
        uint16_t* to = RowOf(lanes, matrix, row);
        if (to != nullptr) to[column] = static_cast<uint16_t>(lanes[lane]->b[matrix] >> (16 * i));
      }
    }
  }
}

void TransposeTile(MatrixSlots* const lanes[kLanes]) {
  uint16_t tile[kTile][kTile] = {};
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    for (uint32_t i = 0; i < 2 && lanes[lane] != nullptr; ++i) {
      tile[lane / 4][lane % 4 * 2 + i] = static_cast<uint16_t>(lanes[lane]->a[0] >> (16 * i));
    }
  }
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (lanes[lane] == nullptr) continue;
    lanes[lane]->d[0] = tile[lane % 4 * 2][lane / 4] | uint64_t{tile[lane % 4 * 2 + 1][lane / 4]}
                                                           << 16;
  }
}

}  // namespace

uint32_t MatrixTypeBits(MatrixType type) {
  switch (type) {
    case MatrixType::kF16:
    case MatrixType::kBf16:
      return 16;
    case MatrixType::kF64:
      return 64;
    case MatrixType::kS8:
    case MatrixType::kU8:
      return 8;
    case MatrixType::kS4:
    case MatrixType::kU4:
      return 4;
    case MatrixType::kB1:
      return 1;
    default:
      return 32;
  }
}

// Bits, from the lowest: 3 kind, 4 each of log2 m, n, k, 4 each of a, b, c, 1 that d is f16 (else
// it is f32 or as c), 1 saturates, 1 transposes.
uint32_t MatrixOperation::Pack() const {
  return static_cast<uint32_t>(kind) | Log2(m) << 3 | Log2(n) << 7 | Log2(k) << 11 |
         static_cast<uint32_t>(a) << 15 | static_cast<uint32_t>(b) << 19 |
         static_cast<uint32_t>(c) << 23 | (d == MatrixType::kF16 ? 1u : 0u) << 27 |
         (saturates ? 1u : 0u) << 28 | (transposes ? 1u : 0u) << 29;
}

MatrixOperation MatrixOperation::Unpack(uint32_t packed) {
  MatrixOperation operation;
  operation.kind = static_cast<MatrixKind>(packed & 7);
  operation.m = 1u << (packed >> 3 & 15);
  operation.n = 1u << (packed >> 7 & 15);
  operation.k = 1u << (packed >> 11 & 15);
  operation.a = static_cast<MatrixType>(packed >> 15 & 15);
  operation.b = static_cast<MatrixType>(packed >> 19 & 15);
  operation.c = static_cast<MatrixType>(packed >> 23 & 15);
  operation.d = (packed >> 27 & 1) != 0           ? MatrixType::kF16
                : operation.c == MatrixType::kF16 ? MatrixType::kF32
                                                  : operation.c;
  operation.saturates = (packed >> 28 & 1) != 0;
  operation.transposes = (packed >> 29 & 1) != 0;
  return operation;
}

void RunMatrix(const MatrixOperation& operation, MatrixSlots* const lanes[32]) {
  switch (operation.kind) {
    case MatrixKind::kMma:
    case MatrixKind::kWmma:
      return IsFloat(operation.a) ? MultiplyFloats(operation, lanes)
                                  : MultiplyIntegers(operation, lanes);
    case MatrixKind::kLoad:
      return LoadTiles(operation, lanes);
    case MatrixKind::kStore:
      return StoreTiles(operation, lanes);
    case MatrixKind::kTranspose:
      return TransposeTile(lanes);
  }
}

}  // namespace consort::cpu
