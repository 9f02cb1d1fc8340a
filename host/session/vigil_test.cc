// SPDX-License-Identifier: Apache-2.0
#include "host/session/vigil.h"

#include <gtest/gtest.h>

namespace consort::host {
namespace {

TEST(Vigil, IsKeptOnceAsked) {
  VigilRoom room;
  room.Allow(1);
  Vigil vigil(&room);
  EXPECT_FALSE(vigil.Keeps(1000));
  vigil.Await(4096, 7);
  EXPECT_TRUE(vigil.Keeps(1000));
  EXPECT_EQ(room.kept(), 1u);
  EXPECT_EQ(vigil.address(), 4096u);
  EXPECT_EQ(vigil.number(), 7u);
  vigil.End();
  EXPECT_FALSE(vigil.Keeps(1000));
  EXPECT_EQ(room.kept(), 0u);
  EXPECT_EQ(room.begun(), 1u);
}

TEST(Vigil, IsNotKeptForEver) {
  VigilRoom room;
  room.Allow(1);
  Vigil vigil(&room);
  vigil.Await(4096, 7);
  EXPECT_TRUE(vigil.Keeps(1000));
  EXPECT_TRUE(vigil.Keeps(1000 + kVigilMost - 1));
  EXPECT_FALSE(vigil.Keeps(1000 + kVigilMost));
  EXPECT_EQ(room.kept(), 0u);
  // The next word is another matter.
  vigil.Await(4096, 8);
  EXPECT_TRUE(vigil.Keeps(1000 + kVigilMost));
}

TEST(Vigil, OfAFullRoomWaitsForOneThatLeaves) {
  VigilRoom room;
  room.Allow(1);
  Vigil second(&room);
  second.Await(4096, 1);
  {
    Vigil first(&room);
    first.Await(8192, 1);
    EXPECT_TRUE(first.Keeps(1000));
    EXPECT_FALSE(second.Keeps(1000));
  }
  EXPECT_TRUE(second.Keeps(2000));
  // What it missed counts.
  EXPECT_FALSE(second.Keeps(1000 + kVigilMost));
}

TEST(Vigil, HostsOfFewProcessorsHaveNoneToSpare) {
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
