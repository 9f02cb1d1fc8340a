// SPDX-License-Identifier: Apache-2.0
// consortd: applications that go to another device of this host, and devices that are drained.
//
//   MoveSession ─▶ the same window on the new device, a link of the two workers
//                  arriving ──MoveEnded──▶ open          leaving ──SessionEnded──▶ gone
//                     └── it stayed: ends unseen            ▲ was open until then
//
// The workers do the rest: host/session/move_link.h.
#include <time.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "host/control/control_socket.h"
#include "host/daemon/daemon.h"
#include "host/limits.h"
#include "vmsock/deadline.h"

namespace consort::host {

std::string Daemon::Moves() const { return moves_.Json(); }

absl::Status Daemon::MoveSession(uint64_t session, uint32_t device, const std::string& who) {
  RETURN_IF_ERROR(BeginMove(session, device));
  LOG(INFO) << who << " told session " << session << " to go to device " << device;
  return absl::OkStatus();
}

absl::Status Daemon::BeginMove(uint64_t id, uint32_t index) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end() || it->second.stage != Session::Stage::kOpen) {
    return absl::InvalidArgumentError(absl::StrCat("there is no session ", id));
  }
  Session& session = it->second;
  if (index >= devices_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no device ", index, "; there are ", devices_.size()));
  }
  if (index == session.identity.device_index) {
    return absl::InvalidArgumentError(absl::StrCat("it is on device ", index, " already"));
  }
  if (moves_.Find(id) != nullptr) {
    return absl::InvalidArgumentError("it is being moved already");
  }
  if (pool_ != nullptr) {
    return absl::FailedPreconditionError("this host is in a pool, which places applications");
  }
  Device* device = devices_[index].get();
  if (!MayUse(session.identity.tenant, *device)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tenant ", session.identity.tenant, " may not use device ", index));
  }
  Slot* slot = SlotOf(device, session.identity.tenant);
  if (!slot->ready()) {
    return absl::UnavailableError(absl::StrCat(
        "device ", index, " has no worker that is ready",
        slot->tenant.empty() ? "" : absl::StrCat(" for tenant ", slot->tenant, " alone")));
  }
  if (SessionsOf(slot->worker) >= kSessionsPerWorker) {
    return absl::UnavailableError(
        absl::StrCat("device ", index, " has its limit of ", kSessionsPerWorker, " applications"));
  }
  if (!device->windows.TakeAt(session.window)) {
    return absl::UnavailableError(absl::StrCat("its addresses are another application's on device ",
                                               index, "; try again later"));
  }
  ASSIGN_OR_RETURN(auto link, ControlSocket::MakePair());
  OpenSession open = session.open;
  open.session = next_session_++;
  open.arrives = 1;
  open.weight = session.weight;
  open.rates = settings_.Find(session.identity.tenant).rates;
  absl::Status sent = slot->worker->control().Send(open, link.first.get());
  if (!sent.ok()) {
    device->windows.Return(session.window);
    return absl::UnavailableError(absl::StrCat("device ", index, "'s worker does not answer"));
  }
  Session arriving = session;
  arriving.open = open;
  arriving.stage = Session::Stage::kArriving;
  arriving.identity.device = GetText(device->info->snapshot.name);
  arriving.identity.device_index = index;
  arriving.worker = slot->worker;
  arriving.told = {};
  MoveRecord record;
  record.session = id;
  record.becomes = open.session;
  record.application = session.identity.application;
  record.from = session.identity.device_index;
  record.to = index;
  moves_.Add(record);
  MoveOut out;
  out.session = id;
  sent = session.worker->control().Send(out, link.second.get());
  sessions_.emplace(open.session, std::move(arriving));
  if (!sent.ok()) {
    // The other end of the link goes with `link`, and with it the session that arrives.
    EndMove(id, absl::UnavailableError("its worker does not answer"));
  }
  return absl::OkStatus();
}

void Daemon::OnMoveEnded(const MoveEnded& ended) {
  MoveRecord* record = moves_.Find(ended.session);
  if (record == nullptr) return;
  record->stopped = static_cast<Nanos>(ended.stopped_nanos);
  record->bytes = ended.bytes;
  if (ended.moved == 0) {
    return EndMove(ended.session, absl::FailedPreconditionError(GetText(ended.text)));
  }
  const auto leaving = sessions_.find(ended.session);
  if (leaving != sessions_.end()) leaving->second.stage = Session::Stage::kLeaving;
  const auto arrived = sessions_.find(record->becomes);
  if (arrived != sessions_.end()) {
    Session& session = arrived->second;
    session.stage = Session::Stage::kOpen;
    session.started_unix_seconds = static_cast<uint64_t>(time(nullptr));
    session.started = MonotonicNow();
    usage_.Begin(record->becomes, {session.identity.tenant, session.identity.application,
                                   session.identity.device_index});
  }
  EndMove(ended.session, absl::OkStatus());
}

void Daemon::EndMove(uint64_t session, const absl::Status& status) {
  MoveRecord* record = moves_.Find(session);
  if (record == nullptr) return;
  record->state = status.ok() ? MoveRecord::State::kMoved : MoveRecord::State::kStayed;
  record->text = std::string(status.message());
  const std::string name = PrintableName(record->application);
  if (status.ok()) {
    const std::string how =
        absl::StrFormat("%.1f ms, %.3f GiB", static_cast<double>(record->stopped) / 1e6,
                        static_cast<double>(record->bytes) / kGiB);
    LOG(INFO) << "session " << session << " went from device " << record->from << " to device "
              << record->to << " as session " << record->becomes << ": stopped for " << how;
    events_.Add(EventLevel::kInfo,
                absl::StrCat(name, " went from device ", record->from, " to device ", record->to));
  } else {
    LOG(WARNING) << "session " << session << " stays on device " << record->from << ": "
                 << status.message();
    events_.Add(EventLevel::kWarning, absl::StrCat(name, " stays on device ", record->from, ": ",
                                                   PrintableName(record->text)));
  }
  ContinueDrain(record->from);
}

absl::Status Daemon::SetDrained(uint32_t index, bool drained, const std::string& who) {
  if (index >= devices_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no device ", index, "; there are ", devices_.size()));
  }
  Device* device = devices_[index].get();
  device->drained = drained;
  LOG(INFO) << who << (drained ? " drains device " : " lets applications use device ") << index;
  events_.Add(EventLevel::kInfo, absl::StrCat("device ", index, drained ? " is" : " is not",
                                              " drained; set by ", who));
  device->to_leave.clear();
  if (!drained) return absl::OkStatus();
  for (const auto& [id, session] : sessions_) {
    if (session.identity.device_index == index && session.stage == Session::Stage::kOpen) {
      device->to_leave.push_back(id);
    }
  }
  ContinueDrain(index);
  return absl::OkStatus();
}

// One application of a device after the other, so that those that wait their turn go on.
void Daemon::ContinueDrain(uint32_t index) {
  Device* device = devices_[index].get();
  while (!device->to_leave.empty() && !moves_.AnyFrom(index)) {
    const uint64_t id = device->to_leave.front();
    device->to_leave.pop_front();
    const auto it = sessions_.find(id);
    if (it == sessions_.end() || it->second.stage != Session::Stage::kOpen) continue;
    const Device* to = FindPlace(*device, it->second.identity.tenant, &it->second.window);
    absl::Status begun = absl::UnavailableError("no other device can take it now");
    if (to != nullptr) begun = BeginMove(id, to->index);
    if (begun.ok()) continue;
    MoveRecord record;
    record.session = id;
    record.application = it->second.identity.application;
    record.from = index;
    record.to = to != nullptr ? to->index : index;
    record.state = MoveRecord::State::kStayed;
    record.text = std::string(begun.message());
    moves_.Add(std::move(record));
  }
}

// The device for what cannot be on `from`: of the same kind rather than another, then that with the
// fewest applications. `window`: what it must have free; null: any. Null: there is none.
const Daemon::Device* Daemon::FindPlace(const Device& from, const std::string& tenant,
                                        const Window* window) const {
  const auto sessions_of = [this](const Device& device) {
    return std::count_if(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
      return entry.second.identity.device_index == device.index;
    });
  };
  const auto rank = [&](const Device& device) {
    const bool other_kind =
        GetText(device.info->snapshot.name) != GetText(from.info->snapshot.name);
    return std::make_pair(other_kind, sessions_of(device));
  };
  const Device* best = nullptr;
  for (const auto& device : devices_) {
    if (device.get() == &from || device->drained || !device->packed.ready()) continue;
    if (!MayUse(tenant, *device)) continue;
    if (window != nullptr && !device->windows.IsFree(*window)) continue;
    if (best == nullptr || rank(*device) < rank(*best)) best = device.get();
  }
  return best;
}

}  // namespace consort::host
