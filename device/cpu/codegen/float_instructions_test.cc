// SPDX-License-Identifier: Apache-2.0
// Values from the definitions and tables in PTX ISA 9.0, 9.7.3, 9.7.6.
#include <cmath>
#include <limits>

#include "device/cpu/codegen/instruction_cases_for_test.h"

namespace consort::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(FloatInstructions, ArithmeticRoundsAsAsked) {
  const uint64_t third_down = F(std::nextafter(1.0f / 3.0f, 0.0f));
  RunCases({
      {"add.f32 %d, %a, %b;", F(1.5f), F(2.25f), 0, F(3.75f)},
      {"add.rn.f32 %d, %a, %b;", F(1.0f), F(0x1p-24f), 0, F(1.0f)},
      {"add.rp.f32 %d, %a, %b;", F(1.0f), F(0x1p-24f), 0, F(1.0f + 0x1p-23f)},
      {"add.rm.f32 %d, %a, %b;", F(-1.0f), F(-0x1p-30f), 0, F(-1.0f - 0x1p-23f)},
      {"add.rz.f32 %d, %a, %b;", F(-1.0f), F(-0x1p-24f), 0, F(-1.0f)},
      {"sub.f64 %dd, %ad, %bd;", D(1.0), D(0.25), 0, D(0.75)},
      {"sub.rz.f64 %dd, %ad, %bd;", D(1.0), D(0x1p-80), 0, D(1.0 - 0x1p-53)},
      {"mul.rz.f32 %d, %a, %b;", F(1.0f + 0x1p-23f), F(1.0f + 0x1p-23f), 0, F(1.0f + 0x1p-22f)},
      {"mul.rp.f64 %dd, %ad, %bd;", D(1.0 + 0x1p-52), D(1.0 + 0x1p-52), 0,
       D(1.0 + 0x1p-51 + 0x1p-52)},
      {"div.rn.f32 %d, %a, %b;", F(1.0f), F(3.0f), 0, F(1.0f / 3.0f)},
      {"div.rz.f32 %d, %a, %b;", F(1.0f), F(3.0f), 0, third_down},
      {"div.approx.f32 %d, %a, %b;", F(10.0f), F(4.0f), 0, F(2.5f)},
      {"div.full.f32 %d, %a, %b;", F(-1.0f), F(0.0f), 0, kMinusInfF},
      {"div.rn.f64 %dd, %ad, %bd;", D(0.0), D(0.0), 0, kNanD},
      {"rcp.rn.f32 %d, %a;", F(-0.0f), 0, 0, kMinusInfF},
      {"rcp.rm.f32 %d, %a;", F(3.0f), 0, 0, third_down},
      {"sqrt.rn.f32 %d, %a;", F(2.0f), 0, 0, F(std::sqrt(2.0f))},
      {"sqrt.rn.f32 %d, %a;", F(-1.0f), 0, 0, kNanF},
      {"sqrt.approx.f32 %d, %a;", F(-0.0f), 0, 0, kMinusZeroF},
      {"sqrt.rp.f64 %dd, %ad;", D(2.0), 0, 0, D(std::sqrt(2.0))},
      // The nearest double lies above the root.
      {"sqrt.rm.f64 %dd, %ad;", D(2.0), 0, 0, D(std::nextafter(std::sqrt(2.0), 0.0))},
      {"rsqrt.approx.f32 %d, %a;", F(4.0f), 0, 0, F(0.5f)},
      {"rsqrt.approx.f32 %d, %a;", F(-0.0f), 0, 0, kMinusInfF},
      {"rsqrt.approx.f32 %d, %a;", kInfF, 0, 0, F(0.0f)},
  });
}

TEST(FloatInstructions, FmaRoundsOnceAndMulAddTwice) {
  const float a = 1.0f + 0x1p-12f;
  const float product = a * a;
  RunCases({
      {"fma.rn.f32 %d, %a, %b, %c;", F(a), F(a), F(-product), F(std::fma(a, a, -product))},
      {"mad.rn.f32 %d, %a, %b, %c;", F(a), F(a), F(-product), F(std::fma(a, a, -product))},
      {"mul.f32 %t, %a, %b; add.f32 %d, %t, %c;", F(a), F(a), F(-product), F(0.0f)},
      {"fma.rz.f32 %d, %a, %b, %c;", F(1.0f), F(-1.0f), F(-0x1p-30f), F(-1.0f)},
      {"fma.rm.f32 %d, %a, %b, %c;", F(1.0f), F(-1.0f), F(-0x1p-30f), F(-1.0f - 0x1p-23f)},
      {"fma.rn.f64 %dd, %ad, %bd, %cd;", D(1.0 + 0x1p-30), D(1.0 + 0x1p-30), D(-1.0),
       D(std::fma(1.0 + 0x1p-30, 1.0 + 0x1p-30, -1.0))},
  });
}

TEST(FloatInstructions, FlushToZeroKeepsTheSign) {
  RunCases({
      {"add.f32 %d, %a, %b;", kTinyF, kTinyF, 0, 2},
      {"add.ftz.f32 %d, %a, %b;", kTinyF, kTinyF, 0, 0},
      {"mul.ftz.f32 %d, %a, %b;", F(-0x1p-70f), F(0x1p-70f), 0, kMinusZeroF},
      {"mul.f32 %d, %a, %b;", F(-0x1p-70f), F(0x1p-70f), 0, F(-0x1p-140f)},
      {"mul.ftz.f32 %d, %a, %b;", F(0x1p-140f), F(0x1p100f), 0, 0},
      {"fma.rn.ftz.f32 %d, %a, %b, %c;", F(1.0f), F(0x1p-126f), F(-0x1p-127f), F(0x1p-126f)},
      {"abs.ftz.f32 %d, %a;", 0x80000001, 0, 0, 0},
      {"neg.ftz.f32 %d, %a;", kTinyF, 0, 0, kMinusZeroF},
      {"setp.gt.ftz.f32 %p, %a, %b;", kTinyF, 0, 0, 0},
      {"setp.gt.f32 %p, %a, %b;", kTinyF, 0, 0, 1},
      {"rcp.approx.ftz.f32 %d, %a;", kTinyF, 0, 0, kInfF},
  });
}

TEST(FloatInstructions, SaturationClampsToOneAndTakesNanToZero) {
  RunCases({
      {"add.sat.f32 %d, %a, %b;", F(0.75f), F(0.5f), 0, F(1.0f)},
      {"add.sat.f32 %d, %a, %b;", F(-0.75f), F(0.5f), 0, F(0.0f)},
      {"mul.sat.f32 %d, %a, %b;", F(0.5f), F(0.5f), 0, F(0.25f)},
      {"fma.rn.sat.f32 %d, %a, %b, %c;", kInfF, F(0.0f), F(1.0f), F(0.0f)},
      {"add.sat.f32 %d, %a, %b;", kQuietF, F(1.0f), 0, F(0.0f)},
  });
}

TEST(FloatInstructions, MinAndMaxOrderZerosAndDropNans) {
  RunCases({
      {"min.f32 %d, %a, %b;", F(0.0f), kMinusZeroF, 0, kMinusZeroF},
      {"min.f32 %d, %a, %b;", kMinusZeroF, F(0.0f), 0, kMinusZeroF},
      {"max.f32 %d, %a, %b;", kMinusZeroF, F(0.0f), 0, F(0.0f)},
      {"min.f32 %d, %a, %b;", kQuietF, F(2.0f), 0, F(2.0f)},
      {"max.f32 %d, %a, %b;", F(2.0f), kQuietF, 0, F(2.0f)},
      {"max.f32 %d, %a, %b;", kQuietF, kQuietF, 0, kNanF},
      {"max.NaN.f32 %d, %a, %b;", F(2.0f), kQuietF, 0, kNanF},
      {"min.f64 %dd, %ad, %bd;", D(-1.0), D(2.0), 0, D(-1.0)},
      {"max.f64 %dd, %ad, %bd;", kQuietD, D(2.0), 0, D(2.0)},
      {"min.xorsign.abs.f32 %d, %a, %b;", F(-3.0f), F(2.0f), 0, F(-2.0f)},
  });
}

TEST(FloatInstructions, SignOperations) {
  RunCases({
      {"abs.f32 %d, %a;", F(-2.5f), 0, 0, F(2.5f)},
      {"abs.f64 %dd, %ad;", kMinusZeroD, 0, 0, D(0.0)},
      {"neg.f32 %d, %a;", F(0.0f), 0, 0, kMinusZeroF},
      {"neg.f64 %dd, %ad;", D(1.0), 0, 0, D(-1.0)},
      {"copysign.f32 %d, %a, %b;", F(-1.0f), F(3.0f), 0, F(-3.0f)},
      {"copysign.f64 %dd, %ad, %bd;", D(1.0), D(-3.0), 0, D(3.0)},
      {"testp.finite.f32 %p, %a;", kInfF, 0, 0, 0},
      {"testp.infinite.f32 %p, %a;", kMinusInfF, 0, 0, 1},
      {"testp.notanumber.f64 %p, %ad;", kQuietD, 0, 0, 1},
      {"testp.number.f32 %p, %a;", kInfF, 0, 0, 1},
      {"testp.subnormal.f32 %p, %a;", kTinyF, 0, 0, 1},
      {"testp.normal.f32 %p, %a;", kTinyF, 0, 0, 0},
  });
}

TEST(FloatInstructions, EveryComparisonWithNumbersAndNans) {
  struct Row {
    const char* name;
    bool less, equal, greater, unordered;
  };
  const Row rows[] = {
      {"eq", false, true, false, false}, {"ne", true, false, true, false},
      {"lt", true, false, false, false}, {"le", true, true, false, false},
      {"gt", false, false, true, false}, {"ge", false, true, true, false},
      {"equ", false, true, false, true}, {"neu", true, false, true, true},
      {"ltu", true, false, false, true}, {"leu", true, true, false, true},
      {"gtu", false, false, true, true}, {"geu", false, true, true, true},
      {"num", true, true, true, false},  {"nan", false, false, false, true},
  };
  std::vector<std::string> code;
  for (const Row& row : rows) {
    code.push_back(std::string("setp.") + row.name + ".f32 %p, %a, %b;");
    code.push_back(std::string("setp.") + row.name + ".f64 %p, %ad, %bd;");
  }
  std::vector<InstructionCase> cases;
  for (size_t i = 0; i < std::size(rows); ++i) {
    const Row& row = rows[i];
    const char* single = code[2 * i].c_str();
    const char* wide = code[2 * i + 1].c_str();
    cases.push_back({single, F(1.0f), F(2.0f), 0, row.less});
    cases.push_back({single, F(0.0f), kMinusZeroF, 0, row.equal});
    cases.push_back({single, kInfF, F(2.0f), 0, row.greater});
    cases.push_back({single, kQuietF, F(2.0f), 0, row.unordered});
    cases.push_back({single, F(2.0f), kQuietF, 0, row.unordered});
    cases.push_back({wide, D(1.0), D(2.0), 0, row.less});
    cases.push_back({wide, D(2.0), kQuietD, 0, row.unordered});
  }
  RunCases(cases);
}

// The bounds are those of the ISA's chapters on each function.
TEST(FloatInstructions, ApproximationsKeepTheDocumentedError) {
  const char* ptx = R"(
.visible .entry k(.param .u64 in, .param .u64 out)
{
  .reg .b32 %r<8>; .reg .f32 %f<12>; .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];
  mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4; add.u64 %rd1, %rd1, %rd3;
  mul.wide.u32 %rd4, %r1, 32; add.u64 %rd2, %rd2, %rd4;
  ld.global.f32 %f1, [%rd1];
  ex2.approx.f32 %f2, %f1; st.global.f32 [%rd2], %f2;
  abs.f32 %f3, %f1; add.f32 %f3, %f3, 0f3F000000;
  lg2.approx.f32 %f4, %f3; st.global.f32 [%rd2+4], %f4;
  sin.approx.f32 %f5, %f1; st.global.f32 [%rd2+8], %f5;
  cos.approx.f32 %f6, %f1; st.global.f32 [%rd2+12], %f6;
  rsqrt.approx.f32 %f7, %f3; st.global.f32 [%rd2+16], %f7;
  rcp.approx.f32 %f8, %f3; st.global.f32 [%rd2+20], %f8;
  sqrt.approx.f32 %f9, %f3; st.global.f32 [%rd2+24], %f9;
  tanh.approx.f32 %f10, %f1; st.global.f32 [%rd2+28], %f10;
  ret;
})";
  auto program = Program::Load(ptx);
  ASSERT_TRUE(program.ok()) << program.status();
  constexpr int kCount = 1000;
  std::vector<float> in(kCount), out(kCount * 8);
  for (int i = 0; i < kCount; ++i) in[i] = -3.1f + 6.2f * static_cast<float>(i) / kCount;
  const void* params[2] = {in.data(), out.data()};
  LaunchShape shape;
  shape.block[0] = kCount;
  ASSERT_EQ((*program)->Run(0, shape, params, 1), LaunchFault::kNone);
  for (int i = 0; i < kCount; ++i) {
    const double x = in[i];
    const double y = std::fabs(in[i]) + 0.5f;
    const float* got = &out[i * 8];
    EXPECT_NEAR(got[0], std::exp2(x), std::exp2(x) * 0x1p-22) << x;
    EXPECT_NEAR(got[1], std::log2(y), std::max(0x1p-22, std::fabs(std::log2(y)) * 0x1p-22)) << x;
    EXPECT_NEAR(got[2], std::sin(x), 0x1p-20) << x;
    EXPECT_NEAR(got[3], std::cos(x), 0x1p-20) << x;
    EXPECT_NEAR(got[4], 1 / std::sqrt(y), 1 / std::sqrt(y) * 0x1p-22) << x;
    EXPECT_NEAR(got[5], 1 / y, 1 / y * 0x1p-23) << x;
    EXPECT_NEAR(got[6], std::sqrt(y), std::sqrt(y) * 0x1p-23) << x;
    EXPECT_NEAR(got[7], std::tanh(x), std::fabs(std::tanh(x)) * 0x1p-11) << x;
  }
}

// Over all magnitudes, not only those near one.
TEST(FloatInstructions, PowersAndLogarithmsOfAllMagnitudes) {
  const char* ptx = R"(
.visible .entry k(.param .u64 in, .param .u64 out)
{
  .reg .b32 %r<4>; .reg .f32 %f<8>; .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r1, %r2, 256, %r1;
  mul.wide.u32 %rd3, %r1, 8; add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;
  ld.global.v2.f32 {%f1, %f2}, [%rd1];
  ex2.approx.f32 %f3, %f1; lg2.approx.f32 %f4, %f2;
  st.global.v2.f32 [%rd2], {%f3, %f4};
  ret;
})";
  auto program = Program::Load(ptx);
  ASSERT_TRUE(program.ok()) << program.status();
  constexpr uint32_t kBlocks = 256;
  constexpr uint32_t kCount = kBlocks * 256;
  std::vector<float> in(kCount * 2), out(kCount * 2);
  for (uint32_t i = 0; i < kCount; ++i) {
    in[i * 2] = -126.0f + 253.9f * static_cast<float>(i) / kCount;
    // Bit patterns from the smallest subnormal to the largest float.
    const uint32_t bits = 1 + i * (0x7F7FFFFE / kCount);
    std::memcpy(&in[i * 2 + 1], &bits, sizeof(bits));
  }
  const void* params[2] = {in.data(), out.data()};
  LaunchShape shape;
  shape.grid[0] = kBlocks;
  shape.block[0] = 256;
  ASSERT_EQ((*program)->Run(0, shape, params, 1), LaunchFault::kNone);
  for (uint32_t i = 0; i < kCount; ++i) {
    const double power = std::exp2(static_cast<double>(in[i * 2]));
    const double logarithm = std::log2(static_cast<double>(in[i * 2 + 1]));
    ASSERT_NEAR(out[i * 2], power, power * 0x1p-22) << in[i * 2];
    ASSERT_NEAR(out[i * 2 + 1], logarithm, std::max(0x1p-22, std::fabs(logarithm) * 0x1p-22))
        << in[i * 2 + 1];
  }
}

// Functions that are called lane by lane, up to where a kernel runs thread by thread for it, and
// more often than a stack could have room for one by one.
TEST(FloatInstructions, LongKernelsFitTheirStack) {
  for (const int calls : {250, 5000}) {
    std::string ptx =
        ".version 8.4\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n"
        ".reg .b32 %r<4>; .reg .f32 %f<4>; .reg .b64 %rd<4>;\nld.param.u64 %rd1, [p];\n"
        "mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2;\n"
        "ld.global.f32 %f1, [%rd1];\n";
    for (int i = 0; i < calls; ++i) ptx += "add.rz.f32 %f1, %f1, 0f3F800000;\n";
    ptx += "st.global.f32 [%rd1], %f1;\nret;\n}\n";
    auto program = Program::Load(ptx);
    ASSERT_TRUE(program.ok()) << program.status();
    LaunchShape shape;
    shape.block[0] = 48;
    std::vector<float> values(shape.block[0]);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    const float* pointer = values.data();
    ASSERT_EQ((*program)->Run(0, shape, &pointer, 1), LaunchFault::kNone);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i], static_cast<float>(static_cast<int>(i) + calls));
    }
  }
}

TEST(FloatInstructions, SpecialValuesOfApproximations) {
  RunCases({
      {"ex2.approx.f32 %d, %a;", kMinusInfF, 0, 0, F(0.0f)},
      {"ex2.approx.f32 %d, %a;", F(200.0f), 0, 0, kInfF},
      {"ex2.approx.ftz.f32 %d, %a;", F(-140.0f), 0, 0, F(0.0f)},
      {"lg2.approx.f32 %d, %a;", F(0.0f), 0, 0, kMinusInfF},
      {"lg2.approx.f32 %d, %a;", F(-1.0f), 0, 0, kNanF},
      {"lg2.approx.f32 %d, %a;", F(8.0f), 0, 0, F(3.0f)},
      {"ex2.approx.f32 %d, %a;", F(-3.0f), 0, 0, F(0.125f)},
      {"ex2.approx.f32 %d, %a;", F(127.0f), 0, 0, F(0x1p127f)},
      {"ex2.approx.f32 %d, %a;", F(-149.0f), 0, 0, kTinyF},
      {"ex2.approx.f32 %d, %a;", kInfF, 0, 0, kInfF},
      {"ex2.approx.f32 %d, %a;", kQuietF, 0, 0, kNanF},
      {"lg2.approx.f32 %d, %a;", kInfF, 0, 0, kInfF},
      {"lg2.approx.f32 %d, %a;", kQuietF, 0, 0, kNanF},
      {"lg2.approx.f32 %d, %a;", kMinusZeroF, 0, 0, kMinusInfF},
      {"lg2.approx.f32 %d, %a;", kMinusInfF, 0, 0, kNanF},
      {"lg2.approx.f32 %d, %a;", kTinyF, 0, 0, F(-149.0f)},
      {"sin.approx.f32 %d, %a;", kInfF, 0, 0, kNanF},
      {"cos.approx.f32 %d, %a;", kMinusZeroF, 0, 0, F(1.0f)},
      {"rcp.approx.f32 %d, %a;", kMinusInfF, 0, 0, kMinusZeroF},
      {"add.f32 %d, %a, %b;", F(kInf), F(-kInf), 0, kNanF},
  });
}

TEST(FloatInstructions, HalfPrecision) {
  RunCases({
      {"add.f16 %dh, %ah, %bh;", 0x3C00, 0x4000, 0, 0x4200},               // 1 + 2
      {"mul.f16 %dh, %ah, %bh;", 0x3C00, 0xC000, 0, 0xC000},               // 1 * -2
      {"fma.rn.f16 %dh, %ah, %bh, %ch;", 0x4000, 0x4000, 0x3C00, 0x4500},  // 2 * 2 + 1
      {"add.f16x2 %d, %a, %b;", 0x3C004000, 0x40003C00, 0, 0x42004200},
      {"setp.lt.f16 %p, %ah, %bh;", 0x3C00, 0x4000, 0, 1},
      {"add.bf16 %dh, %ah, %bh;", 0x3F80, 0x4000, 0, 0x4040},
      {"set.eq.f16x2.f16x2 %d, %a, %b;", 0x3C004000, 0x3C003C00, 0, 0x3C000000},
      {"set.gt.u32.f16x2 %d, %a, %b;", 0x3C004000, 0x3C003C00, 0, 0xFFFF},
      {"setp.gt.f16x2 %p|%q, %a, %b; selp.b32 %d, 1, 0, %q; @%p add.u32 %d, %d, 2;", 0x3C004000,
       0x3C003C00, 0, 2},
      {"neg.f16x2 %d, %a;", 0x3C004000, 0, 0, 0xBC00C000},
  });
}

}  // namespace
}  // namespace consort::cpu
