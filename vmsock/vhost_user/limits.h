// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/limits.h: every bound of the device, with its reason. Immutable.
//
// What one VM can make the device hold at most: kReceiveBudgetBytes of undelivered stream bytes,
// kConnectionsPerVmMax connections (a descriptor and about 1 KiB each, of a session also a
// descriptor and a mapping of kConduitBytes of its worker's), kMessagePayloadBytesMax of
// an unfinished vhost-user message. Reaching a bound is normal: the request that would pass it is
// refused.
#ifndef CONSORT_VMSOCK_VHOST_USER_LIMITS_H_
#define CONSORT_VMSOCK_VHOST_USER_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "base/units.h"

namespace consort::vhost_user {

// --- vhost-user messages ---

// The largest message that we accept is SET_MEM_TABLE with 8 regions (264 bytes); GET_CONFIG may
// carry up to 256 bytes of device configuration behind its 12 bytes.
inline constexpr size_t kMessagePayloadBytesMax = 512;
// VHOST_MEMORY_BASELINE_NREGIONS of the vhost-user specification: without CONFIGURE_MEM_SLOTS,
// which we do not offer, a frontend never sends more. It is also the most descriptors in one
// message.
inline constexpr size_t kMemoryRegionsMax = 8;
// Messages served in one round of the device's loop; a start-up takes about 20. A frontend that
// never stops talking must not keep the thread from Stop.
inline constexpr int kMessagesPerRound = 64;
// Wait before the listening socket is tried again when the process has no descriptor left for a
// frontend.
inline constexpr int kAcceptRetryMs = 100;

// --- virtqueues ---

// QEMU gives a vhost-user-vsock queue 128 entries and no device more than 1,024.
inline constexpr uint32_t kRingEntriesMax = 1024;
// Descriptors that one chain may visit. The specification bounds a chain by the queue's size, so
// this refuses only rings larger than QEMU's that are also used in an odd way; Linux uses at
// most 18.
inline constexpr uint32_t kDescriptorsPerChainMax = 1024;
// Entries of an indirect table: the same bound for the same reason.
inline constexpr uint32_t kIndirectEntriesMax = 1024;

// Log lines about broken rings for one frontend: a guest may break its rings and reset its device
// for ever.
inline constexpr uint32_t kBreaksLoggedMax = 16;

// --- virtio-vsock ---

// Largest payload of one packet. Linux never sends more (VIRTIO_VSOCK_MAX_PKT_BUF_SIZE), and a
// connection's smallest window must take one whole packet.
inline constexpr uint32_t kPacketPayloadBytesMax = 64 * kKiB;

// Connections of one VM, those being closed included. Each costs a host descriptor, a session's two
// (there are kSessionsPerWorker a device, host/limits.h), and a host process commonly may open
// 1,024 to 4,096 of them for all of its VMs.
inline constexpr size_t kConnectionsPerVmMax = 1024;
// Undelivered guest->host bytes of one VM: the sum of all receive windows never passes it.
inline constexpr Bytes kReceiveBudgetBytes = 256 * kMiB;
// Every connection has a window of at least one packet; beyond that, a new one gets this part of
// what the budget has left when all connections that may still come have theirs. Few connections
// get large windows.
inline constexpr Bytes kReceiveBudgetShare = 64;
inline constexpr Bytes kReceiveWindowBytesMin = kPacketPayloadBytesMax;
// Default for VsockDeviceOptions::receive_window_bytes_max. Guests cap their send window at their
// own socket buffer (256 KiB unless raised), so more helps only guests that raise it.
inline constexpr Bytes kReceiveWindowBytesDefault = kMiB;

// Most that we believe of a guest's announced receive buffer. It bounds bytes in flight, so that
// a `fwd_cnt` that runs ahead of what was sent is recognised despite 32-bit wrap-around.
inline constexpr uint32_t kPeerWindowBytesMax = 64 * kMiB;
// A guest from Linux 6.12.92 on resets a connection whose unread packets, counted at
// SKB_TRUESIZE(0) (about 576 bytes) each, exceed its buffer, whatever they carry. One packet per
// KiB of buffer stays clear of it.
inline constexpr uint32_t kPeerBytesPerUnreadPacket = 1024;
// Unread packets that we keep book of for one connection (4 bytes each), however large its buffer:
// 4,096 full rx buffers are about 15 MiB.
inline constexpr uint32_t kUnreadPacketsMax = 4096;
// Guests before Linux 6.8 report small reads late, so a connection that is blocked on unread
// packets asks again at this interval. Rare: it takes hundreds of small packets in one direction
// without any answer.
inline constexpr int kCreditRequestIntervalMs = 10;

// Resets waiting for an rx buffer that answer packets of no connection. When as many wait, the tx
// queue rests until the guest supplies rx buffers: a guest cannot make this list grow.
inline constexpr size_t kPendingResetsMax = 256;

// --- batching ---

// Packets of one connection that go to the host at once, and rx buffers filled at once, through a
// socket: all that QEMU's queue has.
inline constexpr size_t kPacketsPerBatchMax = 128;
// What is copied to or from a conduit as one step (copy_line.h): packets to the host until they
// have as many bytes, and so many rx buffers of Linux (3,732 bytes each, 117 KiB). Small enough
// that the guest goes on with the first while the next are copied: a quarter of what QEMU's queue
// has, half of what Linux posts at once. On an H200's host 32 gave more than 16.
inline constexpr size_t kBytesPerCopy = 128 * kKiB;
inline constexpr size_t kPacketsPerCopy = 32;
// Pieces of memory that such a step has when it takes no further packet: a guest may cut its
// buffers into pieces of a byte. Linux has two a packet, a worker three a frame.
inline constexpr size_t kPiecesPerCopy = 512;
// Bytes of a conduit that are given back to the worker at once, while more are being copied: it has
// 8 MiB in turn, and is told so by a store for which earlier ones are waited for.
inline constexpr uint64_t kBytesReturnedAtOnce = 256 * kKiB;
// Steps of a queue on their way at once: 8 MiB to the host, which is a conduit's, and more rx
// buffers than QEMU's queue has. Each keeps its lists: some KiB, or 40 where a guest cuts its
// buffers into as many pieces as its queue has descriptors.
inline constexpr size_t kCopyStepsMax = 64;
// Rounds of the queues before the control socket is looked at again, while copies are on their way:
// a round takes microseconds then, about as long as that look.
inline constexpr int kPumpsPerRound = 16;
// Looks in such a round, with nothing else to do, at what may come: ended copies, other buffers. A
// look takes a pause of the processor, a round without any several times as long. Chosen.
inline constexpr int kLooksPerPump = 16;
// Rounds in a row with nothing to do but wait for copies, after which the device's thread copies
// itself, whatever the crew does: it has had the time of a share.
inline constexpr uint32_t kIdlePumps = 16;
// What the guess of the rx buffers that a connection will fill is at most for another image of the
// process, which may be an older one that fills no more at once.
inline constexpr uint32_t kReadChainsSavedMax = 18;
static_assert(kReadChainsSavedMax <= kPacketsPerBatchMax);
// Payload that one connection may move in one turn before the next one is served: all that such a
// batch of rx buffers holds.
inline constexpr size_t kBytesPerTurn = 512 * kKiB;
// Packets that one pass takes from or puts into a queue before the control socket is looked at
// again.
inline constexpr uint32_t kPacketsPerPass = 256;

static_assert(kReceiveBudgetBytes / kReceiveWindowBytesMin >= kConnectionsPerVmMax);

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_LIMITS_H_
