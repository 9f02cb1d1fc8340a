// SPDX-License-Identifier: Apache-2.0
// host/daemon/worker_process.h: one consort-worker, from its start to its end. Owned by consortd's
// loop.
//
//   starting ──Ready──▶ ready ──Retired──▶ draining
//      └──────────────────┴────────────────────┴──▶ gone (its control socket ended, or it was
//      reaped)
//
// What the states mean to sessions is the daemon's business; this class starts, talks and ends.
#ifndef CONSORT_HOST_DAEMON_WORKER_PROCESS_H_
#define CONSORT_HOST_DAEMON_WORKER_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "host/control/control_socket.h"
#include "host/daemon/event_loop.h"
#include "host/daemon/options.h"

namespace consort::host {

struct WorkerOptions {
  std::string binary;
  std::string device;  // auto, cpu or nvidia
  uint32_t index = 0;
  std::string scheduler;
  std::string cpu_devices;  // number or file; empty: the CPU driver's own default
  MemoryOptions memory;
  std::string keep_memory = "off";    // on, off or auto
  uint32_t save_after_seconds = 0;    // 0: never
  std::string launch_chains = "off";  // likewise
  std::string peer_access = "off";    // likewise
  std::string shared_code = "off";    // likewise
  int verbosity = 0;
};

class WorkerProcess {
 public:
  enum class State { kStarting, kReady, kDraining };

  // Starts the binary. `on_packet` gets each message; `on_gone` is called once, when the control
  // socket has ended; neither is called from within Start. The object may be destroyed in on_gone.
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Start(
      EventLoop* loop, const WorkerOptions& options,
      std::function<void(WorkerProcess*, ControlPacket&)> on_packet,
      std::function<void(WorkerProcess*)> on_gone);
  // Goes on with a worker that an earlier process image of this daemon started (daemon_state.h), in
  // `state`. Takes `control`. Callbacks as for Start. Errors: it cannot be watched.
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Adopt(
      EventLoop* loop, const WorkerOptions& options, UniqueFd control, pid_t pid,
      const std::string& binary, State state,
      std::function<void(WorkerProcess*, ControlPacket&)> on_packet,
      std::function<void(WorkerProcess*)> on_gone);
  // Takes it off the loop. The process, if it is still there, sees the end of its control socket
  // and exits; Kill first where that cannot be waited for.
  ~WorkerProcess();

  ControlSocket& control() { return control_; }
  pid_t pid() const { return pid_; }
  uint32_t device_index() const { return options_.index; }
  // Which file it runs: FileIdentity of options.binary when it was started.
  const std::string& binary() const { return binary_; }
  void Kill();

  State state = State::kStarting;

 private:
  WorkerProcess(EventLoop* loop, const WorkerOptions& options, UniqueFd control, pid_t pid,
                const std::string& binary,
                std::function<void(WorkerProcess*, ControlPacket&)> on_packet,
                std::function<void(WorkerProcess*)> on_gone);
  absl::Status Watch();
  void OnReadable();

  EventLoop* const loop_;
  const WorkerOptions options_;
  ControlSocket control_;
  const pid_t pid_;
  const std::string binary_;
  const std::function<void(WorkerProcess*, ControlPacket&)> on_packet_;
  const std::function<void(WorkerProcess*)> on_gone_;
};

// Tells the file that is at `path` now from the one that replaces it there; empty: there is none.
std::string FileIdentity(const std::string& path);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_WORKER_PROCESS_H_
