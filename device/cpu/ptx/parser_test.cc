// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/ptx/parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "device/cpu/ptx/lexer.h"

namespace consort::cpu::ptx {
namespace {

using std::string_literals::operator""s;

std::string Message(const std::string& text) {
  return std::string(ParsePtx(text).status().message());
}

// The error of a function body; its first line is line 2.
std::string BodyMessage(const std::string& body) {
  return Message(".func f(.param .b32 p) {\n" + body + "\n}");
}

std::unique_ptr<Module> Good(const std::string& text) {
  auto module = ParsePtx(text);
  EXPECT_TRUE(module.ok()) << module.status();
  return module.ok() ? std::move(*module) : std::make_unique<Module>();
}

TEST(Lexer, SplitsOpcodesNumbersAndComments) {
  Lexer lexer(
      "ld.global.L2::128B.v4.f32 {%f1}, [%rd2+-16]; // end\n/* two\nlines */ 0f3F800000 1.5e-3");
  std::string joined;
  int last_line = 0;
  for (Token token = lexer.Next(); token.kind != TokenKind::kEnd; token = lexer.Next()) {
    joined += token.kind == TokenKind::kDotted ? "." : " ";
    joined += token.text;
    last_line = token.line;
  }
  EXPECT_EQ(joined, " ld.global.L2::128B.v4.f32 { %f1 } , [ %rd2 + - 16 ] ; 0f3F800000 1.5e-3");
  EXPECT_EQ(last_line, 3);
}

TEST(Parser, ReadsHeadAndSkipsDebugDirectives) {
  const auto module = Good(R"(
.version 8.7
.target sm_90a, debug
.address_size 64
.file 1 "a.cu"
.visible .entry k() { .loc 1 5 0
  .pragma "nounroll"; .loc 1 6 3, function_name $L__info_string0, inlined_at 1 2 3
  ret; }
.section .debug_str { $L__info_string0: .b8 95, 90 }
)");
  EXPECT_EQ(module->version, 87u);
  EXPECT_EQ(module->target, 90u);
  ASSERT_EQ(module->functions.size(), 1u);
  EXPECT_EQ(module->functions[0].instructions.size(), 1u);
}

TEST(Parser, TakesTextWithoutVersionAndWithNulsAtTheEnd) {
  const auto module = Good(".target sm_75\n.entry k() { ret; }\n\0\0\0garbage"s);
  EXPECT_EQ(module->version, 0u);
  EXPECT_EQ(module->target, 75u);
  EXPECT_EQ(module->functions.size(), 1u);
}

TEST(Parser, KeepsLinesGuardsAndOperands) {
  const auto module = Good(R"(.func f() {
  .reg .b32 %r<10>; .reg .pred %p, %q;
  setp.lt.and.u32 %p|%q, %r1, -5, !%p;

  @!%p ld.global.v2.u32 {%r2, _}, [%r3+-8];
  mov.u32 %r4, %tid.y;
})");
  const Function& function = module->functions[0];
  ASSERT_EQ(function.instructions.size(), 3u);
  const Instruction& setp = function.instructions[0];
  EXPECT_EQ(setp.opcode, "setp");
  EXPECT_THAT(setp.modifiers, testing::ElementsAre("lt", "and", "u32"));
  EXPECT_EQ(setp.line, 3);
  ASSERT_EQ(setp.operands.size(), 4u);
  EXPECT_EQ(setp.operands[0].kind, OperandKind::kPair);
  EXPECT_EQ(setp.operands[2].integer, -5);
  EXPECT_TRUE(setp.operands[3].negated);
  const Instruction& load = function.instructions[1];
  EXPECT_EQ(load.line, 5);
  EXPECT_TRUE(load.guard_negated);
  EXPECT_EQ(function.symbols[load.guard].name, "%p");
  EXPECT_EQ(load.operands[0].elements[1].kind, OperandKind::kSink);
  ASSERT_EQ(load.operands[1].kind, OperandKind::kAddress);
  EXPECT_EQ(load.operands[1].elements[0].integer, -8);
  const Operand& special = function.instructions[2].operands[1];
  EXPECT_EQ(special.kind, OperandKind::kSpecial);
  EXPECT_EQ(special.text, "%tid");
  EXPECT_EQ(special.component, 'y');
}

TEST(Parser, InnerScopesHideOuterNames) {
  const auto module = Good(R"(.func f() {
  .reg .b32 x; mov.b32 x, 1;
  { .reg .b64 x; mov.b64 x, 2; }
  mov.b32 x, 3;
})");
  const Function& function = module->functions[0];
  auto type_of = [&](size_t i) {
    return function.symbols[function.instructions[i].operands[0].symbol].type;
  };
  EXPECT_EQ(type_of(0), Type::kB32);
  EXPECT_EQ(type_of(1), Type::kB64);
  EXPECT_EQ(type_of(2), Type::kB32);
}

TEST(Parser, RegistersOfAFamilyAppearWhenNamed) {
  const auto module = Good(".func f() { .reg .b32 %r<16000000>; mov.b32 %r15999999, 1; }");
  EXPECT_EQ(module->functions[0].symbols.size(), 1u);
  EXPECT_EQ(module->functions[0].symbols[0].name, "%r15999999");
}

TEST(Parser, DefinitionReplacesDeclaration) {
  const auto module = Good(
      ".extern .global .u32 x; .global .u32 x = 5; .extern .func f(); .func f() { ret; } .func "
      "f();");
  ASSERT_EQ(module->variables.size(), 1u);
  EXPECT_FALSE(module->variables[0].is_extern);
  ASSERT_EQ(module->functions.size(), 1u);
  EXPECT_TRUE(module->functions[0].has_body);
}

TEST(Parser, InitialisersFillNestedAndUnsizedArrays) {
  const auto module = Good(R"(
.global .u16 grid[2][3] = {{1}, {2, 3}};
.global .b8 text[] = {65, 66, 67};
.global .u64 addresses[2] = {generic(text)+1, 0};
.global .b8 bytes[2] = {0xFF(text), 0xFF00(text)};
.const .f32 pi = 3.14159265;
)");
  EXPECT_THAT(module->variables[0].data, testing::ElementsAre(1, 0, 0, 0, 0, 0, 2, 0, 3, 0));
  EXPECT_EQ(module->variables[1].bytes, 3u);
  ASSERT_EQ(module->variables[2].relocations.size(), 1u);
  EXPECT_EQ(module->variables[2].relocations[0].addend, 1);
  ASSERT_EQ(module->variables[3].relocations.size(), 2u);
  EXPECT_EQ(module->variables[3].relocations[1].shift, 8u);
  EXPECT_THAT(module->variables[4].data, testing::ElementsAre(0xDB, 0x0F, 0x49, 0x40));
}

TEST(Parser, ErrorsNameTheirLine) {
  EXPECT_EQ(Message("hello"), "line 1: expected a directive, found `hello`");
  EXPECT_EQ(Message("\n.frobnicate 3"), "line 2: directive `.frobnicate` is not supported");
  EXPECT_EQ(Message(".address_size 32"), "line 1: only 64-bit addresses are supported");
  EXPECT_EQ(Message(".entry k("), "line 1: expected `.param` or `.reg`");
  EXPECT_EQ(Message(".entry k()\n{\n"), "line 3: expected `}`, found the end");
  EXPECT_EQ(Message(".entry k() .maxntid 2000\n{}"), "line 1: a block has 1 to 1024 threads");
  EXPECT_EQ(Message(".func f() {}\n.func f() {}"), "line 2: `f` is defined twice");
  EXPECT_EQ(Message(".global .u32 x = 1;\n.global .u32 x = 2;"), "line 2: `x` is defined twice");
  EXPECT_EQ(Message(".global .u32 x[2] = {1, 2, 3};"), "line 1: more initial values than elements");
  EXPECT_EQ(Message(".global .align 3 .u32 x;"),
            "line 1: alignment is no power of two up to 65536");
  EXPECT_EQ(Message(".shared .u32 x = 1;"),
            "line 1: only .global and .const variables have initial values");
  EXPECT_EQ(Message(".global .f32 x = 0f123;"),
            "line 1: expected a well-formed number, found `0f123`");
  EXPECT_EQ(Message(".global .u64 x = 99999999999999999999;"),
            "line 1: expected a well-formed number, found `99999999999999999999`");
}

TEST(Parser, ErrorsInBodies) {
  EXPECT_EQ(BodyMessage("mov.u32 %r1"), "line 3: expected `;`, found `}`");
  EXPECT_EQ(BodyMessage(".reg .b32 a; .reg .b32 a;"), "line 2: `a` is declared twice");
  EXPECT_EQ(BodyMessage("@%p bra x;"), "line 2: `%p` is no predicate register");
  EXPECT_EQ(BodyMessage("x: x: ret;"), "line 2: label `x` is defined twice");
  EXPECT_EQ(BodyMessage("t: .branchtargets nowhere;"), "line 2: no label `nowhere`");
  EXPECT_EQ(BodyMessage(".reg .b32 %r<0>;"), "line 2: register count is not within 1..16777216");
  EXPECT_EQ(BodyMessage("ld.u32 %r1, [];"), "line 2: expected an address before `]`, found `;`");
  EXPECT_EQ(BodyMessage("mov.u32 %r1, \"text\";"), "line 2: expected an operand, found `text`");
  EXPECT_EQ(BodyMessage("mov.u32 %r1, %tid.q;"), "line 2: no component `.q`");
  EXPECT_EQ(BodyMessage(".tex .u64 t;"), "line 2: directive `.tex` is not supported");
}

TEST(Parser, BoundsAreHeldAndOneBeyondIsAnError) {
  auto nested = [](int depth) {
    return ".func f() " + std::string(static_cast<size_t>(depth), '{') +
           std::string(static_cast<size_t>(depth), '}');
  };
  EXPECT_TRUE(ParsePtx(nested(kNestingMax)).ok());
  EXPECT_EQ(ParsePtx(nested(kNestingMax + 1)).status().code(),
            absl::StatusCode::kResourceExhausted);
  auto operand = [](int depth) {
    return ".func f() { mov.b32 " + std::string(static_cast<size_t>(depth), '{') + "1" +
           std::string(static_cast<size_t>(depth), '}') + "; }";
  };
  EXPECT_TRUE(ParsePtx(operand(kNestingMax)).ok());
  EXPECT_EQ(ParsePtx(operand(kNestingMax + 1)).status().code(),
            absl::StatusCode::kResourceExhausted);
  auto local = [](uint64_t bytes) {
    return ".func f() { .local .b8 x[" + std::to_string(bytes) + "]; }";
  };
  EXPECT_TRUE(ParsePtx(local(kLocalBytesMax)).ok());
  EXPECT_EQ(ParsePtx(local(kLocalBytesMax + 1)).status().code(),
            absl::StatusCode::kResourceExhausted);
  auto params = [](uint64_t bytes) {
    return ".entry k(.param .b8 a[" + std::to_string(bytes) + "], .param .u8 b) { ret; }";
  };
  EXPECT_TRUE(ParsePtx(params(kParamBytesMax - 1)).ok());
  EXPECT_EQ(ParsePtx(params(kParamBytesMax)).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ParsePtx(".global .b8 x[1099511627777];").status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ParsePtx(".global .b8 x[4294967296][4294967296][4294967296];").status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(Parser, RefusesVersionsThatAreNoNumber) {
  for (const char* version : {"0dFFF8000000000001", "0d7FF0000000000000", "0f00000000", "99.5"}) {
    EXPECT_EQ(ParsePtx(std::string(".version ") + version).status().code(),
              absl::StatusCode::kInvalidArgument)
        << version;
  }
}

TEST(Parser, KeepsSourceLines) {
  const auto module = ParsePtx(
      ".entry k() {\n mov.u32 a, 1;\n .loc 2 17 3\n ret;\n"
      ".loc 1 20 5, function_name $info, inlined_at 2 17 3\n ret;\n .loc x\n ret;\n}\n"
      ".file 2 \"second.cu\"\n.file\n.file 7\n.file 3 \"third.cu\", 12, 34\n");
  ASSERT_TRUE(module.ok()) << module.status();
  std::vector<std::pair<uint32_t, uint32_t>> lines;
  for (const Instruction& instruction : (*module)->functions[0].instructions) {
    lines.emplace_back(instruction.source_file, instruction.source_line);
  }
  EXPECT_THAT(lines, testing::ElementsAre(std::pair(0, 0), std::pair(2, 17), std::pair(1, 20),
                                          std::pair(0, 0)));
  EXPECT_THAT((*module)->source_files,
              testing::UnorderedElementsAre(std::pair(2, "second.cu"), std::pair(3, "third.cu")));
}

// Every prefix of a module with all kinds of directives either parses or gives an error.
TEST(Parser, SurvivesEveryPrefix) {
  const std::string text = R"(.version 8.0
.target sm_90
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.global .align 8 .u64 table[2] = {generic(table)+8, 0xFF};
.visible .entry k(.param .u64 .ptr .global .align 8 p) .maxntid 32, 1, 1
{ .reg .pred %p<3>; .local .align 8 .b8 depot[16]; .shared .f32 tile[4][4];
  @!%p1 bra $L1; ld.param.u64 %p2, [p+0x10]; $L1: call (r), vprintf, (p, p), proto;
  proto: .callprototype (.param .b32 _) _ (.param .b64 _); lop3.b32 a, b, c, 0b11, 017U; "x" })";
  for (size_t i = 0; i <= text.size(); ++i) {
    const auto module = ParsePtx(text.substr(0, i));
    if (module.ok()) continue;
    EXPECT_THAT(std::string(module.status().message()), testing::StartsWith("line "));
  }
}

}  // namespace
}  // namespace consort::cpu::ptx
