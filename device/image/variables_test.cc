// SPDX-License-Identifier: Apache-2.0
#include "device/image/variables.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "device/image/image_test_support.h"

namespace consort::image {
namespace {

constexpr char kPtx[] = R"(
// .global .u32 comment;
.version 8.0
.target sm_70, debug
.address_size 64
.file 1 "a;b.cu"
.const .align 4 .b8 polynomial[16] = {0, 0, 128, 63};
.visible .const .align 4 .b8 table[4][1024];
.global .align 4 .u32 launches = 100; .global .f64 last_sum;
.extern .global .u32 elsewhere;
.weak .global .align 16 .v4 .f32 wide;
.visible .global .attribute(.managed) .align 4 .u32 both;
/* .global .u32 also_comment; */
.global .u32 one, two[3];
.global .align 8 .u64 to[2] = {generic(one), generic(two)};
.shared .align 4 .b8 shared_memory[64];
.func (.param .u32 out) helper(.param .u32 in) { .reg .u32 %r1; ret; }
.visible .entry kernel(.param .u64 words)
{
  .local .align 8 .b8 depot[64];
  .reg .b64 %rd<5>;
  ld.global.u32 %r7, [launches];
  { .reg .u32 inner; }
  ret;
}
.global .align 1 .b8 $str[6] = {104, 101};
)";

TEST(Variables, ArePtxDeclarationsOfGlobalAndConstantMemory) {
  const Variables expected = {{"polynomial", {16, true}}, {"table", {4096, true}},
                              {"launches", {4, false}},   {"last_sum", {8, false}},
                              {"wide", {4, false}},       {"one", {4, false}},
                              {"two", {12, false}},       {"to", {16, false}},
                              {"$str", {6, false}},       {"both", {.bytes = 4, .managed = true}}};
  EXPECT_EQ(VariablesOfPtx(kPtx), expected);
  std::vector<std::byte> image(sizeof(kPtx));
  std::memcpy(image.data(), kPtx, sizeof(kPtx));
  const auto of_image = VariablesOf(image);
  ASSERT_TRUE(of_image.ok()) << of_image.status();
  EXPECT_EQ(*of_image, expected);
}

TEST(Variables, TextsAndTagsOfCompilersHaveNoState) {
  const DeclaredVariable byte = {.bytes = 1};
  EXPECT_TRUE(HasNoState("$str", {.bytes = 10}));
  EXPECT_TRUE(HasNoState("$str$2", {.bytes = 5}));
  EXPECT_TRUE(HasNoState("__unnamed_1", {.bytes = 14}));
  const std::string unit = "_ZN32_INTERNAL_89b8bf71_4_t_cu__Z1kPi";
  EXPECT_TRUE(HasNoState(unit + "4cuda3std3__48in_placeE", byte));
  EXPECT_TRUE(HasNoState(unit + "6thrust23THRUST_300001_SM_900_NS12placeholders2_1E", byte));
  EXPECT_FALSE(HasNoState(unit + "4cuda3std3__48in_placeE", {.bytes = 2}));
  EXPECT_FALSE(HasNoState(unit + "4cuda3std3__48in_placeE", {.bytes = 1, .managed = true}));
  // Programs' own, whatever they are called.
  EXPECT_FALSE(HasNoState(unit + "3app4flagE", byte));
  EXPECT_FALSE(HasNoState(unit + "3app3cubE", byte));
  EXPECT_FALSE(HasNoState("_ZN3app3cubE", byte));
  EXPECT_FALSE(HasNoState("_ZN4game13cubic_latticeE", byte));
  EXPECT_FALSE(HasNoState("_ZN6thrust4flagE", byte));
  EXPECT_FALSE(HasNoState("$counter", {.bytes = 4}));
  EXPECT_FALSE(HasNoState("flag", byte));
  // Names that end anywhere, and lengths that are none.
  const std::string whole = unit + "4cuda3std3__48in_placeE";
  for (size_t length = 0; length < unit.size() + 9; ++length) {
    EXPECT_FALSE(HasNoState(whole.substr(0, length), byte)) << length;
  }
  EXPECT_FALSE(HasNoState("_ZN99999999999999999999_INTERNAL_4cuda3std", byte));
  EXPECT_FALSE(HasNoState("_ZN9999_INTERNAL_4cuda3std", byte));
}

TEST(Variables, OfTextThatEndsAnywhereAreReadWithinIt) {
  for (size_t length = 0; length < sizeof(kPtx); ++length) {
    VariablesOfPtx(std::string_view(kPtx, length));
  }
}

// Header, symbol table, names, and the section of what is called "table", which is called `place`.
std::vector<std::byte> Elf(const char* place) {
  std::vector<std::byte> elf(64 + 4 * 64 + 4 * 24 + 64);
  const auto put = [&elf](size_t at, uint64_t value, size_t bytes) {
    std::memcpy(elf.data() + at, &value, bytes);
  };
  std::memcpy(elf.data(),
              "\x7f"
              "ELF\x02\x01\x01",
              7);
  const size_t sections = 64, symbols = sections + 4 * 64, names = symbols + 4 * 24;
  put(40, sections, 8);
  put(52, 64, 2);  // of this header
  put(58, 64, 2);  // of a section's
  put(60, 4, 2);
  put(62, 2, 2);
  put(sections + 64 + 4, 2, 4);  // section 1: symbols, with the names of section 2
  put(sections + 64 + 24, symbols, 8);
  put(sections + 64 + 32, 4 * 24, 8);
  put(sections + 64 + 40, 2, 4);
  put(sections + 128 + 4, 3, 4);
  put(sections + 128 + 24, names, 8);
  put(sections + 128 + 32, 64, 8);
  put(sections + 192, 32, 4);
  std::memcpy(elf.data() + names, "\0table\0kernel\0gone\0", 19);
  std::memcpy(elf.data() + names + 32, place, std::strlen(place));
  const auto symbol = [&](size_t index, uint32_t name, uint8_t info, uint16_t section,
                          uint64_t bytes) {
    put(symbols + 24 * index, name, 4);
    put(symbols + 24 * index + 4, info, 1);
    put(symbols + 24 * index + 6, section, 2);
    put(symbols + 24 * index + 16, bytes, 8);
  };
  symbol(1, 1, 0x11, 3, 4096);  // an object
  symbol(2, 7, 0x12, 1, 512);   // a function
  symbol(3, 14, 0x11, 0, 8);    // an object of somewhere else
  return elf;
}

TEST(Variables, AreObjectsOfMachineCode) {
  const auto variables = VariablesOf(Elf(".nv.global"));
  ASSERT_TRUE(variables.ok()) << variables.status();
  EXPECT_EQ(*variables, (Variables{{"table", {4096, false}}}));
  const auto constants = VariablesOf(Elf(".nv.constant3"));
  ASSERT_TRUE(constants.ok()) << constants.status();
  EXPECT_EQ(*constants, (Variables{{"table", {4096, true}}}));
}

TEST(Variables, OfFatBinariesAreConstantWhereAllEntriesSaySo) {
  const auto variables = VariablesOf(ReadTestImage("mode_size.fatbin"));
  ASSERT_TRUE(variables.ok()) << variables.status();
  ASSERT_TRUE(variables->contains("scale"));
  EXPECT_EQ(variables->at("scale"), (DeclaredVariable{16, true}));
  ASSERT_TRUE(variables->contains("counted"));
  EXPECT_EQ(variables->at("counted"), (DeclaredVariable{4, false}));
  ASSERT_TRUE(variables->contains("by_architecture"));
  EXPECT_EQ(variables->at("by_architecture"), (DeclaredVariable{4, false}));
}

TEST(Variables, AreAloneInAnImageWithoutCodeAndOtherVariables) {
  const auto of_text = [](const std::string& text) {
    return *VariablesOf(std::as_bytes(std::span(text.c_str(), text.size() + 1)));
  };
  const std::string head = ".version 8.0\n.target sm_70\n.address_size 64\n";
  const std::string one = ".visible .global .align 8 .b8 one[112];\n";
  EXPECT_EQ(of_text(head + one), (Variables{{"one", {112, false, true}}}));
  EXPECT_FALSE(of_text(head + one + ".global .u32 two;\n").at("one").alone);
  EXPECT_FALSE(of_text(head + one + ".visible .entry kernel() { ret; }\n").at("one").alone);
  // Functions may be reached through pointers.
  EXPECT_FALSE(of_text(head + one + ".visible .func function() { ret; }\n").at("one").alone);
  std::vector<std::byte> elf = Elf(".nv.global");
  EXPECT_FALSE(VariablesOf(elf)->at("table").alone);
  elf[64 + 4 * 64 + 2 * 24 + 4] = std::byte{0};  // the function's symbol
  EXPECT_TRUE(VariablesOf(elf)->at("table").alone);
}

TEST(Variables, OfDamagedMachineCodeAreReadWithinIt) {
  const std::vector<std::byte> whole = Elf(".nv.constant3");
  for (size_t at = 4; at < whole.size(); ++at) {
    for (const uint8_t value : {0x00, 0x7f, 0xff}) {
      std::vector<std::byte> damaged = whole;
      damaged[at] = static_cast<std::byte>(value);
      (void)VariablesOf(damaged);
    }
    (void)VariablesOf(std::span(whole).first(at));
  }
}

TEST(Variables, OfWhatIsNoImageAreRefused) {
  const std::vector<std::byte> nothing(100, std::byte{1});
  EXPECT_TRUE(absl::IsInvalidArgument(VariablesOf(nothing).status()));
}

}  // namespace
}  // namespace consort::image
