// SPDX-License-Identifier: Apache-2.0
#include "guest/allocations.h"

namespace consort::guest {

size_t Allocations::After(uint64_t address) const {
  size_t low = 0;
  size_t high = ranges_.size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (ranges_[middle].start <= address) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

bool Allocations::Add(Allocation allocation) {
  MutexLock lock(&mutex_);
  const size_t after = After(allocation.start);
  if (after > 0 && ranges_[after - 1].start + ranges_[after - 1].bytes > allocation.start)
    return false;
  if (after < ranges_.size() && ranges_[after].start < allocation.start + allocation.bytes)
    return false;
  allocation.buffer_id = next_buffer_id_++;
  ranges_.insert(ranges_.begin() + after, allocation);
  return true;
}

bool Allocations::Remove(uint64_t start, uint32_t kinds, Allocation* removed) {
  MutexLock lock(&mutex_);
  const size_t after = After(start);
  if (after == 0) return false;
  const Allocation& range = ranges_[after - 1];
  if (range.start != start || (kinds >> static_cast<uint32_t>(range.kind) & 1) == 0) return false;
  *removed = range;
  ranges_.erase(ranges_.begin() + (after - 1));
  return true;
}

bool Allocations::Find(uint64_t address, Allocation* found) {
  MutexLock lock(&mutex_);
  const size_t after = After(address);
  if (after == 0) return false;
  const Allocation& range = ranges_[after - 1];
  if (address - range.start >= range.bytes) return false;
  *found = range;
  return true;
}

bool Allocations::SetSyncMemops(uint64_t address, bool value) {
  MutexLock lock(&mutex_);
  const size_t after = After(address);
  if (after == 0 || address - ranges_[after - 1].start >= ranges_[after - 1].bytes) return false;
  ranges_[after - 1].sync_memops = value;
  return true;
}

bool Allocations::SetOtherStart(uint64_t start, uint64_t other_start) {
  MutexLock lock(&mutex_);
  const size_t after = After(start);
  if (after == 0 || ranges_[after - 1].start != start) return false;
  ranges_[after - 1].other_start = other_start;
  return true;
}

}  // namespace consort::guest
