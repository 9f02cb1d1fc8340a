// SPDX-License-Identifier: Apache-2.0
// guest/allocations.h: every range of memory that CUDA gave to, or took from, this process: for
// pointer attributes, address ranges, argument checks and the choice of a copy's path. Thread safe.
#ifndef CONSORT_GUEST_ALLOCATIONS_H_
#define CONSORT_GUEST_ALLOCATIONS_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "guest/mutex.h"

namespace consort::guest {

enum class MemoryKind : uint8_t {
  kDevice,          // cuMemAlloc and the like
  kGlobal,          // a module's variable: device memory outside the window
  kSharedHost,      // cuMemHostAlloc where both sides map it: the device reaches it by address
  kPinnedHost,      // cuMemHostAlloc elsewhere: the guest's own memory
  kRegisteredHost,  // cuMemHostRegister
  kRegisteredView,  // a kRegisteredHost at the address by which the device reaches it
  kVirtual,         // cuMemMap; neighbours may be one buffer to the program
  kVirtualHost,     // cuMemMap of memory of the host, which the device reaches by address
  kOpened,          // cuIpcOpenMemHandle
  kManaged,         // cuMemAllocManaged: shared host memory, which the program has too
  kManagedGlobal,   // a module's managed variable: likewise
};

struct Allocation {
  uint64_t start = 0;
  uint64_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  uint64_t context_id = 0;
  uint32_t flags = 0;      // of cuMemHostAlloc or cuMemHostRegister; kVirtual: the access
  uint64_t memory_id = 0;  // kVirtual, kVirtualHost: the memory that is mapped
  // kVirtual and shared host memory: other devices than the window's, by ordinal, whose workers
  // have it mapped there; of kVirtual, what they may do.
  uint64_t mapped_by = 0;
  uint64_t refused_by = 0;  // shared host memory: those whose workers could not
  uint64_t readable_by = 0;
  uint64_t writable_by = 0;
  uint64_t buffer_id = 0;   // unique in the process: CU_POINTER_ATTRIBUTE_BUFFER_ID
  uint64_t library_id = 0;  // kGlobal, kManagedGlobal: the library it belongs to
  // kRegisteredHost: where its kRegisteredView starts, 0 if it has none; and the other way round.
  uint64_t other_start = 0;
  uint64_t pool_id = 0;  // kDevice: the memory pool that it came from
  bool sync_memops = false;
  bool may_keep = false;  // kDevice: as the host said (wire::kAllocationMayKeep)
  bool shared = false;    // kDevice: other processes may have it open
};

// CUmemAccess_flags are bits: 1 to read, 2 to write.
inline uint32_t PeerAccessOf(const Allocation& mapping, uint64_t bit) {
  return ((mapping.readable_by & bit) != 0 ? 1 : 0) + ((mapping.writable_by & bit) != 0 ? 2 : 0);
}

inline bool IsManaged(MemoryKind kind) {
  return kind == MemoryKind::kManaged || kind == MemoryKind::kManagedGlobal;
}
inline bool OnDevice(MemoryKind kind) {
  return kind == MemoryKind::kDevice || kind == MemoryKind::kGlobal ||
         kind == MemoryKind::kVirtual || kind == MemoryKind::kOpened || IsManaged(kind);
}
// Whether the worker reaches it by its address.
inline bool Addressable(MemoryKind kind) {
  return OnDevice(kind) || kind == MemoryKind::kSharedHost || kind == MemoryKind::kVirtualHost ||
         kind == MemoryKind::kRegisteredView;
}

class Allocations {
 public:
  constexpr Allocations() = default;

  // Adds a range; sets its buffer_id. False if it overlaps one that is there.
  bool Add(Allocation allocation);
  // Removes the range that starts at `start` if it is one of `kinds` (bits 1 << kind), into
  // `removed`.
  bool Remove(uint64_t start, uint32_t kinds, Allocation* removed);
  // Whether there is managed memory; takes no lock.
  bool any_managed() const { return managed_.load(std::memory_order_relaxed) != 0; }
  // The range that contains `address`.
  bool Find(uint64_t address, Allocation* found);
  // Whether `range`, or it and mappings that follow without a gap, reach from `address` to `bytes`.
  bool Covers(const Allocation& range, uint64_t address, uint64_t bytes);
  // The kVirtual ranges of which [start, start + bytes) consists, in ascending order; none: it does
  // not consist of whole ones without a gap.
  std::vector<Allocation> Mappings(uint64_t start, uint64_t bytes);
  // Notes the access of mappings that begin in [start, start + bytes).
  void SetAccess(uint64_t start, uint64_t bytes, uint32_t access);
  // Likewise of another device, `bit` its ordinal's, whose worker has mapped them or has not.
  void SetPeerAccess(uint64_t start, uint64_t bytes, uint64_t bit, bool mapped, uint32_t access);
  // Notes that another device's worker, `bit` its ordinal's, has mapped the range that starts
  // there, or could not.
  void SetReached(uint64_t start, uint64_t bit, bool mapped);
  // Where those start that `matches(allocation)`.
  template <class Matches>
  std::vector<uint64_t> Starts(Matches matches) {
    MutexLock lock(&mutex_);
    std::vector<uint64_t> starts;
    for (const Allocation& range : ranges_) {
      if (matches(range)) starts.push_back(range.start);
    }
    return starts;
  }
  // Sets CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of the range that contains `address`.
  bool SetSyncMemops(uint64_t address, bool value);
  // Notes that other processes may open what contains `address`.
  void SetShared(uint64_t address);
  // Sets other_start of the range that starts at `start`. False: there is none.
  bool SetOtherStart(uint64_t start, uint64_t other_start);
  // Removes the first range that `matches(allocation)`, into `removed`.
  template <class Matches>
  bool RemoveIf(Matches matches, Allocation* removed) {
    MutexLock lock(&mutex_);
    for (size_t i = 0; i < ranges_.size(); ++i) {
      if (matches(ranges_[i])) {
        *removed = ranges_[i];
        Erase(i);
        return true;
      }
    }
    return false;
  }

 private:
  void Erase(size_t index) {
    if (IsManaged(ranges_[index].kind)) managed_.fetch_sub(1, std::memory_order_relaxed);
    ranges_.erase(ranges_.begin() + index);
  }
  // Index of the first range that starts after `address`.
  size_t After(uint64_t address) const;
  // The range that contains `address`; null: none. mutex_ held, and for as long as it is used.
  Allocation* Containing(uint64_t address);

  Mutex mutex_;
  std::vector<Allocation> ranges_;  // sorted by start, disjoint
  // Of them. A thread that launches knows of what it was given: by then it has been counted.
  std::atomic<uint32_t> managed_{0};
  uint64_t next_buffer_id_ = 1;
};

}  // namespace consort::guest

#endif  // CONSORT_GUEST_ALLOCATIONS_H_
