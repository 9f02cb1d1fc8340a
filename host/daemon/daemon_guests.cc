// SPDX-License-Identifier: Apache-2.0
// consortd: applications that leave this host with their machine, and those that come with one.
//
//   checkpoint, leaves ─▶ held, all is said ──the program has taken it──▶ gone: the folder has it
//   AwaitProgram ─▶ held, without a socket ──kPurposeResume──▶ held ─▶ restored
//   (daemon_checkpoints)
//                      └ kAwaitedMax, or consortd's end: forgotten; the folder stays
//
// A program is known by the token that its session's Welcome had, within its tenant.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "gen/wire/opcodes.h"
#include "host/daemon/daemon.h"
#include "host/limits.h"
#include "vmsock/listen.h"

namespace consort::host {
namespace {

// A device that is not ready for a program that has come is looked at again.
constexpr Nanos kRestoreAgain = 200 * kMillisecond;

}  // namespace

void Daemon::LetProgramGo(uint64_t id) {
  const int socket = sessions_.at(id).held->descriptors.socket.get();
  shutdown(socket, SHUT_WR);
  const absl::Status watched =
      loop_->Watch(socket, EPOLLRDHUP, [this, id](uint32_t) { EndConnection(id); });
  LOG_IF(ERROR, !watched.ok()) << "session " << id << " leaves and is not watched: " << watched;
  loop_->After(kLeavePatience, [this, id] {
    const auto it = sessions_.find(id);
    if (it == sessions_.end() || !it->second.held->descriptors.socket.valid()) return;
    // It has not gone, and must not: what it has not taken would be lost.
    if (const MoveRecord* record = moves_.FindBecoming(id); record != nullptr) {
      EndMove(record->session, absl::UnavailableError(
                                   "its program does not take what it was told last; it is waited "
                                   "for here"));
    }
    UnwatchHeld(it->second);
    it->second.held->descriptors.socket.Reset();
    it->second.leaves = false;
    loop_->After(kAwaitedMax, [this, id] { EndAwaited(id); });
  });
}

void Daemon::EndConnection(uint64_t id) {
  Session& session = sessions_.at(id);
  UnwatchHeld(session);
  session.held->descriptors.socket.Reset();
  LOG(INFO) << "session " << id << " has left with its machine: " << session.held->folder;
  MoveRecord* const record = moves_.FindBecoming(id);
  if (record == nullptr) return EraseHeld(id);
  EndCheckpoint(record);
}

void Daemon::AwaitProgram(const AwaitRequest& request, const std::string& who,
                          std::function<void(const absl::Status&)> done) {
  if (request.folder.empty() || request.folder[0] != '/') {
    return done(
        absl::InvalidArgumentError("a checkpoint's folder is named by a path from the root"));
  }
  if (pool_ != nullptr) {
    return done(absl::FailedPreconditionError("this host is in a pool, which places applications"));
  }
  if (const absl::Status may = MayBegin(); !may.ok()) return done(may);
  tasks_.Start<absl::StatusOr<AwaitedSession>>(
      [folder = request.folder] { return AwaitSession(folder); },
      [this, request, who, done = std::move(done)](absl::StatusOr<AwaitedSession> awaited) {
        done(awaited.ok() ? TakeAwaited(*std::move(awaited), request, who) : awaited.status());
        CheckStopped();
      });
}

absl::Status Daemon::TakeAwaited(AwaitedSession awaited, const AwaitRequest& request,
                                 const std::string& who) {
  if (stopping_) return absl::UnavailableError("consortd ends");
  const CheckpointManifest& manifest = awaited.manifest;
  const uint32_t index = request.device.value_or(manifest.device);
  if (index >= devices_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no device ", index, "; there are ", devices_.size()));
  }
  Device* const device = devices_[index].get();
  if (!MayUse(manifest.tenant, *device)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tenant ", PrintableName(manifest.tenant), " may not use device ", index));
  }
  if (device->drained) {
    return absl::UnavailableError(absl::StrCat("device ", index, " is drained"));
  }
  const Window window{manifest.window_base, manifest.window_bytes};
  if (!kWindowLayout.Has(window)) {
    return absl::DataLossError(absl::StrCat(request.folder, ": its addresses are no session's"));
  }
  if (!device->windows.TakeAt(window)) {
    return absl::UnavailableError(
        absl::StrCat("its addresses are another application's on device ", index));
  }
  Session session;
  session.stage = Session::Stage::kHeld;
  session.open = TermsOf(manifest.tenant);
  session.open.session = next_session_++;
  session.open.hello.description_hash = wire::kDescriptionHash;
  session.open.hello.purpose = wire::kPurposeSession;
  session.open.hello.pid = manifest.pid;
  session.open.hello.features = wire::kFeatureResume;
  SetText(session.open.hello.application, manifest.application);
  session.open.window_base = window.base;
  session.open.window_bytes = window.bytes;
  session.open.resume_token = manifest.resume_token;
  session.identity.tenant = manifest.tenant;
  session.identity.vm = manifest.vm;
  session.identity.application = GetText(session.open.hello.application);
  session.identity.pid = manifest.pid;
  session.identity.device = GetText(device->info->snapshot.name);
  session.identity.device_index = index;
  session.window = window;
  session.assembly = 0;
  session.vgpu = manifest.vgpu;
  session.why = absl::StrCat("it came with its machine, and ", who, " said so");
  session.worker = nullptr;
  session.held = std::make_shared<HeldSession>(std::move(awaited.held));
  session.weight = session.open.weight;
  session.started_unix_seconds = static_cast<uint64_t>(time(nullptr));
  session.started = MonotonicNow();
  const uint64_t id = session.open.session;
  Slot* const slot = SlotOf(device, session.identity.tenant);
  sessions_.emplace(id, std::move(session));
  if (slot->worker == nullptr && slot->restart == 0) ScheduleStart(slot, /*was_ready=*/true);
  loop_->After(kAwaitedMax, [this, id] { EndAwaited(id); });
  LOG(INFO) << who << " told session " << id << " to wait for its program, with " << request.folder;
  return absl::OkStatus();
}

void Daemon::EndAwaited(uint64_t id) {
  const auto it = sessions_.find(id);
  // A session that has come lives on under another number, or has a socket.
  if (it == sessions_.end() || it->second.held->descriptors.socket.valid()) return;
  EndHeld(id, "its program has not come");
}

void Daemon::OnResume(Connection connection, const wire::Hello& hello) {
  uint64_t found = 0;
  for (const auto& [id, session] : sessions_) {
    const bool waits = session.stage == Session::Stage::kHeld && !session.leaves &&
                       !session.held->descriptors.socket.valid() &&
                       session.identity.tenant == connection.tenant;
    if (waits && wire::SameToken(session.open.resume_token, hello.resume_token)) found = id;
  }
  if (found == 0) {
    // Programs ask again and again until they are let in: no line of the log each time.
    return greeter_.Answer(std::move(connection),
                           RefusalBytes(wire::kWelcomeNotHere, "the session is not here"));
  }
  Session& session = sessions_.at(found);
  wire::Welcome welcome;
  welcome.window_base = session.window.base;
  welcome.window_bytes = session.window.bytes;
  const absl::Status told = SendWelcome(connection.fd.get(), welcome, -1, {}, /*timeout=*/0);
  if (!told.ok()) {
    LOG(WARNING) << "session " << found << ": its program came, and cannot be told: " << told;
    return;
  }
  session.held->descriptors.socket = std::move(connection.fd);
  session.identity.vm = connection.vm.empty() ? connection.tenant : connection.vm;
  session.identity.front_door = connection.front_door;
  SetText(session.open.channel, connection.front_door);
  WatchHeld(found);
  RestoreResumed(found);
}

void Daemon::RestoreResumed(uint64_t id) {
  const auto it = sessions_.find(id);
  if (stopping_ || it == sessions_.end() || moves_.Find(id) != nullptr) return;
  RestoreRequest request;
  request.session = id;
  const absl::Status begun = RestoreSession(request, "its program");
  if (begun.ok()) return;
  if (absl::IsUnavailable(begun)) {
    loop_->After(kRestoreAgain, [this, id] { RestoreResumed(id); });
    return;
  }
  LOG(ERROR) << "session " << id << " has come and waits: " << begun.message();
  events_.Add(EventLevel::kError,
              absl::StrCat(PrintableName(it->second.identity.application),
                           " has come and waits: ", PrintableName(std::string(begun.message()))));
}

}  // namespace consort::host
