// SPDX-License-Identifier: Apache-2.0
// host/session/peer_memory.h: memory of another device, mapped in this worker: that of the device
// that a session comes from, which so fetches contents itself, with no host memory between; or that
// of a peer (peer_reach.h).
//
// The other worker exports it (memmgr::AddressWindow::Export); its device must be one that this
// one reaches (WorkerDevice::ReachedBy). Belongs to one thread; calls need the worker's context.
// Source: CUDA driver API, Virtual Memory Management, cuMemImportFromShareableHandle.
#ifndef CONSORT_HOST_SESSION_PEER_MEMORY_H_
#define CONSORT_HOST_SESSION_PEER_MEMORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "gen/device/driver_table.h"
#include "host/session/peer_addresses.h"

namespace consort::host {

class PeerMemory {
 public:
  // `addresses`: memory is mapped at the address that it has there, which lies in these. Null:
  // anywhere.
  PeerMemory(const device::DriverTable& driver, CUdevice device,
             std::shared_ptr<const PeerAddresses> addresses = nullptr)
      : driver_(driver), device_(device), addresses_(std::move(addresses)) {}
  // The device must be done with it.
  ~PeerMemory() { Clear(); }
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Maps what is at `address` there, a multiple of memmgr::kGranuleBytes.
  absl::Status Add(uint64_t address, Bytes bytes, const UniqueFd& memory);
  // Unmaps what Add mapped. The device must be done with it.
  void Remove(uint64_t address);
  void Clear();
  bool empty() const { return mappings_.empty(); }

  struct Mapping {
    uint64_t here = 0;
    Bytes bytes = 0;
  };
  using Mappings = std::map<uint64_t, Mapping>;  // by the address there
  const Mappings& mappings() const { return mappings_; }
  // Where these bytes are mapped here; nothing: they are not.
  static std::optional<uint64_t> Find(const Mappings& mappings, uint64_t address, Bytes bytes);
  std::optional<uint64_t> Find(uint64_t address, Bytes bytes) const {
    return Find(mappings_, address, bytes);
  }
  // A granule of this device, to try copies with: made at the first call.
  CUresult Scratch(uint64_t* address);

 private:
  // Takes over `handle`. `at`: 0: anywhere.
  CUresult Map(CUmemGenericAllocationHandle handle, Bytes bytes, uint64_t at, Mapping* mapping);
  void Unmap(const Mapping& mapping);

  const device::DriverTable& driver_;
  const CUdevice device_;
  const std::shared_ptr<const PeerAddresses> addresses_;
  Mappings mappings_;
  Mapping scratch_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_PEER_MEMORY_H_
