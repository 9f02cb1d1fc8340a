// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/emit_convert.cc: moves, conversions, address spaces.
// Source: PTX ISA 9.0, 9.7.9.3 mov, 9.7.9.21 cvta, isspacep, cvt; 6.4, 6.5 "Type Conversion".
#include <cstddef>

#include "device/cpu/codegen/emit.h"
#include "device/cpu/codegen/float_helpers.h"
#include "device/cpu/engine/thread_context.h"

namespace consort::cpu {
namespace {

using llvm::Value;
using ptx::Type;

bool IsIntegerRounding(const Step& step) { return !step.OneOf("rni rzi rmi rpi").empty(); }

Value* RoundToInteger(Step& step, Value* value) {
  const std::string_view name = step.OneOf("rni rzi rmi rpi");
  const llvm::Intrinsic::ID id = name == "rni"   ? llvm::Intrinsic::roundeven
                                 : name == "rzi" ? llvm::Intrinsic::trunc
                                 : name == "rmi" ? llvm::Intrinsic::floor
                                                 : llvm::Intrinsic::ceil;
  return step.ir().CreateUnaryIntrinsic(id, value);
}

Value* IntegerToInteger(Step& step, Value* value, Type to, Type from) {
  llvm::IRBuilder<>& ir = step.ir();
  const uint32_t from_bits = ptx::TypeBits(from);
  const uint32_t to_bits = ptx::TypeBits(to);
  llvm::IntegerType* to_type = step.f.IntType(to_bits);
  if (step.Has("sat")) {
    // Clamp in 65 bits, where each pair of ranges fits.
    llvm::IntegerType* wide = step.f.IntType(65);
    Value* value_wide =
        ptx::IsSigned(from) ? ir.CreateSExt(value, wide) : ir.CreateZExt(value, wide);
    const bool to_signed = ptx::IsSigned(to);
    const llvm::APInt low =
        to_signed ? llvm::APInt::getSignedMinValue(to_bits).sext(65) : llvm::APInt(65, 0);
    const llvm::APInt high = to_signed ? llvm::APInt::getSignedMaxValue(to_bits).zext(65)
                                       : llvm::APInt::getMaxValue(to_bits).zext(65);
    Value* low_value = ir.getInt(low);
    Value* high_value = ir.getInt(high);
    value_wide = ir.CreateSelect(ir.CreateICmpSLT(value_wide, low_value), low_value, value_wide);
    value_wide = ir.CreateSelect(ir.CreateICmpSGT(value_wide, high_value), high_value, value_wide);
    return ir.CreateTrunc(value_wide, to_type);
  }
  if (to_bits <= from_bits) return ir.CreateTrunc(value, to_type);
  return ptx::IsSigned(from) ? ir.CreateSExt(value, to_type) : ir.CreateZExt(value, to_type);
}

Value* FloatToInteger(Step& step, Value* value, Type to) {
  // Clamped to the destination's range, NaN to 0, with or without .sat.
  value = RoundToInteger(step, value);
  return step.ir().CreateIntrinsic(
      ptx::IsSigned(to) ? llvm::Intrinsic::fptosi_sat : llvm::Intrinsic::fptoui_sat,
      {step.f.IrType(to), value->getType()}, {value});
}

Value* IntegerToFloat(Step& step, Value* value, Type to, Type from) {
  llvm::IRBuilder<>& ir = step.ir();
  if (HasDirectedRounding(step)) {
    if (to != Type::kF32 && to != Type::kF64) {
      step.Unsupported();
      return llvm::Constant::getNullValue(step.f.IrType(to));
    }
    const bool is_signed = ptx::IsSigned(from);
    Value* wide =
        is_signed ? ir.CreateSExt(value, ir.getInt64Ty()) : ir.CreateZExt(value, ir.getInt64Ty());
    return DirectedOperation(step, is_signed ? "from_s64" : "from_u64", to, {wide});
  }
  llvm::Type* type = step.f.IrType(to);
  return ptx::IsSigned(from) ? ir.CreateSIToFP(value, type) : ir.CreateUIToFP(value, type);
}

// A double to a float, an inexact one to the odd neighbour. A further rounding to 16 bits then
// gives what one rounding of the double would: 24 bits are more than twice the 11 of a half.
Value* NarrowToOdd(Step& step, Value* value) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* nearest = ir.CreateFPTrunc(value, ir.getFloatTy());
  Value* back = ir.CreateFPExt(nearest, value->getType());
  Value* grew = ir.CreateFCmpOGT(ir.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, back),
                                 ir.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, value));
  Value* bits = ir.CreateBitCast(nearest, ir.getInt32Ty());
  bits = ir.CreateSub(bits, ir.CreateZExt(grew, ir.getInt32Ty()));
  Value* inexact = ir.CreateZExt(ir.CreateFCmpONE(back, value), ir.getInt32Ty());
  return ir.CreateBitCast(ir.CreateOr(bits, inexact), ir.getFloatTy());
}

Value* FloatToFloat(Step& step, Value* value, Type to, Type from) {
  llvm::IRBuilder<>& ir = step.ir();
  llvm::Type* type = step.f.IrType(to);
  if (IsIntegerRounding(step)) value = RoundToInteger(step, value);
  if (to == from) return value;
  const uint32_t to_bits = ptx::TypeBits(to);
  const uint32_t from_bits = ptx::TypeBits(from);
  if (to_bits > from_bits) return ir.CreateFPExt(value, type);
  if (to_bits == from_bits) {
    // f16 and bf16: by way of float, which holds both.
    return ir.CreateFPTrunc(ir.CreateFPExt(value, ir.getFloatTy()), type);
  }
  if (from == Type::kF64 && to_bits == 16) {
    value = NarrowToOdd(step, value);
    from = Type::kF32;
  }
  if (!HasDirectedRounding(step)) return ir.CreateFPTrunc(value, type);
  if (from == Type::kF64 && to == Type::kF32) {
    return DirectedOperation(step, "from_double", Type::kF32, {value});
  }
  if (from == Type::kF32 && step.Has("rz")) {
    // Round to zero by hand: round to nearest, and step back if that grew the magnitude.
    Value* nearest = ir.CreateFPTrunc(value, type);
    Value* back = ir.CreateFPExt(nearest, value->getType());
    Value* grew = ir.CreateFCmpOGT(ir.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, back),
                                   ir.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, value));
    Value* bits = ir.CreateBitCast(nearest, step.f.IntType(to_bits));
    Value* lower = ir.CreateSub(bits, llvm::ConstantInt::get(bits->getType(), 1));
    return ir.CreateBitCast(ir.CreateSelect(grew, lower, bits), type);
  }
  step.Unsupported();
  return llvm::Constant::getNullValue(type);
}

// cvt.rn.f16x2.f32 d, a, b: a into the high half, b into the low one.
void EmitPackedCvt(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const Type to = step.types[0];
  if ((to != Type::kF16x2 && to != Type::kBf16x2) || step.types[1] != Type::kF32 ||
      step.operand_count() != 3 || step.Has("satfinite")) {
    return step.Unsupported();
  }
  const Type part = to == Type::kF16x2 ? Type::kF16 : Type::kBf16;
  Value* result = llvm::PoisonValue::get(step.f.IrType(to));
  for (uint64_t i = 0; i < 2; ++i) {
    Value* value = FloatToFloat(step, step.Read(2 - i, Type::kF32), part, Type::kF32);
    if (step.Has("relu")) value = ClampBelowZero(step, value);
    result = ir.CreateInsertElement(result, value, i);
  }
  step.Write(0, to, result);
}

}  // namespace

void EmitCvt(Step& step) {
  if (step.types.size() != 2) return step.Unsupported();
  const Type to = step.types[0];
  const Type from = step.types[1];
  if (step.operand_count() == 3 || ptx::TypeName(to).ends_with("x2") ||
      ptx::TypeName(from).ends_with("x2")) {
    return EmitPackedCvt(step);
  }
  if (step.Has("rna") || step.Has("satfinite")) return step.Unsupported();
  Value* value = step.Read(1, from);
  if (step.Has("ftz")) value = FlushSubnormal(step, value);
  Value* result = nullptr;
  if (!ptx::IsFloat(from) && !ptx::IsFloat(to)) {
    result = IntegerToInteger(step, value, to, from);
  } else if (ptx::IsFloat(from) && !ptx::IsFloat(to)) {
    if (!IsIntegerRounding(step)) return step.Unsupported();
    result = FloatToInteger(step, value, to);
  } else if (!ptx::IsFloat(from)) {
    if (step.OneOf("rn rz rm rp").empty()) return step.Unsupported();
    result = IntegerToFloat(step, value, to, from);
  } else {
    result = FloatToFloat(step, value, to, from);
  }
  if (ptx::IsFloat(to)) {
    if (step.Has("ftz")) result = FlushSubnormal(step, result);
    if (step.Has("relu")) result = ClampBelowZero(step, result);
    if (step.Has("sat")) result = Saturate(step, result);
  }
  step.Write(0, to, result);
}

void EmitCvta(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* address = step.Read(1, Type::kU64);
  if (step.space() == ptx::Space::kRegister) return step.Unsupported();
  if (step.space() != ptx::Space::kShared) {
    // Global, const, local and param addresses are generic ones already.
    step.Write(0, step.type(), ir.CreateZExtOrTrunc(address, step.f.IrType(step.type())));
    return;
  }
  Value* base = step.f.SharedBase();
  Value* result = step.Has("to") ? ir.CreateSub(address, base)
                                 : ir.CreateAdd(ir.CreateAnd(address, 0xFFFFFFFF), base);
  step.Write(0, step.type(), ir.CreateZExtOrTrunc(result, step.f.IrType(step.type())));
}

void EmitIsSpace(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* address = step.Read(1, Type::kU64);
  auto within = [&](Value* low, Value* bytes) {
    return ir.CreateICmpULT(ir.CreateSub(address, low), bytes);
  };
  Value* is_shared = within(step.f.SharedBase(), ir.getInt64(uint64_t{1} << 32));
  Value* stack_low = step.f.Field(offsetof(ThreadContext, stack_low), 64);
  Value* stack_high = step.f.Field(offsetof(ThreadContext, stack_high), 64);
  Value* is_local = within(stack_low, ir.CreateSub(stack_high, stack_low));
  Value* is_const = ir.getFalse();
  for (uint32_t i = 0; i < step.f.shared().ptx.variables.size(); ++i) {
    const ptx::Variable& variable = step.f.shared().ptx.variables[i];
    if (variable.space != ptx::Space::kConst) continue;
    is_const =
        ir.CreateOr(is_const, within(step.f.VariableAddress(i), ir.getInt64(variable.bytes)));
  }
  Value* result = nullptr;
  switch (step.space()) {
    case ptx::Space::kShared:
      result = is_shared;
      break;
    case ptx::Space::kLocal:
      result = is_local;
      break;
    case ptx::Space::kConst:
      result = is_const;
      break;
    case ptx::Space::kGlobal:
      result = ir.CreateNot(ir.CreateOr(is_const, ir.CreateOr(is_shared, is_local)));
      break;
    default:
      return step.Unsupported();
  }
  step.Write(0, Type::kPred, result);
}

void EmitMove(Step& step) {
  step.f.WritePacked(step.operand(0), step.type(), step.f.ReadPacked(step.operand(1), step.type()));
}

}  // namespace consort::cpu
