// SPDX-License-Identifier: Apache-2.0
#include "host/session/vigil.h"

namespace consort::host {

bool VigilRoom::Enter() {
  uint32_t inside = inside_.load(std::memory_order_relaxed);
  do {
    if (inside >= most_) return false;
  } while (!inside_.compare_exchange_weak(inside, inside + 1, std::memory_order_relaxed));
  entered_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void Vigil::Await(uint64_t address, uint64_t number) {
  address_ = address;
  number_ = number;
  awaits_ = true;
  until_ = 0;
}

bool Vigil::Lasts(Nanos now) {
  if (!awaits_) return false;
  if (until_ == 0) until_ = now + kVigilMost;
  awaits_ = now < until_;
  return awaits_;
}

}  // namespace consort::host
