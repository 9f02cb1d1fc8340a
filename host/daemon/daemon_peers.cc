// SPDX-License-Identifier: Apache-2.0
// consortd: sessions of one program, on two devices of this host, that reach each other's memory or
// have its addresses.
//
//   PeerWanted ─▶ may it? the peer's addresses on the session's device ─▶ PeerLink to both workers
//   PeerGone, or the session's end ─▶ the addresses are free again
//
// And memory that a session has exported by a token, for one of another device:
//
//   MemoryWanted ─▶ MemoryFetch, to the worker that has it ─▶ MemoryFetched, to the one that wants
//
// The workers do the rest: host/session/peer_link.h.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "host/control/control_socket.h"
#include "host/daemon/daemon.h"

namespace consort::host {

bool Daemon::OnPeerPacket(ControlPacket& packet) {
  PeerWanted wanted;
  PeerGone gone;
  MemoryWanted memory;
  MemoryFetched fetched;
  if (packet.As(&memory)) {
    FetchMemory(memory);
  } else if (packet.As(&fetched)) {
    PassOnMemory(fetched, packet.descriptor());
  } else if (packet.As(&wanted)) {
    const absl::Status linked = LinkPeers(wanted);
    if (!linked.ok()) RefusePeer(wanted, linked);
  } else if (packet.As(&gone)) {
    EndPeers([&](const PeerPair& pair) {
      return pair.session == gone.session && pair.peer == gone.peer && pair.use == gone.use;
    });
  } else {
    return false;
  }
  return true;
}

void Daemon::RefusePeer(const PeerWanted& wanted, const absl::Status& why) {
  const auto it = sessions_.find(wanted.session);
  if (it == sessions_.end() || it->second.worker == nullptr) return;
  LOG(WARNING) << "session " << wanted.session << " does not reach memory of session "
               << wanted.peer << ": " << why.message();
  PeerRefused refused;
  refused.session = wanted.session;
  refused.peer = wanted.peer;
  refused.use = wanted.use;
  SetText(refused.text, std::string(why.message()));
  const absl::Status told = it->second.worker->control().Send(refused);
  LOG_IF(ERROR, !told.ok()) << "telling worker " << it->second.worker->pid() << ": " << told;
}

absl::Status Daemon::LinkPeers(const PeerWanted& wanted) {
  const auto it = sessions_.find(wanted.session);
  const auto other = sessions_.find(wanted.peer);
  if (it == sessions_.end() || other == sessions_.end()) {
    return absl::InvalidArgumentError("there is no such session");
  }
  const Session& session = it->second;
  const Session& peer = other->second;
  for (const Session* one : {&session, &peer}) {
    if (one->stage != Session::Stage::kOpen || one->worker == nullptr ||
        moves_.Find(one->open.session) != nullptr) {
      return absl::UnavailableError("one of the two is being moved");
    }
  }
  // The peer's worker compares the token, which only its own program knows.
  if (session.identity.tenant != peer.identity.tenant || session.identity.vm != peer.identity.vm) {
    return absl::PermissionDeniedError("they are not of one tenant and machine");
  }
  Device* device = devices_[session.identity.device_index].get();
  const uint32_t peer_index = peer.identity.device_index;
  const bool of_device = wanted.use == PeerUse::kCopies || wanted.use == PeerUse::kKernels;
  if (of_device && (device->info->reaches >> peer_index & 1) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("device ", device->index, " does not reach device ", peer_index));
  }
  ASSIGN_OR_RETURN(auto link, ControlSocket::MakePair());
  PeerPair pair;
  pair.session = wanted.session;
  pair.peer = wanted.peer;
  pair.use = wanted.use;
  pair.device = device->index;
  pair.window = peer.window;
  if (KeepsWindow(pair) && !HasPeerWindow(pair.session, pair.peer) &&
      !device->windows.TakeAt(peer.window)) {
    return absl::UnavailableError(
        absl::StrCat("its addresses are another application's on device ", device->index));
  }
  peers_.push_back(pair);
  PeerLink told;
  told.wanted = wanted;
  told.window_base = peer.window.base;
  told.window_bytes = peer.open.window_bytes - peer.open.shared_host_bytes;
  told.shared_host_bytes = peer.open.shared_host_bytes;
  told.session = wanted.peer;
  absl::Status sent = peer.worker->control().Send(told, link.first.get());
  if (sent.ok()) {
    told.session = wanted.session;
    sent = session.worker->control().Send(told, link.second.get());
  }
  if (!sent.ok()) {
    EndPeers([&](const PeerPair& one) {
      return one.session == pair.session && one.peer == pair.peer && one.use == pair.use;
    });
  }
  return sent;
}

void Daemon::FetchMemory(const MemoryWanted& wanted) {
  const auto it = sessions_.find(wanted.session);
  const auto owner = sessions_.find(wanted.owner);
  if (it == sessions_.end()) return;
  const Session& session = it->second;
  if (owner != sessions_.end() && owner->second.worker != nullptr &&
      owner->second.identity.tenant == session.identity.tenant) {
    const Ready& ready = *devices_[session.identity.device_index]->info;
    MemoryFetch fetch;
    fetch.wanted = wanted;
    SetText(fetch.tenant, session.identity.tenant);
    if ((ready.reaches >> owner->second.identity.device_index & 1) != 0 &&
        owner->second.worker->control().Send(fetch).ok()) {
      return;
    }
  }
  MemoryFetched none;
  none.session = wanted.session;
  none.number = wanted.number;
  PassOnMemory(none, UniqueFd());
}

void Daemon::PassOnMemory(const MemoryFetched& fetched, const UniqueFd& memory) {
  const auto it = sessions_.find(fetched.session);
  if (it == sessions_.end() || it->second.worker == nullptr) return;
  const absl::Status sent = it->second.worker->control().Send(fetched, memory.get());
  LOG_IF(ERROR, !sent.ok()) << "telling worker " << it->second.worker->pid() << ": " << sent;
}

bool Daemon::HasPeerWindow(uint64_t session, uint64_t peer) const {
  return std::any_of(peers_.begin(), peers_.end(), [&](const PeerPair& pair) {
    return pair.session == session && pair.peer == peer && KeepsWindow(pair);
  });
}

void Daemon::EndPeers(const std::function<bool(const PeerPair&)>& of) {
  for (size_t i = peers_.size(); i-- != 0;) {
    const PeerPair pair = peers_[i];
    if (!of(pair)) continue;
    peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(i));
    if (KeepsWindow(pair) && !HasPeerWindow(pair.session, pair.peer)) {
      devices_[pair.device]->windows.Return(pair.window);
    }
  }
}

SlotSet Daemon::SlotsOfOtherDevices(const Device& device) const {
  SlotSet slots = {};
  for (const auto& [id, session] : sessions_) {
    if (session.identity.device_index != device.index) {
      kWindowLayout.Add(session.window, &slots);
    }
  }
  return slots;
}

}  // namespace consort::host
