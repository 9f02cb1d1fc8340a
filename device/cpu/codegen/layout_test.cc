// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/layout_test.cc: which loops are taken for ones in which a thread waits for
// memory, since such kernels run thread by thread, and which kernels may wait for another block.
#include "device/cpu/codegen/layout.h"

#include <string>
#include <utility>

#include "device/cpu/ptx/parser.h"
#include "gtest/gtest.h"

namespace consort::cpu {
namespace {

// Of a kernel and, before it, functions; empty where it cannot be made.
ModuleLayout LayoutOf(const std::string& body, const std::string& functions = "") {
  const auto module = ptx::ParsePtx(
      ".version 8.0\n.target sm_80\n.address_size 64\n" + functions +
      ".visible .entry k() {\n.reg .pred %p<4>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<4>;\n"
      ".shared .align 4 .b32 word;\n" +
      body + "\nret;\n}\n");
  EXPECT_TRUE(module.ok()) << module.status();
  if (!module.ok()) return {};
  auto layout = ModuleLayout::Make(**module);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.ok() ? *std::move(layout) : ModuleLayout();
}

size_t PollingBranches(const std::string& body) {
  const ModuleLayout layout = LayoutOf(body);
  return layout.functions.empty() ? 99 : layout.functions[0].polling_branches.size();
}

bool MayPoll(const std::string& body, const std::string& functions = "") {
  const ModuleLayout layout = LayoutOf(body, functions);
  EXPECT_FALSE(layout.kernels.empty());
  return !layout.kernels.empty() && layout.kernels.back().may_poll;
}

TEST(PollingTest, ALoopOverAVolatileLoadMayWait) {
  EXPECT_EQ(PollingBranches(
                "L: ld.volatile.shared.u32 %r1, [word]; setp.eq.u32 %p1, %r1, 0; @%p1 bra L;"),
            1u);
  EXPECT_EQ(PollingBranches("L: ld.shared.u32 %r1, [word]; setp.eq.u32 %p1, %r1, 0; @%p1 bra L;"),
            0u);
}

TEST(PollingTest, ABarrierInEachTurnLetsTheOthersRun) {
  EXPECT_EQ(PollingBranches("L: barrier.sync 0; ld.volatile.shared.u32 %r1, [word];"
                            "setp.eq.u32 %p1, %r1, 0; @%p1 bra L;"),
            0u);
  EXPECT_EQ(PollingBranches("L: ld.volatile.shared.u32 %r1, [word]; setp.eq.u32 %p2, %r1, 1;"
                            "@%p2 bra M; add.u32 %r1, %r1, 1; M: bar.sync 0;"
                            "setp.eq.u32 %p1, %r1, 0; @%p1 bra L;"),
            0u)
      << "at the end of each turn, whatever happens in it";
}

TEST(PollingTest, ABarrierThatMayBeMissedDoesNot) {
  EXPECT_EQ(PollingBranches("L: @%p3 bar.sync 0; ld.volatile.shared.u32 %r1, [word];"
                            "setp.eq.u32 %p1, %r1, 0; @%p1 bra L;"),
            1u)
      << "guarded";
  EXPECT_EQ(PollingBranches("L: ld.volatile.shared.u32 %r1, [word]; setp.eq.u32 %p2, %r1, 1;"
                            "@%p2 bra M; bar.sync 0; M: setp.eq.u32 %p1, %r1, 0; @%p1 bra L;"),
            1u)
      << "branched over";
  EXPECT_EQ(PollingBranches("L: bar.warp.sync 0xffffffff; ld.volatile.shared.u32 %r1, [word];"
                            "setp.eq.u32 %p1, %r1, 0; @%p1 bra L;"),
            1u)
      << "of a warp only";
}

// Else its blocks are not taken several at a time.
TEST(PollingTest, WhatAnotherBlockWritesIsSeenByFewInstructions) {
  EXPECT_FALSE(MayPoll("bar.sync 0; ld.global.u32 %r1, [%rd1]; red.global.add.u32 [%rd1], 1;"));
  for (const char* sees :
       {"ld.volatile.global.u32 %r1, [%rd1];", "ld.acquire.gpu.u32 %r1, [%rd1];",
        "ld.global.cv.u32 %r1, [%rd1];", "atom.global.add.u32 %r1, [%rd1], 0;"}) {
    EXPECT_TRUE(MayPoll(std::string("bar.sync 0;") + sees)) << sees;
    EXPECT_TRUE(MayPoll("call look;", ".func look() { .reg .b32 %r<9>; .reg .b64 %rd<4>;" +
                                          std::string(sees) + " ret; }"))
        << "called: " << sees;
  }
}

}  // namespace
}  // namespace consort::cpu
