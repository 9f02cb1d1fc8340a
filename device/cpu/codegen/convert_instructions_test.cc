// SPDX-License-Identifier: Apache-2.0
// Values from the definitions in PTX ISA 9.0, 9.7.9.3 mov, 9.7.9.21 cvt.
#include <cmath>

#include "device/cpu/codegen/instruction_cases_for_test.h"

namespace consort::cpu {
namespace {

TEST(ConvertInstructions, IntegersExtendCutAndSaturate) {
  RunCases({
      {"cvt.s64.s32 %dd, %a;", 0xFFFFFFFE, 0, 0, 0xFFFFFFFFFFFFFFFE},
      {"cvt.u64.u32 %dd, %a;", 0xFFFFFFFE, 0, 0, 0xFFFFFFFE},
      {"cvt.s32.s16 %d, %ah;", 0x8000, 0, 0, 0xFFFF8000},
      {"cvt.u32.u16 %d, %ah;", 0x8000, 0, 0, 0x8000},
      {"cvt.s32.s8 %d, %a;", 0x1280, 0, 0, 0xFFFFFF80},
      {"cvt.u32.u8 %d, %a;", 0x1280, 0, 0, 0x80},
      {"cvt.u8.u32 %d, %a;", 0x12F0, 0, 0, 0xF0},
      {"cvt.s8.s32 %d, %a;", 0x12F0, 0, 0, 0xFFFFFFF0},
      {"cvt.sat.s8.s32 %d, %a;", 300, 0, 0, 127},
      {"cvt.sat.s8.s32 %d, %a;", 0xFFFFFE00, 0, 0, 0xFFFFFF80},
      {"cvt.sat.u8.s32 %d, %a;", 0xFFFFFFFF, 0, 0, 0},
      {"cvt.sat.u8.s32 %d, %a;", 300, 0, 0, 255},
      {"cvt.sat.s32.u32 %d, %a;", 0xFFFFFFFF, 0, 0, 0x7FFFFFFF},
      {"cvt.sat.s64.u64 %dd, %ad;", 0xFFFFFFFFFFFFFFFF, 0, 0, 0x7FFFFFFFFFFFFFFF},
      {"cvt.sat.u64.s64 %dd, %ad;", 0x8000000000000000, 0, 0, 0},
      {"cvt.u16.u32 %dh, %a;", 0x12345, 0, 0, 0x2345},
  });
}

TEST(ConvertInstructions, FloatsToIntegersRoundClampAndTakeNanToZero) {
  RunCases({
      {"cvt.rni.s32.f32 %d, %a;", F(2.5f), 0, 0, 2},
      {"cvt.rni.s32.f32 %d, %a;", F(3.5f), 0, 0, 4},
      {"cvt.rzi.s32.f32 %d, %a;", F(-2.7f), 0, 0, 0xFFFFFFFE},
      {"cvt.rmi.s32.f32 %d, %a;", F(-2.1f), 0, 0, 0xFFFFFFFD},
      {"cvt.rpi.s32.f32 %d, %a;", F(2.1f), 0, 0, 3},
      {"cvt.rzi.s32.f32 %d, %a;", F(1e20f), 0, 0, 0x7FFFFFFF},
      {"cvt.rzi.s32.f32 %d, %a;", kMinusInfF, 0, 0, 0x80000000},
      {"cvt.rzi.u32.f32 %d, %a;", F(-5.0f), 0, 0, 0},
      {"cvt.rzi.u32.f32 %d, %a;", F(4e9f), 0, 0, 4000000000},
      {"cvt.rzi.s32.f32 %d, %a;", kQuietF, 0, 0, 0},
      {"cvt.rzi.u64.f64 %dd, %ad;", D(1.8e19), 0, 0, 18000000000000000000u},
      {"cvt.rzi.u64.f32 %dd, %a;", F(1e30f), 0, 0, 0xFFFFFFFFFFFFFFFF},
      {"cvt.rzi.s64.f64 %dd, %ad;", D(-1e30), 0, 0, 0x8000000000000000},
      {"cvt.rzi.u8.f32 %d, %a;", F(300.0f), 0, 0, 255},
      {"cvt.rzi.s16.f32 %dh, %a;", F(-40000.0f), 0, 0, 0x8000},
      {"cvt.rzi.s16.f16 %dh, %ah;", 0x7E00, 0, 0, 0},
      {"cvt.rzi.s16.f16 %dh, %ah;", 0xFC00, 0, 0, 0x8000},
      {"cvt.rzi.ftz.s32.f32 %d, %a;", kTinyF, 0, 0, 0},
      {"cvt.rpi.ftz.s32.f32 %d, %a;", kTinyF, 0, 0, 0},
      {"cvt.rpi.s32.f32 %d, %a;", kTinyF, 0, 0, 1},
  });
}

TEST(ConvertInstructions, IntegersToFloatsRound) {
  RunCases({
      {"cvt.rn.f32.s32 %d, %a;", 0xFFFFFFFF, 0, 0, F(-1.0f)},
      {"cvt.rn.f32.u32 %d, %a;", 0xFFFFFFFF, 0, 0, F(4294967296.0f)},
      {"cvt.rz.f32.u32 %d, %a;", 0xFFFFFFFF, 0, 0, F(4294967040.0f)},
      {"cvt.rp.f32.s32 %d, %a;", 16777217, 0, 0, F(16777218.0f)},
      {"cvt.rm.f32.s32 %d, %a;", 16777217, 0, 0, F(16777216.0f)},
      {"cvt.rn.f64.s64 %dd, %ad;", 0x8000000000000000, 0, 0, D(-0x1p63)},
      {"cvt.rn.f64.u64 %dd, %ad;", 0xFFFFFFFFFFFFFFFF, 0, 0, D(0x1p64)},
      {"cvt.rz.f64.u64 %dd, %ad;", 0xFFFFFFFFFFFFFFFF, 0, 0, D(0x1p64 - 0x1p11)},
      {"cvt.rn.f32.u64 %d, %ad;", 1u << 31, 0, 0, F(0x1p31f)},
      {"cvt.rn.f32.u8 %d, %a;", 0x1FF, 0, 0, F(255.0f)},
      {"cvt.rn.f16.s32 %dh, %a;", 3, 0, 0, 0x4200},
  });
}

TEST(ConvertInstructions, FloatsToFloats) {
  RunCases({
      {"cvt.f64.f32 %dd, %a;", F(1.5f), 0, 0, D(1.5)},
      {"cvt.rn.f32.f64 %d, %ad;", D(0.1), 0, 0, F(0.1f)},
      {"cvt.rz.f32.f64 %d, %ad;", D(1.0 + 0x1p-24 + 0x1p-30), 0, 0, F(1.0f)},
      {"cvt.rp.f32.f64 %d, %ad;", D(1.0 + 0x1p-40), 0, 0, F(1.0f + 0x1p-23f)},
      {"cvt.rm.f32.f64 %d, %ad;", D(-1.0 - 0x1p-40), 0, 0, F(-1.0f - 0x1p-23f)},
      {"cvt.rni.f32.f32 %d, %a;", F(2.5f), 0, 0, F(2.0f)},
      {"cvt.rzi.f64.f64 %dd, %ad;", D(-2.7), 0, 0, D(-2.0)},
      {"cvt.rmi.f32.f32 %d, %a;", F(-0.5f), 0, 0, F(-1.0f)},
      {"cvt.rpi.f32.f32 %d, %a;", F(-0.5f), 0, 0, kMinusZeroF},
      {"cvt.sat.f32.f32 %d, %a;", F(1.5f), 0, 0, F(1.0f)},
      {"cvt.sat.f32.f32 %d, %a;", kQuietF, 0, 0, F(0.0f)},
      {"cvt.rn.ftz.f32.f64 %d, %ad;", D(0x1p-140), 0, 0, 0},
      {"cvt.rn.f32.f64 %d, %ad;", D(0x1p-140), 0, 0, F(0x1p-140f)},
      {"cvt.f32.f16 %d, %ah;", 0x3555, 0, 0, F(0x1.554p-2f)},
      {"cvt.rn.f16.f32 %dh, %a;", F(65520.0f), 0, 0, 0x7C00},
      {"cvt.rz.f16.f32 %dh, %a;", F(65520.0f), 0, 0, 0x7BFF},
      // One rounding: by way of the nearest float this would be a tie, and go down.
      {"cvt.rn.f16.f64 %dh, %ad;", D(1.0 + 0x1p-11 + 0x1p-40), 0, 0, 0x3C01},
      {"cvt.rn.f16.f64 %dh, %ad;", D(-1.0 - 0x1p-11), 0, 0, 0xBC00},
      {"cvt.rn.f16.f64 %dh, %ad;", D(1e300), 0, 0, 0x7C00},
      {"cvt.rz.f16.f64 %dh, %ad;", D(1.0 + 0x1p-11 + 0x1p-40), 0, 0, 0x3C00},
      {"cvt.rn.bf16.f32 %dh, %a;", F(1.00390625f), 0, 0, 0x3F80},
      {"cvt.rn.f16x2.f32 %d, %a, %b;", F(1.0f), F(2.0f), 0, 0x3C004000},
      {"cvt.rn.relu.f16.f32 %dh, %a;", F(-1.0f), 0, 0, 0},
  });
}

TEST(ConvertInstructions, MovesPackAndUnpack) {
  RunCases({
      {"mov.b64 %dd, {%a, %b};", 0x11111111, 0x22222222, 0, 0x2222222211111111},
      {"mov.b64 {%t, %d}, %ad;", 0x2222222211111111, 0, 0, 0x22222222},
      {"mov.b64 {_, %d}, %ad;", 0x2222222211111111, 0, 0, 0x22222222},
      {"mov.b32 %d, {%ah, %bh};", 0x1111, 0x2222, 0, 0x22221111},
      {"mov.b32 {%dh, %ah}, %a;", 0x22221111, 0, 0, 0x1111},
      {"mov.b32 {%d}, %a;", 0x11111111, 0, 0, 0x11111111},
      {"mov.b32 %d, {%a};", 0x11111111, 0, 0, 0x11111111},
      {"mov.f32 %d, 0f7FFFFFFF;", 0, 0, 0, 0x7FFFFFFF},
      {"mov.f64 %dd, 0d3FF8000000000000;", 0, 0, 0, D(1.5)},
      {"mov.b32 %d, 0f3F800000;", 0, 0, 0, F(1.0f)},
      {"mov.f32 %d, 1.5;", 0, 0, 0, F(1.5f)},
      {"mov.u32 %d, 0x10 + 2;", 0, 0, 0, 18},
      {"mov.u32 %d, 017;", 0, 0, 0, 15},
      {"mov.u32 %d, 0b101;", 0, 0, 0, 5},
      {"mov.u64 %dd, -1;", 0, 0, 0, 0xFFFFFFFFFFFFFFFF},
      {"mov.u32 %d, WARP_SZ;", 0, 0, 0, 32},
      {"{ .reg .v2 .b32 %v; mov.b32 %v.x, %a; mov.b32 %v.y, %b; mov.b32 %d, %v.y; }", 3, 4, 0, 4},
  });
}

TEST(ConvertInstructions, RefusesWhatTheIsaDoesNotAllow) {
  EXPECT_EQ(LoadError(".reg .f32 %f; .reg .b32 %r;\ncvt.s32.f32 %r, %f;").message(),
            "line 7: instruction `cvt.s32.f32` is not supported");
  EXPECT_EQ(LoadError(".reg .pred %p; .reg .b32 %r;\nadd.u32 %r, %r, %p;").message(),
            "line 7: a predicate where a value is expected");
  EXPECT_EQ(LoadError(".reg .b32 %r;\nmov.b32 3, %r;").message(),
            "line 7: the destination is no register");
  EXPECT_EQ(LoadError(".reg .b32 %r;\nadd.u32 {%r}, %r, %r;").message(),
            "line 7: the destination is no register");
}

}  // namespace
}  // namespace consort::cpu
