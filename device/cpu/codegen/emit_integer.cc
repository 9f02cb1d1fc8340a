// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/emit_integer.cc: integer arithmetic, logic and shifts.
// Source: PTX ISA 9.0, 9.7.1, 9.7.2 (carry), 9.7.8.
#include "device/cpu/codegen/emit.h"

namespace consort::cpu {
namespace {

using llvm::Value;
using ptx::Type;

Type Widened(Type type) {
  switch (type) {
    case Type::kU16:
      return Type::kU32;
    case Type::kS16:
      return Type::kS32;
    case Type::kU32:
      return Type::kU64;
    default:
      return Type::kS64;
  }
}

Value* Extend(Step& step, Value* value, Type type, uint32_t bits) {
  return ptx::IsSigned(type) ? step.ir().CreateSExt(value, step.f.IntType(bits))
                             : step.ir().CreateZExt(value, step.f.IntType(bits));
}

// The product that .hi, .lo, .wide or mul24 ask for, as IrType of ProductType.
Value* Product(Step& step) {
  const Type type = step.type();
  const uint32_t bits = ptx::TypeBits(type);
  Value* a = step.Read(1);
  Value* b = step.Read(2);
  llvm::IRBuilder<>& ir = step.ir();
  if (step.instruction.opcode.ends_with("24")) {
    // The low 24 bits of each operand; .hi gives bits 47..16 of the product, .lo bits 31..0.
    Value* wide[2];
    for (int i = 0; i < 2; ++i) {
      Value* high = ir.CreateShl(i == 0 ? a : b, 8);
      Value* value = ptx::IsSigned(type) ? ir.CreateAShr(high, 8) : ir.CreateLShr(high, 8);
      wide[i] = Extend(step, value, type, 64);
    }
    Value* product = ir.CreateMul(wide[0], wide[1]);
    return ir.CreateTrunc(step.Has("hi") ? ir.CreateLShr(product, 16) : product,
                          step.f.IntType(32));
  }
  if (step.Has("wide")) {
    if (bits == 64) {
      step.Unsupported();
      return step.Read(1);
    }
    return ir.CreateMul(Extend(step, a, type, bits * 2), Extend(step, b, type, bits * 2));
  }
  if (step.Has("hi")) {
    Value* product = ir.CreateMul(Extend(step, a, type, bits * 2), Extend(step, b, type, bits * 2));
    return ir.CreateTrunc(ir.CreateLShr(product, bits), step.f.IntType(bits));
  }
  return ir.CreateMul(a, b);
}

// a + b or a - b with the carry flag read (addc, subc, madc) and written (.cc).
Value* AddWithCarry(Step& step, Value* a, Value* b, bool subtract, bool carry_in, bool carry_out) {
  llvm::IRBuilder<>& ir = step.ir();
  const uint32_t bits = a->getType()->getIntegerBitWidth();
  llvm::IntegerType* wide = step.f.IntType(bits + 1);
  Value* wide_a = ir.CreateZExt(a, wide);
  Value* wide_b = ir.CreateZExt(b, wide);
  Value* sum = subtract ? ir.CreateSub(wide_a, wide_b) : ir.CreateAdd(wide_a, wide_b);
  if (carry_in) {
    Value* carry = ir.CreateZExt(ir.CreateLoad(ir.getInt1Ty(), step.f.CarryFlag()), wide);
    sum = subtract ? ir.CreateSub(sum, carry) : ir.CreateAdd(sum, carry);
  }
  if (carry_out) {
    ir.CreateStore(ir.CreateTrunc(ir.CreateLShr(sum, bits), ir.getInt1Ty()), step.f.CarryFlag());
  }
  return ir.CreateTrunc(sum, step.f.IntType(bits));
}

}  // namespace

void EmitIntegerAdd(Step& step) {
  const std::string_view opcode = step.instruction.opcode;
  const bool subtract = opcode.starts_with("sub");
  const bool carry_in = opcode.ends_with("c");
  llvm::IRBuilder<>& ir = step.ir();
  Value* a = step.Read(1);
  Value* b = step.Read(2);
  if (step.Has("sat")) {
    if (step.type() != Type::kS32) return step.Unsupported();
    step.Write(ir.CreateBinaryIntrinsic(
        subtract ? llvm::Intrinsic::ssub_sat : llvm::Intrinsic::sadd_sat, a, b));
  } else if (carry_in || step.Has("cc")) {
    step.Write(AddWithCarry(step, a, b, subtract, carry_in, step.Has("cc")));
  } else {
    step.Write(subtract ? ir.CreateSub(a, b) : ir.CreateAdd(a, b));
  }
}

void EmitIntegerMultiply(Step& step) {
  if (step.OneOf("hi lo wide").empty()) return step.Unsupported();
  Value* product = Product(step);
  step.Write(0, step.Has("wide") ? Widened(step.type()) : step.type(), product);
}

void EmitIntegerMad(Step& step) {
  if (step.OneOf("hi lo wide").empty()) return step.Unsupported();
  const Type type = step.Has("wide") ? Widened(step.type()) : step.type();
  Value* product = Product(step);
  Value* c = step.Read(3, type);
  const bool carry_in = step.instruction.opcode == "madc";
  if (step.Has("sat")) {
    if (type != Type::kS32 || !step.Has("hi")) return step.Unsupported();
    step.Write(0, type, step.ir().CreateBinaryIntrinsic(llvm::Intrinsic::sadd_sat, product, c));
  } else if (carry_in || step.Has("cc")) {
    step.Write(0, type, AddWithCarry(step, product, c, false, carry_in, step.Has("cc")));
  } else {
    step.Write(0, type, step.ir().CreateAdd(product, c));
  }
}

void EmitIntegerDivide(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const bool is_signed = ptx::IsSigned(step.type());
  const bool remainder = step.instruction.opcode == "rem";
  Value* a = step.Read(1);
  Value* b = step.Read(2);
  llvm::Type* type = a->getType();
  Value* one = llvm::ConstantInt::get(type, 1);
  Value* ones = llvm::ConstantInt::getSigned(type, -1);
  // Division by zero has an unspecified result (9.7.1.7); ours is all ones, and a for the
  // remainder.
  Value* is_zero = ir.CreateICmpEQ(b, llvm::ConstantInt::get(type, 0));
  Value* special = is_zero;
  Value* special_result = remainder ? a : ones;
  if (is_signed) {
    // The smallest number by -1 would trap on x86: divide by negating.
    Value* is_minus_one = ir.CreateICmpEQ(b, ones);
    special = ir.CreateOr(is_zero, is_minus_one);
    Value* by_minus_one = remainder ? llvm::ConstantInt::get(type, 0) : ir.CreateNeg(a);
    special_result = ir.CreateSelect(is_zero, special_result, by_minus_one);
  }
  Value* divisor = ir.CreateSelect(special, one, b);
  Value* result = is_signed ? (remainder ? ir.CreateSRem(a, divisor) : ir.CreateSDiv(a, divisor))
                            : (remainder ? ir.CreateURem(a, divisor) : ir.CreateUDiv(a, divisor));
  step.Write(ir.CreateSelect(special, special_result, result));
}

void EmitSad(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* a = step.Read(1);
  Value* b = step.Read(2);
  Value* a_less = ptx::IsSigned(step.type()) ? ir.CreateICmpSLT(a, b) : ir.CreateICmpULT(a, b);
  Value* difference = ir.CreateSelect(a_less, ir.CreateSub(b, a), ir.CreateSub(a, b));
  step.Write(ir.CreateAdd(step.Read(3), difference));
}

void EmitIntegerAbsNeg(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* a = step.Read(1);
  if (step.instruction.opcode == "neg") {
    step.Write(ir.CreateNeg(a));
  } else {
    step.Write(ir.CreateBinaryIntrinsic(llvm::Intrinsic::abs, a, ir.getFalse()));
  }
}

void EmitIntegerMinMax(Step& step) {
  const bool is_min = step.instruction.opcode == "min";
  llvm::Intrinsic::ID id;
  const bool is_signed = ptx::IsSigned(step.type()) || step.type() == Type::kS16x2;
  if (is_signed) {
    id = is_min ? llvm::Intrinsic::smin : llvm::Intrinsic::smax;
  } else {
    id = is_min ? llvm::Intrinsic::umin : llvm::Intrinsic::umax;
  }
  Value* result = step.ir().CreateBinaryIntrinsic(id, step.Read(1), step.Read(2));
  if (step.Has("relu")) {
    if (step.type() != Type::kS32 && step.type() != Type::kS16x2) return step.Unsupported();
    result = step.ir().CreateBinaryIntrinsic(llvm::Intrinsic::smax, result,
                                             llvm::Constant::getNullValue(result->getType()));
  }
  step.Write(result);
}

void EmitLogic(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const std::string_view opcode = step.instruction.opcode;
  Value* a = step.Read(1);
  if (opcode == "not") {
    step.Write(ir.CreateNot(a));
  } else if (opcode == "cnot") {
    step.Write(ir.CreateZExt(ir.CreateIsNull(a), a->getType()));
  } else {
    Value* b = step.Read(2);
    step.Write(opcode == "and"  ? ir.CreateAnd(a, b)
               : opcode == "or" ? ir.CreateOr(a, b)
                                : ir.CreateXor(a, b));
  }
}

void EmitShift(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const Type type = step.type();
  const uint32_t bits = ptx::TypeBits(type);
  Value* a = step.Read(1);
  Value* amount = step.Read(2, Type::kU32);
  // Amounts above the width are clamped to it (9.7.8.7): the result is then 0 or all sign bits.
  Value* too_far = ir.CreateICmpUGE(amount, ir.getInt32(bits));
  Value* last = ir.getInt32(bits - 1);
  Value* inside = ir.CreateZExtOrTrunc(ir.CreateSelect(too_far, last, amount), a->getType());
  if (step.instruction.opcode == "shr" && ptx::IsSigned(type)) {
    step.Write(ir.CreateAShr(a, inside));
    return;
  }
  Value* shifted =
      step.instruction.opcode == "shl" ? ir.CreateShl(a, inside) : ir.CreateLShr(a, inside);
  step.Write(ir.CreateSelect(too_far, llvm::ConstantInt::get(a->getType(), 0), shifted));
}

void EmitDotProduct(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  if (step.types.size() != 2) return step.Unsupported();
  const bool four = step.instruction.opcode == "dp4a";
  if (!four && step.OneOf("lo hi").empty()) return step.Unsupported();
  Value* a = step.Read(1, Type::kU32);
  Value* b = step.Read(2, Type::kU32);
  const bool both_unsigned = step.types[0] == Type::kU32 && step.types[1] == Type::kU32;
  const Type result = both_unsigned ? Type::kU32 : Type::kS32;
  Value* sum = step.Read(3, result);
  auto part = [&](Value* value, uint32_t shift, uint32_t bits, Type type) {
    Value* piece = ir.CreateTrunc(ir.CreateLShr(value, shift), step.f.IntType(bits));
    return Extend(step, piece, type, 32);
  };
  const uint32_t a_bits = four ? 8 : 16;
  const uint32_t b_first = !four && step.Has("hi") ? 16 : 0;
  for (uint32_t i = 0; i < (four ? 4u : 2u); ++i) {
    sum = ir.CreateAdd(sum, ir.CreateMul(part(a, i * a_bits, a_bits, step.types[0]),
                                         part(b, b_first + i * 8, 8, step.types[1])));
  }
  step.Write(0, result, sum);
}

// add.u16x2 and add.s16x2.
void EmitPackedAdd(Step& step) { step.Write(step.ir().CreateAdd(step.Read(1), step.Read(2))); }

}  // namespace consort::cpu
