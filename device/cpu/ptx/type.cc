// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/ptx/type.h"

#include <cstddef>

namespace consort::cpu::ptx {
namespace {

struct TypeRow {
  Type type;
  std::string_view name;
  uint32_t bits;
  bool is_signed;
  bool is_float;
};

constexpr TypeRow kTypes[] = {
    {Type::kPred, "pred", 1, false, false},    {Type::kB8, "b8", 8, false, false},
    {Type::kB16, "b16", 16, false, false},     {Type::kB32, "b32", 32, false, false},
    {Type::kB64, "b64", 64, false, false},     {Type::kB128, "b128", 128, false, false},
    {Type::kU8, "u8", 8, false, false},        {Type::kU16, "u16", 16, false, false},
    {Type::kU32, "u32", 32, false, false},     {Type::kU64, "u64", 64, false, false},
    {Type::kS8, "s8", 8, true, false},         {Type::kS16, "s16", 16, true, false},
    {Type::kS32, "s32", 32, true, false},      {Type::kS64, "s64", 64, true, false},
    {Type::kF16, "f16", 16, false, true},      {Type::kF16x2, "f16x2", 32, false, false},
    {Type::kBf16, "bf16", 16, false, true},    {Type::kBf16x2, "bf16x2", 32, false, false},
    {Type::kF32, "f32", 32, false, true},      {Type::kF64, "f64", 64, false, true},
    {Type::kU16x2, "u16x2", 32, false, false}, {Type::kS16x2, "s16x2", 32, false, false},
};

constexpr bool RowsFollowEnum() {
  for (size_t i = 0; i < sizeof(kTypes) / sizeof(kTypes[0]); ++i) {
    if (static_cast<size_t>(kTypes[i].type) != i) return false;
  }
  return true;
}
static_assert(RowsFollowEnum());

const TypeRow& Row(Type type) { return kTypes[static_cast<size_t>(type)]; }

}  // namespace

std::optional<Type> TypeFromName(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

std::string_view TypeName(Type type) { return Row(type).name; }
uint32_t TypeBits(Type type) { return Row(type).bits; }
bool IsSigned(Type type) { return Row(type).is_signed; }
bool IsFloat(Type type) { return Row(type).is_float; }

}  // namespace consort::cpu::ptx
