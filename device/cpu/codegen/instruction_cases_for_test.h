// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/instruction_cases_for_test.h: runs single instructions with given values.
//
// A case is PTX code over the registers
//   %ah %bh %ch .b16, %a %b %c .b32, %ad %bd %cd .b64 (the three inputs, cut to size),
//   %t .b32, %td .b64, %q .pred (for use), and its result in %dh, %d, %dd or %p.
// All cases of a call are one kernel that reads its inputs from memory, so that nothing is folded
// before it runs. It runs as one thread, and as blocks whose threads run in step, in each of the
// widths that code is made for.
#ifndef CONSORT_DEVICE_CPU_CODEGEN_INSTRUCTION_CASES_FOR_TEST_H_
#define CONSORT_DEVICE_CPU_CODEGEN_INSTRUCTION_CASES_FOR_TEST_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "device/cpu/program.h"

namespace consort::cpu {

inline uint64_t F(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline uint64_t D(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// As an expected value: any NaN of that width.
inline constexpr uint64_t kNanF = 0x7FFFFFFF;
inline constexpr uint64_t kNanD = 0x7FFFFFFFFFFFFFFF;
// As inputs.
inline constexpr uint64_t kQuietF = 0x7FC00000;
inline constexpr uint64_t kQuietD = 0x7FF8000000000000;
inline constexpr uint64_t kInfF = 0x7F800000;
inline constexpr uint64_t kMinusInfF = 0xFF800000;
inline constexpr uint64_t kMinusZeroF = 0x80000000;
inline constexpr uint64_t kMinusZeroD = 0x8000000000000000;
inline constexpr uint64_t kTinyF = 1;  // the smallest subnormal

struct InstructionCase {
  const char* code;
  uint64_t a;
  uint64_t b;
  uint64_t c;
  uint64_t expected;
};

inline bool IsNan(uint64_t bits, bool is_double) {
  return is_double ? (bits << 1) > (kQuietD & ~(uint64_t{1} << 51)) << 1
                   : (bits & 0x7FFFFFFF) > kInfF;
}

inline void RunCases(const std::vector<InstructionCase>& cases) {
  std::string ptx =
      ".version 8.4\n.target sm_90\n.address_size 64\n"
      ".visible .entry cases(.param .u64 in, .param .u64 out)\n{\n"
      ".reg .b16 %ah, %bh, %ch, %dh;\n.reg .b32 %a, %b, %c, %d, %t;\n"
      ".reg .b64 %ad, %bd, %cd, %dd, %td, %in, %out;\n.reg .pred %p, %q;\n"
      "ld.param.u64 %in, [in];\nld.param.u64 %out, [out];\n"
      // Each thread has inputs and results of its own.
      "mov.u32 %a, %tid.y;\nmov.u32 %b, %ntid.x;\nmov.u32 %c, %tid.x;\n"
      "mad.lo.s32 %a, %a, %b, %c;\n"
      "mad.wide.u32 %in, %a, " +
      std::to_string(cases.size() * 24) + ", %in;\nmad.wide.u32 %out, %a, " +
      std::to_string(cases.size() * 8) + ", %out;\n";
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string code = cases[i].code;
    auto at = [](size_t offset) { return absl::StrCat("+", offset, "]"); };
    ptx += "ld.global.b64 %ad, [%in" + at(i * 24) + ";\nld.global.b64 %bd, [%in" + at(i * 24 + 8) +
           ";\nld.global.b64 %cd, [%in" + at(i * 24 + 16) +
           ";\ncvt.u32.u64 %a, %ad;\ncvt.u32.u64 %b, %bd;\ncvt.u32.u64 %c, %cd;\n"
           "cvt.u16.u64 %ah, %ad;\ncvt.u16.u64 %bh, %bd;\ncvt.u16.u64 %ch, %cd;\n"
           "mov.b32 %d, 0;\nmov.b64 %dd, 0;\nmov.b16 %dh, 0;\nsetp.ne.u32 %p, %a, %a;\n";
    ptx += code + "\n";
    if (code.find("%dd") != std::string::npos) {
      ptx += "mov.b64 %td, %dd;\n";
    } else if (code.find("%dh") != std::string::npos) {
      ptx += "cvt.u64.u16 %td, %dh;\n";
    } else if (code.find("%d") != std::string::npos) {
      ptx += "cvt.u64.u32 %td, %d;\n";
    } else {
      ptx += "selp.b64 %td, 1, 0, %p;\n";
    }
    ptx += "st.global.b64 [%out" + at(i * 8) + ", %td;\n";
  }
  ptx += "ret;\n}\n";
  auto program = Program::Load(ptx);
  ASSERT_TRUE(program.ok()) << program.status() << "\n" << ptx;
  constexpr uint32_t kBlocks[][2] = {{1, 1}, {40, 1}, {32, 2}, {16, 3}, {8, 2}, {5, 7}};
  for (const auto& block : kBlocks) {
    LaunchShape shape;
    shape.block[0] = block[0];
    shape.block[1] = block[1];
    const size_t threads = size_t{block[0]} * block[1];
    std::vector<uint64_t> in;
    std::vector<uint64_t> out(cases.size() * threads, 0xDEADDEADDEADDEAD);
    for (size_t thread = 0; thread < threads; ++thread) {
      for (const InstructionCase& each : cases) in.insert(in.end(), {each.a, each.b, each.c});
    }
    const void* params[2] = {in.data(), out.data()};
    ASSERT_EQ((*program)->Run(0, shape, params, 1), LaunchFault::kNone);
    for (size_t i = 0; i < out.size(); ++i) {
      const InstructionCase& each = cases[i % cases.size()];
      const bool nan_expected = each.expected == kNanF || each.expected == kNanD;
      if (nan_expected && IsNan(out[i], each.expected == kNanD)) continue;
      EXPECT_EQ(out[i], each.expected)
          << each.code << std::hex << "  a=0x" << each.a << " b=0x" << each.b << " c=0x" << each.c
          << " gives 0x" << out[i] << ", not 0x" << each.expected << ", thread " << std::dec
          << i / cases.size() << " of " << block[0] << " x " << block[1];
    }
  }
}

// The error of a module whose only kernel is `body`.
inline absl::Status LoadError(const std::string& body) {
  return Program::
      Load(".version 8.4\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n" +
           body + "\n}\n")
          .status();
}

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_CODEGEN_INSTRUCTION_CASES_FOR_TEST_H_
