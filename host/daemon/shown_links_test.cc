// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/shown_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace consort::host {
namespace {

using device::BoardLink;
using device::PciSlot;
using ::testing::Each;
using wire::kLinkToDevice;
using wire::kLinkToNothing;
using wire::kLinkToSwitch;

BoardLink ToSwitch() { return {BoardLink::To::kSwitch, {}}; }
BoardLink To(const PciSlot& slot) { return {BoardLink::To::kSlot, slot}; }

// Boards in slots of their own, whose links are what is given, in front.
Ready Board(uint32_t bus, const std::vector<BoardLink>& links) {
  Ready ready;
  ready.slot = {1, bus, 0};
  std::copy(links.begin(), links.end(), ready.links.links.begin());
  ready.links.version = 6;
  ready.links.speed = 26562;
  return ready;
}

// The first three links that `boards[index]` is shown with, when it reaches `peers`.
wire::DeviceSnapshot Shown(const std::vector<Ready>& boards, size_t index, uint64_t peers) {
  std::vector<const Ready*> shown;
  for (const Ready& board : boards) shown.push_back(&board);
  wire::DeviceSnapshot snapshot;
  snapshot.peers = peers;
  ShowLinks(shown, index, &snapshot);
  return snapshot;
}

TEST(ShownLinks, LeadToASwitchThatAPeerHasLinksTo) {
  const std::vector<Ready> boards = {Board(1, {ToSwitch(), {}, ToSwitch()}), Board(2, {ToSwitch()}),
                                     Board(3, {})};
  const wire::DeviceSnapshot both = Shown(boards, 0, 0b110);
  EXPECT_EQ(both.links[0], kLinkToSwitch);
  EXPECT_EQ(both.links[1], kLinkToNothing);
  EXPECT_EQ(both.links[2], kLinkToSwitch);
  EXPECT_EQ(both.link_version, 6u);
  EXPECT_EQ(both.link_speed, 26562u);
  // Board 2 is reached in another way, and board 0 is no peer of its own.
  for (const uint64_t peers : {uint64_t{0b100}, uint64_t{0}}) {
    const wire::DeviceSnapshot none = Shown(boards, 0, peers);
    EXPECT_THAT(none.links, Each(kLinkToNothing));
    EXPECT_EQ(none.link_version, 0u);
    EXPECT_EQ(none.link_speed, 0u);
  }
}

TEST(ShownLinks, LeadToBoardsOfTheAnswerByTheirPlaceInIt) {
  const std::vector<Ready> boards = {
      Board(7, {To({1, 9, 0}), To({1, 8, 0}), To({2, 9, 0})}),
      Board(8, {To({1, 7, 0})}),
      Board(9, {To({1, 7, 0})}),
  };
  const wire::DeviceSnapshot both = Shown(boards, 0, 0b110);
  EXPECT_EQ(both.links[0], kLinkToDevice + 2);
  EXPECT_EQ(both.links[1], kLinkToDevice + 1);
  EXPECT_EQ(both.links[2], kLinkToNothing) << "that slot is of no device of the answer";
  EXPECT_EQ(Shown(boards, 2, 0b001).links[0], kLinkToDevice + 0);
  const wire::DeviceSnapshot one = Shown(boards, 0, 0b010);
  EXPECT_EQ(one.links[0], kLinkToNothing) << "it does not reach that one";
  EXPECT_EQ(one.links[1], kLinkToDevice + 1);
}

}  // namespace
}  // namespace consort::host
