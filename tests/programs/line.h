// SPDX-License-Identifier: Apache-2.0
// tests/programs/line.h: what processes of one program tell each other over a socket of whole
// messages (SOCK_SEQPACKET), with a descriptor where there is one.
#ifndef TESTS_PROGRAMS_LINE_H_
#define TESTS_PROGRAMS_LINE_H_

#include <sys/socket.h>

#include <cstring>

namespace programs {

// False: the other one has gone. `descriptor` -1: none goes along. It stays the caller's.
template <typename Told>
bool Tell(int line, const Told& told, int descriptor = -1) {
  iovec data = {const_cast<Told*>(&told), sizeof(told)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  return sendmsg(line, &message, MSG_NOSIGNAL) == sizeof(told);
}

// Waits. False: the other one has gone. `descriptor`, -1 where none came, is the caller's to close.
template <typename Told>
bool Hear(int line, Told* told, int* descriptor) {
  iovec data = {told, sizeof(*told)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(line, &message, 0) != sizeof(*told)) return false;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  *descriptor = -1;
  if (header != nullptr) std::memcpy(descriptor, CMSG_DATA(header), sizeof(int));
  return true;
}

}  // namespace programs

#endif  // TESTS_PROGRAMS_LINE_H_
