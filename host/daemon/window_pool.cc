// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/window_pool.h"

namespace consort::host {

WindowPool::WindowPool(uint64_t base, uint64_t bytes, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) free_.push_back(base + i * bytes);
}

std::optional<uint64_t> WindowPool::Take() {
  if (free_.empty()) return std::nullopt;
  const uint64_t window_base = free_.front();
  free_.pop_front();
  return window_base;
}

void WindowPool::Return(uint64_t window_base) { free_.push_back(window_base); }

}  // namespace consort::host
