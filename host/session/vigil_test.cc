// SPDX-License-Identifier: Apache-2.0
#include "host/session/vigil.h"

#include <gtest/gtest.h>

namespace consort::host {
namespace {

TEST(Vigil, LastsOnceAsked) {
  Vigil vigil;
  EXPECT_FALSE(vigil.Lasts(1000));
  vigil.Await(4096, 7);
  EXPECT_TRUE(vigil.Lasts(1000));
  EXPECT_EQ(vigil.address(), 4096u);
  EXPECT_EQ(vigil.number(), 7u);
  vigil.End();
  EXPECT_FALSE(vigil.Lasts(1000));
}

TEST(Vigil, DoesNotLastForEver) {
  Vigil vigil;
  vigil.Await(4096, 7);
  EXPECT_TRUE(vigil.Lasts(1000));
  EXPECT_TRUE(vigil.Lasts(1000 + kVigilMost - 1));
  EXPECT_FALSE(vigil.Lasts(1000 + kVigilMost));
  EXPECT_FALSE(vigil.Lasts(1000));
  // The next word is another matter.
  vigil.Await(4096, 8);
  EXPECT_TRUE(vigil.Lasts(1000 + kVigilMost));
}

TEST(VigilRoom, LetsInAsManyAsItMay) {
  VigilRoom room;
  EXPECT_FALSE(room.Enter());
  room.Allow(1);
  EXPECT_TRUE(room.Enter());
  EXPECT_FALSE(room.Enter());
  room.Leave();
  EXPECT_TRUE(room.Enter());
  EXPECT_EQ(room.entered(), 2u);
}

TEST(VigilRoom, HostsOfFewProcessorsHaveNoneToSpare) {
  VigilRoom room;
  room.AllowFor(kProcessorsPerVigil - 1);
  EXPECT_FALSE(room.Enter());
  room.AllowFor(2 * kProcessorsPerVigil);
  EXPECT_TRUE(room.Enter());
  EXPECT_TRUE(room.Enter());
  EXPECT_FALSE(room.Enter());
}

}  // namespace
}  // namespace consort::host
