// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/instruction_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "tests/ptx/effect_rows.h"
#include "tests/ptx/image_rows.h"

namespace consort::ptx_suite {
namespace {

using std::string;
using std::string_view;

// --- Where results are defined ---

bool SecondIsNotZero(const uint64_t* sources) { return sources[1] != 0; }

// --- Approximations: PTX ISA 9.0, 9.7.3 "Floating Point Instructions", by instruction ---

double Divide(const double* s) { return s[0] / s[1]; }
double Reciprocal(const double* s) { return 1 / s[0]; }
double SquareRoot(const double* s) { return std::sqrt(s[0]); }
double ReciprocalRoot(const double* s) { return 1 / std::sqrt(s[0]); }
double Sine(const double* s) { return std::sin(s[0]); }
double Cosine(const double* s) { return std::cos(s[0]); }
double Log2(const double* s) { return std::log2(s[0]); }
double Exp2(const double* s) { return std::exp2(s[0]); }
double HyperbolicTangent(const double* s) { return std::tanh(s[0]); }

constexpr double kTwoPi = 6.283185307179586;

bool DivisorIsModerate(const double* s) {
  const double magnitude = std::fabs(s[1]);
  return magnitude >= 0x1p-126 && magnitude <= 0x1p126;
}
bool IsNormal(const double* s) { return std::fabs(s[0]) >= 0x1p-126; }
bool IsInTwoPi(const double* s) { return std::fabs(s[0]) <= kTwoPi; }
bool IsBetweenHalfAndTwo(const double* s) { return s[0] > 0.5 && s[0] < 2; }
bool IsOutsideHalfAndTwo(const double* s) { return !IsBetweenHalfAndTwo(s); }

constexpr Approximation kDivideApprox = {Divide, 0, 0, 2, DivisorIsModerate};
constexpr Approximation kDivideApproxFtz = {Divide, 0, 0, 2, DivisorIsModerate, true};
constexpr Approximation kDivideFull = {Divide, 0, 0, 2};
constexpr Approximation kDivideFullFtz = {Divide, 0, 0, 2, nullptr, true};
constexpr Approximation kReciprocal = {Reciprocal, 0, 0, 1};
constexpr Approximation kReciprocalFtz = {Reciprocal, 0, 0, 1, nullptr, true};
constexpr Approximation kSquareRoot = {SquareRoot, 0, 0x1p-23, 0};
constexpr Approximation kSquareRootFtz = {SquareRoot, 0, 0x1p-23, 0, nullptr, true};
// 2^-22.9
constexpr Approximation kReciprocalRoot = {ReciprocalRoot, 0, 1.2776e-7, 0};
constexpr Approximation kReciprocalRootFtz = {ReciprocalRoot, 0, 1.2776e-7, 0, nullptr, true};
// 2^-20.5
constexpr Approximation kSine = {Sine, 6.7434e-7, 0, 0, IsInTwoPi};
constexpr Approximation kSineFtz = {Sine, 6.7434e-7, 0, 0, IsInTwoPi, true};
constexpr Approximation kCosine = {Cosine, 6.7434e-7, 0, 0, IsInTwoPi};
constexpr Approximation kCosineFtz = {Cosine, 6.7434e-7, 0, 0, IsInTwoPi, true};
constexpr Approximation kLogNearOne = {Log2, 0x1p-22, 0, 0, IsBetweenHalfAndTwo};
constexpr Approximation kLog = {Log2, 0, 0x1p-22, 0, IsOutsideHalfAndTwo};
constexpr Approximation kLogFtz = {Log2, 0, 0x1p-22, 0, IsOutsideHalfAndTwo, true};
constexpr Approximation kExp = {Exp2, 0, 0, 2};
constexpr Approximation kExpFtz = {Exp2, 0, 0, 2, nullptr, true};
// 2^-9.9, with one unit more where results are subnormal.
constexpr Approximation kExpHalf = {Exp2, 0x1p-24, 1.0466e-3, 0};
constexpr Approximation kExpBfloat = {Exp2, 0, 0x1p-7, 0, nullptr, true};
constexpr Approximation kTanh = {HyperbolicTangent, 0, 0x1p-11, 0};
// 2^-10.987
constexpr Approximation kTanhHalf = {HyperbolicTangent, 4.9269e-4, 0, 0};
constexpr Approximation kTanhBfloat = {HyperbolicTangent, 0x1p-8, 0, 0};
// Called gross, without a number; the upper word of the result has 20 bits of the mantissa.
constexpr Approximation kGrossReciprocal = {Reciprocal, 0, 0x1p-19, 0, IsNormal, true};
constexpr Approximation kGrossReciprocalRoot = {ReciprocalRoot, 0, 0x1p-19, 0, IsNormal, true};

constexpr Row kInstructionRows[] = {
    // --- 9.7.1, 9.7.2 Integer arithmetic ---
    {"<add|sub>.<u16|u32|u64|s16|s32|s64>", "T T T"},
    {"<add|sub>.sat.s32", "T T T"},
    {"add.<u16x2|s16x2>", "T T T"},
    {"add.cc.<u32|s32|u64|s64> %d, %a, %b; addc.$1 %d, %c, %c;", "T T T T"},
    {"add.cc.<u32|u64> %d, %a, %b; addc.cc.$1 %d, %b, %c; addc.$1 %d, %a, %c;", "T T T T"},
    {"sub.cc.<u32|s32|u64|s64> %d, %a, %b; subc.$1 %d, %c, %a;", "T T T T"},
    {"sub.cc.<u32|u64> %d, %a, %b; subc.cc.$1 %d, %b, %c; subc.$1 %d, %a, %c;", "T T T T"},
    {"mad.<lo|hi>.cc.<u32|s32|u64|s64> %d, %a, %b, %c; addc.$2 %d, %a, 0;", "T T T T"},
    {"add.cc.<u32|s32|u64|s64> %d, %a, %b; madc.<lo|hi>.$1 %d, %b, %c, %a;", "T T T T"},
    {"add.cc.<u32|s32|u64|s64> %d, %a, %b; madc.<lo|hi>.cc.$1 %d, %b, %c, %a; addc.$1 %d, %b, 0;",
     "T T T T"},
    {"mad.<lo|hi>.cc.<u32|s32|u64|s64> %d, %a, %b, %c; madc.<lo|hi>.cc.$2 %d, %b, %c, %d; "
     "madc.<lo|hi>.$2 %d, %a, %c, %d;",
     "T T T T"},
    {"mul.<hi|lo>.<u16|u32|u64|s16|s32|s64>", "T T T"},
    {"mul.wide.<u16|u32|s16|s32>", "W T T"},
    {"mad.<hi|lo>.<u16|u32|u64|s16|s32|s64>", "T T T T"},
    {"mad.wide.<u16|u32|s16|s32>", "W T T W"},
    {"mad.hi.sat.s32", "T T T T"},
    {"mul24.<hi|lo>.<u32|s32>", "T T T"},
    {"mad24.<hi|lo>.<u32|s32>", "T T T T"},
    {"mad24.hi.sat.s32", "T T T T"},
    {"sad.<u16|u32|u64|s16|s32|s64>", "T T T T"},
    {"<div|rem>.<u16|u32|u64|s16|s32|s64>", "T T T", SecondIsNotZero},
    {"<abs|neg>.<s16|s32|s64>", "T T"},
    {"<min|max>.<u16|u32|u64|s16|s32|s64|u16x2|s16x2>", "T T T"},
    {"<min|max>.relu.<s32|s16x2>", "T T T"},
    {"<popc|clz>.<b32|b64>", "u32 T"},
    {"bfind<|.shiftamt>.<u32|u64|s32|s64>", "u32 T"},
    {"brev.<b32|b64>", "T T"},
    {"fns.b32 %d, %a, %b, %c;", "b32 b32 n8 s8"},
    {"and.b32 %t, %b, 31; and.b32 %u, %c, 15; sub.u32 %u, %u, 7; fns.b32 %d, %a, %t, %u;",
     "b32 b32 b32 b32"},
    {"bfe.<u32|u64|s32|s64>", "T T n8 n8"},
    {"bfi.<b32|b64>", "T T T n8 n8"},
    {"bmsk.<clamp|wrap>.b32", "b32 n8 n8"},
    {"szext.<clamp|wrap>.<u32|s32>", "T T n8"},
    {"dp4a.<u32|s32>.<u32|s32>", "b32 b32 b32 b32"},
    {"dp2a.<lo|hi>.<u32|s32>.<u32|s32>", "b32 b32 b32 b32"},
    // --- 9.7.3 Floating point ---
    {"testp.<finite|infinite|number|notanumber|normal|subnormal>.<f32|f64>", "pred T"},
    {"copysign.<f32|f64>", "T T T"},
    {"<add|sub|mul><|.rn|.rz|.rm|.rp><|.ftz><|.sat>.f32", "T T T"},
    {"<add|sub|mul><|.rn|.rz|.rm|.rp>.f64", "T T T"},
    {"fma.<rn|rz|rm|rp><|.ftz><|.sat>.f32", "T T T T"},
    {"fma.<rn|rz|rm|rp>.f64", "T T T T"},
    {"mad.<rn|rz|rm|rp>.<f32|f64>", "T T T T"},
    {"mad.<rn|rz|rm|rp><.ftz|.sat|.ftz.sat>.f32", "T T T T"},
    {"div.<rn|rz|rm|rp><|.ftz>.f32", "T T T"},
    {"div.<rn|rz|rm|rp>.f64", "T T T"},
    {"<abs|neg>.<f32|f64>", "T T"},
    {"<abs|neg>.ftz.f32", "T T"},
    {"<min|max><|.ftz><|.NaN><|.xorsign.abs>.f32", "T T T"},
    {"<min|max>.f64", "T T T"},
    {"<rcp|sqrt>.<rn|rz|rm|rp><|.ftz>.f32", "T T"},
    {"<rcp|sqrt>.<rn|rz|rm|rp>.f64", "T T"},
    {"div.approx.f32", "T T T", nullptr, &kDivideApprox},
    {"div.approx.ftz.f32", "T T T", nullptr, &kDivideApproxFtz},
    {"div.full.f32", "T T T", nullptr, &kDivideFull},
    {"div.full.ftz.f32", "T T T", nullptr, &kDivideFullFtz},
    {"rcp.approx.f32", "T T", nullptr, &kReciprocal},
    {"rcp.approx.ftz.f32", "T T", nullptr, &kReciprocalFtz},
    {"sqrt.approx.f32", "T T", nullptr, &kSquareRoot},
    {"sqrt.approx.ftz.f32", "T T", nullptr, &kSquareRootFtz},
    {"rsqrt.approx.f32", "T T", nullptr, &kReciprocalRoot},
    {"rsqrt.approx.ftz.f32", "T T", nullptr, &kReciprocalRootFtz},
    {"rcp.approx.ftz.f64", "T T", nullptr, &kGrossReciprocal},
    {"rsqrt.approx<|.ftz>.f64", "T T", nullptr, &kGrossReciprocalRoot},
    {"sin.approx.f32", "T T", nullptr, &kSine},
    {"sin.approx.ftz.f32", "T T", nullptr, &kSineFtz},
    {"cos.approx.f32", "T T", nullptr, &kCosine},
    {"cos.approx.ftz.f32", "T T", nullptr, &kCosineFtz},
    {"lg2.approx.f32", "T n1", nullptr, &kLogNearOne},
    {"lg2.approx.f32", "T T", nullptr, &kLog},
    {"lg2.approx.ftz.f32", "T T", nullptr, &kLogFtz},
    {"ex2.approx.f32", "T T", nullptr, &kExp},
    {"ex2.approx.ftz.f32", "T T", nullptr, &kExpFtz},
    {"tanh.approx.f32", "T T", nullptr, &kTanh},
    // --- 9.7.4 Half precision ---
    {"<add|sub|mul><|.rn><|.ftz><|.sat>.<f16|f16x2>", "T T T"},
    {"<add|sub|mul><|.rn>.<bf16|bf16x2>", "T T T"},
    {"fma.rn<|.ftz><|.sat|.relu>.<f16|f16x2>", "T T T T"},
    {"fma.rn<|.relu>.<bf16|bf16x2>", "T T T T"},
    {"<abs|neg><|.ftz>.<f16|f16x2>", "T T"},
    {"<abs|neg>.<bf16|bf16x2>", "T T"},
    {"<min|max><|.ftz><|.NaN><|.xorsign.abs>.<f16|f16x2>", "T T T"},
    {"<min|max><|.NaN><|.xorsign.abs>.<bf16|bf16x2>", "T T T"},
    {"tanh.approx.<f16|f16x2>", "T T", nullptr, &kTanhHalf},
    {"tanh.approx.<bf16|bf16x2>", "T T", nullptr, &kTanhBfloat},
    {"ex2.approx.<f16|f16x2>", "T T", nullptr, &kExpHalf},
    {"ex2.approx.ftz.<bf16|bf16x2>", "T T", nullptr, &kExpBfloat},
    // --- 9.7.6, 9.7.7 Comparison and selection ---
    {"setp.<eq|ne>.<b16|b32|b64>", "pred T T"},
    {"setp.<eq|ne|lt|le|gt|ge>.<u16|u32|u64|s16|s32|s64>", "pred T T"},
    {"setp.<lo|ls|hi|hs>.<u16|u32|u64>", "pred T T"},
    {"setp.<eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan>.<f32|f64|f16|bf16>", "pred T T"},
    {"setp.<eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan>.ftz.<f32|f16>", "pred T T"},
    {"setp.<lt|ge>.<and|or|xor>.<s32|f32> %p|%q, %a, %b, %c; selp.b32 %t, 1, 0, %p; "
     "selp.b32 %u, 2, 0, %q; or.b32 %d, %t, %u;",
     "b32 T T pred"},
    {"setp.<lt|ge|neu|num><|.ftz>.f16x2 %p|%q, %a, %b; selp.b32 %t, 1, 0, %p; "
     "selp.b32 %u, 2, 0, %q; or.b32 %d, %t, %u;",
     "b32 f16x2 f16x2"},
    {"setp.<lt|ge|neu|num>.bf16x2 %p|%q, %a, %b; selp.b32 %t, 1, 0, %p; "
     "selp.b32 %u, 2, 0, %q; or.b32 %d, %t, %u;",
     "b32 bf16x2 bf16x2"},
    {"set.<eq|lt|ge>.<u32|s32|f32>.<u16|s32|u64|f32|f64>", "S T T"},
    {"set.<lt|geu|nan><|.ftz>.<u32|f32>.f32", "S T T"},
    {"set.<lt|geu|nan><|.ftz>.<f16|u16|u32>.f16", "S T T"},
    {"set.<lt|geu|nan>.<bf16|u16|u32>.bf16", "S T T"},
    {"set.<lt|geu|nan><|.ftz>.f16x2.f16x2", "S T T"},
    {"set.<lt|geu|nan>.bf16x2.bf16x2", "S T T"},
    // All comparisons of one pair of types, mixed.
    {"set.eq.<u32|s32|f32>.<b16|b32|b64> %d, %a, %b; set.ne.$1.$2 %t, %a, %b; "
     "MIX",
     "b32 T T"},
    {"mov.b32 %d, 0; {{comparisons=>set.#.<u32|s32|f32>.<s16|s32|s64> %t, %a, %b; MIX "
     "set.#.and.$1.$2 %t, %a, %b, %c; MIX set.#.or.$1.$2 %t, %a, %b, %c; MIX set.#.xor.$1.$2 %t, "
     "%a, %b, !%c; MIX }}",
     "b32 $2 $2 pred"},
    {"mov.b32 %d, 0; {{unsigned_comparisons=>set.#.<u32|s32|f32>.<u16|u32|u64> %t, %a, %b; MIX "
     "set.#.and.$1.$2 %t, %a, %b, %c; MIX set.#.or.$1.$2 %t, %a, %b, %c; MIX set.#.xor.$1.$2 %t, "
     "%a, %b, !%c; MIX }}",
     "b32 $2 $2 pred"},
    {"mov.b32 %d, 0; {{float_comparisons=>set.#.<u32|s32|f32>.<f32|f64> %t, %a, %b; MIX "
     "set.#.and.$1.$2 %t, %a, %b, %c; MIX set.#.or.$1.$2 %t, %a, %b, %c; MIX set.#.xor.$1.$2 %t, "
     "%a, %b, !%c; MIX }}",
     "b32 $2 $2 pred"},
    {"mov.b32 %d, 0; {{float_comparisons=>set.#.<u32|s32>.<f16|bf16> %t, %a, %b; MIX "
     "set.#.and.$1.$2 %t, %a, %b, %c; MIX set.#.or.$1.$2 %t, %a, %b, %c; MIX set.#.xor.$1.$2 %t, "
     "%a, %b, !%c; MIX }}",
     "b32 $2 $2 pred"},
    {"mov.b32 %d, 0; {{float_comparisons=>set.#.ftz.<u32|s32|f32>.<f32> %t, %a, %b; MIX "
     "set.#.and.ftz.$1.$2 %t, %a, %b, %c; MIX set.#.or.ftz.$1.$2 %t, %a, %b, %c; MIX "
     "set.#.xor.ftz.$1.$2 %t, %a, %b, !%c; MIX }}",
     "b32 f32 f32 pred"},
    {"mov.b32 %d, 0; {{float_comparisons=>set.#.ftz.<u32|s32>.<f16> %t, %a, %b; MIX "
     "set.#.and.ftz.$1.$2 %t, %a, %b, %c; MIX set.#.or.ftz.$1.$2 %t, %a, %b, %c; MIX "
     "set.#.xor.ftz.$1.$2 %t, %a, %b, !%c; MIX }}",
     "b32 f16 f16 pred"},
    {"mov.b32 %d, 0; {{comparisons=>set.#.<f16|bf16>.<s16|s32|s64> %h, %a, %b; cvt.u32.u16 %t, %h; "
     "MIX set.#.xor.$1.$2 %h, %a, %b, %c; cvt.u32.u16 %t, %h; MIX }}",
     "b32 $2 $2 pred"},
    {"mov.b32 %d, 0; {{unsigned_comparisons=>set.#.<f16|bf16>.<u16|u32|u64> %h, %a, %b; "
     "cvt.u32.u16 %t, %h; MIX set.#.xor.$1.$2 %h, %a, %b, %c; cvt.u32.u16 %t, %h; MIX }}",
     "b32 $2 $2 pred"},
    {"mov.b32 %d, 0; {{eq|ne=>set.#.<f16|bf16>.<b16|b32|b64> %h, %a, %b; cvt.u32.u16 %t, %h; MIX "
     "set.#.xor.$1.$2 %h, %a, %b, %c; cvt.u32.u16 %t, %h; MIX }}",
     "b32 $2 $2 pred"},
    {"mov.b32 %d, 0; {{float_comparisons=>set.#.<f16>.<f32|f64> %h, %a, %b; cvt.u32.u16 %t, %h; "
     "MIX set.#.xor.$1.$2 %h, %a, %b, %c; cvt.u32.u16 %t, %h; MIX }}",
     "b32 $2 $2 pred"},
    {"mov.b32 %d, 0; {{float_comparisons=>set.#.<bf16>.<f16|f32|f64> %h, %a, %b; cvt.u32.u16 %t, "
     "%h; MIX set.#.xor.$1.$2 %h, %a, %b, %c; cvt.u32.u16 %t, %h; MIX }}",
     "b32 $2 $2 pred"},
    {"mov.b32 %d, 0; {{float_comparisons=>set.#.<u16|s16>.<f16|bf16> %h, %a, %b; cvt.u32.u16 %t, "
     "%h; MIX set.#.xor.$1.$2 %h, %a, %b, %c; cvt.u32.u16 %t, %h; MIX }}",
     "b32 $2 $2 pred"},
    {"mov.b32 %d, 0; {{float_comparisons=>set.#.ftz.<f16>.<f16|f32> %h, %a, %b; cvt.u32.u16 %t, "
     "%h; MIX set.#.xor.ftz.$1.$2 %h, %a, %b, %c; cvt.u32.u16 %t, %h; MIX }}",
     "b32 $2 $2 pred"},
    {"mov.b32 %d, 0; {{float_comparisons=>set.#.ftz.<u16|s16>.<f16> %h, %a, %b; cvt.u32.u16 %t, "
     "%h; MIX set.#.xor.ftz.$1.$2 %h, %a, %b, %c; cvt.u32.u16 %t, %h; MIX }}",
     "b32 $2 $2 pred"},
    {"mov.b32 %d, 0; {{float_comparisons=>set.#.<f16x2|u32|s32>.f16x2 %t, %a, %b; MIX }}",
     "b32 f16x2 f16x2"},
    {"mov.b32 %d, 0; {{float_comparisons=>set.#.ftz.<f16x2|u32|s32>.f16x2 %t, %a, %b; MIX }}",
     "b32 f16x2 f16x2"},
    {"mov.b32 %d, 0; {{float_comparisons=>set.#.<bf16x2|u32|s32>.bf16x2 %t, %a, %b; MIX }}",
     "b32 bf16x2 bf16x2"},
    // setp joined with a predicate, and of pairs.
    {"mov.b32 %d, 0; {{comparisons=>setp.#.<s16|s32|s64> %p|%q, %a, %b; MIX_PREDICATES "
     "setp.#.and.$1 %p|%q, %a, %b, %c; MIX_PREDICATES setp.#.or.$1 %p|%q, %a, %b, !%c; "
     "MIX_PREDICATES setp.#.xor.$1 %p|%q, %a, %b, %c; MIX_PREDICATES }}",
     "b32 $1 $1 pred"},
    {"mov.b32 %d, 0; {{unsigned_comparisons=>setp.#.<u16|u32|u64> %p|%q, %a, %b; MIX_PREDICATES "
     "setp.#.and.$1 %p|%q, %a, %b, %c; MIX_PREDICATES setp.#.or.$1 %p|%q, %a, %b, !%c; "
     "MIX_PREDICATES setp.#.xor.$1 %p|%q, %a, %b, %c; MIX_PREDICATES }}",
     "b32 $1 $1 pred"},
    {"mov.b32 %d, 0; {{eq|ne=>setp.#.<b16|b32|b64> %p|%q, %a, %b; MIX_PREDICATES setp.#.and.$1 "
     "%p|%q, %a, %b, %c; MIX_PREDICATES setp.#.or.$1 %p|%q, %a, %b, !%c; MIX_PREDICATES "
     "setp.#.xor.$1 %p|%q, %a, %b, %c; MIX_PREDICATES }}",
     "b32 $1 $1 pred"},
    {"mov.b32 %d, 0; {{float_comparisons=>setp.#.<f32|f64|f16x2|bf16x2> %p|%q, %a, %b; "
     "MIX_PREDICATES setp.#.and.$1 %p|%q, %a, %b, %c; MIX_PREDICATES setp.#.or.$1 %p|%q, %a, %b, "
     "!%c; MIX_PREDICATES setp.#.xor.$1 %p|%q, %a, %b, %c; MIX_PREDICATES }}",
     "b32 $1 $1 pred"},
    {"mov.b32 %d, 0; {{float_comparisons=>setp.#.<f16|bf16> %p, %a, %b; selp.b32 %t, 1, 0, %p; MIX "
     "setp.#.and.$1 %p, %a, %b, %c; selp.b32 %t, 1, 0, %p; MIX setp.#.or.$1 %p, %a, %b, !%c; "
     "selp.b32 %t, 1, 0, %p; MIX setp.#.xor.$1 %p, %a, %b, %c; selp.b32 %t, 1, 0, %p; MIX }}",
     "b32 $1 $1 pred"},
    {"mov.b32 %d, 0; {{float_comparisons=>setp.#.ftz.<f16> %p, %a, %b; selp.b32 %t, 1, 0, %p; MIX "
     "setp.#.and.ftz.$1 %p, %a, %b, %c; selp.b32 %t, 1, 0, %p; MIX setp.#.or.ftz.$1 %p, %a, %b, "
     "!%c; selp.b32 %t, 1, 0, %p; MIX setp.#.xor.ftz.$1 %p, %a, %b, %c; selp.b32 %t, 1, 0, %p; MIX "
     "}}",
     "b32 $1 $1 pred"},
    {"mov.b32 %d, 0; {{float_comparisons=>setp.#.ftz.<f32|f16x2> %p|%q, %a, %b; MIX_PREDICATES "
     "setp.#.and.ftz.$1 %p|%q, %a, %b, %c; MIX_PREDICATES setp.#.or.ftz.$1 %p|%q, %a, %b, !%c; "
     "MIX_PREDICATES setp.#.xor.ftz.$1 %p|%q, %a, %b, %c; MIX_PREDICATES }}",
     "b32 $1 $1 pred"},
    {"set.<eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan>.<f16.f16|bf16.bf16> %d, %a, %b;",
     "T T T"},
    {"set.<eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan>.<and|or|xor>.<f16.f16|bf16.bf16> %d, "
     "%a, %b, %c;",
     "T T T pred"},
    {"selp.<b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64>", "T T T pred"},
    {"slct.<b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64>.s32 %d, %a, %b, %c;", "S S S s32"},
    {"slct<|.ftz>.<b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64>.f32 %d, %a, %b, %c;", "S S S f32"},
    // --- 9.7.8 Logic and shift ---
    {"<and|or|xor>.<b16|b32|b64>", "T T T"},
    {"<and|or|xor>.pred", "pred pred pred"},
    {"<not|cnot>.<b16|b32|b64>", "T T"},
    {"not.pred", "pred pred"},
    {"lop3.b32 %d, %a, %b, %c, <0|0x1B|0x80|0x96|0xE8|0xCA|0xFE|0xFF>;", "b32 b32 b32 b32"},
    {"shf.<l|r>.<clamp|wrap>.b32", "b32 b32 b32 shift"},
    {"shl.<b16|b32|b64>", "T T shift"},
    {"shr.<b16|b32|b64|u16|u32|u64|s16|s32|s64>", "T T shift"},
    // --- 9.7.9 Data movement and conversion ---
    {"prmt.b32<|.f4e|.b4e|.rc8|.ecl|.ecr|.rc16>", "b32 b32 b32 b32"},
    {"mov.<b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64|pred>", "T T"},
    {"mov.b128 %z, {%a, %b}; mov.b128 %w, %z; mov.b128 {%d, %x}, %w; xor.b64 %d, %d, %x;",
     "b64 b64 b64"},
    {"mov.b32 %d, {%a, %b};", "b32 b16 b16"},
    {"mov.b64 %d, {%a, %b};", "b64 b32 b32"},
    {"mov.b32 {%d, %k}, %a;", "b16 b32"},
    {"mov.b64 {%t, %d}, %a;", "b32 b64"},
    {"mov.b64 %d, {%a, %b, %c, %e};", "b64 b16 b16 b16 b16"},
    {"cvt.<u8|u16|u32|u64|s8|s16|s32|s64>.<u8|u16|u32|u64|s8|s16|s32|s64>", "S T"},
    // Only where the destination lacks some of the source's values.
    {"cvt.sat.<u8|s8>.<u16|u32|u64|s16|s32|s64>", "S T"},
    {"cvt.sat.u8.s8", "S T"},
    {"cvt.sat.s8.u8", "S T"},
    {"cvt.sat.u16.<s8|s16|u32|s32|u64|s64>", "S T"},
    {"cvt.sat.s16.<u16|u32|s32|u64|s64>", "S T"},
    {"cvt.sat.u32.<s8|s16|s32|u64|s64>", "S T"},
    {"cvt.sat.s32.<u32|u64|s64>", "S T"},
    {"cvt.sat.u64.<s8|s16|s32|s64>", "S T"},
    {"cvt.sat.s64.u64", "S T"},
    {"cvt.<rni|rzi|rmi|rpi><|.sat>.<u8|u16|u32|u64|s8|s16|s32|s64>.<f32|f64>", "S T"},
    {"cvt.<rni|rzi|rmi|rpi>.ftz.<s32|u32|s64>.f32", "S T"},
    {"cvt.<rni|rzi|rmi|rpi>.<u8|s8|u16|u32|u64|s16|s32|s64>.f16", "S T"},
    {"cvt.<rni|rzi|rmi|rpi>.<u16|u32|u64|s16|s32|s64>.bf16", "S T"},
    {"cvt.<rn|rz|rm|rp>.<f32|f64>.<u8|u16|u32|u64|s8|s16|s32|s64>", "S T"},
    {"cvt.<rn|rz|rm|rp>.f16.<u16|u32|u64|s16|s32|s64>", "S T"},
    {"cvt.<rn|rz|rm|rp>.bf16.<u16|u32|u64|s16|s32|s64>", "S T"},
    {"cvt.rn.sat.<f32|f64>.<u32|s32>", "S T"},
    {"cvt.<rn|rz|rm|rp><|.ftz><|.sat>.f32.f64", "S T"},
    {"cvt<|.ftz><|.sat>.f64.f32", "S T"},
    {"cvt<|.ftz><|.sat>.f32.f16", "S T"},
    {"cvt.f64.f16", "S T"},
    {"cvt.f32.bf16", "S T"},
    {"cvt.<rn|rz|rm|rp><|.ftz><|.sat>.f16.f32", "S T"},
    {"cvt.<rn|rz|rm|rp>.f16.f64", "S T"},
    {"cvt.<rn|rz|rm|rp>.bf16.<f64|f16>", "S T"},
    {"cvt.<rni|rzi|rmi|rpi><|.ftz><|.sat>.f32.f32", "S T"},
    {"cvt.<rni|rzi|rmi|rpi><|.sat>.f64.f64", "S T"},
    {"cvt.<rni|rzi|rmi|rpi>.f16.f16", "S T"},
    {"cvt.<rni|rzi|rmi|rpi>.bf16.bf16", "S T"},
    {"cvt.<rn|rz><|.relu><|.satfinite>.<f16|bf16>.f32", "S T"},
    {"cvt.<rn|rz><|.relu><|.satfinite>.<f16x2|bf16x2>.f32 %d, %a, %b;", "S f32 f32"},
    {"cvt.rna<|.satfinite>.tf32.f32 %d, %a;", "tf32 f32"},
    {"cvt.<rn|rz><|.relu>.tf32.f32 %d, %a;", "tf32 f32"},
    {"cvt.rn.satfinite<|.relu>.<e4m3x2|e5m2x2>.f32 %d, %a, %b;", "b16 f32 f32"},
    {"cvt.rn.satfinite<|.relu>.<e4m3x2|e5m2x2>.f16x2 %d, %a;", "b16 f16x2"},
    {"cvt.rn<|.relu>.f16x2.<e4m3x2|e5m2x2> %d, %a;", "f16x2 b16"},
    {"cvt.<rn|rz|rm|rp>.f16.<u8|s8>", "S T"},
    {"cvt.<rn|rz|rm|rp>.sat.f16.<u8|u16|u32|u64|s8|s16|s32|s64>", "S T"},
    {"cvt.<rz|rm|rp>.sat.<f32|f64>.<u8|u16|u32|u64|s8|s16|s32|s64>", "S T"},
    {"cvt.rn.sat.<f32|f64>.<u8|u16|u64|s8|s16|s64>", "S T"},
    {"cvt.<rni|rzi|rmi|rpi>.sat.<u8|u16|u32|u64|s8|s16|s32|s64>.f16", "S T"},
    {"cvt.<rni|rzi|rmi|rpi>.ftz.sat.<u8|u16|u32|u64|s8|s16|s32|s64>.f32", "S T"},
    {"cvt.<rni|rzi|rmi|rpi>.ftz.<u8|u16|u64|s8|s16>.f32", "S T"},
    {"cvt.<rni|rzi|rmi|rpi>.sat.<f16>.f16", "S T"},
    {"cvt.sat.<f16.f16|f32.f32|f64.f64>", "S T"},
    {"cvt.<ftz|ftz.sat>.f32.f32", "S T"},
    {"cvt.<rn|rz|rm|rp>.sat.<f16>.f64", "S T"},
    {"cvt.sat.f64.f16", "S T"},
    {"cvt.ftz.f32.bf16", "S T"},
    {"cvt.<rm|rp>.bf16.f32", "S T"},
    {"cvt.<rn|rz|rm|rp>.ftz.bf16.f32", "S T"},
    {"cvt.<rn|rz|rm|rp>.f16.bf16", "S T"},
    {"cvt.f64.bf16", "S T"},
    {"cvt.pack.sat.<u16|s16>.s32 %d, %a, %b;", "b32 s32 s32"},
    {"cvt.pack.sat.<u8|s8|u4|s4|u2|s2>.s32.b32 %d, %a, %b, %c;", "b32 s32 s32 b32"},
    // Memory keeps what it is given, of every width; loads extend as their type says.
    {"st.<global|shared>.<b8|b16|b32> [<%g|%s>], %a; ld.$1.$2 %d, [$3];", "b32 b32"},
    {"st.global.b32 [%g], %a; ld.global.<u8|s8|u16|s16> %d, [%g+<0|2>];", "b32 b32"},
    {"st.global.v2.b32 [%g+8], {%a, %b}; ld.global.v4.u16 {%h, %d, %k, %h}, [%g+8];",
     "b16 b32 b32"},
    {"st.shared.v4.b32 [%s], {%a, %b, %a, %b}; ld.shared.v2.b64 {%x, %d}, [%s];", "b64 b32 b32"},
    {"st.<relaxed|release>.<cta|gpu|sys>.global.b32 [%g], %a; "
     "ld.<relaxed|acquire>.<cta|gpu|sys>.global.b32 %d, [%g];",
     "b32 b32"},
    {"st.volatile.global.b64 [%g], %a; ld.volatile.global.b64 %d, [%g];", "b64 b64"},
    // --- 9.7.10, 9.7.11 Video ---
    // Where an H200 does what the ISA says: newer GPUs have these by emulation, which saturates and
    // merges otherwise in some of the other cases.
    {"<vadd|vsub|vabsdiff>.<u32|s32>.<u32|s32>.<u32|s32> %d, %a<|.b1>, %b<|.h0>;", "b32 b32 b32"},
    {"<vmin|vmax>.<u32|s32>.<u32|s32>.<u32|s32><|.sat> %d, %a<|.b1>, %b<|.h0>;", "b32 b32 b32"},
    {"<vadd|vsub|vabsdiff>.s32.<u32|s32>.<u32|s32>.sat %d, %a<|.b1>, %b<|.h0>;", "b32 b32 b32"},
    {"<vadd|vmax>.<u32|s32>.<u32|s32>.s32<|.sat>.add %d, %a.b0, %b.h1, %c;", "b32 b32 b32 b32"},
    {"<vadd|vmax>.s32.<u32|s32>.s32<|.sat>.<min|max> %d, %a.b0, %b.h1, %c;", "b32 b32 b32 b32"},
    {"<vsub|vmin>.<u32|s32>.u32.s32 %d.<b0|b3|h0>, %a, %b.b2, %c;", "b32 b32 b32 b32"},
    {"vshl.<u32|s32>.<u32|s32>.u32.<clamp|wrap> %d, %a<|.b2>, %b<|.b0>;", "b32 b32 b32"},
    {"vshr.<u32|s32>.<u32|s32>.u32<|.sat>.<clamp|wrap> %d, %a<|.b2>, %b<|.b0>;", "b32 b32 b32"},
    {"vmad.<u32|s32>.<u32|s32>.u32 %d, %a.<b0|h1>, %b.<b1|h0>, %c;", "b32 b32 b32 b32"},
    {"vmad.<u32|s32>.<u32|s32>.s32<|.sat><|.shr7|.shr15> %d, %a.<b0|h1>, %b.<b1|h0>, %c;",
     "b32 b32 b32 b32"},
    {"vset.<u32|s32>.<u32|s32>.<eq|ne|lt|le|gt|ge> %d, %a<|.b1>, %b<|.h1>;", "b32 b32 b32"},
    {"<vadd|vsub|vavrg|vabsdiff|vmin|vmax>2.<u32|s32>.<u32|s32>.<u32|s32><|.sat> %d, %a, %b, %c;",
     "b32 b32 b32 b32"},
    {"<vadd|vsub|vavrg|vabsdiff|vmin|vmax>4.<u32|s32>.<u32|s32>.<u32|s32><|.sat> %d, %a, %b, %c;",
     "b32 b32 b32 b32"},
    {"<vadd|vabsdiff>2.<u32|s32>.s32.s32.add %d, %a.h10, %b.h32, %c;", "b32 b32 b32 b32"},
    {"<vadd|vabsdiff>4.<u32|s32>.u32.u32.add %d, %a.b3210, %b.b7531, %c;", "b32 b32 b32 b32"},
    {"vset<2|4>.<u32|s32>.<u32|s32>.<eq|lt|ge><|.add> %d, %a, %b, %c;", "b32 b32 b32 b32"},
    {"<vsub|vavrg|vmin|vmax>2.<u32|s32>.<u32|s32>.<u32|s32>.add %d, %a, %b, %c;",
     "b32 b32 b32 b32"},
    {"<vsub|vavrg|vmin|vmax>4.<u32|s32>.<u32|s32>.<u32|s32>.add %d, %a, %b, %c;",
     "b32 b32 b32 b32"},
    {"<vsub|vabsdiff|vmin>.<u32|s32>.<u32|s32>.<u32|s32>.add %d, %a.b0, %b.h1, %c;",
     "b32 b32 b32 b32"},
    {"<vsub|vabsdiff|vmin>.s32.<u32|s32>.<u32|s32>.<min|max> %d, %a.b0, %b.h1, %c;",
     "b32 b32 b32 b32"},
    {"vabsdiff.u32.<u32|s32>.<u32|s32>.<min|max> %d, %a.b0, %b.h1, %c;", "b32 b32 b32 b32"},
    {"vmin.u32.u32.u32.<min|max> %d, %a.b0, %b.h1, %c;", "b32 b32 b32 b32"},
    {"<vshl|vshr>.<u32|s32>.<u32|s32>.u32.<clamp|wrap>.add %d, %a, %b, %c;", "b32 b32 b32 b32"},
    {"vshr.<u32|s32>.$1.u32.<clamp|wrap>.<min|max> %d, %a, %b, %c;", "b32 b32 b32 b32"},
    {"vset.<u32|s32>.<u32|s32>.<lt|ge>.add %d, %a, %b, %c;", "b32 b32 b32 b32"},
    {"vset.u32.<u32|s32>.<lt|ge>.<min|max> %d, %a, %b, %c;", "b32 b32 b32 b32"},
    {"vmad.<u32|s32>.<u32|s32>.u32.po %d, %a.<b0|h1>, %b.<b1|h0>, %c;", "b32 b32 b32 b32"},
    {"vmad.<u32|s32>.s32.u32.po.<shr7|shr15> %d, %a.<b0|h1>, %b.<b1|h0>, %c;", "b32 b32 b32 b32"},
    // --- 9.7.13 Atomics: what was there, and what is there afterwards ---
    {"st.<global|shared>.<u32|s32|u64> [<%g|%s>], %a; atom.$1.<add|min|max>.$2 %d, [$3], %b;",
     "T T T"},
    {"st.<global|shared>.<u32|s32|u64|s64> [<%g|%s>], %a; red.$1.<min|max>.$2 [$3], %b; "
     "ld.$1.$2 %d, [$3];",
     "T T T"},
    {"st.<global|shared>.<b32|b64> [<%g|%s>], %a; atom.$1.<and|or|xor|exch>.$2 %d, [$3], %b; "
     "ld.$1.$2 %d, [$3];",
     "T T T"},
    {"st.<global|shared>.u32 [<%g|%s>], %a; atom.$1.<inc|dec>.u32 %t, [$2], %b; "
     "ld.$1.u32 %d, [$2];",
     "b32 b32 b32"},
    {"st.<global|shared>.<b16|b32|b64> [<%g|%s>], %a; atom.$1.cas.$2 %d, [$3], %b, %c; "
     "ld.$1.$2 %d, [$3];",
     "T T same:T T"},
    {"st.<global|shared>.<f32|f64> [<%g|%s>], %a; atom.$1.add.$2 %d, [$3], %b; ld.$1.$2 %d, [$3];",
     "T T T"},
    {"st.<global|shared>.b16 [<%g|%s>], %a; atom.$1.add.noftz.<f16|bf16> %h, [$2], %b; "
     "ld.$1.b16 %d, [$2];",
     "f16 f16 f16"},
    // Not of shared memory: there driver 580 on an H200 adds the lower halves alone.
    {"st.global.b32 [%g], %a; red.global.add.noftz.f16x2 [%g], %b; ld.global.b32 %d, [%g];",
     "f16x2 f16x2 f16x2"},
    {"st.global.b32 [%g], %a; red.global.add.noftz.bf16x2 [%g], %b; ld.global.b32 %d, [%g];",
     "bf16x2 bf16x2 bf16x2"},
    {"st.global.u32 [%g], %a; "
     "atom.<relaxed|acquire|release|acq_rel>.<cta|gpu|sys>.global.add.u32 %t, [%g], %b; "
     "ld.global.u32 %d, [%g];",
     "b32 b32 b32"},
    {"st.global.v2.b64 [%g], {%a, %b}; mov.b128 %z, {%b, %c}; "
     "atom.global.exch.b128 %z, [%g], %z; mov.b128 {%x, %y}, %z; ld.global.v2.b64 {%d, %x}, [%g];",
     "b64 b64 b64 b64"},
    {"st.global.v2.b64 [%g], {%a, %b}; mov.b128 %z, {%c, %b}; mov.b128 %w, {%b, %a}; "
     "atom.global.cas.b128 %z, [%g], %z, %w; ld.global.v2.b64 {%d, %x}, [%g]; "
     "mov.b128 {%x, %y}, %z; xor.b64 %d, %d, %y;",
     "b64 b64 b64 same:b64"},
    {"st.global.v2.f32 [%g], {%a, %b}; red.global.add.v2.f32 [%g], {%b, %b}; "
     "ld.global.f32 %d, [%g+<0|4>];",
     "f32 f32 f32"},
    {"st.global.v2.b32 [%g], {%a, %b}; "
     "red.global.add.noftz.v2.f16x2 [%g], {%b, %b}; ld.global.b32 %d, [%g+<0|4>];",
     "f16x2 f16x2 f16x2"},
    // --- Warps ---
    {"shfl.sync.<up|down|bfly|idx>.b32 %d, %a, %b, %c, -1;", "b32 b32 n8 shuffle"},
    {"shfl.sync.<up|down|bfly|idx>.b32 %t|%p, %a, %b, <0|0x1F|0x181F|0x1C03>, -1; "
     "selp.b32 %d, %t, 77, %p;",
     "b32 b32 n8"},
    {"vote.sync.<all|any|uni>.pred %d, %a, -1;", "pred pred"},
    {"vote.sync.ballot.b32 %d, %a, -1;", "b32 pred"},
    {"match.any.sync.<b32|b64> %d, %a, -1;", "b32 few:T"},
    {"match.all.sync.<b32|b64> %d|%p, %a, -1; selp.b32 %d, %d, 5, %p;", "b32 few:T"},
    {"redux.sync.<add|min|max>.<u32|s32> %d, %a, -1;", "T T"},
    {"redux.sync.<and|or|xor>.b32 %d, %a, -1;", "T T"},
    // --- 9.7.14 Matrices. Small integers: each sum is exact, in any order ---
    {"mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%d0, %d1, %d2, %d3}, {%a0, %a1}, {%b}, "
     "{%c0, %c1, %c2, %c3};",
     "f32*4 f16x2i*2 f16x2i f32i*4"},
    {"mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%d0, %d1}, {%a0, %a1}, {%b}, {%c0, %c1};",
     "f16x2*2 f16x2i*2 f16x2i f16x2i*2"},
    {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%d0, %d1, %d2, %d3}, "
     "{%a0, %a1, %a2, %a3}, {%b0, %b1}, {%c0, %c1, %c2, %c3};",
     "f32*4 f16x2i*4 f16x2i*2 f32i*4"},
    {"mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%d0, %d1}, {%a0, %a1, %a2, %a3}, "
     "{%b0, %b1}, {%c0, %c1};",
     "f16x2*2 f16x2i*4 f16x2i*2 f16x2i*2"},
    {"mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%d0, %d1, %d2, %d3}, {%a0, %a1}, {%b}, "
     "{%c0, %c1, %c2, %c3};",
     "f32*4 bf16x2i*2 bf16x2i f32i*4"},
    {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%d0, %d1, %d2, %d3}, "
     "{%a0, %a1, %a2, %a3}, {%b0, %b1}, {%c0, %c1, %c2, %c3};",
     "f32*4 bf16x2i*4 bf16x2i*2 f32i*4"},
    {"mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%d0, %d1, %d2, %d3}, {%a0, %a1}, {%b}, "
     "{%c0, %c1, %c2, %c3};",
     "f32*4 f32i*2 f32i f32i*4"},
    {"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%d0, %d1, %d2, %d3}, "
     "{%a0, %a1, %a2, %a3}, {%b0, %b1}, {%c0, %c1, %c2, %c3};",
     "f32*4 f32i*4 f32i*2 f32i*4"},
    {"mma.sync.aligned.m8n8k16.row.col<|.satfinite>.s32.<u8|s8>.<u8|s8>.s32 {%d0, %d1}, {%a}, "
     "{%b}, {%c0, %c1};",
     "s32*2 b32 b32 s32*2"},
    {"mma.sync.aligned.m16n8k16.row.col<|.satfinite>.s32.<u8|s8>.<u8|s8>.s32 "
     "{%d0, %d1, %d2, %d3}, {%a0, %a1}, {%b}, {%c0, %c1, %c2, %c3};",
     "s32*4 b32*2 b32 s32*4"},
    {"mma.sync.aligned.m16n8k32.row.col<|.satfinite>.s32.<u8|s8>.<u8|s8>.s32 "
     "{%d0, %d1, %d2, %d3}, {%a0, %a1, %a2, %a3}, {%b0, %b1}, {%c0, %c1, %c2, %c3};",
     "s32*4 b32*4 b32*2 s32*4"},
    {"mma.sync.aligned.m8n8k4.<row|col>.<row|col>.f32.f16.f16.f32 {%d0, %d1, %d2, %d3, %d4, %d5, "
     "%d6, %d7}, {%a0, %a1}, {%b0, %b1}, {%c0, %c1, %c2, %c3, %c4, %c5, %c6, %c7};",
     "f32*8 f16x2i*2 f16x2i*2 f32i*8"},
    {"mma.sync.aligned.m8n8k4.<row|col>.<row|col>.f32.f16.f16.f16 {%d0, %d1, %d2, %d3, %d4, %d5, "
     "%d6, %d7}, {%a0, %a1}, {%b0, %b1}, {%c0, %c1, %c2, %c3};",
     "f32*8 f16x2i*2 f16x2i*2 f16x2i*4"},
    {"mma.sync.aligned.m8n8k4.<row|col>.<row|col>.f16.f16.f16.f16 {%d0, %d1, %d2, %d3}, "
     "{%a0, %a1}, {%b0, %b1}, {%c0, %c1, %c2, %c3};",
     "f16x2*4 f16x2i*2 f16x2i*2 f16x2i*4"},
    {"mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d0, %d1}, {%a}, {%b}, {%c0, %c1};",
     "f64*2 f64i f64i f64i*2"},
    {"mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%d0, %d1, %d2, %d3}, {%a0, %a1}, {%b}, "
     "{%c0, %c1, %c2, %c3};",
     "f64*4 f64i*2 f64i f64i*4"},
    {"mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%d0, %d1, %d2, %d3}, "
     "{%a0, %a1, %a2, %a3}, {%b0, %b1}, {%c0, %c1, %c2, %c3};",
     "f64*4 f64i*4 f64i*2 f64i*4"},
    {"mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%d0, %d1, %d2, %d3}, "
     "{%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7}, {%b0, %b1, %b2, %b3}, {%c0, %c1, %c2, %c3};",
     "f64*4 f64i*8 f64i*4 f64i*4"},
    {"st.shared.v4.b32 [%rs], {%a0, %a1, %a2, %a3}; bar.warp.sync -1; "
     "ldmatrix.sync.aligned.m8n8.x4<|.trans>.shared.b16 {%d0, %d1, %d2, %d3}, [%rs]; "
     "bar.warp.sync -1;",
     "b32*4 b32*4"},
    {"st.shared.v4.b32 [%rs], {%a0, %a1, %a2, %a3}; bar.warp.sync -1; "
     "ldmatrix.sync.aligned.m8n8.x2<|.trans>.shared.b16 {%d0, %d1}, [%rs]; bar.warp.sync -1;",
     "b32*2 b32*4"},
    {"st.shared.v4.b32 [%rs], {%a0, %a1, %a2, %a3}; bar.warp.sync -1; "
     "ldmatrix.sync.aligned.m8n8.x1<|.trans>.shared.b16 {%d}, [%rs]; bar.warp.sync -1;",
     "b32 b32*4"},
    {"stmatrix.sync.aligned.m8n8.x4<|.trans>.shared.b16 [%rs], {%a0, %a1, %a2, %a3}; "
     "bar.warp.sync -1; ld.shared.v4.b32 {%d0, %d1, %d2, %d3}, [%rs]; bar.warp.sync -1;",
     "b32*4 b32*4"},
    {"movmatrix.sync.aligned.m8n8.trans.b16 %d, %a;", "b32 b32"},
};

// --- Expansion ---

bool IsType(string_view name) {
  static constexpr string_view kTypes[] = {
      "pred", "b8",  "b16", "b32",   "b64",  "u8",  "u16", "u32",   "u64",   "s8",    "s16",
      "s32",  "s64", "f16", "f16x2", "bf16", "f32", "f64", "u16x2", "s16x2", "bf16x2"};
  for (const string_view type : kTypes) {
    if (type == name) return true;
  }
  return false;
}

std::vector<string> Split(string_view text, char separator) {
  std::vector<string> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

struct Choice {
  string text;
  std::vector<string> chosen;
};

// `text` with what was chosen in place of $1, $2, ...
string Substituted(string_view text, const std::vector<string>& chosen) {
  string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '$') {
      result += chosen.at(static_cast<size_t>(text[++i] - '1'));
    } else {
      result += text[i];
    }
  }
  return result;
}

void Expand(string_view rest, const Choice& so_far, std::vector<Choice>& out) {
  Choice choice = so_far;
  const size_t begin = rest.find('<');
  choice.text += Substituted(rest.substr(0, begin), choice.chosen);
  if (begin == string_view::npos) {
    out.push_back(choice);
    return;
  }
  const size_t end = rest.find('>', begin);
  for (const string& each : Split(rest.substr(begin + 1, end - begin - 1), '|')) {
    const string one = Substituted(each, choice.chosen);
    Choice next = choice;
    next.text += one;
    next.chosen.push_back(one);
    Expand(rest.substr(end + 1), next, out);
  }
}

string Widened(const string& type) {
  return type[0] + std::to_string(2 * std::atoi(type.c_str() + 1));
}

// Where both the space and the address are chosen, %g is global, %s shared and %l local.
bool SpacesFit(const std::vector<string>& chosen) {
  auto chose = [&chosen](string_view text) {
    return std::any_of(chosen.begin(), chosen.end(),
                       [text](const string& each) { return each.starts_with(text); });
  };
  return chose("global") >= chose("%g") && chose("shared") >= chose("%s") &&
         chose("local") >= chose("%l");
}

// The code with the texts that its words in capitals stand for.
string Unabbreviated(string_view code) {
  auto is_of_word = [](char each) {
    return (each >= 'A' && each <= 'Z') || (each >= '0' && each <= '9') || each == '_';
  };
  string text;
  while (!code.empty()) {
    size_t length = 0;
    while (length < code.size() && is_of_word(code[length])) ++length;
    text += NamedText(code.substr(0, std::max<size_t>(length, 1)));
    code.remove_prefix(std::max<size_t>(length, 1));
  }
  return text;
}

// {{a|b=>text}}, see the header.
string Repeated(string_view code) {
  string text;
  while (true) {
    const size_t begin = code.find("{{");
    text += code.substr(0, begin);
    if (begin == string_view::npos) return text;
    const size_t arrow = code.find("=>", begin);
    const size_t end = code.find("}}", arrow);
    const string_view words = code.substr(begin + 2, arrow - begin - 2);
    for (const string& word : Split(NamedList(words), '|')) {
      for (const char each : code.substr(arrow + 2, end - arrow - 2)) {
        if (each == '#') {
          text += word;
        } else {
          text += each;
        }
      }
    }
    code.remove_prefix(end + 2);
  }
}

}  // namespace

bool Instance::EndsThreads() const {
  return code.find("exit;") != string::npos || code.find("leave_if_odd") != string::npos;
}

string Instance::Signature() const {
  auto text = [](const Operand& operand) {
    string name = operand.type;
    if (operand.count > 1) name.append("*").append(std::to_string(operand.count));
    return name;
  };
  string signature = text(result);
  for (const Operand& source : sources) signature.append(" ").append(text(source));
  return signature;
}

std::vector<Instance> InstancesOf(const Row& row) {
  std::vector<Instance> instances;
  std::vector<Choice> choices;
  Expand(row.code, {}, choices);
  for (const Choice& choice : choices) {
    if (!SpacesFit(choice.chosen)) continue;
    std::vector<string> types;
    for (const string& part : Split(choice.text.substr(0, choice.text.find(' ')), '.')) {
      if (IsType(part)) types.push_back(part);
    }
    Instance instance;
    instance.row = &row;
    for (const string& word : Split(row.operands, ' ')) {
      const size_t star = word.find('*');
      Operand operand;
      operand.type = word.substr(0, star);
      if (star != string::npos) operand.count = static_cast<uint32_t>(std::atoi(&word[star + 1]));
      string& type = operand.type;
      if (type.starts_with("$")) type = Substituted(type, choice.chosen);
      if (type == "S") type = types[types.size() - 2];
      if (type == "W") type = Widened(types.back());
      if (type == "T" || type.ends_with(":T")) type.replace(type.size() - 1, 1, types.back());
      instance.sources.push_back(operand);
    }
    instance.result = instance.sources.front();
    instance.sources.erase(instance.sources.begin());
    instance.name = choice.text;
    if (instance.name.find('%') == string::npos) {
      static constexpr const char* kNames[] = {", %a", ", %b", ", %c", ", %e"};
      instance.name += " %d";
      for (size_t i = 0; i < instance.sources.size(); ++i) instance.name += kNames[i];
      instance.name += ";";
    }
    instance.code = Repeated(Unabbreviated(instance.name));
    instances.push_back(std::move(instance));
  }
  return instances;
}

std::vector<Instance> Instances() {
  std::vector<Instance> instances;
  for (const std::span<const Row> rows :
       {std::span<const Row>(kInstructionRows), EffectRows(), ImageRows()}) {
    for (const Row& row : rows) {
      for (Instance& instance : InstancesOf(row)) instances.push_back(std::move(instance));
    }
  }
  return instances;
}

}  // namespace consort::ptx_suite
