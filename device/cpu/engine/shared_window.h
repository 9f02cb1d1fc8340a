// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/shared_window.h: memory of the .shared state space of one block at a time.
//
// Shared addresses are 32-bit offsets, so the window reserves 4 GiB of addresses, of which only the
// block's own bytes are accessible: an access outside faults instead of reaching other memory.
// Owned by a BlockRunner; thread compatible.
#ifndef CONSORT_DEVICE_CPU_ENGINE_SHARED_WINDOW_H_
#define CONSORT_DEVICE_CPU_ENGINE_SHARED_WINDOW_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace consort::cpu {

class SharedWindow {
 public:
  SharedWindow() = default;
  ~SharedWindow();
  SharedWindow(const SharedWindow&) = delete;
  SharedWindow& operator=(const SharedWindow&) = delete;

  // kResourceExhausted: no address space.
  absl::Status Reserve();
  // Makes the first `bytes` accessible, rounded up to pages, and zero; the rest not.
  absl::Status Prepare(size_t bytes);
  uint8_t* base() const { return base_; }

 private:
  uint8_t* base_ = nullptr;
  size_t accessible_bytes_ = 0;
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_SHARED_WINDOW_H_
