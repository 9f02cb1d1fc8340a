// SPDX-License-Identifier: Apache-2.0
#include "host/control/control_socket.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "absl/strings/str_cat.h"

namespace consort::host {
namespace {

absl::Status ErrnoStatus(const char* what) {
  return absl::UnavailableError(absl::StrCat("control socket: ", what, ": ", strerror(errno)));
}

}  // namespace

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> ControlSocket::MakePair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus("socketpair");
  }
  return std::make_pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

absl::Status ControlSocket::SendPacket(MessageKind kind, const void* body, size_t bytes,
                                       int descriptor) {
  uint64_t kind_number = static_cast<uint64_t>(kind);
  iovec parts[2] = {{&kind_number, sizeof(kind_number)}, {const_cast<void*>(body), bytes}};
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = ancillary;
    message.msg_controllen = sizeof(ancillary);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  while (sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return absl::ResourceExhaustedError("control socket: queue full");
    return ErrnoStatus("send");
  }
  return absl::OkStatus();
}

absl::Status ControlSocket::Receive(bool wait, ControlPacket* packet) {
  uint64_t kind_number = 0;
  iovec parts[2] = {{&kind_number, sizeof(kind_number)}, {packet->body_, sizeof(packet->body_)}};
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  message.msg_control = ancillary;
  message.msg_controllen = sizeof(ancillary);
  ssize_t got;
  do {
    got = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (errno == EAGAIN) return absl::DeadlineExceededError("control socket: nothing there");
    return ErrnoStatus("receive");
  }
  packet->descriptor_.Reset();
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
      int descriptor;
      std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
      packet->descriptor_.Reset(descriptor);
    }
  }
  if (got < static_cast<ssize_t>(sizeof(kind_number))) {
    return absl::UnavailableError("control socket: the other end is gone");
  }
  packet->kind_ = static_cast<MessageKind>(kind_number);
  packet->bytes_ = static_cast<size_t>(got) - sizeof(kind_number);
  return absl::OkStatus();
}

}  // namespace consort::host
