// SPDX-License-Identifier: Apache-2.0
// host/daemon/window_pool.h: who has which address window. Owned by consortd's loop.
//
// Address space is divided into slots; a window is some of them in a row. While half of the space
// is free, a session gets the window that it would like, and after that one slot, so that large
// windows do not make sessions few. Windows are handed out in turn, so that slots that have just
// become free are the last to be used again: a stale pointer of an ended session points at nothing
// for as long as possible.
#ifndef CONSORT_HOST_DAEMON_WINDOW_POOL_H_
#define CONSORT_HOST_DAEMON_WINDOW_POOL_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "base/units.h"

namespace consort::host {

struct Window {
  uint64_t base = 0;
  Bytes bytes = 0;

  friend bool operator==(const Window&, const Window&) = default;
};

class WindowPool {
 public:
  // Slots 0 to `count` - 1, each `slot_bytes` long, the first at `base`.
  WindowPool(uint64_t base, Bytes slot_bytes, uint32_t count);

  // A window that nobody has, of `wanted` bytes rounded up to slots, or smaller; nothing when all
  // slots are taken.
  std::optional<Window> Take(Bytes wanted);
  // Gives back what Take gave.
  void Return(const Window& window);

  uint32_t free_slots() const { return free_slots_; }

 private:
  // The first `slots` free ones in a row from next_ on, round about.
  std::optional<uint32_t> FindRun(uint32_t slots) const;

  const uint64_t base_;
  const Bytes slot_bytes_;
  std::vector<bool> taken_;
  uint32_t free_slots_;
  uint32_t next_ = 0;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_WINDOW_POOL_H_
