// SPDX-License-Identifier: Apache-2.0
// consortd: the workers of its devices, from their start to their end, and what they tell.
//
//   StartWorker ─▶ starting ──Ready──▶ ready ──Retired──▶ draining ─▶ gone
//                     └─ died: ScheduleStart, later and later ─┘
//
// host/control/messages.h has the messages.
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "host/daemon/daemon.h"
#include "host/limits.h"

namespace consort::host {

Daemon::Slot* Daemon::SlotOf(Device* device, const std::string& tenant) {
  const bool packed = settings_.tenants().Find(tenant).isolation != Isolation::kProcess;
  return packed ? &device->packed : OwnSlot(device, tenant);
}

Daemon::Slot* Daemon::OwnSlot(Device* device, const std::string& tenant) {
  Slot& slot = device->own[tenant];
  slot.device = device;
  slot.tenant = tenant;
  return &slot;
}

WorkerOptions Daemon::OptionsFor(const Slot& slot) const {
  WorkerOptions options;
  options.binary = options_.worker_path;
  options.device = options_.device;
  options.index = slot.device->index;
  options.cpu_devices = options_.cpu_devices;
  options.memory = options_.memory;
  // Of the pool's sessions others have a part.
  options.keep_memory = options_.pool.has_value() ? "off" : options_.keep_memory;
  options.save_after_seconds = options_.save_after_seconds;
  options.launch_chains = options_.launch_chains;
  options.peer_access = options_.peer_access;
  options.shared_code = options_.shared_code;
  options.scheduler = settings_.policy();
  options.verbosity = options_.verbosity;
  return options;
}

absl::StatusOr<WorkerProcess*> Daemon::StartProcess(Slot* slot) {
  ASSIGN_OR_RETURN(
      std::unique_ptr<WorkerProcess> worker,
      WorkerProcess::Start(
          loop_, OptionsFor(*slot),
          [this](WorkerProcess* from, ControlPacket& packet) { OnPacket(from, packet); },
          [this](WorkerProcess* gone) { OnGone(gone); }));
  WorkerProcess* const started = worker.get();
  children_[started->pid()] = slot->device->index;
  workers_[started] = {std::move(worker), slot, false, std::nullopt};
  return started;
}

absl::Status Daemon::StartWorker(Slot* slot) {
  Device* device = slot->device;
  ASSIGN_OR_RETURN(slot->worker, StartProcess(slot));
  ++device->worker_starts;
  if (!slot->tenant.empty()) {
    LOG(INFO) << "device " << device->index << ": worker " << slot->worker->pid() << " for tenant "
              << slot->tenant << " alone";
  }
  return absl::OkStatus();
}

// A worker that has worked is replaced at once, however short its life: a tenant's kernel may have
// ended it, and others wait. One that dies before it is ready is tried again later and later.
void Daemon::ScheduleStart(Slot* slot, bool was_ready) {
  // A tenant's own worker is for sessions that are there, or come back.
  if (stopping_) return;
  if (!slot->tenant.empty() && slot->waiting.empty() && slot->recovering == 0 &&
      !AnyHeldFor(*slot)) {
    return;
  }
  if (PutStandbyInPlace(slot)) return;
  if (was_ready || slot->back_off == 0) {
    slot->back_off = kWorkerRestartFirst;
  } else {
    slot->back_off = std::min(slot->back_off * 2, kWorkerRestartLast);
  }
  slot->restart = loop_->After(slot->back_off, [this, slot] {
    slot->restart = 0;
    const absl::Status started = StartWorker(slot);
    if (!started.ok()) {
      LOG(ERROR) << "device " << slot->device->index << ": " << started;
      ScheduleStart(slot, /*was_ready=*/false);
    }
  });
}

void Daemon::EndIfUnused(Slot* slot) {
  if (stopping_ || !slot->ready() || !slot->waiting.empty() || SessionsOf(slot->worker) != 0 ||
      AnyHeldFor(*slot)) {
    return;
  }
  const bool packed = slot->tenant.empty();
  if (packed && !workers_.at(slot->worker).outdated) return;
  WorkerProcess* worker = std::exchange(slot->worker, nullptr);
  if (packed) ScheduleStart(slot, /*was_ready=*/true);
  worker->state = WorkerProcess::State::kDraining;
  const absl::Status told = worker->control().Send(Shutdown{});
  if (told.ok()) return;
  LOG(WARNING) << "worker " << worker->pid() << ": " << told;
  worker->Kill();
}

void Daemon::OnPacket(WorkerProcess* worker, ControlPacket& packet) {
  Ready ready;
  StartFailed failed;
  SessionEnded ended;
  Retired retired;
  UsageReport usage;
  UnsupportedCalls unsupported;
  MemoryReport memory;
  Calibrated speed;
  MoveEnded moved;
  TraceEnded trace;
  if (packet.As(&ready)) {
    OnReadyMessage(worker, ready);
  } else if (packet.As(&ended)) {
    if (ended.lost == 0 || !GoOnWithout(worker, ended)) EndSession(ended);
  } else if (packet.As(&moved)) {
    OnMoveEnded(moved);
  } else if (packet.As(&retired)) {
    ++devices_[worker->device_index()]->workers_retired;
    Retire(worker, EventLevel::kError, absl::StrCat("cannot go on: ", GetText(retired.reason)));
  } else if (packet.As(&unsupported)) {
    std::string name = GetText(unsupported.name);
    if (!unsupported_calls_.contains(name) && unsupported_calls_.size() >= kUnsupportedNamesMax) {
      name = "other";
    }
    if (!unsupported_calls_.contains(name)) {
      events_.Add(EventLevel::kWarning, absl::StrCat("a program called ", PrintableName(name),
                                                     ", which is not supported"));
    }
    unsupported_calls_[name] += unsupported.calls;
  } else if (packet.As(&trace)) {
    OnTraceEnded(trace);
  } else if (packet.As(&speed)) {
    OnCalibrated(worker, speed);
  } else if (packet.As(&memory)) {
    Device& device = *devices_[worker->device_index()];
    if (device.packed.worker == worker) device.memory = memory;
  } else if (packet.As(&usage)) {
    const uint64_t count = std::min<uint64_t>(usage.count, kUsageEntriesMax);
    for (uint64_t i = 0; i < count; ++i) {
      usage_.Update(usage.entries[i]);
      const auto session = sessions_.find(usage.entries[i].session);
      if (session == sessions_.end()) continue;  // a report can cross the session's end
      session->second.recent.Report(MonotonicNow(), usage.entries[i].kernel_nanos);
    }
    if (usage.last != 0) {
      ShareWindow::DeviceTimes times;
      for (const auto& [id, session] : sessions_) {
        if (session.identity.device_index != worker->device_index()) continue;
        times[id] = usage_.Latest(id).device_nanos;
      }
      devices_[worker->device_index()]->shares.Add(MonotonicNow(), std::move(times));
    }
  } else if (packet.As(&failed) && IsStandby(worker)) {
    LoseStandby(worker, GetText(failed.text));
  } else if (packet.As(&failed)) {
    LOG(ERROR) << "device " << worker->device_index() << ": " << GetText(failed.text);
    ++errors_[kErrorWorkerStart];
    events_.Add(EventLevel::kError,
                absl::StrCat("device ", worker->device_index(),
                             " does not start: ", PrintableName(GetText(failed.text))));
    LeaveSlot(workers_.at(worker).slot);
    // Before anything worked this is a matter of configuration, for a person; later it is a fault
    // that a restart may mend.
    if (!ready_) {
      Fail(absl::FailedPreconditionError(absl::StrCat(
          GetText(failed.text), options_.device == "nvidia"
                                    ? "; is NVIDIA's driver installed and loaded (nvidia-smi)? "
                                      "--device cpu runs without a GPU"
                                    : "")));
    }
  } else if (!OnKeeperPacket(packet) && !OnPeerPacket(packet) && !OnBindPacket(packet) &&
             !OnVmMemoryPacket(worker, packet)) {
    LOG(ERROR) << "worker " << worker->pid() << " sent a message of unknown kind "
               << static_cast<uint64_t>(packet.kind()) << "; ending it";
    worker->Kill();
  }
}

void Daemon::OnReadyMessage(WorkerProcess* worker, const Ready& ready) {
  worker->state = WorkerProcess::State::kReady;
  workers_.at(worker).told = ready;
  if (!IsStandby(worker)) return TakeOver(worker);
  LOG(INFO) << "device " << worker->device_index() << ": worker " << worker->pid() << " stands by";
}

void Daemon::TakeOver(WorkerProcess* worker) {
  Device* device = devices_[worker->device_index()].get();
  Slot* slot = workers_.at(worker).slot;
  const Ready& ready = *workers_.at(worker).told;
  device->info = ready;
  device->calibrating = false;
  // It was started with the policy of then.
  SendSettings(worker);
  if (traces_.recording()) SendTrace(worker);
  LOG(INFO) << "device " << device->index << ": " << GetText(ready.snapshot.name) << ", "
            << ready.snapshot.total_bytes / kMiB << " MiB, driver " << GetText(ready.driver) << " "
            << ready.driver_version << ", worker " << worker->pid();
  events_.Add(EventLevel::kInfo,
              device->worker_starts == 1
                  ? absl::StrCat("device ", device->index,
                                 " is ready: ", PrintableName(GetText(ready.snapshot.name)))
                  : absl::StrCat("device ", device->index, " is ready again, with another worker"));
  if (!ready_ && device->index == 0) {
    const uint32_t count = std::min(ready.device_count, kDevicesMax);
    for (uint32_t index = 1; index < count; ++index) {
      AddDevice(index);
      const absl::Status started = StartWorker(&devices_.back()->packed);
      if (!started.ok()) return Fail(started);
    }
  }
  CheckAllReady();
  PassOnKept(slot);
  if (slot->ready()) ServeWaiting(slot);
  AwaitStandby(slot, kStandbyAfter);
}

absl::StatusOr<bool> Daemon::CalibrateAll() {
  for (const auto& device : devices_) {
    if (device->speed.has_value()) continue;
    if (device->packed.ready() && !device->calibrating) {
      RETURN_IF_ERROR(device->packed.worker->control().Send(Calibrate{}));
      device->calibrating = true;
    }
    return false;
  }
  return true;
}

void Daemon::OnCalibrated(WorkerProcess* worker, const Calibrated& speed) {
  Device* device = devices_[worker->device_index()].get();
  device->speed = speed;
  LOG_IF(INFO, speed.arithmetic > 0) << absl::StrFormat(
      "device %u: copies at %.2f GB/s, to the host at %.2f GB/s; kernels: memory at %.2f GB/s, "
      "%.3f TFLOP/s",
      device->index, speed.to_device / 1e9, speed.to_host / 1e9, speed.memory / 1e9,
      speed.arithmetic / 1e12);
  CheckAllReady();
}

void Daemon::Retire(WorkerProcess* worker, EventLevel level, const std::string& reason) {
  if (worker->state == WorkerProcess::State::kDraining) return;
  if (IsStandby(worker)) return LoseStandby(worker, reason);
  Device* device = devices_[worker->device_index()].get();
  const size_t sessions = SessionsOf(worker);
  const auto text = [&](const std::string& which) {
    return absl::StrCat("device ", device->index, ": ", which, " ", reason, "; ", sessions,
                        " applications stay with it, new ones get another");
  };
  const std::string line = text(absl::StrCat("worker ", worker->pid()));
  if (level == EventLevel::kError) {
    LOG(ERROR) << line;
  } else {
    LOG(INFO) << line;
  }
  events_.Add(level, PrintableName(text("its worker")));
  const bool was_ready = worker->state == WorkerProcess::State::kReady;
  worker->state = WorkerProcess::State::kDraining;
  Slot* slot = workers_.at(worker).slot;
  if (slot->worker == worker) {
    slot->worker = nullptr;
    ScheduleStart(slot, was_ready);
  }
}

void Daemon::OnGone(WorkerProcess* worker) {
  const auto it = workers_.find(worker);
  if (it == workers_.end()) return;
  if (IsStandby(worker)) LoseStandby(worker, "it is gone");
  const std::unique_ptr<WorkerProcess> owned = std::move(it->second.process);
  Slot* slot = it->second.slot;
  workers_.erase(it);
  const bool was_slots = slot->worker == worker;
  if (was_slots) slot->worker = nullptr;
  Device* device = devices_[worker->device_index()].get();
  traces_.WorkerGone(worker->pid());
  CheckTraces();

  std::vector<SessionEnded> lost;
  for (const auto& [id, session] : sessions_) {
    if (session.worker != worker) continue;
    KeepLoan(session, worker->pid());
    SessionEnded ended;
    ended.session = id;
    ended.started_unix_seconds = session.started_unix_seconds;
    ended.lasted_nanos = static_cast<uint64_t>(MonotonicNow() - session.started);
    SetText(ended.reason, "worker died");
    lost.push_back(ended);
  }
  const bool draining = worker->state == WorkerProcess::State::kDraining;
  const size_t sessions = lost.size();
  std::erase_if(lost, [&](const SessionEnded& ended) { return GoOnElsewhere(slot, ended); });
  if (!stopping_ && (!draining || sessions != 0)) {
    const size_t go_on = sessions - lost.size();
    LOG(ERROR) << "device " << device->index << ": worker " << worker->pid() << " is gone, with "
               << lost.size() << " sessions; " << go_on << " go on in another";
    ++errors_[kErrorWorkerDied];
    events_.Add(EventLevel::kError,
                absl::StrCat("device ", device->index, ": its worker died, and ", lost.size(),
                             " applications lost it",
                             go_on == 0 ? "" : absl::StrCat("; ", go_on, " go on in another")));
  }
  // It has closed its socket, so it is about to exit; a driver can keep it from doing so.
  KillLater(worker->pid());
  for (const SessionEnded& ended : lost) EndSession(ended);

  if (!was_slots && slot->worker != nullptr &&
      slot->worker->state == WorkerProcess::State::kReady) {
    PassOnKept(slot);
  }
  if (was_slots) {
    if (!ready_ && !stopping_) {
      return Fail(absl::UnavailableError(
          absl::StrCat("the worker of device ", device->index, " died while starting")));
    }
    ScheduleStart(slot, worker->state == WorkerProcess::State::kReady);
  }
  CheckStopped();
}

void Daemon::KillLater(pid_t pid) {
  loop_->After(kWorkerExitTimeout, [this, pid] {
    if (children_.contains(pid)) kill(pid, SIGKILL);
  });
}

void Daemon::OnChildSignal() {
  // consortd has no children but its workers and, while there is an upgrade, its next binary.
  int status;
  pid_t pid;
  while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
    if (rehearsal_ != nullptr && rehearsal_->pid() == pid) {
      OnRehearsed(status);
      continue;
    }
    children_.erase(pid);
    kept_loans_.erase(pid);
    if (WIFSIGNALED(status)) {
      LOG(INFO) << "worker " << pid << " ended by signal " << WTERMSIG(status);
    } else {
      LOG_IF(INFO, WEXITSTATUS(status) != 0)
          << "worker " << pid << " ended with status " << WEXITSTATUS(status);
    }
  }
  CheckStopped();
}

size_t Daemon::SessionsOf(const WorkerProcess* worker) const {
  return static_cast<size_t>(
      std::count_if(sessions_.begin(), sessions_.end(),
                    [worker](const auto& entry) { return entry.second.worker == worker; }));
}

}  // namespace consort::host
