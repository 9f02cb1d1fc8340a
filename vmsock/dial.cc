// SPDX-License-Identifier: Apache-2.0
#include "vmsock/dial.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstring>

#include "base/unique_fd.h"
#include "vmsock/deadline.h"
#include "vmsock/endpoint.h"
#include "vmsock/ring_channel.h"
#include "vmsock/socket_io.h"
#include "vmsock/stream_channel.h"

namespace consort {
namespace {

// Errors of the first bytes from whatever listens there say more about it than about the network.
constexpr char kNotConsort[] = "what answers there is not consortd, or is another version of it";

__attribute__((format(printf, 3, 4))) void Fail(DialResult* result, DialError error,
                                                const char* format, ...) {
  result->error = error;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(result->text, sizeof(result->text), format, arguments);
  va_end(arguments);
}

bool OutOfResources(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

// What a person can do about a connection that failed with `error`.
const char* Advice(int family, int error) {
  switch (family) {
    case AF_UNIX:
      if (error == EACCES || error == EPERM) {
        return "may this user open the socket? It is open to consortd's group";
      }
      return "is consortd running?";
    case AF_VSOCK:
      if (error == EAFNOSUPPORT) {
        return "this kernel has no vsock; Linux 4.8 or later has, with the module "
               "vmw_vsock_virtio_transport (modprobe it)";
      }
      if (error == EPERM || error == EACCES) {
        return "container runtimes refuse vsock: run the container with --device "
               "consort.dev/gpu=all";
      }
      if (error == ENODEV || error == EADDRNOTAVAIL) {
        return "does this VM have a virtio-vsock device and its kernel the driver "
               "(modprobe vmw_vsock_virtio_transport)?";
      }
      return "is consortd running on the host, and is this VM attached to it?";
    default:
      return "is consortd running there, and does a firewall let us through?";
  }
}

void FailConnect(DialResult* result, const DialOptions& options, int family, int error) {
  if (OutOfResources(error)) {
    Fail(result, DialError::kNoResources, "cannot reach %s: %s", options.endpoint, strerror(error));
    return;
  }
  const bool timeout = error == ETIMEDOUT || error == EAGAIN || error == EINPROGRESS;
  Fail(result, timeout ? DialError::kTimeout : DialError::kUnreachable, "cannot reach %s: %s; %s",
       options.endpoint, strerror(timeout ? ETIMEDOUT : error), Advice(family, error));
}

timeval ToTimeval(Nanos span) {
  return {static_cast<time_t>(span / kSecond),
          static_cast<suseconds_t>(span % kSecond / kMicrosecond)};
}

// 0 or an errno. A UNIX socket connects at once or, when the listener's queue is full, waits in the
// kernel (a non-blocking one would fail with EAGAIN and nothing to poll for); others are polled.
int ConnectUnix(int fd, const Endpoint& endpoint, Nanos timeout) {
  const timeval limit = ToTimeval(timeout);
  if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) != 0) return errno;
  const Deadline deadline(timeout);
  while (connect(fd, &endpoint.address.any, endpoint.address_bytes) != 0) {
    if (errno != EINTR) return errno;
    if (deadline.Left() == 0) return ETIMEDOUT;
  }
  const timeval none = {};
  return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof(none)) == 0 ? 0 : errno;
}

int ConnectPolled(int fd, const Endpoint& endpoint, Nanos timeout) {
  if (endpoint.family == AF_VSOCK) {
    RaiseVsockBuffers(fd);
    // The kernel gives up by itself after 2 s; see vsock(7). A wish: the poll below limits us too.
    const timeval limit = ToTimeval(timeout);
    setsockopt(fd, AF_VSOCK, SO_VM_SOCKETS_CONNECT_TIMEOUT, &limit, sizeof(limit));
  }
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) return errno;
  if (connect(fd, &endpoint.address.any, endpoint.address_bytes) == 0) return 0;
  if (errno != EINPROGRESS && errno != EINTR) return errno;
  const Deadline deadline(timeout);
  for (;;) {
    const int wait_ms = deadline.LeftMs();
    pollfd entry = {fd, POLLOUT, 0};
    const int count = poll(&entry, 1, wait_ms);
    if (count > 0) break;
    if (count < 0 && errno != EINTR) return errno;
    if (count == 0 && wait_ms == 0) return ETIMEDOUT;
  }
  int error = 0;
  socklen_t bytes = sizeof(error);
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

UniqueFd Connect(const DialOptions& options, Endpoint* endpoint, DialResult* result) {
  const char* wrong = ParseEndpoint(options.endpoint, endpoint);
  if (wrong != nullptr) {
    Fail(result, DialError::kBadEndpoint, "bad endpoint '%.100s': %s",
         options.endpoint != nullptr ? options.endpoint : "", wrong);
    return UniqueFd();
  }
  UniqueFd socket_fd(socket(endpoint->family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  int error = socket_fd.valid() ? 0 : errno;
  const Nanos timeout = options.connect_timeout > 0 ? options.connect_timeout : kConnectTimeout;
  if (error == 0) {
    error = endpoint->family == AF_UNIX ? ConnectUnix(socket_fd.get(), *endpoint, timeout)
                                        : ConnectPolled(socket_fd.get(), *endpoint, timeout);
  }
  if (error == 0) error = PrepareSocket(socket_fd.get());
  if (error == 0) return socket_fd;
  FailConnect(result, options, endpoint->family, error);
  return UniqueFd();
}

void FailGreeting(DialResult* result, const DialOptions& options, int error) {
  if (error == ETIMEDOUT) {
    Fail(result, DialError::kTimeout, "%s accepted the connection but did not answer; %s",
         options.endpoint, "is consortd overloaded or stopped?");
  } else if (OutOfResources(error)) {
    Fail(result, DialError::kNoResources, "greeting %s: %s", options.endpoint, strerror(error));
  } else {
    Fail(result, DialError::kProtocol, "greeting %s: %s; %s", options.endpoint, strerror(error),
         kNotConsort);
  }
}

// Sends a Hello and reads the Welcome, with the descriptor that came along. False: `result` says
// why.
bool Greet(const DialOptions& options, const wire::Hello& hello, int fd, const Deadline& deadline,
           DialResult* result, UniqueFd* descriptor) {
  int error = SendAll(fd, std::as_bytes(std::span(&hello, 1)), {}, deadline);
  wire::Welcome& welcome = result->welcome;
  // A daemon that refuses may have closed before it read everything; its Welcome is there all the
  // same.
  if (error == 0 || error == EPIPE || error == ECONNRESET) {
    error = ReceiveAll(fd, std::as_writable_bytes(std::span(&welcome, 1)), descriptor, deadline);
  }
  if (error != 0) {
    FailGreeting(result, options, error);
    return false;
  }
  welcome.text[sizeof(welcome.text) - 1] = '\0';
  if (welcome.magic != wire::kHelloMagic) {
    Fail(result, DialError::kProtocol, "greeting %s: %s", options.endpoint, kNotConsort);
    return false;
  }
  if (welcome.status == wire::kWelcomeVersionMismatch || welcome.version != wire::kWireVersion) {
    Fail(result, DialError::kVersionMismatch,
         "%s does not fit this library (wire version %u here, %u there): %s", options.endpoint,
         wire::kWireVersion, welcome.version,
         welcome.text[0] != '\0' ? welcome.text : "install the same release on both sides");
    return false;
  }
  if (welcome.status != wire::kWelcomeOk) {
    const DialError error = welcome.status == wire::kWelcomeNoDevice  ? DialError::kNoDevice
                            : welcome.status == wire::kWelcomeNotHere ? DialError::kNotHere
                                                                      : DialError::kRefused;
    Fail(result, error, "%s refused: %s", options.endpoint, welcome.text);
    return false;
  }
  if ((welcome.features & ~hello.features) != 0 || welcome.device_count > kDeviceSnapshotsMax ||
      welcome.process_count > kProcessUsesMax) {
    Fail(result, DialError::kProtocol, "greeting %s: it agreed to what was not offered; %s",
         options.endpoint, kNotConsort);
    return false;
  }
  return true;
}

Deadline HandshakeDeadline(const DialOptions& options) {
  return Deadline(options.handshake_timeout > 0 ? options.handshake_timeout : kHandshakeTimeout);
}

wire::Hello MakeHello(const DialOptions& options, uint32_t purpose) {
  wire::Hello hello;
  if (options.vm_memory != nullptr && options.rings != RingsWish::kNever) {
    hello.features |= wire::kFeatureVmMemory;
    hello.vm_memory = options.vm_memory->token;
  }
  hello.description_hash = options.description_hash;
  hello.purpose = purpose;
  hello.pid = static_cast<uint32_t>(getpid());
  if (options.application != nullptr) {
    strncpy(hello.application, options.application, sizeof(hello.application) - 1);
  }
  return hello;
}

}  // namespace

UniqueFd ConnectTo(const DialOptions& options, DialResult* result) {
  *result = DialResult();
  Endpoint endpoint;
  return Connect(options, &endpoint, result);
}

void OpenSession(const DialOptions& options, DialResult* result,
                 std::unique_ptr<Channel>* channel) {
  *result = DialResult();
  channel->reset();
  Endpoint endpoint;
  UniqueFd socket_fd = Connect(options, &endpoint, result);
  if (!socket_fd.valid()) return;
  const Deadline deadline = HandshakeDeadline(options);
  wire::Hello hello = MakeHello(options, wire::kPurposeSession);
  hello.device = options.device;
  hello.assembly = options.assembly;
  if (options.rings != RingsWish::kNever && endpoint.family == AF_UNIX) {
    // A proxy may carry it on: the daemon knows.
    hello.features |= wire::kFeatureRings | wire::kFeatureResume;
  }
  if (endpoint.family != AF_UNIX) hello.features |= wire::kFeatureResume;
  UniqueFd memory;
  if (!Greet(options, hello, socket_fd.get(), deadline, result,
             endpoint.family == AF_UNIX ? &memory : nullptr)) {
    return;
  }
  const RingSizes sizes = {result->welcome.request_ring_bytes, result->welcome.reply_ring_bytes};
  if ((result->welcome.features & wire::kFeatureVmMemory) != 0) {
    VmRingPlace place;
    place.file.Reset(fcntl(options.vm_memory->file.get(), F_DUPFD_CLOEXEC, 0));
    place.offset = result->welcome.rings_offset;
    place.write_combining = options.vm_memory->write_combining;
    *channel =
        RingChannel::CreateInVm(RingChannel::Side::kGuest, sizes, static_cast<VmRingPlace&&>(place),
                                static_cast<UniqueFd&&>(socket_fd));
  } else if ((result->welcome.features & wire::kFeatureRings) != 0) {
    if (!memory.valid()) {
      FailGreeting(result, options, EPROTO);
      return;
    }
    *channel =
        RingChannel::Create(RingChannel::Side::kGuest, sizes, static_cast<UniqueFd&&>(memory),
                            static_cast<UniqueFd&&>(socket_fd));
  } else if (options.rings == RingsWish::kOnly) {
    Fail(result, DialError::kRefused,
         "%s has no rings, and nothing else was to be used (channel = \"rings\")",
         options.endpoint);
    return;
  } else {
    *channel = StreamChannel::Create(static_cast<UniqueFd&&>(socket_fd));
  }
  if (*channel == nullptr) FailGreeting(result, options, errno);
}

UniqueFd ResumeSession(const DialOptions& options, const wire::ResumeToken& token,
                       DialResult* result) {
  *result = DialResult();
  Endpoint endpoint;
  UniqueFd socket_fd = Connect(options, &endpoint, result);
  if (!socket_fd.valid()) return UniqueFd();
  wire::Hello hello = MakeHello(options, wire::kPurposeResume);
  hello.resume_token = token;
  if (!Greet(options, hello, socket_fd.get(), HandshakeDeadline(options), result, nullptr)) {
    return UniqueFd();
  }
  return socket_fd;
}

namespace {

// Reads `count` values, of which `wanted` takes the first. What the caller has no room for is read
// too: hanging up early is a lost client to the daemon. 0 or an errno.
template <typename Value>
int ReceiveSome(int fd, std::span<Value> wanted, size_t count, const Deadline& deadline) {
  int error = ReceiveAll(fd, std::as_writable_bytes(wanted), nullptr, deadline);
  for (size_t index = wanted.size(); index < count && error == 0; ++index) {
    Value unwanted;
    error = ReceiveAll(fd, std::as_writable_bytes(std::span(&unwanted, 1)), nullptr, deadline);
  }
  return error;
}

template <typename Value>
std::span<Value> First(std::span<Value> room, size_t count) {
  return room.first(count < room.size() ? count : room.size());
}

// `status` is null for kPurposeQuery.
void Query(const DialOptions& options, DialResult* result, std::span<wire::DeviceSnapshot> devices,
           StatusAnswer* status) {
  *result = DialResult();
  Endpoint endpoint;
  const UniqueFd socket_fd = Connect(options, &endpoint, result);
  if (!socket_fd.valid()) return;
  const Deadline deadline = HandshakeDeadline(options);
  const wire::Hello hello =
      MakeHello(options, status != nullptr ? wire::kPurposeStatus : wire::kPurposeQuery);
  if (!Greet(options, hello, socket_fd.get(), deadline, result, nullptr)) return;
  const size_t count = result->welcome.device_count;
  const std::span<wire::DeviceSnapshot> wanted = First(devices, count);
  int error = ReceiveSome(socket_fd.get(), wanted, count, deadline);
  if (status != nullptr && error == 0) {
    error = ReceiveSome(socket_fd.get(), First(status->uses, count), count, deadline);
    const size_t processes = result->welcome.process_count;
    const std::span<wire::ProcessUse> taken = First(status->processes, processes);
    if (error == 0) error = ReceiveSome(socket_fd.get(), taken, processes, deadline);
    for (wire::ProcessUse& process : taken) {
      process.application[sizeof(process.application) - 1] = '\0';
    }
    status->process_count = taken.size();
  }
  if (error != 0) {
    FailGreeting(result, options, error);
    return;
  }
  result->welcome.driver_release[sizeof(result->welcome.driver_release) - 1] = '\0';
  for (wire::DeviceSnapshot& device : wanted) {
    device.name[sizeof(device.name) - 1] = '\0';
    device.pci_bus_id[sizeof(device.pci_bus_id) - 1] = '\0';
  }
}

}  // namespace

void QueryDevices(const DialOptions& options, DialResult* result,
                  std::span<wire::DeviceSnapshot> devices) {
  Query(options, result, devices, nullptr);
}

void QueryStatus(const DialOptions& options, DialResult* result, StatusAnswer* answer) {
  answer->process_count = 0;
  Query(options, result, answer->devices, answer);
}

}  // namespace consort
