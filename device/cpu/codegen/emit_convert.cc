// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/emit_convert.cc: moves, conversions, address spaces.
// Source: PTX ISA 9.0, 9.7.9.3 mov, 9.7.9.21 cvta, isspacep, cvt; 6.4, 6.5 "Type Conversion".
#include <cstddef>

#include "device/cpu/codegen/emit.h"
#include "device/cpu/codegen/float_helpers.h"
#include "device/cpu/engine/narrow.h"
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

Value* FloatToInteger(Step& step, Value* value, Type to, Type from) {
  llvm::IRBuilder<>& ir = step.ir();
  // Clamped to the destination's range, with or without .sat.
  value = RoundToInteger(step, value);
  // LLVM 19 makes the lowest integer of a NaN of 16 bits where the processor converts those itself
  // (AVX512-FP16).
  if (value->getType()->isHalfTy()) value = ir.CreateFPExt(value, ir.getFloatTy());
  Value* result = ir.CreateIntrinsic(
      ptx::IsSigned(to) ? llvm::Intrinsic::fptosi_sat : llvm::Intrinsic::fptoui_sat,
      {step.f.IrType(to), value->getType()}, {value});
  // NaN becomes 0, as the intrinsic has it, or where 64 bits are in play the highest bit alone.
  const uint32_t bits = ptx::TypeBits(to);
  if (from != Type::kF64 && bits != 64) return result;
  Value* top = ir.getInt(llvm::APInt::getSignMask(bits));
  return ir.CreateSelect(ir.CreateFCmpUNO(value, value), top, result);
}

// A double, or an integer of 64 bits, to a small float with any rounding, by the runtime.
NarrowFormat FormatOf(Type type) {
  return type == Type::kF16 ? NarrowFormat::kF16 : NarrowFormat::kBf16;
}

NarrowRounding RoundingOf(const Step& step) {
  const std::string_view name = step.OneOf("rz rm rp");
  return name == "rz"   ? NarrowRounding::kZero
         : name == "rm" ? NarrowRounding::kDown
         : name == "rp" ? NarrowRounding::kUp
                        : NarrowRounding::kNearest;
}

// The bits, as an i32. `value` is a float of any type.
Value* NarrowBits(Step& step, Value* value, NarrowFormat format) {
  llvm::IRBuilder<>& ir = step.ir();
  if (!value->getType()->isDoubleTy()) value = ir.CreateFPExt(value, ir.getDoubleTy());
  return step.f.CallRuntime("consort_rt_narrow", ir.getInt32Ty(),
                            {value, ir.getInt32(static_cast<uint32_t>(format)),
                             ir.getInt32(static_cast<uint32_t>(RoundingOf(step))),
                             ir.getInt32(step.Has("satfinite") ? 1 : 0)});
}

Value* Narrow(Step& step, Value* value, Type to) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* bits = NarrowBits(step, value, FormatOf(to));
  return ir.CreateBitCast(ir.CreateTrunc(bits, ir.getInt16Ty()), step.f.IrType(to));
}

Value* IntegerToFloat(Step& step, Value* value, Type to, Type from) {
  llvm::IRBuilder<>& ir = step.ir();
  // A float that has an integer of 16 bits exactly is a step on the way, one that rounds is none.
  const bool rounds_twice = to == Type::kBf16 && ptx::TypeBits(from) > 16;
  if (HasDirectedRounding(step) || rounds_twice) {
    const bool is_signed = ptx::IsSigned(from);
    Value* wide =
        is_signed ? ir.CreateSExt(value, ir.getInt64Ty()) : ir.CreateZExt(value, ir.getInt64Ty());
    if (to != Type::kF32 && to != Type::kF64) {
      Value* bits = step.f.CallRuntime(
          "consort_rt_narrow_integer", ir.getInt32Ty(),
          {wide, ir.getInt32(is_signed ? 1 : 0), ir.getInt32(static_cast<uint32_t>(FormatOf(to))),
           ir.getInt32(static_cast<uint32_t>(RoundingOf(step)))});
      return ir.CreateBitCast(ir.CreateTrunc(bits, ir.getInt16Ty()), step.f.IrType(to));
    }
    return DirectedOperation(step, is_signed ? "from_s64" : "from_u64", to, {wide});
  }
  if (to == Type::kBf16) {
    llvm::Type* exact = ir.getFloatTy();
    return NarrowFloat(
        step, ptx::IsSigned(from) ? ir.CreateSIToFP(value, exact) : ir.CreateUIToFP(value, exact),
        step.f.IrType(to));
  }
  llvm::Type* type = step.f.IrType(to);
  return ptx::IsSigned(from) ? ir.CreateSIToFP(value, type) : ir.CreateUIToFP(value, type);
}

Value* FloatToFloat(Step& step, Value* value, Type to, Type from) {
  llvm::IRBuilder<>& ir = step.ir();
  llvm::Type* type = step.f.IrType(to);
  if (IsIntegerRounding(step)) value = RoundToInteger(step, value);
  if (to == from) return value;
  const uint32_t to_bits = ptx::TypeBits(to);
  const uint32_t from_bits = ptx::TypeBits(from);
  if (to_bits > from_bits) return ir.CreateFPExt(value, type);
  if (to_bits == 16 && (step.Has("satfinite") ||
                        (HasDirectedRounding(step) && !(from == Type::kF32 && step.Has("rz"))))) {
    return Narrow(step, value, to);
  }
  if (to_bits == from_bits) {
    // f16 and bf16: by way of float, which holds both.
    return NarrowFloat(step, ir.CreateFPExt(value, ir.getFloatTy()), type);
  }
  if (from == Type::kF64 && to_bits == 16) {
    value = NarrowToOdd(step, value);
    from = Type::kF32;
  }
  if (!HasDirectedRounding(step)) return NarrowFloat(step, value, type);
  if (from == Type::kF64 && to == Type::kF32) {
    return DirectedOperation(step, "from_double", Type::kF32, {value});
  }
  if (from == Type::kF32) {
    // .rz by hand: round to nearest, and step back if that grew the magnitude.
    Value* nearest = NarrowFloat(step, value, type);
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

// A float with the 10 bits of mantissa that a tf32 has.
Value* RoundToTf32(Step& step, Value* value) {
  llvm::IRBuilder<>& ir = step.ir();
  constexpr uint32_t kCut = 13;
  constexpr uint32_t kLow = (1u << kCut) - 1;
  Value* bits = ir.CreateBitCast(value, ir.getInt32Ty());
  if (step.Has("rna")) {
    bits = ir.CreateAdd(bits, ir.getInt32(1u << (kCut - 1)));
  } else if (!step.Has("rz")) {
    Value* odd = ir.CreateAnd(ir.CreateLShr(bits, kCut), 1);
    bits = ir.CreateAdd(bits, ir.CreateAdd(odd, ir.getInt32(kLow >> 1)));
  }
  Value* rounded = ir.CreateBitCast(ir.CreateAnd(bits, ir.getInt32(~kLow)), ir.getFloatTy());
  // Adding would have made another number of a NaN. An H200 only cuts those of .rna, which makes
  // infinities of some.
  Value* nan = llvm::ConstantFP::getNaN(ir.getFloatTy());
  if (step.Has("rna")) {
    nan =
        ir.CreateBitCast(ir.CreateAnd(ir.CreateBitCast(value, ir.getInt32Ty()), ir.getInt32(~kLow)),
                         ir.getFloatTy());
  }
  rounded = ir.CreateSelect(ir.CreateFCmpUNO(value, value), nan, rounded);
  if (!step.Has("satfinite")) return rounded;
  constexpr double kLargest = 0x1.FFCp127;
  Value* largest = ir.CreateBinaryIntrinsic(
      llvm::Intrinsic::copysign, llvm::ConstantFP::get(ir.getFloatTy(), kLargest), value);
  Value* is_infinite = ir.CreateFCmpOEQ(ir.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, rounded),
                                        llvm::ConstantFP::getInfinity(ir.getFloatTy()));
  return ir.CreateSelect(is_infinite, largest, rounded);
}

// cvt.rn.f16x2.f32 d, a, b: a into the high half, b into the low one.
void EmitPackedCvt(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const Type to = step.types[0];
  if ((to != Type::kF16x2 && to != Type::kBf16x2) || step.types[1] != Type::kF32 ||
      step.operand_count() != 3) {
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
  if (step.Has("rna")) return step.Unsupported();
  if (step.Has("satfinite") && (from != Type::kF32 || ptx::TypeBits(to) != 16)) {
    return step.Unsupported();
  }
  Value* value = step.Read(1, from);
  // .ftz is about floats of 32 bits alone, and not where they become halves.
  if (step.Has("ftz") && from == Type::kF32 && to != Type::kF16) {
    value = FlushSubnormal(step, value);
  }
  Value* result = nullptr;
  if (!ptx::IsFloat(from) && !ptx::IsFloat(to)) {
    result = IntegerToInteger(step, value, to, from);
  } else if (ptx::IsFloat(from) && !ptx::IsFloat(to)) {
    if (!IsIntegerRounding(step)) return step.Unsupported();
    result = FloatToInteger(step, value, to, from);
  } else if (!ptx::IsFloat(from)) {
    if (step.OneOf("rn rz rm rp").empty()) return step.Unsupported();
    result = IntegerToFloat(step, value, to, from);
  } else {
    result = FloatToFloat(step, value, to, from);
  }
  if (ptx::IsFloat(to)) {
    if (step.Has("ftz") && to == Type::kF32) result = FlushSubnormal(step, result);
    if (step.Has("relu")) result = ClampBelowZero(step, result);
    if (step.Has("sat")) result = Saturate(step, result);
  }
  step.Write(0, to, result);
}

void EmitCvtTf32(Step& step) {
  if (step.OneOf("rna rn rz").empty() || step.operand_count() != 2) return step.Unsupported();
  Value* result = RoundToTf32(step, step.Read(1, Type::kF32));
  if (step.Has("relu")) result = ClampBelowZero(step, result);
  step.Write(0, Type::kF32, result);
}

// Pairs of 8-bit floats from f32 or f16x2, and f16x2 from those.
void EmitCvtFp8(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const bool is_e5m2 = step.Has("e5m2x2");
  const NarrowFormat format = is_e5m2 ? NarrowFormat::kE5m2 : NarrowFormat::kE4m3;
  const std::string_view first = step.instruction.modifiers.back();
  if (first == "e4m3x2" || first == "e5m2x2") {
    if (step.type() != Type::kF16x2 || step.operand_count() != 2) return step.Unsupported();
    Value* bits =
        step.f.CallRuntime("consort_rt_widen_fp8", ir.getInt32Ty(),
                           {step.Read(1, Type::kU32), ir.getInt32(static_cast<uint32_t>(format))});
    Value* halves = ir.CreateBitCast(bits, step.f.IrType(Type::kF16x2));
    if (step.Has("relu")) halves = ClampBelowZero(step, halves);
    step.Write(0, Type::kF16x2, halves);
    return;
  }
  const bool from_pair = step.type() == Type::kF16x2;
  if (step.operand_count() != (from_pair ? 2u : 3u) || !step.Has("satfinite")) {
    return step.Unsupported();
  }
  Value* result = nullptr;
  for (uint64_t i = 0; i < 2; ++i) {  // the first source goes into the upper byte
    Value* value = from_pair ? ir.CreateExtractElement(step.Read(1, Type::kF16x2), i)
                             : step.Read(2 - i, Type::kF32);
    if (step.Has("relu")) value = ClampBelowZero(step, value);
    Value* bits = NarrowBits(step, value, format);
    result = result == nullptr ? bits : ir.CreateOr(result, ir.CreateShl(bits, 8));
  }
  step.Write(0, Type::kB16, ir.CreateTrunc(result, ir.getInt16Ty()));
}

// cvt.pack.sat: two integers, clamped, side by side, above them the low bits of the last operand.
void EmitCvtPack(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const std::string_view name =
      step.instruction.modifiers.size() > 2 ? step.instruction.modifiers[2] : std::string_view();
  if (name.size() < 2 || !step.Has("pack") || !step.Has("sat")) return step.Unsupported();
  const bool is_signed = name[0] == 's';
  const uint32_t bits = name.substr(1) == "16"  ? 16
                        : name.substr(1) == "8" ? 8
                        : name.substr(1) == "4" ? 4
                                                : 2;
  const llvm::APInt low =
      is_signed ? llvm::APInt::getSignedMinValue(bits).sext(32) : llvm::APInt(32, 0);
  const llvm::APInt high = is_signed ? llvm::APInt::getSignedMaxValue(bits).zext(32)
                                     : llvm::APInt::getMaxValue(bits).zext(32);
  auto clamped = [&](size_t index) {
    Value* value = step.Read(index, Type::kS32);
    value = ir.CreateBinaryIntrinsic(llvm::Intrinsic::smax, value, ir.getInt(low));
    value = ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, value, ir.getInt(high));
    return ir.CreateAnd(value, ir.getInt(llvm::APInt::getLowBitsSet(32, bits)));
  };
  Value* result = ir.CreateOr(clamped(2), ir.CreateShl(clamped(1), bits));
  if (step.operand_count() == 4) {
    result = ir.CreateOr(result, ir.CreateShl(step.Read(3, Type::kB32), uint64_t{bits} * 2));
  }
  step.Write(0, Type::kB32, result);
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
    case ptx::Space::kParam:
      // Device functions are not told where the kernel's parameters are.
      if (!step.f.function().is_entry) return step.Unsupported();
      result = within(ir.CreatePtrToInt(step.f.inputs(), ir.getInt64Ty()),
                      ir.getInt64(step.f.function_layout().inputs.bytes));
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
