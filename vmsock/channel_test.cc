// SPDX-License-Identifier: Apache-2.0
// Every channel of ours, through the suite of channel_conformance.h.
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "vmsock/channel_conformance.h"
#include "vmsock/endpoint.h"
#include "vmsock/listen.h"

namespace consort {
namespace {

absl::StatusOr<Ends> ConnectPair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    return absl::InternalError(strerror(errno));
  }
  Ends ends;
  ends.guest.Reset(fds[0]);
  ends.host.Reset(fds[1]);
  return ends;
}

absl::StatusOr<Ends> ConnectRings() {
  ASSIGN_OR_RETURN(Ends ends, ConnectPair());
  ends.memory = CreateRingMemory(kTestRingSizes);
  if (!ends.memory.valid()) return absl::InternalError(strerror(errno));
  return ends;
}

// As in a virtual machine whose memory is a file of the host's, that anybody may lengthen.
absl::StatusOr<Ends> ConnectVmRings() {
  ASSIGN_OR_RETURN(Ends ends, ConnectPair());
  ends.memory.Reset(memfd_create("vm-memory", MFD_CLOEXEC));
  const Bytes bytes = kTestVmRingsOffset + RingMemoryBytes(kTestRingSizes);
  if (ftruncate(ends.memory.get(), static_cast<off_t>(bytes)) != 0) {
    return absl::InternalError(strerror(errno));
  }
  return ends;
}

absl::StatusOr<Ends> ConnectThrough(Listener* listener, const std::string& dialled) {
  Endpoint endpoint;
  const char* wrong = ParseEndpoint(dialled.c_str(), &endpoint);
  if (wrong != nullptr) return absl::InternalError(wrong);
  Ends ends;
  ends.guest.Reset(socket(endpoint.family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(ends.guest.get(), &endpoint.address.any, endpoint.address_bytes) != 0) {
    return absl::InternalError(strerror(errno));
  }
  ASSIGN_OR_RETURN(Accepted accepted, listener->Accept(kPatience));
  ends.host = std::move(accepted.socket);
  return ends;
}

absl::StatusOr<Ends> ConnectUnix() {
  char directory[] = "/tmp/consort-channel-XXXXXX";
  if (mkdtemp(directory) == nullptr) return absl::InternalError(strerror(errno));
  const std::string path = std::string(directory) + "/socket";
  absl::StatusOr<Ends> ends = absl::InternalError("");
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<Listener> listener, Listener::ListenUnix({path, 0600}));
    ends = ConnectThrough(listener.get(), listener->endpoint());
  }
  unlink((path + ".lock").c_str());
  rmdir(directory);
  return ends;
}

absl::StatusOr<Ends> ConnectTcp() {
  ASSIGN_OR_RETURN(const std::unique_ptr<Listener> listener, Listener::ListenTcpLoopback(0));
  return ConnectThrough(listener.get(), listener->endpoint());
}

// Over the kernel's vsock loopback (CID 1). A kernel may have vsock, so that we can listen, but no
// loopback: then a connect takes 2 s to fail, which is tried once only.
absl::StatusOr<Ends> ConnectVsock() {
  static absl::Status broken;
  RETURN_IF_ERROR(broken);
  const uint32_t port = 0x40000000u + static_cast<uint32_t>(getpid());
  ASSIGN_OR_RETURN(const std::unique_ptr<Listener> listener, Listener::ListenVsock(port));
  absl::StatusOr<Ends> ends = ConnectThrough(listener.get(), "vsock:1:" + std::to_string(port));
  if (!ends.ok()) {
    broken = absl::UnavailableError(
        absl::StrCat("no vsock loopback (modprobe vsock_loopback): ", ends.status().message()));
    return broken;
  }
  return ends;
}

const Transport kTransports[] = {
    {"Rings", "unix+rings", true, false, true, ConnectRings},
    {"VmRings", "vsock+rings", true, true, false, ConnectVmRings},
    {"SocketPair", "unix", false, false, true, ConnectPair},
    {"Unix", "unix", false, false, true, ConnectUnix},
    {"Tcp", "tcp", false, false, false, ConnectTcp},
    {"Vsock", "vsock", false, false, false, ConnectVsock},
};

INSTANTIATE_TEST_SUITE_P(Transports, ChannelConformance, ::testing::ValuesIn(kTransports),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace consort
