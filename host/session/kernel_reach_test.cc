// SPDX-License-Identifier: Apache-2.0
#include "host/session/kernel_reach.h"

#include <gtest/gtest.h>

namespace consort::host {
namespace {

// Whether a kernel with this in its body is direct.
bool Direct(const std::string& body) {
  const std::string text =
      ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(\n.param .u64 p\n)\n{\n"
      "  .reg .b64 %rd<9>;\n  ld.param.u64 %rd1, [p];\n  cvta.to.global.u64 %rd2, %rd1;\n" +
      body + "\n  ret;\n}\n";
  return DirectKernelsOfPtx(text).contains("k");
}

TEST(KernelReach, NumbersAreNoPointers) {
  EXPECT_TRUE(Direct("ld.global.u32 %r1, [%rd2]; st.global.u32 [%rd2], %r1;"));
  EXPECT_TRUE(Direct("ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd2];"));
  EXPECT_TRUE(Direct("ld.global.f64 %fd1, [%rd2];"));
  // An index: gather.
  EXPECT_TRUE(
      Direct("ld.global.u32 %r1, [%rd2]; mul.wide.u32 %rd3, %r1, 4; "
             "add.s64 %rd4, %rd2, %rd3; ld.global.f32 %f1, [%rd4];"));
  EXPECT_TRUE(Direct("shl.b64 %rd3, %rd4, 3;"));
  EXPECT_TRUE(Direct("mov.u64 %rd3, %rd2; mov.b64 %rd4, %fd1;"));
  EXPECT_TRUE(Direct("$L__BB0_2:\n  @%p1 bra $L__BB0_2;"));
  EXPECT_TRUE(Direct("// ld.global.u64 %rd3, [%rd2];\n/* call foo; */"));
}

TEST(KernelReach, WhatCouldBeAPointerIsTakenForOne) {
  for (const char* body :
       {"ld.global.u64 %rd3, [%rd2];",
        "ld.global.nc.b64 %rd3, [%rd2];",
        "ld.global.v2.u64 {%rd3, %rd4}, [%rd2];",
        "ld.u64 %rd3, [%rd1];",
        "ld.const.u64 %rd3, [table];",
        "ld.shared.b64 %rd3, [%r1];",
        "ld.local.u64 %rd3, [%rd2];",
        "@%p1 ld.global.u64 %rd3, [%rd2];",
        "$L__BB0_2:\n ld.global.u64 %rd3, [%rd2];",
        "{ ld.global.u64 %rd3, [%rd2]; }",
        "mov.b64 %rd3, {%r1, %r2};",
        "or.b64 %rd3, %rd4, %rd5;",
        "shl.b64 %rd3, %rd4, 32;",
        "shl.b64 %rd3, %rd4, %r1;",
        "bfi.b64 %rd3, %rd4, %rd5, 32, 32;",
        "atom.global.exch.b64 %rd3, [%rd2], 0;",
        "call.uni (retval), malloc, (param0);",
        "call (%r1), %rd3, (%r2), prototype;",
        "tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd2, {%f5, %f6}];",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile [%r1], [%rd1, {%r2, %r3}], [%r4];",
        ".loc 1 2 3\n ld.global.u64 %rd3, [%rd2];"}) {
    EXPECT_FALSE(Direct(body)) << body;
  }
}

TEST(KernelReach, EachKernelIsJudgedByItself) {
  const std::set<std::string> direct = DirectKernelsOfPtx(R"(
.entry declared(.param .u64 p);
.visible .entry first(.param .u64 p) { ld.global.u64 %rd3, [%rd2]; ret; }
.func helper() { ld.global.u64 %rd3, [%rd2]; ret; }
.entry second(.param .u64 p) .maxntid 128, 1, 1 { { ld.global.u32 %r3, [%rd2]; } ret; }
.entry broken(.param .u64 p) { ret;
)");
  EXPECT_EQ(direct, (std::set<std::string>{"second"}));
}

TEST(KernelReach, AnImageThatIsNoneHasNoDirectKernels) {
  const std::byte noise[64] = {};
  EXPECT_TRUE(DirectKernels(noise).empty());
  EXPECT_TRUE(DirectKernels({}).empty());
}

}  // namespace
}  // namespace consort::host
