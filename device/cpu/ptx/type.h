// SPDX-License-Identifier: Apache-2.0
// device/cpu/ptx/type.h: the fundamental types of PTX. Values; any thread.
// Source: PTX ISA 9.0, 5.2 "Types".
#ifndef CONSORT_DEVICE_CPU_PTX_TYPE_H_
#define CONSORT_DEVICE_CPU_PTX_TYPE_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace consort::cpu::ptx {

enum class Type : uint8_t {
  kPred,
  kB8,
  kB16,
  kB32,
  kB64,
  kB128,
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kF16,
  kF16x2,
  kBf16,
  kBf16x2,
  kF32,
  kF64,
  kU16x2,
  kS16x2,
};

// The type named `name` (without the dot: "u32"), or nothing.
std::optional<Type> TypeFromName(std::string_view name);

// The name without the dot.
std::string_view TypeName(Type type);

// Size in bits; 1 for predicates.
uint32_t TypeBits(Type type);

// Size in memory, in bytes; 1 for predicates (which never lie in memory).
inline uint32_t TypeBytes(Type type) { return TypeBits(type) < 8 ? 1 : TypeBits(type) / 8; }

// True for s8..s64 (not for the packed pairs).
bool IsSigned(Type type);

// True for f16, bf16, f32, f64 (not for the packed pairs).
bool IsFloat(Type type);

}  // namespace consort::cpu::ptx

#endif  // CONSORT_DEVICE_CPU_PTX_TYPE_H_
