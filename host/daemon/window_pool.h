// SPDX-License-Identifier: Apache-2.0
// host/daemon/window_pool.h: who has which address window of a device. Owned by consortd's loop.
//
// Address space is divided into slots; a window is some of them in a row. While half of the space
// is free, a session gets the window that it would like, and after that one slot, so that large
// windows do not make sessions few. Windows are handed out in turn, so that slots that have just
// become free are the last to be used again: a stale pointer of an ended session points at nothing
// for as long as possible.
//
// A device's sessions share an address space, its worker's, and so do an application's, on whatever
// devices: each device has a pool, and a session comes with the slots that it may not have, those
// of its tenant's other sessions on this node and of its application's on others.
#ifndef CONSORT_HOST_DAEMON_WINDOW_POOL_H_
#define CONSORT_HOST_DAEMON_WINDOW_POOL_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/units.h"
#include "host/limits.h"

namespace consort::host {

struct Window {
  uint64_t base = 0;
  Bytes bytes = 0;

  friend bool operator==(const Window&, const Window&) = default;
};

// Slots by number: bit N % 64 of word N / 64.
using SlotSet = std::array<uint64_t, 4>;

// Slots 0 to `count` - 1, each `slot_bytes` long, the first at `base`; at most 256.
struct WindowLayout {
  uint64_t base = 0;
  Bytes slot_bytes = 0;
  uint32_t count = 0;

  // Adds the slots of `window`, as far as there are such. Whoever told it need not be believed.
  void Add(const Window& window, SlotSet* set) const;
  // Whether `window` is some of its slots, whole ones. Likewise.
  bool Has(const Window& window) const;
};

// Of every device.
inline constexpr WindowLayout kWindowLayout = {kWindowBase, kWindowSlotBytes, kWindowSlots};

class WindowPool {
 public:
  // The first slot that is handed out is `first` % count: pools that begin at different ones seldom
  // hand out the same, which leaves sessions free to move.
  explicit WindowPool(const WindowLayout& layout, uint64_t first = 0);

  // A window that nobody has, of `wanted` bytes rounded up to slots, or smaller, and with no slot
  // of `except`, nor, where there is another as large, of `rather_not`; nothing when there is none.
  std::optional<Window> Take(Bytes wanted, const SlotSet& except = {},
                             const SlotSet& rather_not = {});
  // Takes this very window, of this layout. False: a slot of it is taken.
  bool TakeAt(const Window& window);
  bool IsFree(const Window& window) const;
  // Gives back what Take or TakeAt gave.
  void Return(const Window& window);

  uint32_t free_slots() const { return free_slots_; }

 private:
  // The first `slots` free ones in a row from next_ on, round about.
  std::optional<uint32_t> FindRun(uint32_t slots, const SlotSet& except) const;

  const WindowLayout layout_;
  std::vector<bool> taken_;
  uint32_t free_slots_;
  uint32_t next_ = 0;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_WINDOW_POOL_H_
