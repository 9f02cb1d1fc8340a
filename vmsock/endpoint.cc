// SPDX-License-Identifier: Apache-2.0
#include "vmsock/endpoint.h"

#include <arpa/inet.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace consort {
namespace {

// Reads a decimal number of at most `max` up to `end` (the terminator or ':'); null if it is none,
// else where it ended.
const char* ParseNumber(const char* text, uint64_t max, char end, uint32_t* number) {
  uint64_t value = 0;
  const char* at = text;
  for (; *at >= '0' && *at <= '9'; ++at) {
    value = value * 10 + static_cast<uint64_t>(*at - '0');
    if (value > max) return nullptr;
  }
  if (at == text || *at != end) return nullptr;
  *number = static_cast<uint32_t>(value);
  return at;
}

const char* After(const char* text, const char* prefix) {
  const size_t count = strlen(prefix);
  return strncmp(text, prefix, count) == 0 ? text + count : nullptr;
}

const char* ParseUnix(const char* path, Endpoint* endpoint) {
  const size_t count = strlen(path);
  if (path[0] != '/') return "a UNIX socket needs an absolute path, as in unix:/run/consort.sock";
  if (count >= sizeof(endpoint->address.unix_path.sun_path)) {
    return "the path of a UNIX socket has at most 107 bytes";
  }
  endpoint->family = endpoint->address.unix_path.sun_family = AF_UNIX;
  memcpy(endpoint->address.unix_path.sun_path, path, count + 1);
  endpoint->address_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + count + 1);
  return nullptr;
}

const char* ParseVsock(const char* text, Endpoint* endpoint) {
  uint32_t cid;
  uint32_t port;
  const char* at = ParseNumber(text, UINT32_MAX - 1, ':', &cid);
  if (at == nullptr || ParseNumber(at + 1, UINT32_MAX - 1, '\0', &port) == nullptr) {
    return "a vsock address is two numbers, as in vsock:2:7000";
  }
  endpoint->family = endpoint->address.vsock.svm_family = AF_VSOCK;
  endpoint->address.vsock.svm_cid = cid;
  endpoint->address.vsock.svm_port = port;
  endpoint->address_bytes = sizeof(endpoint->address.vsock);
  return nullptr;
}

const char* ParseTcp(const char* text, Endpoint* endpoint) {
  static constexpr char kWrong[] = "a TCP address is numeric, as in tcp:127.0.0.1:7000";
  const char* colon = strrchr(text, ':');
  char host[INET_ADDRSTRLEN];
  uint32_t port;
  if (colon == nullptr || static_cast<size_t>(colon - text) >= sizeof(host)) return kWrong;
  memcpy(host, text, static_cast<size_t>(colon - text));
  host[colon - text] = '\0';
  if (inet_pton(AF_INET, host, &endpoint->address.tcp.sin_addr) != 1 ||
      ParseNumber(colon + 1, UINT16_MAX, '\0', &port) == nullptr) {
    return kWrong;
  }
  endpoint->family = endpoint->address.tcp.sin_family = AF_INET;
  endpoint->address.tcp.sin_port = htons(static_cast<uint16_t>(port));
  endpoint->address_bytes = sizeof(endpoint->address.tcp);
  return nullptr;
}

}  // namespace

const char* ParseEndpoint(const char* text, Endpoint* endpoint) {
  memset(endpoint, 0, sizeof(*endpoint));
  if (text == nullptr) return "there is none";
  if (const char* path = After(text, "unix:")) return ParseUnix(path, endpoint);
  if (const char* address = After(text, "vsock:")) return ParseVsock(address, endpoint);
  if (const char* address = After(text, "tcp:")) return ParseTcp(address, endpoint);
  return "it must begin with unix:, vsock: or tcp:";
}

}  // namespace consort
