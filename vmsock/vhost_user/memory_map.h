// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/memory_map.h: a VM's RAM in our address space, and its two address
// translations.
//
// Owned by the device's thread. Ring addresses are the frontend's virtual addresses (user), buffer
// addresses are guest-physical (guest); both are looked up here with every length checked, and
// nothing else turns a number of the other side into a pointer. Bound: kMemoryRegionsMax regions.
// A frontend repeats SET_MEM_TABLE on each resume: a region that is the same file range keeps its
// mapping, because a mapping may be registered with a device driver and costs much to make again.
// Source: vhost-user specification, "Memory regions description".
#ifndef CONSORT_VMSOCK_VHOST_USER_MEMORY_MAP_H_
#define CONSORT_VMSOCK_VHOST_USER_MEMORY_MAP_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/unique_fd.h"
#include "vmsock/vhost_user/message.h"

namespace consort::vhost_user {

// A region, for another image of the process (device_state.h).
struct RegionState {
  MemoryRegionSpec spec;
  int file = -1;
  bool operator==(const RegionState&) const = default;
};

class MemoryMap {
 public:
  MemoryMap() = default;
  MemoryMap(const MemoryMap&) = delete;
  MemoryMap& operator=(const MemoryMap&) = delete;

  // Replaces all regions; keeps those mappings that stay the same. `fds` has one descriptor for
  // each of `specs`. On error nothing changes. `require_sealed`: refuse memory
  // that its owner could still shrink (touching it afterwards would be a SIGBUS); only a memfd can
  // be sealed. kInvalidArgument: empty, wrapping or overlapping regions, or beyond the end of the
  // file. kFailedPrecondition: not sealed. kResourceExhausted: mmap refused.
  absl::Status Update(std::span<const MemoryRegionSpec> specs, std::vector<UniqueFd> fds,
                      bool require_sealed);
  // Unmaps everything.
  void Clear();

  // One region by guest-physical addresses, while no Update or Clear changes it.
  struct Window {
    uint64_t begin = 0;
    uint64_t bytes = 0;
    std::byte* base = nullptr;
    bool Contains(uint64_t addr, uint64_t length) const {
      return addr >= begin && addr - begin <= bytes && length <= bytes - (addr - begin);
    }
    std::byte* At(uint64_t addr) const { return base + (addr - begin); }
  };

  // The address of `bytes` contiguous bytes at a frontend's address; null if not all inside one
  // region. Valid until the next Update or Clear.
  std::byte* FromUser(uint64_t user_addr, uint64_t bytes) const;
  // The same for a guest-physical address.
  std::byte* FromGuest(uint64_t guest_addr, uint64_t bytes) const {
    return last_.Contains(guest_addr, bytes) ? last_.At(guest_addr) : FindGuest(guest_addr, bytes);
  }
  // That in which FromGuest found something last: for who asks for many addresses in turn.
  const Window& last_window() const { return last_; }
  // Appends the pieces of a guest buffer to `out`: one, or several where adjacent regions are
  // mapped apart. False, with `out` in an unspecified but valid state, if any byte lies outside.
  // bytes == 0 appends nothing.
  bool AppendGuest(uint64_t guest_addr, uint64_t bytes, std::vector<iovec>& out) const;

  // For Update in another image of the process: mappings do not outlive exec, descriptors do.
  std::vector<RegionState> Save() const;

  size_t region_count() const { return regions_.size(); }
  // Mappings made since construction: what a repeated SET_MEM_TABLE must not change.
  uint64_t mappings_made() const { return mappings_made_; }

 private:
  // One mapped file range.
  class Mapping;
  struct Region {
    MemoryRegionSpec spec;
    std::byte* base = nullptr;
    // Shared while Update builds the next list beside the present one; afterwards there is one
    // owner.
    std::shared_ptr<Mapping> mapping;
    UniqueFd file;
  };

  // Looks through all regions.
  std::byte* FindGuest(uint64_t guest_addr, uint64_t bytes) const;

  std::vector<Region> regions_;
  // That in which FindGuest found something last, by guest-physical addresses: most buffers lie in
  // one.
  mutable Window last_;
  uint64_t mappings_made_ = 0;
};

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_MEMORY_MAP_H_
