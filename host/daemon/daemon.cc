// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/daemon.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "gen/wire/opcodes.h"
#include "host/daemon/vm_files.h"
#include "host/limits.h"
#include "vmsock/listen.h"

namespace consort::host {

Daemon::Daemon(EventLoop* loop, DaemonOptions options)
    : loop_(loop),
      options_(std::move(options)),
      windows_(kWindowBase, kWindowSlotBytes, kWindowSlots,
               options_.pool.has_value() ? std::hash<std::string>()(options_.pool->pool.node) : 0),
      greeter_(
          loop,
          [this](Connection connection, const wire::Hello& hello) {
            OnHello(std::move(connection), hello);
          },
          [this] {
            // The kernel's queue holds what comes while the greeter is full.
            const auto follow = [this](Door* door) {
              if (greeter_.full()) {
                door->Pause();
              } else {
                door->Resume();
              }
            };
            for (const auto& door : unix_doors_) follow(door.get());
            if (vsock_door_ != nullptr) follow(vsock_door_.get());
          }),
      started_unix_seconds_(static_cast<uint64_t>(time(nullptr))) {}

Daemon::~Daemon() {
  for (const auto& [pid, index] : children_) kill(pid, SIGKILL);
}

absl::Status Daemon::Start(std::function<void()> on_ready,
                           std::function<void(absl::Status)> on_end) {
  on_ready_ = std::move(on_ready);
  on_end_ = std::move(on_end);
  if (!options_.account_path.empty()) {
    ASSIGN_OR_RETURN(account_, AccountFile::Open(options_.account_path));
  }
  ASSIGN_OR_RETURN(admin_doors_,
                   AdminDoors::Open(loop_, options_.admin, [this] { return Status(); }));
  if (options_.device == "none") {
    loop_->Post([this] { CheckAllReady(); });
    return absl::OkStatus();
  }
  // Only a driver knows how many devices there are: the first worker tells, the others follow.
  AddDevice(0);
  return StartWorker(devices_[0].get());
}

void Daemon::AddDevice(uint32_t index) {
  devices_.push_back(std::make_unique<Device>());
  devices_.back()->index = index;
}

absl::Status Daemon::StartWorker(Device* device) {
  WorkerOptions worker_options;
  worker_options.binary = options_.worker_path;
  worker_options.device = options_.device;
  worker_options.index = device->index;
  worker_options.cpu_devices = options_.cpu_devices;
  worker_options.scheduler = options_.scheduler;
  worker_options.memory = options_.memory;
  worker_options.verbosity = options_.verbosity;
  ASSIGN_OR_RETURN(
      std::unique_ptr<WorkerProcess> worker,
      WorkerProcess::Start(
          loop_, worker_options,
          [this](WorkerProcess* from, ControlPacket& packet) { OnPacket(from, packet); },
          [this](WorkerProcess* gone) { OnGone(gone); }));
  device->worker = worker.get();
  ++device->worker_starts;
  children_[worker->pid()] = device->index;
  workers_.emplace(worker.get(), std::move(worker));
  return absl::OkStatus();
}

// A worker that has worked is replaced at once, however short its life: a tenant's kernel may have
// ended it, and others wait. One that dies before it is ready is tried again later and later.
void Daemon::ScheduleStart(Device* device, bool was_ready) {
  if (stopping_) return;
  if (was_ready || device->back_off == 0) {
    device->back_off = kWorkerRestartFirst;
  } else {
    device->back_off = std::min(device->back_off * 2, kWorkerRestartLast);
  }
  device->restart = loop_->After(device->back_off, [this, device] {
    device->restart = 0;
    const absl::Status started = StartWorker(device);
    if (!started.ok()) {
      LOG(ERROR) << "device " << device->index << ": " << started;
      ScheduleStart(device, /*was_ready=*/false);
    }
  });
}

void Daemon::OnPacket(WorkerProcess* worker, ControlPacket& packet) {
  Ready ready;
  StartFailed failed;
  SessionEnded ended;
  Retired retired;
  UsageReport usage;
  UnsupportedCalls unsupported;
  if (packet.As(&ready)) {
    OnReadyMessage(worker, ready);
  } else if (packet.As(&ended)) {
    EndSession(ended);
  } else if (packet.As(&retired)) {
    ++devices_[worker->device_index()]->workers_retired;
    Drain(worker, GetText(retired.reason));
  } else if (packet.As(&unsupported)) {
    std::string name = GetText(unsupported.name);
    if (!unsupported_calls_.contains(name) && unsupported_calls_.size() >= kUnsupportedNamesMax) {
      name = "other";
    }
    unsupported_calls_[name] += unsupported.calls;
  } else if (packet.As(&usage)) {
    const uint64_t count = std::min<uint64_t>(usage.count, kUsageEntriesMax);
    for (uint64_t i = 0; i < count; ++i) {
      usage_.Update(usage.entries[i]);
      const auto session = sessions_.find(usage.entries[i].session);
      if (session == sessions_.end()) continue;  // a report can cross the session's end
      session->second.recent.Report(MonotonicNow(), usage.entries[i].kernel_nanos);
    }
  } else if (packet.As(&failed)) {
    LOG(ERROR) << "device " << worker->device_index() << ": " << GetText(failed.text);
    // Before anything worked this is a matter of configuration, for a person; later it is a fault
    // that a restart may mend.
    if (!ready_) Fail(absl::FailedPreconditionError(GetText(failed.text)));
  } else {
    LOG(ERROR) << "worker " << worker->pid() << " sent a message of unknown kind "
               << static_cast<uint64_t>(packet.kind()) << "; ending it";
    worker->Kill();
  }
}

void Daemon::OnReadyMessage(WorkerProcess* worker, const Ready& ready) {
  Device* device = devices_[worker->device_index()].get();
  worker->state = WorkerProcess::State::kReady;
  device->info = ready;
  LOG(INFO) << "device " << device->index << ": " << GetText(ready.snapshot.name) << ", "
            << ready.snapshot.total_bytes / kMiB << " MiB, driver " << GetText(ready.driver) << " "
            << ready.driver_version << ", worker " << worker->pid();
  if (!ready_ && device->index == 0) {
    const uint32_t count = std::min(ready.device_count, kDevicesMax);
    for (uint32_t index = 1; index < count; ++index) {
      AddDevice(index);
      const absl::Status started = StartWorker(devices_.back().get());
      if (!started.ok()) return Fail(started);
    }
  }
  CheckAllReady();
  ServeWaiting(device);
}

void Daemon::CheckAllReady() {
  if (ready_ || stopping_) return;
  for (const auto& device : devices_) {
    if (!device->info.has_value()) return;
  }
  const absl::Status opened = OpenDoors();
  if (!opened.ok()) return Fail(opened);
  ready_ = true;
  on_ready_();
}

absl::Status Daemon::OpenDoors() {
  const OnConnection greet = [this](Connection connection) {
    if (greeter_.full()) {
      // Only a VM's device comes here with the greeter full; sockets are paused then.
      LOG(WARNING) << connection.tenant << ": too many connections without a Hello; one dropped";
      return;
    }
    greeter_.Add(std::move(connection));
  };
  ASSIGN_OR_RETURN(auto local, Door::OpenUnix(loop_, options_.socket_path, "local", greet));
  unix_doors_.push_back(std::move(local));
  LOG(INFO) << "listening on " << options_.socket_path;
  for (const Tenant& tenant : options_.tenants.tenants) {
    if (tenant.socket_path.empty()) continue;
    ASSIGN_OR_RETURN(auto door, Door::OpenUnix(loop_, tenant.socket_path, tenant.name, greet));
    unix_doors_.push_back(std::move(door));
    LOG(INFO) << "listening on " << tenant.socket_path << " for tenant " << tenant.name
              << ", weight " << tenant.weight;
  }
  if (options_.vsock_port.has_value()) {
    auto door = Door::OpenVsock(loop_, *options_.vsock_port, greet);
    if (door.ok()) {
      vsock_door_ = *std::move(door);
      LOG(INFO) << "listening on vsock port " << *options_.vsock_port;
    } else {
      LOG(INFO) << "no kernel vsock: " << door.status().message();
    }
  }
  vm_doors_ = std::make_unique<VmDoors>(loop_, options_.vm_group, greet);
  for (const VmOptions& vm : options_.vms) RETURN_IF_ERROR(vm_doors_->Add(vm));
  RETURN_IF_ERROR(OpenVmDoors());
  return JoinPool();
}

absl::Status Daemon::JoinPool() {
  if (!options_.pool.has_value()) return absl::OkStatus();
  std::vector<Ready> devices;
  for (const auto& device : devices_) devices.push_back(*device->info);
  PoolSessions::Hooks hooks;
  hooks.open_local = [this](Connection connection, const wire::Hello& hello, uint32_t device) {
    OpenOn(device, std::move(connection), hello);
  };
  hooks.refuse = [this](Connection connection, uint32_t status, const std::string& text) {
    Refuse(std::move(connection), status, text);
  };
  hooks.answer = [this](Connection connection, std::string bytes) {
    greeter_.Answer(std::move(connection), std::move(bytes));
  };
  hooks.weight = [this](const Connection& connection) { return WeightOf(connection); };
  hooks.answer_alone = [this](Connection connection) {
    AnswerQuery(std::move(connection), /*status=*/false);
  };
  ASSIGN_OR_RETURN(
      pool_, PoolSessions::Start(loop_, *options_.pool, devices, &windows_, std::move(hooks)));
  return absl::OkStatus();
}

// Makes the VMs' doors those of their files.
absl::Status Daemon::OpenVmDoors() {
  if (options_.vm_folder.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<VmOptions> wanted,
                   ReadVmFiles(options_.vm_folder, options_.vm_socket_folder));
  std::map<std::string, bool> keep;
  for (const VmOptions& vm : options_.vms) keep[vm.name] = true;
  for (const VmOptions& vm : wanted) {
    if (!keep.emplace(vm.name, true).second) {
      return absl::InvalidArgumentError(absl::StrCat("VM ", vm.name, " is named by --vm too"));
    }
  }
  std::vector<std::string> gone;
  for (const auto& [name, vm] : vm_doors_->vms()) {
    if (!keep.contains(name)) gone.push_back(name);
  }
  for (const std::string& name : gone) vm_doors_->Remove(name);
  absl::Status status = absl::OkStatus();
  for (const VmOptions& vm : wanted) {
    if (vm_doors_->vms().contains(vm.name)) {
      vm_doors_->Change(vm);
    } else {
      status.Update(vm_doors_->Add(vm));  // the others' doors open all the same
    }
  }
  return status;
}

void Daemon::Reload() {
  if (stopping_ || vm_doors_ == nullptr) return;
  const absl::Status status = OpenVmDoors();
  reload_failed_ = !status.ok();
  if (status.ok()) {
    LOG(INFO) << "read the VMs' files again: " << vm_doors_->vms().size() << " VMs";
  } else {
    LOG(ERROR) << "reading the VMs' files again: " << status.message();
  }
}

uint32_t Daemon::DevicesFor(const Connection& connection) const {
  return std::min(static_cast<uint32_t>(devices_.size()), connection.devices_max);
}

void Daemon::Drain(WorkerProcess* worker, const std::string& reason) {
  if (worker->state == WorkerProcess::State::kDraining) return;
  Device* device = devices_[worker->device_index()].get();
  LOG(ERROR) << "device " << device->index << ": worker " << worker->pid()
             << " cannot go on: " << reason << "; its " << SessionsOf(worker)
             << " sessions stay with it, new ones get another";
  const bool was_ready = worker->state == WorkerProcess::State::kReady;
  worker->state = WorkerProcess::State::kDraining;
  if (device->worker == worker) {
    device->worker = nullptr;
    ScheduleStart(device, was_ready);
  }
}

void Daemon::OnGone(WorkerProcess* worker) {
  const auto it = workers_.find(worker);
  if (it == workers_.end()) return;
  const std::unique_ptr<WorkerProcess> owned = std::move(it->second);
  workers_.erase(it);
  Device* device = devices_[worker->device_index()].get();

  std::vector<SessionEnded> lost;
  for (const auto& [id, session] : sessions_) {
    if (session.worker != worker) continue;
    SessionEnded ended;
    ended.session = id;
    ended.started_unix_seconds = session.started_unix_seconds;
    ended.lasted_nanos = static_cast<uint64_t>(MonotonicNow() - session.started);
    SetText(ended.reason, "worker died");
    lost.push_back(ended);
  }
  if (!stopping_ && (worker->state != WorkerProcess::State::kDraining || !lost.empty())) {
    LOG(ERROR) << "device " << device->index << ": worker " << worker->pid() << " is gone, with "
               << lost.size() << " sessions";
  }
  // It has closed its socket, so it is about to exit; a driver can keep it from doing so.
  loop_->After(kWorkerExitTimeout, [this, pid = worker->pid()] {
    if (children_.contains(pid)) kill(pid, SIGKILL);
  });
  for (const SessionEnded& ended : lost) EndSession(ended);

  if (device->worker == worker) {
    device->worker = nullptr;
    if (!ready_ && !stopping_) {
      return Fail(absl::UnavailableError(
          absl::StrCat("the worker of device ", device->index, " died while starting")));
    }
    ScheduleStart(device, worker->state == WorkerProcess::State::kReady);
  }
  CheckStopped();
}

void Daemon::OnChildSignal() {
  // consortd has no children but its workers.
  int status;
  pid_t pid;
  while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
    children_.erase(pid);
    if (WIFSIGNALED(status)) {
      LOG(INFO) << "worker " << pid << " ended by signal " << WTERMSIG(status);
    } else {
      LOG_IF(INFO, WEXITSTATUS(status) != 0)
          << "worker " << pid << " ended with status " << WEXITSTATUS(status);
    }
  }
  CheckStopped();
}

void Daemon::Refuse(Connection connection, uint32_t status, const std::string& text) {
  LOG(WARNING) << connection.tenant << " (" << connection.front_door << ", " << connection.peer
               << ") refused: " << text;
  ++refused_[RefusalReason(status)];
  greeter_.Answer(std::move(connection), RefusalBytes(status, text));
}

void Daemon::OnHello(Connection connection, const wire::Hello& hello) {
  const absl::Status same_build = CheckHello(hello, wire::kDescriptionHash);
  if (!same_build.ok()) {
    return Refuse(std::move(connection), wire::kWelcomeVersionMismatch,
                  std::string(same_build.message()));
  }
  const bool status = hello.purpose == wire::kPurposeStatus;
  if (hello.purpose == wire::kPurposeQuery || status) {
    if (pool_ != nullptr && !status) return pool_->Query(std::move(connection), hello);
    return AnswerQuery(std::move(connection), status);
  }
  if (hello.purpose != wire::kPurposeSession) {
    return Refuse(std::move(connection), wire::kWelcomeRefused,
                  absl::StrCat("unknown purpose ", hello.purpose));
  }
  if (pool_ != nullptr && hello.assembly != 0) return pool_->Open(std::move(connection), hello);
  OpenOn(hello.device, std::move(connection), hello);
}

void Daemon::OpenOn(uint32_t index, Connection connection, const wire::Hello& hello) {
  // Who belongs to an assembly was shown other nodes' devices too.
  const uint32_t count =
      connection.assembly != 0 ? static_cast<uint32_t>(devices_.size()) : DevicesFor(connection);
  if (index >= count) {
    return Refuse(std::move(connection), wire::kWelcomeNoDevice,
                  absl::StrCat("no device ", index, "; there are ", count));
  }
  Device* device = devices_[index].get();
  if (device->worker == nullptr || device->worker->state != WorkerProcess::State::kReady) {
    if (device->waiting.size() >= kSessionsPerWorker) {
      return Refuse(std::move(connection), wire::kWelcomeRefused,
                    "the device is starting and too many wait for it; try again");
    }
    device->waiting.push_back({std::move(connection), hello, MonotonicNow() + kWorkerStartTimeout});
    loop_->After(kWorkerStartTimeout, [this, device] { ExpireWaiting(device); });
    return;
  }
  StartSession(device, std::move(connection), hello);
}

void Daemon::AnswerQuery(Connection connection, bool status) {
  wire::Welcome welcome;
  welcome.device_count = DevicesFor(connection);
  if (!devices_.empty()) {
    const Ready& driver = *devices_[0]->info;
    welcome.driver_version = driver.driver_version;
    // The CPU driver has no releases of its own.
    SetText(welcome.driver_release,
            driver.release[0] != '\0' ? GetText(driver.release) : CONSORT_VERSION);
  }
  std::vector<wire::DeviceUse> uses;
  std::vector<wire::ProcessUse> processes;
  if (status) {
    uses = UsesOf(connection);
    processes = ProcessesOf(connection);
    welcome.process_count = static_cast<uint32_t>(processes.size());
  }
  std::string bytes;
  const auto append = [&bytes](const auto& value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  append(welcome);
  const Bytes quota = options_.tenants.Find(connection.tenant).memory_hard;
  for (uint32_t index = 0; index < welcome.device_count; ++index) {
    wire::DeviceSnapshot snapshot = devices_[index]->info->snapshot;
    if (quota != 0) snapshot.total_bytes = quota;
    append(snapshot);
  }
  for (const wire::DeviceUse& use : uses) append(use);
  for (const wire::ProcessUse& process : processes) append(process);
  greeter_.Answer(std::move(connection), std::move(bytes));
}

std::vector<wire::DeviceUse> Daemon::UsesOf(const Connection& connection) const {
  const Nanos now = MonotonicNow();
  std::vector<wire::DeviceUse> uses(DevicesFor(connection));
  std::vector<uint64_t> used_by_all(uses.size());
  for (const auto& [id, session] : sessions_) {
    const uint32_t index = session.identity.device_index;
    if (index >= uses.size()) continue;
    const uint64_t bytes = usage_.Latest(id).memory_bytes;
    used_by_all[index] += bytes;
    if (session.identity.tenant != connection.tenant) continue;
    uses[index].used_bytes += bytes;
    uses[index].busy_percent =
        std::min(100u, uses[index].busy_percent + session.recent.BusyPercent(now));
  }
  for (size_t index = 0; index < uses.size(); ++index) {
    uses[index].total_bytes = devices_[index]->info->snapshot.total_bytes;
    uses[index].free_bytes =
        uses[index].total_bytes - std::min(uses[index].total_bytes, used_by_all[index]);
  }
  return uses;
}

std::vector<wire::ProcessUse> Daemon::ProcessesOf(const Connection& connection) const {
  static_assert(kWindowSlots <= kProcessUsesMax);  // a session has a window
  const Nanos now = MonotonicNow();
  const std::string& vm = connection.vm.empty() ? connection.tenant : connection.vm;
  std::vector<wire::ProcessUse> processes;
  for (const auto& [id, session] : sessions_) {
    if (session.identity.tenant != connection.tenant || session.identity.vm != vm ||
        session.identity.device_index >= DevicesFor(connection)) {
      continue;
    }
    wire::ProcessUse& process = processes.emplace_back();
    process.device = session.identity.device_index;
    process.pid = session.identity.pid;
    process.memory_bytes = usage_.Latest(id).memory_bytes;
    process.busy_percent = session.recent.BusyPercent(now);
    SetText(process.application, session.identity.application);
  }
  return processes;
}

uint32_t Daemon::WeightOf(const Connection& connection) const {
  if (connection.weight != 0) return connection.weight;
  if (pool_ != nullptr) {
    if (const auto weight = pool_->WeightOf(connection.tenant); weight.has_value()) return *weight;
  }
  return options_.tenants.Find(connection.tenant).weight;
}

void Daemon::StartSession(Device* device, Connection connection, const wire::Hello& hello) {
  if (SessionsOf(device->worker) >= kSessionsPerWorker) {
    return Refuse(std::move(connection), wire::kWelcomeRefused,
                  absl::StrCat("device ", device->index, " has its limit of ", kSessionsPerWorker,
                               " applications"));
  }
  const std::optional<Window> window = windows_.Take(
      kWindowMemoryMultiple * device->info->snapshot.total_bytes + kWindowSharedHostBytes,
      connection.slots_taken);
  if (!window.has_value()) {
    return Refuse(std::move(connection), wire::kWelcomeRefused,
                  absl::StrCat("this host has its limit of ", kWindowSlots, " sessions"));
  }
  OpenSession open;
  open.session = next_session_++;
  SetText(open.tenant, connection.tenant);
  SetText(open.channel, connection.front_door);
  const Tenant tenant = options_.tenants.Find(connection.tenant);
  open.weight = WeightOf(connection);
  open.priority = tenant.priority;
  open.memory_soft = tenant.memory_soft;
  open.memory_hard = tenant.memory_hard;
  open.memory_wait_ms = tenant.memory_wait_ms;
  open.hello = hello;
  open.window_base = window->base;
  open.window_bytes = window->bytes;
  open.shared_host_bytes = connection.shares_memory ? kWindowSharedHostBytes : 0;
  const absl::Status sent = device->worker->control().Send(open, connection.fd.get());
  if (!sent.ok()) {
    windows_.Return(*window);
    return Refuse(std::move(connection), wire::kWelcomeRefused,
                  "the device's worker does not answer; try again");
  }
  Session session;
  session.identity.tenant = connection.tenant;
  session.identity.vm = connection.vm.empty() ? connection.tenant : connection.vm;
  session.identity.front_door = connection.front_door;
  session.identity.application = GetText(hello.application);
  session.identity.pid = hello.pid;
  session.identity.device = GetText(device->info->snapshot.name);
  session.identity.device_index = device->index;
  session.window = *window;
  session.assembly = connection.assembly;
  if (pool_ != nullptr) pool_->LocalBegan(connection.assembly, *window);
  session.worker = device->worker;
  session.started_unix_seconds = static_cast<uint64_t>(time(nullptr));
  session.started = MonotonicNow();
  usage_.Begin(open.session, {session.identity.tenant, session.identity.application,
                              session.identity.device_index});
  sessions_.emplace(open.session, std::move(session));
}

void Daemon::ServeWaiting(Device* device) {
  std::deque<WaitingSession> waiting;
  waiting.swap(device->waiting);
  for (WaitingSession& session : waiting) {
    StartSession(device, std::move(session.connection), session.hello);
  }
}

void Daemon::ExpireWaiting(Device* device) {
  while (!device->waiting.empty() && device->waiting.front().deadline <= MonotonicNow()) {
    WaitingSession session = std::move(device->waiting.front());
    device->waiting.pop_front();
    Refuse(std::move(session.connection), wire::kWelcomeRefused,
           absl::StrCat("device ", device->index, " did not start in time; see consortd's log"));
  }
}

void Daemon::EndSession(SessionEnded ended) {
  const auto it = sessions_.find(ended.session);
  if (it == sessions_.end()) {
    LOG(ERROR) << "a worker ended session " << ended.session << ", which is not there";
    return;
  }
  usage_.End(&ended);
  const SessionIdentity& identity = it->second.identity;
  const std::string line = AccountLine(identity, ended);
  LOG(INFO) << "session " << ended.session << " ended: " << line.substr(0, line.size() - 1);
  if (account_.has_value()) {
    const absl::Status appended = account_->Append(line);
    LOG_IF(ERROR, !appended.ok()) << appended << "; lost: " << line;
  }
  windows_.Return(it->second.window);
  if (pool_ != nullptr) {
    pool_->LocalEnded(it->second.assembly);
    pool_->Record(identity.application, *devices_[identity.device_index]->info, ended);
  }
  sessions_.erase(it);
}

size_t Daemon::SessionsOf(const WorkerProcess* worker) const {
  return static_cast<size_t>(
      std::count_if(sessions_.begin(), sessions_.end(),
                    [worker](const auto& entry) { return entry.second.worker == worker; }));
}

DaemonStatus Daemon::Status() const {
  DaemonStatus status;
  status.version = CONSORT_VERSION;
  status.started_unix_seconds = started_unix_seconds_;
  for (const auto& device : devices_) {
    DeviceStatus& out = status.devices.emplace_back();
    out.index = device->index;
    const bool ready =
        device->worker != nullptr && device->worker->state == WorkerProcess::State::kReady;
    out.state = ready ? "ready" : "starting";
    out.info = device->info;
    out.worker_pid = device->worker != nullptr ? device->worker->pid() : 0;
    out.worker_starts = device->worker_starts;
    out.workers_retired = device->workers_retired;
  }
  for (const auto& [id, session] : sessions_) {
    SessionStatus& out = status.sessions.emplace_back();
    out.id = id;
    out.tenant = session.identity.tenant;
    out.vm = session.identity.vm;
    out.application = session.identity.application;
    out.pid = session.identity.pid;
    out.front_door = session.identity.front_door;
    out.device = session.identity.device_index;
    out.started_unix_seconds = session.started_unix_seconds;
    out.usage = usage_.Latest(id);
    ++status.devices[out.device].sessions;
  }
  if (vm_doors_ != nullptr) {
    for (const auto& [name, vm] : vm_doors_->vms()) {
      status.vms.push_back({name, vm.socket_path, vm.tenant.empty() ? name : vm.tenant, vm.vgpus});
    }
  }
  if (pool_ != nullptr) status.pool = pool_->Status();
  status.reload_failed = reload_failed_;
  status.usage = usage_.totals();
  status.windows_used = kWindowSlots - windows_.free_slots();
  status.windows_max = kWindowSlots;
  status.refused = refused_;
  status.unsupported_calls = unsupported_calls_;
  return status;
}

void Daemon::Fail(absl::Status status) {
  if (stopping_) return;
  Stop();
  on_end_(std::move(status));
}

void Daemon::Stop() {
  if (stopping_) return;
  stopping_ = true;
  unix_doors_.clear();
  vsock_door_.reset();
  vm_doors_.reset();
  admin_doors_.reset();
  pool_.reset();
  greeter_.Clear();
  for (const auto& device : devices_) {
    if (device->restart != 0) loop_->Cancel(device->restart);
    device->waiting.clear();
  }
  for (const auto& [worker, owned] : workers_) {
    // A worker that cannot be told is gone or stuck; the timer ends it.
    const absl::Status told = worker->control().Send(Shutdown{});
    LOG_IF(WARNING, !told.ok()) << "worker " << worker->pid() << ": " << told;
  }
  stop_timer_ = loop_->After(kShutdownTimeout, [this] {
    stop_timer_ = 0;
    for (const auto& [pid, index] : children_) {
      LOG(WARNING) << "worker " << pid << " of device " << index << " did not end; killing it";
      kill(pid, SIGKILL);
    }
  });
  loop_->Post([this] { CheckStopped(); });
}

void Daemon::CheckStopped() {
  if (!stopping_ || !children_.empty() || !workers_.empty()) return;
  if (stop_timer_ != 0) loop_->Cancel(stop_timer_);
  stop_timer_ = 0;
  on_end_(absl::OkStatus());
}

}  // namespace consort::host
