// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/narrow.h: conversions to and from floats of 16 and 8 bits, with every rounding.
//
// Pure; any thread. What one CPU instruction does is not here: these are for generated code that
// meets a case without one. Source: PTX ISA 9.0, 5.2.3 "Alternate Floating-Point Data
// Formats", 9.7.9.21 cvt.
#ifndef CONSORT_DEVICE_CPU_ENGINE_NARROW_H_
#define CONSORT_DEVICE_CPU_ENGINE_NARROW_H_

#include <cstdint>

namespace consort::cpu {

// Numbers that generated code passes.
enum class NarrowFormat : uint32_t { kF16, kBf16, kE4m3, kE5m2 };
enum class NarrowRounding : uint32_t { kZero, kDown, kUp, kNearest };

// The bits of `value` in that format. With `saturates` numbers that are too large, and infinities,
// become the largest one.
uint32_t NarrowBits(double value, NarrowFormat format, NarrowRounding rounding, bool saturates);

// A double that rounds in every format above like the integer of 64 bits does.
double IntegerToRound(uint64_t bits, bool is_signed);

// The half that an 8-bit float is.
uint16_t HalfOfFp8(uint8_t bits, NarrowFormat format);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_NARROW_H_
