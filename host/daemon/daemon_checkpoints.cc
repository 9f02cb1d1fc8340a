// SPDX-License-Identifier: Apache-2.0
// consortd: applications that are held in a checkpoint.
//
//   CheckpointSession ─▶ open ──MoveOut, link──▶ a thread: HoldSession ──▶ held
//   RestoreSession    ─▶ held ──▶ a thread: RestoreSession ──link──▶ arriving ──▶ open
//                          ▲ it fails: held, as before
//
// While it is held a session has no worker, no device memory and no line in the account; its
// addresses stay its own on the device that it was on. See host/checkpoint/holding.h.
#include <sys/epoll.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "gen/wire/opcodes.h"
#include "host/control/control_socket.h"
#include "host/daemon/daemon.h"
#include "host/limits.h"

namespace consort::host {

absl::Status Daemon::MayBegin() const {
  if (tasks_.running() < kCheckpointsAtOnce) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      kCheckpointsAtOnce, " checkpoints are being written or read; try again when one is done"));
}

bool Daemon::AnyHeldFor(const Slot& slot) const {
  return std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    const Session& session = entry.second;
    return session.worker == nullptr && session.identity.tenant == slot.tenant &&
           session.identity.device_index == slot.device->index;
  });
}

void Daemon::EraseHeld(uint64_t id) {
  const auto it = sessions_.find(id);
  const Session& session = it->second;
  Device* const device = devices_[session.identity.device_index].get();
  Slot* const slot = SlotOf(device, session.identity.tenant);
  if (session.owns_window) device->windows.Return(session.window);
  sessions_.erase(it);
  EndIfUnused(slot);
}

std::unique_ptr<MoveLink> Daemon::TaskLink(UniqueFd socket) {
  return std::make_unique<MoveLink>(
      std::move(socket), [this] { return cancel_tasks_.load(std::memory_order_relaxed); });
}

CheckpointManifest Daemon::AboutCheckpoint(const Session& session, const std::string& who) {
  CheckpointManifest about;
  about.created_unix_seconds = static_cast<uint64_t>(time(nullptr));
  about.who = who;
  about.version = CONSORT_VERSION;
  about.description = wire::kDescriptionHash;
  about.state_version = kSessionStateVersion;
  about.tenant = session.identity.tenant;
  about.vm = session.identity.vm;
  about.application = session.identity.application;
  about.pid = session.identity.pid;
  about.device = session.identity.device_index;
  about.device_model = session.identity.device;
  about.window_base = session.window.base;
  about.window_bytes = session.window.bytes;
  about.vgpu = session.vgpu;
  return about;
}

absl::Status Daemon::CheckpointSession(const CheckpointRequest& request, const std::string& who) {
  const uint64_t id = request.session;
  const std::string& folder = request.folder;
  if (folder.empty() || folder[0] != '/') {
    return absl::InvalidArgumentError("a checkpoint's folder is named by a path from the root");
  }
  ASSIGN_OR_RETURN(const Session* session, FindToMove(id));
  RETURN_IF_ERROR(MayBegin());
  ASSIGN_OR_RETURN(auto ends, ControlSocket::MakePair());
  Session held = *session;
  held.stage = Session::Stage::kArriving;
  held.open.session = next_session_++;
  held.owns_window = false;
  held.worker = nullptr;
  held.told = {};
  held.leaves = request.leaves;
  CheckpointManifest about = AboutCheckpoint(*session, who);
  if (request.leaves) about.resume_token = session->open.resume_token;
  MoveRecord record;
  record.session = id;
  record.becomes = held.open.session;
  record.application = session->identity.application;
  record.from = session->identity.device_index;
  record.folder = folder;
  moves_.Add(record);
  LOG(INFO) << who << " told session " << id << " to go into the checkpoint " << folder;
  tasks_.Start<absl::StatusOr<HeldSession>>(
      [link = std::shared_ptr<MoveLink>(TaskLink(std::move(ends.first))), folder, about] {
        return HoldSession(link.get(), folder, about);
      },
      [this, becomes = held.open.session](absl::StatusOr<HeldSession> result) {
        OnCheckpointed(becomes, std::move(result));
      });
  sessions_.emplace(held.open.session, std::move(held));
  SendMoveOut(*session, request.leaves, ends.second);
  return absl::OkStatus();
}

void Daemon::OnCheckpointed(uint64_t id, absl::StatusOr<HeldSession> result) {
  const auto it = sessions_.find(id);
  CHECK(it != sessions_.end());
  Session& session = it->second;
  MoveRecord* const record = moves_.FindBecoming(id);
  if (!result.ok()) {
    EraseHeld(id);
    // Its worker has said that it stays, or hears of this and will, or has ended.
    if (record != nullptr && record->stays.has_value()) {
      EndMove(record->session, *record->stays);
    } else if (record != nullptr && record->left) {
      EndMove(record->session, result.status());
    }
    return CheckStopped();
  }
  session.held = std::make_shared<HeldSession>(*std::move(result));
  session.stage = Session::Stage::kHeld;
  // Its worker may have died before it could say that the session has left.
  if (!session.owns_window) {
    session.owns_window = devices_[session.identity.device_index]->windows.TakeAt(session.window);
  }
  if (session.leaves) {
    LetProgramGo(id);
  } else {
    WatchHeld(id);
  }
  if (record != nullptr && record->stays.has_value()) {
    EndMove(record->session, *record->stays);
  } else if (record != nullptr) {
    EndCheckpoint(record);
  }
  CheckStopped();
}

// Once the session is held here and gone where it was, so that it can go back there.
void Daemon::EndCheckpoint(MoveRecord* record) {
  if (!record->left) return;
  const auto held = sessions_.find(record->becomes);
  if (held == sessions_.end()) {
    return EndMove(record->session, absl::CancelledError("the application has ended"));
  }
  const Session& session = held->second;
  if (session.stage != Session::Stage::kHeld) return;
  if (!session.leaves) return EndMove(record->session, absl::OkStatus());
  if (session.held->descriptors.socket.valid()) return;  // until EndConnection
  const uint64_t id = record->becomes;
  EndMove(record->session, absl::OkStatus());
  EraseHeld(id);
}

absl::Status Daemon::RestoreSession(const RestoreRequest& request, const std::string& who) {
  if (!request.folder.empty() && request.folder[0] != '/') {
    return absl::InvalidArgumentError("a checkpoint's folder is named by a path from the root");
  }
  const auto it = sessions_.find(request.session);
  if (it == sessions_.end() || it->second.stage != Session::Stage::kHeld) {
    return absl::InvalidArgumentError(
        absl::StrCat("no session ", request.session, " is held in a checkpoint"));
  }
  const Session& session = it->second;
  if (moves_.Find(request.session) != nullptr) {
    return absl::InvalidArgumentError("it is being restored already");
  }
  if (!session.held->descriptors.socket.valid()) {
    return absl::InvalidArgumentError("its program has not come, and is waited for");
  }
  if (moves_.FindBecoming(request.session) != nullptr) {
    return absl::UnavailableError("it is still being taken off its device; try again later");
  }
  RETURN_IF_ERROR(MayBegin());
  ASSIGN_OR_RETURN(auto ends, ControlSocket::MakePair());
  MoveRecord record;
  record.session = request.session;
  record.application = session.identity.application;
  record.to = request.device.value_or(session.identity.device_index);
  record.folder = request.folder.empty() ? session.held->folder : request.folder;
  ASSIGN_OR_RETURN(record.becomes, BeginArrival(session, *record.to, ends.first));
  moves_.Add(record);
  LOG(INFO) << who << " told session " << request.session << " to go from the checkpoint "
            << record.folder << " to device " << *record.to;
  UnwatchHeld(session);
  tasks_.Start<absl::StatusOr<Bytes>>(
      [link = std::shared_ptr<MoveLink>(TaskLink(std::move(ends.second))),
       held = std::shared_ptr<const HeldSession>(session.held),
       folder = record.folder] { return host::RestoreSession(link.get(), *held, folder); },
      [this, id = request.session, begun = MonotonicNow()](absl::StatusOr<Bytes> result) {
        OnRestored(id, MonotonicNow() - begun, result);
      });
  return absl::OkStatus();
}

void Daemon::OnRestored(uint64_t id, Nanos took, const absl::StatusOr<Bytes>& restored) {
  MoveRecord* const record = moves_.Find(id);
  const auto it = sessions_.find(id);
  CHECK(record != nullptr && it != sessions_.end());
  Session& session = it->second;
  const auto arriving = sessions_.find(record->becomes);
  if (!restored.ok()) {
    WatchHeld(id);
    record->text = std::string(restored.status().message());
    // Its addresses are in use until it has gone from where it could not stay.
    if (arriving == sessions_.end()) EndMove(id, restored.status());
    return CheckStopped();
  }
  record->stopped = took;
  record->bytes = *restored;
  if (arriving != sessions_.end() && !arriving->second.owns_window) {
    std::swap(arriving->second.owns_window, session.owns_window);
  }
  EndArrival(record->becomes);
  EraseHeld(id);
  EndMove(id, absl::OkStatus());
  CheckStopped();
}

void Daemon::WatchHeld(uint64_t id) {
  const int socket = sessions_.at(id).held->descriptors.socket.get();
  const absl::Status watched = loop_->Watch(
      socket, EPOLLRDHUP, [this, id](uint32_t) { EndHeld(id, "its program has ended"); });
  LOG_IF(ERROR, !watched.ok()) << "session " << id << " is held and not watched: " << watched;
}

void Daemon::UnwatchHeld(const Session& session) {
  const UniqueFd& socket = session.held->descriptors.socket;
  if (socket.valid()) loop_->Unwatch(socket.get());
}

void Daemon::EndHeld(uint64_t id, const std::string& why) {
  const auto it = sessions_.find(id);
  const Session& session = it->second;
  if (moves_.Find(id) != nullptr) EndMove(id, absl::CancelledError("the application has ended"));
  LOG(INFO) << "session " << id << ", held in " << session.held->folder << ", ended: " << why;
  events_.Add(EventLevel::kInfo,
              absl::StrCat(PrintableName(session.identity.application), ", held in checkpoint ",
                           PrintableName(session.held->folder), ", ended: ", why));
  UnwatchHeld(session);
  EraseHeld(id);
}

}  // namespace consort::host
