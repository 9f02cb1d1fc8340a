// SPDX-License-Identifier: Apache-2.0
#include "device/image/managed.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "device/image/image_test_support.h"

namespace consort::image {
namespace {

constexpr uint64_t kAddress = 0x7F1200003000;

// What ptxas says of the text; empty if it takes it.
std::string Assemble(const std::string& text) {
  const std::string path = testing::TempDir() + "/placed.ptx";
  std::ofstream(path) << text;
  const std::string said = path + ".said";
  const std::string command =
      absl::StrCat(CONSORT_PTXAS, " -arch=sm_90 -o ", path, ".cubin ", path, " > ", said, " 2>&1");
  const int status = std::system(command.c_str());
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  std::ifstream file(said);
  return std::string{std::istreambuf_iterator<char>(file), {}};
}

// The bytes that the variables begin with.
std::vector<std::byte> Beginning(const ManagedPtx& ptx) {
  std::vector<std::byte> memory(ptx.bytes());
  for (const ManagedPtx::Contents& contents : ptx.contents()) {
    EXPECT_LE(contents.offset + contents.bytes.size(), memory.size());
    std::copy(contents.bytes.begin(), contents.bytes.end(),
              memory.begin() + static_cast<ptrdiff_t>(contents.offset));
  }
  return memory;
}

template <typename T>
T At(const std::vector<std::byte>& memory, Bytes offset) {
  T value;
  std::memcpy(&value, memory.data() + offset, sizeof(value));
  return value;
}

constexpr char kHead[] = ".version 8.0\n.target sm_70\n.address_size 64\n";

std::string Placed(const std::string& body) {
  const absl::StatusOr<ManagedPtx> ptx = ManagedPtx::Parse(kHead + body);
  if (!ptx.ok()) return std::string(ptx.status().message());
  return ptx->At(kAddress).substr(sizeof(kHead) - 1);
}

class OfNvcc : public testing::TestWithParam<const char*> {};

TEST_P(OfNvcc, IsPlacedSoThatPtxasTakesIt) {
  const std::string text = ReadTestText(GetParam());
  ASSERT_TRUE(ManagedPtx::MayBeIn(text));
  const absl::StatusOr<ManagedPtx> ptx = ManagedPtx::Parse(text);
  ASSERT_TRUE(ptx.ok()) << ptx.status();
  std::set<std::string> names;
  for (const auto& [name, variable] : ptx->variables()) {
    names.insert(name);
    EXPECT_LE(variable.offset + variable.bytes, ptx->bytes());
  }
  // That of one unit alone has a prefix.
  EXPECT_EQ(names.size(), 8u);
  const std::string placed = ptx->At(kAddress);
  EXPECT_EQ(placed.find(".managed,"), std::string::npos);
  EXPECT_EQ(placed.find(".attribute"), std::string::npos);
  EXPECT_EQ(Assemble(placed), "");

  const std::vector<std::byte> memory = Beginning(*ptx);
  const auto offset = [&](const char* name) { return ptx->variables().find(name)->second.offset; };
  EXPECT_EQ(At<int>(memory, offset("counter")), -7);
  EXPECT_EQ(At<float>(memory, offset("table")), 1.5f);
  EXPECT_EQ(At<float>(memory, offset("table") + 12), 4.0f);
  EXPECT_EQ(At<uint64_t>(memory, offset("large")), ~uint64_t{0});
  EXPECT_EQ(At<uint64_t>(memory, offset("large") + 8), 5u);
  EXPECT_EQ(At<double>(memory, offset("ratio")), 0.25);
  EXPECT_EQ(At<char>(memory, offset("bytes") + 2), 'c');
  EXPECT_EQ(At<uint64_t>(memory, offset("pointer")), 0u);
}

INSTANTIATE_TEST_SUITE_P(Options, OfNvcc,
                         testing::Values("managed_plain.ptx", "managed_lineinfo.ptx",
                                         "managed_G.ptx"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.substr(8, name.find('.') - 8);
                         });

TEST(ManagedPtx, PutsAddressesWhereNamesWere) {
  EXPECT_EQ(Placed(".global .attribute(.managed) .align 4 .u32 a;\n"
                   ".visible .global .attribute(.managed) .align 64 .b8 b[10];\n"
                   ".global .u64 to[2] = {generic(b)+4, 0};\n"
                   ".visible .entry k() {\n"
                   "  .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %d<3>;\n"
                   "L: @!%p ld.global.v2.u32 {%r1, %r2}, [b+8];\n"
                   "  mov.u64 %d1, a; @%p cvta.global.u64 %d2, b;\n"
                   "  { st.global.u32 [a], %r1; } // a\n"
                   "}\n"),
            " \n \n"
            ".global .u64 to[2] = {0x7f1200003044U, 0};\n"
            ".visible .entry k() {\n"
            "  .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %d<3>;\n"
            "L: { .reg .b64 %consort_managed; mov.u64 %consort_managed, 0x7f1200003048U; "
            "@!%p ld.global.v2.u32 {%r1, %r2}, [%consort_managed]; }\n"
            "  mov.u64 %d1, 0x7f1200003000U; @%p mov.u64 %d2, 0x7f1200003040U;\n"
            "  { { .reg .b64 %consort_managed; mov.u64 %consort_managed, 0x7f1200003000U; "
            "st.global.u32 [%consort_managed], %r1; } } // a\n"
            "}\n");
}

TEST(ManagedPtx, LeavesOtherTextsAsTheyAre) {
  const absl::StatusOr<ManagedPtx> ptx =
      ManagedPtx::Parse(".version 8.0 // .attribute(.managed)\n.global .u32 a;");
  ASSERT_TRUE(ptx.ok());
  EXPECT_TRUE(ptx->variables().empty());
  EXPECT_EQ(ptx->At(kAddress), ".version 8.0 // .attribute(.managed)\n.global .u32 a;");
}

TEST(ManagedPtx, RefusesWhatItDoesNotUnderstand) {
  const std::string a = ".global .attribute(.managed) .u32 a;\n";
  const std::pair<std::string, const char*> cases[] = {
      {".extern .global .attribute(.managed) .u32 a;", "another unit"},
      {".global .attribute(.managed, .unified(1,2)) .u32 a;", "another attribute"},
      {".global .attribute(.managed) .align 3 .u32 a;", "an alignment"},
      {".global .attribute(.managed) .pred a;", "an unknown type"},
      {".global .attribute(.managed) .u32 a[];", "a has no length"},
      {".global .attribute(.managed) .u32 a[999999999999];", "too large"},
      {".global .attribute(.managed) .u32 a[99999999999999999999999];", "no length"},
      {".global .attribute(.managed) .u64 a = generic(b);", "no number"},
      {".global .attribute(.managed) .u32 a[1] = {1, 2};", "no number"},
      {".global .attribute(.managed) .u32 a[1] = {1", "no number"},
      {".global .attribute(.managed) .u32 a, b;", "goes on"},
      {".global .attribute(.managed) .u32 a", "goes on"},
      {a + a, "declared twice"},
      {a + ".shared .u32 a;", "declared again"},
      {a + ".func f() { .reg .u32 a; }", "declared again"},
      {a + ".func f() { add.s64 %d1, a, 8; }", "in add.s64"},
      {a + ".func f() { ld.global.u32 %r, [a+%r1]; }", "added to"},
      {a + ".func f() { ld.global.u32 %r, [a*2]; }", "not understood"},
      {a + ".func f() { cvta.global.u64 %r, a[a]; }", "in two ways"},
      {a + ".func f() { ld.global.u32 %r, [a]", "without an end"},
      {a + ".func f() { cp.async [a], [a]; }", "two managed variables"},
      {a + ".global .u8 b[1] = {0xFF(a)};", "a part of"},
  };
  for (const auto& [text, why] : cases) {
    const absl::StatusOr<ManagedPtx> ptx = ManagedPtx::Parse(kHead + text);
    ASSERT_FALSE(ptx.ok()) << text;
    EXPECT_NE(ptx.status().message().find(why), std::string::npos) << text << ptx.status();
  }
}

}  // namespace
}  // namespace consort::image
