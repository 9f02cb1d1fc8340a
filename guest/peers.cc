// SPDX-License-Identifier: Apache-2.0
#include "guest/peers.h"

#include "guest/call.h"
#include "guest/log.h"
#include "guest/runtime.h"

namespace consort::guest {
namespace {

uint64_t Bit(int ordinal) { return uint64_t{1} << ordinal; }

// Opens the sessions of both and gives the one of `device` what `use` says of the other.
// peer_mutex held.
CUresult Open(Device* device, Device* peer, wire::PeerUse use, uint64_t* session) {
  CUresult result = CUDA_SUCCESS;
  if (OpenDevice(device, &result) == nullptr || OpenDevice(peer, &result) == nullptr) return result;
  wire::PeerOfferRequest offer;
  wire::PeerOfferReply offered;
  if (result = peer->session->Ask(0, offer, &offered); result != CUDA_SUCCESS) return result;
  *session = offered.session;
  wire::PeerOpenRequest open;
  wire::EmptyReply reply;
  open.session = offered.session;
  open.token_high = offered.token_high;
  open.token_low = offered.token_low;
  open.use = static_cast<uint32_t>(use);
  result = device->session->Ask(0, open, &reply);
  if (result != CUDA_SUCCESS) {
    // Should the other's worker have died meanwhile, that is what the program is to hear.
    wire::MemGetInfoRequest asks;
    wire::MemGetInfoReply answers;
    if (CUresult gone = peer->session->Ask(0, asks, &answers); gone != CUDA_SUCCESS) result = gone;
    LogLine("device %d does not reach %smemory of device %d (error %d); the host's log says why",
            device->ordinal, use == wire::PeerUse::kHost ? "host " : "", peer->ordinal,
            static_cast<int>(result));
  } else if (use == wire::PeerUse::kCopies || use == wire::PeerUse::kKernels) {
    peer->reached_by.fetch_or(Bit(device->ordinal), std::memory_order_relaxed);
    result = AwaitGoneAhead(peer);
  }
  return result;
}

CUresult Close(const PeerLink& link, wire::PeerUse use) {
  wire::PeerCloseRequest request;
  wire::EmptyReply reply;
  request.session = link.session;
  request.use = static_cast<uint32_t>(use);
  return link.device->session->Ask(0, request, &reply);
}

PeerLink* FindLink(const Device* device, const Device* peer) {
  for (PeerLink& link : GetRuntime()->peer_links) {
    if (link.device == device && link.peer == peer) return &link;
  }
  return nullptr;
}

PeerLink* FindOrAddLink(Device* device, Device* peer) {
  if (PeerLink* link = FindLink(device, peer); link != nullptr) return link;
  PeerLink link;
  link.device = device;
  link.peer = peer;
  GetRuntime()->peer_links.push_back(link);
  return &GetRuntime()->peer_links.back();
}

// Ends the access of a device that no context uses any more. peer_mutex held.
CUresult CloseIfUnused(PeerLink* link) {
  for (const PeerAccess& access : GetRuntime()->peer_access) {
    if (access.device == link->device && access.peer_device == link->peer) return CUDA_SUCCESS;
  }
  link->enabled = false;
  if (!link->copies) {
    link->peer->reached_by.fetch_and(~Bit(link->device->ordinal), std::memory_order_relaxed);
  }
  return Close(*link, wire::PeerUse::kKernels);
}

bool SameAccess(const PeerAccess& one, const PeerAccess& other) {
  return one.context_id == other.context_id && one.peer_id == other.peer_id &&
         one.device == other.device;
}

CUresult Enable(const PeerAccess& wanted) {
  if (!CanReachPeer(wanted.device, wanted.peer_device)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->peer_mutex);
  for (const PeerAccess& access : runtime->peer_access) {
    if (SameAccess(access, wanted)) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  }
  PeerLink* link = FindOrAddLink(wanted.device, wanted.peer_device);
  if (!link->enabled) {
    const CUresult result =
        Open(wanted.device, wanted.peer_device, wire::PeerUse::kKernels, &link->session);
    if (result != CUDA_SUCCESS) return result;
    link->enabled = true;
  }
  runtime->peer_access.push_back(wanted);
  return CUDA_SUCCESS;
}

CUresult Disable(const PeerAccess& wanted) {
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->peer_mutex);
  for (size_t i = 0; i < runtime->peer_access.size(); ++i) {
    if (!SameAccess(runtime->peer_access[i], wanted)) continue;
    runtime->peer_access.erase(runtime->peer_access.begin() + i);
    return CloseIfUnused(FindLink(wanted.device, wanted.peer_device));
  }
  return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

// Ends what `matches(access)`.
template <class Matches>
void Forget(Matches matches) {
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->peer_mutex);
  for (size_t i = runtime->peer_access.size(); i-- != 0;) {
    const PeerAccess access = runtime->peer_access[i];
    if (!matches(access)) continue;
    runtime->peer_access.erase(runtime->peer_access.begin() + i);
    CloseIfUnused(FindLink(access.device, access.peer_device));
  }
}

}  // namespace

bool CanReachPeer(const Device* device, const Device* peer) {
  return device != peer && (device->snapshot.peers >> peer->host_index & 1) != 0;
}

bool CanReachPeerAtomically(const Device* device, const Device* peer) {
  return CanReachPeer(device, peer) && (device->snapshot.peer_atomics >> peer->host_index & 1) != 0;
}

CUresult EnablePeerAccess(Context* context, Context* peer) {
  return Enable({context->id, peer->id, context->device, peer->device});
}

CUresult DisablePeerAccess(Context* context, Context* peer) {
  return Disable({context->id, peer->id, context->device, peer->device});
}

void ForgetPeerAccess(const Context* context) {
  Forget([context](const PeerAccess& access) {
    return access.context_id == context->id || access.peer_id == context->id;
  });
}

CUresult SetPoolAccess(uint64_t pool_id, Device* owner, Device* device, bool enabled) {
  const PeerAccess access = {0, pool_id, device, owner};
  if (!CanReachPeer(device, owner)) return enabled ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
  const CUresult result = enabled ? Enable(access) : Disable(access);
  const bool was_so = result == (enabled ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
                                         : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  return was_so ? CUDA_SUCCESS : result;
}

bool HasPoolAccess(uint64_t pool_id, const Device* device) {
  MutexLock lock(&GetRuntime()->peer_mutex);
  for (const PeerAccess& access : GetRuntime()->peer_access) {
    if (access.peer_id == pool_id && access.device == device) return true;
  }
  return false;
}

void ForgetPoolAccess(uint64_t pool_id) {
  Forget([pool_id](const PeerAccess& access) { return access.peer_id == pool_id; });
}

bool CopiesReachPeer(Device* device, Device* peer) {
  if (!CanReachPeer(device, peer)) return false;
  MutexLock lock(&GetRuntime()->peer_mutex);
  PeerLink* link = FindOrAddLink(device, peer);
  if (link->enabled || link->copies) return true;
  if (link->copies_refused) return false;
  link->copies = Open(device, peer, wire::PeerUse::kCopies, &link->session) == CUDA_SUCCESS;
  link->copies_refused = !link->copies;
  return link->copies;
}

CUresult KeepPeerAddresses(Device* device, Device* peer) {
  MutexLock lock(&GetRuntime()->peer_mutex);
  PeerLink* link = FindOrAddLink(device, peer);
  if (link->mappings == 0) {
    const CUresult result = Open(device, peer, wire::PeerUse::kAddresses, &link->session);
    if (result != CUDA_SUCCESS) return result;
  }
  ++link->mappings;
  return CUDA_SUCCESS;
}

CUresult LeavePeerAddresses(Device* device, Device* peer) {
  MutexLock lock(&GetRuntime()->peer_mutex);
  PeerLink* link = FindLink(device, peer);
  return --link->mappings == 0 ? Close(*link, wire::PeerUse::kAddresses) : CUDA_SUCCESS;
}

CUresult KeepHostAddresses(Device* device, Device* peer, uint64_t* session) {
  MutexLock lock(&GetRuntime()->peer_mutex);
  PeerLink* link = FindOrAddLink(device, peer);
  if (link->host_refused) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  if (!link->host) {
    const CUresult result = Open(device, peer, wire::PeerUse::kHost, &link->session);
    link->host = result == CUDA_SUCCESS;
    link->host_refused = !link->host;
    if (!link->host) return result;
  }
  *session = link->session;
  return CUDA_SUCCESS;
}

uint64_t HostAddressesOf(const Device* device, const Device* peer) {
  MutexLock lock(&GetRuntime()->peer_mutex);
  const PeerLink* link = FindLink(device, peer);
  return link != nullptr ? link->session : 0;
}

void AwaitPeersOf(const Device* device) {
  const uint64_t reached_by = device->reached_by.load(std::memory_order_relaxed);
  if (reached_by == 0) return;
  Runtime* runtime = GetRuntime();
  for (int i = 0; i < runtime->device_count; ++i) {
    // What fails there is told to whoever asks there.
    if ((reached_by & Bit(i)) != 0) SynchroniseDevice(&runtime->devices[i]);
  }
}

}  // namespace consort::guest
