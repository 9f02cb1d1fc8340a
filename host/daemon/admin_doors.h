// SPDX-License-Identifier: Apache-2.0
// host/daemon/admin_doors.h: where operators and their programs look at consortd and change how
// devices are shared.
//
//   metrics socket (TCP)     GET /metrics, /healthz, and the page (page.h)
//   admin socket (UNIX)      the same and
//                            GET /api/v1/status, /api/v1/trace
//                            PUT /api/v1/scheduler  {"policy": "las"}, null: as the files say
//                            PUT /api/v1/tenants    as in tenant_change.h
//                            GET /api/v1/moves      applications that went to another device
//                            PUT /api/v1/moves      {"session": 12, "device": 1}
//                            PUT /api/v1/devices    {"device": 0, "drained": true}
//                            PUT /api/v1/trace      as in trace_book.h
//                            who may open the file may read and write
//   links of the pool (TLS)  as the admin socket, for operators by their certificates; viewers
//                            may read
//
// Owned by consortd's loop.
#ifndef CONSORT_HOST_DAEMON_ADMIN_DOORS_H_
#define CONSORT_HOST_DAEMON_ADMIN_DOORS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "gpool/tls.h"
#include "host/daemon/event_loop.h"
#include "host/daemon/http_server.h"
#include "host/daemon/options.h"
#include "host/daemon/page.h"
#include "host/daemon/status.h"
#include "host/daemon/tenant_change.h"
#include "host/daemon/trace_book.h"
#include "vmsock/listen.h"

namespace consort::host {

struct CheckpointRequest {
  uint64_t session = 0;
  std::string folder;
  bool leaves = false;  // with its machine: its program goes on where the folder is awaited
};

// Of a session that has left with its machine.
struct AwaitRequest {
  std::string folder;
  std::optional<uint32_t> device;  // none: of the number that it was on
};

// Of a session that is held in a checkpoint.
struct RestoreRequest {
  uint64_t session = 0;
  std::string folder;              // a copy; empty: that with which it was held
  std::optional<uint32_t> device;  // none: that which it was on
};

// What the doors need of the daemon. Called on the loop's thread.
class AdminActions {
 public:
  virtual ~AdminActions() = default;
  virtual DaemonStatus Status() const = 0;
  // What the page asks for, as PageJson gives it.
  virtual std::string Page(const PageRequest& request) const = 0;
  // No value: as the files say. `who`: for the log and the state file. kInvalidArgument: no such
  // policy or value. Others: it could not be kept, and nothing has changed.
  virtual absl::Status SetPolicy(const std::optional<std::string>& policy,
                                 const std::string& who) = 0;
  // As SetPolicy, and `done` is told how it went: at once, or for the pool later, on the loop.
  virtual void SetTenant(const TenantChange& change, const std::string& who,
                         std::function<void(const absl::Status&)> done) = 0;
  // What is known of moves (moves.h), as JSON.
  virtual std::string Moves() const = 0;
  // Tells an application to go to another device; Moves tells how it went. kInvalidArgument: no
  // such session or device. Others: it cannot go there now.
  virtual absl::Status MoveSession(uint64_t session, uint32_t device, const std::string& who) = 0;
  // Takes an application off its device into a checkpoint, and back; Moves tells how it went.
  // kInvalidArgument: no such session or device. Others: not now.
  virtual absl::Status CheckpointSession(const CheckpointRequest& request,
                                         const std::string& who) = 0;
  virtual absl::Status RestoreSession(const RestoreRequest& request, const std::string& who) = 0;
  // The program of a session that has left with its machine is to go on here; `done` is told, on
  // the loop, whether all is ready for it.
  virtual void AwaitProgram(const AwaitRequest& request, const std::string& who,
                            std::function<void(const absl::Status&)> done) = 0;
  // A drained device takes no new applications, and those that it has are told to go.
  virtual absl::Status SetDrained(uint32_t device, bool drained, const std::string& who) = 0;
  // The binary that is installed now takes over; Upgrades tells how it went. Others than OK: it
  // cannot now.
  virtual absl::Status Upgrade(const std::string& who) = 0;
  // The latest: {"number": 1, "state": "done", "by": "uid 0", "text": "", "version": "1.2.3"}; with
  // the version of who answers.
  virtual std::string Upgrades() const = 0;
  // `done` is told, on the loop: at once, and of an end when its files are complete.
  // kFailedPrecondition: it is so already.
  virtual void Trace(const TraceRequest& request, const std::string& who,
                     std::function<void(const absl::Status&)> done) = 0;
  // TraceBook::Json.
  virtual std::string Traces() const = 0;
  // Somebody wanted to change something and may not.
  virtual void Denied(const std::string& who, const std::string& what) = 0;
};

// What an earlier process image of this daemon listened on; empty: it did not.
struct AdminSockets {
  std::unique_ptr<Listener> admin;
  UniqueFd metrics;
};

class AdminDoors {
 public:
  // Opens what `options` names, or goes on with `sockets`. `actions` is borrowed for the doors'
  // life. Errors name the socket; a default metrics port that is taken is a warning only.
  static absl::StatusOr<std::unique_ptr<AdminDoors>> Open(EventLoop* loop,
                                                          const AdminOptions& options,
                                                          AdminActions* actions,
                                                          AdminSockets sockets = {});

  // An operator's connection over the pool's TLS, plain from here on.
  void Adopt(UniqueFd connection, const gpool::Identity& peer);

  // What it listens on; null and negative: not.
  const Listener* admin_listener() const { return admin_listener_.get(); }
  int metrics_fd() const { return metrics_listening_.get(); }

 private:
  AdminDoors() = default;

  std::unique_ptr<Listener> admin_listener_;  // owns the socket file; the server has a copy
  std::unique_ptr<HttpServer> admin_;
  UniqueFd metrics_listening_;  // likewise
  std::unique_ptr<HttpServer> metrics_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_ADMIN_DOORS_H_
