// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/half.h: 16-bit floats, as bits, to float and back, on any CPU.
//
// Pure; any thread. Narrowing rounds to nearest even and makes NaNs quiet, as x86's own
// instructions do. Source: IEEE 754-2019, 3.4 "Binary interchange format encodings"; PTX
// ISA 9.0, 5.2.3.
#ifndef CONSORT_DEVICE_CPU_ENGINE_HALF_H_
#define CONSORT_DEVICE_CPU_ENGINE_HALF_H_

#include <bit>
#include <cstdint>

namespace consort::cpu {

inline float WidenBfloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t NarrowToBfloatBits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline float WidenHalf(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t rest = bits & 0x7FFFu;
  if (rest >= 0x7C00) {  // infinite, or a NaN, which becomes quiet
    const uint32_t quiet = rest > 0x7C00 ? 0x400000 : 0;
    return std::bit_cast<float>(sign | 0x7F800000 | quiet | rest << 13);
  }
  // The exponent's bias grows from 15 to 127, by a multiplication that is exact for subnormals too.
  const float scaled = std::bit_cast<float>(rest << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | sign);
}

inline uint16_t NarrowToHalfBits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t rest = bits & 0x7FFFFFFF;
  if (rest > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00 | (rest >> 13 & 0x3FF));
  if (rest >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00);  // 65520 and more
  if (rest < 0x38800000) {
    // Below 2^-14: the sum's last place is a subnormal half's.
    const float sum = std::bit_cast<float>(rest) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x3F000000));
  }
  return static_cast<uint16_t>(sign | (rest - 0x38000000 + 0xFFF + (rest >> 13 & 1)) >> 13);
}

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_HALF_H_
