// SPDX-License-Identifier: Apache-2.0
// consortd: workers that stand by (--standby-workers).
//
//   a device's worker is ready ─kStandbyAfter─▶ another starts, and waits ─ the first one dies or
//   retires ─▶ it is in its place at once, ready or not, and the next one stands by after a while
//
// A start is most of what programs wait for that go on after the death of their worker: a driver
// makes a context in some 200 ms. Only packed tenants have one: workers of tenants alone are there
// while they have sessions.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "host/daemon/daemon.h"
#include "host/limits.h"

namespace consort::host {

bool Daemon::IsStandby(const WorkerProcess* worker) const {
  return std::any_of(devices_.begin(), devices_.end(),
                     [worker](const auto& device) { return device->packed.standby == worker; });
}

void Daemon::AwaitStandby(Slot* slot, Nanos after) {
  if (!options_.standby_workers || !slot->tenant.empty() || stopping_) return;
  if (slot->standby != nullptr || slot->standby_start != 0) return;
  slot->standby_start = loop_->After(after, [this, slot] {
    slot->standby_start = 0;
    // Without one there is another start, after which this is asked for again.
    if (slot->worker == nullptr || slot->worker->state != WorkerProcess::State::kReady) return;
    const absl::StatusOr<WorkerProcess*> started = StartProcess(slot);
    if (started.ok()) {
      slot->standby = *started;
    } else {
      LOG(ERROR) << "device " << slot->device->index << ": " << started.status();
      AwaitStandby(slot, kStandbyAgainAfter);
    }
  });
}

bool Daemon::PutStandbyInPlace(Slot* slot) {
  if (slot->standby == nullptr) return false;
  slot->worker = std::exchange(slot->standby, nullptr);
  ++slot->device->worker_starts;
  LOG(INFO) << "device " << slot->device->index << ": worker " << slot->worker->pid()
            << ", which stood by, takes over";
  if (slot->worker->state == WorkerProcess::State::kReady) TakeOver(slot->worker);
  return true;
}

void Daemon::LoseStandby(WorkerProcess* worker, const std::string& why) {
  Slot* slot = workers_.at(worker).slot;
  slot->standby = nullptr;
  worker->state = WorkerProcess::State::kDraining;
  if (stopping_) return;
  const std::string text = absl::StrCat("device ", slot->device->index,
                                        ": no worker stands by, the last one ended: ", why);
  LOG(WARNING) << text;
  events_.Add(EventLevel::kWarning, PrintableName(text));
  AwaitStandby(slot, kStandbyAgainAfter);
}

}  // namespace consort::host
