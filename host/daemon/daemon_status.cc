// SPDX-License-Identifier: Apache-2.0
// consortd: how things are now and were of late, for operators.
#include <map>
#include <utility>

#include "host/daemon/daemon.h"
#include "host/limits.h"

namespace consort::host {

DaemonStatus Daemon::Status() const {
  DaemonStatus status;
  status.version = CONSORT_VERSION;
  status.node = node_;
  status.started_unix_seconds = started_unix_seconds_;
  for (const auto& device : devices_) {
    DeviceStatus& out = status.devices.emplace_back();
    out.index = device->index;
    const WorkerProcess* worker = device->packed.worker;
    const bool ready = device->packed.ready();
    out.state = !ready ? "starting" : device->drained ? "drained" : "ready";
    out.info = device->info;
    out.memory = device->memory;
    out.worker_pid = worker != nullptr ? worker->pid() : 0;
    const WorkerProcess* standby = device->packed.standby;
    const bool stands_by = standby != nullptr && standby->state == WorkerProcess::State::kReady;
    out.standby_pid = stands_by ? standby->pid() : 0;
    out.worker_starts = device->worker_starts;
    out.workers_retired = device->workers_retired;
    out.windows_used = kWindowSlots - device->windows.free_slots();
  }
  for (const auto& [id, session] : sessions_) {
    const bool held = session.stage == Session::Stage::kHeld;
    if (session.stage != Session::Stage::kOpen && !held) continue;
    SessionStatus& out = status.sessions.emplace_back();
    out.id = id;
    out.tenant = session.identity.tenant;
    out.vm = session.identity.vm;
    out.application = session.identity.application;
    out.pid = session.identity.pid;
    out.front_door = session.identity.front_door;
    out.device = session.identity.device_index;
    if (held) {
      out.held_in = session.held->folder;
    } else {
      out.worker_pid = session.worker->pid();
      out.outlives_worker = keeper_.CheckGoesOn(id).ok();
      ++status.devices[out.device].sessions;
    }
    out.assembly = session.assembly;
    out.vgpu = session.vgpu;
    out.why = session.why;
    out.bound = session.bound;
    out.weight = session.weight;
    out.started_unix_seconds = session.started_unix_seconds;
    out.usage = usage_.Latest(id);
  }
  if (vm_doors_ != nullptr) {
    for (const auto& [name, vm] : vm_doors_->vms()) {
      VmStatus& out = status.vms.emplace_back();
      out.name = name;
      out.socket_path = vm.socket_path;
      out.tenant = vm.tenant.empty() ? name : vm.tenant;
      out.vgpus = vm.vgpus;
      out.device = vm_doors_->StatsOf(name);
      if (const auto memory = vm_doors_->MemoryOf(name); memory != nullptr) {
        out.shared_memory = {memory->bytes(), memory->lent_bytes()};
      }
    }
  }
  if (pool_ != nullptr) status.pool = pool_->Status();
  for (const auto& device : devices_) AddShares(*device, &status);
  status.policy = settings_.policy();
  for (auto& [name, tenant] : settings_.Tenants()) {
    status.weights[name] = tenant.weight;
    status.limits[name] = {std::move(tenant.gpus), std::move(tenant.placement), tenant.rates};
  }
  for (const SessionStatus& session : status.sessions) {
    status.weights.try_emplace(session.tenant, session.weight);
  }
  status.reload_failed = reload_failed_;
  status.usage = usage_.totals();
  status.refused = refused_;
  status.errors = errors_;
  status.saves = {{"written", saves_.written}, {"failed", saves_.failed}, {"used", saves_.used}};
  status.unsupported_calls = unsupported_calls_;
  return status;
}

void Daemon::AddShares(const Device& device, DaemonStatus* status) const {
  const ShareWindow::DeviceTimes used = device.shares.Used();
  const Nanos span = device.shares.span();
  uint64_t all = 0;
  for (const auto& [session, nanos] : used) all += nanos;
  std::map<std::string, TenantShare> tenants;
  for (SessionStatus& session : status->sessions) {
    if (session.device != device.index || !session.held_in.empty()) continue;
    TenantShare& share = tenants[session.tenant];
    share.waiting += session.usage.waiting;
    share.weight = session.weight;
    const auto it = used.find(session.id);
    if (it != used.end()) {
      session.share = static_cast<double>(it->second) / static_cast<double>(all);
      share.share += session.share;
      // The first report says what was used, but not since when.
      if (span > 0) share.busy += static_cast<double>(it->second) / static_cast<double>(span);
    }
    share.competes |= it != used.end() || session.usage.waiting + session.usage.in_flight != 0;
  }
  uint64_t weights = 0;
  for (auto& [name, share] : tenants) {
    share.tenant = name;
    share.device = device.index;
    if (share.competes) weights += share.weight;
  }
  for (auto& [name, share] : tenants) {
    if (share.competes) {
      share.target = static_cast<double>(share.weight) / static_cast<double>(weights);
    }
    status->shares.push_back(std::move(share));
  }
}

std::string Daemon::Page(const PageRequest& request) const {
  return PageJson(Status(), history_, events_, request, UnixMillisNow());
}

void Daemon::SampleHistory() {
  history_.Add(
      usage_.totals(), [this](const std::string& tenant) { return settings_.WeightOf(tenant); },
      devices_.size(), MonotonicNow(), UnixMillisNow());
  loop_->After(kHistoryStep, [this] { SampleHistory(); });
}

}  // namespace consort::host
