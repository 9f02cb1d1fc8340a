// SPDX-License-Identifier: Apache-2.0
#include "host/session/vigil.h"

#include <utility>

namespace consort::host {

bool VigilRoom::Enter() {
  uint32_t kept = kept_.load(std::memory_order_relaxed);
  do {
    if (kept >= most_) return false;
  } while (!kept_.compare_exchange_weak(kept, kept + 1, std::memory_order_relaxed));
  begun_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void Vigil::Await(uint64_t address, uint64_t number) {
  address_ = address;
  number_ = number;
  awaits_ = true;
  until_ = 0;
}

bool Vigil::Keeps(Nanos now) {
  if (!awaits_) return false;
  if (until_ == 0) until_ = now + kVigilMost;
  if (now >= until_) {
    End();
    return false;
  }
  if (!entered_) entered_ = room_->Enter();
  return entered_;
}

void Vigil::End() {
  awaits_ = false;
  if (std::exchange(entered_, false)) room_->Leave();
}

}  // namespace consort::host
