// SPDX-License-Identifier: Apache-2.0
// consortd: schedulers' traces that an operator asks for.
#include <time.h>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "host/daemon/daemon.h"

namespace consort::host {

absl::Status Daemon::Trace(const TraceRequest& request, const std::string& who) {
  if (request.record) {
    RETURN_IF_ERROR(traces_.Begin(options_.trace_folder, request.bytes_max, who,
                                  static_cast<uint64_t>(time(nullptr))));
  } else {
    RETURN_IF_ERROR(traces_.End());
  }
  const std::string done = absl::StrCat(who, request.record ? " began" : " ended",
                                        " the schedulers' traces in ", options_.trace_folder);
  LOG(INFO) << done;
  events_.Add(EventLevel::kInfo, done);
  for (const auto& [worker, running] : workers_) {
    if (worker->state != WorkerProcess::State::kStarting) SendTrace(worker);
  }
  return absl::OkStatus();
}

std::string Daemon::Traces() const { return traces_.Json(); }

void Daemon::SendTrace(WorkerProcess* worker) {
  SetTrace message;
  SetText(message.policy, settings_.policy());
  message.bytes_max = traces_.bytes_max();
  if (traces_.recording()) {
    const absl::StatusOr<std::string> path = traces_.NextFile(worker->device_index());
    if (!path.ok() || path->size() >= sizeof(message.path)) {
      LOG(ERROR) << "no trace of worker " << worker->pid() << ": "
                 << (path.ok() ? absl::InvalidArgumentError("its path is too long")
                               : path.status());
      return;
    }
    SetText(message.path, *path);
  }
  const absl::Status sent = worker->control().Send(message);
  LOG_IF(ERROR, !sent.ok()) << "worker " << worker->pid() << " was not told of traces: " << sent;
}

}  // namespace consort::host
