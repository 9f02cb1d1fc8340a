// SPDX-License-Identifier: Apache-2.0
#include "host/session/variable_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

namespace consort::host {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// What is copied: from, to, bytes.
std::vector<std::tuple<uint64_t, uint64_t, Bytes>> Taken(VariableCopies* copies) {
  std::vector<std::tuple<uint64_t, uint64_t, Bytes>> taken;
  for (const VariableCopies::Piece& piece : copies->TakeWritten()) {
    taken.emplace_back(piece.from, piece.to, piece.bytes);
  }
  return taken;
}

TEST(VariableCopies, WritesGoOnWhereTheyMeetACopy) {
  VariableCopies copies;
  copies.Add(0x1000, {1, "first", 0x70000, 16});
  copies.Add(0x1200, {1, "second", 0x80000, 64});
  copies.NoteWrite(0xf00, 0x100);
  copies.NoteWrite(0x1010, 0x1f0);
  copies.NoteWrite(0x1004, 0);
  copies.NoteWrite(0x1240, 1000);
  EXPECT_FALSE(copies.written());
  copies.NoteWrite(0x1004, 8);
  EXPECT_TRUE(copies.written());
  EXPECT_THAT(Taken(&copies), ElementsAre(std::tuple(0x1004, 0x70004, 8)));
  EXPECT_FALSE(copies.written());
  copies.NoteWrite(0x100f, 0x1f2);
  EXPECT_THAT(Taken(&copies),
              ElementsAre(std::tuple(0x100f, 0x7000f, 1), std::tuple(0x1200, 0x80000, 1)));
  copies.NoteWrite(0x123f, UINT64_MAX);
  EXPECT_THAT(Taken(&copies), ElementsAre(std::tuple(0x123f, 0x8003f, 1)));
}

TEST(VariableCopies, AreForgottenWithTheirLibrary) {
  VariableCopies copies;
  copies.Add(0x1000, {1, "one", 0x70000, 16});
  copies.Add(0x1200, {2, "one", 0x80000, 64});
  EXPECT_EQ(copies.Find(2, "one"), 0x1200u);
  EXPECT_EQ(copies.Find(2, "two"), 0u);
  EXPECT_THAT(copies.Remove([](uint64_t library) { return library == 2; }), ElementsAre(0x1200));
  EXPECT_EQ(copies.Find(2, "one"), 0u);
  EXPECT_EQ(copies.Find(1, "one"), 0x1000u);
  copies.NoteWrite(0x1200, 4);
  EXPECT_THAT(Taken(&copies), IsEmpty());
}

}  // namespace
}  // namespace consort::host
