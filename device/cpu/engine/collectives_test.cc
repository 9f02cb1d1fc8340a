// SPDX-License-Identifier: Apache-2.0
// Barriers, warp collectives, divergence, deadlocks and faults, through Program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "device/cpu/program.h"

namespace consort::cpu {
namespace {

// A kernel whose %rd1 is its parameter, %r1 the thread's number and %rd2 the address of its own
// 32-bit word of the parameter.
std::string Kernel(const std::string& body, const std::string& before = "") {
  return ".version 8.4\n.target sm_90\n.address_size 64\n" + before +
         "\n.visible .entry k(.param .u64 p)\n{\n.reg .pred %p<9>;\n.reg .b32 %r<40>;\n"
         ".reg .b64 %rd<40>;\nld.param.u64 %rd1, [p];\nmov.u32 %r1, %tid.x;\n"
         "mul.wide.u32 %rd2, %r1, 4;\nadd.u64 %rd2, %rd2, %rd1;\n" +
         body + "\nret;\n}\n";
}

class Collectives : public testing::Test {
 protected:
  // `blocks` of `threads`, each with words in out_.
  LaunchFault Run(const std::string& ptx, uint32_t threads, uint32_t blocks = 1, int workers = 1,
                  bool cooperative = false) {
    auto program = Program::Load(ptx);
    EXPECT_TRUE(program.ok()) << program.status();
    if (!program.ok()) return LaunchFault::kNone;
    LaunchShape shape;
    shape.block[0] = threads;
    shape.grid[0] = blocks;
    shape.cooperative = cooperative;
    out_.resize(size_t{threads} * blocks * words_, 0xEEEEEEEE);
    void* pointer = out_.data();
    return (*program)->Run(0, shape, &pointer, workers);
  }

  std::vector<uint32_t> out_;
  size_t words_ = 1;  // of out_, a thread
};

TEST_F(Collectives, BarrierShowsEveryThreadsStores) {
  // Reverses a block's numbers through shared memory, three times, as an odd count shows.
  ASSERT_EQ(Run(Kernel(R"(
  .shared .align 4 .b8 tile[4096];
  mov.u32 %r2, %ntid.x; sub.u32 %r3, %r2, 1; sub.u32 %r3, %r3, %r1;
  mov.u32 %r4, tile; mad.lo.u32 %r5, %r1, 4, %r4; mad.lo.u32 %r6, %r3, 4, %r4;
  mov.u32 %r7, %r1; mov.u32 %r8, 0;
again:
  st.shared.u32 [%r5], %r7; bar.sync 0; ld.shared.u32 %r7, [%r6]; barrier.sync.aligned 0;
  add.u32 %r8, %r8, 1; setp.lt.u32 %p1, %r8, 3; @%p1 bra again;
  st.global.u32 [%rd2], %r7;)"),
                1000),
            LaunchFault::kNone);
  for (uint32_t i = 0; i < 1000; ++i) ASSERT_EQ(out_[i], 999 - i);
}

TEST_F(Collectives, CalledFunctionsMayWait) {
  // One register of the caller and one .local variable outlive the wait in the function.
  ASSERT_EQ(Run(Kernel(R"(
  .shared .align 4 .b8 tile[4096]; .local .align 4 .b8 mine[4];
  mov.u32 %r2, %ntid.x; sub.u32 %r3, %r2, 1; sub.u32 %r3, %r3, %r1;
  mov.u32 %r4, tile; mad.lo.u32 %r5, %r1, 4, %r4; mad.lo.u32 %r6, %r3, 4, %r4;
  add.u32 %r7, %r1, 5; st.volatile.local.u32 [mine], %r7;
  st.shared.u32 [%r5], %r1; call wait; ld.shared.u32 %r7, [%r6];
  ld.volatile.local.u32 %r8, [mine]; mad.lo.u32 %r7, %r7, 1000, %r8; st.global.u32 [%rd2], %r7;)",
                       ".func wait() { bar.sync 0; bar.warp.sync 0xFFFFFFFF; ret; }"),
                100),
            LaunchFault::kNone);
  for (uint32_t i = 0; i < 100; ++i) ASSERT_EQ(out_[i], (99 - i) * 1000 + i + 5);
}

TEST_F(Collectives, UnwrittenRegistersAreZeroInEachThread) {
  const std::string body =
      "setp.eq.u32 %p1, %r1, 1; @%p1 mov.u32 %r2, 7; st.global.u32 [%rd2], %r2;";
  for (const char* wait : {"", "bar.sync 0;"}) {
    ASSERT_EQ(Run(Kernel(wait + body), 4), LaunchFault::kNone);
    EXPECT_EQ(out_, (std::vector<uint32_t>{0, 7, 0, 0})) << wait;
  }
}

TEST_F(Collectives, ThreadsOfABlockCountThroughThreeDimensions) {
  const std::string body = R"(
  mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mov.u32 %r4, %laneid; mov.u32 %r5, %warpid;
  mad.lo.u32 %r6, %r3, 3, %r2; mad.lo.u32 %r6, %r6, 5, %r1;
  mul.wide.u32 %rd3, %r6, 4; add.u64 %rd3, %rd3, %rd1;
  mad.lo.u32 %r7, %r5, 32, %r4; mad.lo.u32 %r7, %r7, 10, %r3; mad.lo.u32 %r7, %r7, 10, %r2;
  mad.lo.u32 %r7, %r7, 10, %r1; st.global.u32 [%rd3], %r7;)";
  for (const char* wait : {"", "bar.sync 0;"}) {
    auto program = Program::Load(Kernel(wait + body));
    ASSERT_TRUE(program.ok()) << program.status();
    LaunchShape shape;
    shape.block[0] = 5;
    shape.block[1] = 3;
    shape.block[2] = 4;
    out_.assign(60, 0);
    void* pointer = out_.data();
    ASSERT_EQ((*program)->Run(0, shape, &pointer, 1), LaunchFault::kNone);
    for (uint32_t i = 0; i < 60; ++i) {
      ASSERT_EQ(out_[i], i * 1000 + i / 15 * 100 + i / 5 % 3 * 10 + i % 5) << wait;
    }
  }
}

// The blocks meet by counting in a word of memory, after each thread has written a word; then each
// copies what the next block's thread wrote.
TEST_F(Collectives, EveryBlockOfAGridRunsOnceAtItsPlace) {
  // Each thread counts itself in a word of its own.
  const std::string body = R"(
  mov.u32 %r2, %ctaid.z;
  mov.u32 %r3, %nctaid.y; mov.u32 %r4, %ctaid.y; mad.lo.u32 %r2, %r2, %r3, %r4;
  mov.u32 %r3, %nctaid.x; mov.u32 %r4, %ctaid.x; mad.lo.u32 %r2, %r2, %r3, %r4;
  mov.u32 %r3, %ntid.z; mov.u32 %r4, %tid.z; mad.lo.u32 %r2, %r2, %r3, %r4;
  mov.u32 %r3, %ntid.y; mov.u32 %r4, %tid.y; mad.lo.u32 %r2, %r2, %r3, %r4;
  mov.u32 %r3, %ntid.x; mad.lo.u32 %r2, %r2, %r3, %r1;
  mul.wide.u32 %rd3, %r2, 4; add.u64 %rd3, %rd3, %rd1; red.global.add.u32 [%rd3], 1;)";
  const std::string functions = ".func nothing() { ret; }\n.func wait() { bar.sync 0; ret; }";
  for (const char* before : {"", "call nothing;", "bar.sync 0;", "call wait;"}) {
    auto program = Program::Load(Kernel(before + body, functions));
    ASSERT_TRUE(program.ok()) << program.status();
    for (const auto& block :
         {std::array<uint32_t, 3>{64, 1, 1}, {5, 3, 2}, {1, 70, 1}, {3, 1, 1}}) {
      LaunchShape shape = {.grid = {7, 5, 60}, .block = {block[0], block[1], block[2]}};
      out_.assign(size_t{7 * 5 * 60} * block[0] * block[1] * block[2], 0);
      void* pointer = out_.data();
      ASSERT_EQ((*program)->Run(0, shape, &pointer, 3), LaunchFault::kNone);
      EXPECT_THAT(out_, testing::Each(1)) << before << " rows of " << block[0];
    }
  }
}

TEST_F(Collectives, NoBlockBeginsAfterAFault) {
  constexpr uint32_t kBlocks = 2000, kBad = 700;
  for (const char* before : {"", "bar.sync 0;"}) {
    out_.assign(kBlocks, 0);
    ASSERT_EQ(Run(Kernel(std::string(before) + R"(
  mov.u32 %r2, %ctaid.x; setp.eq.u32 %p1, %r2, 700; @%p1 trap;
  mul.wide.u32 %rd3, %r2, 4; add.u64 %rd3, %rd3, %rd1; st.global.u32 [%rd3], 1;)"),
                  1, kBlocks),
              LaunchFault::kTrap);
    for (uint32_t i = 0; i < kBlocks; ++i) ASSERT_EQ(out_[i], i < kBad ? 1 : 0) << i << before;
  }
}

TEST_F(Collectives, BlocksOfACooperativeLaunchWaitThroughMemory) {
  const auto kernel = [](const std::string& meet, const std::string& function) {
    return Kernel(R"(
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r6, %nctaid.x;
  mad.lo.u32 %r4, %r2, %r3, %r1;
  mul.wide.u32 %rd2, %r4, 4; add.u64 %rd2, %rd2, %rd1; add.u32 %r5, %r4, 7;
  st.global.u32 [%rd2], %r5; bar.sync 0; setp.ne.u32 %p2, %r1, 0;)" +
                      meet + R"(
  add.u32 %r7, %r2, 1; rem.u32 %r7, %r7, %r6; mad.lo.u32 %r7, %r7, %r3, %r1;
  mul.wide.u32 %rd3, %r7, 4; add.u64 %rd3, %rd3, %rd1; ld.volatile.global.u32 %r8, [%rd3];
  mul.lo.u32 %r9, %r6, %r3; mul.wide.u32 %rd4, %r9, 4; add.u64 %rd4, %rd4, %rd2;
  st.global.u32 [%rd4], %r8;)",
                  ".global .align 4 .u32 arrived = 0;\n" + function);
  };
  const std::string arrive = "atom.add.release.gpu.global.u32 %r11, [arrived], 1;\n";
  const std::string poll =
      "poll: ld.acquire.gpu.global.u32 %r12, [arrived]; setp.lt.u32 %p1, %r12, %r6; "
      "@%p1 bra poll;\n";
  const struct {
    const char* name;
    std::string ptx;
  } cases[] = {
      {"one thread polls", kernel("@%p2 bra met;\n" + arrive + poll + "met: bar.sync 0;", "")},
      {"in a function",
       kernel("@%p2 bra met;\ncall meet;\nmet: bar.sync 0;",
              ".func meet() { .reg .pred %p<9>; .reg .b32 %r<20>; mov.u32 %r6, %nctaid.x;\n" +
                  arrive + poll + "ret; }")},
      {"all threads, from barrier to barrier of their block",
       kernel("@%p2 bra poll;\n" + arrive +
                  "poll: bar.sync 0; ld.acquire.gpu.global.u32 %r12, [arrived]; bar.sync 0;\n"
                  "setp.lt.u32 %p1, %r12, %r6; @%p1 bra poll;",
              "")},
  };
  constexpr uint32_t kThreads = 40, kBlocks = 9, kAll = kThreads * kBlocks;
  words_ = 2;
  for (const auto& one : cases) {
    for (const int workers : {1, 3}) {
      out_.clear();
      ASSERT_EQ(Run(one.ptx, kThreads, kBlocks, workers, true), LaunchFault::kNone) << one.name;
      for (uint32_t i = 0; i < kAll; ++i) {
        ASSERT_EQ(out_[kAll + i], (i + kThreads) % kAll + 7) << one.name << ", thread " << i;
      }
    }
  }
}

// The others wait for the one that faults.
TEST_F(Collectives, FaultOfOneBlockEndsACooperativeLaunch) {
  const std::string ptx = Kernel(
      "mov.u32 %r2, %ctaid.x; setp.eq.u32 %p1, %r2, 2; @%p1 trap;\n"
      "poll: ld.acquire.gpu.global.u32 %r3, [never]; setp.eq.u32 %p2, %r3, 0; @%p2 bra poll;",
      ".global .align 4 .u32 never = 0;\n");
  for (const int workers : {1, 3}) {
    EXPECT_EQ(Run(ptx, 32, 4, workers, true), LaunchFault::kTrap);
    // What waited in vain then is not gone on with now.
    out_.clear();
    ASSERT_EQ(Run(Kernel("bar.sync 0; st.global.u32 [%rd2], %r1;"), 64, 9, workers, true),
              LaunchFault::kNone);
    for (uint32_t i = 0; i < 64; ++i) ASSERT_EQ(out_[i], i);
    out_.clear();
  }
}

TEST_F(Collectives, BarriersInDifferentBranchesMeet) {
  ASSERT_EQ(Run(Kernel(R"(
  .shared .align 4 .b8 tile[512];
  mov.u32 %r4, tile; mad.lo.u32 %r5, %r1, 4, %r4; xor.b32 %r6, %r1, 1; mad.lo.u32 %r6, %r6, 4, %r4;
  and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra even;
  add.u32 %r3, %r1, 1000; st.shared.u32 [%r5], %r3; bar.sync 1; bra join;
even: add.u32 %r3, %r1, 2000; st.shared.u32 [%r5], %r3; bar.sync 1;
join: ld.shared.u32 %r7, [%r6]; st.global.u32 [%rd2], %r7;)"),
                128),
            LaunchFault::kNone);
  for (uint32_t i = 0; i < 128; ++i) ASSERT_EQ(out_[i], i % 2 ? i - 1 + 2000 : i + 1 + 1000);
}

// At barrier 0 threads wait for the whole block with a reduction, without, or with a count of all
// its threads, in whole warps. Who comes first makes no difference, nor whether threads run in
// step, as they do where a branch is taken by whole warps.
TEST_F(Collectives, AllWaysOfWaitingForTheBlockMeet) {
  constexpr uint32_t kThreads = 72;
  for (const char* other : {"bar.red.popc.u32 %r3, 0, %p2;", "bar.sync 0;", "bar.sync 0, 96;"}) {
    for (const char* first : {"setp.lt.u32 %p1, %r1, 32;", "setp.ge.u32 %p1, %r1, 32;",
                              "and.b32 %r6, %r1, 1; setp.eq.u32 %p1, %r6, 0;"}) {
      SCOPED_TRACE(std::string(other) + " " + first);
      out_.clear();
      ASSERT_EQ(Run(Kernel(std::string(R"(
  .shared .align 4 .b8 tile[4096];
  mov.u32 %r4, tile; mad.lo.u32 %r5, %r1, 4, %r4; mov.u32 %r8, 0; mov.u32 %r9, 0;
  setp.ne.u32 %p2, %r1, 99;
)") + first + R"(
  mov.u32 %r6, %ntid.x; sub.u32 %r6, %r6, 1; sub.u32 %r6, %r6, %r1; mad.lo.u32 %r6, %r6, 4, %r4;
again:
  add.u32 %r2, %r1, %r8; st.shared.u32 [%r5], %r2;
  @%p1 bra other; bar.sync 0; bra join;
other: )" + other + R"(
join:
  ld.shared.u32 %r7, [%r6]; add.u32 %r9, %r9, %r7; bar.sync 0;
  add.u32 %r8, %r8, 1; setp.lt.u32 %p3, %r8, 5; @%p3 bra again;
  st.global.u32 [%rd2], %r9;)"),
                    kThreads, 3),
                LaunchFault::kNone);
      for (uint32_t i = 0; i < kThreads; ++i) EXPECT_EQ(out_[i], 5 * (kThreads - 1 - i) + 10);
    }
  }
}

TEST_F(Collectives, ThreadsThatLeftDoNotHoldABarrier) {
  ASSERT_EQ(Run(Kernel("setp.gt.u32 %p1, %r1, 9; @%p1 exit; bar.sync 0; bar.sync 0;"
                       "st.global.u32 [%rd2], %r1;"),
                70),
            LaunchFault::kNone);
  for (uint32_t i = 0; i < 70; ++i) ASSERT_EQ(out_[i], i < 10 ? i : 0xEEEEEEEE);
}

TEST_F(Collectives, NamedBarrierCountsWarps) {
  // Warps 0 and 1 of three meet at barrier 3; warp 2, which has 6 lanes, only arrives at barrier 4,
  // for which warp 0 waits.
  ASSERT_EQ(Run(Kernel(R"(
  .shared .align 4 .b8 flag[16];
  setp.gt.u32 %p1, %r1, 63; @%p1 bra last;
  bar.sync 3, 64; setp.gt.u32 %p2, %r1, 31; @%p2 bra done;
  bar.sync 4, 64; ld.shared.u32 %r2, [flag]; st.global.u32 [%rd2], %r2; bra done;
last: st.shared.u32 [flag], 5; bar.arrive 4, 64;
done:)"),
                70),
            LaunchFault::kNone);
  for (uint32_t i = 0; i < 70; ++i) ASSERT_EQ(out_[i], i < 32 ? 5u : 0xEEEEEEEE) << i;
}

TEST_F(Collectives, BarrierReductions) {
  ASSERT_EQ(Run(Kernel(R"(
  setp.lt.u32 %p1, %r1, 40; bar.red.popc.u32 %r2, 0, %p1;
  bar.red.and.pred %p2, 0, %p1; bar.red.or.pred %p3, 0, %p1; barrier.red.and.pred %p4, 0, !%p5;
  selp.u32 %r3, 100, 0, %p2; selp.u32 %r4, 200, 0, %p3; selp.u32 %r5, 400, 0, %p4;
  add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4; add.u32 %r2, %r2, %r5;
  st.global.u32 [%rd2], %r2;)"),
                50),
            LaunchFault::kNone);
  EXPECT_THAT(out_, testing::Each(40 + 200 + 400));
}

TEST_F(Collectives, ShufflesFollowTheirModesAndSegments) {
  struct Row {
    const char* code;
    uint32_t (*expected)(uint32_t lane);
  };
  const Row rows[] = {
      {"shfl.sync.idx.b32 %r3|%p1, %r2, 5, 31, -1;", [](uint32_t) { return 105u; }},
      {"shfl.sync.up.b32 %r3|%p1, %r2, 3, 0, -1;",
       [](uint32_t lane) { return lane >= 3 ? 100 + lane - 3 : 1000 + 100 + lane; }},
      {"shfl.sync.down.b32 %r3|%p1, %r2, 4, 31, -1;",
       [](uint32_t lane) { return lane + 4 <= 31 ? 100 + lane + 4 : 1000 + 100 + lane; }},
      {"shfl.sync.bfly.b32 %r3|%p1, %r2, 7, 31, -1;",
       [](uint32_t lane) { return 100 + (lane ^ 7); }},
      // Segments of 8: c = (32 - 8) << 8 | 7 (and 0 for up).
      {"shfl.sync.down.b32 %r3|%p1, %r2, 2, 0x1807, -1;",
       [](uint32_t lane) { return lane % 8 + 2 < 8 ? 100 + lane + 2 : 1000 + 100 + lane; }},
      {"shfl.sync.up.b32 %r3|%p1, %r2, 2, 0x1800, -1;",
       [](uint32_t lane) { return lane % 8 >= 2 ? 100 + lane - 2 : 1000 + 100 + lane; }},
      {"shfl.sync.idx.b32 %r3|%p1, %r2, 9, 0x1807, -1;",
       [](uint32_t lane) { return 100 + lane / 8 * 8 + 1; }},
  };
  for (const Row& row : rows) {
    ASSERT_EQ(Run(Kernel("mov.u32 %r5, %laneid; add.u32 %r2, %r5, 100;" + std::string(row.code) +
                         "@!%p1 add.u32 %r3, %r3, 1000; st.global.u32 [%rd2], %r3;"),
                  64),
              LaunchFault::kNone);
    for (uint32_t i = 0; i < 64; ++i) ASSERT_EQ(out_[i], row.expected(i % 32)) << row.code << i;
  }
}

TEST_F(Collectives, VotesMatchesAndReductions) {
  ASSERT_EQ(Run(Kernel(R"(
  setp.lt.u32 %p1, %r1, 4; vote.sync.ballot.b32 %r2, %p1, -1;
  vote.sync.any.pred %p2, %p1, -1; vote.sync.all.pred %p3, %p1, -1; vote.sync.uni.pred %p4, %p1, -1;
  selp.u32 %r3, 0x100, 0, %p2; selp.u32 %r4, 0x200, 0, %p3; selp.u32 %r5, 0x400, 0, %p4;
  or.b32 %r2, %r2, %r3; or.b32 %r2, %r2, %r4; or.b32 %r2, %r2, %r5; st.global.u32 [%rd2], %r2;)"),
                32),
            LaunchFault::kNone);
  EXPECT_THAT(out_, testing::Each(0x10F));
  ASSERT_EQ(Run(Kernel("and.b32 %r2, %r1, 3; match.any.sync.b32 %r3, %r2, -1;"
                       "st.global.u32 [%rd2], %r3;"),
                32),
            LaunchFault::kNone);
  for (uint32_t i = 0; i < 32; ++i) ASSERT_EQ(out_[i], 0x11111111u << i % 4);
  ASSERT_EQ(Run(Kernel("shr.u32 %r2, %r1, 5; mul.wide.u32 %rd3, %r2, %r1;"
                       "match.all.sync.b64 %r3|%p1, %rd3, -1; @%p1 add.u32 %r3, %r3, 2;"
                       "st.global.u32 [%rd2], %r3;"),
                64),
            LaunchFault::kNone);
  for (uint32_t i = 0; i < 64; ++i) ASSERT_EQ(out_[i], i < 32 ? 1u : 0u);
  ASSERT_EQ(Run(Kernel("redux.sync.add.u32 %r2, %r1, -1; redux.sync.max.s32 %r3, %r1, -1;"
                       "add.u32 %r2, %r2, %r3; st.global.u32 [%rd2], %r2;"),
                32),
            LaunchFault::kNone);
  EXPECT_THAT(out_, testing::Contains(496 + 31).Times(32));
}

TEST_F(Collectives, MaskedLanesMeetWithoutTheOthers) {
  // Even lanes sum among themselves while odd lanes are elsewhere; lanes 20 and up have left.
  ASSERT_EQ(Run(Kernel(R"(
  setp.gt.u32 %p1, %r1, 19; @%p1 exit;
  and.b32 %r2, %r1, 1; setp.eq.u32 %p2, %r2, 1; mov.u32 %r3, %r1; @%p2 bra odd;
  vote.sync.ballot.b32 %r3, %p3, 0x55555555;
  shfl.sync.idx.b32 %r3, %r1, 18, 31, 0x55555555;
  bar.warp.sync 0x55555555; bra join;
odd: shfl.sync.idx.b32 %r3, %r1, 19, 31, 0xAAAAAAAA;
join: bar.warp.sync -1; st.global.u32 [%rd2], %r3;)"),
                32),
            LaunchFault::kNone);
  for (uint32_t i = 0; i < 20; ++i) ASSERT_EQ(out_[i], 18 + i % 2);
  EXPECT_EQ(out_[20], 0xEEEEEEEE);
}

TEST_F(Collectives, ActiveMaskNamesTheLanesOfABranch) {
  ASSERT_EQ(Run(Kernel(R"(
  setp.lt.u32 %p1, %r1, 5; @%p1 bra few;
  activemask.b32 %r2; bra join;
few: activemask.b32 %r2;
join: st.global.u32 [%rd2], %r2;)"),
                40),
            LaunchFault::kNone);
  for (uint32_t i = 0; i < 40; ++i) {
    ASSERT_EQ(out_[i], i < 5 ? 0x1Fu : i < 32 ? 0xFFFFFFE0u : 0xFFu) << i;
  }
}

TEST_F(Collectives, ElectsOneLane) {
  ASSERT_EQ(Run(Kernel("elect.sync %r2|%p1, 0xFFFFFFF0; selp.u32 %r3, 1, 0, %p1;"
                       "shl.b32 %r2, %r2, 4; or.b32 %r3, %r3, %r2; st.global.u32 [%rd2], %r3;"),
                32),
            LaunchFault::kNone);
  for (uint32_t i = 4; i < 32; ++i) ASSERT_EQ(out_[i], i == 4 ? 0x41u : 0x40u);
}

TEST_F(Collectives, ThreadsMayPollMemoryOfTheirBlock) {
  // Thread 0 waits for a flag that the last thread sets; the last thread takes a lock after all
  // others.
  ASSERT_EQ(Run(Kernel(R"(
  .shared .align 4 .b8 flag[8];
  setp.ne.u32 %p1, %r1, 0; @%p1 bra set;
wait: ld.volatile.shared.u32 %r2, [flag]; setp.eq.u32 %p2, %r2, 0; @%p2 bra wait;
  st.global.u32 [%rd2], %r2; bra lock;
set: setp.eq.u32 %p3, %r1, 99; @%p3 st.volatile.shared.u32 [flag], 7; st.global.u32 [%rd2], 1;
lock: atom.shared.cas.b32 %r3, [flag+4], 0, 1; setp.ne.u32 %p4, %r3, 0; @%p4 bra lock;
  ld.volatile.global.u32 %r4, [%rd1+4]; add.u32 %r4, %r4, 1; st.volatile.global.u32 [%rd1+4], %r4;
  membar.cta; atom.shared.exch.b32 %r5, [flag+4], 0;)"),
                100),
            LaunchFault::kNone);
  EXPECT_EQ(out_[0], 7u);
}

TEST_F(Collectives, ThreadsWaitingForEachOtherAreADeadlock) {
  EXPECT_EQ(Run(Kernel("setp.eq.u32 %p1, %r1, 0; @%p1 bra one; bar.sync 1; bra join;"
                       "one: bar.sync 2; join: st.global.u32 [%rd2], 1;"),
                64),
            LaunchFault::kDeadlock);
  EXPECT_EQ(Run(Kernel("setp.eq.u32 %p1, %r1, 0; @%p1 bar.warp.sync 3;"
                       "setp.eq.u32 %p1, %r1, 1; @%p1 bar.sync 0; st.global.u32 [%rd2], 1;"),
                64),
            LaunchFault::kDeadlock);
  EXPECT_EQ(Run(Kernel("bar.sync 0, 96;"), 64), LaunchFault::kDeadlock);
  // The engine is as good as new afterwards.
  EXPECT_EQ(Run(Kernel("bar.sync 0; st.global.u32 [%rd2], %r1;"), 64), LaunchFault::kNone);
}

TEST_F(Collectives, FaultsEndTheLaunchAndNotTheProcess) {
  const std::string null_store = "mov.u64 %rd3, 64; st.global.u32 [%rd3], %r1;";
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(Run(Kernel(null_store), 64, 100, 3), LaunchFault::kIllegalAddress);
    EXPECT_EQ(Run(Kernel("bar.sync 0;" + null_store), 64, 100, 3), LaunchFault::kIllegalAddress);
    EXPECT_EQ(Run(Kernel("ld.shared.u32 %r2, [1000000]; st.global.u32 [%rd2], %r2;"), 1),
              LaunchFault::kIllegalAddress);
    EXPECT_EQ(Run(Kernel("trap;"), 64, 10, 2), LaunchFault::kTrap);
    EXPECT_EQ(Run(Kernel("bar.sync 0; setp.eq.u32 %p1, %r1, 63; @%p1 trap; bar.sync 0;"), 64),
              LaunchFault::kTrap);
    EXPECT_EQ(Run(Kernel("st.global.u32 [%rd2], %r1;"), 64), LaunchFault::kNone);
  }
  void* gone = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto program = Program::Load(Kernel("st.global.u32 [%rd2], %r1;"));
  ASSERT_TRUE(program.ok());
  EXPECT_EQ((*program)->Run(0, LaunchShape(), &gone, 1), LaunchFault::kIllegalAddress);
  munmap(gone, 4096);
}

TEST_F(Collectives, EndlessRecursionIsAFault) {
  EXPECT_EQ(Run(Kernel("call down; st.global.u32 [%rd2], 1;", R"(
.global .align 4 .u32 depth;
.func down() { .reg .b32 %r<3>; .local .align 8 .b8 depot[256]; .reg .b64 %rd;
  mov.u64 %rd, depot; ld.global.u32 %r1, [depth]; st.volatile.local.u32 [%rd+16], %r1;
  add.u32 %r1, %r1, 1; st.volatile.global.u32 [depth], %r1;
  call down; ld.volatile.local.u32 %r2, [%rd+16]; st.volatile.global.u32 [depth], %r2; ret; })"),
                1),
            LaunchFault::kStackOverflow);
}

// Each thread has as many words as it asks for, writes them, and reads them when all have written.
TEST_F(Collectives, AllocaGivesEachThreadMemoryOfItsOwn) {
  for (const std::string wait : {"", "bar.sync 0;"}) {
    ASSERT_EQ(Run(Kernel(R"(
rem.u32 %r2, %r1, 5; add.u32 %r2, %r2, 1; mul.wide.u32 %rd3, %r2, 4; mov.u32 %r5, 0; mov.u32 %r6, 0;
again: stacksave.u64 %rd7; alloca.u64 %rd4, %rd3, 64; and.b64 %rd5, %rd4, 63; cvt.u32.u64 %r3, %rd5;
mov.u32 %r4, 0; mov.u64 %rd6, %rd4;
fill: mad.lo.u32 %r7, %r1, 10, %r4; st.local.u32 [%rd6], %r7; add.u64 %rd6, %rd6, 4;
add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, %r2; @%p1 bra fill; )" +
                         wait +
                         R"(
mov.u32 %r4, 0; cvta.local.u64 %rd6, %rd4;
sum: ld.u32 %r7, [%rd6]; add.u32 %r5, %r5, %r7; add.u64 %rd6, %rd6, 4;
add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, %r2; @%p1 bra sum; add.u32 %r5, %r5, %r3;
stackrestore.u64 %rd7; add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, 9999; @%p1 bra again;
st.global.u32 [%rd2], %r5;)"),
                  40),
              LaunchFault::kNone);
    for (uint32_t i = 0; i < 40; ++i) {
      const uint32_t words = i % 5 + 1;
      ASSERT_EQ(out_[i], 9999 * (words * i * 10 + words * (words - 1) / 2)) << i << wait;
    }
    out_.clear();
  }
}

TEST_F(Collectives, AllocaOfTooMuchIsAFault) {
  for (const std::string bytes : {"0x1000000", "0x40000000", "-4096"}) {
    EXPECT_EQ(Run(Kernel("cvt.u64.u32 %rd3, %r1; add.u64 %rd3, %rd3, " + bytes +
                         R"(; alloca.u64 %rd4, %rd3;
st.local.u32 [%rd4], %r1; cvt.u32.u64 %r2, %rd4; st.global.u32 [%rd2], %r2;)"),
                  1),
              LaunchFault::kStackOverflow)
        << bytes;
  }
}

TEST_F(Collectives, ExitInsideAFunctionEndsTheThread) {
  ASSERT_EQ(Run(Kernel("call leave; bar.sync 0; st.global.u32 [%rd2], %r1;", R"(
.func leave() {
  .reg .b32 %r; .reg .pred %p; mov.u32 %r, %tid.x; setp.gt.u32 %p, %r, 2; @%p exit; ret; })"),
                40),
            LaunchFault::kNone);
  for (uint32_t i = 0; i < 40; ++i) ASSERT_EQ(out_[i], i <= 2 ? i : 0xEEEEEEEE);
}

TEST_F(Collectives, FaultsOutsideKernelsReachTheirOwnHandler) {
  ASSERT_EQ(Run(Kernel("st.global.u32 [%rd2], %r1;"), 1), LaunchFault::kNone);
  // Killed by the signal, or ended by a sanitizer's handler.
  volatile int* volatile nowhere = reinterpret_cast<volatile int*>(8);
  EXPECT_EXIT(
          *nowhere = 1, [](int status) { return status != 0; }, "");
}

TEST_F(Collectives, PrintfWritesToStdoutAndAssertToStderr) {
  const std::string library = R"(
.extern .func (.param .b32 func_retval0) vprintf (.param .b64 a, .param .b64 b);
.extern .func __assertfail (.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n,
                            .param .b64 c);
.global .align 1 .b8 format[] = {37, 100, 32, 37, 53, 46, 50, 102, 32, 37, 115, 32,
                                  37, 108, 108, 120, 33, 10, 0};
.global .align 1 .b8 text[3] = {104, 105};
)";
  testing::internal::CaptureStdout();
  EXPECT_EQ(Run(Kernel(R"(
  .local .align 8 .b8 depot[32]; mov.u64 %rd3, depot;
  st.local.u32 [%rd3], -5; st.local.f64 [%rd3+8], 0d4000000000000000; mov.u64 %rd4, text;
  st.local.u64 [%rd3+16], %rd4; st.local.u64 [%rd3+24], 0x123456789A;
  mov.u64 %rd5, format;
  { .param .b64 param0; st.param.b64 [param0], %rd5;
    .param .b64 param1; st.param.b64 [param1], %rd3;
    .param .b32 retval0; call.uni (retval0), vprintf, (param0, param1);
    ld.param.b32 %r2, [retval0]; }
  st.global.u32 [%rd2], %r2;)",
                       library),
                1),
            LaunchFault::kNone);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "-5  2.00 hi 123456789a!\n");
  EXPECT_EQ(out_[0], 4u);
  testing::internal::CaptureStderr();
  EXPECT_EQ(
      Run(Kernel("mov.u64 %rd4, text; call __assertfail, (%rd4, %rd4, 12, %rd4, 1);", library), 1),
      LaunchFault::kAssert);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "hi:12: hi: block: [0,0,0], thread: [0,0,0] Assertion `hi` failed.\n");
}

TEST_F(Collectives, ProgramsRunFromManyThreadsAtOnce) {
  auto program = Program::Load(Kernel(R"(
  .shared .align 4 .b8 sum[4];
  setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [sum], 0; bar.sync 0;
  atom.shared.add.u32 %r2, [sum], %r1; bar.sync 0;
  ld.shared.u32 %r3, [sum]; mov.u32 %r4, %ctaid.x; mul.wide.u32 %rd3, %r4, 4;
  add.u64 %rd3, %rd3, %rd1;
  @%p1 st.global.u32 [%rd3], %r3;)"));
  ASSERT_TRUE(program.ok()) << program.status();
  std::vector<std::vector<uint32_t>> results(4, std::vector<uint32_t>(40));
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&program, &result] {
      LaunchShape shape;
      shape.grid[0] = 40;
      shape.block[0] = 96;
      for (int round = 0; round < 5; ++round) {
        void* pointer = result.data();
        EXPECT_EQ((*program)->Run(0, shape, &pointer, 3), LaunchFault::kNone);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_THAT(result, testing::Each(96 * 95 / 2));
}

}  // namespace
}  // namespace consort::cpu
