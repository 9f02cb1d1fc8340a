// SPDX-License-Identifier: Apache-2.0
// Values from the definitions in PTX ISA 9.0, 9.7.1, 9.7.2, 9.7.7, 9.7.8.
#include "device/cpu/codegen/instruction_cases_for_test.h"

namespace consort::cpu {
namespace {

constexpr uint64_t kMin32 = 0x80000000;
constexpr uint64_t kMin64 = 0x8000000000000000;
constexpr uint64_t kOnes32 = 0xFFFFFFFF;
constexpr uint64_t kOnes64 = 0xFFFFFFFFFFFFFFFF;

TEST(IntegerInstructions, AddAndSubtractWrapOrSaturate) {
  RunCases({
      {"add.s32 %d, %a, %b;", 0x7FFFFFFF, 1, 0, kMin32},
      {"add.sat.s32 %d, %a, %b;", 0x7FFFFFFF, 1, 0, 0x7FFFFFFF},
      {"sub.sat.s32 %d, %a, %b;", kMin32, 1, 0, kMin32},
      {"add.u64 %dd, %ad, %bd;", kOnes64, 2, 0, 1},
      {"sub.u16 %dh, %ah, %bh;", 0, 1, 0, 0xFFFF},
      {"add.s32 %d, %a, -5;", 3, 0, 0, 0xFFFFFFFE},
  });
}

TEST(IntegerInstructions, CarryGoesFromOneInstructionToTheNext) {
  RunCases({
      {"add.cc.u32 %t, %a, %b; addc.u32 %d, %c, 0;", kOnes32, 1, 7, 8},
      {"add.cc.u32 %t, %a, %b; addc.u32 %d, %c, 0;", kOnes32, 0, 7, 7},
      {"sub.cc.u32 %t, %a, %b; subc.u32 %d, %c, 0;", 0, 1, 7, 6},
      {"mad.lo.cc.u32 %t, %a, %b, %c; addc.u32 %d, 0, 0;", 0xFFFF, 0x10001, 1, 1},
      {"add.cc.u64 %td, %ad, %bd; addc.u64 %dd, %cd, 0;", kOnes64, 1, 1, 2},
  });
}

TEST(IntegerInstructions, MultiplyGivesLowHighAndWide) {
  RunCases({
      {"mul.lo.s32 %d, %a, %b;", 0x10000, 0x10000, 0, 0},
      {"mul.hi.s32 %d, %a, %b;", kOnes32, 2, 0, kOnes32},
      {"mul.hi.u32 %d, %a, %b;", kOnes32, 2, 0, 1},
      {"mul.wide.s32 %dd, %a, %b;", kOnes32, 3, 0, 0xFFFFFFFFFFFFFFFD},
      {"mul.wide.u32 %dd, %a, %b;", kOnes32, 3, 0, 0x2FFFFFFFD},
      {"mul.wide.s16 %d, %ah, %bh;", 0xFFFF, 3, 0, 0xFFFFFFFD},
      {"mul.wide.u16 %d, %ah, %bh;", 0xFFFF, 3, 0, 0x2FFFD},
      {"mul.hi.u64 %dd, %ad, %bd;", kOnes64, kOnes64, 0, 0xFFFFFFFFFFFFFFFE},
      {"mul.hi.s64 %dd, %ad, %bd;", kOnes64, kOnes64, 0, 0},
      {"mul24.lo.u32 %d, %a, %b;", 0xFF000003, 0x10, 0, 0x30},
      {"mul24.hi.s32 %d, %a, %b;", 0x00FFFFFF, 0x00010000, 0, kOnes32},
      {"mad.lo.s32 %d, %a, %b, %c;", 7, 6, 5, 47},
      {"mad.hi.u32 %d, %a, %b, %c;", kMin32, 4, 5, 7},
      {"mad.wide.s32 %dd, %a, %b, %cd;", kOnes32, 2, 10, 8},
      {"mad.hi.sat.s32 %d, %a, %b, %c;", 0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF},
      {"sad.s32 %d, %a, %b, %c;", 0xFFFFFFFE, 3, 10, 15},
      {"sad.u32 %d, %a, %b, %c;", 3, 8, 10, 15},
  });
}

TEST(IntegerInstructions, DivideIsDefinedForEveryInput) {
  RunCases({
      {"div.s32 %d, %a, %b;", 0xFFFFFFF9, 2, 0, 0xFFFFFFFD},
      {"rem.s32 %d, %a, %b;", 0xFFFFFFF9, 2, 0, kOnes32},
      {"div.u32 %d, %a, %b;", 0xFFFFFFF9, 2, 0, 0x7FFFFFFC},
      {"div.s32 %d, %a, %b;", kMin32, kOnes32, 0, kMin32},
      {"rem.s32 %d, %a, %b;", kMin32, kOnes32, 0, 0},
      {"div.s64 %dd, %ad, %bd;", kMin64, kOnes64, 0, kMin64},
      {"rem.s64 %dd, %ad, %bd;", kMin64, kOnes64, 0, 0},
      // By zero: unspecified by the ISA; here a value, and no crash.
      {"div.u32 %d, %a, %b;", 5, 0, 0, kOnes32},
      {"rem.u32 %d, %a, %b;", 5, 0, 0, 5},
      {"div.s64 %dd, %ad, %bd;", 5, 0, 0, kOnes64},
      {"rem.s16 %dh, %ah, %bh;", 0xFFF9, 0, 0, 0xFFF9},
      {"div.u16 %dh, %ah, %bh;", 100, 7, 0, 14},
  });
}

TEST(IntegerInstructions, AbsNegMinMax) {
  RunCases({
      {"abs.s32 %d, %a;", kMin32, 0, 0, kMin32},
      {"abs.s32 %d, %a;", kOnes32, 0, 0, 1},
      {"neg.s64 %dd, %ad;", 5, 0, 0, 0xFFFFFFFFFFFFFFFB},
      {"neg.s16 %dh, %ah;", 5, 0, 0, 0xFFFB},
      {"min.s32 %d, %a, %b;", kOnes32, 1, 0, kOnes32},
      {"min.u32 %d, %a, %b;", kOnes32, 1, 0, 1},
      {"max.s64 %dd, %ad, %bd;", kOnes64, 1, 0, 1},
      {"max.u16 %dh, %ah, %bh;", 0xFFFF, 1, 0, 0xFFFF},
      {"max.relu.s32 %d, %a, %b;", 0xFFFFFFFE, kOnes32, 0, 0},
  });
}

TEST(IntegerInstructions, ShiftAmountsAboveTheWidthAreClamped) {
  RunCases({
      {"shl.b32 %d, %a, %b;", 1, 31, 0, kMin32},
      {"shl.b32 %d, %a, %b;", 1, 32, 0, 0},
      {"shl.b32 %d, %a, %b;", 1, kOnes32, 0, 0},
      {"shr.u32 %d, %a, %b;", kMin32, 31, 0, 1},
      {"shr.u32 %d, %a, %b;", kMin32, 33, 0, 0},
      {"shr.s32 %d, %a, %b;", kMin32, 33, 0, kOnes32},
      {"shr.s32 %d, %a, %b;", 0x7FFFFFFF, 99, 0, 0},
      {"shl.b64 %dd, %ad, %b;", 1, 63, 0, kMin64},
      {"shl.b64 %dd, %ad, %b;", 1, 64, 0, 0},
      {"shr.s64 %dd, %ad, %b;", kMin64, 200, 0, kOnes64},
      {"shl.b16 %dh, %ah, %b;", 1, 16, 0, 0},
      {"shr.s16 %dh, %ah, %b;", 0x8000, 16, 0, 0xFFFF},
      {"shf.l.wrap.b32 %d, %a, %b, %c;", 0x80000001, 0x00000005, 4, 0x58},
      {"shf.r.wrap.b32 %d, %a, %b, %c;", 0x80000001, 0x00000005, 4, 0x58000000},
      {"shf.l.clamp.b32 %d, %a, %b, %c;", 0x11111111, 0x22222222, 40, 0x11111111},
      {"shf.r.clamp.b32 %d, %a, %b, %c;", 0x11111111, 0x22222222, 40, 0x22222222},
      {"shf.l.wrap.b32 %d, %a, %b, %c;", 0x11111111, 0x22222222, 32, 0x22222222},
  });
}

TEST(IntegerInstructions, LogicOnBitsAndPredicates) {
  RunCases({
      {"and.b32 %d, %a, %b;", 0xF0F0, 0xFF00, 0, 0xF000},
      {"or.b64 %dd, %ad, %bd;", 0xF0F0, 0xFF00, 0, 0xFFF0},
      {"xor.b16 %dh, %ah, %bh;", 0xF0F0, 0xFF00, 0, 0x0FF0},
      {"not.b32 %d, %a;", 0xF0F0, 0, 0, 0xFFFF0F0F},
      {"cnot.b32 %d, %a;", 0, 0, 0, 1},
      {"cnot.b32 %d, %a;", 8, 0, 0, 0},
      {"setp.eq.u32 %p, %a, 1; setp.eq.u32 %q, %b, 1; and.pred %p, %p, %q;", 1, 1, 0, 1},
      {"setp.eq.u32 %p, %a, 1; setp.eq.u32 %q, %b, 1; xor.pred %p, %p, %q;", 1, 1, 0, 0},
      {"setp.eq.u32 %p, %a, 1; not.pred %p, %p;", 1, 0, 0, 0},
      {"lop3.b32 %d, %a, %b, %c, 0x96;", 0b0011, 0b0101, 0b1111, 0b1001},
      {"lop3.b32 %d, %a, %b, %c, 0xE8;", 0b0011, 0b0101, 0b0110, 0b0111},
      {"lop3.b32 %d, %a, %b, %c, 0xF0;", 0x1234, 0x5678, 0x9ABC, 0x1234},
  });
}

TEST(IntegerInstructions, BitCountsAndFields) {
  RunCases({
      {"popc.b32 %d, %a;", 0xF00F, 0, 0, 8},
      {"popc.b64 %d, %ad;", kOnes64, 0, 0, 64},
      {"clz.b32 %d, %a;", 0, 0, 0, 32},
      {"clz.b64 %d, %ad;", 1, 0, 0, 63},
      {"brev.b32 %d, %a;", 1, 0, 0, kMin32},
      {"brev.b64 %dd, %ad;", 2, 0, 0, 0x4000000000000000},
      {"bfind.u32 %d, %a;", 0x00010000, 0, 0, 16},
      {"bfind.u32 %d, %a;", 0, 0, 0, kOnes32},
      {"bfind.s32 %d, %a;", kOnes32, 0, 0, kOnes32},
      {"bfind.s32 %d, %a;", 0xFFFFFFEF, 0, 0, 4},
      {"bfind.shiftamt.u32 %d, %a;", 0x00010000, 0, 0, 15},
      {"bfe.u32 %d, %a, %b, %c;", 0xABCDEF12, 8, 8, 0xEF},
      {"bfe.s32 %d, %a, %b, %c;", 0xABCDEF12, 8, 8, 0xFFFFFFEF},
      {"bfe.u32 %d, %a, %b, %c;", 0xABCDEF12, 0, 32, 0xABCDEF12},
      {"bfe.u32 %d, %a, %b, %c;", 0xABCDEF12, 28, 8, 0xA},
      {"bfe.s32 %d, %a, %b, %c;", 0xABCDEF12, 28, 8, 0xFFFFFFFA},
      {"bfe.s32 %d, %a, %b, %c;", 0xABCDEF12, 40, 8, kOnes32},
      {"bfe.u32 %d, %a, %b, %c;", 0xABCDEF12, 40, 8, 0},
      {"bfe.s32 %d, %a, %b, %c;", kOnes32, 4, 0, 0},
      {"bfe.u64 %dd, %ad, %b, %c;", 0x123456789ABCDEF0, 60, 255, 1},
      {"bfi.b32 %d, %a, %b, 8, 8;", 0xEF, 0x12345678, 0, 0x1234EF78},
      {"bfi.b32 %d, %a, %b, %c, 32;", 0xEF, 0x12345678, 0, 0xEF},
      {"bfi.b32 %d, %a, %b, %c, 4;", 0xEF, 0x12345678, 32, 0x12345678},
      {"bfi.b64 %dd, %ad, %bd, 32, 32;", 0xEF, 0x12345678, 0, 0xEF12345678},
      {"bmsk.clamp.b32 %d, %a, %b;", 4, 8, 0, 0xFF0},
      {"bmsk.clamp.b32 %d, %a, %b;", 4, 64, 0, 0xFFFFFFF0},
      {"bmsk.wrap.b32 %d, %a, %b;", 36, 33, 0, 0x10},
      {"szext.clamp.s32 %d, %a, %b;", 0x80, 8, 0, 0xFFFFFF80},
      {"szext.clamp.u32 %d, %a, %b;", 0x180, 8, 0, 0x80},
      {"szext.clamp.s32 %d, %a, %b;", 0x80000180, 99, 0, 0x80000180},
  });
}

TEST(IntegerInstructions, PermutesBytes) {
  RunCases({
      {"prmt.b32 %d, %a, %b, %c;", 0x33221100, 0x77665544, 0x3210, 0x33221100},
      {"prmt.b32 %d, %a, %b, %c;", 0x33221100, 0x77665544, 0x7531, 0x77553311},
      {"prmt.b32 %d, %a, %b, %c;", 0x00008000, 0, 0x9999, 0xFFFFFFFF},
      {"prmt.b32 %d, %a, %b, %c;", 0x00007F00, 0, 0x9999, 0},
      {"prmt.b32.f4e %d, %a, %b, %c;", 0x33221100, 0x77665544, 1, 0x44332211},
      {"prmt.b32.b4e %d, %a, %b, %c;", 0x33221100, 0x77665544, 1, 0x66770011},
      {"prmt.b32.rc8 %d, %a, %b, %c;", 0x33221100, 0x77665544, 2, 0x22222222},
      {"prmt.b32.ecl %d, %a, %b, %c;", 0x33221100, 0x77665544, 2, 0x33222222},
      {"prmt.b32.ecr %d, %a, %b, %c;", 0x33221100, 0x77665544, 2, 0x22221100},
      {"prmt.b32.rc16 %d, %a, %b, %c;", 0x33221100, 0x77665544, 1, 0x33223322},
  });
}

TEST(IntegerInstructions, DotProducts) {
  RunCases({
      {"dp4a.u32.u32 %d, %a, %b, %c;", 0x01020304, 0x01010101, 100, 110},
      {"dp4a.s32.s32 %d, %a, %b, %c;", 0xFFFFFFFF, 0x01020304, 0, 0xFFFFFFF6},
      {"dp2a.lo.s32.u32 %d, %a, %b, %c;", 0xFFFF0002, 0x00000503, 1, 2},
      {"dp2a.hi.u32.u32 %d, %a, %b, %c;", 0x00010002, 0x05030000, 1, 12},
  });
}

TEST(IntegerInstructions, ComparesBySignedness) {
  RunCases({
      {"setp.lt.s32 %p, %a, %b;", kOnes32, 0, 0, 1},
      {"setp.lt.u32 %p, %a, %b;", kOnes32, 0, 0, 0},
      {"setp.lo.u32 %p, %a, %b;", 0, kOnes32, 0, 1},
      {"setp.ls.u32 %p, %a, %b;", 5, 5, 0, 1},
      {"setp.hi.u64 %p, %ad, %bd;", kOnes64, 1, 0, 1},
      {"setp.hs.u16 %p, %ah, %bh;", 0xFFFF, 1, 0, 1},
      {"setp.ge.s16 %p, %ah, %bh;", 0xFFFF, 1, 0, 0},
      {"setp.ne.b32 %p, %a, %b;", 1, 2, 0, 1},
      {"setp.gt.and.s32 %p, %a, %b, %q;", 2, 1, 0, 0},
      {"setp.eq.u32 %q, %c, 1; setp.gt.or.s32 %p, %a, %b, !%q;", 1, 2, 0, 1},
      {"setp.eq.u32 %p|%q, %a, %b; selp.b32 %d, 1, 0, %q;", 1, 1, 0, 0},
      {"setp.eq.u32 %p|%q, %a, %b; selp.b32 %d, 1, 0, %q;", 1, 2, 0, 1},
      {"set.eq.u32.s32 %d, %a, %b;", 4, 4, 0, kOnes32},
      {"set.lt.f32.s32 %d, %a, %b;", kOnes32, 4, 0, F(1.0f)},
      {"setp.ne.u32 %q, %c, 0; selp.s64 %dd, %ad, %bd, %q;", 10, 20, 0, 20},
      {"slct.u32.s32 %d, %a, %b, %c;", 10, 20, kMin32, 20},
      {"slct.u32.s32 %d, %a, %b, %c;", 10, 20, 0, 10},
      {"slct.b32.f32 %d, %a, %b, %c;", 10, 20, kMinusZeroF, 10},
      {"slct.b32.f32 %d, %a, %b, %c;", 10, 20, kQuietF, 20},
  });
}

TEST(IntegerInstructions, GuardsAndUnwrittenRegisters) {
  RunCases({
      {"setp.eq.u32 %q, %a, 1; mov.b32 %d, 7; @%q mov.b32 %d, 8; @!%q mov.b32 %d, 9;", 1, 0, 0, 8},
      {"setp.eq.u32 %q, %a, 1; mov.b32 %d, 7; @%q mov.b32 %d, 8; @!%q mov.b32 %d, 9;", 2, 0, 0, 9},
      {"{ .reg .b32 %never; add.u32 %d, %never, %a; }", 3, 0, 0, 3},
  });
}

TEST(IntegerInstructions, UnknownOnesAreRefusedWithTheirLine) {
  EXPECT_EQ(LoadError(".reg .b32 %r<4>;\nadd.s32 %r1, %r2, %r3;\nfrobnicate.s32 %r1, %r2;"),
            absl::UnimplementedError("line 8: instruction `frobnicate.s32` is not supported"));
  EXPECT_EQ(LoadError(".reg .b32 %r<4>;\nadd.wild.s32 %r1, %r2, %r3;"),
            absl::UnimplementedError("line 7: instruction `add.wild.s32` is not supported"));
  EXPECT_EQ(LoadError(".reg .b32 %r<4>;\nadd.s32 %r1, %r2;"),
            absl::InvalidArgumentError("line 7: instruction `add.s32` does not take 2 operands"));
  EXPECT_EQ(LoadError(".reg .b32 %r<4>;\nmul.s32 %r1, %r2, %r3;"),
            absl::UnimplementedError("line 7: instruction `mul.s32` is not supported"));
  EXPECT_EQ(LoadError(".reg .b32 %r<4>;\nadd.s32 %r1, %r2, nowhere;"),
            absl::OutOfRangeError("line 7: unresolved symbol `nowhere`"));
  EXPECT_EQ(LoadError(".reg .b32 %r<4>;\nmov.u32 %r1, %unheard_of;"),
            absl::UnimplementedError("line 7: register `%unheard_of` is not supported"));
}

TEST(IntegerInstructions, PackedPairsAndBytes) {
  RunCases({
      {"add.u16x2 %d, %a, %b;", 0x0001FFFF, 0x00020001, 0, 0x00030000},
      {"add.s16x2 %d, %a, %b;", 0x7FFF8000, 0x0001FFFF, 0, 0x80007FFF},
      {"min.u16x2 %d, %a, %b;", 0xFFFF0001, 0x00018000, 0, 0x00010001},
      {"min.s16x2 %d, %a, %b;", 0xFFFF0001, 0x00018000, 0, 0xFFFF8000},
      {"max.u16x2 %d, %a, %b;", 0xFFFF0001, 0x00018000, 0, 0xFFFF8000},
      {"max.s16x2 %d, %a, %b;", 0xFFFF0001, 0x00018000, 0, 0x00010001},
      {"max.s16x2.relu %d, %a, %b;", 0xFFFF0003, 0xFFFE8000, 0, 0x00000003},
      {"vabsdiff4.u32.u32.u32 %d, %a, %b, %c;", 0x00FF1080, 0xFF002070, 9, 0xFFFF1010},
      {"vabsdiff4.u32.s32.s32 %d, %a, %b, %c;", 0x0080FF01, 0x017F0100, 9, 0x01FF0201},
      {"vabsdiff4.u32.u32.u32.add %d, %a, %b, %c;", 0x00FF1080, 0xFF002070, 9, 0x227},
      {"vabsdiff2.u32.u32.u32 %d, %a, %b, %c;", 0x0001FFFF, 0x00030000, 9, 0x0002FFFF},
      {"vabsdiff2.u32.s32.s32.add %d, %a, %b, %c;", 0x0001FFFF, 0x00030000, 9, 12},
  });
}

}  // namespace
}  // namespace consort::cpu
