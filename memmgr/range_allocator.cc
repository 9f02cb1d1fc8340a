// SPDX-License-Identifier: Apache-2.0
#include "memmgr/range_allocator.h"

#include <iterator>

#include "base/log.h"

namespace consort::memmgr {

RangeAllocator::RangeAllocator(uint64_t length) : length_(length) {
  if (length != 0) AddFree(0, length);
}

void RangeAllocator::AddFree(uint64_t first, uint64_t length) {
  by_first_.emplace(first, length);
  by_length_.emplace(length, first);
  free_total_ += length;
}

void RangeAllocator::RemoveFree(std::map<uint64_t, uint64_t>::iterator range) {
  by_length_.erase({range->second, range->first});
  free_total_ -= range->second;
  by_first_.erase(range);
}

std::optional<uint64_t> RangeAllocator::Take(uint64_t length) {
  CHECK_GT(length, 0u);
  const auto fit = by_length_.lower_bound({length, 0});
  if (fit == by_length_.end()) return std::nullopt;
  const auto [free_length, first] = *fit;
  RemoveFree(by_first_.find(first));
  if (free_length > length) AddFree(first + length, free_length - length);
  return first;
}

bool RangeAllocator::TakeAt(uint64_t first, uint64_t length) {
  CHECK_GT(length, 0u);
  auto range = by_first_.upper_bound(first);
  if (range == by_first_.begin()) return false;
  --range;
  const auto [free_first, free_length] = *range;
  const uint64_t before = first - free_first;
  if (before >= free_length || length > free_length - before) return false;
  RemoveFree(range);
  if (before != 0) AddFree(free_first, before);
  if (before + length < free_length) AddFree(first + length, free_length - before - length);
  return true;
}

void RangeAllocator::Return(uint64_t first, uint64_t length) {
  CHECK_GT(length, 0u);
  CHECK(first <= length_ && length <= length_ - first);
  auto next = by_first_.lower_bound(first);
  CHECK(next == by_first_.end() || first + length <= next->first) << "returned twice";
  if (next != by_first_.end() && next->first == first + length) {
    length += next->second;
    RemoveFree(next);
  }
  next = by_first_.lower_bound(first);
  if (next != by_first_.begin()) {
    const auto previous = std::prev(next);
    CHECK(previous->first + previous->second <= first) << "returned twice";
    if (previous->first + previous->second == first) {
      first = previous->first;
      length += previous->second;
      RemoveFree(previous);
    }
  }
  AddFree(first, length);
}

}  // namespace consort::memmgr
