// SPDX-License-Identifier: Apache-2.0
// vmsock/limits.h: the bounds of every channel, with their reasons. Needs no library.
#ifndef CONSORT_VMSOCK_LIMITS_H_
#define CONSORT_VMSOCK_LIMITS_H_

#include <cstdint>

#include "base/units.h"
#include "vmsock/wire/frame.h"

namespace consort {

// A session's rings. 8 MiB hold 14 pieces of bulk data: at PCIe 5 speed (55 GB/s) a piece is copied
// in 10 us, so 14 pieces cover 140 us in which the other side may be scheduled out.
inline constexpr Bytes kRequestRingBytes = 8 * kMiB;
inline constexpr Bytes kReplyRingBytes = 8 * kMiB;

// Behind this much of a lap a producer goes back to the beginning of its ring, if the consumer has
// taken all: 3,600 launches, and little enough for a processor's own cache. This much, and room for
// the frame that goes beyond it in most cases, has its pages when a channel is made.
inline constexpr Bytes kRingLapBytes = 512 * kKiB;
inline constexpr Bytes kRingPopulatedBytes = kRingLapBytes + 64 * kKiB;

// A session's rings in the memory that its virtual machine shares with the host, which all of its
// programs share: six pieces of bulk data. Large copies go past the rings.
inline constexpr Bytes kVmRingBytes = 4 * kMiB;

// A ring must take the largest frame wherever its head stands: the frame and an unused rest of
// nearly the same size before the end. 2 MiB is the power of two above that.
inline constexpr Bytes kRingBytesMin = 2 * kMiB;
static_assert(kRingBytesMin >= 2 * Bytes{wire::kFrameBytesMax});
static_assert(kRingBytesMin >= kRingPopulatedBytes);
// What a peer may name at most, so that sums of two rings and their control page never overflow and
// a guest never maps more than a gigabyte for a channel.
inline constexpr Bytes kRingBytesMax = 512 * kMiB;

// Frames received and not yet released, a channel. Bulk frames are bounded by the ring long before;
// this bounds the table (16 KiB) for small ones that wait for a device.
inline constexpr uint32_t kHeldFramesMax = 1024;

// Buffers of a stream channel. Receiving: seven of the largest frames, so that a few can be held
// while the next arrive. Sending: three, which is more than a socket buffer takes at once.
inline constexpr Bytes kStreamReceiveBytes = 4 * kMiB;
inline constexpr Bytes kStreamSendBytes = 2 * kMiB;
static_assert(kStreamReceiveBytes >= 2 * Bytes{wire::kFrameBytesMax});
static_assert(kStreamSendBytes >= 2 * Bytes{wire::kFrameBytesMax});

// Asked of the kernel for a vsock connection. The send window of a guest is the smaller of both
// sides' buffers, 256 KiB by default, which stalls large copies; 4 MiB is a worker's copy pipeline.
inline constexpr Bytes kVsockBufferBytes = 4 * kMiB;
// Asked of the kernel for a UNIX socket's send buffer; the kernel caps it (net.core.wmem_max).
inline constexpr Bytes kUnixSocketBufferBytes = 1 * kMiB;

// Descriptors that were passed and not yet taken, a channel and direction: a peer that sends more
// without being asked would use up the process's descriptors.
inline constexpr uint32_t kDescriptorsInFlightMax = 16;

// Transport frames that one TryReceive skips before it lets its caller go on.
inline constexpr uint32_t kTransportFramesPerReceiveMax = 64;

// A sleeping side looks at its companion socket this often; a dead peer is noticed within 100 ms.
inline constexpr Nanos kPeerCheckInterval = 80 * kMillisecond;
// A side that polls without ever waiting looks after this many empty polls (a look costs as much as
// about 50 of them).
inline constexpr uint32_t kPeerCheckPolls = 1024;

// A waiter whose receive buffer is full of held frames looks again this often: only a Release by
// another thread of its own process can help, and that is not worth a wake-up call each time.
inline constexpr Nanos kHeldCheckInterval = 1 * kMillisecond;

// vGPUs that one application may see: CUDA programs index devices by small integers, and the
// largest machines have 16 GPUs.
inline constexpr uint32_t kDeviceSnapshotsMax = 64;

// Processes that a status query tells of. A host has no more sessions than address windows, of
// which there are some hundred.
inline constexpr uint32_t kProcessUsesMax = 1024;

// The whole handshake, from connect to the last snapshot. A daemon answers in well under a
// millisecond; one that starts workers may take seconds.
inline constexpr Nanos kHandshakeTimeout = 10 * kSecond;
// To connect; also the kernel's own limit for vsock.
inline constexpr Nanos kConnectTimeout = 2 * kSecond;

}  // namespace consort

#endif  // CONSORT_VMSOCK_LIMITS_H_
