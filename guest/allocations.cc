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

Allocation* Allocations::Containing(uint64_t address) {
  const size_t after = After(address);
  if (after == 0) return nullptr;
  Allocation& range = ranges_[after - 1];
  return address - range.start < range.bytes ? &range : nullptr;
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
  if (IsManaged(allocation.kind)) managed_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool Allocations::Remove(uint64_t start, uint32_t kinds, Allocation* removed) {
  MutexLock lock(&mutex_);
  const size_t after = After(start);
  if (after == 0) return false;
  const Allocation& range = ranges_[after - 1];
  if (range.start != start || (kinds >> static_cast<uint32_t>(range.kind) & 1) == 0) return false;
  *removed = range;
  Erase(after - 1);
  return true;
}

bool Allocations::Find(uint64_t address, Allocation* found) {
  MutexLock lock(&mutex_);
  const Allocation* range = Containing(address);
  if (range == nullptr) return false;
  *found = *range;
  return true;
}

bool Allocations::Covers(const Allocation& range, uint64_t address, uint64_t bytes) {
  const uint64_t left = range.bytes - (address - range.start);
  if (bytes <= left) return true;
  if (range.kind != MemoryKind::kVirtual) return false;
  bytes -= left;
  MutexLock lock(&mutex_);
  uint64_t end = range.start + range.bytes;
  for (size_t i = After(range.start); i < ranges_.size(); ++i) {
    const Allocation& next = ranges_[i];
    if (next.kind != MemoryKind::kVirtual || next.start != end) return false;
    if (bytes <= next.bytes) return true;
    bytes -= next.bytes;
    end += next.bytes;
  }
  return false;
}

void Allocations::SetAccess(uint64_t start, uint64_t bytes, uint32_t access) {
  MutexLock lock(&mutex_);
  for (Allocation& range : ranges_) {
    if (range.kind == MemoryKind::kVirtual && range.start >= start && range.start - start < bytes)
      range.flags = access;
  }
}

std::vector<Allocation> Allocations::Mappings(uint64_t start, uint64_t bytes) {
  std::vector<Allocation> mappings;
  MutexLock lock(&mutex_);
  uint64_t end = start;
  for (size_t i = After(start); i != 0 && i <= ranges_.size() && end - start < bytes; ++i) {
    const Allocation& range = ranges_[i - 1];
    if (range.kind != MemoryKind::kVirtual || range.start != end) break;
    mappings.push_back(range);
    end += range.bytes;
  }
  if (end - start != bytes) mappings.clear();
  return mappings;
}

void Allocations::SetPeerAccess(uint64_t start, uint64_t bytes, uint64_t bit, bool mapped,
                                uint32_t access) {
  MutexLock lock(&mutex_);
  const auto set = [bit](uint64_t* bits, bool value) {
    *bits = value ? *bits | bit : *bits & ~bit;
  };
  for (Allocation& range : ranges_) {
    if (range.kind != MemoryKind::kVirtual || range.start < start || range.start - start >= bytes)
      continue;
    set(&range.mapped_by, mapped);
    set(&range.readable_by, (access & 1) != 0);
    set(&range.writable_by, (access & 2) != 0);
  }
}

void Allocations::SetReached(uint64_t start, uint64_t bit, bool mapped) {
  MutexLock lock(&mutex_);
  const size_t after = After(start);
  if (after == 0 || ranges_[after - 1].start != start) return;
  (mapped ? ranges_[after - 1].mapped_by : ranges_[after - 1].refused_by) |= bit;
}

bool Allocations::SetSyncMemops(uint64_t address, bool value) {
  MutexLock lock(&mutex_);
  Allocation* range = Containing(address);
  if (range == nullptr) return false;
  range->sync_memops = value;
  return true;
}

void Allocations::SetShared(uint64_t address) {
  MutexLock lock(&mutex_);
  if (Allocation* range = Containing(address); range != nullptr) range->shared = true;
}

bool Allocations::SetOtherStart(uint64_t start, uint64_t other_start) {
  MutexLock lock(&mutex_);
  const size_t after = After(start);
  if (after == 0 || ranges_[after - 1].start != start) return false;
  ranges_[after - 1].other_start = other_start;
  return true;
}

}  // namespace consort::guest
