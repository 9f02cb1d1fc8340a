// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/engine/matrix.h"

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

// Lanes are counted in groups of four; a lane has neighbouring elements of one row.
Place PlaceOfA(const MatrixOperation& operation, uint32_t row, uint32_t column) {
  const uint32_t elements = ElementsOf(operation.a);
  if (operation.kind == MatrixKind::kWmma) {
    const uint32_t count = WmmaCount(operation.a, operation.m * operation.k);
    const uint32_t at = row * operation.k + column;
    const uint32_t in_lane = at % count;
    return {at / count, in_lane / elements, in_lane % elements * MatrixTypeBits(operation.a)};
  }
  const uint32_t chunk = column / (4 * elements);
  const uint32_t lane = row % 8 * 4 + column / elements % 4;
  return {lane, chunk * (operation.m / 8) + row / 8,
          column % elements * MatrixTypeBits(operation.a)};
}

Place PlaceOfB(const MatrixOperation& operation, uint32_t row, uint32_t column) {
  const uint32_t elements = ElementsOf(operation.b);
  if (operation.kind == MatrixKind::kWmma) {
    const uint32_t count = WmmaCount(operation.b, operation.k * operation.n);
    const uint32_t at = row * operation.n + column;
    const uint32_t in_lane = at % count;
    return {at / count, in_lane / elements, in_lane % elements * MatrixTypeBits(operation.b)};
  }
  return {column * 4 + row / elements % 4, row / (4 * elements),
          row % elements * MatrixTypeBits(operation.b)};
}

Place PlaceOfC(const MatrixOperation& operation, MatrixType type, uint32_t row, uint32_t column) {
  const uint32_t elements = ElementsOf(type);
  if (operation.kind == MatrixKind::kWmma) {
    const uint32_t count = operation.m * operation.n / kLanes;
    const uint32_t at = row * operation.n + column;
    const uint32_t in_lane = at % count;
    return {at / count, in_lane / elements, in_lane % elements * MatrixTypeBits(type)};
  }
  const uint32_t in_lane = row / 8 * 2 + column % 2;
  return {row % 8 * 4 + column / 2, in_lane / elements, in_lane % elements * MatrixTypeBits(type)};
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

template <typename Number, uint32_t kMax, typename Convert>
struct Factors {
  Number a[kMax];
  Number b[kMax];  // by columns
  Factors(const MatrixOperation& operation, MatrixSlots* const lanes[kLanes], Convert convert) {
    for (uint32_t row = 0; row < operation.m; ++row) {
      for (uint32_t at = 0; at < operation.k; ++at) {
        a[row * operation.k + at] = static_cast<Number>(convert(
            operation.a, Take(lanes, &MatrixSlots::a, PlaceOfA(operation, row, at), operation.a)));
      }
    }
    for (uint32_t column = 0; column < operation.n; ++column) {
      for (uint32_t at = 0; at < operation.k; ++at) {
        b[column * operation.k + at] = static_cast<Number>(
            convert(operation.b,
                    Take(lanes, &MatrixSlots::b, PlaceOfB(operation, at, column), operation.b)));
      }
    }
  }
};

void MultiplyFloats(const MatrixOperation& operation, MatrixSlots* const lanes[kLanes]) {
  const Factors<double, kFloatsMax, decltype(&ToDouble)> factors(operation, lanes, &ToDouble);
  uint64_t sums[kSumsMax];
  for (uint32_t row = 0; row < operation.m; ++row) {
    for (uint32_t column = 0; column < operation.n; ++column) {
      double sum = ToDouble(
          operation.c,
          Take(lanes, &MatrixSlots::c, PlaceOfC(operation, operation.c, row, column), operation.c));
      const double* a = factors.a + row * operation.k;
      const double* b = factors.b + column * operation.k;
      for (uint32_t at = 0; at < operation.k; ++at) sum = std::fma(a[at], b[at], sum);
      sums[row * operation.n + column] = FromDouble(operation.d, sum);
    }
  }
  for (uint32_t row = 0; row < operation.m; ++row) {
    for (uint32_t column = 0; column < operation.n; ++column) {
      Put(lanes, PlaceOfC(operation, operation.d, row, column), sums[row * operation.n + column]);
    }
  }
}

void MultiplyIntegers(const MatrixOperation& operation, MatrixSlots* const lanes[kLanes]) {
  const Factors<int16_t, kIntegersMax, decltype(&ToInteger)> factors(operation, lanes, &ToInteger);
  for (uint32_t row = 0; row < operation.m; ++row) {
    for (uint32_t column = 0; column < operation.n; ++column) {
      const Place place = PlaceOfC(operation, operation.c, row, column);
      int64_t sum = ToInteger(operation.c, Take(lanes, &MatrixSlots::c, place, operation.c));
      const int16_t* a = factors.a + row * operation.k;
      const int16_t* b = factors.b + column * operation.k;
      const bool is_bits = operation.a == MatrixType::kB1;
      for (uint32_t at = 0; at < operation.k; ++at) {
        sum += is_bits && !operation.saturates ? a[at] ^ b[at] : a[at] * b[at];
      }
      if (operation.saturates && !is_bits) {
        sum = std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX);
      }
      Put(lanes, place, static_cast<uint32_t>(sum));
    }
  }
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
