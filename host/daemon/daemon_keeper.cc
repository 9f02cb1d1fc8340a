// SPDX-License-Identifier: Apache-2.0
// consortd: sessions whose worker has died, and which go on in another.
//
//   OnGone ─ at rest? ─┬─▶ arriving, without a worker ──the slot's next one is ready──▶ PassOnKept
//                      │        ▲ that one dies, too (kGoOnAttempts)                       │ WentOn
//                      ▼        └──────────────────────────────────────────────────────────┤
//                   its guest is told                                                    open
//
// The window stays the session's. While any is on its way its slot takes no new session, which
// could take the memory that it has. See host/session/keep.cc for the workers' side.
#include <time.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "host/daemon/daemon.h"
#include "host/limits.h"

namespace consort::host {

bool Daemon::OnKeeperPacket(ControlPacket& packet) {
  Keep keep;
  LetGo let_go;
  WentOn went_on;
  if (packet.As(&keep)) {
    // One of a session that has ended meanwhile would stay for ever.
    if (sessions_.contains(keep.session)) keeper_.Hold(keep, std::move(packet.descriptor()));
  } else if (packet.As(&let_go)) {
    keeper_.Drop(let_go);
  } else if (packet.As(&went_on)) {
    OnWentOn(went_on.session);
  } else {
    return false;
  }
  return true;
}

// The session of a worker that has died; `ended` is its account. False: it is over, and why is in
// the log.
bool Daemon::GoOnElsewhere(Slot* slot, const SessionEnded& ended) {
  const auto it = sessions_.find(ended.session);
  const uint64_t id = ended.session;
  Recovery recovery;
  recovery.slot = slot;
  recovery.died_at = MonotonicNow();
  // It was going on already.
  if (const auto before = recoveries_.find(id); before != recoveries_.end()) {
    recovery = before->second;
    EndRecovery(before);
  }
  absl::Status goes_on = keeper_.CheckGoesOn(id);
  if (!it->second.owns_window) goes_on = absl::FailedPreconditionError("it was being restored");
  if (goes_on.ok() && ++recovery.attempts > kGoOnAttempts) {
    goes_on = absl::FailedPreconditionError("workers died each time that it was to go on");
  }
  if (stopping_ || !goes_on.ok()) {
    LOG_IF(WARNING, !stopping_) << "session " << id << " (" << it->second.identity.application
                                << ") ends with its worker: " << goes_on.message();
    return false;
  }
  Session session = it->second;
  session.stage = Session::Stage::kArriving;
  session.worker = nullptr;
  session.open.session = next_session_++;
  session.open.origin = OpenSession::kGoesOn;
  session.told = {};
  const uint64_t becomes = session.open.session;
  keeper_.Rename(id, becomes);
  EndSession(ended);
  CHECK(devices_[session.identity.device_index]->windows.TakeAt(session.window));
  ++slot->recovering;
  sessions_.emplace(becomes, std::move(session));
  recoveries_.emplace(becomes, recovery);
  loop_->After(kWorkerStartTimeout, [this, becomes] {
    const auto waits = sessions_.find(becomes);
    if (waits == sessions_.end() || waits->second.worker != nullptr) return;
    SessionEnded late;
    late.session = becomes;
    SetText(late.reason, "no worker started");
    LOG(ERROR) << "session " << becomes << " ends: no worker started that it could go on in";
    EndSession(late);
  });
  return true;
}

void Daemon::PassOnKept(Slot* slot) {
  std::vector<uint64_t> waiting;
  for (const auto& [id, recovery] : recoveries_) {
    if (recovery.slot == slot && sessions_.at(id).worker == nullptr) waiting.push_back(id);
  }
  for (const uint64_t id : waiting) {
    const absl::Status passed = PassOn(id, slot->worker);
    if (passed.ok()) continue;
    SessionEnded ended;
    ended.session = id;
    SetText(ended.reason, std::string(passed.message()));
    EndSession(ended);
  }
}

absl::Status Daemon::PassOn(uint64_t id, WorkerProcess* worker) {
  ASSIGN_OR_RETURN(auto link, ControlSocket::MakePair());
  Session& session = sessions_.at(id);
  session.open.weight = session.weight;
  session.open.rates = settings_.Find(session.identity.tenant).rates;
  RETURN_IF_ERROR(worker->control().Send(session.open, link.first.get()));
  session.worker = worker;
  return keeper_.PassOn(id, std::move(link.second));
}

void Daemon::OnWentOn(uint64_t id) {
  const auto recovery = recoveries_.find(id);
  const auto it = sessions_.find(id);
  if (recovery == recoveries_.end() || it == sessions_.end()) return;
  Session& session = it->second;
  session.stage = Session::Stage::kOpen;
  session.started_unix_seconds = static_cast<uint64_t>(time(nullptr));
  session.started = MonotonicNow();
  usage_.Begin(
      id, {session.identity.tenant, session.identity.application, session.identity.device_index});
  LOG(INFO) << absl::StrFormat(
      "session %u (%s) goes on in worker %d, %.0f ms after the death of its worker", id,
      session.identity.application, session.worker->pid(),
      static_cast<double>(MonotonicNow() - recovery->second.died_at) / 1e6);
  EndRecovery(recovery);
}

void Daemon::EndRecovery(std::map<uint64_t, Recovery>::iterator recovery) {
  Slot* slot = recovery->second.slot;
  recoveries_.erase(recovery);
  if (--slot->recovering == 0 && slot->ready()) ServeWaiting(slot);
}

}  // namespace consort::host
