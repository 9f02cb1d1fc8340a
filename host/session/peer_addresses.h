// SPDX-License-Identifier: Apache-2.0
// host/session/peer_addresses.h: addresses of a peer's window, reserved in this worker, so that
// memory can be mapped here where it is mapped there.
//
// Shared: by the peer's memory (peer_reach.h) and by what the program maps there itself
// (virtual_memory.h), which end in any order, each with nothing mapped any more. Immutable; made
// and destroyed in the worker's context. Source: CUDA driver API, cuMemAddressReserve.
#ifndef CONSORT_HOST_SESSION_PEER_ADDRESSES_H_
#define CONSORT_HOST_SESSION_PEER_ADDRESSES_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "gen/device/driver_table.h"

namespace consort::host {

class PeerAddresses {
 public:
  // [base, base + bytes): whole granules. `driver` is borrowed for this object's life.
  // kUnavailable: they are taken here.
  static absl::StatusOr<std::shared_ptr<const PeerAddresses>> Keep(
      const device::DriverTable& driver, uint64_t base, Bytes bytes);
  ~PeerAddresses() { driver_.cuMemAddressFree(base_, bytes_); }
  PeerAddresses(const PeerAddresses&) = delete;
  PeerAddresses& operator=(const PeerAddresses&) = delete;

  uint64_t base() const { return base_; }
  bool Contains(uint64_t address, Bytes bytes) const {
    return address >= base_ && bytes <= bytes_ && address - base_ <= bytes_ - bytes;
  }

 private:
  PeerAddresses(const device::DriverTable& driver, uint64_t base, Bytes bytes)
      : driver_(driver), base_(base), bytes_(bytes) {}

  const device::DriverTable& driver_;
  const uint64_t base_;
  const Bytes bytes_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_PEER_ADDRESSES_H_
