// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/float_helpers.h"

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
  return ir.CreateSelect(ir.CreateFCmpOLT(value, zero), zero, value);
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
