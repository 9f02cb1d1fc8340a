// SPDX-License-Identifier: Apache-2.0
#include "host/session/round_trips.h"

#include <gtest/gtest.h>

#include "gen/wire/opcodes.h"

namespace consort::host {
namespace {

TEST(RoundTrips, NamesTheMostFrequent) {
  RoundTrips trips;
  EXPECT_EQ(trips.Text(), "");
  for (int i = 0; i < 3; ++i) trips.Count(static_cast<uint16_t>(wire::Opcode::kCopyToHost));
  trips.Count(static_cast<uint16_t>(wire::Opcode::kContextGetLimit));
  for (int i = 0; i < 2; ++i) trips.Count(0xffff);
  EXPECT_EQ(trips.Text(), "CopyToHost 3, unknown 2, ContextGetLimit 1");
  EXPECT_EQ(trips.count(), 6u);
}

TEST(RoundTrips, CountsTheRest) {
  RoundTrips trips;
  for (uint16_t opcode = 16; opcode < 31; ++opcode) trips.Count(opcode);
  const std::string end = " and 3 others";
  EXPECT_EQ(trips.Text().substr(trips.Text().size() - end.size()), end);
  EXPECT_EQ(trips.count(), 15u);
}

}  // namespace
}  // namespace consort::host
