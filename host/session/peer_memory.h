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
#include <optional>

#include "absl/status/status.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "gen/device/driver_table.h"

namespace consort::host {

class PeerMemory {
 public:
  PeerMemory(const device::DriverTable& driver, CUdevice device)
      : driver_(driver), device_(device) {}
  // The device must be done with it.
  ~PeerMemory() { Clear(); }
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // From now on memory is mapped at the address that it has there, which lies in this range: whole
  // granules. Once, before there are mappings. kUnavailable: the addresses are taken here.
  absl::Status KeepAddresses(uint64_t base, Bytes bytes);

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
  // By the address there.
  const std::map<uint64_t, Mapping>& mappings() const { return mappings_; }
  // Where these bytes are mapped here; nothing: they are not.
  std::optional<uint64_t> Find(uint64_t address, Bytes bytes) const;
  // A granule of this device, to try copies with: made at the first call.
  CUresult Scratch(uint64_t* address);

 private:
  // Takes over `handle`. `at`: 0: anywhere.
  CUresult Map(CUmemGenericAllocationHandle handle, Bytes bytes, uint64_t at, Mapping* mapping);
  void Unmap(const Mapping& mapping);
  // Whether it lies in the range whose addresses are kept.
  bool Kept(uint64_t address, Bytes bytes) const;

  const device::DriverTable& driver_;
  const CUdevice device_;
  std::map<uint64_t, Mapping> mappings_;
  Mapping scratch_;
  Mapping kept_;  // no bytes: addresses are not kept
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_PEER_MEMORY_H_
