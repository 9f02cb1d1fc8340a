// SPDX-License-Identifier: Apache-2.0
// host/daemon/admin_doors.h: where operators and their programs look at consortd. Read only.
//
//   metrics socket (TCP)     GET /metrics, /healthz
//   admin socket (UNIX)      the same and GET /api/v1/status; who may open the file may read
//
// Owned by consortd's loop.
#ifndef CONSORT_HOST_DAEMON_ADMIN_DOORS_H_
#define CONSORT_HOST_DAEMON_ADMIN_DOORS_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "host/daemon/event_loop.h"
#include "host/daemon/http_server.h"
#include "host/daemon/options.h"
#include "host/daemon/status.h"
#include "vmsock/listen.h"

namespace consort::host {

class AdminDoors {
 public:
  // Opens what `options` names. `status` is called for each request, on the loop's thread. Errors
  // name the socket; a default metrics port that is taken is a warning only.
  static absl::StatusOr<std::unique_ptr<AdminDoors>> Open(EventLoop* loop,
                                                          const AdminOptions& options,
                                                          std::function<DaemonStatus()> status);

 private:
  AdminDoors() = default;

  std::unique_ptr<Listener> admin_listener_;  // owns the socket file; the server has a copy
  std::unique_ptr<HttpServer> admin_;
  std::unique_ptr<HttpServer> metrics_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_ADMIN_DOORS_H_
