// SPDX-License-Identifier: Apache-2.0
// vmsock/endpoint.h: the text form of an address (dial.h lists the forms) and its sockaddr. A plain
// value. Compiled into the guest library.
#ifndef CONSORT_VMSOCK_ENDPOINT_H_
#define CONSORT_VMSOCK_ENDPOINT_H_

#include <sys/socket.h>

// After sys/socket.h, which it needs.
#include <linux/vm_sockets.h>
#include <netinet/in.h>
#include <sys/un.h>

namespace consort {

struct Endpoint {
  union {
    sockaddr any;
    sockaddr_un unix_path;
    sockaddr_vm vsock;
    sockaddr_in tcp;
  } address;
  socklen_t address_bytes;
  int family;  // AF_UNIX, AF_VSOCK or AF_INET
};

// Sets `endpoint` and returns null, or returns what is wrong with `text`, as the end of a sentence.
const char* ParseEndpoint(const char* text, Endpoint* endpoint);

}  // namespace consort

#endif  // CONSORT_VMSOCK_ENDPOINT_H_
