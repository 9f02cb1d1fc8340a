// SPDX-License-Identifier: Apache-2.0
// Loads, stores, address spaces, variables, calls and atomics. Sources: PTX ISA 9.0, 5,
// 7, 9.7.9, 9.7.12, 9.7.13.
#include <algorithm>
#include <string>

#include "device/cpu/codegen/instruction_cases_for_test.h"

namespace consort::cpu {
namespace {

// Runs kernel 0 of `ptx` with one pointer parameter to `memory`.
template <typename T>
LaunchFault RunOn(const std::string& ptx, std::vector<T>& memory, LaunchShape shape = {},
                  int workers = 1) {
  auto program = Program::Load(ptx);
  EXPECT_TRUE(program.ok()) << program.status();
  if (!program.ok()) return LaunchFault::kTrap;
  void* pointer = memory.data();
  return (*program)->Run(0, shape, &pointer, workers);
}

// A kernel with the registers of an ordinary one; %rd1 is the parameter.
std::string Kernel(const std::string& body, const std::string& before = "") {
  return ".version 8.4\n.target sm_90\n.address_size 64\n" + before +
         "\n.visible .entry k(.param .u64 p)\n{\n.reg .pred %p<9>;\n.reg .b16 %h<20>;\n"
         ".reg .b32 %r<40>;\n.reg .b64 %rd<40>;\n.reg .f32 %f<20>;\n.reg .f64 %d<20>;\n"
         "ld.param.u64 %rd1, [p];\n" +
         body + "\nret;\n}\n";
}

TEST(MemoryInstructions, LoadsExtendBySignedness) {
  std::vector<uint32_t> memory = {0x8081F0FF, 0, 0, 0, 0};
  ASSERT_EQ(RunOn(Kernel("ld.global.s8 %r1, [%rd1]; st.global.u32 [%rd1+4], %r1;"
                         "ld.global.u8 %r2, [%rd1+1]; st.global.u32 [%rd1+8], %r2;"
                         "ld.global.s16 %r3, [%rd1+2]; st.u32 [%rd1+12], %r3;"
                         "ld.u16 %h1, [%rd1+2]; st.global.u8 [%rd1+16], %h1;"),
                  memory),
            LaunchFault::kNone);
  EXPECT_THAT(memory, testing::ElementsAre(0x8081F0FF, 0xFFFFFFFF, 0xF0, 0xFFFF8081, 0x81));
}

TEST(MemoryInstructions, VectorsMoveInOrder) {
  std::vector<uint32_t> memory(16, 0);
  for (uint32_t i = 0; i < 4; ++i) memory[i] = i + 1;
  auto data = memory;
  alignas(16) uint32_t aligned[16];
  std::copy(data.begin(), data.end(), aligned);
  auto program = Program::Load(
      Kernel("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];"
             "st.global.v4.b32 [%rd1+16], {%r4, %r3, %r2, %r1};"
             "ld.global.nc.L1::no_allocate.v2.u64 {%rd2, %rd3}, [%rd1];"
             "st.global.v2.u64 [%rd1+32], {%rd3, %rd2};"
             "ld.volatile.global.v2.f32 {%f1, _}, [%rd1+8]; st.global.f32 [%rd1+48], %f1;"
             "ld.relaxed.gpu.u64 {%rd4}, [%rd1+16]; st.global.u64 [%rd1+56], {%rd4};"));
  ASSERT_TRUE(program.ok()) << program.status();
  void* pointer = aligned;
  ASSERT_EQ((*program)->Run(0, {}, &pointer, 1), LaunchFault::kNone);
  EXPECT_THAT(std::vector<uint32_t>(aligned, aligned + 13),
              testing::ElementsAre(1, 2, 3, 4, 4, 3, 2, 1, 3, 4, 1, 2, 3));
  EXPECT_THAT(std::vector<uint32_t>(aligned + 14, aligned + 16), testing::ElementsAre(4, 3));
}

TEST(MemoryInstructions, LocalAndSharedAndGenericAddresses) {
  std::vector<uint32_t> memory(8, 0);
  ASSERT_EQ(RunOn(Kernel(R"(
  .local .align 8 .b8 depot[16];
  .shared .align 4 .b8 tile[64];
  mov.u64 %rd2, depot; cvta.local.u64 %rd3, %rd2;
  st.local.u32 [%rd2+4], 11; ld.u32 %r1, [%rd3+4]; st.global.u32 [%rd1], %r1;
  mov.u32 %r2, tile; st.shared.u32 [%r2+8], 22; ld.shared.u32 %r3, [tile+8];
  st.global.u32 [%rd1+4], %r3;
  mov.u64 %rd4, tile; cvta.shared.u64 %rd5, %rd4; ld.u32 %r4, [%rd5+8]; st.global.u32 [%rd1+8], %r4;
  cvta.to.shared.u64 %rd6, %rd5; sub.u64 %rd7, %rd6, %rd4; st.global.u32 [%rd1+12], %rd7;
  isspacep.shared %p1, %rd5; isspacep.local %p2, %rd3; isspacep.global %p3, %rd1;
  isspacep.global %p4, %rd5;
  selp.u32 %r5, 1, 0, %p1; selp.u32 %r6, 2, 0, %p2; selp.u32 %r7, 4, 0, %p3;
  selp.u32 %r8, 8, 0, %p4;
  or.b32 %r5, %r5, %r6; or.b32 %r5, %r5, %r7; or.b32 %r5, %r5, %r8; st.global.u32 [%rd1+16], %r5;
)"),
                  memory),
            LaunchFault::kNone);
  EXPECT_THAT(memory, testing::ElementsAre(11, 22, 22, 0, 7, 0, 0, 0));
}

TEST(MemoryInstructions, ParametersHaveGenericAddresses) {
  std::vector<uint32_t> memory(8, 0);
  ASSERT_EQ(RunOn(Kernel(R"(
  mov.b64 %rd2, p; cvta.param.u64 %rd3, %rd2; isspacep.param %p1, %rd3;
  isspacep.param::entry %p2, %rd3; isspacep.param %p3, %rd1; isspacep.shared %p4, %rd3;
  selp.u32 %r1, 1, 0, %p1; selp.u32 %r2, 2, 0, %p2; selp.u32 %r3, 4, 0, %p3;
  selp.u32 %r4, 8, 0, %p4;
  or.b32 %r1, %r1, %r2; or.b32 %r1, %r1, %r3; or.b32 %r1, %r1, %r4; st.global.u32 [%rd1], %r1;
  ld.u64 %rd4, [%rd3]; sub.u64 %rd4, %rd4, %rd1; st.global.u64 [%rd1+8], %rd4;
)"),
                  memory),
            LaunchFault::kNone);
  EXPECT_THAT(memory, testing::ElementsAre(3, 0, 0, 0, 0, 0, 0, 0));
}

TEST(MemoryInstructions, VariablesHaveTheirInitialValues) {
  const std::string variables = R"(
.global .align 4 .u32 words[4] = {1, 0x20, 3};
.const .align 8 .f64 third = 0d3FD5555555555555;
.global .u64 pointer = generic(words)+8;
.global .align 1 .b8 text[6] = {104, 105, 10};
.global .u64 table[2] = {words, pointer};
.global .b8 grid[2][3] = {{1, 2}, {4, 5, 6}};
.global .f32 floats[2] = {1.5, 0f40000000};
.visible .global .align 4 .b8 empty[12];
)";
  std::vector<uint64_t> memory(4, 0);
  const std::string ptx = Kernel(
      "ld.global.u64 %rd2, [pointer]; ld.u32 %r1, [%rd2]; st.global.u32 [%rd1], %r1;"
      "ld.const.f64 %d1, [third]; st.global.f64 [%rd1+8], %d1;"
      "ld.global.u64 %rd3, [table+8]; mov.u64 %rd4, pointer; sub.u64 %rd5, %rd3, %rd4;"
      "st.global.u64 [%rd1+16], %rd5; mov.u64 %rd6, grid; ld.global.u8 %r3, [%rd6+4];"
      "st.global.u32 [%rd1+24], %r3;",
      variables);
  auto program = Program::Load(ptx);
  ASSERT_TRUE(program.ok()) << program.status();
  void* pointer = memory.data();
  ASSERT_EQ((*program)->Run(0, {}, &pointer, 1), LaunchFault::kNone);
  EXPECT_THAT(memory, testing::ElementsAre(3, 0x3FD5555555555555, 0, 5));
  ASSERT_EQ((*program)->variables().size(), 8u);
  const VariableInfo& words = (*program)->variables()[0];
  EXPECT_EQ(words.name, "words");
  EXPECT_EQ(words.bytes, 16u);
  EXPECT_FALSE(words.constant);
  EXPECT_EQ(static_cast<uint32_t*>(words.address)[1], 0x20u);
  EXPECT_EQ(static_cast<uint32_t*>(words.address)[3], 0u);
  EXPECT_TRUE((*program)->variables()[1].constant);
  EXPECT_EQ((*program)->kernels()[0].constant_bytes, 8u);
  const float* floats = static_cast<float*>((*program)->variables()[6].address);
  EXPECT_EQ(floats[0], 1.5f);
  EXPECT_EQ(floats[1], 2.0f);
}

TEST(MemoryInstructions, AtomicsReturnTheOldValue) {
  std::vector<uint32_t> memory = {10, 10, 10, 3, 0, 5, 0xF0, 0x0F, 0xFF, 7, 10, 10, 0, 0};
  const auto out = memory.size();
  memory.resize(out + 14);
  std::string body;
  const char* operations[] = {"add.u32", "min.s32", "max.u32", "inc.u32", "dec.u32",
                              "inc.u32", "and.b32", "or.b32",  "xor.b32", "exch.b32"};
  const char* operands[] = {"5", "-3", "-3", "3", "9", "9", "0x3C", "0xF0", "0x0F", "99"};
  for (size_t i = 0; i < 10; ++i) {
    const std::string at = "[%rd1+" + std::to_string(i * 4) + "]";
    body += std::string("atom.global.") + operations[i] + " %r1, " + at + ", " + operands[i] +
            "; st.global.u32 [%rd1+" + std::to_string((out + i) * 4) + "], %r1;\n";
  }
  body += "atom.global.cas.b32 %r2, [%rd1+40], 10, 77; st.global.u32 [%rd1+" +
          std::to_string((out + 10) * 4) + "], %r2;\n";
  body += "atom.cas.b32 %r3, [%rd1+44], 11, 77; st.global.u32 [%rd1+" +
          std::to_string((out + 11) * 4) + "], %r3;\n";
  body +=
      "red.global.add.u32 [%rd1+48], 4; red.relaxed.gpu.global.add.f32 [%rd1+52], 0f40400000;\n";
  ASSERT_EQ(RunOn(Kernel(body), memory), LaunchFault::kNone);
  const std::vector<uint32_t> now(memory.begin(), memory.begin() + static_cast<long>(out));
  const std::vector<uint32_t> old(memory.begin() + static_cast<long>(out), memory.end());
  EXPECT_THAT(now, testing::ElementsAre(15, 0xFFFFFFFD, 0xFFFFFFFD, 0, 9, 6, 0x30, 0xFF, 0xF0, 99,
                                        77, 10, 4, 0x40400000));
  EXPECT_THAT(old, testing::ElementsAre(10, 10, 10, 3, 0, 5, 0xF0, 0x0F, 0xFF, 7, 10, 10, 0, 0));
}

TEST(MemoryInstructions, AtomicsOfManyThreadsLoseNothing) {
  std::vector<uint64_t> memory(4, 0);
  LaunchShape shape;
  shape.grid[0] = 64;
  shape.block[0] = 128;
  ASSERT_EQ(RunOn(Kernel("atom.global.add.u32 %r1, [%rd1], 1; red.global.add.u64 [%rd1+8], 3;"
                         "atom.global.add.f64 %d1, [%rd1+16], 0d3FF0000000000000;"
                         "atom.global.max.u32 %r2, [%rd1+24], %r1;"),
                  memory, shape, 4),
            LaunchFault::kNone);
  EXPECT_EQ(memory[0], 64u * 128);
  EXPECT_EQ(memory[1], 64u * 128 * 3);
  EXPECT_EQ(memory[2], D(64.0 * 128));
  EXPECT_EQ(memory[3], 64u * 128 - 1);
}

// Sums of small integers are exact in all of these types.
TEST(MemoryInstructions, AtomicsOfHalvesAndVectors) {
  std::vector<uint32_t> memory(16, 0);
  LaunchShape shape;
  shape.grid[0] = 4;
  shape.block[0] = 50;
  const std::string body =
      ".reg .f32 %v<8>;\n"
      "mov.b16 %h1, 0x3C00; mov.b16 %h2, 0x3F80; mov.u32 %r1, 0x3C004000;\n"
      "mov.u32 %r2, 0x3F804000; mov.f32 %v1, 0f3F800000; mov.f32 %v2, 0f40000000;\n"
      "atom.global.add.noftz.f16 %h3, [%rd1], %h1;\n"
      "red.global.add.noftz.bf16 [%rd1+4], %h2;\n"
      "atom.global.add.noftz.f16x2 %r3, [%rd1+8], %r1;\n"
      "red.global.add.noftz.bf16x2 [%rd1+12], %r2;\n"
      "red.global.v4.f32.add [%rd1+16], {%v1, %v2, %v1, %v2};\n"
      "atom.global.v2.f32.add {%v3, %v4}, [%rd1+32], {%v1, %v2};\n"
      "red.global.v2.f16x2.add.noftz [%rd1+40], {%r1, %r1};\n";
  ASSERT_EQ(RunOn(Kernel(body), memory, shape, 4), LaunchFault::kNone);
  const uint32_t f200 = static_cast<uint32_t>(F(200.0f));
  const uint32_t f400 = static_cast<uint32_t>(F(400.0f));
  EXPECT_EQ(memory[0], 0x5A40u);      // 200
  EXPECT_EQ(memory[1], 0x4348u);      // 200
  EXPECT_EQ(memory[2], 0x5A405E40u);  // 200, 400
  EXPECT_THAT(std::vector<uint32_t>(memory.begin() + 4, memory.begin() + 10),
              testing::ElementsAre(f200, f400, f200, f400, f200, f400));
  EXPECT_EQ(memory[3], 0x434843C8u);  // 200, 400
  EXPECT_EQ(memory[10], 0x5A405E40u);
  EXPECT_EQ(memory[11], 0x5A405E40u);
}

TEST(MemoryInstructions, CallsPassAndReturnScalarsStructsAndRegisters) {
  const std::string functions = R"(
.func (.param .b32 out) twice(.param .b32 in) {
  .reg .b32 %r<3>;
  ld.param.u32 %r1, [in]; shl.b32 %r2, %r1, 1; st.param.b32 [out+0], %r2; ret;
}
.func (.param .align 8 .b8 out[16]) pair(.param .align 8 .b8 in[16], .param .b32 add) {
  .reg .b64 %rd<4>; .reg .b32 %r<2>;
  ld.param.u64 %rd1, [in+8]; ld.param.u32 %r1, [add]; cvt.u64.u32 %rd2, %r1;
  add.u64 %rd3, %rd1, %rd2; st.param.b64 [out], %rd3; st.param.b64 [out+8], 5; ret;
}
.func (.reg .u32 out) by_register(.reg .u32 in) { add.u32 out, in, 100; ret; }
.func (.param .b32 out) factorial(.param .b32 n) {
  .reg .pred %p; .reg .b32 %r<5>; .param .b32 next; .param .b32 got;
  ld.param.u32 %r1, [n]; setp.gt.u32 %p, %r1, 1; mov.u32 %r2, 1; @!%p bra done;
  sub.u32 %r3, %r1, 1; st.param.b32 [next], %r3; call.uni (got), factorial, (next);
  ld.param.u32 %r4, [got]; mul.lo.u32 %r2, %r4, %r1;
done: st.param.b32 [out], %r2; ret;
}
)";
  std::vector<uint32_t> memory(8, 0);
  ASSERT_EQ(RunOn(Kernel(R"(
{ .param .b32 param0; st.param.b32 [param0+0], 21; .param .b32 retval0;
  call.uni (retval0), twice, (param0); ld.param.b32 %r1, [retval0+0]; }
st.global.u32 [%rd1], %r1;
{ .param .align 8 .b8 param0[16]; .param .b32 param1; .param .align 8 .b8 retval0[16];
  st.param.b64 [param0], 1; st.param.b64 [param0+8], 1000; st.param.b32 [param1], 7;
  call.uni (retval0), pair, (param0, param1);
  ld.param.v2.b64 {%rd2, %rd3}, [retval0]; }
st.global.u32 [%rd1+4], %rd2; st.global.u32 [%rd1+8], %rd3;
call (%r2), by_register, (5); st.global.u32 [%rd1+12], %r2;
call (%r2), by_register, (%r2); st.global.u32 [%rd1+16], %r2;
{ .param .b32 param0; st.param.b32 [param0], 10; .param .b32 retval0;
  call (retval0), factorial, (param0); ld.param.b32 %r3, [retval0]; }
st.global.u32 [%rd1+20], %r3;
)",
                         functions),
                  memory),
            LaunchFault::kNone);
  EXPECT_THAT(memory, testing::ElementsAre(42, 1007, 5, 105, 205, 3628800, 0, 0));
}

TEST(MemoryInstructions, IndirectCallsReachOnlyFunctions) {
  const std::string functions = R"(
.func (.param .b32 out) one(.param .b32 in) { st.param.b32 [out], 1; ret; }
.func (.param .b32 out) two(.param .b32 in) {
  .reg .b32 %r; ld.param.u32 %r, [in]; add.u32 %r, %r, 2; st.param.b32 [out], %r; ret; }
.global .u64 functions[2] = {one, two};
)";
  const std::string call = R"({
  .param .b32 param0; st.param.b32 [param0], 40; .param .b32 retval0;
  prototype_0 : .callprototype (.param .b32 _) _ (.param .b32 _);
  call (retval0), %rd2, (param0), prototype_0; ld.param.b32 %r1, [retval0]; }
  st.global.u32 [%rd1], %r1;)";
  std::vector<uint32_t> memory(2, 0);
  ASSERT_EQ(RunOn(Kernel("ld.global.u64 %rd2, [functions+8];" + call, functions), memory),
            LaunchFault::kNone);
  EXPECT_EQ(memory[0], 42u);
  ASSERT_EQ(RunOn(Kernel("mov.u64 %rd2, one;" + call, functions), memory), LaunchFault::kNone);
  EXPECT_EQ(memory[0], 1u);
  EXPECT_EQ(RunOn(Kernel("mov.u64 %rd2, 12345678;" + call, functions), memory),
            LaunchFault::kIllegalAddress);
  EXPECT_EQ(RunOn(Kernel("mov.u64 %rd2, 0;" + call, functions), memory),
            LaunchFault::kIllegalAddress);
}

TEST(MemoryInstructions, BranchesByIndexAndOverLabelsOfOneName) {
  std::vector<uint32_t> memory(6, 0);
  LaunchShape shape;
  shape.block[0] = 3;
  ASSERT_EQ(RunOn(Kernel(R"(
  mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd2, %rd1;
  targets: .branchtargets first, second, third;
  brx.idx %r1, targets;
first: mov.u32 %r2, 10; bra.uni join;
second: mov.u32 %r2, 20; bra join;
third: mov.u32 %r2, 30;
join:
  st.global.u32 [%rd2], %r2;
  { bra skip; mov.u32 %r2, 0; skip: }
  { bra skip; mov.u32 %r2, 0; skip: add.u32 %r2, %r2, 1; }
  st.global.u32 [%rd2+12], %r2;
)"),
                  memory, shape),
            LaunchFault::kNone);
  EXPECT_THAT(memory, testing::ElementsAre(10, 20, 30, 11, 21, 31));
}

TEST(MemoryInstructions, CopyAsyncCopies) {
  alignas(16) uint32_t memory[12] = {1, 2, 3, 4};
  auto program = Program::Load(Kernel(R"(
  .shared .align 16 .b8 tile[32]; mov.u32 %r1, tile;
  cp.async.ca.shared.global [%r1], [%rd1], 16; cp.async.ca.shared.global [%r1+16], [%rd1], 8, 4;
  cp.async.commit_group; cp.async.wait_group 0;
  ld.shared.v2.u64 {%rd2, %rd3}, [%r1]; st.global.v2.u64 [%rd1+16], {%rd2, %rd3};
  ld.shared.u64 %rd4, [%r1+16]; st.global.u64 [%rd1+32], %rd4;)"));
  ASSERT_TRUE(program.ok()) << program.status();
  void* pointer = memory;
  ASSERT_EQ((*program)->Run(0, {}, &pointer, 1), LaunchFault::kNone);
  EXPECT_THAT(std::vector<uint32_t>(memory + 4, memory + 10),
              testing::ElementsAre(1, 2, 3, 4, 1, 0));
}

TEST(MemoryInstructions, SpecialRegistersOfEachThread) {
  std::vector<uint32_t> memory(2 * 3 * 2 * 8, 0);
  LaunchShape shape;
  shape.grid[0] = 1;
  shape.grid[1] = 2;
  shape.block[0] = 3;
  shape.block[1] = 2;
  ASSERT_EQ(RunOn(Kernel(R"(
  mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ntid.x; mov.u32 %r4, %ctaid.y;
  mov.u32 %r5, %ntid.y; mad.lo.u32 %r6, %r4, %r5, %r2; mad.lo.u32 %r6, %r6, %r3, %r1;
  mul.wide.u32 %rd2, %r6, 32; add.u64 %rd2, %rd2, %rd1;
  st.global.u32 [%rd2], %r6; mov.u32 %r7, %laneid; st.global.u32 [%rd2+4], %r7;
  mov.u32 %r8, %lanemask_lt; st.global.u32 [%rd2+8], %r8;
  mov.u32 %r9, %lanemask_ge; st.global.u32 [%rd2+12], %r9;
  mov.u32 %r10, %nctaid.y; st.global.u32 [%rd2+16], %r10;
  mov.u32 %r11, %warpid; st.global.u32 [%rd2+20], %r11;
  mov.u64 %rd3, %clock64; mov.u64 %rd4, %clock64; sub.u64 %rd5, %rd4, %rd3;
  setp.lt.u64 %p1, %rd5, 1000000000; selp.u32 %r12, 1, 0, %p1; st.global.u32 [%rd2+24], %r12;
  mov.u32 %r13, %ntid.z; st.global.u32 [%rd2+28], %r13;
)"),
                  memory, shape),
            LaunchFault::kNone);
  for (uint32_t i = 0; i < 12; ++i) {
    const uint32_t lane = i % 6;
    EXPECT_THAT(std::vector<uint32_t>(memory.begin() + i * 8, memory.begin() + i * 8 + 8),
                testing::ElementsAre(i, lane, (1u << lane) - 1, ~((1u << lane) - 1), 2, 0, 1, 1));
  }
}

TEST(MemoryInstructions, KernelInfoSaysWhatTheDriverNeeds) {
  auto program = Program::Load(R"(
.version 7.8
.target sm_75
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.shared .align 4 .b8 fixed[100];
.visible .entry k(.param .u8 a, .param .u64 b, .param .align 4 .b8 c[12], .param .u16 d)
.maxntid 64, 2, 1
.minnctapersm 2
{
  .local .align 4 .b8 depot[40];
  .reg .b32 %r<3>; .reg .b64 %rd;
  mov.u64 %rd, depot; st.local.u32 [%rd], 1;
  mov.u32 %r1, fixed; mov.u32 %r2, dynamic; st.shared.u32 [%r1], %r2;
  ret;
}
.visible .entry other() { ret; })");
  ASSERT_TRUE(program.ok()) << program.status();
  ASSERT_EQ((*program)->kernels().size(), 2u);
  const KernelInfo& info = (*program)->kernels()[0];
  EXPECT_EQ(info.name, "k");
  ASSERT_EQ(info.params.size(), 4u);
  EXPECT_EQ(info.params[0].offset, 0u);
  EXPECT_EQ(info.params[1].offset, 8u);
  EXPECT_EQ(info.params[1].bytes, 8u);
  EXPECT_EQ(info.params[2].offset, 16u);
  EXPECT_EQ(info.params[2].bytes, 12u);
  EXPECT_EQ(info.params[3].offset, 28u);
  EXPECT_EQ(info.param_bytes, 30u);
  EXPECT_EQ(info.static_shared_bytes, 100u);
  EXPECT_EQ(info.local_bytes, 40u);
  EXPECT_GT(info.register_count, 0u);
  EXPECT_EQ(info.threads_max, 128u);
  EXPECT_EQ(info.ptx_version, 78u);
  EXPECT_EQ(info.target, 75u);
  EXPECT_EQ((*program)->kernels()[1].static_shared_bytes, 0u);
  EXPECT_EQ((*program)->kernels()[1].threads_max, 1024u);
}

TEST(MemoryInstructions, ReductionsHaveOneType) {
  EXPECT_EQ(LoadError(".reg .b64 %rd; .reg .b16 %h;\n"
                      "red.release.f64.global.add.noftz.f16 [%rd], %h;")
                .message(),
            "line 7: instruction `red.release.f64.global.add.noftz.f16` is not supported");
}

}  // namespace
}  // namespace consort::cpu
