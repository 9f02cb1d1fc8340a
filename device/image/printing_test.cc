// SPDX-License-Identifier: Apache-2.0
#include "device/image/printing.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device/image/image_test_support.h"

namespace consort::image {
namespace {

constexpr Target kHopper = {.capability = 90, .machine_code = true};

std::vector<std::byte> TextBytes(const std::string& text) {
  const auto span = std::as_bytes(std::span(text.c_str(), text.size() + 1));
  return {span.begin(), span.end()};
}

TEST(Printing, IsToldOfEachKernelOfMachineCode) {
  const std::vector<std::byte> image = ReadTestImage("printing.fatbin");
  for (const uint32_t capability : {75u, 90u}) {
    const Printing printing = FindPrinting(image, {.capability = capability, .machine_code = true});
    EXPECT_FALSE(printing.all);
    for (const char* name : {"Prints", "PrintsByHelper", "PrintsByPointer"}) {
      EXPECT_TRUE(printing.May(name)) << name << " of sm_" << capability;
    }
    for (const char* name : {"Asserts", "Allocates", "Quiet"}) {
      EXPECT_FALSE(printing.May(name)) << name << " of sm_" << capability;
    }
  }
}

TEST(Printing, IsToldOfPtxAsAWhole) {
  EXPECT_TRUE(FindPrinting(ReadTestImage("printing_ptx.fatbin"), kHopper).May("Quiet"));
  EXPECT_FALSE(FindPrinting(ReadTestImage("mode_none.fatbin"), kHopper).all);
  EXPECT_TRUE(FindPrinting(ReadTestImage("printing.fatbin"), {.capability = 120}).all);
}

TEST(Printing, OfKernelsThatLaunchOthersIsAnybodys) {
  const Printing printing = FindPrinting(ReadTestImage("printing_launch.fatbin"), kHopper);
  EXPECT_TRUE(printing.May("Parent"));
  EXPECT_TRUE(printing.May("Child"));
}

TEST(Printing, NeedsTheWholeName) {
  EXPECT_TRUE(FindPrinting(TextBytes(".version 9.0\ncall vprintf, (a, b);"), kHopper).all);
  EXPECT_FALSE(FindPrinting(TextBytes(".version 9.0\ncall my_vprintf, (a);"), kHopper).all);
  EXPECT_FALSE(FindPrinting(TextBytes(".version 9.0\ncall vprintf2, (a);"), kHopper).all);
}

// Wherever an image is cut off or changed, nothing outside of it is read.
TEST(Printing, SurvivesDamagedMachineCode) {
  std::vector<std::byte> image = ReadTestImage("printing.fatbin");
  const auto binaries = ParseFatBinaries(image);
  ASSERT_TRUE(binaries.ok()) << binaries.status();
  const FatEntry& entry = (*binaries)[0].entries[0];
  ASSERT_EQ(entry.kind, EntryKind::kElf);
  const std::vector<std::byte> cubin = *Decompress(entry);
  ASSERT_TRUE(FindPrinting(cubin, kHopper).May("Prints"));
  for (size_t bytes = 4; bytes < cubin.size(); bytes += 7) {
    FindPrinting(
        std::vector<std::byte>(cubin.begin(), cubin.begin() + static_cast<ptrdiff_t>(bytes)),
        kHopper);
  }
  for (size_t at = 4; at < cubin.size(); at += 3) {
    std::vector<std::byte> changed = cubin;
    changed[at] ^= std::byte{0xFF};
    FindPrinting(changed, kHopper);
  }
}

}  // namespace
}  // namespace consort::image
