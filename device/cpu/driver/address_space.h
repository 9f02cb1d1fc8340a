// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/address_space.h: every range of addresses that the driver gave out or was told
// of.
//
// A device address is a host address, so this is a part of the process's own address space: device
// allocations, pinned host memory, module variables, and reserved windows with what is mapped in
// them. Memory disappears (free, unmap) only under the writer's lock, and RunChecked holds the
// reader's lock, so that a copy can never touch memory that has gone. Thread safe.
#ifndef CONSORT_DEVICE_CPU_DRIVER_ADDRESS_SPACE_H_
#define CONSORT_DEVICE_CPU_DRIVER_ADDRESS_SPACE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "base/units.h"
#include "device/cpu/driver/context.h"
#include "device/cpu/driver/cuda_api.h"
#include "device/cpu/driver/device.h"
#include "device/cpu/driver/limits.h"
#include "device/cpu/driver/physical_memory.h"
#include "device/cpu/memory_map.h"

namespace consort::cpu {

enum class RangeKind {
  kDevice,      // cuMemAlloc
  kHost,        // cuMemHostAlloc, cuMemAllocHost
  kRegistered,  // cuMemHostRegister: the caller's memory
  kMapping,     // cuMemMap
  kVariable,    // of a module: the module's memory
};

struct Range {
  uintptr_t base = 0;
  Bytes bytes = 0;
  RangeKind kind = RangeKind::kDevice;
  Device* device = nullptr;
  CUcontext context = nullptr;  // null for mappings, which belong to no context
  uint64_t context_id = 0;      // Context::id of that context
  uint64_t id = 0;              // never used twice in this process
  unsigned int flags = 0;       // as given to cuMemHostAlloc or cuMemHostRegister
  bool readable = true;
  bool writable = true;
  bool sync_memops = false;
  bool constant = false;  // kVariable only: of the .const state space
  // kMapping only: what is mapped and each device's access.
  std::shared_ptr<PhysicalMemory> physical;
  std::array<CUmemAccess_flags, kDeviceCountMax> access = {};

  bool on_device() const { return kind != RangeKind::kHost && kind != RangeKind::kRegistered; }
};

// One side of an operation on memory.
struct Extent {
  uintptr_t base = 0;
  Bytes bytes = 0;
  bool write = false;
  // The address must be one that the driver knows. Otherwise memory that the driver knows nothing
  // of is taken to be the caller's.
  bool known = false;
};

class AddressSpace : public MemoryMap {
 public:
  AddressSpace() = default;
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  // From now on addresses that were freed are remembered, and not given out again for a while: an
  // access of one is then known for what it is.
  void RememberFreed();
  bool remembers_freed() const {
    absl::MutexLock lock(&mutex_);
    return remembers_freed_;
  }
  // Someone gives out `bytes` at `address` of what is mapped in a reservation; from the first time
  // on, only what is given out of that reservation is a block. Without RememberFreed, nothing.
  void NotePlaced(uintptr_t address, Bytes bytes);
  void NoteGone(uintptr_t address);
  std::optional<MemoryBlock> BlockAt(uintptr_t address) const override;
  std::optional<MemoryBlock> NearestBlock(uintptr_t address) const override;
  std::optional<MemoryBlock> FreedBlock(uintptr_t address) const override;
  void Report(std::string_view text) const override;

  // Allocates zeroed memory of the context's device, page aligned, with an inaccessible page behind
  // it. CUDA_ERROR_OUT_OF_MEMORY: not so much left.
  CUresult Allocate(const Context& context, Bytes bytes, uintptr_t* base);
  // Allocates pinned host memory.
  CUresult AllocateHost(const Context& context, Bytes bytes, unsigned int flags, uintptr_t* base);
  // Enters memory that somebody else owns: `range.kind` is kRegistered or kVariable; the id is set
  // here. CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED: overlaps a known range or reservation.
  CUresult Enter(Range range);
  // Frees, or forgets, the range of `kind` that begins at `base`. False if there is none.
  bool Remove(uintptr_t base, RangeKind kind);
  // Removes everything that belongs to the context with that id.
  void FreeContext(uint64_t context_id);

  // The range that holds `address`.
  std::optional<Range> Find(uintptr_t address) const;
  void SetSyncMemops(uintptr_t address, bool on);
  // The reservation that holds `address`: base and bytes.
  std::optional<std::pair<uintptr_t, Bytes>> FindReservation(uintptr_t address) const;

  // Reserves `bytes` of addresses, at `hint` if that is not 0 and all of it is free, else anywhere.
  // bytes and alignment are multiples of kGranularity; alignment is a power of two.
  CUresult Reserve(Bytes bytes, Bytes alignment, uintptr_t hint, uintptr_t* base);
  // CUDA_ERROR_INVALID_VALUE: not a whole reservation, or something is mapped in it.
  CUresult Unreserve(uintptr_t base, Bytes bytes);
  // Maps [offset, offset + bytes) of `physical` at `base`, inaccessible at first.
  // CUDA_ERROR_INVALID_VALUE: not inside one reservation, occupied, or not inside the memory.
  CUresult Map(uintptr_t base, Bytes bytes, Bytes offset, std::shared_ptr<PhysicalMemory> physical);
  // CUDA_ERROR_INVALID_VALUE: not exactly whole mappings.
  CUresult Unmap(uintptr_t base, Bytes bytes);
  // Gives `device` access to whole mappings. All devices share one page table: memory is accessible
  // to every device if it is to one.
  CUresult SetAccess(uintptr_t base, Bytes bytes, const Device& device, CUmemAccess_flags access);

  // True if all of it is known and accessible: such host memory is pinned.
  bool Covered(uintptr_t base, Bytes bytes, bool write) const;
  // True if every extent may be accessed as it says.
  bool Check(std::span<const Extent> extents) const;
  // As Check, and runs `body` while it stays true. `body` must be short and not call in here.
  template <typename Body>
  bool RunChecked(std::span<const Extent> extents, Body&& body) const {
    absl::ReaderMutexLock lock(&mutex_);
    if (!CheckLocked(extents)) return false;
    body();
    return true;
  }

 private:
  using Ranges = std::map<uintptr_t, Range>;

  void EnterLocked(Range range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The base of the reservation with notes that `address` is in.
  std::optional<uintptr_t> NotedReservationLocked(uintptr_t address) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  std::optional<MemoryBlock> BlockAtLocked(uintptr_t address) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  Ranges::const_iterator FindLocked(uintptr_t address) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool CoveredLocked(uintptr_t base, Bytes bytes, bool write) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool ForeignLocked(uintptr_t base, Bytes bytes, bool write) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool CheckLocked(std::span<const Extent> extents) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool OccupiedLocked(uintptr_t base, Bytes bytes) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // True if [base, base + bytes) is exactly some mappings one after the other.
  bool WholeMappingsLocked(uintptr_t base, Bytes bytes) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Gives the memory of `range`, which leaves the map, back to whom it came from.
  void DiscardLocked(const Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives guarded memory back, or keeps its addresses.
  void DropGuardedLocked(const Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RememberLocked(const Range& range, bool holds) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  Ranges ranges_ ABSL_GUARDED_BY(mutex_);                            // disjoint
  std::map<uintptr_t, Bytes> reservations_ ABSL_GUARDED_BY(mutex_);  // disjoint
  // Parts of reservations that are given out, disjoint, and the reservations where that is known.
  std::map<uintptr_t, Bytes> placed_ ABSL_GUARDED_BY(mutex_);
  std::set<uintptr_t> noted_ ABSL_GUARDED_BY(mutex_);
  struct Freed {
    MemoryBlock block;
    bool holds = false;  // the addresses, inaccessible
  };
  bool remembers_freed_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Freed> freed_ ABSL_GUARDED_BY(mutex_);  // the oldest first
  Bytes freed_bytes_ ABSL_GUARDED_BY(mutex_) = 0;    // of those that hold
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_ADDRESS_SPACE_H_
