// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/engine/matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

#include "device/cpu/engine/half.h"
#include "device/cpu/engine/matrix_lanes.h"
#include "device/cpu/engine/matrix_layout.h"

namespace consort::cpu {
namespace {

// Elements of a factor: m32n8k16 in floating point, m16n8k256 in bits. Kernels' stacks are small.
constexpr uint32_t kFloatsMax = 512;
constexpr uint32_t kIntegersMax = 4096;

uint32_t Log2(uint32_t power) { return static_cast<uint32_t>(std::countr_zero(power)); }

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

bool IsFloat(MatrixType type) { return type <= MatrixType::kF64; }

// Elements are little endian and lie next to each other; those of less than a byte begin with the
// low bits.
uint64_t Take(const uint8_t* operand, uint32_t position, MatrixType type) {
  const uint32_t bits = MatrixTypeBits(type);
  if (bits < 8) {
    const uint32_t bit = position * bits;
    return operand[bit / 8] >> bit % 8 & ((1u << bits) - 1);
  }
  uint64_t value = 0;
  std::memcpy(&value, operand + position * bits / 8, bits / 8);
  return value;
}

void Put(uint8_t* operand, uint32_t position, MatrixType type, uint64_t value) {
  const uint32_t bytes = MatrixTypeBits(type) / 8;
  std::memcpy(operand + position * bytes, &value, bytes);
}

// Both factors by rows.
template <typename Number, uint32_t kMax, typename Convert>
struct Factors {
  Number a[kMax];
  Number b[kMax];
  Factors(const MatrixOperation& operation, const WarpMatrices& warp, Convert convert) {
    auto fill = [&](Number* out, const uint8_t* operand, MatrixType type, uint32_t rows,
                    uint32_t columns, const MatrixLayout& layout) {
      for (uint32_t row = 0; row < rows; ++row) {
        for (uint32_t column = 0; column < columns; ++column) {
          out[row * columns + column] =
              static_cast<Number>(convert(type, Take(operand, layout.At(row, column), type)));
        }
      }
    };
    fill(a, warp.a, operation.a, operation.m, operation.k, LayoutOfA(operation));
    fill(b, warp.b, operation.b, operation.k, operation.n, LayoutOfB(operation));
  }
};

template <typename Each>
void ForEachSum(const MatrixOperation& operation, Each each) {
  for (uint32_t row = 0; row < operation.m; ++row) {
    for (uint32_t column = 0; column < operation.n; ++column) each(row, column);
  }
}

void MultiplyFloats(const MatrixOperation& operation, WarpMatrices& warp) {
  const Factors<double, kFloatsMax, decltype(&ToDouble)> factors(operation, warp, &ToDouble);
  const MatrixLayout from = LayoutOfSums(operation, operation.c);
  const MatrixLayout to = LayoutOfSums(operation, operation.d);
  ForEachSum(operation, [&](uint32_t row, uint32_t column) {
    double sum = ToDouble(operation.c, Take(warp.c, from.At(row, column), operation.c));
    for (uint32_t at = 0; at < operation.k; ++at) {
      sum = std::fma(factors.a[row * operation.k + at], factors.b[at * operation.n + column], sum);
    }
    Put(warp.d, to.At(row, column), operation.d, FromDouble(operation.d, sum));
  });
}

void MultiplyQuarters(const MatrixOperation& operation, WarpMatrices& warp) {
  const QuarterLayout a = QuarterLayoutOfA(operation.a_by_columns);
  const QuarterLayout b = QuarterLayoutOfB(operation.b_by_columns);
  const QuarterLayout from = QuarterLayoutOfSums(operation.c);
  const QuarterLayout to = QuarterLayoutOfSums(operation.d);
  for (uint32_t quarter = 0; quarter < kQuartersOfWarp; ++quarter) {
    auto take = [quarter](const uint8_t* operand, MatrixType type, const QuarterLayout& layout,
                          uint32_t row, uint32_t column) {
      return ToDouble(type, Take(operand, layout.At(quarter, row, column), type));
    };
    ForEachSum(operation, [&](uint32_t row, uint32_t column) {
      double sum = take(warp.c, operation.c, from, row, column);
      for (uint32_t at = 0; at < operation.k; ++at) {
        sum = std::fma(take(warp.a, operation.a, a, row, at),
                       take(warp.b, operation.b, b, at, column), sum);
      }
      Put(warp.d, to.At(quarter, row, column), operation.d, FromDouble(operation.d, sum));
    });
  }
}

void MultiplyIntegers(const MatrixOperation& operation, WarpMatrices& warp) {
  const Factors<int16_t, kIntegersMax, decltype(&ToInteger)> factors(operation, warp, &ToInteger);
  const bool is_bits = operation.a == MatrixType::kB1;
  const bool is_xor = is_bits && !operation.saturates;
  const bool clamps = operation.saturates && !is_bits;
  const MatrixLayout layout = LayoutOfSums(operation, operation.c);
  ForEachSum(operation, [&](uint32_t row, uint32_t column) {
    const uint32_t position = layout.At(row, column);
    int64_t sum = ToInteger(operation.c, Take(warp.c, position, operation.c));
    for (uint32_t at = 0; at < operation.k; ++at) {
      const int16_t a = factors.a[row * operation.k + at];
      const int16_t b = factors.b[at * operation.n + column];
      sum += is_xor ? a ^ b : a * b;
    }
    if (clamps) sum = std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX);
    Put(warp.d, position, operation.d, static_cast<uint32_t>(sum));
  });
}

uint64_t Register(const uint8_t* operand, uint32_t lane, uint32_t index) {
  return Take(operand, index * kWarpLanes + lane, MatrixType::kS32);
}

// Eight rows of eight 16-bit elements: lane l has row l / 4, and of it the pair l % 4.
constexpr uint32_t kTile = 8;

// Lanes 8i to 8i + 7 bring the addresses of the rows of matrix i.
uint16_t* RowOf(const WarpMatrices& warp, uint32_t matrix, uint32_t row) {
  uint64_t address;
  std::memcpy(&address, warp.a + (matrix * kTile + row) * sizeof(address), sizeof(address));
  return reinterpret_cast<uint16_t*>(address);
}

void LoadTiles(const MatrixOperation& operation, WarpMatrices& warp) {
  for (uint32_t matrix = 0; matrix < operation.m; ++matrix) {
    uint16_t tile[kTile][kTile] = {};
    for (uint32_t row = 0; row < kTile; ++row) {
      const uint16_t* from = RowOf(warp, matrix, row);
      if (from == nullptr) continue;
      for (uint32_t column = 0; column < kTile; ++column) {
        (operation.transposes ? tile[column][row] : tile[row][column]) = from[column];
      }
    }
    std::memcpy(warp.d + matrix * sizeof(tile), tile, sizeof(tile));
  }
}

// A lane that is not here has no elements to store.
void StoreTiles(const MatrixOperation& operation, const WarpMatrices& warp, uint32_t here) {
  for (uint32_t matrix = 0; matrix < operation.m; ++matrix) {
    for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
      if ((here >> lane & 1) == 0) continue;
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t along = lane % 4 * 2 + i;
        const uint32_t row = operation.transposes ? along : lane / 4;
        const uint32_t column = operation.transposes ? lane / 4 : along;
        uint16_t* to = RowOf(warp, matrix, row);
        if (to != nullptr) {
          to[column] = static_cast<uint16_t>(Register(warp.b, lane, matrix) >> (16 * i));
        }
      }
    }
  }
}

void TransposeTile(WarpMatrices& warp) {
  uint16_t tile[kTile][kTile];
  std::memcpy(tile, warp.a, sizeof(tile));
  for (uint32_t row = 0; row < kTile; ++row) {
    for (uint32_t column = 0; column < row; ++column) {
      std::swap(tile[row][column], tile[column][row]);
    }
  }
  std::memcpy(warp.d, tile, sizeof(tile));
}

bool IsMultiplication(const MatrixOperation& operation) {
  return operation.kind == MatrixKind::kMma || operation.kind == MatrixKind::kWmma ||
         operation.kind == MatrixKind::kQuarters;
}

bool HasAddresses(const MatrixOperation& operation) {
  return operation.kind == MatrixKind::kLoad || operation.kind == MatrixKind::kStore;
}

uint32_t RegisterBytes(MatrixType type) { return type == MatrixType::kF64 ? 8 : 4; }

// Calls each(offset, bytes) of the operands that the operation reads or writes: where they begin in
// MatrixSlots, and how large their registers are.
template <typename Each>
void ForEachOperand(const MatrixOperation& operation, Each each) {
  const bool multiplies = IsMultiplication(operation);
  const uint32_t plain = sizeof(uint32_t);
  each(offsetof(MatrixSlots, a), HasAddresses(operation) ? uint32_t{sizeof(uint64_t)}
                                 : multiplies            ? RegisterBytes(operation.a)
                                                         : plain);
  each(offsetof(MatrixSlots, b), multiplies ? RegisterBytes(operation.b) : plain);
  each(offsetof(MatrixSlots, c), multiplies ? RegisterBytes(operation.c) : plain);
  each(offsetof(MatrixSlots, d), multiplies ? RegisterBytes(operation.d) : plain);
}

// Calls use(in the warp, in the lane, bytes) of each register of a lane.
template <typename Use>
void ForEachRegister(const MatrixOperation& operation, WarpMatrices& warp, uint32_t lane, Use use) {
  ForEachOperand(operation, [&](size_t offset, uint32_t bytes) {
    uint8_t* const operand = reinterpret_cast<uint8_t*>(&warp) + offset * kWarpLanes;
    for (uint32_t i = 0; i < kMatrixRegisters; ++i) {
      use(operand + (i * kWarpLanes + lane) * bytes, offset + i * bytes, bytes);
    }
  });
}

// The element's place in memory, of the one at `position` of a fragment.
uint8_t* InMemory(const MatrixOperation& operation, uint8_t* memory, uint64_t pitch,
                  uint32_t position) {
  const uint32_t line = position / operation.n % operation.m;
  const uint32_t in_line = position % operation.n;
  const uint64_t at = operation.transposes ? in_line * pitch + line : line * pitch + in_line;
  return memory + at * MatrixTypeBits(operation.a) / 8;
}

template <uint32_t kBytes>
void MoveLinesOf(const MatrixOperation& operation, uint8_t* memory, uint64_t pitch_bytes,
                 WarpMatrices& warp) {
  for (uint32_t line = 0; line < operation.m; ++line) {
    uint8_t* const there = memory + line * pitch_bytes;
    uint8_t* const here = warp.d + line * kBytes;
    operation.kind == MatrixKind::kLoadFragment ? std::memcpy(here, there, kBytes)
                                                : std::memcpy(there, here, kBytes);
  }
}

// Lines of 4 to 32 elements of 1 to 8 bytes.
void MoveLines(const MatrixOperation& operation, uint8_t* memory, uint64_t pitch_bytes,
               WarpMatrices& warp) {
  switch (operation.n * MatrixTypeBits(operation.a) / 8) {
    case 8:
      return MoveLinesOf<8>(operation, memory, pitch_bytes, warp);
    case 16:
      return MoveLinesOf<16>(operation, memory, pitch_bytes, warp);
    case 32:
      return MoveLinesOf<32>(operation, memory, pitch_bytes, warp);
    case 64:
      return MoveLinesOf<64>(operation, memory, pitch_bytes, warp);
    case 128:
      return MoveLinesOf<128>(operation, memory, pitch_bytes, warp);
  }
}

}  // namespace

// Bits, from the lowest: 3 kind, 4 each of log2 m, n, k, 4 each of a, b, c, 1 that d is f16 (else
// it is f32 or as c), 1 saturates, 1 transposes, 1 each that a and b are by columns.
uint32_t MatrixOperation::Pack() const {
  return static_cast<uint32_t>(kind) | Log2(m) << 3 | Log2(n) << 7 | Log2(k) << 11 |
         static_cast<uint32_t>(a) << 15 | static_cast<uint32_t>(b) << 19 |
         static_cast<uint32_t>(c) << 23 | (d == MatrixType::kF16 ? 1u : 0u) << 27 |
         (saturates ? 1u : 0u) << 28 | (transposes ? 1u : 0u) << 29 |
         (a_by_columns ? 1u : 0u) << 30 | (b_by_columns ? 1u : 0u) << 31;
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
  operation.a_by_columns = (packed >> 30 & 1) != 0;
  operation.b_by_columns = (packed >> 31 & 1) != 0;
  return operation;
}

void MultiplyPlainly(const MatrixOperation& operation, WarpMatrices& warp) {
  IsFloat(operation.a) ? MultiplyFloats(operation, warp) : MultiplyIntegers(operation, warp);
}

void RunMatrix(const MatrixOperation& operation, WarpMatrices& warp, uint32_t here) {
  for (uint32_t rest = ~here; rest != 0; rest &= rest - 1) {
    ForEachRegister(
        operation, warp, static_cast<uint32_t>(std::countr_zero(rest)),
        [](uint8_t* in_warp, size_t, uint32_t bytes) { std::memset(in_warp, 0, bytes); });
  }
  switch (operation.kind) {
    case MatrixKind::kMma:
    case MatrixKind::kWmma:
      if (!MultiplyByLanes(operation, warp)) MultiplyPlainly(operation, warp);
      return;
    case MatrixKind::kLoad:
      return LoadTiles(operation, warp);
    case MatrixKind::kStore:
      return StoreTiles(operation, warp, here);
    case MatrixKind::kTranspose:
      return TransposeTile(warp);
    case MatrixKind::kQuarters:
      return MultiplyQuarters(operation, warp);
    case MatrixKind::kLoadFragment:
    case MatrixKind::kStoreFragment:
      return;
  }
}

void RunMatrix(const MatrixOperation& operation, MatrixSlots* const lanes[kWarpLanes]) {
  WarpMatrices warp;
  uint32_t here = 0;
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
    if (lanes[lane] == nullptr) continue;
    here |= 1u << lane;
    ForEachRegister(operation, warp, lane, [&](uint8_t* in_warp, size_t offset, uint32_t bytes) {
      std::memcpy(in_warp, reinterpret_cast<const uint8_t*>(lanes[lane]) + offset, bytes);
    });
  }
  RunMatrix(operation, warp, here);
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
    if (lanes[lane] == nullptr) continue;
    ForEachRegister(operation, warp, lane, [&](uint8_t* in_warp, size_t offset, uint32_t bytes) {
      if (offset >= offsetof(MatrixSlots, d)) {
        std::memcpy(reinterpret_cast<uint8_t*>(lanes[lane]) + offset, in_warp, bytes);
      }
    });
  }
}

void MoveFragment(const MatrixOperation& operation, uint8_t* memory, uint64_t pitch,
                  WarpMatrices& warp) {
  const uint32_t bytes = MatrixTypeBits(operation.a) / 8;
  const uint32_t fragment_bytes = operation.k * RegisterBytes(operation.a) * kWarpLanes;
  const uint32_t matrix_bytes = operation.m * operation.n * bytes;
  const bool loads = operation.kind == MatrixKind::kLoadFragment;
  if (operation.transposes) {
    for (uint32_t at = 0; at < matrix_bytes; at += bytes) {
      uint8_t* const there = InMemory(operation, memory, pitch, at / bytes);
      loads ? std::memcpy(warp.d + at, there, bytes) : std::memcpy(there, warp.d + at, bytes);
    }
  } else {
    MoveLines(operation, memory, pitch * bytes, warp);
  }
  for (uint32_t at = matrix_bytes; loads && at < fragment_bytes; at += matrix_bytes) {
    std::memcpy(warp.d + at, warp.d, matrix_bytes);
  }
}

void MoveFragment(const MatrixOperation& operation, uint8_t* memory, uint64_t pitch, uint32_t lane,
                  MatrixSlots& slots) {
  const uint32_t bytes = MatrixTypeBits(operation.a) / 8;
  const uint32_t elements = MatrixElementsOf(operation.a);
  for (uint32_t i = 0; i < operation.k * elements; ++i) {
    const uint32_t position = (i / elements * kWarpLanes + lane) * elements + i % elements;
    uint8_t* const there = InMemory(operation, memory, pitch, position);
    uint8_t* const here = slots.d + i * bytes;
    operation.kind == MatrixKind::kLoadFragment ? std::memcpy(here, there, bytes)
                                                : std::memcpy(there, here, bytes);
  }
}

}  // namespace consort::cpu
