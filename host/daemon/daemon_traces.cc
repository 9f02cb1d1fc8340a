// SPDX-License-Identifier: Apache-2.0
// consortd: schedulers' traces that an operator asks for.
#include <time.h>

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "host/daemon/daemon.h"

namespace consort::host {

void Daemon::Trace(const TraceRequest& request, const std::string& who,
                   std::function<void(const absl::Status&)> done) {
  const absl::Status taken = request.record
                                 ? traces_.Begin(options_.trace_folder, request.bytes_max, who,
                                                 static_cast<uint64_t>(time(nullptr)))
                                 : traces_.End();
  if (!taken.ok()) return done(taken);
  const std::string text = absl::StrCat(who, request.record ? " began" : " ended",
                                        " the schedulers' traces in ", options_.trace_folder);
  LOG(INFO) << text;
  events_.Add(EventLevel::kInfo, text);
  for (const auto& [worker, running] : workers_) {
    if (worker->state != WorkerProcess::State::kStarting && !IsStandby(worker)) SendTrace(worker);
  }
  if (request.record) return done(absl::OkStatus());
  traces_awaited_.push_back(std::move(done));
  CheckTraces();
}

void Daemon::OnTraceEnded(const TraceEnded& trace) {
  const std::string path = GetText(trace.path);
  const std::string reason = GetText(trace.reason);
  traces_.Ended(path, reason);
  if (!reason.empty()) {
    events_.Add(EventLevel::kWarning,
                absl::StrCat("the trace ", PrintableName(path), " ended: ", reason));
  }
  CheckTraces();
}

void Daemon::CheckTraces() {
  if (!traces_.complete()) return;
  for (const auto& done : std::exchange(traces_awaited_, {})) done(absl::OkStatus());
}

std::string Daemon::Traces() const { return traces_.Json(); }

void Daemon::SendTrace(WorkerProcess* worker) {
  SetTrace message;
  SetText(message.policy, settings_.policy());
  message.bytes_max = traces_.bytes_max();
  if (traces_.recording()) {
    const absl::StatusOr<std::string> path =
        traces_.NextFile(worker->device_index(), worker->pid());
    if (!path.ok() || path->size() >= sizeof(message.path)) {
      LOG(ERROR) << "no trace of worker " << worker->pid() << ": "
                 << (path.ok() ? absl::InvalidArgumentError("its path is too long")
                               : path.status());
      if (path.ok()) traces_.Ended(*path, "its path is too long");
      return;
    }
    SetText(message.path, *path);
  }
  const absl::Status sent = worker->control().Send(message);
  if (!sent.ok()) {
    LOG(ERROR) << "worker " << worker->pid() << " was not told of traces: " << sent;
    traces_.WorkerGone(worker->pid());
  }
}

}  // namespace consort::host
