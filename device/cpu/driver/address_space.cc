// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/driver/address_space.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"

namespace consort::cpu {
namespace {

void* Pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

// End of [base, base + bytes), or 0 if it wraps.
uintptr_t End(uintptr_t base, Bytes bytes) {
  uintptr_t end = 0;
  return __builtin_add_overflow(base, bytes, &end) ? 0 : end;
}

// Anonymous memory with an inaccessible page behind it, or 0.
uintptr_t MapGuarded(Bytes bytes) {
  const Bytes mapped = AlignUp(bytes, kAllocationUnit);
  if (mapped < bytes || mapped + kAllocationUnit < mapped) return 0;
  void* base = mmap(nullptr, mapped + kAllocationUnit, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return 0;
  if (mprotect(base, mapped, PROT_READ | PROT_WRITE) != 0) {
    munmap(base, mapped + kAllocationUnit);
    return 0;
  }
  return reinterpret_cast<uintptr_t>(base);
}

void UnmapGuarded(uintptr_t base, Bytes bytes) {
  munmap(Pointer(base), AlignUp(bytes, kAllocationUnit) + kAllocationUnit);
}

// Replaces whatever is mapped there by inaccessible addresses, still reserved.
void MakeInaccessible(uintptr_t base, Bytes bytes) {
  PCHECK(mmap(Pointer(base), bytes, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == Pointer(base));
}

}  // namespace

void AddressSpace::EnterLocked(Range range) {
  range.id = next_id_++;
  const uintptr_t base = range.base;
  ranges_.emplace(base, std::move(range));
}

void AddressSpace::RememberFreed() {
  absl::MutexLock lock(&mutex_);
  remembers_freed_ = true;
}

namespace {

MemoryBlock BlockOf(const Range& range) {
  return {range.base, range.bytes, range.readable, range.writable, range.constant};
}

}  // namespace

std::optional<uintptr_t> AddressSpace::NotedReservationLocked(uintptr_t address) const {
  auto at = reservations_.upper_bound(address);
  if (at == reservations_.begin()) return std::nullopt;
  --at;
  if (address - at->first >= at->second || noted_.count(at->first) == 0) return std::nullopt;
  return at->first;
}

void AddressSpace::NotePlaced(uintptr_t address, Bytes bytes) {
  absl::MutexLock lock(&mutex_);
  if (!remembers_freed_) return;
  auto at = reservations_.upper_bound(address);
  if (at == reservations_.begin()) return;
  noted_.insert(std::prev(at)->first);
  placed_[address] = bytes;
  // Until now the whole mapping may have been a block.
  Changed();
}

void AddressSpace::NoteGone(uintptr_t address) {
  absl::MutexLock lock(&mutex_);
  const auto at = placed_.find(address);
  if (at == placed_.end()) return;
  Range range;
  range.base = at->first;
  range.bytes = at->second;
  RememberLocked(range, /*holds=*/false);
  placed_.erase(at);
  Changed();
}

std::optional<MemoryBlock> AddressSpace::BlockAtLocked(uintptr_t address) const {
  const auto it = FindLocked(address);
  if (it == ranges_.end()) return std::nullopt;
  MemoryBlock block = BlockOf(it->second);
  if (it->second.kind != RangeKind::kMapping || !NotedReservationLocked(address)) return block;
  auto at = placed_.upper_bound(address);
  if (at == placed_.begin()) return std::nullopt;
  --at;
  if (address - at->first >= at->second) return std::nullopt;
  block.base = at->first;
  block.bytes = at->second;
  return block;
}

std::optional<MemoryBlock> AddressSpace::BlockAt(uintptr_t address) const {
  absl::ReaderMutexLock lock(&mutex_);
  return BlockAtLocked(address);
}

std::optional<MemoryBlock> AddressSpace::NearestBlock(uintptr_t address) const {
  absl::ReaderMutexLock lock(&mutex_);
  std::optional<MemoryBlock> nearest;
  uint64_t least = UINT64_MAX;
  auto offer = [&](const MemoryBlock& block) {
    const uintptr_t end = block.base + block.bytes;
    const uint64_t distance = address < block.base ? block.base - address
                              : address >= end     ? address - end + 1
                                                   : 0;
    if (distance < least) {
      least = distance;
      nearest = block;
    }
  };
  const auto above = ranges_.upper_bound(address);
  for (const auto& range : {above, above == ranges_.begin() ? ranges_.end() : std::prev(above)}) {
    if (range == ranges_.end()) continue;
    // Mappings are taken for what is given out of them, where that is known.
    if (range->second.kind == RangeKind::kMapping && NotedReservationLocked(range->first)) continue;
    offer(BlockOf(range->second));
  }
  const auto placed = placed_.upper_bound(address);
  if (placed != placed_.end()) offer({placed->first, placed->second});
  if (placed != placed_.begin()) offer({std::prev(placed)->first, std::prev(placed)->second});
  return nearest;
}

std::optional<MemoryBlock> AddressSpace::FreedBlock(uintptr_t address) const {
  absl::ReaderMutexLock lock(&mutex_);
  for (auto freed = freed_.rbegin(); freed != freed_.rend(); ++freed) {
    if (address - freed->block.base < freed->block.bytes) return freed->block;
  }
  return std::nullopt;
}

void AddressSpace::Report(std::string_view text) const {
  LOG(ERROR) << "a kernel's access\n" << text;
}

void AddressSpace::RememberLocked(const Range& range, bool holds) {
  if (!remembers_freed_) return;
  freed_.push_back({BlockOf(range), holds});
  if (holds) freed_bytes_ += range.bytes;
  while (freed_.size() > kFreedRangesMax || freed_bytes_ > kFreedBytesMax) {
    const Freed& oldest = freed_.front();
    if (oldest.holds) {
      UnmapGuarded(oldest.block.base, oldest.block.bytes);
      freed_bytes_ -= oldest.block.bytes;
    }
    freed_.pop_front();
  }
}

void AddressSpace::DropGuardedLocked(const Range& range) {
  if (!remembers_freed_) {
    UnmapGuarded(range.base, range.bytes);
    return;
  }
  MakeInaccessible(range.base, AlignUp(range.bytes, kAllocationUnit));
  RememberLocked(range, /*holds=*/true);
}

CUresult AddressSpace::Allocate(const Context& context, Bytes bytes, uintptr_t* base) {
  Device& device = context.device();
  const Bytes counted = AlignUp(bytes, kAllocationUnit);
  if (counted < bytes || !device.TakeMemory(counted)) return CUDA_ERROR_OUT_OF_MEMORY;
  const uintptr_t mapped = MapGuarded(bytes);
  if (mapped == 0) {
    device.ReturnMemory(counted);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Range range;
  range.base = mapped;
  range.bytes = bytes;
  range.device = &device;
  range.context = context.handle();
  range.context_id = context.id();
  absl::MutexLock lock(&mutex_);
  EnterLocked(std::move(range));
  *base = mapped;
  return CUDA_SUCCESS;
}

CUresult AddressSpace::AllocateHost(const Context& context, Bytes bytes, unsigned int flags,
                                    uintptr_t* base) {
  const uintptr_t mapped = MapGuarded(bytes);
  if (mapped == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  Range range;
  range.base = mapped;
  range.bytes = bytes;
  range.kind = RangeKind::kHost;
  range.device = &context.device();
  range.context = context.handle();
  range.context_id = context.id();
  range.flags = flags;
  absl::MutexLock lock(&mutex_);
  EnterLocked(std::move(range));
  *base = mapped;
  return CUDA_SUCCESS;
}

CUresult AddressSpace::Enter(Range range) {
  absl::MutexLock lock(&mutex_);
  if (OccupiedLocked(range.base, range.bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  EnterLocked(std::move(range));
  return CUDA_SUCCESS;
}

bool AddressSpace::Remove(uintptr_t base, RangeKind kind) {
  absl::MutexLock lock(&mutex_);
  const auto it = ranges_.find(base);
  if (it == ranges_.end() || it->second.kind != kind) return false;
  DiscardLocked(it->second);
  ranges_.erase(it);
  return true;
}

void AddressSpace::FreeContext(uint64_t context_id) {
  absl::MutexLock lock(&mutex_);
  for (auto it = ranges_.begin(); it != ranges_.end();) {
    if (it->second.context_id == context_id) {
      DiscardLocked(it->second);
      it = ranges_.erase(it);
    } else {
      ++it;
    }
  }
}

void AddressSpace::DiscardLocked(const Range& range) {
  Changed();
  switch (range.kind) {
    case RangeKind::kDevice:
      DropGuardedLocked(range);
      range.device->ReturnMemory(AlignUp(range.bytes, kAllocationUnit));
      break;
    case RangeKind::kHost:
      DropGuardedLocked(range);
      break;
    case RangeKind::kMapping:
      MakeInaccessible(range.base, range.bytes);
      RememberLocked(range, /*holds=*/false);
      break;
    case RangeKind::kRegistered:
    case RangeKind::kVariable:
      RememberLocked(range, /*holds=*/false);
      break;
  }
}

std::optional<Range> AddressSpace::Find(uintptr_t address) const {
  absl::ReaderMutexLock lock(&mutex_);
  const auto it = FindLocked(address);
  if (it == ranges_.end()) return std::nullopt;
  return it->second;
}

void AddressSpace::SetSyncMemops(uintptr_t address, bool on) {
  absl::MutexLock lock(&mutex_);
  const auto it = FindLocked(address);
  if (it != ranges_.end()) ranges_.at(it->first).sync_memops = on;
}

std::optional<std::pair<uintptr_t, Bytes>> AddressSpace::FindReservation(uintptr_t address) const {
  absl::ReaderMutexLock lock(&mutex_);
  auto it = reservations_.upper_bound(address);
  if (it == reservations_.begin()) return std::nullopt;
  --it;
  if (address - it->first >= it->second) return std::nullopt;
  return std::pair(it->first, it->second);
}

CUresult AddressSpace::Reserve(Bytes bytes, Bytes alignment, uintptr_t hint, uintptr_t* base) {
  // MAP_FIXED_NOREPLACE: never on top of anything, ours or the program's. Source: mmap(2).
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  uintptr_t found = 0;
  if (hint != 0 && hint % alignment == 0) {
    void* at = mmap(Pointer(hint), bytes, PROT_NONE, kFlags | MAP_FIXED_NOREPLACE, -1, 0);
    if (at == Pointer(hint)) {
      found = hint;
    } else if (at != MAP_FAILED) {
      munmap(at, bytes);  // a kernel that does not know the flag
    }
  }
  if (found == 0) {
    const Bytes padded = bytes + alignment;
    if (padded < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    void* at = mmap(nullptr, padded, PROT_NONE, kFlags, -1, 0);
    if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    const uintptr_t start = reinterpret_cast<uintptr_t>(at);
    found = AlignUp(start, alignment);
    if (found > start) munmap(at, found - start);
    const uintptr_t end = start + padded;
    if (end > found + bytes) munmap(Pointer(found + bytes), end - (found + bytes));
  }
  absl::MutexLock lock(&mutex_);
  reservations_.emplace(found, bytes);
  *base = found;
  return CUDA_SUCCESS;
}

CUresult AddressSpace::Unreserve(uintptr_t base, Bytes bytes) {
  absl::MutexLock lock(&mutex_);
  const auto it = reservations_.find(base);
  if (it == reservations_.end() || it->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto first = ranges_.lower_bound(base);
  if (first != ranges_.end() && first->first < base + bytes) return CUDA_ERROR_INVALID_VALUE;
  reservations_.erase(it);
  noted_.erase(base);
  placed_.erase(placed_.lower_bound(base), placed_.lower_bound(base + bytes));
  munmap(Pointer(base), bytes);
  return CUDA_SUCCESS;
}

CUresult AddressSpace::Map(uintptr_t base, Bytes bytes, Bytes offset,
                           std::shared_ptr<PhysicalMemory> physical) {
  if (offset > physical->bytes() || bytes > physical->bytes() - offset) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  absl::MutexLock lock(&mutex_);
  auto it = reservations_.upper_bound(base);
  if (it == reservations_.begin()) return CUDA_ERROR_INVALID_VALUE;
  --it;
  if (base - it->first > it->second || bytes > it->second - (base - it->first)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto next = ranges_.lower_bound(base);
  if (next != ranges_.end() && next->first < base + bytes) return CUDA_ERROR_INVALID_VALUE;
  if (FindLocked(base) != ranges_.end()) return CUDA_ERROR_INVALID_VALUE;
  if (mmap(Pointer(base), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->fd(),
           static_cast<off_t>(offset)) != Pointer(base)) {
    PLOG(ERROR) << "cuMemMap of " << bytes << " bytes: mmap";
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Range range;
  range.base = base;
  range.bytes = bytes;
  range.kind = RangeKind::kMapping;
  range.device = &physical->device();
  range.readable = false;
  range.writable = false;
  range.physical = std::move(physical);
  range.access.fill(CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EnterLocked(std::move(range));
  return CUDA_SUCCESS;
}

bool AddressSpace::WholeMappingsLocked(uintptr_t base, Bytes bytes) const {
  const uintptr_t end = End(base, bytes);
  if (end == 0 || bytes == 0) return false;
  uintptr_t at = base;
  for (auto it = ranges_.find(base); at < end; ++it) {
    if (it == ranges_.end() || it->first != at || it->second.kind != RangeKind::kMapping) {
      return false;
    }
    at += it->second.bytes;
  }
  return at == end;
}

CUresult AddressSpace::Unmap(uintptr_t base, Bytes bytes) {
  absl::MutexLock lock(&mutex_);
  if (!WholeMappingsLocked(base, bytes)) return CUDA_ERROR_INVALID_VALUE;
  const auto first = ranges_.find(base);
  auto last = first;
  for (; last != ranges_.end() && last->first < base + bytes; ++last) DiscardLocked(last->second);
  ranges_.erase(first, last);
  return CUDA_SUCCESS;
}

CUresult AddressSpace::SetAccess(uintptr_t base, Bytes bytes, const Device& device,
                                 CUmemAccess_flags access) {
  absl::MutexLock lock(&mutex_);
  if (!WholeMappingsLocked(base, bytes)) return CUDA_ERROR_INVALID_VALUE;
  for (auto it = ranges_.find(base); it != ranges_.end() && it->first < base + bytes; ++it) {
    Range& range = it->second;
    auto wanted = range.access;
    wanted[device.index()] = access;
    const auto any = [&](CUmemAccess_flags flags) {
      return std::find(wanted.begin(), wanted.end(), flags) != wanted.end();
    };
    const bool writable = any(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    const bool readable = writable || any(CU_MEM_ACCESS_FLAGS_PROT_READ);
    const int protection = writable ? PROT_READ | PROT_WRITE : readable ? PROT_READ : PROT_NONE;
    if (mprotect(Pointer(range.base), range.bytes, protection) != 0) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    Changed();
    range.access = wanted;
    range.readable = readable;
    range.writable = writable;
  }
  return CUDA_SUCCESS;
}

AddressSpace::Ranges::const_iterator AddressSpace::FindLocked(uintptr_t address) const {
  auto it = ranges_.upper_bound(address);
  if (it == ranges_.begin()) return ranges_.end();
  --it;
  return address - it->first < it->second.bytes ? it : ranges_.end();
}

bool AddressSpace::CoveredLocked(uintptr_t base, Bytes bytes, bool write) const {
  const uintptr_t end = End(base, bytes);
  if (end == 0) return false;
  uintptr_t at = base;
  for (auto it = FindLocked(base); it != ranges_.end() && it->first <= at; ++it) {
    if (!it->second.readable || (write && !it->second.writable)) return false;
    at = it->first + it->second.bytes;
    if (at >= end) return true;
  }
  return false;
}

// Memory that the driver need not know, but where it knows some of it, that part must be
// accessible, and nothing may lie in the empty part of a reservation.
bool AddressSpace::ForeignLocked(uintptr_t base, Bytes bytes, bool write) const {
  const uintptr_t end = End(base, bytes);
  if (end == 0) return false;
  auto range = FindLocked(base);
  if (range == ranges_.end()) range = ranges_.lower_bound(base);
  for (; range != ranges_.end() && range->first < end; ++range) {
    if (!range->second.readable || (write && !range->second.writable)) return false;
  }
  auto reserved = reservations_.upper_bound(base);
  if (reserved != reservations_.begin()) --reserved;
  for (; reserved != reservations_.end() && reserved->first < end; ++reserved) {
    const uintptr_t from = std::max(base, reserved->first);
    const uintptr_t to = std::min(end, reserved->first + reserved->second);
    if (from < to && !CoveredLocked(from, to - from, write)) return false;
  }
  return true;
}

bool AddressSpace::CheckLocked(std::span<const Extent> extents) const {
  for (const Extent& extent : extents) {
    if (extent.bytes == 0) continue;
    // What begins on a device has to end there, whatever the caller called it.
    const auto range = FindLocked(extent.base);
    const bool known = extent.known || (range != ranges_.end() && range->second.on_device());
    const bool may = known ? CoveredLocked(extent.base, extent.bytes, extent.write)
                           : ForeignLocked(extent.base, extent.bytes, extent.write);
    if (!may) return false;
  }
  return true;
}

bool AddressSpace::OccupiedLocked(uintptr_t base, Bytes bytes) const {
  const uintptr_t end = End(base, bytes);
  if (end == 0 || FindLocked(base) != ranges_.end()) return true;
  const auto next = ranges_.lower_bound(base);
  if (next != ranges_.end() && next->first < end) return true;
  auto reserved = reservations_.upper_bound(base);
  if (reserved != reservations_.begin() &&
      base - std::prev(reserved)->first < std::prev(reserved)->second) {
    return true;
  }
  return reserved != reservations_.end() && reserved->first < end;
}

bool AddressSpace::Covered(uintptr_t base, Bytes bytes, bool write) const {
  absl::ReaderMutexLock lock(&mutex_);
  return CoveredLocked(base, bytes, write);
}

bool AddressSpace::Check(std::span<const Extent> extents) const {
  absl::ReaderMutexLock lock(&mutex_);
  return CheckLocked(extents);
}

}  // namespace consort::cpu
