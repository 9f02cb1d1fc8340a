// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/emit_float.cc: floating point arithmetic.
//
// No fast-math flag is ever set: LLVM then neither reassociates nor contracts. Approximate
// functions are computed with more precision than the ISA's bounds ask for. Source: PTX
// ISA 9.0, 9.7.3 to 9.7.5.
#include "device/cpu/codegen/emit.h"
#include "device/cpu/codegen/float_helpers.h"

namespace consort::cpu {
namespace {

using llvm::Value;
using ptx::Type;

bool IsDirectable(Type type) { return type == Type::kF32 || type == Type::kF64; }

// Operand `index`, flushed if .ftz is given.
Value* ReadFlushed(Step& step, size_t index) {
  Value* value = step.Read(index);
  return step.Has("ftz") ? FlushSubnormal(step, value) : value;
}

// Results in subnormal range become zeros before they are rounded up to a normal number: `tiny`
// says which, where that makes a difference.
void WriteFinished(Step& step, Value* result, Value* tiny = nullptr) {
  llvm::IRBuilder<>& ir = step.ir();
  if (step.Has("ftz")) {
    result =
        tiny == nullptr
            ? FlushSubnormal(step, result)
            : ir.CreateSelect(
                  tiny, WithSign(step, llvm::Constant::getNullValue(result->getType()), result),
                  result);
  }
  if (step.Has("relu")) result = ClampBelowZero(step, result);
  if (step.Has("sat")) result = Saturate(step, result);
  step.Write(result);
}

Value* Below(Step& step, Value* value, double limit) {
  return step.ir().CreateFCmpOLT(Magnitude(step, value),
                                 llvm::ConstantFP::get(value->getType(), limit));
}

// Floats are made 2^24 times as large to see how small a result is that has no smallest exponent.
constexpr double kScale = 0x1p24;
constexpr double kScaledNormal = 0x1p-102;
// Exact results below round to subnormal halves, if there were no smallest exponent.
constexpr double kTinyHalf = 0x1p-14 - 0x1p-26;

Value* Scaled(Step& step, Value* value) {
  return step.ir().CreateFMul(value, llvm::ConstantFP::get(value->getType(), kScale));
}

bool IsHalf(Type type) { return type == Type::kF16 || type == Type::kF16x2; }
bool IsBfloat(Type type) { return type == Type::kBf16 || type == Type::kBf16x2; }

// `sum`, rounded from the exact sum of itself and `error`, to the odd neighbour where it is
// inexact: a further rounding to less than half of the bits is then the only one.
Value* ToOdd(Step& step, Value* sum, Value* error) {
  llvm::IRBuilder<>& ir = step.ir();
  llvm::Type* type = sum->getType();
  llvm::Type* bits_type =
      WithScalar(type, step.f.IntType(static_cast<uint32_t>(type->getScalarSizeInBits())));
  auto number = [&](int64_t value) { return llvm::ConstantInt::getSigned(bits_type, value); };
  Value* bits = ir.CreateBitCast(sum, bits_type);
  Value* inexact = ir.CreateFCmpONE(error, llvm::Constant::getNullValue(type));
  Value* even = ir.CreateICmpEQ(ir.CreateAnd(bits, number(1)), number(0));
  Value* grows =
      ir.CreateICmpSGE(ir.CreateXor(bits, ir.CreateBitCast(error, bits_type)), number(0));
  Value* moved = ir.CreateAdd(bits, ir.CreateSelect(grows, number(1), number(-1)));
  return ir.CreateBitCast(ir.CreateSelect(ir.CreateAnd(inexact, even), moved, bits), type);
}

// a * b + c of 16-bit floats, in a type that has each product exactly, rounded to odd.
Value* FmaToOdd(Step& step, Value* a, Value* b, Value* c, llvm::Type* wide) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* product = ir.CreateFMul(ir.CreateFPExt(a, wide), ir.CreateFPExt(b, wide));
  Value* addend = ir.CreateFPExt(c, wide);
  Value* sum = ir.CreateFAdd(product, addend);
  // The error of a sum. Source: Knuth, The Art of Computer Programming, volume 2, 4.2.2, theorem B.
  Value* part = ir.CreateFSub(sum, product);
  Value* error =
      ir.CreateFAdd(ir.CreateFSub(product, ir.CreateFSub(sum, part)), ir.CreateFSub(addend, part));
  return ToOdd(step, sum, error);
}

// 1 / sqrt(x) through double, which keeps the error of the float result within half a unit and a
// bit.
Value* ReciprocalSquareRoot(Step& step, Value* value) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* wide = value->getType()->isFloatTy() ? ir.CreateFPExt(value, ir.getDoubleTy()) : value;
  Value* root = ir.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, wide);
  Value* result = ir.CreateFDiv(llvm::ConstantFP::get(ir.getDoubleTy(), 1.0), root);
  return value->getType()->isFloatTy() ? ir.CreateFPTrunc(result, ir.getFloatTy()) : result;
}

}  // namespace

void EmitFloatAdd(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const std::string_view opcode = step.instruction.opcode;
  const Type type = step.type();
  Value* a = ReadFlushed(step, 1);
  Value* b = ReadFlushed(step, 2);
  if (HasDirectedRounding(step) && !IsDirectable(type)) return step.Unsupported();
  auto operate = [&](Value* x, Value* y) {
    if (HasDirectedRounding(step)) return DirectedOperation(step, opcode, type, {x, y});
    return opcode == "add"   ? ir.CreateFAdd(x, y)
           : opcode == "sub" ? ir.CreateFSub(x, y)
                             : ir.CreateFMul(x, y);
  };
  // Sums that are tiny are exact.
  const bool rounds_tiny = opcode == "mul" && step.Has("ftz");
  if (IsBfloat(type) || (IsHalf(type) && rounds_tiny)) {
    // Float has more than twice the bits, so that rounding twice is rounding once.
    llvm::Type* wide = WithScalar(a->getType(), ir.getFloatTy());
    Value* result = operate(ir.CreateFPExt(a, wide), ir.CreateFPExt(b, wide));
    Value* tiny = rounds_tiny ? Below(step, result, kTinyHalf) : nullptr;
    WriteFinished(step, NarrowFloat(step, result, a->getType()), tiny);
    return;
  }
  Value* tiny = rounds_tiny ? Below(step, operate(Scaled(step, a), b), kScaledNormal) : nullptr;
  WriteFinished(step, operate(a, b), tiny);
}

void EmitFma(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const Type type = step.type();
  Value* a = ReadFlushed(step, 1);
  Value* b = ReadFlushed(step, 2);
  Value* c = ReadFlushed(step, 3);
  if (HasDirectedRounding(step) && !IsDirectable(type)) return step.Unsupported();
  if (IsHalf(type)) {
    Value* odd = FmaToOdd(step, a, b, c, WithScalar(a->getType(), ir.getFloatTy()));
    WriteFinished(step, NarrowFloat(step, odd, a->getType()), Below(step, odd, kTinyHalf));
    return;
  }
  if (IsBfloat(type)) {
    Value* odd = FmaToOdd(step, a, b, c, WithScalar(a->getType(), ir.getDoubleTy()));
    WriteFinished(step, NarrowFloat(step, NarrowToOdd(step, odd), a->getType()));
    return;
  }
  auto operate = [&](Value* x, Value* y, Value* z) {
    if (HasDirectedRounding(step)) return DirectedOperation(step, "fma", type, {x, y, z});
    return static_cast<Value*>(ir.CreateIntrinsic(llvm::Intrinsic::fma, {x->getType()}, {x, y, z}));
  };
  Value* tiny = step.Has("ftz")
                    ? Below(step, operate(Scaled(step, a), b, Scaled(step, c)), kScaledNormal)
                    : nullptr;
  WriteFinished(step, operate(a, b, c), tiny);
}

void EmitFloatDivide(Step& step) {
  if (step.OneOf("approx full rn rz rm rp").empty()) return step.Unsupported();
  Value* a = ReadFlushed(step, 1);
  Value* b = ReadFlushed(step, 2);
  if (!HasDirectedRounding(step)) return WriteFinished(step, step.ir().CreateFDiv(a, b));
  auto operate = [&](Value* x) { return DirectedOperation(step, "div", step.type(), {x, b}); };
  Value* tiny = step.Has("ftz") ? Below(step, operate(Scaled(step, a)), kScaledNormal) : nullptr;
  WriteFinished(step, operate(a), tiny);
}

void EmitFloatAbsNeg(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* a = ReadFlushed(step, 1);
  if (step.instruction.opcode == "abs") return step.Write(Magnitude(step, a));
  if (!IsBfloat(step.type())) return step.Write(ir.CreateFNeg(a));
  llvm::Type* bits = WithScalar(a->getType(), ir.getInt16Ty());
  Value* turned = ir.CreateXor(ir.CreateBitCast(a, bits), llvm::ConstantInt::get(bits, 0x8000));
  step.Write(ir.CreateBitCast(turned, a->getType()));
}

void EmitFloatMinMax(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const bool is_min = step.instruction.opcode == "min";
  Value* a = ReadFlushed(step, 1);
  Value* b = ReadFlushed(step, 2);
  llvm::Type* type = a->getType();
  Value* sign = nullptr;
  if (step.Has("xorsign")) {
    llvm::Type* bits =
        WithScalar(type, step.f.IntType(static_cast<uint32_t>(type->getScalarSizeInBits())));
    sign =
        ir.CreateBitCast(ir.CreateXor(ir.CreateBitCast(a, bits), ir.CreateBitCast(b, bits)), type);
    a = Magnitude(step, a);
    b = Magnitude(step, b);
  }
  Value* a_wins = is_min ? ir.CreateFCmpOLT(a, b) : ir.CreateFCmpOGT(a, b);
  Value* result = ir.CreateSelect(a_wins, a, b);
  // Equal: -0.0 is below +0.0, so min joins the sign bits with or, max with and.
  llvm::Type* bits_type = step.f.IntType(static_cast<uint32_t>(type->getScalarSizeInBits()));
  if (auto* vector = llvm::dyn_cast<llvm::VectorType>(type)) {
    bits_type = llvm::VectorType::getInteger(vector);
  }
  Value* a_bits = ir.CreateBitCast(a, bits_type);
  Value* b_bits = ir.CreateBitCast(b, bits_type);
  Value* joined = is_min ? ir.CreateOr(a_bits, b_bits) : ir.CreateAnd(a_bits, b_bits);
  result = ir.CreateSelect(ir.CreateFCmpOEQ(a, b), ir.CreateBitCast(joined, type), result);
  // One NaN: the other operand, or with .NaN a NaN. Two: a NaN.
  Value* a_is_nan = ir.CreateFCmpUNO(a, a);
  Value* b_is_nan = ir.CreateFCmpUNO(b, b);
  llvm::Constant* nan = llvm::ConstantFP::getNaN(type);
  if (step.Has("NaN")) {
    result = ir.CreateSelect(ir.CreateOr(a_is_nan, b_is_nan), nan, result);
  } else {
    result = ir.CreateSelect(b_is_nan, a, result);
    result = ir.CreateSelect(a_is_nan, b, result);
    result = ir.CreateSelect(ir.CreateAnd(a_is_nan, b_is_nan), nan, result);
  }
  if (sign != nullptr) result = WithSign(step, result, sign);
  step.Write(result);
}

void EmitCopysign(Step& step) {
  // copysign d, a, b: the sign of a on the magnitude of b (9.7.3.2).
  step.Write(
      step.ir().CreateBinaryIntrinsic(llvm::Intrinsic::copysign, step.Read(2), step.Read(1)));
}

void EmitReciprocal(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  if (step.OneOf("approx rn rz rm rp").empty()) return step.Unsupported();
  Value* a = ReadFlushed(step, 1);
  if (step.instruction.opcode == "rsqrt") {
    WriteFinished(step, ReciprocalSquareRoot(step, a));
    return;
  }
  Value* one = llvm::ConstantFP::get(a->getType(), 1.0);
  WriteFinished(step, HasDirectedRounding(step)
                          ? DirectedOperation(step, "div", step.type(), {one, a})
                          : ir.CreateFDiv(one, a));
}

void EmitSquareRoot(Step& step) {
  if (step.OneOf("approx rn rz rm rp").empty()) return step.Unsupported();
  if (step.type() == Type::kF64 && step.Has("approx")) return step.Unsupported();
  Value* a = ReadFlushed(step, 1);
  WriteFinished(step, HasDirectedRounding(step)
                          ? DirectedOperation(step, "sqrt", step.type(), {a})
                          : step.ir().CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, a));
}

void EmitTranscendental(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  if (!step.Has("approx")) return step.Unsupported();
  const std::string_view opcode = step.instruction.opcode;
  Value* a = ReadFlushed(step, 1);
  auto call = [&](Value* value) {
    Value* wide = value->getType()->isFloatTy() ? value : ir.CreateFPExt(value, ir.getFloatTy());
    Value* result = opcode == "ex2"   ? Exp2(step, wide)
                    : opcode == "lg2" ? Log2(step, wide)
                                      : step.f.CallRuntime(opcode == "sin"   ? "sinf"
                                                           : opcode == "cos" ? "cosf"
                                                                             : "tanhf",
                                                           ir.getFloatTy(), {wide});
    return value->getType()->isFloatTy() ? result : NarrowFloat(step, result, value->getType());
  };
  if (!a->getType()->isVectorTy()) {
    WriteFinished(step, call(a));
    return;
  }
  Value* result = llvm::PoisonValue::get(a->getType());
  for (uint64_t i = 0; i < 2; ++i) {
    result = ir.CreateInsertElement(result, call(ir.CreateExtractElement(a, i)), i);
  }
  WriteFinished(step, result);
}

void EmitTestp(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* a = step.Read(1);
  const std::string_view what = step.OneOf("finite infinite number notanumber normal subnormal");
  const unsigned classes = what == "finite"       ? llvm::fcFinite
                           : what == "infinite"   ? llvm::fcInf
                           : what == "number"     ? llvm::fcAllFlags & ~llvm::fcNan
                           : what == "notanumber" ? llvm::fcNan
                           // What is finite and not subnormal: zeros too, as a GPU has it.
                           : what == "normal" ? llvm::fcNormal | llvm::fcZero
                                              : llvm::fcSubnormal;
  if (what.empty()) return step.Unsupported();
  step.Write(0, Type::kPred, ir.createIsFPClass(a, classes));
}

}  // namespace consort::cpu
