// SPDX-License-Identifier: Apache-2.0
// vmsock/socket_io.h: what the channels and the handshake need of a socket, within a time limit and
// without SIGPIPE. Compiled into the guest library. Stateless; any thread.
//
// Results are errno values, 0 for success; the end of a stream is ECONNRESET, a time limit
// ETIMEDOUT.
#ifndef CONSORT_VMSOCK_SOCKET_IO_H_
#define CONSORT_VMSOCK_SOCKET_IO_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/unique_fd.h"
#include "base/units.h"
#include "vmsock/deadline.h"
#include "vmsock/limits.h"

namespace consort {

// Makes `fd` non-blocking and, by its family: TCP_NODELAY on TCP, larger buffers on UNIX and vsock.
// Buffer sizes are wishes and never fail.
int PrepareSocket(int fd);

// The address family of a socket, or -1.
int SocketFamily(int fd);

// Asks for kVsockBufferBytes; before connect or listen, so that the peer learns of it.
void RaiseVsockBuffers(int fd);

// Whether the peer of a connected socket has gone or closed its end. One poll(2) without waiting.
bool PeerHungUp(int fd);

// One sendmsg(2) without waiting. `descriptors` (at most kDescriptorsInFlightMax, UNIX only) travel
// with the first byte. Returns what the system call returns, with errno.
ssize_t SendSome(int fd, std::span<const std::byte> bytes, std::span<const int> descriptors);

// One recvmsg(2) without waiting. Descriptors that came along, close-on-exec, are put into `taken`
// and counted; those that do not fit are closed and the call fails with EPROTO. An empty `taken`
// discards all, which is no error.
ssize_t ReceiveSome(int fd, std::span<std::byte> bytes, std::span<UniqueFd> taken,
                    size_t* taken_count);

// All of `bytes`, by `deadline`. `fd` is non-blocking.
int SendAll(int fd, std::span<const std::byte> bytes, std::span<const int> descriptors,
            const Deadline& deadline);

// Exactly as many bytes, by `deadline`, and no byte after them. At most one descriptor is accepted,
// into `descriptor`; null discards descriptors. `received`, if not null, counts the bytes, also on
// failure.
int ReceiveAll(int fd, std::span<std::byte> bytes, UniqueFd* descriptor, const Deadline& deadline,
               size_t* received = nullptr);

}  // namespace consort

#endif  // CONSORT_VMSOCK_SOCKET_IO_H_
