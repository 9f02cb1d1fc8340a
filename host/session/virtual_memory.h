// SPDX-License-Identifier: Apache-2.0
// host/session/virtual_memory.h: memory that a guest maps itself, at addresses of its window.
//
//   reservation  a range of the window's granules that allocations do not get
//   memory       physical memory of the device, named by the guest
//   mapping      memory at an address inside one reservation
//
// It counts against quotas, and is always on the device: it is not swapped.
//
// Nothing that the guest says is trusted: ranges lie in its own reservations, names are looked up,
// numbers are bounded. Owned by the session loop; calls need the worker's context. Results are the
// driver's. Everything is released in the destructor, before the window.
// Source: CUDA driver API, Virtual Memory Management.
#ifndef CONSORT_HOST_SESSION_VIRTUAL_MEMORY_H_
#define CONSORT_HOST_SESSION_VIRTUAL_MEMORY_H_

#include <cstdint>
#include <map>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "base/units.h"
#include "gen/device/driver_table.h"
#include "memmgr/address_window.h"

namespace consort::host {

class VirtualMemory {
 public:
  // All are borrowed for this object's life.
  VirtualMemory(const device::DriverTable& driver, CUdevice device, memmgr::AddressWindow* window,
                memmgr::MemoryBudget* budget)
      : driver_(driver), device_(device), window_(window), budget_(budget) {}
  ~VirtualMemory();
  VirtualMemory(const VirtualMemory&) = delete;
  VirtualMemory& operator=(const VirtualMemory&) = delete;

  // CUDA_ERROR_INVALID_VALUE of all: not a multiple of the granule, or no such range, name or
  // mapping; also a name that is taken. CUDA_ERROR_OUT_OF_MEMORY: device, window or a table is
  // full.
  CUresult Reserve(Bytes bytes, uint64_t* address);
  CUresult Free(uint64_t address, Bytes bytes);
  CUresult Create(uint64_t name, Bytes bytes);
  CUresult Release(uint64_t name);
  CUresult Map(uint64_t address, Bytes bytes, uint64_t name);
  CUresult Unmap(uint64_t address, Bytes bytes);
  CUresult SetAccess(uint64_t address, Bytes bytes, uint32_t access);

  // Physical memory that Create made and Release has not let go.
  Bytes memory_bytes() const { return memory_bytes_; }

 private:
  struct Memory {
    CUmemGenericAllocationHandle handle = 0;
    Bytes bytes = 0;
    // Shared: memory that was released lives on where it is mapped.
    std::shared_ptr<memmgr::BudgetShare> share;
  };
  struct Mapping {
    Bytes bytes = 0;
    std::shared_ptr<memmgr::BudgetShare> share;
  };
  CUresult Make(Memory* memory, const CUmemAllocationProp& properties);
  // Whether [address, address + bytes) is one or several whole mappings without a gap.
  bool WholeMappings(uint64_t address, Bytes bytes) const;
  bool AnyMapping(uint64_t address, Bytes bytes) const;

  const device::DriverTable& driver_;
  const CUdevice device_;
  memmgr::AddressWindow* const window_;
  memmgr::MemoryBudget* const budget_;
  std::map<uint64_t, Bytes> reservations_;  // by address
  std::map<uint64_t, Mapping> mappings_;    // by address
  absl::flat_hash_map<uint64_t, Memory> memory_;
  Bytes memory_bytes_ = 0;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_VIRTUAL_MEMORY_H_
