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
namespace {

std::string PlaceText(const std::optional<uint32_t>& device, const std::string& folder) {
  return device.has_value() ? absl::StrCat("device ", *device)
                            : absl::StrCat("checkpoint ", PrintableName(folder));
}

}  // namespace

std::string Daemon::Moves() const { return moves_.Json(); }

absl::Status Daemon::MoveSession(uint64_t session, uint32_t device, const std::string& who) {
  RETURN_IF_ERROR(BeginMove(session, device));
  LOG(INFO) << who << " told session " << session << " to go to device " << device;
  return absl::OkStatus();
}

absl::StatusOr<Daemon::Session*> Daemon::FindToMove(uint64_t id) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end() || it->second.stage != Session::Stage::kOpen) {
    return absl::InvalidArgumentError(absl::StrCat("there is no session ", id));
  }
  if (moves_.Find(id) != nullptr) return absl::InvalidArgumentError("it is being moved already");
  if (saves_.session == id) {
    return absl::UnavailableError("a checkpoint of it is being written; try again");
  }
  if (pool_ != nullptr) {
    return absl::FailedPreconditionError("this host is in a pool, which places applications");
  }
  for (const PeerPair& pair : peers_) {
    if (pair.session != id && pair.peer != id) continue;
    return absl::FailedPreconditionError("it uses memory of two devices together (peer access)");
  }
  return &it->second;
}

// The session's successor on another device, whose worker has got one end of `link`.
absl::StatusOr<uint64_t> Daemon::BeginArrival(const Session& session, uint32_t index,
                                              const UniqueFd& link) {
  if (index >= devices_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no device ", index, "; there are ", devices_.size()));
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
  // One that is held has kept its addresses on the device that it was on.
  const bool own = session.identity.device_index != index;
  if (own && !device->windows.TakeAt(session.window)) {
    return absl::UnavailableError(absl::StrCat("its addresses are another application's on device ",
                                               index, "; try again later"));
  }
  OpenSession open = session.open;
  open.session = next_session_++;
  open.origin = OpenSession::kMoves;
  open.weight = session.weight;
  open.rates = settings_.Find(session.identity.tenant).rates;
  if (!slot->worker->control().Send(open, link.get()).ok()) {
    if (own) device->windows.Return(session.window);
    return absl::UnavailableError(absl::StrCat("device ", index, "'s worker does not answer"));
  }
  Session arriving = session;
  arriving.open = open;
  arriving.stage = Session::Stage::kArriving;
  arriving.identity.device = GetText(device->info->snapshot.name);
  arriving.identity.device_index = index;
  arriving.owns_window = own;
  arriving.worker = slot->worker;
  arriving.held = nullptr;
  arriving.leaves = false;
  arriving.asked = 0;
  arriving.times_asked = 0;
  arriving.told = {};
  arriving.bound = true;
  arriving.bound_at = MonotonicNow();
  sessions_.emplace(open.session, std::move(arriving));
  return open.session;
}

// One that was arriving is where it is from now on.
void Daemon::EndArrival(uint64_t id) {
  const auto arrived = sessions_.find(id);
  if (arrived == sessions_.end()) return;
  Session& session = arrived->second;
  session.stage = Session::Stage::kOpen;
  session.started_unix_seconds = static_cast<uint64_t>(time(nullptr));
  session.started = session.bound_at = MonotonicNow();
  usage_.Begin(
      id, {session.identity.tenant, session.identity.application, session.identity.device_index});
}

absl::Status Daemon::BeginMove(uint64_t id, uint32_t index) {
  ASSIGN_OR_RETURN(const Session* session, FindToMove(id));
  if (index == session->identity.device_index) {
    return absl::InvalidArgumentError(absl::StrCat("it is on device ", index, " already"));
  }
  ASSIGN_OR_RETURN(auto link, ControlSocket::MakePair());
  ASSIGN_OR_RETURN(const uint64_t arriving, BeginArrival(*session, index, link.first));
  MoveRecord record;
  record.session = id;
  record.becomes = arriving;
  record.application = session->identity.application;
  record.from = session->identity.device_index;
  record.to = index;
  moves_.Add(record);
  SendMoveOut(*session, /*leaves=*/false, link.second);
  return absl::OkStatus();
}

void Daemon::SendMoveOut(const Session& session, bool leaves, const UniqueFd& link) {
  MoveOut out;
  out.leaves = leaves ? 1 : 0;
  out.session = session.open.session;
  if (session.worker->control().Send(out, link.get()).ok()) return;
  // The other end of the link goes with it, and with that what was to arrive.
  EndMove(out.session, absl::UnavailableError("its worker does not answer"));
}

void Daemon::OnMoveEnded(const MoveEnded& ended) {
  MoveRecord* record = moves_.Find(ended.session);
  if (record == nullptr) return;
  record->stopped = static_cast<Nanos>(ended.stopped_nanos);
  record->bytes = ended.bytes;
  record->direct_bytes = ended.direct_bytes;
  if (ended.moved == 0) {
    return EndMove(ended.session, absl::FailedPreconditionError(GetText(ended.text)));
  }
  const auto leaving = sessions_.find(ended.session);
  if (leaving != sessions_.end()) leaving->second.stage = Session::Stage::kLeaving;
  if (!record->to.has_value()) {
    // The one that is held keeps the addresses.
    const auto held = sessions_.find(record->becomes);
    if (leaving != sessions_.end() && held != sessions_.end()) {
      std::swap(leaving->second.owns_window, held->second.owns_window);
    }
    return;  // until it is gone: EndCheckpoint
  }
  EndArrival(record->becomes);
  EndMove(ended.session, absl::OkStatus());
  const auto ms = [](uint64_t nanos) { return static_cast<double>(nanos) / 1e6; };
  const MoveTimes& times = ended.times;
  LOG(INFO) << "session " << ended.session
            << absl::StrFormat(
                   ", in ms: %.1f until nothing went on, %.1f telling its state, %.1f memory, %.1f "
                   "objects, %.1f contents; %.3f GiB from device to device",
                   ms(times.quiet_nanos), ms(times.state_nanos), ms(times.memory_nanos),
                   ms(times.objects_nanos), ms(times.contents_nanos),
                   static_cast<double>(ended.direct_bytes) / kGiB);
}

bool Daemon::IsWritten(const MoveRecord& record) const {
  if (record.to.has_value()) return false;
  const auto held = sessions_.find(record.becomes);
  return held != sessions_.end() && held->second.stage == Session::Stage::kArriving;
}

void Daemon::EndMove(uint64_t session, const absl::Status& status) {
  MoveRecord* record = moves_.Find(session);
  if (record == nullptr) return;
  if (!status.ok() && IsWritten(*record)) {
    record->stays = status;
    return;  // until OnCheckpointed, so that nothing of it is in the folder when it is told
  }
  record->state = status.ok() ? MoveRecord::State::kMoved : MoveRecord::State::kStayed;
  record->text = std::string(status.message());
  const std::string name = PrintableName(record->application);
  const std::string from = PlaceText(record->from, record->folder);
  if (status.ok()) {
    const std::string to = PlaceText(record->to, record->folder);
    const std::string how =
        absl::StrFormat("%.1f ms, %.3f GiB", static_cast<double>(record->stopped) / 1e6,
                        static_cast<double>(record->bytes) / kGiB);
    LOG(INFO) << "session " << session << " went from " << from << " to " << to << " as session "
              << record->becomes << ": stopped for " << how;
    events_.Add(EventLevel::kInfo, absl::StrCat(name, " went from ", from, " to ", to));
  } else {
    LOG(WARNING) << "session " << session << " stays on " << from << ": " << status.message();
    events_.Add(EventLevel::kWarning,
                absl::StrCat(name, " stays on ", from, ": ", PrintableName(record->text)));
  }
  if (!record->binds.empty() && !absl::IsCancelled(status)) {
    const auto bound = sessions_.find(status.ok() ? record->becomes : session);
    const std::string why =
        status.ok() ? record->binds : absl::StrCat("could not go: ", status.message());
    if (bound != sessions_.end()) NoteBound(&bound->second, why);
  }
  if (!record->from.has_value()) return;
  ContinueDrain(*record->from);
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
    if (saves_.session == id) return;  // until OnSaved
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
