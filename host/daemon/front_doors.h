// SPDX-License-Identifier: Apache-2.0
// host/daemon/front_doors.h: the listening sockets of consortd, on its loop. Owned by the loop.
#ifndef CONSORT_HOST_DAEMON_FRONT_DOORS_H_
#define CONSORT_HOST_DAEMON_FRONT_DOORS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "host/daemon/connection.h"
#include "host/daemon/event_loop.h"
#include "vmsock/listen.h"

namespace consort::host {

using OnConnection = std::function<void(Connection)>;

class Door {
 public:
  // A UNIX socket at `path`, whose folder is made if needed. Whoever may open the file may use the
  // GPUs: its mode is 0666, as that of a GPU's own device files; the folder is the place to be
  // stricter. Its clients are `tenant`. Errors as Listener::ListenUnix.
  static absl::StatusOr<std::unique_ptr<Door>> OpenUnix(EventLoop* loop, const std::string& path,
                                                        const std::string& tenant,
                                                        OnConnection on_connection);
  // AF_VSOCK `port`, for guests of the kernel's vhost-vsock. Tenant "cid-N". Errors as
  // Listener::ListenVsock.
  static absl::StatusOr<std::unique_ptr<Door>> OpenVsock(EventLoop* loop, uint32_t port,
                                                         OnConnection on_connection);
  // Goes on with a door of an earlier process image. Takes the descriptors. Errors as
  // Listener::AdoptUnix and AdoptVsock.
  static absl::StatusOr<std::unique_ptr<Door>> AdoptUnix(EventLoop* loop, const std::string& path,
                                                         const std::string& tenant, UniqueFd socket,
                                                         UniqueFd lock, OnConnection on_connection);
  static absl::StatusOr<std::unique_ptr<Door>> AdoptVsock(EventLoop* loop, UniqueFd socket,
                                                          OnConnection on_connection);
  ~Door();

  // Stops and starts accepting; connections wait in the kernel's queue meanwhile.
  void Pause();
  void Resume();
  const std::string& tenant() const { return tenant_; }
  const Listener& listener() const { return *listener_; }

 private:
  Door(EventLoop* loop, std::unique_ptr<Listener> listener, const std::string& tenant,
       OnConnection on_connection)
      : loop_(loop),
        listener_(std::move(listener)),
        tenant_(tenant),
        on_connection_(std::move(on_connection)) {}
  static absl::StatusOr<std::unique_ptr<Door>> Start(EventLoop* loop,
                                                     std::unique_ptr<Listener> listener,
                                                     const std::string& tenant,
                                                     OnConnection on_connection);
  void Accept();

  EventLoop* const loop_;
  const std::unique_ptr<Listener> listener_;
  const std::string tenant_;  // empty: the kernel tells who it is
  const OnConnection on_connection_;
  EventLoop::TimerId retry_ = 0;
};

// Connects to the UNIX socket at `path`. The descriptor is non-blocking; empty if nobody listens
// there.
UniqueFd ConnectUnix(const std::string& path);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_FRONT_DOORS_H_
