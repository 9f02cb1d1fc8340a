// SPDX-License-Identifier: Apache-2.0
// memmgr/address_window.h: the device memory of one session, at addresses that never change.
//
//   window   |<-------------------- reserved once, at a fixed base -------------------->|
//   extents  [ 2 MiB shared ][ 2 MiB shared ][ 6 MiB of one allocation ]..[cached]......
//
// An extent is physical memory mapped in a row, in chunks. Small allocations share extents of one
// granule, in units of kAllocationAlignment; a large allocation is an extent. What is freed stays
// mapped in a bounded cache and goes when a new extent does not fit the device.
//
// Where swapping is allowed, an extent may be away from the device: not made yet, or its contents
// in slots of a swap store. Who uses the device brings in what it needs first. What is known of a
// chunk:
//
//   on the device, changed      the device alone has the contents
//   on the device, not changed  its slot has them too; without a slot nothing was written yet
//   away                        its slot has them; without a slot nothing was written yet
//
// Results are the driver's. Thread compatible; calls need the worker's context current. What is
// freed here may be used again at once: the caller frees when the device is done with it.
// Everything is released in the destructor. Source of the calls: CUDA driver API, Virtual Memory
// Management; docs/ARCHITECTURE.md, "Memory windows and the address map".
#ifndef CONSORT_MEMMGR_ADDRESS_WINDOW_H_
#define CONSORT_MEMMGR_ADDRESS_WINDOW_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "base/units.h"
#include "device/driver/driver_loader.h"
#include "gen/device/driver_table.h"
#include "memmgr/chunk_maker.h"
#include "memmgr/chunk_watcher.h"
#include "memmgr/memory_budget.h"
#include "memmgr/mover.h"
#include "memmgr/range_allocator.h"
#include "memmgr/swap_store.h"

namespace consort::memmgr {

// A live allocation: what the program asked for, and where it is.
struct Allocation {
  uint64_t address = 0;
  Bytes bytes = 0;
};

struct WindowOptions {
  CUdevice device = 0;
  // What is reserved: multiples of kGranuleBytes.
  uint64_t base = 0;
  Bytes bytes = 0;
  MemoryBudget* budget = nullptr;  // borrowed for the window's life
  // Large extents are made of chunks of so many granules; 0: of one.
  uint64_t chunk_granules = 0;
  bool may_be_away = false;       // extents that do not fit the device now
  ChunkMaker* maker = nullptr;    // borrowed for the window's life; null: the driver
  bool exportable = false;        // without a maker: see Export
  device::AllocationNotes notes;  // told of what is given out
};

class AddressWindow {
 public:
  // Reserves the addresses in the current context's process. CUDA_ERROR_OUT_OF_MEMORY: they are not
  // free (the driver would have given others). `driver` is borrowed for the window's life.
  static CUresult Create(const device::DriverTable& driver, const WindowOptions& options,
                         std::unique_ptr<AddressWindow>* window);
  ~AddressWindow();
  AddressWindow(const AddressWindow&) = delete;
  AddressWindow& operator=(const AddressWindow&) = delete;

  // Allocates; the address is a multiple of kAllocationAlignment.
  // CUDA_ERROR_INVALID_VALUE: 0 bytes. CUDA_ERROR_OUT_OF_MEMORY: device, window or table is full.
  CUresult Allocate(Bytes bytes, uint64_t* address);
  // As Allocate, at an address that Allocate has given before for so many bytes.
  // CUDA_ERROR_INVALID_VALUE: it is not free, or none of this window's.
  CUresult AllocateAt(const Allocation& wanted);
  // CUDA_ERROR_INVALID_VALUE: no live allocation begins there.
  CUresult Free(uint64_t address);

  // Takes addresses for memory that the caller maps: `bytes`, a multiple of kGranuleBytes, of which
  // nothing is mapped. CUDA_ERROR_OUT_OF_MEMORY: no free range is that long. The caller returns the
  // range, unmapped, before the window ends.
  // `alignment`: of the address, a power of two of at least kGranuleBytes.
  CUresult TakeRange(Bytes bytes, uint64_t* address, Bytes alignment = kGranuleBytes);
  void ReturnRange(uint64_t address, Bytes bytes);

  // The live allocation that contains `address`.
  std::optional<Allocation> Find(uint64_t address) const;

  // Physical memory, as it is mapped, in which the live allocation that begins at `address` lies.
  std::optional<Allocation> BackingOf(uint64_t address) const;

  // Unmaps and releases all cached memory.
  void Trim();

  // Tells `watcher` of all memory that there is, what is cached too, and from then on of what comes
  // and goes, until Unwatch. Borrowed. For a window whose extents are never away.
  void Watch(ChunkWatcher* watcher);
  // Nothing if it does not watch.
  void Unwatch(ChunkWatcher* watcher);

  // --- Moving to another device

  // What is where, without contents.
  struct PlacedExtent {
    uint64_t address = 0;
    Bytes bytes = 0;
    bool shared = false;  // by small allocations
  };
  struct Layout {
    std::vector<PlacedExtent> extents;    // in ascending order
    std::vector<Allocation> allocations;  // likewise
  };
  Layout Describe() const;
  // Makes memory for extents of which a layout will tell, as far as there is room: Restore finds it
  // in the cache. For a new window whose extents are never away.
  void Prepare(const std::vector<PlacedExtent>& extents);
  // Gives this window, which is new or prepared, another one's layout; what its memory holds is
  // undefined.
  // CUDA_ERROR_INVALID_VALUE: no window of this place can have it. CUDA_ERROR_OUT_OF_MEMORY: the
  // device has no room; with may_be_away only if the budget has none. The window is then of no use.
  CUresult Restore(const Layout& layout);
  // Where the contents of all extents are, in ascending order.
  struct Piece {
    uint64_t address = 0;
    Bytes bytes = 0;
    bool here = false;                // on the device
    SwapStore::Slot* slot = nullptr;  // of what is away; null: never written
    uint64_t made = 0;                // of what is here: no other memory of this window has it
  };
  std::vector<Piece> Pieces() const;
  // A descriptor of the memory of a piece that was here, for another process to map.
  // CUDA_ERROR_INVALID_VALUE: it is not here any more, or cannot be exported.
  CUresult Export(const Piece& piece, UniqueFd* memory) const;

  // --- Being away. Extents are named by their address.

  struct Range {
    uint64_t address = 0;
    Bytes bytes = 0;
  };
  // Whether everything is on the device.
  bool all_here() const { return away_bytes_ == 0; }
  Bytes away_bytes() const { return away_bytes_; }
  Bytes here_bytes() const { return mapped_bytes_; }
  // Adds the extents that overlap the range, in ascending order, those in `extents` already not
  // again.
  void FindExtents(const Range& range, std::vector<uint64_t>* extents) const;
  // As FindExtents, for what a kernel may reach with this address: its allocation, or those near by
  // if it points to none.
  void FindAround(uint64_t address, std::vector<uint64_t>* extents) const;
  std::vector<uint64_t> AllExtents() const;
  // Of the extents: bytes in all, and bytes that are away.
  Bytes BytesOf(const std::vector<uint64_t>& extents) const;
  Bytes AwayBytesOf(const std::vector<uint64_t>& extents) const;

  // The device may have changed the range; or everything.
  void NoteWrite(const Range& range);
  void NoteWriteAnywhere() { written_anywhere_ = ++clock_; }
  // The extents are used now: the others have been unused for longer.
  void NoteUse(const std::vector<uint64_t>& extents);

  struct Moved {
    Bytes copied = 0;
    Bytes moved = 0;  // copied or not
  };
  // Which slots keep the contents of what has come back, so that it can leave again without a copy.
  enum class KeepSlots : uint8_t { kNone, kNotPinned, kAll };
  // Makes and maps what is away of the extents, with its contents; what is new to the device is 0.
  // CUDA_ERROR_OUT_OF_MEMORY: the budget or the
  // driver has no room; what came stays. After another failure all that came is away again.
  // Nothing of the session may use the window meanwhile.
  CUresult BringIn(const std::vector<uint64_t>& extents, KeepSlots keep, Mover* mover,
                   Moved* moved);
  // Moves contents into the store and releases the device's memory: the cache first, then the
  // extents that were unused for longest, but none of `keep`, until `bytes` have gone.
  // CUDA_ERROR_OUT_OF_MEMORY: the store is full, or what is asked for of it; what went is gone, the
  // rest is as before. All work of the session on the device must have ended.
  CUresult SendOut(Bytes bytes, const std::vector<uint64_t>& keep, SwapStore* store,
                   SwapStore::Within within, Mover* mover, Moved* moved);
  // Slots of what is on the device go.
  void DropSpareSlots();

  // --- Contents of what is away, for who reads and writes them there. With may_be_away.

  // Whether new extents are made away, so that they take nothing of the device until they are
  // brought in.
  void MakeAway(bool away) { makes_away_ = away; }
  // Whether the range lies in extents, and nothing of it is on the device.
  bool IsAway(const Range& range);
  // Sees to slots in the host's memory for all of a range that IsAway; what was never written is 0
  // there. False: the store has no such room; the contents are as before.
  bool MakeSlots(const Range& range, SwapStore* store);
  // Copies into a range that has slots.
  void WriteAway(uint64_t address, std::span<const std::byte> from);
  // Makes all of one that IsAway 0.
  void ClearAway(const Range& range);
  // Copies out of one that IsAway, and has such slots where it was written.
  void ReadAway(uint64_t address, std::span<std::byte> to);

  bool Contains(uint64_t address, Bytes bytes) const {
    return address >= base_ && bytes <= bytes_ && address - base_ <= bytes_ - bytes;
  }
  // Memory that allocations take, whole extents counted, here or away; and what the cache holds.
  Bytes used_bytes() const { return used_bytes_; }
  // At any time, also while contents are moved.
  Bytes cached_bytes() const { return cached_bytes_.load(std::memory_order_relaxed); }
  uint64_t allocation_count() const { return allocations_.size(); }

 private:
  struct Chunk {
    CUmemGenericAllocationHandle memory = 0;
    uint64_t made = 0;  // when, by clock_
    bool here = false;
    bool changed = false;                   // what the slot has, if there is one, is old
    std::unique_ptr<SwapStore::Slot> slot;  // null: none
  };
  struct Extent {
    uint64_t granules = 0;
    std::vector<Chunk> chunks;
    bool written = false;   // since `clean_at`
    uint64_t clean_at = 0;  // chunks tell the truth of what was written before
    uint64_t used_at = 0;
    std::unique_ptr<RangeAllocator> units;  // of a shared extent; null: one allocation has it all
    bool cached = false;
    std::list<uint64_t>::iterator age;  // in cache_ages_, while cached
  };
  struct Placed {
    Bytes bytes;
    uint64_t extent;  // its first granule
  };

  using Extents = std::map<uint64_t, Extent>;

  AddressWindow(const device::DriverTable& driver, const WindowOptions& options);
  CUresult TakeExtent(uint64_t granules, uint64_t* first);
  CUresult MakeExtent(uint64_t granules, uint64_t* first);
  // At granules that are taken; undoes nothing but its own.
  CUresult MakeExtentAt(uint64_t first, uint64_t granules);
  void TellOf(uint64_t first, const Extent& extent, ChunkWatcher* watcher) const;
  bool MayPlace(const PlacedExtent& placed) const;
  bool IsPrepared(const PlacedExtent& placed) const;
  CUresult RestoreExtent(const PlacedExtent& placed);
  CUresult RestoreAllocation(const Allocation& allocation);
  void CacheExtent(uint64_t first, Extent* extent);
  void UncacheExtent(uint64_t first, Extent* extent);
  void DestroyExtent(uint64_t first);
  Extents::const_iterator Named(uint64_t address) const;
  // Of the chunks that the range overlaps, in ascending order: calls each(chunk, its first address,
  // its bytes) until that says no. False: it did.
  template <class Each>
  bool EachChunk(const Range& range, const Each& each);
  // The first that ends after `address`.
  Extents::const_iterator FirstOverlapping(uint64_t address) const;
  uint64_t AddressOf(uint64_t first, size_t chunk) const;
  Bytes ChunkBytes(const Extent& extent, size_t chunk) const;
  // Makes and maps a chunk without access; undoes itself.
  CUresult MakeChunk(uint64_t address, Bytes bytes, Chunk* chunk);
  CUresult MakeMemory(uint64_t address, Bytes bytes, CUmemGenericAllocationHandle* memory);
  CUresult DropChunk(uint64_t address, Bytes bytes, Chunk* chunk);
  CUresult ReleaseChunk(uint64_t address, Chunk* chunk);
  CUresult AllowAccess(uint64_t address, Bytes bytes);
  // Takes into the chunks what was written since they last told the truth.
  void SettleWrites(Extent* extent);
  CUresult SendExtent(uint64_t first, Extent* extent, SwapStore* store, SwapStore::Within within,
                      Mover* mover, Moved* moved);
  CUresult AllocateShared(Bytes bytes, uint64_t* address);

  const device::DriverTable& driver_;
  const WindowOptions options_;
  const uint64_t base_;
  const Bytes bytes_;

  RangeAllocator granules_;
  Extents extents_;                                      // by first granule
  std::set<std::pair<uint64_t, uint64_t>> shared_free_;  // (largest free units, extent)
  std::set<std::pair<uint64_t, uint64_t>> cached_;       // (granules, extent)
  std::list<uint64_t> cache_ages_;                       // extents, the longest cached first
  std::map<uint64_t, Placed> allocations_;               // by address
  Bytes mapped_bytes_ = 0;
  Bytes away_bytes_ = 0;
  Bytes used_bytes_ = 0;                 // changed by the owner alone, not by who moves contents
  std::atomic<Bytes> cached_bytes_ = 0;  // relaxed: a number for people
  std::vector<ChunkWatcher*> watchers_;
  bool makes_away_ = false;
  uint64_t clock_ = 0;             // counts what the five times are compared by
  uint64_t written_anywhere_ = 0;  // last
};

}  // namespace consort::memmgr

#endif  // CONSORT_MEMMGR_ADDRESS_WINDOW_H_
