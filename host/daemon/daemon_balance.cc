// SPDX-License-Identifier: Apache-2.0
// consortd: applications that go to a device of this host that has fallen idle, by themselves
// (--balance).
//
//   each second: use of each application and device ─▶ placement::ChooseMove ─▶ BeginMove
//
// One at a time; who cannot go stays where it is, and is asked less and less often.
#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "base/log.h"
#include "host/daemon/daemon.h"
#include "host/limits.h"
#include "policies/placement/balance.h"
#include "vmsock/deadline.h"

namespace consort::host {

void Daemon::Balance() {
  if (stopping_) return;
  loop_->After(kBalanceEvery, [this] { Balance(); });
  const Nanos now = MonotonicNow();
  const bool measured = std::all_of(devices_.begin(), devices_.end(), [](const auto& device) {
    return device->speed.has_value() && device->speed->arithmetic > 0;
  });
  // What a program calls its devices stays what it is, so one with several keeps them.
  std::map<std::tuple<std::string, std::string, uint32_t>, uint32_t> sessions_of;
  const auto program = [](const SessionIdentity& of) {
    return std::make_tuple(of.front_door, of.vm, of.pid);
  };
  for (const auto& [id, session] : sessions_) ++sessions_of[program(session.identity)];

  std::vector<placement::BalanceApplication> applications;
  for (const auto& [id, session] : sessions_) {
    if (session.stage == Session::Stage::kArriving || session.stage == Session::Stage::kLeaving)
      return;  // one at a time
    if (session.stage != Session::Stage::kOpen) continue;
    placement::BalanceApplication& application = applications.emplace_back();
    application.session = id;
    application.device = session.identity.device_index;
    application.use = session.recent.BusyPercent(now) / 100.0;
    if (application.use >= placement::kBalanceWorks) devices_[application.device]->used = now;
    const Nanos back_off = placement::kBalanceSettled *
                           ((int64_t{1} << std::min(session.times_asked, kBalanceDoublings)) - 1);
    application.settled = now - std::max(session.started, session.asked + back_off);
    if (sessions_of[program(session.identity)] > 1) continue;
    for (const auto& device : devices_) {
      if (MayUse(session.identity.tenant, *device) && device->windows.IsFree(session.window))
        application.allowed |= uint64_t{1} << device->index;
    }
  }
  std::vector<placement::BalanceDevice> devices;
  for (const auto& device : devices_) {
    devices.push_back({.speed = measured ? device->speed->arithmetic : 1,
                       .takes = !device->drained && device->packed.ready(),
                       .idle = now - device->used});
  }
  const auto move = placement::ChooseMove(devices, applications);
  if (!move.has_value()) return;
  Session& session = sessions_.at(move->session);
  session.asked = now;
  ++session.times_asked;
  const absl::Status begun = MoveSession(move->session, move->to, "--balance");
  // What it does there is known some time after it has come.
  if (begun.ok()) devices_[move->to]->used = now;
  LOG_IF(INFO, !begun.ok()) << "--balance: session " << move->session << " cannot go to device "
                            << move->to << ": " << begun;
}

}  // namespace consort::host
