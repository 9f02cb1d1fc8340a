// SPDX-License-Identifier: Apache-2.0
// consortd: checkpoints that sessions get by themselves, of which they are computed again when
// their worker and its device memory are gone.
//
//   SaveWanted ─▶ waits for its turn ──MoveOut, stays──▶ a thread: SaveSession ──▶ its folder
//   OnGone ─▶ GoOnElsewhere (daemon_keeper) ─▶ PassOn ─▶ a thread: RedoSession ──▶ WentOn
//                  └─ no worker starts: LeaveDevice ─┘
//
// One at a time, and such that no more than one part in kSavesShare of the time goes by with it. A
// session has a folder of its own below --checkpoint-folder, which goes with it; what an earlier
// consortd has left there goes when this one begins. See host/session/redo.cc for the workers'
// side.
#include <time.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "host/checkpoint/folder.h"
#include "host/control/control_socket.h"
#include "host/daemon/daemon.h"
#include "host/limits.h"

namespace consort::host {
namespace {

constexpr char kPrefix[] = "session-";

void RemoveFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  LOG_IF(WARNING, error) << "removing the checkpoint " << folder << ": " << error.message();
}

}  // namespace

absl::Status Daemon::OpenSaves() {
  if (options_.save_after_seconds == 0) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(options_.save_folder, error);
  auto lock = LockFolder(options_.save_folder);
  if (!lock.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--checkpoint-folder: ", absl::IsFailedPrecondition(lock.status())
                                                  ? "another consortd uses " + options_.save_folder
                                                  : std::string(lock.status().message())));
  }
  saves_.lock = *std::move(lock);
  for (const auto& entry : std::filesystem::directory_iterator(options_.save_folder, error)) {
    if (absl::StartsWith(entry.path().filename().string(), kPrefix)) {
      RemoveFolder(entry.path().string());
    }
  }
  return absl::OkStatus();
}

void Daemon::OnSaveWanted(uint64_t id) {
  if (!saves_.lock.valid() || !sessions_.contains(id)) return;
  if (std::find(saves_.wanted.begin(), saves_.wanted.end(), id) == saves_.wanted.end()) {
    saves_.wanted.push_back(id);
  }
  TendSaves();
}

void Daemon::TendSaves() {
  if (stopping_ || saves_.session != 0 || saves_.waits) return;
  const Nanos now = MonotonicNow();
  if (!saves_.wanted.empty() && now < saves_.next) {
    saves_.waits = true;
    loop_->After(saves_.next - now, [this] {
      saves_.waits = false;
      TendSaves();
    });
    return;
  }
  while (!saves_.wanted.empty() && saves_.session == 0) {
    const uint64_t id = saves_.wanted.front();
    saves_.wanted.pop_front();
    if (!sessions_.contains(id)) continue;
    const absl::Status begun = BeginSave(id);
    if (begun.ok()) continue;
    VLOG(1) << "session " << id << " is not saved now: " << begun;
    loop_->After(kSaveAgain, [this, id] { OnSaveWanted(id); });
  }
}

absl::Status Daemon::BeginSave(uint64_t id) {
  ASSIGN_OR_RETURN(const Session* session, FindToMove(id));
  RETURN_IF_ERROR(MayBegin());
  ASSIGN_OR_RETURN(auto ends, ControlSocket::MakePair());
  std::string& folder = saves_.folders[id];
  if (folder.empty()) {
    folder = (std::filesystem::path(options_.save_folder) / absl::StrCat(kPrefix, id)).string();
  }
  saves_.session = id;
  saves_.writing = folder;
  tasks_.Start<absl::StatusOr<SavedSession>>(
      [link = std::shared_ptr<MoveLink>(TaskLink(std::move(ends.first))), folder,
       about = AboutCheckpoint(*session, "consortd")] {
        return SaveSession(link.get(), folder, about);
      },
      [this, id](const absl::StatusOr<SavedSession>& saved) { OnSaved(id, saved); });
  host::MoveOut out;
  out.session = id;
  out.stays = 1;
  // If it does not come, nor does anything over the link.
  return session->worker->control().Send(out, ends.second.get());
}

void Daemon::OnSaved(uint64_t id, const absl::StatusOr<SavedSession>& saved) {
  saves_.session = 0;
  saves_.writing.clear();
  const Nanos took = saved.ok() ? saved->took : kSaveAgain;
  saves_.next = MonotonicNow() + took * (kSavesShare - 1);
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) {
    DropSave(id);
  } else if (saved.ok()) {
    ++saves_.written;
    saves_.told.erase(id);
    LOG(INFO) << absl::StrFormat(
        "session %u (%s): checkpoint of %.3f GiB in %.0f ms", id, it->second.identity.application,
        static_cast<double>(saved->manifest.BytesOf(CheckpointChunk::Kind::kContents)) / kGiB,
        static_cast<double>(took) / 1e6);
  } else {
    ++saves_.failed;
    const std::string why(saved.status().message());
    if (std::exchange(saves_.told[id], why) != why) {
      LOG(WARNING) << "session " << id << " (" << it->second.identity.application
                   << ") gets no checkpoint: " << why;
      events_.Add(EventLevel::kWarning, absl::StrCat(PrintableName(it->second.identity.application),
                                                     " gets no checkpoint: ", PrintableName(why)));
    }
  }
  TendSaves();
  // Its worker may have died meanwhile.
  for (const auto& device : devices_) {
    if (device->packed.recovering != 0 && device->packed.worker != nullptr) {
      PassOnKept(&device->packed);
    }
    for (auto& [tenant, slot] : device->own) {
      if (slot.recovering != 0 && slot.worker != nullptr) PassOnKept(&slot);
    }
  }
  if (it != sessions_.end()) ContinueDrain(it->second.identity.device_index);
  CheckStopped();
}

void Daemon::DropSave(uint64_t id) {
  saves_.told.erase(id);
  // The thread that writes there must end first: OnSaved.
  if (saves_.session == id) return;
  const auto node = saves_.folders.extract(id);
  if (node.empty()) return;
  tasks_.Start<bool>(
      [folder = node.mapped()] {
        RemoveFolder(folder);
        return true;
      },
      [this](bool) { CheckStopped(); });
}

absl::Status Daemon::CheckComputesAgain(uint64_t id) const {
  const auto folder = saves_.folders.find(id);
  if (folder == saves_.folders.end()) {
    return absl::FailedPreconditionError("there is no checkpoint of it yet");
  }
  return keeper_.CheckRedo(id);
}

void Daemon::LeaveSlot(Slot* slot) {
  std::vector<uint64_t> waiting;
  for (const auto& [id, recovery] : recoveries_) {
    if (recovery.slot == slot && sessions_.at(id).worker == nullptr) waiting.push_back(id);
  }
  for (const uint64_t id : waiting) LeaveDevice(id);
}

bool Daemon::LeaveDevice(uint64_t id) {
  Session& session = sessions_.at(id);
  Recovery& recovery = recoveries_.at(id);
  // Memory that outlives its worker is that device's.
  if (!recovery.lost) return false;
  Device* const from = devices_[session.identity.device_index].get();
  const Device* const place = FindPlace(*from, session.identity.tenant, &session.window);
  if (place == nullptr) return false;
  Device* const to = devices_[place->index].get();
  Slot* const slot = SlotOf(to, session.identity.tenant);
  if (!slot->ready() || !to->windows.TakeAt(session.window)) return false;
  from->windows.Return(session.window);
  LOG(WARNING) << "session " << id << " (" << session.identity.application << ") goes to device "
               << to->index << ": no worker of device " << from->index << " starts";
  session.identity.device = GetText(to->info->snapshot.name);
  session.identity.device_index = to->index;
  Slot* const left = std::exchange(recovery.slot, slot);
  ++slot->recovering;
  if (--left->recovering == 0 && left->ready()) ServeWaiting(left);
  PassOnKept(slot);
  return true;
}

absl::Status Daemon::PassOnLost(uint64_t id) {
  ASSIGN_OR_RETURN(auto ends, ControlSocket::MakePair());
  Session& session = sessions_.at(id);
  ASSIGN_OR_RETURN(LostSession lost, keeper_.Lend(id));
  RETURN_IF_ERROR(session.worker->control().Send(session.open, ends.first.get()));
  tasks_.Start<absl::StatusOr<Bytes>>(
      [link = std::shared_ptr<MoveLink>(TaskLink(std::move(ends.second))),
       lost = std::make_shared<LostSession>(std::move(lost)),
       folder = saves_.folders.at(id)] { return RedoSession(link.get(), *lost, folder); },
      [this, id](const absl::StatusOr<Bytes>& restored) {
        // The worker says how it goes on, or that the session has ended.
        LOG_IF(WARNING, !restored.ok())
            << "session " << id << " is not computed again: " << restored.status().message();
        CheckStopped();
      });
  return absl::OkStatus();
}

}  // namespace consort::host
