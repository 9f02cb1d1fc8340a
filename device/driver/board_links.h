// SPDX-License-Identifier: Apache-2.0
// device/driver/board_links.h: the links (NVLink) of a GPU's board that carry accesses of GPUs to
// each other's memory.
//
// The driver interface does not tell of them. NVIDIA's management library (NVML), which comes with
// the driver, does; the CPU driver has links as its options say.
// Source: NVML API Reference, NvLink Methods and Field Value Queries.
#ifndef CONSORT_DEVICE_DRIVER_BOARD_LINKS_H_
#define CONSORT_DEVICE_DRIVER_BOARD_LINKS_H_

#include <array>
#include <cstdint>

namespace consort::device {

struct LoadedDriver;

inline constexpr uint32_t kBoardLinksMax = 36;  // NVML_NVLINK_MAX_LINKS

// Of a board on PCI.
struct PciSlot {
  uint32_t domain = 0;
  uint32_t bus = 0;
  uint32_t device = 0;

  friend bool operator==(const PciSlot&, const PciSlot&) = default;
};

// Value type; in messages.
struct BoardLink {
  enum class To : uint32_t {
    kNothing,  // it is down, or does not carry such accesses
    kSlot,     // another GPU
    kSwitch,   // one that is shared with all other boards that have links to one
  };
  To to = To::kNothing;
  PciSlot slot;  // of kSlot
};

struct BoardLinks {
  std::array<BoardLink, kBoardLinksMax> links;  // by NVML's number
  uint32_t version = 0;                         // nvmlDeviceGetNvLinkVersion's; 0: not told
  uint32_t speed = 0;                           // MB/s, NVML_FI_DEV_NVLINK_GET_SPEED; 0: not told
};

// Of the driver's device `index`, which is in `slot`. No links where the driver has no management
// library, or that does not know the slot, which the log says. Any thread; NVML is opened each
// time.
BoardLinks ReadBoardLinks(const LoadedDriver& driver, int index, const PciSlot& slot);

}  // namespace consort::device

#endif  // CONSORT_DEVICE_DRIVER_BOARD_LINKS_H_
