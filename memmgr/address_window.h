// SPDX-License-Identifier: Apache-2.0
// memmgr/address_window.h: the device memory of one session, at addresses that never change.
//
//   window   |<-------------------- reserved once, at a fixed base -------------------->|
//   extents  [ 2 MiB shared ][ 2 MiB shared ][ 6 MiB of one allocation ]..[cached]......
//
// An extent is physical memory made and mapped in one piece. Small allocations share extents of one
// granule, in units of kAllocationAlignment; a large allocation is an extent. What is freed stays
// mapped in a bounded cache and goes when a new extent does not fit the device.
//
// Results are the driver's. Thread compatible; calls need the worker's context current. What is
// freed here may be used again at once: the caller frees when the device is done with it.
// Everything is released in the destructor. Source of the calls: CUDA driver API, Virtual Memory
// Management; docs/ARCHITECTURE.md, "Memory windows and the address map".
#ifndef CONSORT_MEMMGR_ADDRESS_WINDOW_H_
#define CONSORT_MEMMGR_ADDRESS_WINDOW_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/units.h"
#include "gen/device/driver_table.h"
#include "memmgr/range_allocator.h"

namespace consort::memmgr {

// A live allocation: what the program asked for, and where it is.
struct Allocation {
  uint64_t address = 0;
  Bytes bytes = 0;
};

class AddressWindow {
 public:
  // Reserves [base, base + bytes), both multiples of kGranuleBytes, in the current context's
  // process, for memory of `device`. CUDA_ERROR_OUT_OF_MEMORY: the addresses are not free (the
  // driver would have given others). `driver` is borrowed for the window's life.
  static CUresult Create(const device::DriverTable& driver, CUdevice device, uint64_t base,
                         Bytes bytes, std::unique_ptr<AddressWindow>* window);
  ~AddressWindow();
  AddressWindow(const AddressWindow&) = delete;
  AddressWindow& operator=(const AddressWindow&) = delete;

  // Allocates; the address is a multiple of kAllocationAlignment.
  // CUDA_ERROR_INVALID_VALUE: 0 bytes. CUDA_ERROR_OUT_OF_MEMORY: device, window or table is full.
  CUresult Allocate(Bytes bytes, uint64_t* address);
  // CUDA_ERROR_INVALID_VALUE: no live allocation begins there.
  CUresult Free(uint64_t address);

  // Takes addresses for memory that the caller maps: `bytes`, a multiple of kGranuleBytes, of which
  // nothing is mapped. CUDA_ERROR_OUT_OF_MEMORY: no free range is that long. The caller returns the
  // range, unmapped, before the window ends.
  CUresult TakeRange(Bytes bytes, uint64_t* address);
  void ReturnRange(uint64_t address, Bytes bytes);

  // The live allocation that contains `address`.
  std::optional<Allocation> Find(uint64_t address) const;

  // Unmaps and releases all cached memory.
  void Trim();

  bool Contains(uint64_t address, Bytes bytes) const {
    return address >= base_ && bytes <= bytes_ && address - base_ <= bytes_ - bytes;
  }
  // Physical memory that allocations take, whole extents counted; and what the cache holds.
  Bytes used_bytes() const { return mapped_bytes_ - cached_bytes_; }
  Bytes cached_bytes() const { return cached_bytes_; }
  uint64_t allocation_count() const { return allocations_.size(); }

 private:
  struct Extent {
    uint64_t granules = 0;
    CUmemGenericAllocationHandle memory = 0;
    std::unique_ptr<RangeAllocator> units;  // of a shared extent; null: one allocation has it all
    bool cached = false;
    std::list<uint64_t>::iterator age;  // in cache_ages_, while cached
  };
  struct Placed {
    Bytes bytes;
    uint64_t extent;  // its first granule
  };

  AddressWindow(const device::DriverTable& driver, CUdevice device, uint64_t base, Bytes bytes);
  CUresult TakeExtent(uint64_t granules, uint64_t* first);
  CUresult MakeExtent(uint64_t granules, uint64_t* first);
  void CacheExtent(uint64_t first, Extent* extent);
  void UncacheExtent(uint64_t first, Extent* extent);
  void DestroyExtent(uint64_t first);
  CUresult AllocateShared(Bytes bytes, uint64_t* address);

  const device::DriverTable& driver_;
  const CUdevice device_;
  const uint64_t base_;
  const Bytes bytes_;

  RangeAllocator granules_;
  std::map<uint64_t, Extent> extents_;                   // by first granule
  std::set<std::pair<uint64_t, uint64_t>> shared_free_;  // (largest free units, extent)
  std::set<std::pair<uint64_t, uint64_t>> cached_;       // (granules, extent)
  std::list<uint64_t> cache_ages_;                       // extents, the longest cached first
  std::map<uint64_t, Placed> allocations_;               // by address
  Bytes mapped_bytes_ = 0;
  Bytes cached_bytes_ = 0;
};

}  // namespace consort::memmgr

#endif  // CONSORT_MEMMGR_ADDRESS_WINDOW_H_
