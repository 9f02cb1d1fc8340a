// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/float_helpers.h: .ftz, .sat and the rounding modes, for the emit functions.
// Source: PTX ISA 9.0, 9.7.3 "Floating-Point Instructions".
#ifndef CONSORT_DEVICE_CPU_CODEGEN_FLOAT_HELPERS_H_
#define CONSORT_DEVICE_CPU_CODEGEN_FLOAT_HELPERS_H_

#include <initializer_list>
#include <string_view>

#include "device/cpu/codegen/instruction_table.h"

namespace consort::cpu {

// A subnormal float becomes a zero of its sign; other types are left alone (.ftz is f32's only, and
// f16's, whose subnormals this device keeps: 9.7.4 asks for it where .ftz is given).
llvm::Value* FlushSubnormal(Step& step, llvm::Value* value);

// Clamps to [0, 1]; NaN becomes 0.
llvm::Value* Saturate(Step& step, llvm::Value* value);

// A float of another type, with one rounding to nearest even. Of bfloats by arithmetic of integers,
// which LLVM has for all lanes at once where x86 has no instruction that keeps subnormals.
llvm::Value* NarrowFloat(Step& step, llvm::Value* value, llvm::Type* to);

// A double to a float, an inexact one to the odd neighbour. A further rounding to 16 bits then
// gives what one rounding of the double would: 24 bits are more than twice the 11 of a half.
llvm::Value* NarrowToOdd(Step& step, llvm::Value* value);

// `type` with another scalar in it.
llvm::Type* WithScalar(llvm::Type* type, llvm::Type* scalar);

// fabs and copysign of all types; the bits of NaNs are kept.
llvm::Value* Magnitude(Step& step, llvm::Value* value);
llvm::Value* WithSign(Step& step, llvm::Value* magnitude, llvm::Value* sign);

// max(value, +0), NaN stays NaN.
llvm::Value* ClampBelowZero(Step& step, llvm::Value* value);

// 2^value and log2(value) of floats, by polynomials that LLVM can compute for many lanes at once.
// Errors: 1 unit in the last place; 2^-23, or that part of the result where it is larger.
llvm::Value* Exp2(Step& step, llvm::Value* value);
llvm::Value* Log2(Step& step, llvm::Value* value);

// True if the instruction has a directed rounding (rz, rm, rp) of its result.
bool HasDirectedRounding(const Step& step);

// Calls consort_rt_OPERATION_TYPE(arguments..., mode), which computes under another rounding mode.
// f32 and f64 only.
llvm::Value* DirectedOperation(Step& step, std::string_view operation, ptx::Type type,
                               std::initializer_list<llvm::Value*> arguments);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_CODEGEN_FLOAT_HELPERS_H_
