// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/engine/narrow.h"

#include <algorithm>
#include <cmath>

#include "device/cpu/engine/half.h"

namespace consort::cpu {
namespace {

struct FormatRow {
  int mantissa_bits;
  int exponent_min;  // of a normal number
  double largest;
  uint32_t nan;
  bool has_infinity;
};

// By NarrowFormat.
constexpr FormatRow kFormats[] = {
    {10, -14, 65504, 0x7FFF, true},
    {7, -126, 0x1.FEp127, 0x7FFF, true},
    {3, -6, 448, 0x7F, false},
    {2, -14, 57344, 0x7F, true},
};

double Round(double value, NarrowRounding rounding) {
  switch (rounding) {
    case NarrowRounding::kZero:
      return std::trunc(value);
    case NarrowRounding::kDown:
      return std::floor(value);
    case NarrowRounding::kUp:
      return std::ceil(value);
    case NarrowRounding::kNearest:
      return std::nearbyint(value);
  }
  return value;
}

// Of a number that the format has exactly; infinities are `largest` doubled.
uint32_t Encode(double value, NarrowFormat format) {
  switch (format) {
    case NarrowFormat::kF16:
      return NarrowToHalfBits(static_cast<float>(value));
    case NarrowFormat::kBf16:
      return NarrowToBfloatBits(static_cast<float>(value));
    case NarrowFormat::kE5m2:
      return uint32_t{NarrowToHalfBits(static_cast<float>(value))} >> 8;
    case NarrowFormat::kE4m3: {
      const uint32_t sign = std::signbit(value) ? 0x80 : 0;
      const double magnitude = std::fabs(value);
      if (magnitude == 0) return sign;
      const int exponent = std::max(std::ilogb(magnitude), -6);
      const auto mantissa = static_cast<uint32_t>(std::ldexp(magnitude, 3 - exponent));
      // The implicit bit of a normal number counts the exponent up.
      return sign | (static_cast<uint32_t>(exponent + 6) * 8 + mantissa);
    }
  }
  return 0;
}

}  // namespace

uint32_t NarrowBits(double value, NarrowFormat format, NarrowRounding rounding, bool saturates) {
  const FormatRow& row = kFormats[static_cast<size_t>(format)];
  if (std::isnan(value)) return row.nan;
  const bool overflows_to_largest = saturates || rounding == NarrowRounding::kZero ||
                                    (rounding == NarrowRounding::kDown && !std::signbit(value)) ||
                                    (rounding == NarrowRounding::kUp && std::signbit(value));
  double result = value;
  if (std::isfinite(value) && value != 0) {
    const int exponent = std::max(std::ilogb(value), row.exponent_min);
    const int scale = row.mantissa_bits - exponent;
    result = std::ldexp(Round(std::ldexp(value, scale), rounding), -scale);
    if (result == 0) result = std::copysign(0.0, value);
    if (std::fabs(result) > row.largest) {
      result = std::copysign(overflows_to_largest ? row.largest : HUGE_VAL, value);
    }
  } else if (std::isinf(value) && saturates) {
    result = std::copysign(row.largest, value);
  }
  if (std::isinf(result) && !row.has_infinity) return row.nan | (std::signbit(value) ? 0x80 : 0);
  return Encode(result, format);
}

double IntegerToRound(uint64_t bits, bool is_signed) {
  const bool negative = is_signed && static_cast<int64_t>(bits) < 0;
  uint64_t magnitude = negative ? 0 - bits : bits;
  // 53 bits fit. Of longer ones the last that is kept says whether any below it is set.
  constexpr uint64_t kBelow = 0x7FF;
  if (magnitude >> 53 != 0) {
    magnitude = (magnitude & ~kBelow) | ((magnitude & kBelow) != 0 ? kBelow + 1 : 0);
  }
  const auto value = static_cast<double>(magnitude);
  return negative ? -value : value;
}

uint16_t HalfOfFp8(uint8_t bits, NarrowFormat format) {
  if (format == NarrowFormat::kE5m2) return static_cast<uint16_t>(bits << 8);
  const uint16_t sign = static_cast<uint16_t>((bits & 0x80) << 8);
  const uint32_t magnitude = bits & 0x7F;
  if (magnitude == 0x7F) return sign | 0x7FFF;
  const uint32_t exponent = magnitude >> 3;
  const double mantissa = (magnitude & 7) + (exponent != 0 ? 8 : 0);
  const double value = std::ldexp(mantissa, static_cast<int>(std::max(exponent, 1u)) - 10);
  return sign | NarrowToHalfBits(static_cast<float>(value));
}

}  // namespace consort::cpu
