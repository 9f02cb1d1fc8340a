// SPDX-License-Identifier: Apache-2.0
// consortd: its next binary goes on with its workers and their applications.
//
//   Upgrade ─▶ rehearsal ─ it could ─▶ doors pause, greetings end ─▶ BecomeNext ─▶ Resume, in it
//                 └─ it could not, or something that cannot be handed over is there: all goes on
//
// The virtual machines' devices, which have threads, are paused while their state is told. What a
// pool knows of this node is in other processes: in a pool there is no upgrade.
#include <signal.h>

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/inherited_fds.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "gen/wire/requests.h"
#include "host/daemon/daemon.h"
#include "host/daemon/upgrade.h"
#include "host/limits.h"

namespace consort::host {
namespace {

DaemonState::Listening ListeningOf(const Listener& listener, const std::string& path,
                                   const std::string& tenant) {
  return {path, tenant, listener.fd(), listener.lock_fd()};
}

std::vector<DaemonState::Count> CountsOf(const std::map<std::string, uint64_t>& counts) {
  std::vector<DaemonState::Count> out;
  for (const auto& [name, count] : counts) out.push_back({name, count});
  return out;
}

std::map<std::string, uint64_t> CountsFrom(const std::vector<DaemonState::Count>& counts) {
  std::map<std::string, uint64_t> out;
  for (const DaemonState::Count& one : counts) out[one.name] = one.count;
  return out;
}

}  // namespace

absl::Status Daemon::MayUpgrade() const {
  if (!ready_ || stopping_) return absl::UnavailableError("consortd starts or stops");
  if (pool_ != nullptr) {
    return absl::FailedPreconditionError(
        "this host is in a pool, whose links end with consortd's present process; restart it when "
        "no application runs");
  }
  if (keeper_.descriptors() != 0 || !recoveries_.empty()) {
    return absl::FailedPreconditionError(
        "consortd's present process holds what lets applications outlive their workers "
        "(--keep-memory, --checkpoint-after); try again when none runs");
  }
  if (!peers_.empty()) {
    return absl::FailedPreconditionError(
        "applications use memory of two devices together (peer access), whose addresses consortd's "
        "present process knows; try again when none runs");
  }
  if (tasks_.running() != 0) {
    return absl::UnavailableError("a checkpoint is being written or read; try again later");
  }
  if (!kept_loans_.empty()) {
    return absl::UnavailableError(
        "a worker that has memory of a virtual machine has not ended; try again when it has");
  }
  for (const auto& device : devices_) {
    if (moves_.AnyFrom(device->index)) {
      return absl::UnavailableError("an application is being moved; try again later");
    }
  }
  for (const auto& [id, session] : sessions_) {
    if (session.loan != nullptr &&
        &session.loan->file() != vm_doors_->MemoryOf(session.identity.vm).get()) {
      return absl::UnavailableError(
          absl::StrCat("programs of VM ", session.identity.vm,
                       ", which is gone, use its memory; try again when none runs"));
    }
    if (session.stage == Session::Stage::kHeld) {
      return absl::FailedPreconditionError(
          absl::StrCat(PrintableName(session.identity.application),
                       " waits in a checkpoint, whose channel is consortd's; restore it first"));
    }
  }
  return absl::OkStatus();
}

absl::Status Daemon::Upgrade(const std::string& who) {
  RETURN_IF_ERROR(MayUpgrade());
  if (upgrade_.state == UpgradeRecord::State::kTrying) {
    return absl::FailedPreconditionError("an upgrade is under way");
  }
  UpgradeRecord next;
  next.number = upgrade_.number + 1;
  next.by = who;
  upgrade_binary_ = FileIdentity(options_.command.binary);
  vm_doors_->Pause();
  const DaemonState state = State();
  vm_doors_->GoOn();
  ASSIGN_OR_RETURN(rehearsal_, Rehearsal::Start(options_.command, state));
  next.state = UpgradeRecord::State::kTrying;
  upgrade_ = std::move(next);
  LOG(INFO) << who << " wants consortd to go on as " << options_.command.binary;
  upgrade_timer_ = loop_->After(kRehearsalMax, [this] {
    upgrade_timer_ = 0;
    rehearsal_->Kill();
  });
  return absl::OkStatus();
}

std::string Daemon::Upgrades() const {
  nlohmann::ordered_json out;
  out["number"] = upgrade_.number;
  out["state"] = UpgradeStateName(upgrade_.state);
  out["by"] = upgrade_.by;
  out["text"] = upgrade_.text;
  out["version"] = CONSORT_VERSION;
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void Daemon::OnRehearsed(int wait_status) {
  if (upgrade_timer_ != 0) loop_->Cancel(upgrade_timer_);
  upgrade_timer_ = 0;
  const absl::StatusOr<std::string> version = rehearsal_->Result(wait_status);
  rehearsal_.reset();
  if (stopping_) return;
  if (!version.ok()) return RefuseUpgrade(version.status());
  LOG(INFO) << "consortd " << *version << " can go on";
  handing_over_ = true;
  PaceDoors();
  HandOver(MonotonicNow() + kWaitingEndMax);
}

void Daemon::HandOver(Nanos deadline) {
  if (stopping_) return;
  bool waiting = false;
  for (const auto& device : devices_) {
    waiting |= !device->packed.waiting.empty();
    for (const auto& [tenant, slot] : device->own) waiting |= !slot.waiting.empty();
  }
  if (waiting && MonotonicNow() < deadline) {
    loop_->After(kWaitingLook, [this, deadline] { HandOver(deadline); });
    return;
  }
  absl::Status status = MayUpgrade();
  if (waiting) status.Update(absl::UnavailableError("programs wait for a worker; try again later"));
  if (FileIdentity(options_.command.binary) != upgrade_binary_) {
    status.Update(absl::AbortedError("the binary was replaced meanwhile; try again"));
  }
  if (status.ok()) {
    vm_doors_->Pause();
    status = BecomeNext(options_.command, State());
    vm_doors_->GoOn();
  }
  RefuseUpgrade(status);
}

void Daemon::RefuseUpgrade(const absl::Status& why) {
  handing_over_ = false;
  PaceDoors();
  upgrade_.state = UpgradeRecord::State::kRefused;
  upgrade_.text = std::string(why.message());
  LOG(WARNING) << "consortd goes on as it is: " << why.message();
  events_.Add(EventLevel::kWarning, absl::StrCat("no upgrade, consortd goes on as it is: ",
                                                 PrintableName(upgrade_.text)));
}

DaemonState Daemon::State() const {
  DaemonState state;
  state.build = CONSORT_VERSION;
  state.description_hash = wire::kDescriptionHash;
  state.started_unix_seconds = started_unix_seconds_;
  state.upgrade = {upgrade_.number, upgrade_.by};
  for (const auto& [path, door] : unix_doors_) {
    state.doors.push_back(ListeningOf(door->listener(), path, door->tenant()));
  }
  if (vsock_door_ != nullptr) state.vsock = vsock_door_->listener().fd();
  if (const Listener* admin = admin_doors_->admin_listener(); admin != nullptr) {
    state.admin.push_back(ListeningOf(*admin, options_.admin.socket_path, ""));
  }
  if (admin_doors_->metrics_fd() >= 0) {
    state.metrics.push_back(
        {options_.admin.metrics_address, "", admin_doors_->metrics_fd(), DaemonState::kNone});
  }
  state.vms = vm_doors_->Save();
  state.greetings = greeter_.Save();
  for (const auto& device : devices_) {
    state.devices.push_back({*device->info, device->speed.value_or(Calibrated()), device->memory,
                             device->worker_starts, device->workers_retired, device->drained});
  }
  for (const auto& [worker, running] : workers_) {
    // It ends with the socket, and another one stands by.
    if (IsStandby(worker)) continue;
    state.workers.push_back({worker->pid(), worker->device_index(), running.slot->tenant,
                             static_cast<uint32_t>(worker->state), running.slot->worker == worker,
                             worker->binary(), running.process->control().fd()});
  }
  for (const auto& [pid, device] : children_) state.children.push_back({pid, device});
  for (const auto& [id, session] : sessions_) {
    DaemonState::Session& out = state.sessions.emplace_back();
    out.open = session.open;
    if (session.loan != nullptr) {
      for (const auto& [offset, bytes] : session.loan->parts()) {
        out.parts.push_back({offset, bytes});
      }
    }
    out.tenant = session.identity.tenant;
    out.vm = session.identity.vm;
    out.front_door = session.identity.front_door;
    out.application = session.identity.application;
    out.pid = session.identity.pid;
    out.device_name = session.identity.device;
    out.device = session.identity.device_index;
    out.assembly = session.assembly;
    out.vgpu = session.vgpu;
    out.why = session.why;
    out.worker = session.worker->pid();
    out.weight = session.weight;
    out.started_unix_seconds = session.started_unix_seconds;
    out.started = session.started;
    out.stage = static_cast<uint32_t>(session.stage);
    out.bound = session.bound;
    out.told = session.told;
    out.usage = usage_.Latest(id);
    out.usage.session = id;
  }
  state.next_session = next_session_;
  for (const auto& [key, totals] : usage_.totals()) {
    state.totals.push_back({key.tenant, key.application, key.device, totals.sessions_begun,
                            totals.sessions_open, totals.used});
  }
  for (const Event& event : events_.events()) {
    state.events.push_back({event.number, event.unix_seconds, static_cast<uint32_t>(event.level),
                            event.text, event.times});
  }
  state.last_event = events_.last_number();
  const TraceRecording& trace = traces_.now();
  state.trace = {trace.on, trace.folder, trace.bytes_max, trace.by, trace.since, {}};
  for (const TraceFile& file : trace.files) {
    state.trace.files.push_back({file.device, file.worker, file.path, file.ended});
  }
  state.refused = CountsOf(refused_);
  state.unsupported_calls = CountsOf(unsupported_calls_);
  state.errors = CountsOf(errors_);
  state.settings = settings_.StateText();
  state.policy = settings_.policy();
  for (const auto& [name, tenant] : settings_.Tenants()) {
    state.terms.push_back({name, tenant.weight, tenant.rates});
  }
  return state;
}

absl::Status Daemon::Resume(const DaemonState& state, std::function<void()> on_ready,
                            std::function<void(absl::Status)> on_end) {
  on_ready_ = std::move(on_ready);
  on_end_ = std::move(on_end);
  // First of all, so that whatever fails here the workers are found and ended.
  for (const DaemonState::Child& child : state.children) children_[child.pid] = child.device;
  started_unix_seconds_ = state.started_unix_seconds;
  next_session_ = state.next_session;
  RestoreBooks(state);
  RETURN_IF_ERROR(settings_.Restore(state.settings));
  if (options_.bind_at_launch) {
    ASSIGN_OR_RETURN(binder_, Binder::Make(options_.binding));
  }
  InheritedFds fds(DescriptorsOf(state));
  RETURN_IF_ERROR(RestoreWorkers(state, &fds));
  RETURN_IF_ERROR(RestoreSessions(state));
  RETURN_IF_ERROR(RestoreDoors(state, &fds));
  if (!options_.account_path.empty()) {
    ReopenAccount();
    loop_->After(options_.account_every, [this] { AccountOpenSessions(); });
  }
  SampleHistory();
  // What else the flags and files name; that something of it fails is no reason to end programs.
  if (const absl::Status saves = OpenSaves(); !saves.ok()) {
    LOG(ERROR) << "after the upgrade: " << saves.message();
  }
  const absl::Status opened = OpenDoors();
  if (!opened.ok()) {
    LOG(ERROR) << "after the upgrade: " << opened.message();
    events_.Add(EventLevel::kError, PrintableName(std::string(opened.message())));
  }
  ready_ = true;
  // Files may have changed since the last binary read them.
  std::map<std::string, Tenant> told;
  for (const DaemonState::Terms& terms : state.terms) {
    Tenant& tenant = told[terms.tenant];
    tenant.name = terms.tenant;
    tenant.weight = terms.weight;
    tenant.rates = terms.rates;
  }
  TellChanges(state.policy, told);
  RenewWorkers(state.description_hash);
  upgrade_ = {state.upgrade.number, UpgradeRecord::State::kDone, state.upgrade.by, ""};
  const std::string done = absl::StrCat("consortd ", state.build, " went on as ", CONSORT_VERSION,
                                        " with ", sessions_.size(), " applications");
  LOG(INFO) << done << "; asked by " << state.upgrade.by;
  events_.Add(EventLevel::kInfo, done);
  loop_->Post([this] {
    OnChildSignal();  // who ended meanwhile
    if (options_.balance) Balance();
    on_ready_();
  });
  return absl::OkStatus();
}

void Daemon::RestoreBooks(const DaemonState& state) {
  std::map<UsageKey, UsageTotals> totals;
  for (const DaemonState::Totals& one : state.totals) {
    totals[{one.tenant, one.application, one.device}] = {one.sessions_begun, one.sessions_open,
                                                         one.used};
  }
  usage_.Restore(std::move(totals));
  std::deque<Event> events;
  for (const DaemonState::Event& event : state.events) {
    events.push_back({event.number, event.unix_seconds, static_cast<EventLevel>(event.level),
                      event.text, event.times});
  }
  events_.Restore(std::move(events), state.last_event);
  TraceRecording trace = {state.trace.recording, state.trace.folder, state.trace.bytes_max,
                          state.trace.by,        state.trace.since,  {}};
  for (const DaemonState::Trace::File& file : state.trace.files) {
    trace.files.push_back({file.device, file.worker, file.path, file.ended});
  }
  traces_.Restore(std::move(trace));
  refused_ = CountsFrom(state.refused);
  unsupported_calls_ = CountsFrom(state.unsupported_calls);
  errors_ = CountsFrom(state.errors);
}

absl::Status Daemon::RestoreWorkers(const DaemonState& state, InheritedFds* fds) {
  for (const DaemonState::Device& one : state.devices) {
    AddDevice(static_cast<uint32_t>(devices_.size()));
    Device& device = *devices_.back();
    device.info = one.info;
    if (one.speed.arithmetic > 0) device.speed = one.speed;
    device.memory = one.memory;
    device.worker_starts = one.worker_starts;
    device.workers_retired = one.workers_retired;
    device.drained = one.drained;
  }
  for (const DaemonState::Worker& one : state.workers) {
    Device* device = devices_[one.device].get();
    Slot* slot = one.tenant.empty() ? &device->packed : OwnSlot(device, one.tenant);
    ASSIGN_OR_RETURN(
        std::unique_ptr<WorkerProcess> worker,
        WorkerProcess::Adopt(
            loop_, OptionsFor(*slot), fds->Take(one.control), one.pid, one.binary,
            static_cast<WorkerProcess::State>(one.state),
            [this](WorkerProcess* from, ControlPacket& packet) { OnPacket(from, packet); },
            [this](WorkerProcess* gone) { OnGone(gone); }));
    WorkerProcess* borrowed = worker.get();
    if (one.takes_sessions) slot->worker = borrowed;
    workers_[borrowed] = {std::move(worker), slot, false, device->info};
  }
  return absl::OkStatus();
}

absl::Status Daemon::RestoreSessions(const DaemonState& state) {
  std::map<pid_t, WorkerProcess*> workers;
  for (const auto& [worker, running] : workers_) workers[worker->pid()] = worker;
  for (const DaemonState::Session& one : state.sessions) {
    Session session;
    session.stage = static_cast<Session::Stage>(one.stage);
    if (session.stage > Session::Stage::kLeaving) {
      return absl::InvalidArgumentError("a session's stage");
    }
    session.open = one.open;
    session.identity.tenant = one.tenant;
    session.identity.vm = one.vm;
    session.identity.front_door = one.front_door;
    session.identity.application = one.application;
    session.identity.pid = one.pid;
    session.identity.device = one.device_name;
    session.identity.device_index = one.device;
    session.window = {one.open.window_base, one.open.window_bytes};
    session.assembly = one.assembly;
    session.vgpu = one.vgpu;
    session.why = one.why;
    session.worker = workers.at(one.worker);
    session.weight = one.weight;
    session.started_unix_seconds = one.started_unix_seconds;
    session.started = one.started;
    session.bound = one.bound;
    session.told = one.told;
    if (!devices_[one.device]->windows.TakeAt(session.window)) {
      return absl::InternalError(
          absl::StrCat("session ", one.open.session, ": its window is another's"));
    }
    if (session.stage != Session::Stage::kArriving) {
      usage_.RestoreOpen({one.tenant, one.application, one.device}, one.usage);
    }
    sessions_.emplace(one.open.session, std::move(session));
  }
  return absl::OkStatus();
}

absl::Status Daemon::RestoreDoors(const DaemonState& state, InheritedFds* fds) {
  AdminSockets admin;
  for (const DaemonState::Listening& one : state.admin) {
    ASSIGN_OR_RETURN(admin.admin,
                     Listener::AdoptUnix(one.path, fds->Take(one.socket), fds->Take(one.lock)));
    if (one.path != options_.admin.socket_path) admin.admin.reset();
  }
  for (const DaemonState::Listening& one : state.metrics) {
    admin.metrics = fds->Take(one.socket);
    if (one.path != options_.admin.metrics_address) admin.metrics.Reset();
  }
  ASSIGN_OR_RETURN(admin_doors_, AdminDoors::Open(loop_, options_.admin, this, std::move(admin)));
  for (const DaemonState::Listening& one : state.doors) {
    ASSIGN_OR_RETURN(unix_doors_[one.path],
                     Door::AdoptUnix(loop_, one.path, one.tenant, fds->Take(one.socket),
                                     fds->Take(one.lock), greet_));
  }
  if (state.vsock != DaemonState::kNone) {
    ASSIGN_OR_RETURN(vsock_door_, Door::AdoptVsock(loop_, fds->Take(state.vsock), greet_));
  }
  vm_doors_ = std::make_unique<VmDoors>(
      loop_, VmDoors::Options{options_.vm_group, options_.vm_copy_threads}, greet_);
  for (const DaemonState::Vm& vm : state.vms) {
    // The others' programs go on.
    const absl::Status restored = vm_doors_->Restore(vm, fds);
    if (restored.ok()) continue;
    LOG(ERROR) << "after the upgrade: " << restored.message();
    events_.Add(EventLevel::kError, PrintableName(std::string(restored.message())));
  }
  RETURN_IF_ERROR(RestoreLoans(state));
  for (const DaemonState::Greeting& greeting : state.greetings) {
    greeter_.Restore(greeting, fds->Take(greeting.socket));
  }
  return absl::OkStatus();
}

void Daemon::RenewWorkers(uint64_t description_hash) {
  const std::string binary = FileIdentity(options_.worker_path);
  std::set<pid_t> serving;
  std::vector<Slot*> slots;
  for (auto& [worker, running] : workers_) {
    serving.insert(worker->pid());
    running.outdated = worker->binary() != binary;
    slots.push_back(running.slot);
  }
  // New programs speak of calls that these do not know.
  if (description_hash != wire::kDescriptionHash) {
    std::vector<WorkerProcess*> all;
    for (const auto& [worker, running] : workers_) all.push_back(worker);
    for (WorkerProcess* worker : all) {
      Retire(worker, EventLevel::kInfo, "serves the calls of an earlier version");
    }
  }
  for (Slot* slot : slots) EndIfUnused(slot);
  for (const auto& device : devices_) {
    if (device->packed.worker == nullptr && device->packed.restart == 0) {
      ScheduleStart(&device->packed, /*was_ready=*/true);
    }
    AwaitStandby(&device->packed, kStandbyAfter);
  }
  for (const auto& [pid, device] : children_) {
    if (!serving.contains(pid)) KillLater(pid);
  }
}

}  // namespace consort::host
