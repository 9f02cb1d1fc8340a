// SPDX-License-Identifier: Apache-2.0
// host/session/virtual_memory.h: memory that a guest maps itself, at addresses of its window.
//
//   reservation  a range of the window's granules that allocations do not get
//   memory       physical memory of the device, named by the guest
//   mapping      memory at an address inside one reservation, or of a peer's window: where that one
//                reserved it, so that the program's addresses mean the same to both devices
//   opening      memory of another session, at a range of the window's granules
//
// It counts against quotas, and is always on the device: it is not swapped. What is another
// session's counts there, while that is open.
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
#include "host/session/exports.h"
#include "host/session/peer_addresses.h"
#include "memmgr/address_window.h"

namespace consort::host {

class VirtualMemory {
 public:
  // All are borrowed for this object's life. `exportable`: memory may go to other processes.
  VirtualMemory(const device::DriverTable& driver, CUdevice device, memmgr::AddressWindow* window,
                memmgr::MemoryBudget* budget, bool exportable)
      : driver_(driver),
        device_(device),
        window_(window),
        budget_(budget),
        exportable_(exportable) {}
  ~VirtualMemory();
  VirtualMemory(const VirtualMemory&) = delete;
  VirtualMemory& operator=(const VirtualMemory&) = delete;

  // CUDA_ERROR_INVALID_VALUE of all: not a multiple of the granule, or no such range, name or
  // mapping; also a name that is taken. CUDA_ERROR_OUT_OF_MEMORY: device, window or a table is
  // full.
  // `alignment`: a power of two, or 0.
  CUresult Reserve(Bytes bytes, Bytes alignment, uint64_t* address);
  CUresult Free(uint64_t address, Bytes bytes);
  CUresult Create(uint64_t name, Bytes bytes);
  CUresult Release(uint64_t name);
  // Gives memory of another session a name here.
  CUresult Import(uint64_t name, std::shared_ptr<PhysicalMemory> memory);
  // The memory of that name, or null.
  std::shared_ptr<PhysicalMemory> Find(uint64_t name) const;
  // Has memory be mapped at these addresses, too, until Leave, which unmaps what is there; the
  // device must be done with it.
  void Join(std::shared_ptr<const PeerAddresses> addresses);
  void Leave(const PeerAddresses& addresses);
  // Whether the bytes lie in one or several mappings in a row, at addresses of peers.
  bool AtPeers(uint64_t address, Bytes bytes) const;
  CUresult Map(uint64_t address, Bytes bytes, uint64_t name);
  CUresult Unmap(uint64_t address, Bytes bytes);
  CUresult SetAccess(uint64_t address, Bytes bytes, uint32_t access);

  // Maps all of `memory`, for reading and writing. Close takes the address that Open gave.
  CUresult Open(std::shared_ptr<PhysicalMemory> memory, uint64_t* address);
  CUresult Close(uint64_t address);

  // Whether the guest has nothing here.
  bool empty() const {
    return reservations_.empty() && peers_.empty() && mappings_.empty() && openings_.empty() &&
           memory_.empty();
  }
  // Physical memory that Create made and Release has not let go.
  Bytes memory_bytes() const { return memory_bytes_; }

 private:
  struct Memory {
    std::shared_ptr<PhysicalMemory> physical;
    // Null: of another session. Shared: memory that was released lives on where it is mapped.
    std::shared_ptr<memmgr::BudgetShare> share;
  };
  struct Mapping {
    Bytes bytes = 0;
    std::shared_ptr<memmgr::BudgetShare> share;
  };
  CUresult Make(Bytes bytes, Memory* memory);
  // Whether [address, address + bytes) is one or several whole mappings without a gap.
  bool WholeMappings(uint64_t address, Bytes bytes) const;
  bool AnyMapping(uint64_t address, Bytes bytes) const;
  // Whether memory may be mapped there, as far as addresses go.
  bool Reserved(uint64_t address, Bytes bytes) const;

  const device::DriverTable& driver_;
  const CUdevice device_;
  memmgr::AddressWindow* const window_;
  memmgr::MemoryBudget* const budget_;
  const bool exportable_;
  std::map<uint64_t, Bytes> reservations_;                          // by address
  std::map<uint64_t, std::shared_ptr<const PeerAddresses>> peers_;  // by address
  std::map<uint64_t, Mapping> mappings_;                            // by address
  std::map<uint64_t, std::shared_ptr<PhysicalMemory>> openings_;    // by address
  absl::flat_hash_map<uint64_t, Memory> memory_;
  Bytes memory_bytes_ = 0;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_VIRTUAL_MEMORY_H_
