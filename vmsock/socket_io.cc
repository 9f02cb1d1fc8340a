// SPDX-License-Identifier: Apache-2.0
#include "vmsock/socket_io.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

// After sys/socket.h, which it needs.
#include <linux/vm_sockets.h>

#include <cstring>

namespace consort {
namespace {

// A message with as many descriptors as may be in flight. 4-byte descriptors after an aligned
// header.
constexpr size_t kRightsBytes = CMSG_SPACE(kDescriptorsInFlightMax * sizeof(int));

// 0 when `fd` may be ready for `events`, also after a hang-up: the next call tells.
int WaitReady(int fd, short events, const Deadline& deadline) {
  for (;;) {
    const int wait_ms = deadline.LeftMs();
    pollfd entry = {fd, events, 0};
    const int count = poll(&entry, 1, wait_ms);
    if (count > 0) return 0;
    if (count < 0 && errno != EINTR) return errno;
    if (count == 0 && wait_ms == 0) return ETIMEDOUT;
  }
}

}  // namespace

int PrepareSocket(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) return errno;
  const int family = SocketFamily(fd);
  if (family == AF_INET || family == AF_INET6) {
    const int on = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0) return errno;
  } else if (family == AF_UNIX) {
    const int bytes = kUnixSocketBufferBytes;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
  } else if (family == AF_VSOCK) {
    RaiseVsockBuffers(fd);
  }
  return 0;
}

int SocketFamily(int fd) {
  int family = -1;
  socklen_t bytes = sizeof(family);
  return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes) == 0 ? family : -1;
}

void RaiseVsockBuffers(int fd) {
  const uint64_t bytes = kVsockBufferBytes;
  // The maximum first: the size is clamped to it.
  setsockopt(fd, AF_VSOCK, SO_VM_SOCKETS_BUFFER_MAX_SIZE, &bytes, sizeof(bytes));
  setsockopt(fd, AF_VSOCK, SO_VM_SOCKETS_BUFFER_SIZE, &bytes, sizeof(bytes));
}

bool PeerHungUp(int fd) {
  pollfd entry = {fd, POLLRDHUP, 0};
  return poll(&entry, 1, 0) > 0;
}

ssize_t SendSome(int fd, std::span<const std::byte> bytes, std::span<const int> descriptors) {
  iovec vector = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[kRightsBytes];
  if (!descriptors.empty()) {
    if (descriptors.size() > kDescriptorsInFlightMax) __builtin_trap();
    std::memset(control, 0, sizeof(control));
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent;
  do {
    sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

ssize_t ReceiveSome(int fd, std::span<std::byte> bytes, std::span<UniqueFd> taken,
                    size_t* taken_count) {
  *taken_count = 0;
  iovec vector = {bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[kRightsBytes];
  msghdr message = {};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  // Without room for control data the kernel closes what was sent.
  if (!taken.empty()) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  ssize_t received;
  do {
    received = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0 || taken.empty()) return received;
  bool too_many = (message.msg_flags & MSG_CTRUNC) != 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t index = 0; index < count; ++index) {
      int descriptor;
      std::memcpy(&descriptor, CMSG_DATA(header) + index * sizeof(int), sizeof(int));
      UniqueFd owned(descriptor);
      if (*taken_count == taken.size()) {
        too_many = true;
      } else {
        taken[(*taken_count)++] = static_cast<UniqueFd&&>(owned);
      }
    }
  }
  if (too_many) {
    errno = EPROTO;
    return -1;
  }
  return received;
}

int SendAll(int fd, std::span<const std::byte> bytes, std::span<const int> descriptors,
            const Deadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = SendSome(fd, bytes, descriptors);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
      descriptors = {};
      continue;
    }
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return errno;
    const int error = WaitReady(fd, POLLOUT, deadline);
    if (error != 0) return error;
  }
  return 0;
}

int ReceiveAll(int fd, std::span<std::byte> bytes, UniqueFd* descriptor, const Deadline& deadline,
               size_t* received) {
  size_t ignored;
  size_t& count = received != nullptr ? *received : ignored;
  count = 0;
  while (count < bytes.size()) {
    UniqueFd taken;
    size_t taken_count;
    const ssize_t result =
        ReceiveSome(fd, bytes.subspan(count),
                    descriptor != nullptr ? std::span<UniqueFd>(&taken, 1) : std::span<UniqueFd>(),
                    &taken_count);
    if (result > 0) {
      count += static_cast<size_t>(result);
      if (taken_count != 0) {
        if (descriptor->valid()) return EPROTO;
        *descriptor = static_cast<UniqueFd&&>(taken);
      }
      continue;
    }
    if (result == 0) return ECONNRESET;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return errno;
    const int error = WaitReady(fd, POLLIN, deadline);
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace consort
