// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/front_doors.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

// Must follow sys/socket.h.
#include <linux/vm_sockets.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace consort::host {
namespace {

constexpr int kBacklog = 128;
// After a failed accept (no descriptors left), the queue is looked at again so late.
constexpr Nanos kAcceptRetry = 100 * kMillisecond;

absl::StatusOr<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("socket path must have 1 to ", sizeof(address.sun_path) - 1, " bytes: ", path));
  }
  memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::Status ErrnoError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

}  // namespace

UniqueFd ConnectUnix(const std::string& path) {
  const auto address = UnixAddress(path);
  if (!address.ok()) return UniqueFd();
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() || connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address),
                             sizeof(*address)) != 0) {
    return UniqueFd();
  }
  return fd;
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Unix(EventLoop* loop, const std::string& path,
                                                         OnConnection on_connection) {
  ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(folder.string(), ": ", error.message()));
  }

  struct stat existing;
  if (lstat(path.c_str(), &existing) == 0) {
    if (!S_ISSOCK(existing.st_mode)) {
      return absl::AlreadyExistsError(absl::StrCat(path, " exists and is no socket"));
    }
    if (ConnectUnix(path).valid()) {
      return absl::AlreadyExistsError(
          absl::StrCat(path, " is in use; is another consortd running? Stop it or use --socket"));
    }
    unlink(path.c_str());
  }
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), 0666) != 0 || listen(fd.get(), kBacklog) != 0) {
    return ErrnoError(absl::StrCat("listening on ", path));
  }
  auto listener = std::unique_ptr<Listener>(
      new Listener(loop, std::move(fd), path, std::move(on_connection)));
  RETURN_IF_ERROR(listener->Start());
  return listener;
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Vsock(EventLoop* loop, uint32_t port,
                                                          OnConnection on_connection) {
  UniqueFd fd(socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_vm address = {};
  address.svm_family = AF_VSOCK;
  address.svm_cid = VMADDR_CID_ANY;
  address.svm_port = port;
  if (!fd.valid() ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return ErrnoError(absl::StrCat("listening on vsock port ", port));
  }
  auto listener = std::unique_ptr<Listener>(
      new Listener(loop, std::move(fd), std::string(), std::move(on_connection)));
  RETURN_IF_ERROR(listener->Start());
  return listener;
}

Listener::~Listener() {
  if (retry_ != 0) loop_->Cancel(retry_);
  loop_->Unwatch(fd_.get());
  if (!path_.empty()) unlink(path_.c_str());
}

absl::Status Listener::Start() {
  return loop_->Watch(fd_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
}

void Listener::Pause() { loop_->Rearm(fd_.get(), 0); }
void Listener::Resume() { loop_->Rearm(fd_.get(), EPOLLIN); }

void Listener::Accept() {
  sockaddr_storage address = {};
  socklen_t address_bytes = sizeof(address);
  Connection connection;
  connection.fd.Reset(accept4(fd_.get(), reinterpret_cast<sockaddr*>(&address), &address_bytes,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection.fd.valid()) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
    LOG(WARNING) << "accept: " << strerror(errno) << "; new connections wait";
    Pause();
    retry_ = loop_->After(kAcceptRetry, [this] {
      retry_ = 0;
      Resume();
    });
    return;
  }
  if (path_.empty()) {
    sockaddr_vm vsock;
    memcpy(&vsock, &address, sizeof(vsock));
    connection.tenant = absl::StrCat("cid-", vsock.svm_cid);
    connection.front_door = "vsock";
    connection.peer = absl::StrCat("port ", vsock.svm_port);
  } else {
    ucred peer = {};
    socklen_t peer_bytes = sizeof(peer);
    getsockopt(connection.fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes);
    connection.tenant = "local";
    connection.front_door = "unix";
    connection.peer = absl::StrCat("uid ", peer.uid, " pid ", peer.pid);
    connection.shares_memory = true;
  }
  on_connection_(std::move(connection));
}

}  // namespace consort::host
