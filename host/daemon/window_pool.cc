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

WindowPool::WindowPool(const WindowLayout& layout, uint64_t first)
    : layout_(layout),
      taken_(layout.count),
      free_slots_(layout.count),
      next_(static_cast<uint32_t>(first % layout.count)) {
  CHECK_LE(layout.count, SlotSet().size() * kBitsPerWord);
}

void WindowLayout::Add(const Window& window, SlotSet* set) const {
  for (uint64_t slot = 0; slot < count; ++slot) {
    const uint64_t at = base + slot * slot_bytes;
    if (at < window.base || at - window.base >= window.bytes) continue;
    (*set)[slot / kBitsPerWord] |= uint64_t{1} << slot % kBitsPerWord;
  }
}

bool WindowLayout::Has(const Window& window) const {
  const Bytes all = slot_bytes * count;
  return window.base >= base && window.base - base < all && window.bytes != 0 &&
         window.bytes <= all - (window.base - base) && (window.base - base) % slot_bytes == 0 &&
         window.bytes % slot_bytes == 0;
}

std::optional<uint32_t> WindowPool::FindRun(uint32_t slots, const SlotSet& except) const {
  const uint32_t count = layout_.count;
  for (uint32_t tried = 0; tried < count; ++tried) {
    const uint32_t first = (next_ + tried) % count;
    if (first + slots > count) continue;  // a window does not wrap
    uint32_t usable = 0;
    while (usable < slots && !taken_[first + usable] && !Has(except, first + usable)) ++usable;
    if (usable == slots) return first;
  }
  return std::nullopt;
}

std::optional<Window> WindowPool::Take(Bytes wanted, const SlotSet& except,
                                       const SlotSet& rather_not) {
  const uint32_t count = layout_.count;
  uint64_t slots = std::max<uint64_t>(1, (wanted + layout_.slot_bytes - 1) / layout_.slot_bytes);
  uint32_t usable = 0;
  for (uint32_t slot = 0; slot < count; ++slot) {
    if (!taken_[slot] && !Has(except, slot)) ++usable;
  }
  // Afterwards half of the space is still free, for sessions with one slot.
  if (usable < slots || usable - slots < count / 2) slots = 1;
  SlotSet best_not = except;
  for (size_t i = 0; i < best_not.size(); ++i) best_not[i] |= rather_not[i];
  std::optional<uint32_t> first = FindRun(static_cast<uint32_t>(slots), best_not);
  if (!first.has_value()) first = FindRun(static_cast<uint32_t>(slots), except);
  if (!first.has_value() && slots != 1) {
    slots = 1;
    first = FindRun(1, except);
  }
  if (!first.has_value()) return std::nullopt;
  std::fill_n(taken_.begin() + *first, slots, true);
  free_slots_ -= static_cast<uint32_t>(slots);
  next_ = (*first + static_cast<uint32_t>(slots)) % count;
  return Window{layout_.base + *first * layout_.slot_bytes, slots * layout_.slot_bytes};
}

bool WindowPool::IsFree(const Window& window) const {
  const auto first =
      taken_.begin() + static_cast<ptrdiff_t>((window.base - layout_.base) / layout_.slot_bytes);
  return std::none_of(first, first + static_cast<ptrdiff_t>(window.bytes / layout_.slot_bytes),
                      [](bool taken) { return taken; });
}

bool WindowPool::TakeAt(const Window& window) {
  if (!IsFree(window)) return false;
  const uint64_t slots = window.bytes / layout_.slot_bytes;
  const uint64_t first = (window.base - layout_.base) / layout_.slot_bytes;
  std::fill_n(taken_.begin() + static_cast<ptrdiff_t>(first), slots, true);
  free_slots_ -= static_cast<uint32_t>(slots);
  return true;
}

void WindowPool::Return(const Window& window) {
  const uint64_t slots = window.bytes / layout_.slot_bytes;
  const uint64_t first = (window.base - layout_.base) / layout_.slot_bytes;
  std::fill_n(taken_.begin() + static_cast<ptrdiff_t>(first), slots, false);
  free_slots_ += static_cast<uint32_t>(slots);
}

}  // namespace consort::host
