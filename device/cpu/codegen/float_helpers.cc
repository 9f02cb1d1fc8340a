// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/float_helpers.h"

#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "device/cpu/engine/runtime.h"

namespace consort::cpu {

using llvm::Value;

Value* FlushSubnormal(Step& step, Value* value) {
  llvm::IRBuilder<>& ir = step.ir();
  llvm::Type* type = value->getType();
  llvm::Type* scalar = type->getScalarType();
  if (!scalar->isFloatTy() && !scalar->isHalfTy()) return value;
  Value* smallest_normal =
      llvm::ConstantFP::get(type, llvm::APFloat::getSmallestNormalized(scalar->getFltSemantics()));
  Value* magnitude = ir.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, value);
  Value* zero = ir.CreateBinaryIntrinsic(llvm::Intrinsic::copysign,
                                         llvm::Constant::getNullValue(type), value);
  return ir.CreateSelect(ir.CreateFCmpOLT(magnitude, smallest_normal), zero, value);
}

Value* Saturate(Step& step, Value* value) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* zero = llvm::ConstantFP::get(value->getType(), 0.0);
  Value* one = llvm::ConstantFP::get(value->getType(), 1.0);
  // Ordered: a NaN fails the comparison and becomes 0.
  Value* low = ir.CreateSelect(ir.CreateFCmpOGT(value, zero), value, zero);
  return ir.CreateSelect(ir.CreateFCmpOLT(low, one), low, one);
}

Value* ClampBelowZero(Step& step, Value* value) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* zero = llvm::ConstantFP::get(value->getType(), 0.0);
  return ir.CreateSelect(ir.CreateFCmpOLE(value, zero), zero, value);
}

namespace {

// The integers, or vectors of them, that have the bits of a float type.
llvm::Type* BitsType(Step& step, llvm::Type* type) {
  return WithScalar(type, step.f.IntType(static_cast<uint32_t>(type->getScalarSizeInBits())));
}

}  // namespace

Value* NarrowFloat(Step& step, Value* value, llvm::Type* to) {
  llvm::IRBuilder<>& ir = step.ir();
  if (!to->getScalarType()->isBFloatTy()) return ir.CreateFPTrunc(value, to);
  llvm::Type* wide = BitsType(step, value->getType());
  auto number = [&](uint64_t bits) { return llvm::ConstantInt::get(wide, bits); };
  Value* bits = ir.CreateBitCast(value, wide);
  Value* odd = ir.CreateAnd(ir.CreateLShr(bits, number(16)), number(1));
  Value* rounded = ir.CreateLShr(ir.CreateAdd(bits, ir.CreateAdd(odd, number(0x7FFF))), number(16));
  rounded = ir.CreateSelect(ir.CreateFCmpUNO(value, value), number(0x7FFF), rounded);
  return ir.CreateBitCast(ir.CreateTrunc(rounded, BitsType(step, to)), to);
}

llvm::Type* WithScalar(llvm::Type* type, llvm::Type* scalar) {
  if (auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(type)) {
    return llvm::FixedVectorType::get(scalar, vector->getNumElements());
  }
  return scalar;
}

Value* NarrowToOdd(Step& step, Value* value) {
  llvm::IRBuilder<>& ir = step.ir();
  llvm::Type* narrow = WithScalar(value->getType(), ir.getFloatTy());
  llvm::Type* integer = WithScalar(value->getType(), ir.getInt32Ty());
  Value* nearest = ir.CreateFPTrunc(value, narrow);
  Value* back = ir.CreateFPExt(nearest, value->getType());
  Value* grew = ir.CreateFCmpOGT(ir.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, back),
                                 ir.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, value));
  Value* bits = ir.CreateBitCast(nearest, integer);
  bits = ir.CreateSub(bits, ir.CreateZExt(grew, integer));
  Value* inexact = ir.CreateZExt(ir.CreateFCmpONE(back, value), integer);
  return ir.CreateBitCast(ir.CreateOr(bits, inexact), narrow);
}

Value* Magnitude(Step& step, Value* value) {
  llvm::IRBuilder<>& ir = step.ir();
  llvm::Type* type = value->getType();
  if (!type->getScalarType()->isBFloatTy()) {
    return ir.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, value);
  }
  llvm::Type* bits = BitsType(step, type);
  Value* cut = ir.CreateAnd(ir.CreateBitCast(value, bits), llvm::ConstantInt::get(bits, 0x7FFF));
  return ir.CreateBitCast(cut, type);
}

Value* WithSign(Step& step, Value* magnitude, Value* sign) {
  llvm::IRBuilder<>& ir = step.ir();
  llvm::Type* type = magnitude->getType();
  if (!type->getScalarType()->isBFloatTy()) {
    return ir.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, magnitude, sign);
  }
  llvm::Type* bits = BitsType(step, type);
  Value* own =
      ir.CreateAnd(ir.CreateBitCast(magnitude, bits), llvm::ConstantInt::get(bits, 0x7FFF));
  Value* other = ir.CreateAnd(ir.CreateBitCast(sign, bits), llvm::ConstantInt::get(bits, 0x8000));
  return ir.CreateBitCast(ir.CreateOr(own, other), type);
}

namespace {

// coefficients[0] + x * (coefficients[1] + ...)
Value* Polynomial(llvm::IRBuilder<>& ir, Value* x, std::initializer_list<double> coefficients) {
  Value* sum = nullptr;
  for (auto at = std::rbegin(coefficients); at != std::rend(coefficients); ++at) {
    Value* coefficient = llvm::ConstantFP::get(x->getType(), *at);
    sum = sum == nullptr
              ? coefficient
              : ir.CreateIntrinsic(llvm::Intrinsic::fma, {x->getType()}, {sum, x, coefficient});
  }
  return sum;
}

constexpr uint32_t kMantissaBits = 23;
constexpr uint32_t kExponentBias = 127;

}  // namespace

Value* Exp2(Step& step, Value* value) {
  llvm::IRBuilder<>& ir = step.ir();
  llvm::Type* type = value->getType();
  llvm::Type* bits_type = ir.getInt32Ty();
  auto real = [&](double number) { return llvm::ConstantFP::get(type, number); };
  // Beyond these the result is zero or infinite. NaN fails the comparisons and stays.
  value = ir.CreateSelect(ir.CreateFCmpOLT(value, real(-160)), real(-160), value);
  value = ir.CreateSelect(ir.CreateFCmpOGT(value, real(130)), real(130), value);
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
  constexpr double kShift = 12582912;
  Value* shifted = ir.CreateFAdd(value, real(kShift));
  Value* fraction = ir.CreateFSub(value, ir.CreateFSub(shifted, real(kShift)));
  Value* whole =
      ir.CreateSub(ir.CreateBitCast(shifted, bits_type), ir.CreateBitCast(real(kShift), bits_type));
  // (2^x - 1) / x on [-1/2, 1/2], interpolated at Chebyshev's points; error 2^-26.
  Value* slope = Polynomial(ir, fraction,
                            {0.6931471880262288, 0.24022650760568126, 0.05550357114219078,
                             0.009618082557277852, 0.0013390863364671234, 0.0001545316294512069});
  Value* power = ir.CreateIntrinsic(llvm::Intrinsic::fma, {type}, {slope, fraction, real(1)});
  // In two steps, so that subnormal and infinite results are rounded once.
  Value* half = ir.CreateAShr(whole, 1);
  for (Value* part : {half, ir.CreateSub(whole, half)}) {
    Value* exponent = ir.CreateShl(ir.CreateAdd(part, ir.getInt32(kExponentBias)), kMantissaBits);
    power = ir.CreateFMul(power, ir.CreateBitCast(exponent, type));
  }
  return power;
}

Value* Log2(Step& step, Value* value) {
  llvm::IRBuilder<>& ir = step.ir();
  llvm::Type* type = value->getType();
  auto real = [&](double number) { return llvm::ConstantFP::get(type, number); };
  Value* is_small = ir.CreateFCmpOLT(value, real(0x1p-126));
  Value* normal = ir.CreateSelect(is_small, ir.CreateFMul(value, real(0x1p23)), value);
  // value = 2^exponent * (1 + x), with 1 + x from sqrt(1/2) to sqrt(2).
  Value* bits = ir.CreateBitCast(normal, ir.getInt32Ty());
  Value* root_half = ir.getInt32(0x3F3504F3);
  Value* exponent = ir.CreateAShr(ir.CreateSub(bits, root_half), kMantissaBits);
  Value* mantissa = ir.CreateSub(bits, ir.CreateShl(exponent, kMantissaBits));
  Value* x = ir.CreateFSub(ir.CreateBitCast(mantissa, type), real(1));
  exponent =
      ir.CreateSub(exponent, ir.CreateSelect(is_small, ir.getInt32(kMantissaBits), ir.getInt32(0)));
  // log2(1 + x) / x, interpolated at Chebyshev's points; error 2^-27.
  Value* slope =
      Polynomial(ir, x,
                 {1.4426950399991885, -0.7213473544789053, 0.4808985203240642, -0.3606965418075051,
                  0.28855256143746744, -0.23960812190957284, 0.2048576477862193,
                  -0.1913883765667254, 0.1847603336518138, -0.10749789418083205});
  Value* result =
      ir.CreateIntrinsic(llvm::Intrinsic::fma, {type}, {slope, x, ir.CreateSIToFP(exponent, type)});
  Value* passes = ir.CreateFCmpUEQ(value, llvm::ConstantFP::getInfinity(type));  // or NaN
  result = ir.CreateSelect(passes, value, result);
  result =
      ir.CreateSelect(ir.CreateFCmpOLT(value, real(0)), llvm::ConstantFP::getNaN(type), result);
  return ir.CreateSelect(ir.CreateFCmpOEQ(value, real(0)),
                         llvm::ConstantFP::getInfinity(type, true), result);
}

bool HasDirectedRounding(const Step& step) { return !step.OneOf("rz rm rp").empty(); }

Value* DirectedOperation(Step& step, std::string_view operation, ptx::Type type,
                         std::initializer_list<Value*> arguments) {
  const std::string_view name = step.OneOf("rz rm rp");
  const Rounding mode = name == "rz"   ? Rounding::kZero
                        : name == "rm" ? Rounding::kDown
                                       : Rounding::kUp;
  llvm::Type* result = step.f.IrType(type);
  const std::string function =
      absl::StrCat("consort_rt_", absl::string_view(operation.data(), operation.size()),
                   type == ptx::Type::kF32 ? "_f32" : "_f64");
  std::vector<Value*> values(arguments);
  values.push_back(step.ir().getInt32(static_cast<uint32_t>(mode)));
  return step.f.CallRuntime(function, result, values);
}

}  // namespace consort::cpu
