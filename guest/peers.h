// SPDX-License-Identifier: Apache-2.0
// guest/peers.h: device memory of one vGPU reached by another one of this program.
//
// A worker maps the other one's memory when its session is told to (PeerOpen): at the addresses
// that it has, once a context of the one device has enabled access to one of the other; else, where
// the program copies between the two, somewhere else, which only copies know. Each stays until
// access is disabled, or for good. Or it keeps the addresses alone, for memory that the program
// maps there (calls/virtual_memory.cc), or for host memory (host_reach.h). Access is a device's,
// not a context's: a kernel reaches what any context of its device was given. Thread safe. See
// host/session/peer_link.h.
#ifndef CONSORT_GUEST_PEERS_H_
#define CONSORT_GUEST_PEERS_H_

#include <cuda.h>

#include <cstdint>

#include "guest/objects.h"

namespace consort::guest {

// Whether the devices' workers can do so; and with atomics. Not for a device and itself.
bool CanReachPeer(const Device* device, const Device* peer);
bool CanReachPeerAtomically(const Device* device, const Device* peer);

// cuCtxEnablePeerAccess, cuCtxDisablePeerAccess; the latter after all work of `context`'s device.
CUresult EnablePeerAccess(Context* context, Context* peer);
CUresult DisablePeerAccess(Context* context, Context* peer);
// The context ends: so does what it enabled, and what others enabled of it.
void ForgetPeerAccess(const Context* context);

// cuMemPoolSetAccess of a pool of `owner`'s memory for another device. CUDA_ERROR_INVALID_DEVICE:
// that does not reach it.
CUresult SetPoolAccess(uint64_t pool_id, Device* owner, Device* device, bool enabled);
bool HasPoolAccess(uint64_t pool_id, const Device* device);
// The pool ends.
void ForgetPoolAccess(uint64_t pool_id);

// Whether copies in streams of `device` take addresses of `peer`. The first time they are made to,
// if it can be.
bool CopiesReachPeer(Device* device, Device* peer);

// Has memory of the program be mapped for `device` at addresses of `peer`'s window: for one mapping
// more, and for one less. CUDA_ERROR_TOO_MANY_PEERS: they are another program's there.
CUresult KeepPeerAddresses(Device* device, Device* peer);
CUresult LeavePeerAddresses(Device* device, Device* peer);

// Has host memory of `peer`'s session be mapped for `device`, where it is; for good. `session` gets
// the host's name of that session. CUDA_ERROR_TOO_MANY_PEERS: as above.
CUresult KeepHostAddresses(Device* device, Device* peer, uint64_t* session);
// The name that it was given.
uint64_t HostAddressesOf(const Device* device, const Device* peer);

// Waits for work of devices that reach `device`'s memory, which is about to go.
void AwaitPeersOf(const Device* device);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_PEERS_H_
