// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/ptx/linker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "device/cpu/ptx/parser.h"

namespace consort::cpu::ptx {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Inputs a, b, ...
absl::StatusOr<std::string> Link(const std::vector<std::string>& texts) {
  std::vector<LinkInput> inputs;
  for (const std::string& text : texts) {
    inputs.push_back({std::string(1, static_cast<char>('a' + inputs.size())), text});
  }
  return LinkPtx(inputs);
}

std::unique_ptr<Module> Linked(const std::vector<std::string>& texts) {
  const absl::StatusOr<std::string> text = Link(texts);
  EXPECT_TRUE(text.ok()) << text.status();
  auto module = ParsePtx(text.ok() ? *text : "");
  EXPECT_TRUE(module.ok()) << module.status() << "\n" << *text;
  return module.ok() ? std::move(*module) : std::make_unique<Module>();
}

std::string Message(const std::vector<std::string>& texts) {
  return std::string(Link(texts).status().message());
}

TEST(Linker, JoinsDeclarationsAndDefinitions) {
  const auto module =
      Linked({".version 7.0\n.target sm_75\n.address_size 64\n"
              ".extern .func (.param .b32 r) twice(.param .b32 x);\n"
              ".extern .global .u32 counter;\n"
              ".extern .shared .align 16 .b8 dynamic[];\n"
              ".visible .entry k() { ret; }\n",
              ".version 8.3\n.target sm_90a, debug\n.address_size 64\n"
              ".extern .shared .align 16 .b8 dynamic[];\n"
              ".visible .global .u32 counter = 5;\n"
              ".visible .func (.param .b32 r) twice(.param .b32 x) { ret; }\n"});
  EXPECT_EQ(module->version, 83u);
  EXPECT_EQ(module->target, 90u);
  ASSERT_TRUE(module->function_by_name.contains("twice"));
  EXPECT_TRUE(module->functions[module->function_by_name.at("twice")].has_body);
  ASSERT_TRUE(module->variable_by_name.contains("counter"));
  EXPECT_FALSE(module->variables[module->variable_by_name.at("counter")].is_extern);
  EXPECT_TRUE(module->function_by_name.contains("k"));
}

TEST(Linker, NamesOfOneUnitStayApart) {
  // Each has a table and a helper of its own; the second's initialiser points to its own table.
  const std::string unit =
      ".global .u32 table[2] = {N, N};\n"
      ".global .u64 pointer = table;\n"
      ".func helper();\n"
      ".func helper() { .reg .b64 %rd<2>; mov.u64 %rd1, table; ret; }\n"
      ".visible .entry kN() { call helper; ret; }\n";
  const auto with = [&](const std::string& number) {
    std::string text = unit;
    for (size_t at; (at = text.find('N')) != std::string::npos;) text.replace(at, 1, number);
    return text;
  };
  const auto module = Linked({with("1"), with("2")});
  EXPECT_EQ(module->variables.size(), 4u);
  EXPECT_EQ(module->functions.size(), 4u);
  std::vector<std::string> pointed_to;
  for (const Variable& variable : module->variables) {
    for (const Relocation& relocation : variable.relocations) {
      ASSERT_TRUE(module->variable_by_name.contains(relocation.symbol));
      const Variable& table = module->variables[module->variable_by_name.at(relocation.symbol)];
      pointed_to.push_back(std::to_string(table.data[0]));
    }
  }
  EXPECT_THAT(pointed_to, testing::ElementsAre("1", "2"));
}

TEST(Linker, AnOwnNameDoesNotServeAnotherUnit) {
  const auto module = Linked({".extern .global .u32 secret;\n", ".global .u32 secret;\n"});
  EXPECT_TRUE(module->variables[module->variable_by_name.at("secret")].is_extern);
}

TEST(Linker, OfWeakDefinitionsOneStays) {
  const std::string weak = ".weak .func f() { ret; }\n.weak .global .u32 v = 1;\n";
  auto module = Linked({weak, weak});
  EXPECT_EQ(module->functions.size(), 1u);
  EXPECT_EQ(module->variables.size(), 1u);
  // One that is not weak counts, wherever it stands.
  module = Linked({".weak .global .u32 v = 1;\n", ".visible .global .u32 v = 7;\n"});
  ASSERT_EQ(module->variables.size(), 1u);
  EXPECT_EQ(module->variables[0].data[0], 7);
  module = Linked({".visible .global .u32 v = 7;\n", ".weak .global .u32 v = 1;\n"});
  EXPECT_EQ(module->variables[0].data[0], 7);
}

TEST(Linker, TwoDefinitionsAreAnError) {
  EXPECT_EQ(Message({".visible .func f() { ret; }\n", ".visible .func f() { ret; }\n"}),
            "Multiple definition of 'f' in 'b', first defined in 'a'");
  EXPECT_EQ(Message({".entry k() { ret; }\n", "\n", ".visible .entry k() { ret; }\n"}),
            "Multiple definition of 'k' in 'c', first defined in 'a'");
  EXPECT_EQ(Message({".visible .const .u32 c;\n", ".visible .global .u32 c;\n"}),
            "Multiple definition of 'c' in 'b', first defined in 'a'");
}

TEST(Linker, DeclarationsThatDoNotMatchAreAnError) {
  EXPECT_THAT(
      Message({".extern .func f(.param .b64 x);\n", ".visible .func f(.param .b32 x) { ret; }\n"}),
      AllOf(HasSubstr("'f'"), HasSubstr("in 'a'"), HasSubstr("in 'b'")));
  EXPECT_THAT(Message({".extern .global .u64 v;\n", ".visible .global .u32 v;\n"}),
              HasSubstr("'v'"));
  EXPECT_THAT(Message({".extern .const .u32 v;\n", ".visible .global .u32 v;\n"}),
              HasSubstr("'v'"));
  // An array without a size fits any.
  Linked({".extern .global .align 4 .u32 v[];\n", ".visible .global .align 4 .u32 v[3];\n"});
}

TEST(Linker, SourceFilesKeepTheirNames) {
  const auto code = [](const char* file, const char* kernel) {
    return absl::StrCat(".file 1 \"", file, "\"\n.visible .entry ", kernel,
                        "() {\n.loc 1 5 0\nret;\n}\n");
  };
  const auto module = Linked({code("one.cu", "k"), code("two.cu", "l")});
  for (const auto& [kernel, file] : {std::pair("k", "one.cu"), std::pair("l", "two.cu")}) {
    const Function& function = module->functions[module->function_by_name.at(kernel)];
    ASSERT_EQ(function.instructions.size(), 1u);
    EXPECT_EQ(function.instructions[0].source_line, 5u);
    EXPECT_EQ(module->source_files.at(function.instructions[0].source_file), file);
  }
}

TEST(Linker, StatementsOfEveryKindSurvive) {
  const std::string text =
      "//\n.version 7.0\n.target sm_75\n.address_size 64\n"
      ".pragma \"nounroll\";\n"
      "@@DWARF .section .debug\n"
      ".section .debug_str { $L__info_string0: .b8 95, 90 }\n"
      ".visible .entry k(.param .u64 p, .param .align 8 .b8 q[16]) .maxntid 32, 1, 1 .pragma "
      "\"x\"; "
      "{ .reg .b32 %r<3>; { mov.u32 %r1, 1; } ret; }\n"
      ".visible .global .align 8 .b8 list[4] = {1, 2, 3, 4}, other[2];\n";
  const auto module = Linked({text});
  EXPECT_EQ(module->functions.at(0).threads_max, 32u);
  EXPECT_EQ(module->functions.at(0).inputs.size(), 2u);
  EXPECT_EQ(module->variables.size(), 2u);
}

TEST(Linker, TextThatIsNoPtxIsNamed) {
  EXPECT_THAT(Message({".visible .entry k() { ret; }\n", "nonsense"}),
              AllOf(HasSubstr("b, line 1"), HasSubstr("directive")));
}

}  // namespace
}  // namespace consort::cpu::ptx
