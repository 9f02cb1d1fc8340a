// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/moves.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "host/limits.h"

namespace consort::host {
namespace {

MoveRecord Record(uint64_t session, MoveRecord::State state = MoveRecord::State::kMoving) {
  MoveRecord record;
  record.session = session;
  record.from = 2;
  record.to = 1;
  record.state = state;
  return record;
}

TEST(MoveBook, TellsHowAMoveWent) {
  MoveBook book;
  book.Add(Record(7));
  EXPECT_TRUE(book.AnyFrom(2));
  EXPECT_FALSE(book.AnyFrom(1));
  MoveRecord* const record = book.Find(7);
  ASSERT_NE(record, nullptr);
  record->state = MoveRecord::State::kStayed;
  record->text = "it has \xff textures";
  record->stopped = 1'500'000;
  record->bytes = 3 * kMiB;
  record->direct_bytes = 2 * kMiB;
  EXPECT_EQ(book.Find(7), nullptr);
  EXPECT_FALSE(book.AnyFrom(2));
  const auto json = nlohmann::json::parse(book.Json());
  ASSERT_EQ(json["moves"].size(), 1u);
  EXPECT_EQ(json["moves"][0]["state"], "stayed");
  EXPECT_EQ(json["moves"][0]["stopped_seconds"], 0.0015);
  EXPECT_EQ(json["moves"][0]["bytes"], 3 * kMiB);
  EXPECT_EQ(json["moves"][0]["direct_bytes"], 2 * kMiB);
}

TEST(MoveBook, ForgetsTheOldestThatAreOver) {
  MoveBook book;
  book.Add(Record(1));
  for (uint64_t i = 0; i < 2 * kMovesRemembered; ++i) {
    book.Add(Record(100 + i, MoveRecord::State::kMoved));
  }
  const auto json = nlohmann::json::parse(book.Json());
  EXPECT_EQ(json["moves"].size(), kMovesRemembered);
  EXPECT_NE(book.Find(1), nullptr);
  EXPECT_EQ(json["moves"].back()["session"], 99 + 2 * kMovesRemembered);
}

}  // namespace
}  // namespace consort::host
