// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/window_pool.h"

#include <algorithm>

#include "base/log.h"

namespace consort::host {
namespace {

constexpr uint32_t kBitsPerWord = 64;

bool Has(const SlotSet& set, uint64_t slot) {
  return (set[slot / kBitsPerWord] >> slot % kBitsPerWord & 1) != 0;
}

}  // namespace

WindowPool::WindowPool(uint64_t base, Bytes slot_bytes, uint32_t count, uint64_t first)
    : base_(base),
      slot_bytes_(slot_bytes),
      taken_(count),
      free_slots_(count),
      next_(static_cast<uint32_t>(first % count)) {
  CHECK_LE(count, SlotSet().size() * kBitsPerWord);
}

void WindowPool::Add(const Window& window, SlotSet* set) const {
  for (uint64_t slot = 0; slot < taken_.size(); ++slot) {
    const uint64_t at = base_ + slot * slot_bytes_;
    if (at < window.base || at - window.base >= window.bytes) continue;
    (*set)[slot / kBitsPerWord] |= uint64_t{1} << slot % kBitsPerWord;
  }
}

std::optional<uint32_t> WindowPool::FindRun(uint32_t slots, const SlotSet& except) const {
  const auto count = static_cast<uint32_t>(taken_.size());
  for (uint32_t tried = 0; tried < count; ++tried) {
    const uint32_t first = (next_ + tried) % count;
    if (first + slots > count) continue;  // a window does not wrap
    uint32_t usable = 0;
    while (usable < slots && !taken_[first + usable] && !Has(except, first + usable)) ++usable;
    if (usable == slots) return first;
  }
  return std::nullopt;
}

std::optional<Window> WindowPool::Take(Bytes wanted, const SlotSet& except) {
  const auto count = static_cast<uint32_t>(taken_.size());
  uint64_t slots = std::max<uint64_t>(1, (wanted + slot_bytes_ - 1) / slot_bytes_);
  // Afterwards half of the space is still free, for sessions with one slot.
  if (free_slots_ < slots || free_slots_ - slots < count / 2) slots = 1;
  std::optional<uint32_t> first = FindRun(static_cast<uint32_t>(slots), except);
  if (!first.has_value() && slots != 1) {
    slots = 1;
    first = FindRun(1, except);
  }
  if (!first.has_value()) return std::nullopt;
  std::fill_n(taken_.begin() + *first, slots, true);
  free_slots_ -= static_cast<uint32_t>(slots);
  next_ = (*first + static_cast<uint32_t>(slots)) % count;
  return Window{base_ + *first * slot_bytes_, slots * slot_bytes_};
}

void WindowPool::Return(const Window& window) {
  const uint64_t slots = window.bytes / slot_bytes_;
  std::fill_n(taken_.begin() + static_cast<ptrdiff_t>((window.base - base_) / slot_bytes_), slots,
              false);
  free_slots_ += static_cast<uint32_t>(slots);
}

}  // namespace consort::host
