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

void WriteFinished(Step& step, Value* result) {
  if (step.Has("ftz")) result = FlushSubnormal(step, result);
  if (step.Has("relu")) result = ClampBelowZero(step, result);
  if (step.Has("sat")) result = Saturate(step, result);
  step.Write(result);
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
  Value* a = ReadFlushed(step, 1);
  Value* b = ReadFlushed(step, 2);
  Value* result = nullptr;
  if (HasDirectedRounding(step)) {
    if (!IsDirectable(step.type())) return step.Unsupported();
    result = DirectedOperation(step, opcode, step.type(), {a, b});
  } else {
    result = opcode == "add"   ? ir.CreateFAdd(a, b)
             : opcode == "sub" ? ir.CreateFSub(a, b)
                               : ir.CreateFMul(a, b);
  }
  WriteFinished(step, result);
}

void EmitFma(Step& step) {
  Value* a = ReadFlushed(step, 1);
  Value* b = ReadFlushed(step, 2);
  Value* c = ReadFlushed(step, 3);
  Value* result = nullptr;
  if (HasDirectedRounding(step)) {
    if (!IsDirectable(step.type())) return step.Unsupported();
    result = DirectedOperation(step, "fma", step.type(), {a, b, c});
  } else {
    result = step.ir().CreateIntrinsic(llvm::Intrinsic::fma, {a->getType()}, {a, b, c});
  }
  WriteFinished(step, result);
}

void EmitFloatDivide(Step& step) {
  if (step.OneOf("approx full rn rz rm rp").empty()) return step.Unsupported();
  Value* a = ReadFlushed(step, 1);
  Value* b = ReadFlushed(step, 2);
  WriteFinished(step, HasDirectedRounding(step)
                          ? DirectedOperation(step, "div", step.type(), {a, b})
                          : step.ir().CreateFDiv(a, b));
}

void EmitFloatAbsNeg(Step& step) {
  Value* a = ReadFlushed(step, 1);
  step.Write(step.instruction.opcode == "neg"
                 ? step.ir().CreateFNeg(a)
                 : step.ir().CreateUnaryIntrinsic(llvm::Intrinsic::fabs, a));
}

void EmitFloatMinMax(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const bool is_min = step.instruction.opcode == "min";
  Value* a = ReadFlushed(step, 1);
  Value* b = ReadFlushed(step, 2);
  llvm::Type* type = a->getType();
  Value* sign = nullptr;
  if (step.Has("xorsign")) {
    sign = ir.CreateFMul(
        ir.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, llvm::ConstantFP::get(type, 1.0), a),
        ir.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, llvm::ConstantFP::get(type, 1.0), b));
    a = ir.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, a);
    b = ir.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, b);
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
  if (sign != nullptr) {
    result = ir.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, result, sign);
  }
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
    return value->getType()->isFloatTy() ? result : ir.CreateFPTrunc(result, value->getType());
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
                           : what == "normal"     ? llvm::fcNormal
                                                  : llvm::fcSubnormal;
  if (what.empty()) return step.Unsupported();
  step.Write(0, Type::kPred, ir.createIsFPClass(a, classes));
}

}  // namespace consort::cpu
