// SPDX-License-Identifier: Apache-2.0
// consortd: applications whose device is chosen when they first use one (--bind first-launch).
//
//   BindWanted ─▶ Binder: which device ─┬─ another ─▶ BeginMove ─▶ EndMove ─▶ bound there, or here
//                                       └─ this one ─▶ Bound
//
// Until then a session is on its device by a guess: it counts for nobody's choice, as it has
// nothing there. The workers' side: host/session/binding.cc.
#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "host/control/control_socket.h"
#include "host/daemon/binder.h"
#include "host/daemon/daemon.h"
#include "host/limits.h"
#include "vmsock/deadline.h"

namespace consort::host {
namespace {

std::string ModelOf(const Ready& info) {
  return gpool::ModelKey(PrintableName(GetText(info.snapshot.name)), info.snapshot.total_bytes);
}

}  // namespace

bool Daemon::OnBindPacket(ControlPacket& packet) {
  BindWanted wanted;
  if (!packet.As(&wanted)) return false;
  usage_.Update(wanted.usage);
  const auto it = sessions_.find(wanted.usage.session);
  if (it == sessions_.end() || it->second.stage != Session::Stage::kOpen) return true;
  Session& session = it->second;
  session.bound_bytes = wanted.usage.memory_bytes;
  if (wanted.stays[0] != '\0') {
    NoteBound(&session, GetText(wanted.stays));
    return true;
  }
  // Who moves it at present has chosen.
  session.bound = moves_.Find(wanted.usage.session) != nullptr;
  if (session.bound) return true;
  Binder::Choice choice;
  choice.device = session.identity.device_index;
  choice.why = "this consortd binds applications when they connect";
  if (binder_ != nullptr) choice = ChooseDevice(session, wanted.usage.memory_bytes);
  if (choice.device != session.identity.device_index) {
    const absl::Status begun = BeginMove(wanted.usage.session, choice.device);
    if (begun.ok()) {
      MoveRecord* const record = moves_.Find(wanted.usage.session);
      LOG(INFO) << "session " << wanted.usage.session << " goes to device " << choice.device
                << " before it first uses one: " << choice.why;
      // It can have failed already.
      if (record != nullptr) record->binds = choice.why;
      return true;
    }
    LOG(WARNING) << "session " << wanted.usage.session << " is not bound to device "
                 << choice.device << " (" << choice.why << "): " << begun.message();
    choice.why = absl::StrCat("device ", choice.device, " was better, but: ", begun.message());
  }
  NoteBound(&session, choice.why);
  Bound bound;
  bound.session = wanted.usage.session;
  const absl::Status told = session.worker->control().Send(bound);
  LOG_IF(ERROR, !told.ok()) << "telling worker " << session.worker->pid() << ": " << told;
  return true;
}

void Daemon::NoteBound(Session* session, const std::string& why) {
  session->bound = true;
  session->bound_at = MonotonicNow();
  const uint32_t index = session->identity.device_index;
  absl::StrAppend(&session->why, "; bound to device ", index,
                  " of the host when it first used it: ", why);
  LOG(INFO) << "session " << session->open.session << " is bound to device " << index << ": "
            << why;
  events_.Add(EventLevel::kInfo, absl::StrCat(PrintableName(session->identity.application),
                                              " is bound to device ", index));
}

Binder::Choice Daemon::ChooseDevice(const Session& wanted, Bytes bytes) {
  const Nanos now = MonotonicNow();
  std::vector<Binder::Device> devices;
  std::vector<Bytes> of_tenant(devices_.size());
  for (const auto& device : devices_) {
    Binder::Device& out = devices.emplace_back();
    out.model = ModelOf(*device->info);
    out.memory_total = device->info->snapshot.total_bytes;
    Bytes limit = device->memory.limit;  // 0: its worker has not told yet
    if (limit == 0) limit = options_.memory.device_bytes;
    if (limit != 0) out.memory_used = out.memory_total - std::min(out.memory_total, limit);
  }
  std::vector<Binder::Application> bound;
  bool has_others = false;
  for (const auto& [id, session] : sessions_) {
    const SessionIdentity& identity = session.identity;
    if (id == wanted.open.session || session.stage == Session::Stage::kLeaving ||
        session.stage == Session::Stage::kHeld) {
      continue;
    }
    has_others |= identity.front_door == wanted.identity.front_door &&
                  identity.vm == wanted.identity.vm && identity.pid == wanted.identity.pid;
    // One that moves counts where it goes.
    if (!session.bound || moves_.Find(id) != nullptr) continue;
    Bytes memory = usage_.Latest(id).memory_bytes;
    if (now - session.bound_at < kBoundFor) memory = std::max(memory, session.bound_bytes);
    Binder::Device& device = devices[identity.device_index];
    device.memory_used += memory;
    device.utilisation =
        std::min(placement::kWhole,
                 device.utilisation + session.recent.BusyPercent(now) * (placement::kWhole / 100));
    if (identity.tenant == wanted.identity.tenant) of_tenant[identity.device_index] += memory;
    bound.push_back({id, identity.application, identity.device_index});
  }
  const Tenant tenant = settings_.Find(wanted.identity.tenant);
  Binder::Wanted question;
  question.application = {wanted.open.session, wanted.identity.application,
                          wanted.identity.device_index};
  question.memory = bytes;
  question.policy = tenant.placement;
  const std::string& kind = devices[wanted.identity.device_index].model;
  for (const auto& device : devices_) {
    // What a program calls its devices stays what it is, so one with several keeps them; and all
    // that it was told of this one stays true on another of its kind only.
    if (has_others || device->index == wanted.identity.device_index ||
        devices[device->index].model != kind || device->drained ||
        !MayUse(wanted.identity.tenant, *device) || !device->windows.IsFree(wanted.window)) {
      continue;
    }
    const Slot* slot = SlotOf(device.get(), wanted.identity.tenant);
    if (!slot->ready() || SessionsOf(slot->worker) >= kSessionsPerWorker) continue;
    if (tenant.memory_hard != 0 && of_tenant[device->index] + bytes > tenant.memory_hard) continue;
    question.others.push_back(device->index);
  }
  return binder_->Choose(devices, bound, question, now);
}

void Daemon::RecordBound(const Session& session, const SessionEnded& ended) {
  if (binder_ == nullptr || ended.kernel_launches == 0) return;
  Binder::Measured measured;
  measured.runtime = static_cast<Nanos>(ended.lasted_nanos);
  measured.kernels = static_cast<Nanos>(ended.kernel_nanos);
  measured.copied = ended.bytes_to_device + ended.bytes_to_host;
  binder_->Record(session.identity.application,
                  ModelOf(*devices_[session.identity.device_index]->info), measured,
                  MonotonicNow());
}

}  // namespace consort::host
