// SPDX-License-Identifier: Apache-2.0
#include "vmsock/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "vmsock/deadline.h"
#include "vmsock/endpoint.h"
#include "vmsock/socket_io.h"
#include "vmsock/stream_channel.h"

namespace consort {
namespace {

// Clients that have connected and not been accepted. A burst of processes of one job step; beyond
// it, connects wait.
constexpr int kBacklog = 128;

absl::Status ErrnoStatus(int error, const std::string& what) {
  const std::string text = absl::StrCat(what, ": ", strerror(error));
  switch (error) {
    case EADDRINUSE:
      return absl::AlreadyExistsError(text);
    case ETIMEDOUT:
      return absl::DeadlineExceededError(text);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(text);
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(text);
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
    case ENOSPC:
      return absl::ResourceExhaustedError(text);
    case EINVAL:
    case EPROTO:
      return absl::InvalidArgumentError(text);
    case EAFNOSUPPORT:
    case ENODEV:
    case ECONNRESET:
    case EPIPE:
    case ENOTCONN:
      return absl::UnavailableError(text);
    default:
      return absl::UnknownError(text);
  }
}

absl::StatusOr<UniqueFd> NewSocket(int family) {
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "socket");
  return fd;
}

absl::Status BindAndListen(int fd, const Endpoint& endpoint, const std::string& name) {
  if (bind(fd, &endpoint.address.any, endpoint.address_bytes) != 0) {
    return ErrnoStatus(errno, absl::StrCat("bind ", name));
  }
  if (listen(fd, kBacklog) != 0) return ErrnoStatus(errno, absl::StrCat("listen ", name));
  return absl::OkStatus();
}

// OK when nothing is at the endpoint's path any more.
absl::Status RemoveStaleSocket(const Endpoint& endpoint, const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, absl::StrCat("lstat ", path));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " exists and is not a socket; remove it or choose another path"));
  }
  ASSIGN_OR_RETURN(const UniqueFd probe, NewSocket(AF_UNIX));
  // Only ECONNREFUSED says that nobody listens; EAGAIN is a live daemon with a full queue.
  if (connect(probe.get(), &endpoint.address.any, endpoint.address_bytes) == 0 ||
      errno != ECONNREFUSED) {
    return absl::AlreadyExistsError(absl::StrCat("another daemon answers at ", path));
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, absl::StrCat("unlink ", path));
  }
  return absl::OkStatus();
}

bool Listens(int fd) {
  int listens = 0;
  socklen_t bytes = sizeof(listens);
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens != 0;
}

Peer DescribePeer(int fd, const Endpoint& address) {
  Peer peer;
  switch (address.address.any.sa_family) {
    case AF_VSOCK:
      peer.kind = Peer::Kind::kVsock;
      peer.cid = address.address.vsock.svm_cid;
      peer.text = absl::StrCat("vsock cid ", peer.cid);
      break;
    case AF_INET: {
      char host[INET_ADDRSTRLEN] = "?";
      inet_ntop(AF_INET, &address.address.tcp.sin_addr, host, sizeof(host));
      peer.kind = Peer::Kind::kTcp;
      peer.text = absl::StrCat("tcp ", host, ":", ntohs(address.address.tcp.sin_port));
      break;
    }
    default: {
      ucred credentials = {};
      socklen_t bytes = sizeof(credentials);
      getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes);
      peer.kind = Peer::Kind::kUnix;
      peer.uid = credentials.uid;
      peer.gid = credentials.gid;
      peer.pid = credentials.pid;
      peer.text = absl::StrCat("unix uid ", peer.uid, " pid ", peer.pid);
    }
  }
  return peer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::ListenUnix(const UnixListenOptions& options) {
  const std::string name = absl::StrCat("unix:", options.path);
  Endpoint endpoint;
  const char* wrong = ParseEndpoint(name.c_str(), &endpoint);
  if (wrong != nullptr) return absl::InvalidArgumentError(absl::StrCat(name, ": ", wrong));

  const std::string lock_path = absl::StrCat(options.path, ".lock");
  UniqueFd lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) return ErrnoStatus(errno, absl::StrCat("open ", lock_path));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, absl::StrCat("flock ", lock_path));
    return absl::AlreadyExistsError(absl::StrCat("another daemon holds ", lock_path));
  }
  RETURN_IF_ERROR(RemoveStaleSocket(endpoint, options.path));

  ASSIGN_OR_RETURN(UniqueFd socket_fd, NewSocket(AF_UNIX));
  // The file is made with this mode, less the umask, so that it is never more open than asked; then
  // the umask's part is added. Nobody can connect before listen. Source: unix(7), fchmod on a
  // socket.
  if (fchmod(socket_fd.get(), options.mode) != 0) return ErrnoStatus(errno, "fchmod");
  if (bind(socket_fd.get(), &endpoint.address.any, endpoint.address_bytes) != 0) {
    return ErrnoStatus(errno, absl::StrCat("bind ", name));
  }
  std::unique_ptr<Listener> listener(new Listener(std::move(socket_fd), name));
  listener->lock_ = std::move(lock);
  RETURN_IF_ERROR(listener->TakeFile(options.path));
  if (chmod(options.path.c_str(), options.mode) != 0) {
    return ErrnoStatus(errno, absl::StrCat("chmod ", options.path));
  }
  if (listen(listener->fd(), kBacklog) != 0) {
    return ErrnoStatus(errno, absl::StrCat("listen ", name));
  }
  return listener;
}

absl::Status Listener::TakeFile(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("lstat ", path));
  path_ = path;
  device_ = info.st_dev;
  inode_ = info.st_ino;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::AdoptUnix(const std::string& path,
                                                              UniqueFd socket, UniqueFd lock) {
  const std::string name = absl::StrCat("unix:", path);
  Endpoint bound = {};
  socklen_t bytes = sizeof(bound.address);
  if (!Listens(socket.get()) || getsockname(socket.get(), &bound.address.any, &bytes) != 0 ||
      bound.address.any.sa_family != AF_UNIX || path != bound.address.unix_path.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat("no socket that listens at ", path));
  }
  std::unique_ptr<Listener> listener(new Listener(std::move(socket), name));
  listener->lock_ = std::move(lock);
  RETURN_IF_ERROR(listener->TakeFile(path));
  return listener;
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::AdoptVsock(UniqueFd socket) {
  if (!Listens(socket.get()) || SocketFamily(socket.get()) != AF_VSOCK) {
    return absl::InvalidArgumentError("no vsock socket that listens");
  }
  return std::unique_ptr<Listener>(new Listener(std::move(socket), "vsock"));
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::ListenVsock(uint32_t port) {
  const std::string name = absl::StrCat("vsock:", VMADDR_CID_HOST, ":", port);
  Endpoint endpoint;
  const char* wrong = ParseEndpoint(name.c_str(), &endpoint);
  if (wrong != nullptr) return absl::InvalidArgumentError(absl::StrCat(name, ": ", wrong));
  endpoint.address.vsock.svm_cid = VMADDR_CID_ANY;
  ASSIGN_OR_RETURN(UniqueFd socket_fd, NewSocket(AF_VSOCK));
  RaiseVsockBuffers(socket_fd.get());
  RETURN_IF_ERROR(BindAndListen(socket_fd.get(), endpoint, name));
  return std::unique_ptr<Listener>(new Listener(std::move(socket_fd), name));
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::ListenTcpLoopback(uint16_t port) {
  std::string name = absl::StrCat("tcp:127.0.0.1:", port);
  Endpoint endpoint;
  const char* wrong = ParseEndpoint(name.c_str(), &endpoint);
  if (wrong != nullptr) return absl::InvalidArgumentError(absl::StrCat(name, ": ", wrong));
  ASSIGN_OR_RETURN(UniqueFd socket_fd, NewSocket(AF_INET));
  RETURN_IF_ERROR(BindAndListen(socket_fd.get(), endpoint, name));
  socklen_t bytes = sizeof(endpoint.address.tcp);
  if (getsockname(socket_fd.get(), &endpoint.address.any, &bytes) != 0) {
    return ErrnoStatus(errno, "getsockname");
  }
  name = absl::StrCat("tcp:127.0.0.1:", ntohs(endpoint.address.tcp.sin_port));
  return std::unique_ptr<Listener>(new Listener(std::move(socket_fd), std::move(name)));
}

Listener::~Listener() {
  struct stat info;
  if (!path_.empty() && lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ &&
      info.st_ino == inode_) {
    unlink(path_.c_str());
  }
}

absl::StatusOr<Accepted> Listener::Accept(Nanos timeout) {
  const Deadline deadline(timeout);
  for (;;) {
    Endpoint address = {};
    socklen_t bytes = sizeof(address.address);
    UniqueFd fd(accept4(socket_.get(), &address.address.any, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) {
      const int error = PrepareSocket(fd.get());
      if (error != 0) return absl::AbortedError(strerror(error));
      Peer peer = DescribePeer(fd.get(), address);
      return Accepted{std::move(fd), std::move(peer)};
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      const absl::Status status = ErrnoStatus(errno, absl::StrCat("accept at ", endpoint_));
      // Else an error of one connection, see accept(2).
      if (absl::IsResourceExhausted(status)) return status;
      return absl::AbortedError(std::string(status.message()));
    }
    const int wait_ms = deadline.LeftMs();
    if (wait_ms == 0) return absl::DeadlineExceededError("no client");
    pollfd entry = {socket_.get(), POLLIN, 0};
    poll(&entry, 1, wait_ms);
  }
}

absl::StatusOr<wire::Hello> ReadHello(int fd, Nanos timeout) {
  wire::Hello hello;
  // Nothing is taken but bytes: descriptors that a client sends along are closed by the kernel.
  const int error =
      ReceiveAll(fd, std::as_writable_bytes(std::span(&hello, 1)), nullptr, Deadline(timeout));
  if (error != 0) return ErrnoStatus(error, "reading a client's greeting");
  if (hello.magic != wire::kHelloMagic) {
    return absl::InvalidArgumentError("a client's greeting does not begin with the magic number");
  }
  // Another version may know other purposes; CheckHello refuses it with an answer.
  if (hello.version == wire::kWireVersion && hello.purpose != wire::kPurposeQuery &&
      hello.purpose != wire::kPurposeSession && hello.purpose != wire::kPurposeStatus &&
      hello.purpose != wire::kPurposeResume) {
    return absl::InvalidArgumentError(absl::StrCat("a client's purpose is ", hello.purpose));
  }
  hello.application[sizeof(hello.application) - 1] = '\0';
  return hello;
}

absl::Status CheckHello(const wire::Hello& hello, uint64_t description_hash) {
  if (hello.version != wire::kWireVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the guest library speaks wire version ", hello.version, ", this daemon version ",
        wire::kWireVersion, "; install the same release on both sides"));
  }
  if (hello.description_hash != description_hash) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the guest library was built from API description ",
        absl::Hex(hello.description_hash, absl::kZeroPad16), ", this daemon from ",
        absl::Hex(description_hash, absl::kZeroPad16), "; install the same release on both sides"));
  }
  return absl::OkStatus();
}

absl::Status SendWelcome(int fd, const wire::Welcome& welcome, int memory,
                         std::span<const wire::DeviceSnapshot> snapshots, Nanos timeout) {
  const Deadline deadline(timeout);
  const std::span<const int> descriptors =
      memory >= 0 ? std::span<const int>(&memory, 1) : std::span<const int>();
  int error = SendAll(fd, std::as_bytes(std::span(&welcome, 1)), descriptors, deadline);
  if (error == 0) error = SendAll(fd, std::as_bytes(snapshots), {}, deadline);
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, "answering a client's greeting");
}

absl::Status RefuseClient(int fd, uint32_t status, const std::string& text, Nanos timeout) {
  wire::Welcome welcome;
  welcome.status = status;
  text.copy(welcome.text, sizeof(welcome.text) - 1);
  return SendWelcome(fd, welcome, -1, {}, timeout);
}

namespace {

absl::StatusOr<HostChannel> HoldRings(std::unique_ptr<RingChannel> channel) {
  if (channel == nullptr) return ErrnoStatus(errno, "making a ring channel");
  HostChannel result;
  result.shared_memory = channel->shared_memory();
  result.channel = std::move(channel);
  return result;
}

absl::StatusOr<HostChannel> OpenVmRings(UniqueFd socket, wire::Welcome welcome,
                                        const HostChannelOptions& options) {
  VmRingPlace place;
  place.file.Reset(fcntl(options.vm_memory, F_DUPFD_CLOEXEC, 0));
  place.offset = options.vm_rings_offset;
  if (!place.file.valid()) return ErrnoStatus(errno, "keeping a machine's shared memory");
  welcome.features &= ~wire::kFeatureRings;
  welcome.features |= wire::kFeatureVmMemory;
  welcome.request_ring_bytes = options.ring_sizes.request_ring_bytes;
  welcome.reply_ring_bytes = options.ring_sizes.reply_ring_bytes;
  welcome.rings_offset = place.offset;
  RETURN_IF_ERROR(SendWelcome(socket.get(), welcome, -1, {}, options.timeout));
  return HoldRings(RingChannel::CreateInVm(RingChannel::Side::kHost, options.ring_sizes,
                                           std::move(place), std::move(socket)));
}

}  // namespace

absl::Status ReleaseVmMemory(int file, Bytes offset, Bytes bytes) {
  if (fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                static_cast<off_t>(bytes)) != 0) {
    return ErrnoStatus(errno, "giving back a part of a virtual machine's shared memory");
  }
  return absl::OkStatus();
}

absl::Status ClearVmMemory(int file, Bytes offset, Bytes bytes) {
  RETURN_IF_ERROR(ReleaseVmMemory(file, offset, bytes));
  if (fallocate(file, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
    return ErrnoStatus(errno, "making pages of a virtual machine's shared memory");
  }
  return absl::OkStatus();
}

absl::StatusOr<HostChannel> OpenHostChannel(UniqueFd socket, const wire::Hello& hello,
                                            wire::Welcome welcome,
                                            const HostChannelOptions& options) {
  welcome.features &= ~wire::kFeatureVmMemory;
  if (options.vm_memory >= 0 && (hello.features & wire::kFeatureVmMemory) != 0 &&
      ClearVmMemory(options.vm_memory, options.vm_rings_offset, RingMemoryBytes(options.ring_sizes))
          .ok()) {
    return OpenVmRings(std::move(socket), welcome, options);
  }
  const bool rings = options.allow_rings && !options.conduit &&
                     (hello.features & wire::kFeatureRings) != 0 &&
                     SocketFamily(socket.get()) == AF_UNIX;
  welcome.features &= ~wire::kFeatureRings;
  HostChannel result;
  if (!rings) {
    RETURN_IF_ERROR(SendWelcome(socket.get(), welcome, -1, {}, options.timeout));
    if (options.conduit) return OpenConduit(std::move(socket), {}, options.timeout);
    result.channel = StreamChannel::Create(std::move(socket));
    if (result.channel == nullptr) return ErrnoStatus(errno, "making a stream channel");
    return result;
  }
  UniqueFd memory = CreateRingMemory(options.ring_sizes);
  if (!memory.valid()) return ErrnoStatus(errno, "making the memory of rings");
  welcome.features |= wire::kFeatureRings;
  welcome.request_ring_bytes = options.ring_sizes.request_ring_bytes;
  welcome.reply_ring_bytes = options.ring_sizes.reply_ring_bytes;
  RETURN_IF_ERROR(SendWelcome(socket.get(), welcome, memory.get(), {}, options.timeout));
  return HoldRings(RingChannel::Create(RingChannel::Side::kHost, options.ring_sizes,
                                       std::move(memory), std::move(socket)));
}

absl::StatusOr<HostChannel> OpenConduit(UniqueFd socket, std::span<const std::byte> unread,
                                        Nanos timeout) {
  ASSIGN_OR_RETURN(std::unique_ptr<ConduitChannel> channel,
                   ConduitChannel::Open(std::move(socket), unread, timeout));
  HostChannel result;
  result.conduit = channel.get();
  result.channel = std::move(channel);
  return result;
}

absl::StatusOr<HostChannel> ResumeHostChannel(UniqueFd socket, UniqueFd memory,
                                              const ChannelHandover& from) {
  const absl::Status wrong = absl::InvalidArgumentError("a channel that is none was handed over");
  HostChannel result;
  if (!memory.valid()) {
    std::unique_ptr<StreamChannel> channel = StreamChannel::Create(std::move(socket));
    if (channel == nullptr) return ErrnoStatus(errno, "making a stream channel");
    if (!channel->Resume(from.unread)) {
      channel->Abandon();
      return wrong;
    }
    result.channel = std::move(channel);
    return result;
  }
  if (from.request_ring_bytes == 0) {
    ASSIGN_OR_RETURN(std::unique_ptr<ConduitChannel> channel,
                     ConduitChannel::Resume(std::move(socket), std::move(memory)));
    result.conduit = channel.get();
    result.channel = std::move(channel);
    return result;
  }
  const RingSizes sizes = {from.request_ring_bytes, from.reply_ring_bytes};
  std::unique_ptr<RingChannel> channel =
      from.in_vm ? RingChannel::CreateInVm(RingChannel::Side::kHost, sizes,
                                           {std::move(memory), from.memory_offset, false},
                                           std::move(socket))
                 : RingChannel::Create(RingChannel::Side::kHost, sizes, std::move(memory),
                                       std::move(socket));
  if (channel != nullptr && !channel->Resume(from.received, from.sent)) {
    channel->Abandon();
    return wrong;
  }
  return HoldRings(std::move(channel));
}

}  // namespace consort
