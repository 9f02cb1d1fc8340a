// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/front_doors.h"

#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace consort::host {
namespace {

constexpr mode_t kSocketMode = 0666;
// When no descriptor was left for a client, the queue is looked at again so late.
constexpr Nanos kAcceptRetry = 100 * kMillisecond;

}  // namespace

UniqueFd ConnectUnix(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return UniqueFd();
  memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() ||
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return UniqueFd();
  }
  return fd;
}

absl::StatusOr<std::unique_ptr<Door>> Door::OpenUnix(EventLoop* loop, const std::string& path,
                                                     const std::string& tenant,
                                                     OnConnection on_connection) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(folder.string(), ": ", error.message()));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener, Listener::ListenUnix({path, kSocketMode}));
  return Start(loop, std::move(listener), tenant, std::move(on_connection));
}

absl::StatusOr<std::unique_ptr<Door>> Door::OpenVsock(EventLoop* loop, uint32_t port,
                                                      OnConnection on_connection) {
  ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener, Listener::ListenVsock(port));
  return Start(loop, std::move(listener), /*tenant=*/"", std::move(on_connection));
}

absl::StatusOr<std::unique_ptr<Door>> Door::AdoptUnix(EventLoop* loop, const std::string& path,
                                                      const std::string& tenant, UniqueFd socket,
                                                      UniqueFd lock, OnConnection on_connection) {
  ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener,
                   Listener::AdoptUnix(path, std::move(socket), std::move(lock)));
  return Start(loop, std::move(listener), tenant, std::move(on_connection));
}

absl::StatusOr<std::unique_ptr<Door>> Door::AdoptVsock(EventLoop* loop, UniqueFd socket,
                                                       OnConnection on_connection) {
  ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener, Listener::AdoptVsock(std::move(socket)));
  return Start(loop, std::move(listener), /*tenant=*/"", std::move(on_connection));
}

absl::StatusOr<std::unique_ptr<Door>> Door::Start(EventLoop* loop,
                                                  std::unique_ptr<Listener> listener,
                                                  const std::string& tenant,
                                                  OnConnection on_connection) {
  std::unique_ptr<Door> door(new Door(loop, std::move(listener), tenant, std::move(on_connection)));
  Door* borrowed = door.get();
  RETURN_IF_ERROR(loop->Watch(borrowed->listener_->fd(), EPOLLIN,
                              [borrowed](uint32_t) { borrowed->Accept(); }));
  return door;
}

Door::~Door() {
  if (retry_ != 0) loop_->Cancel(retry_);
  loop_->Unwatch(listener_->fd());
}

void Door::Pause() { loop_->Rearm(listener_->fd(), 0); }
void Door::Resume() { loop_->Rearm(listener_->fd(), EPOLLIN); }

void Door::Accept() {
  absl::StatusOr<Accepted> accepted = listener_->Accept(0);
  if (absl::IsDeadlineExceeded(accepted.status()) || absl::IsAborted(accepted.status())) return;
  if (!accepted.ok()) {
    LOG(WARNING) << accepted.status() << "; new connections wait";
    Pause();
    retry_ = loop_->After(kAcceptRetry, [this] {
      retry_ = 0;
      Resume();
    });
    return;
  }
  Connection connection;
  connection.fd = std::move(accepted->socket);
  connection.peer = accepted->peer.text;
  if (accepted->peer.kind == Peer::Kind::kVsock) {
    connection.tenant = absl::StrCat("cid-", accepted->peer.cid);
    connection.front_door = "vsock";
  } else {
    connection.tenant = tenant_;
    connection.front_door = "unix";
    connection.shares_memory = true;
  }
  on_connection_(std::move(connection));
}

}  // namespace consort::host
