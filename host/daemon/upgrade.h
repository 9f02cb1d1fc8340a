// SPDX-License-Identifier: Apache-2.0
// host/daemon/upgrade.h: another binary of consortd takes the place of this one, in the same
// process.
//
//   Rehearsal: the binary as a child, which reads the state and says that it could go on from it
//       └─ it could ─▶ BecomeNext: exec, with the state and the descriptors that it names
//
// Until exec nothing has changed, so what fails before it is told and the daemon serves on. The
// process stays: its pid, its children and the environment that a service manager gave it.
// Descriptors and unreaped children go through exec; threads and memory do not.
#ifndef CONSORT_HOST_DAEMON_UPGRADE_H_
#define CONSORT_HOST_DAEMON_UPGRADE_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "host/daemon/daemon_state.h"
#include "host/daemon/options.h"
#include "host/daemon/settings.h"

namespace consort::host {

class Rehearsal {
 public:
  // Starts `command` to look at `state`. kUnavailable: it cannot be started.
  static absl::StatusOr<std::unique_ptr<Rehearsal>> Start(const DaemonCommand& command,
                                                          const DaemonState& state);
  // Kills it, if it runs; whoever reaps children reaps it too.
  ~Rehearsal();

  pid_t pid() const { return pid_; }
  void Kill();
  // After it was reaped: the version that can go on. kFailedPrecondition: it cannot, with what it
  // said about it.
  absl::StatusOr<std::string> Result(int wait_status);

 private:
  Rehearsal(pid_t pid, UniqueFd said) : pid_(pid), said_(std::move(said)) {}

  pid_t pid_;  // 0: reaped
  UniqueFd said_;
};

// Runs `command` instead of this program. Returns only if that fails, and everything is as before.
// On the thread that started the process.
absl::Status BecomeNext(const DaemonCommand& command, const DaemonState& state);

// In the next binary: what BecomeNext or a Rehearsal gave it, in `descriptor`, which is closed.
// Errors as DecodeDaemonState; kUnavailable: it cannot be read.
absl::StatusOr<DaemonState> ReadState(int descriptor);

// In a Rehearsal: looks at what is in `descriptor` as who goes on from it would, and says so on
// stdout, or why not on stderr. The exit status.
int Rehearse(int descriptor, const DaemonOptions& options, Settings settings);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_UPGRADE_H_
