// SPDX-License-Identifier: Apache-2.0
// host/session/peer_lender.h: lends a window's device memory to a session of another device; see
// peer_link.h.
//
// Owned by the loop of the session whose memory it is; calls need the worker's context. A link that
// has failed, or whose other end has gone, lends nothing more.
#ifndef CONSORT_HOST_SESSION_PEER_LENDER_H_
#define CONSORT_HOST_SESSION_PEER_LENDER_H_

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "base/unique_fd.h"
#include "gen/device/driver_table.h"
#include "host/control/control_socket.h"
#include "host/session/peer_link.h"
#include "memmgr/address_window.h"
#include "memmgr/chunk_watcher.h"

namespace consort::host {

class PeerLender final : public memmgr::ChunkWatcher {
 public:
  // Both are borrowed for this object's life. `name`: of the two sessions, for the log.
  PeerLender(const device::DriverTable& driver, memmgr::AddressWindow* window, std::string name,
             UniqueFd link)
      : driver_(driver), window_(window), name_(std::move(name)), link_(std::move(link)) {}
  ~PeerLender() override { window_->Unwatch(this); }
  PeerLender(const PeerLender&) = delete;
  PeerLender& operator=(const PeerLender&) = delete;

  // Lends what there is, and from then on what is made. False: it failed.
  bool Begin();
  // Whether the other end is there and has taken everything.
  bool Lends();

  void Made(uint64_t address, Bytes bytes, CUmemGenericAllocationHandle memory) override;
  void Going(uint64_t address) override;

 private:
  // Sends and waits for PeerTaken.
  template <class Message>
  absl::Status Tell(const Message& message, int descriptor = -1);
  absl::Status AwaitTaken();
  void Note(const absl::Status& status);

  const device::DriverTable& driver_;
  memmgr::AddressWindow* const window_;
  const std::string name_;
  ControlSocket link_;
  std::set<uint64_t> lent_;  // addresses
  bool over_ = false;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_PEER_LENDER_H_
