// SPDX-License-Identifier: Apache-2.0
// host/daemon/front_doors.h: the sockets that applications and guests connect to. Owned by consortd's
// loop.
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

namespace consort::host {

using OnConnection = std::function<void(Connection)>;

// A listening socket on the loop; closed, and its path removed, when it goes.
class Listener {
 public:
  // Listens on a UNIX socket at `path`, making its folder. A socket file that nobody listens on is
  // replaced; one that somebody does is kAlreadyExists. Whoever may open the file may use the GPUs: its
  // mode is 0666, as that of a GPU's own device files. Tenant "local".
  static absl::StatusOr<std::unique_ptr<Listener>> Unix(EventLoop* loop, const std::string& path,
                                                        OnConnection on_connection);
  // Listens on AF_VSOCK `port` for guests of the kernel's vhost-vsock. Tenant "cid-N".
  // kUnavailable: this kernel has no vsock, or the port is taken.
  static absl::StatusOr<std::unique_ptr<Listener>> Vsock(EventLoop* loop, uint32_t port,
                                                         OnConnection on_connection);
  ~Listener();

  // Stops and starts accepting; connections wait in the kernel's queue meanwhile.
  void Pause();
  void Resume();

 private:
  Listener(EventLoop* loop, UniqueFd fd, std::string path, OnConnection on_connection)
      : loop_(loop),
        fd_(std::move(fd)),
        path_(std::move(path)),
        on_connection_(std::move(on_connection)) {}
  absl::Status Start();
  void Accept();

  EventLoop* const loop_;
  UniqueFd fd_;
  const std::string path_;  // empty for vsock
  const OnConnection on_connection_;
  EventLoop::TimerId retry_ = 0;
};

// Connects to the UNIX socket at `path`. The descriptor is non-blocking; -1 if nobody listens there.
UniqueFd ConnectUnix(const std::string& path);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_FRONT_DOORS_H_
