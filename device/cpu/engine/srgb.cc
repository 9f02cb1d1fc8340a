// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/engine/srgb.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "device/cpu/engine/texture_rules.h"

namespace consort::cpu {
namespace {

// Numbers are whole multiples of 1 / kOne, and of a unit, which is 1 of these at first and doubles
// at each of these bytes.
constexpr int32_t kOne = 1 << 14;
constexpr uint32_t kUnitDoubles[] = {32, 48, 64, 96, 136, 184, 248};

int32_t Rounded(uint32_t byte) {
  int32_t unit = 1;
  for (const uint32_t first : kUnitDoubles) unit <<= byte >= first ? 1 : 0;
  const double part = byte / 255.0;
  const double linear = part <= 0.04045 ? part / 12.92 : std::pow((part + 0.055) / 1.055, 2.4);
  return static_cast<int32_t>(std::floor(linear * kOne / unit + 0.5)) * unit;
}

const std::array<int32_t, 256>& Numbers() {
  static const std::array<int32_t, 256> numbers = [] {
    std::array<int32_t, 256> all;
    for (uint32_t byte = 0; byte < all.size(); ++byte) all[byte] = Rounded(byte);
    return all;
  }();
  return numbers;
}

int32_t UnitOf(int32_t number) {
  int32_t unit = 1;
  for (const uint32_t first : kUnitDoubles) unit <<= number >= Numbers()[first] ? 1 : 0;
  return unit;
}

}  // namespace

float LinearOfSrgb(uint8_t byte) { return static_cast<float>(Numbers()[byte]) / kOne; }

// The numbers of a slice are cut to the largest one's unit, and the slices' sums to a quarter of
// the larger one of their units.
float MixOfSrgb(const std::array<float, kCellCorners>& numbers,
                const std::array<int32_t, kCellCorners>& parts) {
  constexpr size_t kSliceCorners = kCellCorners / 2;
  int32_t unit_max = 1;
  int32_t sums[2] = {};
  for (size_t slice = 0; slice < 2; ++slice) {
    int32_t whole[kSliceCorners] = {};
    int32_t unit = 1;
    for (size_t i = 0; i < kSliceCorners; ++i) {
      if (parts[slice * kSliceCorners + i] == 0) continue;
      whole[i] = static_cast<int32_t>(numbers[slice * kSliceCorners + i] * kOne);
      unit = std::max(unit, UnitOf(whole[i]));
    }
    for (size_t i = 0; i < kSliceCorners; ++i) {
      sums[slice] += whole[i] / unit * unit * parts[slice * kSliceCorners + i];
    }
    unit_max = std::max(unit_max, unit);
  }
  const int32_t kept = std::max(unit_max / 4, 1);
  const int32_t sum = sums[0] / kept * kept + sums[1] / kept * kept;
  return static_cast<float>(sum) / (kOne * kMixParts);
}

}  // namespace consort::cpu
