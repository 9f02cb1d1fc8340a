// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/shown_links.h"

#include <algorithm>

#include "vmsock/limits.h"

namespace consort::host {
namespace {

using To = device::BoardLink::To;

static_assert(device::kBoardLinksMax == wire::kDeviceLinksMax);
static_assert(wire::kLinkToDevice + kDeviceSnapshotsMax <= wire::kLinkToSwitch);

bool HasSwitch(const Ready& device) {
  return std::any_of(device.links.links.begin(), device.links.links.end(),
                     [](const device::BoardLink& link) { return link.to == To::kSwitch; });
}

}  // namespace

void ShowLinks(std::span<const Ready* const> shown, size_t index, wire::DeviceSnapshot* snapshot) {
  const device::BoardLinks& board = shown[index]->links;
  // The first device that the link leads to and that may be reached, as the wire says it.
  const auto end_of = [&](const device::BoardLink& link) -> uint8_t {
    for (size_t peer = 0; peer < shown.size(); ++peer) {
      if ((snapshot->peers >> peer & 1) == 0) continue;
      if (link.to == To::kSwitch && HasSwitch(*shown[peer])) return wire::kLinkToSwitch;
      if (link.to == To::kSlot && link.slot == shown[peer]->slot) {
        return static_cast<uint8_t>(wire::kLinkToDevice + peer);
      }
    }
    return wire::kLinkToNothing;
  };
  bool any = false;
  for (size_t link = 0; link < board.links.size(); ++link) {
    snapshot->links[link] = end_of(board.links[link]);
    any |= snapshot->links[link] != wire::kLinkToNothing;
  }
  snapshot->link_version = any ? board.version : 0;
  snapshot->link_speed = any ? board.speed : 0;
}

}  // namespace consort::host
