// SPDX-License-Identifier: Apache-2.0
#include "host/memory/size_text.h"

#include <gtest/gtest.h>

namespace consort::host {
namespace {

TEST(SizeText, ReadsWholeNumbersWithAUnit) {
  EXPECT_EQ(ParseSize("40GiB"), 40 * kGiB);
  EXPECT_EQ(ParseSize("512 MiB"), 512 * kMiB);
  EXPECT_EQ(ParseSize("0"), 0u);
  EXPECT_EQ(ParseSize("1TiB"), kTiB);
  EXPECT_EQ(ParseSize("4194304TiB"), uint64_t{1} << 62);
}

TEST(SizeText, RefusesEverythingElse) {
  for (const char* text : {"", "GiB", "1.5GiB", "-1", "40GB", "40 GiB ", "4194305TiB", "1  MiB",
                           "18446744073709551616"}) {
    EXPECT_EQ(ParseSize(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace consort::host
