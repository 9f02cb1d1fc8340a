// SPDX-License-Identifier: Apache-2.0
// host/session/shared_host.h: host memory at one address in guest process, worker and device.
//
// It lies in the last part of the session's window. Each allocation is a memfd, mapped here,
// registered with the driver, and handed to the guest as a descriptor; or a part of the memory that
// the guest's virtual machine shares with the host; or a file of the guest, which the guest has at
// another address. So pinned memory needs no copy on its way, and pointers
// to it mean the same everywhere. Owned by the session loop; calls need the worker's context.
// Everything is released in the destructor.
#ifndef CONSORT_HOST_SESSION_SHARED_HOST_H_
#define CONSORT_HOST_SESSION_SHARED_HOST_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "gen/wire/requests.h"
#include "host/session/vm_lender.h"
#include "host/session/worker_device.h"
#include "memmgr/range_allocator.h"

namespace consort::host {

class SharedHost {
 public:
  // Keeps [base, base + bytes), multiples of the page size, free of anything else in this process.
  // kUnavailable: something is there.
  static absl::StatusOr<std::unique_ptr<SharedHost>> Create(const WorkerDevice& device,
                                                            uint64_t base, Bytes bytes);
  ~SharedHost();
  SharedHost(const SharedHost&) = delete;
  SharedHost& operator=(const SharedHost&) = delete;

  // From now on what is allocated is lent by `lender`, borrowed.
  void LendBy(VmLender* lender) { lender_ = lender; }

  // Allocates, rounded up to pages, all zero. CUDA_ERROR_INVALID_VALUE: 0 bytes.
  // CUDA_ERROR_OUT_OF_MEMORY: kSharedHostBytesPerSession, the host's memory or the machine's part
  // of it is used up. CUDA_ERROR_NOT_SUPPORTED: the device would see another address.
  CUresult Allocate(Bytes bytes, uint64_t* address);
  // Takes in memory that the guest has mapped from a file, whole pages of it. The guest may shrink
  // the file: what this process then reads there ends it with SIGBUS, and nothing here does but the
  // driver's own copies of a few bytes. CUDA_ERROR_INVALID_VALUE: no regular file that long, no
  // alignment up to kSharedHostAlignMax, or what it is to replace is not as long.
  CUresult Adopt(int file, const wire::HostAdoptRequest& request, uint64_t* address);
  // CUDA_ERROR_INVALID_VALUE: no allocation begins there. The device must be done with it.
  CUresult Free(uint64_t address);

  bool Contains(uint64_t address, Bytes bytes) const {
    return address >= base_ && bytes <= bytes_ && address - base_ <= bytes_ - bytes;
  }
  // Whether one allocation holds all of these bytes, as opposed to the addresses being ours.
  bool Covers(uint64_t address, Bytes bytes) const;
  // Whether, besides, the guest cannot take these bytes away, so that this process may touch them.
  bool Keeps(uint64_t address, Bytes bytes) const;
  // An allocation as another worker needs it to give the same memory the same place.
  struct Share {
    uint64_t address = 0;
    Bytes bytes = 0;    // whole pages
    Bytes offset = 0;   // of its file
    int memory = -1;    // borrowed
    bool lent = false;  // of the virtual machine's memory
    // Never another allocation's of this session.
    uint64_t number = 0;
  };
  std::vector<Share> Shares() const;
  // The allocation that begins there, if any does.
  std::optional<Share> Find(uint64_t address) const;
  // The allocation in which it lies.
  std::optional<Share> FindAround(uint64_t address) const;
  // Takes up an allocation of another worker, whose file this is. As Allocate, and
  // CUDA_ERROR_INVALID_VALUE: its addresses are not free here, or the file is not that long.
  CUresult TakeUp(const Share& share, UniqueFd memory);

  bool IsAllocation(uint64_t address) const { return allocations_.contains(address); }

 private:
  struct Allocation {
    Bytes bytes = 0;  // whole pages
    Bytes offset = 0;
    UniqueFd memory;
    uint64_t number = 0;
    bool lent = false;
  };
  SharedHost(const WorkerDevice& device, uint64_t base, Bytes bytes);
  // The allocation that holds all of these bytes; null if none does.
  const Allocation* Holder(uint64_t address, Bytes bytes) const;
  // Whole pages of a file.
  struct Piece {
    int memory = -1;  // borrowed
    Bytes offset = 0;
    Bytes bytes = 0;
    bool lent = false;
  };
  // Puts `piece` into a free place, a multiple of `alignment`, and registers it.
  // CUDA_ERROR_OUT_OF_MEMORY: no place is left, or kSharedHostBytesPerSession.
  CUresult Place(const Piece& piece, Bytes alignment, uint64_t* address);
  // Puts `piece` where an allocation lies, which is over then, also with an error.
  CUresult Replace(uint64_t address, const Piece& piece);
  // At pages that are taken; a failure gives them back.
  CUresult Fill(uint64_t place, Allocation allocation);
  CUresult MapAndRegister(uint64_t address, Bytes bytes, int memory, Bytes offset);
  void Unmap(uint64_t address, Bytes bytes);

  const WorkerDevice& device_;
  const device::DriverTable& driver_;
  VmLender* lender_ = nullptr;
  const uint64_t base_;
  const Bytes bytes_;
  memmgr::RangeAllocator pages_;
  std::map<uint64_t, Allocation> allocations_;  // by address
  Bytes used_bytes_ = 0;
  uint64_t next_number_ = 1;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_SHARED_HOST_H_
