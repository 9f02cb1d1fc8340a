// SPDX-License-Identifier: Apache-2.0
#include "base/saturating.h"

#include <gtest/gtest.h>

namespace consort {
namespace {

constexpr uint64_t kMax = UINT64_MAX;

TEST(Saturating, ComputesLikeAnIntegerWhereTheResultFits) {
  const Saturating pitch = 700;
  const Saturating height = 800;
  EXPECT_EQ((height ? pitch * (height - 1) + Saturating(600) * 4 : 0).value(), 700u * 799 + 2400);
  EXPECT_EQ((Saturating(kMax) + 0).value(), kMax);
  EXPECT_EQ((Saturating(kMax / 3) * 3).value(), kMax);
}

TEST(Saturating, StaysAtItsBoundsInsteadOfWrapping) {
  EXPECT_EQ((Saturating(kMax) + 1).value(), kMax);
  EXPECT_EQ((Saturating(uint64_t{1} << 62) * 4).value(), kMax);
  EXPECT_EQ((Saturating(0) - 1).value(), 0u);
  EXPECT_EQ((Saturating(kMax) * kMax + kMax).value(), kMax);
}

}  // namespace
}  // namespace consort
