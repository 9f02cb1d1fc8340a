// SPDX-License-Identifier: Apache-2.0
// host/daemon/window_pool.h: who has which address window. Owned by consortd's loop.
//
// Windows are handed out in turn, so that a window that has just become free is the last to be used
// again: a stale pointer of an ended session points at nothing for as long as possible.
#ifndef CONSORT_HOST_DAEMON_WINDOW_POOL_H_
#define CONSORT_HOST_DAEMON_WINDOW_POOL_H_

#include <cstdint>
#include <deque>
#include <optional>

namespace consort::host {

class WindowPool {
 public:
  // Windows 0 to `count` - 1, each `bytes` long, the first at `base`.
  WindowPool(uint64_t base, uint64_t bytes, uint32_t count);

  // The base of a window that nobody has, or nothing when all are taken.
  std::optional<uint64_t> Take();
  // Gives back what Take gave.
  void Return(uint64_t window_base);

  size_t free_count() const { return free_.size(); }

 private:
  std::deque<uint64_t> free_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_WINDOW_POOL_H_
