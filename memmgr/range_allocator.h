// SPDX-License-Identifier: Apache-2.0
// memmgr/range_allocator.h: which parts of a span of numbers are taken. Pure bookkeeping; thread
// compatible.
//
// Best fit: the smallest free range that is large enough, the lowest among equals; so ranges that
// were used before are used again before fresh ones. Free neighbours are one range. Cost:
// logarithmic in the number of free ranges.
#ifndef CONSORT_MEMMGR_RANGE_ALLOCATOR_H_
#define CONSORT_MEMMGR_RANGE_ALLOCATOR_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace consort::memmgr {

class RangeAllocator {
 public:
  // All of [0, length) is free.
  explicit RangeAllocator(uint64_t length);

  // Takes `length` > 0 numbers in a row; the first of them, or nothing if no free range is that
  // long.
  std::optional<uint64_t> Take(uint64_t length);
  // Takes these numbers, length > 0. False: not all of them are free.
  bool TakeAt(uint64_t first, uint64_t length);
  // Gives back a part of what was taken. Giving back what is free is a bug and CHECKed.
  void Return(uint64_t first, uint64_t length);

  uint64_t largest_free() const { return by_length_.empty() ? 0 : by_length_.rbegin()->first; }
  uint64_t free_total() const { return free_total_; }

 private:
  void AddFree(uint64_t first, uint64_t length);
  void RemoveFree(std::map<uint64_t, uint64_t>::iterator range);

  const uint64_t length_;
  uint64_t free_total_ = 0;
  std::map<uint64_t, uint64_t> by_first_;              // first number to length
  std::set<std::pair<uint64_t, uint64_t>> by_length_;  // (length, first)
};

}  // namespace consort::memmgr

#endif  // CONSORT_MEMMGR_RANGE_ALLOCATOR_H_
