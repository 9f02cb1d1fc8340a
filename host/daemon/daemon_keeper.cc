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
  SaveWanted wanted;
  if (packet.As(&keep)) {
    // One of a session that has ended meanwhile would stay for ever.
    if (sessions_.contains(keep.session)) keeper_.Hold(keep, std::move(packet.descriptor()));
  } else if (packet.As(&let_go)) {
    keeper_.Drop(let_go);
  } else if (packet.As(&wanted)) {
    OnSaveWanted(wanted.session);
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
  recovery.lost = false;
  absl::Status goes_on = keeper_.CheckGoesOn(id);
  if (!goes_on.ok() && options_.save_after_seconds != 0) {
    goes_on = CheckComputesAgain(id);
    recovery.lost = goes_on.ok();
  }
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
  session.open.origin = recovery.lost ? OpenSession::kRedone : OpenSession::kGoesOn;
  session.told = {};
  const uint64_t becomes = session.open.session;
  keeper_.Rename(id, becomes);
  if (auto node = saves_.folders.extract(id); !node.empty()) {
    node.key() = becomes;
    saves_.folders.insert(std::move(node));
  }
  // Of memory that is not there any more, and a record that says nothing.
  if (recovery.lost) keeper_.DropMemory(becomes);
  EndSession(ended);
  CHECK(devices_[session.identity.device_index]->windows.TakeAt(session.window));
  ++slot->recovering;
  sessions_.emplace(becomes, std::move(session));
  recoveries_.emplace(becomes, recovery);
  loop_->After(kWorkerStartTimeout, [this, becomes] {
    const auto waits = sessions_.find(becomes);
    if (waits == sessions_.end() || waits->second.worker != nullptr) return;
    if (LeaveDevice(becomes)) return;
    SessionEnded late;
    late.session = becomes;
    SetText(late.reason, "no worker started");
    LOG(ERROR) << "session " << becomes << " ends: no worker started that it could go on in";
    EndSession(late);
  });
  return true;
}

bool Daemon::GoOnWithout(WorkerProcess* worker, const SessionEnded& ended) {
  Slot* const slot = workers_.at(worker).slot;
  if (!sessions_.contains(ended.session) || !GoOnElsewhere(slot, ended)) return false;
  if (slot->worker != nullptr) PassOnKept(slot);
  return true;
}

void Daemon::PassOnKept(Slot* slot) {
  if (slot->worker->state != WorkerProcess::State::kReady) return;
  std::vector<uint64_t> waiting;
  for (const auto& [id, recovery] : recoveries_) {
    if (recovery.slot != slot || sessions_.at(id).worker != nullptr) continue;
    // Its folder may be about to become another checkpoint.
    if (recovery.lost && saves_.folders.at(id) == saves_.writing) continue;
    waiting.push_back(id);
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
  session.worker = worker;
  if (recoveries_.at(id).lost) return PassOnLost(id);
  RETURN_IF_ERROR(worker->control().Send(session.open, link.first.get()));
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
  if (recovery->second.lost) ++saves_.used;
  LOG(INFO) << absl::StrFormat(
      "session %u (%s) goes on in worker %d%s, %.0f ms after the death of its worker", id,
      session.identity.application, session.worker->pid(),
      recovery->second.lost ? " from its checkpoint" : "",
      static_cast<double>(MonotonicNow() - recovery->second.died_at) / 1e6);
  EndRecovery(recovery);
}

void Daemon::EndRecovery(std::map<uint64_t, Recovery>::iterator recovery) {
  Slot* slot = recovery->second.slot;
  recoveries_.erase(recovery);
  if (--slot->recovering == 0 && slot->ready()) ServeWaiting(slot);
}

}  // namespace consort::host
