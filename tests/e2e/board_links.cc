// SPDX-License-Identifier: Apache-2.0
// tests/e2e/board_links.cc: what a worker reads of the links of a GPU's board, of the NVML that the
// loader finds.
//
//   board_links DOMAIN:BUS:DEVICE...
//
// A line each (numbers of slots are hexadecimal): the slot, and of each link that is up its number
// and where it leads.
#include <cstdio>
#include <cstdlib>

#include "device/driver/board_links.h"
#include "device/driver/driver_loader.h"

using consort::device::BoardLink;
using consort::device::BoardLinks;
using consort::device::PciSlot;

int main(int argc, char** argv) {
  const consort::device::LoadedDriver nvidia;  // not the CPU driver; its calls are not needed
  for (int i = 1; i < argc; ++i) {
    PciSlot slot;
    if (std::sscanf(argv[i], "%x:%x:%x", &slot.domain, &slot.bus, &slot.device) != 3) {
      std::fprintf(stderr, "board_links: %s is no slot such as 0:1b:0\n", argv[i]);
      return EXIT_FAILURE;
    }
    const BoardLinks board = consort::device::ReadBoardLinks(nvidia, 0, slot);
    std::printf("%s version %u speed %u:", argv[i], board.version, board.speed);
    for (size_t link = 0; link < board.links.size(); ++link) {
      const BoardLink& read = board.links[link];
      if (read.to == BoardLink::To::kSwitch) std::printf(" %zu switch", link);
      if (read.to == BoardLink::To::kSlot) {
        std::printf(" %zu %x:%x:%x", link, read.slot.domain, read.slot.bus, read.slot.device);
      }
    }
    std::printf("\n");
  }
  return EXIT_SUCCESS;
}
