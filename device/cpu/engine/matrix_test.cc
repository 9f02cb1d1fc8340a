// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/engine/matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/cpu/engine/half.h"
#include "device/cpu/engine/matrix_lanes.h"
#include "device/cpu/engine/matrix_layout.h"

namespace consort::cpu {
namespace {

constexpr uint32_t kAllLanes = 0xFFFFFFFF;

using T = MatrixType;

MatrixOperation Operation(MatrixKind kind, uint32_t m, uint32_t n, uint32_t k, T factors, T c,
                          T d) {
  MatrixOperation operation;
  operation.kind = kind;
  operation.m = m;
  operation.n = n;
  operation.k = k;
  operation.a = operation.b = factors;
  operation.c = c;
  operation.d = d;
  return operation;
}

// All shapes of numbers that there are.
std::vector<MatrixOperation> Products() {
  std::vector<MatrixOperation> all;
  for (const T d : {T::kF16, T::kF32}) {
    for (const T c : {T::kF16, T::kF32}) {
      all.push_back(Operation(MatrixKind::kMma, 16, 8, 8, T::kF16, c, d));
      all.push_back(Operation(MatrixKind::kMma, 16, 8, 16, T::kF16, c, d));
      for (const auto& [m, n] : {std::pair{16u, 16u}, {32u, 8u}, {8u, 32u}}) {
        all.push_back(Operation(MatrixKind::kWmma, m, n, 16, T::kF16, c, d));
      }
    }
  }
  for (const uint32_t k : {8u, 16u}) {
    all.push_back(Operation(MatrixKind::kMma, 16, 8, k, T::kBf16, T::kF32, T::kF32));
    all.push_back(Operation(MatrixKind::kMma, 16, 8, k / 2, T::kTf32, T::kF32, T::kF32));
  }
  all.push_back(Operation(MatrixKind::kWmma, 16, 16, 8, T::kTf32, T::kF32, T::kF32));
  for (const uint32_t k : {4u, 8u, 16u}) {
    all.push_back(Operation(MatrixKind::kMma, 16, 8, k, T::kF64, T::kF64, T::kF64));
  }
  all.push_back(Operation(MatrixKind::kMma, 8, 8, 4, T::kF64, T::kF64, T::kF64));
  all.push_back(Operation(MatrixKind::kWmma, 8, 8, 4, T::kF64, T::kF64, T::kF64));
  for (const T type : {T::kS8, T::kU8}) {
    all.push_back(Operation(MatrixKind::kMma, 8, 8, 16, type, T::kS32, T::kS32));
    all.push_back(Operation(MatrixKind::kMma, 16, 8, 16, type, T::kS32, T::kS32));
    all.push_back(Operation(MatrixKind::kMma, 16, 8, 32, type, T::kS32, T::kS32));
    // And signed with unsigned.
    all.push_back(all.back());
    all.back().b = type == T::kS8 ? T::kU8 : T::kS8;
  }
  for (const auto& [m, n] : {std::pair{16u, 16u}, {32u, 8u}, {8u, 32u}}) {
    all.push_back(Operation(MatrixKind::kWmma, m, n, 16, T::kBf16, T::kF32, T::kF32));
    all.push_back(Operation(MatrixKind::kWmma, m, n, 16, T::kS8, T::kS32, T::kS32));
    all.push_back(Operation(MatrixKind::kWmma, m, n, 16, T::kU8, T::kS32, T::kS32));
  }
  // Each in the four layouts, and integers in both ways to overflow.
  std::vector<MatrixOperation> variants;
  for (MatrixOperation operation : all) {
    for (uint32_t i = 0; i < 8; ++i) {
      operation.a_by_columns = (i & 1) != 0;
      operation.b_by_columns = (i & 2) != 0;
      operation.saturates = (i & 4) != 0;
      const bool floats = operation.c != T::kS32;
      if ((floats && operation.saturates) || (operation.kind == MatrixKind::kMma && i % 4 != 0)) {
        continue;
      }
      variants.push_back(operation);
    }
  }
  return variants;
}

std::string Name(const MatrixOperation& operation) {
  return std::to_string(operation.Pack()) + ": m" + std::to_string(operation.m) + "n" +
         std::to_string(operation.n) + "k" + std::to_string(operation.k);
}

uint64_t Element(const uint8_t* operand, uint32_t position, T type) {
  uint64_t value = 0;
  const uint32_t bytes = MatrixTypeBits(type) / 8;
  std::memcpy(&value, operand + size_t{position} * bytes, bytes);
  return value;
}

bool IsNan(uint64_t bits, T type) {
  switch (type) {
    case T::kF16:
      return std::isnan(WidenHalf(static_cast<uint16_t>(bits)));
    case T::kF32:
      return std::isnan(std::bit_cast<float>(static_cast<uint32_t>(bits)));
    case T::kF64:
      return std::isnan(std::bit_cast<double>(bits));
    default:
      return false;
  }
}

class MatrixTest : public testing::Test {
 protected:
  // Any bits; `tame` for numbers of which sums are rarely infinite.
  void Fill(const MatrixOperation& operation, WarpMatrices& warp, bool tame) {
    auto fill = [&](uint8_t* operand, T type) {
      for (uint32_t i = 0; i < sizeof(warp.a); ++i) operand[i] = static_cast<uint8_t>(random_());
      const uint32_t bytes = MatrixTypeBits(type) / 8;
      for (uint32_t i = 0; tame && i < sizeof(warp.a) / bytes; ++i) {
        const float value = std::ldexp(static_cast<float>(random_() % 4096) - 2048.0f,
                                       static_cast<int>(random_() % 12) - 16);
        uint64_t bits = std::bit_cast<uint32_t>(value);
        if (type == T::kF16) bits = NarrowToHalfBits(value);
        if (type == T::kBf16) bits = NarrowToBfloatBits(value);
        if (type == T::kF64) bits = std::bit_cast<uint64_t>(double{value} * 1.1);
        if (type < T::kS8) std::memcpy(operand + size_t{i} * bytes, &bits, bytes);
      }
    };
    fill(warp.a, operation.a);
    fill(warp.b, operation.b);
    fill(warp.c, operation.c);
    fill(warp.d, operation.d);
  }

  std::mt19937 random_{20261122};
};

TEST_F(MatrixTest, LanesAndPlainProductsHaveTheSameBits) {
  for (const MatrixOperation& operation : Products()) {
    for (int round = 0; round < 6; ++round) {
      auto wide = std::make_unique<WarpMatrices>();
      Fill(operation, *wide, round % 3 != 0);
      auto plain = std::make_unique<WarpMatrices>(*wide);
      if (!MultiplyByLanes(operation, *wide)) GTEST_SKIP() << "needs a CPU with AVX-512";
      MultiplyPlainly(operation, *plain);
      for (uint32_t i = 0; i < operation.m * operation.n; ++i) {
        const uint64_t one = Element(wide->d, i, operation.d);
        const uint64_t other = Element(plain->d, i, operation.d);
        if (IsNan(one, operation.d) && IsNan(other, operation.d)) continue;
        ASSERT_EQ(one, other) << Name(operation) << ", place " << i << ", round " << round;
      }
    }
  }
}

// What is known of a product without either: of small integers, which all types have.
TEST_F(MatrixTest, ProductsAreThoseOfMatrices) {
  for (const MatrixOperation& operation : Products()) {
    auto warp = std::make_unique<WarpMatrices>();
    const bool integers = operation.c == T::kS32;
    auto bits_of = [&](int value, T type) -> uint64_t {
      const auto number = static_cast<float>(value);
      switch (type) {
        case T::kF16:
          return NarrowToHalfBits(number);
        case T::kBf16:
          return NarrowToBfloatBits(number);
        case T::kF64:
          return std::bit_cast<uint64_t>(static_cast<double>(value));
        case T::kF32:
        case T::kTf32:
          return std::bit_cast<uint32_t>(number);
        default:
          return static_cast<uint32_t>(value);
      }
    };
    auto put = [&](uint8_t* operand, uint32_t position, T type, int value) {
      const uint64_t bits = bits_of(value, type);
      const uint32_t bytes = MatrixTypeBits(type) / 8;
      std::memcpy(operand + size_t{position} * bytes, &bits, bytes);
    };
    std::vector<int> a(operation.m * operation.k);
    std::vector<int> b(operation.k * operation.n);
    for (uint32_t i = 0; i < a.size(); ++i) {
      a[i] = static_cast<int>(random_() % 15);
      put(warp->a, LayoutOfA(operation).At(i / operation.k, i % operation.k), operation.a, a[i]);
    }
    for (uint32_t i = 0; i < b.size(); ++i) {
      b[i] = static_cast<int>(random_() % 7);
      put(warp->b, LayoutOfB(operation).At(i / operation.n, i % operation.n), operation.b, b[i]);
    }
    std::vector<int> sums(operation.m * operation.n);
    for (uint32_t i = 0; i < sums.size(); ++i) {
      sums[i] = static_cast<int>(random_() % 100) - (integers ? 200 : 50);
      put(warp->c, LayoutOfSums(operation, operation.c).At(i / operation.n, i % operation.n),
          operation.c, sums[i]);
      for (uint32_t at = 0; at < operation.k; ++at) {
        sums[i] += a[i / operation.n * operation.k + at] * b[at * operation.n + i % operation.n];
      }
    }
    RunMatrix(operation, *warp, kAllLanes);
    for (uint32_t i = 0; i < sums.size(); ++i) {
      const uint32_t position =
          LayoutOfSums(operation, operation.d).At(i / operation.n, i % operation.n);
      const uint64_t wanted = bits_of(sums[i], operation.d);
      ASSERT_EQ(Element(warp->d, position, operation.d), wanted)
          << Name(operation) << ", sum " << i;
    }
  }
}

// Places as the ISA words them: 9.7.14.5.1 "Matrix Fragments for mma.m8n8k4 with .f16 floating
// point type".
TEST_F(MatrixTest, QuartersOfAWarpHaveProductsOfTheirOwn) {
  struct Place {
    uint32_t row, column;
  };
  auto first = [](uint32_t lane, uint32_t i, bool by_columns) -> Place {
    const uint32_t high = lane < 16 ? 0 : 4;
    if (by_columns) return {i % 4 + high, lane % 4};
    return {lane % 4 + high, i};
  };
  auto sum = [](uint32_t lane, uint32_t i, T type) -> Place {
    const uint32_t high = lane < 16 ? 0 : 4;
    if (type == T::kF16) return {lane % 4 + high, i};
    return {(lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1)};
  };
  for (uint32_t variant = 0; variant < 12; ++variant) {
    const T c = variant / 4 == 0 ? T::kF32 : T::kF16;
    const T d = variant / 4 == 2 ? T::kF16 : T::kF32;
    MatrixOperation operation = Operation(MatrixKind::kQuarters, 8, 8, 4, T::kF16, c, d);
    operation.a_by_columns = (variant & 1) != 0;
    operation.b_by_columns = (variant & 2) != 0;
    float a[4][8][4], b[4][4][8], sums[4][8][8];
    auto warp = std::make_unique<WarpMatrices>();
    auto put = [](uint8_t* operand, uint32_t lane, uint32_t i, T type, float value) {
      const bool is_half = type == T::kF16;
      const uint64_t bits = is_half ? NarrowToHalfBits(value) : std::bit_cast<uint32_t>(value);
      const uint32_t at = is_half ? (i / 2 * 32 + lane) * 4 + i % 2 * 2 : (i * 32 + lane) * 4;
      std::memcpy(operand + at, &bits, is_half ? 2 : 4);
    };
    auto any = [this] { return static_cast<float>(static_cast<int>(random_() % 17) - 8); };
    for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
      const uint32_t quarter = lane % 16 / 4;
      for (uint32_t i = 0; i < 4; ++i) {
        const Place in_a = first(lane, i, operation.a_by_columns);
        put(warp->a, lane, i, T::kF16, a[quarter][in_a.row][in_a.column] = any());
        // The second factor's places are the first one's with rows for columns.
        const Place in_b = first(lane, i, !operation.b_by_columns);
        put(warp->b, lane, i, T::kF16, b[quarter][in_b.column][in_b.row] = any());
      }
      for (uint32_t i = 0; i < 8; ++i) {
        const Place in_c = sum(lane, i, c);
        put(warp->c, lane, i, c, sums[quarter][in_c.row][in_c.column] = any());
      }
    }
    RunMatrix(MatrixOperation::Unpack(operation.Pack()), *warp, kAllLanes);
    for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
      const uint32_t quarter = lane % 16 / 4;
      for (uint32_t i = 0; i < 8; ++i) {
        const auto [row, column] = sum(lane, i, d);
        float wanted = sums[quarter][row][column];
        for (uint32_t at = 0; at < 4; ++at) wanted += a[quarter][row][at] * b[quarter][at][column];
        const uint32_t position = d == T::kF16 ? (i / 2 * 32 + lane) * 2 + i % 2 : i * 32 + lane;
        const uint64_t bits = Element(warp->d, position, d);
        const float got = d == T::kF16 ? WidenHalf(static_cast<uint16_t>(bits))
                                       : std::bit_cast<float>(static_cast<uint32_t>(bits));
        ASSERT_EQ(got, wanted) << "variant " << variant << ", lane " << lane << ", sum " << i;
      }
    }
  }
}

TEST_F(MatrixTest, LanesApartGiveWhatLanesTogetherDo) {
  for (const MatrixOperation& operation : Products()) {
    for (const uint32_t here : {kAllLanes, 0x0F0F1234u, 1u}) {
      auto together = std::make_unique<WarpMatrices>();
      Fill(operation, *together, true);
      auto slots = std::make_unique<MatrixSlots[]>(kWarpLanes);
      MatrixSlots* lanes[kWarpLanes] = {};
      auto copy = [&](size_t offset, T type) {
        const uint32_t bytes = type == T::kF64 ? 8 : 4;
        const uint8_t* from = reinterpret_cast<uint8_t*>(together.get()) + offset * kWarpLanes;
        for (uint32_t i = 0; i < kMatrixRegisters * kWarpLanes; ++i) {
          uint8_t* to = reinterpret_cast<uint8_t*>(&slots[i % kWarpLanes]) + offset;
          std::memcpy(to + i / kWarpLanes * bytes, from + size_t{i} * bytes, bytes);
        }
      };
      copy(offsetof(MatrixSlots, a), operation.a);
      copy(offsetof(MatrixSlots, b), operation.b);
      copy(offsetof(MatrixSlots, c), operation.c);
      for (uint32_t i = 0; i < kWarpLanes; ++i) {
        if ((here >> i & 1) != 0) lanes[i] = &slots[i];
      }
      RunMatrix(operation, lanes);
      RunMatrix(operation, *together, here);
      const uint32_t bytes = operation.d == T::kF64 ? 8 : 4;
      const uint32_t registers =
          operation.m * operation.n / kWarpLanes / MatrixElementsOf(operation.d);
      for (uint32_t i = 0; i < registers * kWarpLanes; ++i) {
        if (lanes[i % kWarpLanes] == nullptr) continue;
        ASSERT_EQ(std::memcmp(slots[i % kWarpLanes].d + i / kWarpLanes * bytes,
                              together->d + size_t{i} * bytes, bytes),
                  0)
            << Name(operation) << ", register " << i / kWarpLanes << " of lane " << i % kWarpLanes;
      }
    }
  }
}

// Each fragment there is: all lanes together read and write what they do one by one, and only that.
TEST_F(MatrixTest, FragmentsMoveTogetherAsOneByOne) {
  struct Row {
    uint32_t lines, elements, registers;
    T type;
    bool transposes;
  };
  const Row rows[] = {
      {16, 16, 8, T::kF16, false}, {16, 8, 8, T::kF16, false},  {32, 16, 8, T::kF16, false},
      {16, 32, 8, T::kF16, false}, {16, 16, 4, T::kF16, true},  {8, 16, 2, T::kBf16, false},
      {16, 8, 4, T::kTf32, false}, {8, 16, 4, T::kTf32, false}, {16, 16, 8, T::kF32, true},
      {32, 8, 8, T::kF32, false},  {8, 32, 8, T::kS32, true},   {8, 4, 1, T::kF64, false},
      {4, 8, 1, T::kF64, false},   {8, 8, 2, T::kF64, true},    {16, 16, 2, T::kS8, false},
      {16, 8, 1, T::kU8, false},   {16, 32, 4, T::kS8, false},
  };
  for (const Row& row : rows) {
    MatrixOperation move = Operation(MatrixKind::kLoadFragment, row.lines, row.elements,
                                     row.registers, row.type, T::kF32, T::kF32);
    move.transposes = row.transposes;
    const uint64_t pitch = 40;
    const uint32_t bytes = row.type == T::kF64 ? 8 : 4;
    std::vector<uint8_t> memory(pitch * 32 * sizeof(double));
    for (uint8_t& byte : memory) byte = static_cast<uint8_t>(random_());
    auto together = std::make_unique<WarpMatrices>();
    MoveFragment(move, memory.data(), pitch, *together);
    std::vector<uint8_t> apart_stored(memory.size(), 0xAA);
    MatrixOperation store = move;
    store.kind = MatrixKind::kStoreFragment;
    for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
      MatrixSlots slots;
      MoveFragment(move, memory.data(), pitch, lane, slots);
      for (uint32_t i = 0; i < row.registers; ++i) {
        ASSERT_EQ(std::memcmp(slots.d + size_t{i} * bytes,
                              together->d + size_t{i * kWarpLanes + lane} * bytes, bytes),
                  0)
            << Name(move) << ", register " << i << " of lane " << lane;
      }
      MoveFragment(store, apart_stored.data(), pitch, lane, slots);
    }
    std::vector<uint8_t> stored(memory.size(), 0xAA);
    MoveFragment(store, stored.data(), pitch, *together);
    EXPECT_EQ(stored, apart_stored) << Name(move);
    for (uint32_t i = 0; i < row.lines * row.elements; ++i) {
      const uint32_t line = i / row.elements;
      const uint32_t in_line = i % row.elements;
      const uint64_t at = row.transposes ? in_line * pitch + line : line * pitch + in_line;
      EXPECT_EQ(Element(stored.data(), static_cast<uint32_t>(at), row.type),
                Element(memory.data(), static_cast<uint32_t>(at), row.type))
          << Name(move);
    }
  }
}

}  // namespace
}  // namespace consort::cpu
