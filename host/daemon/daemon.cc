// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/daemon.h"

#include <cuda.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "gen/wire/opcodes.h"
#include "host/daemon/vm_files.h"
#include "host/limits.h"
#include "vmsock/listen.h"

namespace consort::host {
namespace {

// No device and no GPU of a pool has it.
constexpr uint32_t kNoNumber = UINT32_MAX;

// Which devices a program was shown, as the bits of the number that its sessions say again
// (wire::Welcome::assembly): what it calls device 1 stays that, whatever its tenant may use later.
static_assert(kDevicesMax <= 64);
uint64_t ChoiceOf(const std::vector<uint32_t>& devices) {
  uint64_t choice = 0;
  for (const uint32_t index : devices) choice |= uint64_t{1} << index;
  return choice;
}

std::vector<uint32_t> DevicesOf(uint64_t choice) {
  std::vector<uint32_t> devices;
  for (uint32_t index = 0; index < kDevicesMax; ++index) {
    if ((choice >> index & 1) != 0) devices.push_back(index);
  }
  return devices;
}

constexpr WindowLayout kWindowLayout = {kWindowBase, kWindowSlotBytes, kWindowSlots};

std::string RateText(uint64_t per_second) {
  return per_second == 0 ? "none" : absl::StrCat(per_second);
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

}  // namespace

Daemon::Daemon(EventLoop* loop, DaemonOptions options, Settings settings)
    : loop_(loop),
      options_(std::move(options)),
      settings_(std::move(settings)),
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
            for (const auto& [path, door] : unix_doors_) follow(door.get());
            if (vsock_door_ != nullptr) follow(vsock_door_.get());
          }),
      node_(HostName()),
      events_([] { return static_cast<uint64_t>(time(nullptr)); }),
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
    loop_->After(options_.account_every, [this] { AccountOpenSessions(); });
  }
  ASSIGN_OR_RETURN(admin_doors_, AdminDoors::Open(loop_, options_.admin, this));
  events_.Add(EventLevel::kInfo, absl::StrCat("consortd ", CONSORT_VERSION, " started"));
  SampleHistory();
  if (options_.traces_first) {
    RETURN_IF_ERROR(traces_.Begin(options_.trace_folder, 0, "--trace", started_unix_seconds_));
  }
  if (options_.device == "none") {
    loop_->Post([this] { CheckAllReady(); });
    return absl::OkStatus();
  }
  // Only a driver knows how many devices there are: the first worker tells, the others follow.
  AddDevice(0);
  return StartWorker(&devices_[0]->packed);
}

Daemon::Device::Device(uint32_t index, uint64_t first_window)
    : index(index), windows(kWindowLayout, first_window) {
  packed.device = this;
}

void Daemon::AddDevice(uint32_t index) {
  uint64_t first_window = index;
  if (options_.pool.has_value()) {
    first_window += std::hash<std::string>()(options_.pool->pool.node) % kWindowSlots;
  }
  devices_.push_back(std::make_unique<Device>(index, first_window));
}

Daemon::Slot* Daemon::SlotOf(Device* device, const std::string& tenant) {
  if (settings_.tenants().Find(tenant).isolation != Isolation::kProcess) return &device->packed;
  Slot& slot = device->own[tenant];
  slot.device = device;
  slot.tenant = tenant;
  return &slot;
}

absl::Status Daemon::StartWorker(Slot* slot) {
  Device* device = slot->device;
  WorkerOptions worker_options;
  worker_options.binary = options_.worker_path;
  worker_options.device = options_.device;
  worker_options.index = device->index;
  worker_options.cpu_devices = options_.cpu_devices;
  worker_options.memory = options_.memory;
  worker_options.scheduler = settings_.policy();
  worker_options.verbosity = options_.verbosity;
  ASSIGN_OR_RETURN(
      std::unique_ptr<WorkerProcess> worker,
      WorkerProcess::Start(
          loop_, worker_options,
          [this](WorkerProcess* from, ControlPacket& packet) { OnPacket(from, packet); },
          [this](WorkerProcess* gone) { OnGone(gone); }));
  slot->worker = worker.get();
  ++device->worker_starts;
  children_[worker->pid()] = device->index;
  if (!slot->tenant.empty()) {
    LOG(INFO) << "device " << device->index << ": worker " << worker->pid() << " for tenant "
              << slot->tenant << " alone";
  }
  workers_[slot->worker] = {std::move(worker), slot};
  return absl::OkStatus();
}

// A worker that has worked is replaced at once, however short its life: a tenant's kernel may have
// ended it, and others wait. One that dies before it is ready is tried again later and later.
void Daemon::ScheduleStart(Slot* slot, bool was_ready) {
  // A tenant's own worker is for sessions that are there.
  if (stopping_ || (!slot->tenant.empty() && slot->waiting.empty())) return;
  if (was_ready || slot->back_off == 0) {
    slot->back_off = kWorkerRestartFirst;
  } else {
    slot->back_off = std::min(slot->back_off * 2, kWorkerRestartLast);
  }
  slot->restart = loop_->After(slot->back_off, [this, slot] {
    slot->restart = 0;
    const absl::Status started = StartWorker(slot);
    if (!started.ok()) {
      LOG(ERROR) << "device " << slot->device->index << ": " << started;
      ScheduleStart(slot, /*was_ready=*/false);
    }
  });
}

void Daemon::EndIfUnused(Slot* slot) {
  if (stopping_ || slot->tenant.empty() || !slot->ready() || !slot->waiting.empty() ||
      SessionsOf(slot->worker) != 0) {
    return;
  }
  WorkerProcess* worker = std::exchange(slot->worker, nullptr);
  worker->state = WorkerProcess::State::kDraining;
  const absl::Status told = worker->control().Send(Shutdown{});
  if (told.ok()) return;
  LOG(WARNING) << "worker " << worker->pid() << ": " << told;
  worker->Kill();
}

void Daemon::OnPacket(WorkerProcess* worker, ControlPacket& packet) {
  Ready ready;
  StartFailed failed;
  SessionEnded ended;
  Retired retired;
  UsageReport usage;
  UnsupportedCalls unsupported;
  MemoryReport memory;
  Calibrated speed;
  MoveEnded moved;
  TraceEnded trace;
  if (packet.As(&ready)) {
    OnReadyMessage(worker, ready);
  } else if (packet.As(&ended)) {
    EndSession(ended);
  } else if (packet.As(&moved)) {
    OnMoveEnded(moved);
  } else if (packet.As(&retired)) {
    ++devices_[worker->device_index()]->workers_retired;
    Drain(worker, GetText(retired.reason));
  } else if (packet.As(&unsupported)) {
    std::string name = GetText(unsupported.name);
    if (!unsupported_calls_.contains(name) && unsupported_calls_.size() >= kUnsupportedNamesMax) {
      name = "other";
    }
    if (!unsupported_calls_.contains(name)) {
      events_.Add(EventLevel::kWarning, absl::StrCat("a program called ", PrintableName(name),
                                                     ", which is not supported"));
    }
    unsupported_calls_[name] += unsupported.calls;
  } else if (packet.As(&trace)) {
    traces_.Ended(GetText(trace.path), GetText(trace.reason));
    events_.Add(EventLevel::kWarning, absl::StrCat("the trace ", PrintableName(GetText(trace.path)),
                                                   " ended: ", GetText(trace.reason)));
  } else if (packet.As(&speed)) {
    OnCalibrated(worker, speed);
  } else if (packet.As(&memory)) {
    Device& device = *devices_[worker->device_index()];
    if (device.packed.worker == worker) device.memory = memory;
  } else if (packet.As(&usage)) {
    const uint64_t count = std::min<uint64_t>(usage.count, kUsageEntriesMax);
    for (uint64_t i = 0; i < count; ++i) {
      usage_.Update(usage.entries[i]);
      const auto session = sessions_.find(usage.entries[i].session);
      if (session == sessions_.end()) continue;  // a report can cross the session's end
      session->second.recent.Report(MonotonicNow(), usage.entries[i].kernel_nanos);
    }
    if (usage.last != 0) {
      ShareWindow::DeviceTimes times;
      for (const auto& [id, session] : sessions_) {
        if (session.identity.device_index != worker->device_index()) continue;
        times[id] = usage_.Latest(id).device_nanos;
      }
      devices_[worker->device_index()]->shares.Add(MonotonicNow(), std::move(times));
    }
  } else if (packet.As(&failed)) {
    LOG(ERROR) << "device " << worker->device_index() << ": " << GetText(failed.text);
    ++errors_[kErrorWorkerStart];
    events_.Add(EventLevel::kError,
                absl::StrCat("device ", worker->device_index(),
                             " does not start: ", PrintableName(GetText(failed.text))));
    // Before anything worked this is a matter of configuration, for a person; later it is a fault
    // that a restart may mend.
    if (!ready_) {
      Fail(absl::FailedPreconditionError(absl::StrCat(
          GetText(failed.text), options_.device == "nvidia"
                                    ? "; is NVIDIA's driver installed and loaded (nvidia-smi)? "
                                      "--device cpu runs without a GPU"
                                    : "")));
    }
  } else {
    LOG(ERROR) << "worker " << worker->pid() << " sent a message of unknown kind "
               << static_cast<uint64_t>(packet.kind()) << "; ending it";
    worker->Kill();
  }
}

void Daemon::OnReadyMessage(WorkerProcess* worker, const Ready& ready) {
  Device* device = devices_[worker->device_index()].get();
  Slot* slot = workers_.at(worker).slot;
  worker->state = WorkerProcess::State::kReady;
  device->info = ready;
  device->calibrating = false;
  // It was started with the policy of then.
  SendSettings(worker);
  if (traces_.recording()) SendTrace(worker);
  LOG(INFO) << "device " << device->index << ": " << GetText(ready.snapshot.name) << ", "
            << ready.snapshot.total_bytes / kMiB << " MiB, driver " << GetText(ready.driver) << " "
            << ready.driver_version << ", worker " << worker->pid();
  events_.Add(EventLevel::kInfo,
              device->worker_starts == 1
                  ? absl::StrCat("device ", device->index,
                                 " is ready: ", PrintableName(GetText(ready.snapshot.name)))
                  : absl::StrCat("device ", device->index, " is ready again, with another worker"));
  if (!ready_ && device->index == 0) {
    const uint32_t count = std::min(ready.device_count, kDevicesMax);
    for (uint32_t index = 1; index < count; ++index) {
      AddDevice(index);
      const absl::Status started = StartWorker(&devices_.back()->packed);
      if (!started.ok()) return Fail(started);
    }
  }
  CheckAllReady();
  ServeWaiting(slot);
}

void Daemon::CheckAllReady() {
  if (ready_ || stopping_) return;
  for (const auto& device : devices_) {
    if (!device->info.has_value()) return;
  }
  if (options_.pool.has_value()) {
    const absl::StatusOr<bool> all = CalibrateAll();
    if (!all.ok()) return Fail(all.status());
    if (!*all) return;
  }
  const absl::Status opened = OpenDoors();
  if (!opened.ok()) return Fail(opened);
  ready_ = true;
  on_ready_();
}

absl::StatusOr<bool> Daemon::CalibrateAll() {
  for (const auto& device : devices_) {
    if (device->speed.has_value()) continue;
    if (device->packed.ready() && !device->calibrating) {
      RETURN_IF_ERROR(device->packed.worker->control().Send(Calibrate{}));
      device->calibrating = true;
    }
    return false;
  }
  return true;
}

void Daemon::OnCalibrated(WorkerProcess* worker, const Calibrated& speed) {
  Device* device = devices_[worker->device_index()].get();
  device->speed = speed;
  LOG_IF(INFO, speed.arithmetic > 0) << absl::StrFormat(
      "device %u: copies at %.2f GB/s, to the host at %.2f GB/s; kernels: memory at %.2f GB/s, "
      "%.3f TFLOP/s",
      device->index, speed.to_device / 1e9, speed.to_host / 1e9, speed.memory / 1e9,
      speed.arithmetic / 1e12);
  CheckAllReady();
}

absl::Status Daemon::OpenDoors() {
  greet_ = [this](Connection connection) {
    if (greeter_.full()) {
      // Only a VM's device comes here with the greeter full; sockets are paused then.
      LOG(WARNING) << connection.tenant << ": too many connections without a Hello; one dropped";
      return;
    }
    greeter_.Add(std::move(connection));
  };
  ASSIGN_OR_RETURN(unix_doors_[options_.socket_path],
                   Door::OpenUnix(loop_, options_.socket_path, "local", greet_));
  LOG(INFO) << "listening on " << options_.socket_path;
  RETURN_IF_ERROR(OpenTenantDoors());
  if (options_.vsock_port.has_value()) {
    auto door = Door::OpenVsock(loop_, *options_.vsock_port, greet_);
    if (door.ok()) {
      vsock_door_ = *std::move(door);
      LOG(INFO) << "listening on vsock port " << *options_.vsock_port;
    } else {
      LOG(INFO) << "no kernel vsock: " << door.status().message();
    }
  }
  vm_doors_ = std::make_unique<VmDoors>(loop_, options_.vm_group, greet_);
  for (const VmOptions& vm : options_.vms) RETURN_IF_ERROR(vm_doors_->Add(vm));
  RETURN_IF_ERROR(OpenVmDoors());
  return JoinPool();
}

absl::Status Daemon::JoinPool() {
  if (!options_.pool.has_value()) return absl::OkStatus();
  std::vector<PoolDevice> devices;
  for (const auto& device : devices_) devices.push_back({*device->info, *device->speed});
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
  hooks.tenant = [this](const std::string& tenant) { return settings_.Find(tenant); };
  hooks.administer = [this](UniqueFd connection, const gpool::Identity& peer) {
    admin_doors_->Adopt(std::move(connection), peer);
  };
  hooks.answer_alone = [this](Connection connection) {
    AnswerQuery(std::move(connection), /*status=*/false);
  };
  ASSIGN_OR_RETURN(
      pool_, PoolSessions::Start(loop_, *options_.pool, devices, kWindowLayout, std::move(hooks)));
  return absl::OkStatus();
}

absl::Status Daemon::OpenTenantDoors() {
  std::map<std::string, std::string> wanted;
  for (const Tenant& tenant : settings_.tenants().tenants) {
    if (!tenant.socket_path.empty()) wanted[tenant.socket_path] = tenant.name;
  }
  // A socket that is another tenant's now is opened anew.
  std::erase_if(unix_doors_, [&](const auto& entry) {
    const auto it = wanted.find(entry.first);
    return entry.first != options_.socket_path &&
           (it == wanted.end() || it->second != entry.second->tenant());
  });
  absl::Status status = absl::OkStatus();
  for (const auto& [path, tenant] : wanted) {
    if (unix_doors_.contains(path)) continue;
    auto door = Door::OpenUnix(loop_, path, tenant, greet_);
    status.Update(door.status());  // the others' doors open all the same
    if (!door.ok()) continue;
    unix_doors_[path] = *std::move(door);
    LOG(INFO) << "listening on " << path << " for tenant " << tenant << ", weight "
              << settings_.WeightOf(tenant);
  }
  return status;
}

absl::Status Daemon::ReloadTenants() {
  auto file = ReadTenants(options_.tenants_path);
  // There need not be one, but what one said is not taken back by its loss.
  if (absl::IsNotFound(file.status()) && settings_.tenants().tenants.empty()) file = TenantsFile();
  RETURN_IF_ERROR(file.status());
  const std::string policy = settings_.policy();
  std::map<std::string, Tenant> tenants = settings_.Tenants();
  settings_.Replace(*std::move(file));
  if (settings_.policy() != policy) {
    LOG(INFO) << "the policy is " << settings_.policy() << " now (was " << policy << ")";
    for (const auto& [worker, running] : workers_) SendSettings(worker);
  }
  for (const auto& [name, now] : settings_.Tenants()) {
    tenants.try_emplace(name, TenantsFile().Find(name));
  }
  for (const auto& [name, before] : tenants) SendTerms(before, settings_.Find(name));
  return OpenTenantDoors();
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
  for (const std::string& name : gone) {
    vm_doors_->Remove(name);
    events_.Add(EventLevel::kInfo, absl::StrCat("virtual machine ", name, " is gone"));
  }
  absl::Status status = absl::OkStatus();
  for (const VmOptions& vm : wanted) {
    if (vm_doors_->vms().contains(vm.name)) {
      vm_doors_->Change(vm);
    } else {
      const absl::Status added = vm_doors_->Add(vm);  // the others' doors open all the same
      status.Update(added);
      if (!added.ok()) continue;
      events_.Add(EventLevel::kInfo,
                  absl::StrCat("virtual machine ", vm.name, " of tenant ",
                               vm.tenant.empty() ? vm.name : vm.tenant, " has a socket"));
    }
  }
  return status;
}

void Daemon::Reload() {
  if (stopping_ || vm_doors_ == nullptr) return;
  if (account_.has_value()) {
    // Somebody may have moved it away.
    auto opened = AccountFile::Open(options_.account_path);
    if (opened.ok()) {
      account_ = *std::move(opened);
    } else {
      LOG(ERROR) << opened.status().message() << "; the one that is open goes on";
      ++errors_[kErrorAccount];
      events_.Add(EventLevel::kError, PrintableName(std::string(opened.status().message())));
    }
  }
  const absl::Status tenants = ReloadTenants();
  LOG_IF(ERROR, !tenants.ok()) << "reading the tenants' file again: " << tenants.message();
  const absl::Status vms = OpenVmDoors();
  LOG_IF(ERROR, !vms.ok()) << "reading the VMs' files again: " << vms.message();
  for (const absl::Status& status : {tenants, vms}) {
    if (status.ok()) continue;
    events_.Add(EventLevel::kError, absl::StrCat("reading files again: ",
                                                 PrintableName(std::string(status.message()))));
  }
  reload_failed_ = !tenants.ok() || !vms.ok();
  if (reload_failed_) return;
  LOG(INFO) << "read the files again: " << settings_.tenants().tenants.size() << " tenants, "
            << vm_doors_->vms().size() << " VMs";
}

bool Daemon::MayUse(const std::string& tenant, const Device& device) const {
  const GpuList list = settings_.Find(tenant).gpus;
  if (list.all()) return true;
  std::optional<uint32_t> number = device.index;
  if (pool_ != nullptr) number = pool_->GidOf(device.index);
  const wire::DeviceSnapshot& snapshot = device.info->snapshot;
  return list.Has(number.value_or(kNoNumber), UuidText(snapshot.uuid),
                  PrintableName(GetText(snapshot.name)));
}

std::vector<uint32_t> Daemon::DevicesFor(const Connection& connection) const {
  std::vector<uint32_t> shown;
  for (const auto& device : devices_) {
    if (shown.size() >= connection.devices_max) break;
    if (MayUse(connection.tenant, *device)) shown.push_back(device->index);
  }
  return shown;
}

void Daemon::Drain(WorkerProcess* worker, const std::string& reason) {
  if (worker->state == WorkerProcess::State::kDraining) return;
  Device* device = devices_[worker->device_index()].get();
  LOG(ERROR) << "device " << device->index << ": worker " << worker->pid()
             << " cannot go on: " << reason << "; its " << SessionsOf(worker)
             << " sessions stay with it, new ones get another";
  events_.Add(
      EventLevel::kError,
      absl::StrCat("device ", device->index, ": its worker cannot go on: ", PrintableName(reason),
                   "; ", SessionsOf(worker), " applications stay with it, new ones get another"));
  const bool was_ready = worker->state == WorkerProcess::State::kReady;
  worker->state = WorkerProcess::State::kDraining;
  Slot* slot = workers_.at(worker).slot;
  if (slot->worker == worker) {
    slot->worker = nullptr;
    ScheduleStart(slot, was_ready);
  }
}

void Daemon::OnGone(WorkerProcess* worker) {
  const auto it = workers_.find(worker);
  if (it == workers_.end()) return;
  const std::unique_ptr<WorkerProcess> owned = std::move(it->second.process);
  Slot* slot = it->second.slot;
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
    ++errors_[kErrorWorkerDied];
    events_.Add(EventLevel::kError,
                absl::StrCat("device ", device->index, ": its worker died, and ", lost.size(),
                             " applications lost it"));
  }
  // It has closed its socket, so it is about to exit; a driver can keep it from doing so.
  loop_->After(kWorkerExitTimeout, [this, pid = worker->pid()] {
    if (children_.contains(pid)) kill(pid, SIGKILL);
  });
  for (const SessionEnded& ended : lost) EndSession(ended);

  if (slot->worker == worker) {
    slot->worker = nullptr;
    if (!ready_ && !stopping_) {
      return Fail(absl::UnavailableError(
          absl::StrCat("the worker of device ", device->index, " died while starting")));
    }
    ScheduleStart(slot, worker->state == WorkerProcess::State::kReady);
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
  events_.Add(EventLevel::kWarning, absl::StrCat(PrintableName(connection.tenant),
                                                 " was refused: ", PrintableName(text)));
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
  OpenShown(std::move(connection), hello);
}

void Daemon::OpenShown(Connection connection, const wire::Hello& hello) {
  const std::vector<uint32_t> now = DevicesFor(connection);
  const std::vector<uint32_t> shown = hello.assembly != 0 ? DevicesOf(hello.assembly) : now;
  if (hello.device >= shown.size()) {
    return Refuse(std::move(connection), wire::kWelcomeNoDevice,
                  absl::StrCat("no device ", hello.device, "; there are ", shown.size()));
  }
  const uint32_t index = shown[hello.device];
  if (std::find(now.begin(), now.end(), index) == now.end()) {
    return Refuse(std::move(connection), wire::kWelcomeRefused,
                  absl::StrCat("device ", hello.device,
                               " is not this program's any more; start the program again"));
  }
  connection.vgpu = hello.device;
  connection.why = WhyShown(connection, hello.device, shown.size());
  OpenOn(index, std::move(connection), hello);
}

// A host by itself gives every program the same devices, in the order of their numbers.
std::string Daemon::WhyShown(const Connection& connection, uint32_t vgpu, size_t shown) const {
  std::string why =
      absl::StrCat("the program uses device ", vgpu, " of ", shown, " that it sees: ");
  const GpuList gpus = settings_.Find(connection.tenant).gpus;
  if (gpus.all()) {
    absl::StrAppend(&why, "its tenant may use all ", devices_.size(), " of this host");
  } else {
    absl::StrAppend(&why, "its tenant may use ", gpus.Text(), " only");
  }
  if (connection.devices_max < devices_.size()) {
    absl::StrAppend(&why, ", its machine sees ", connection.devices_max);
  }
  return why;
}

void Daemon::OpenOn(uint32_t index, Connection connection, const wire::Hello& hello) {
  if (index >= devices_.size()) {
    return Refuse(std::move(connection), wire::kWelcomeNoDevice,
                  absl::StrCat("no device ", index, "; there are ", devices_.size()));
  }
  if (!MayUse(connection.tenant, *devices_[index])) {
    const std::string text =
        MayNotUseText(connection.tenant, settings_.Find(connection.tenant).gpus,
                      absl::StrCat("device ", index, " of host ", node_));
    return Refuse(std::move(connection), wire::kWelcomeRefused, text);
  }
  if (devices_[index]->drained) {
    const Device* other = FindPlace(*devices_[index], connection.tenant, /*window=*/nullptr);
    if (other == nullptr) {
      return Refuse(std::move(connection), wire::kWelcomeRefused,
                    absl::StrCat("device ", index, " is drained, and there is no other"));
    }
    index = other->index;
  }
  Slot* slot = SlotOf(devices_[index].get(), connection.tenant);
  if (!slot->ready()) {
    if (slot->waiting.size() >= kSessionsPerWorker) {
      return Refuse(std::move(connection), wire::kWelcomeRefused,
                    "the device is starting and too many wait for it; try again");
    }
    slot->waiting.push_back({std::move(connection), hello, MonotonicNow() + kWorkerStartTimeout});
    loop_->After(kWorkerStartTimeout, [this, slot] { ExpireWaiting(slot); });
    if (slot->worker == nullptr && slot->restart == 0) ScheduleStart(slot, /*was_ready=*/true);
    return;
  }
  StartSession(slot, std::move(connection), hello);
}

void Daemon::AnswerQuery(Connection connection, bool status) {
  const std::vector<uint32_t> shown = DevicesFor(connection);
  if (shown.empty() && !devices_.empty() && connection.devices_max != 0) {
    const std::string text = MayNotUseText(
        connection.tenant, settings_.Find(connection.tenant).gpus, "a GPU of this host");
    return Refuse(std::move(connection), wire::kWelcomeNoDevice, text);
  }
  wire::Welcome welcome;
  welcome.device_count = static_cast<uint32_t>(shown.size());
  // In a pool a number is an assembly of the pool's; who is answered without it goes by what holds
  // when a session begins.
  if (pool_ == nullptr) welcome.assembly = ChoiceOf(shown);
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
    uses = UsesOf(connection, shown);
    processes = ProcessesOf(connection, shown);
    welcome.process_count = static_cast<uint32_t>(processes.size());
  }
  std::string bytes;
  const auto append = [&bytes](const auto& value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  append(welcome);
  const Bytes quota = settings_.tenants().Find(connection.tenant).memory_hard;
  for (const uint32_t index : shown) {
    wire::DeviceSnapshot snapshot = devices_[index]->info->snapshot;
    if (quota != 0) snapshot.total_bytes = quota;
    // Behind a guest's proxy, a program sees a UNIX socket and cannot know.
    if (!connection.shares_memory) {
      snapshot.attributes[CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] = 0;
    }
    append(snapshot);
  }
  for (const wire::DeviceUse& use : uses) append(use);
  for (const wire::ProcessUse& process : processes) append(process);
  greeter_.Answer(std::move(connection), std::move(bytes));
}

std::vector<wire::DeviceUse> Daemon::UsesOf(const Connection& connection,
                                            const std::vector<uint32_t>& shown) const {
  const Nanos now = MonotonicNow();
  std::vector<wire::DeviceUse> of_device(devices_.size());
  std::vector<uint64_t> used_by_all(devices_.size());
  for (const auto& [id, session] : sessions_) {
    const uint32_t index = session.identity.device_index;
    const uint64_t bytes = usage_.Latest(id).memory_bytes;
    used_by_all[index] += bytes;
    if (session.identity.tenant != connection.tenant) continue;
    of_device[index].used_bytes += bytes;
    of_device[index].busy_percent =
        std::min(100u, of_device[index].busy_percent + session.recent.BusyPercent(now));
  }
  const Bytes quota = settings_.tenants().Find(connection.tenant).memory_hard;
  std::vector<wire::DeviceUse> uses;
  for (const uint32_t index : shown) {
    wire::DeviceUse& use = uses.emplace_back(of_device[index]);
    const Bytes device_bytes = devices_[index]->info->snapshot.total_bytes;
    use.total_bytes = quota != 0 ? quota : device_bytes;
    // With swapping there can be more in use than the device has.
    use.free_bytes = std::min(device_bytes - std::min(device_bytes, used_by_all[index]),
                              use.total_bytes - std::min(use.total_bytes, use.used_bytes));
  }
  return uses;
}

std::vector<wire::ProcessUse> Daemon::ProcessesOf(const Connection& connection,
                                                  const std::vector<uint32_t>& shown) const {
  static_assert(kWindowSlots <= kProcessUsesMax);  // a tenant's sessions have a window each
  const Nanos now = MonotonicNow();
  const std::string& vm = connection.vm.empty() ? connection.tenant : connection.vm;
  std::vector<wire::ProcessUse> processes;
  for (const auto& [id, session] : sessions_) {
    const auto device = std::find(shown.begin(), shown.end(), session.identity.device_index);
    if (session.identity.tenant != connection.tenant || session.identity.vm != vm ||
        device == shown.end()) {
      continue;
    }
    wire::ProcessUse& process = processes.emplace_back();
    process.device = static_cast<uint32_t>(device - shown.begin());
    process.pid = session.identity.pid;
    process.memory_bytes = usage_.Latest(id).memory_bytes;
    process.busy_percent = session.recent.BusyPercent(now);
    SetText(process.application, session.identity.application);
  }
  return processes;
}

uint32_t Daemon::WeightOf(const Connection& connection) const {
  if (connection.weight != 0) return connection.weight;
  if (const auto set = settings_.SetWeightOf(connection.tenant); set.has_value()) return *set;
  if (pool_ != nullptr) {
    if (const auto weight = pool_->WeightOf(connection.tenant); weight.has_value()) return *weight;
  }
  return settings_.WeightOf(connection.tenant);
}

void Daemon::StartSession(Slot* slot, Connection connection, const wire::Hello& hello) {
  Device* device = slot->device;
  if (SessionsOf(slot->worker) >= kSessionsPerWorker) {
    return Refuse(std::move(connection), wire::kWelcomeRefused,
                  absl::StrCat("device ", device->index, " has its limit of ", kSessionsPerWorker,
                               " applications"));
  }
  SlotSet except = SlotsOf(connection.tenant);
  for (size_t i = 0; i < except.size(); ++i) except[i] |= connection.slots_taken[i];
  const std::optional<Window> window = device->windows.Take(
      kWindowMemoryMultiple * device->info->snapshot.total_bytes + kWindowSharedHostBytes, except);
  if (!window.has_value()) {
    return Refuse(
        std::move(connection), wire::kWelcomeRefused,
        absl::StrCat("no address window of device ", device->index, " is free: a device has ",
                     kWindowSlots, ", and so many has a tenant on all devices"));
  }
  OpenSession open;
  open.session = next_session_++;
  SetText(open.tenant, connection.tenant);
  SetText(open.channel, connection.front_door);
  const Tenant tenant = settings_.Find(connection.tenant);
  open.weight = WeightOf(connection);
  open.priority = tenant.priority;
  open.memory_soft = tenant.memory_soft;
  open.memory_hard = tenant.memory_hard;
  open.memory_wait_ms = tenant.memory_wait_ms;
  open.stream_priority = static_cast<uint32_t>(tenant.stream_priority);
  open.rates = connection.rates.value_or(tenant.rates);
  open.partition = settings_.tenants().PartitionOf(connection.tenant);
  open.hello = hello;
  // What passes descriptors ends at this daemon, whatever the guest believes.
  if (!connection.shares_memory) open.hello.features &= ~wire::kFeatureRings;
  open.window_base = window->base;
  open.window_bytes = window->bytes;
  open.shared_host_bytes = connection.shares_memory ? kWindowSharedHostBytes : 0;
  const absl::Status sent = slot->worker->control().Send(open, connection.fd.get());
  if (!sent.ok()) {
    device->windows.Return(*window);
    return Refuse(std::move(connection), wire::kWelcomeRefused,
                  "the device's worker does not answer; try again");
  }
  Session session;
  session.open = open;
  session.identity.tenant = connection.tenant;
  session.identity.vm = connection.vm.empty() ? connection.tenant : connection.vm;
  session.identity.front_door = connection.front_door;
  session.identity.application = GetText(hello.application);
  session.identity.pid = hello.pid;
  session.identity.device = GetText(device->info->snapshot.name);
  session.identity.device_index = device->index;
  session.window = *window;
  session.assembly = connection.assembly;
  session.vgpu = connection.vgpu;
  session.why = connection.why;
  if (pool_ != nullptr) pool_->LocalBegan(connection.assembly, *window);
  session.worker = slot->worker;
  session.weight = open.weight;
  session.started_unix_seconds = static_cast<uint64_t>(time(nullptr));
  session.started = MonotonicNow();
  usage_.Begin(open.session, {session.identity.tenant, session.identity.application,
                              session.identity.device_index});
  sessions_.emplace(open.session, std::move(session));
}

SlotSet Daemon::SlotsOf(const std::string& tenant) const {
  SlotSet slots = {};
  for (const auto& [id, session] : sessions_) {
    if (session.identity.tenant == tenant) kWindowLayout.Add(session.window, &slots);
  }
  return slots;
}

void Daemon::ServeWaiting(Slot* slot) {
  std::deque<WaitingSession> waiting;
  waiting.swap(slot->waiting);
  for (WaitingSession& session : waiting) {
    StartSession(slot, std::move(session.connection), session.hello);
  }
  EndIfUnused(slot);
}

void Daemon::ExpireWaiting(Slot* slot) {
  while (!slot->waiting.empty() && slot->waiting.front().deadline <= MonotonicNow()) {
    WaitingSession session = std::move(slot->waiting.front());
    slot->waiting.pop_front();
    Refuse(
        std::move(session.connection), wire::kWelcomeRefused,
        absl::StrCat("device ", slot->device->index, " did not start in time; see consortd's log"));
  }
}

void Daemon::Account(const SessionIdentity& identity, const SessionEnded& used) {
  if (!account_.has_value()) return;
  const std::string line = AccountLine(identity, used);
  const absl::Status appended = account_->Append(line);
  if (appended.ok()) return;
  LOG(ERROR) << appended.message() << "; lost: " << line;
  ++errors_[kErrorAccount];
  events_.Add(EventLevel::kError, PrintableName(std::string(appended.message())));
}

void Daemon::AccountOpenSessions() {
  for (auto& [id, session] : sessions_) {
    if (session.stage == Session::Stage::kArriving) continue;
    const SessionUsage usage = usage_.Latest(id);
    SessionEnded total = session.told;
    total.started_unix_seconds = session.started_unix_seconds;
    total.lasted_nanos = static_cast<uint64_t>(MonotonicNow() - session.started);
    total.calls = usage.calls;
    total.round_trips = usage.round_trips;
    total.bytes_to_device = usage.bytes_to_device;
    total.bytes_to_host = usage.bytes_to_host;
    total.kernel_launches = usage.kernel_launches;
    total.kernel_nanos = usage.kernel_nanos;
    total.device_nanos = usage.device_nanos;
    total.queued_nanos = usage.queued_nanos;
    total.memory_byte_seconds = usage.memory_byte_seconds;
    total.memory_peak_bytes = usage.memory_bytes;
    total.weight = settings_.WeightOf(session.identity.tenant);
    SetText(total.reason, "open");
    if (total.calls == session.told.calls && total.device_nanos == session.told.device_nanos &&
        total.memory_byte_seconds == session.told.memory_byte_seconds) {
      continue;  // it used nothing
    }
    Account(session.identity, AccountSince(total, session.told));
    session.told = total;
  }
  loop_->After(options_.account_every, [this] { AccountOpenSessions(); });
}

void Daemon::EndSession(SessionEnded ended) {
  const auto it = sessions_.find(ended.session);
  if (it == sessions_.end()) {
    LOG(ERROR) << "a worker ended session " << ended.session << ", which is not there";
    return;
  }
  if (moves_.Find(ended.session) != nullptr) {
    EndMove(ended.session, absl::CancelledError("the application has ended"));
  }
  const Session& session = it->second;
  const SessionIdentity& identity = session.identity;
  // One that never arrived was never here; one that has served was, whoever says so first.
  if (session.stage != Session::Stage::kArriving || ended.calls != 0) {
    usage_.End(&ended);
    const std::string line = AccountLine(identity, ended);
    LOG(INFO) << "session " << ended.session << " ended: " << line.substr(0, line.size() - 1);
    Account(identity, AccountSince(ended, session.told));
  }
  devices_[identity.device_index]->windows.Return(session.window);
  if (pool_ != nullptr) {
    pool_->LocalEnded(session.assembly);
    const Device& device = *devices_[identity.device_index];
    pool_->Record(identity.application, {*device.info, *device.speed}, ended);
  }
  WorkerProcess* worker = session.worker;
  sessions_.erase(it);
  if (const auto running = workers_.find(worker); running != workers_.end()) {
    EndIfUnused(running->second.slot);
  }
}

void Daemon::SendSettings(WorkerProcess* worker) {
  SetScheduler policy;
  SetText(policy.name, settings_.policy());
  const absl::Status sent = worker->control().Send(policy);
  LOG_IF(ERROR, !sent.ok()) << "worker " << worker->pid() << " was not told its policy: " << sent;
}

absl::Status Daemon::SetPolicy(const std::optional<std::string>& policy, const std::string& who) {
  const std::string before = settings_.policy();
  RETURN_IF_ERROR(settings_.SetPolicy(policy, who, static_cast<uint64_t>(time(nullptr))));
  LOG(INFO) << who << " set the policy to " << settings_.policy() << " (was " << before << ")";
  events_.Add(EventLevel::kInfo, absl::StrCat("the scheduler is ", settings_.policy(), ", was ",
                                              before, "; set by ", who));
  // The same policy anew would forget what tenants owe.
  if (settings_.policy() == before) return absl::OkStatus();
  for (const auto& [worker, owned] : workers_) SendSettings(worker);
  return absl::OkStatus();
}

absl::Status Daemon::SetTenant(const TenantChange& change, const std::string& who) {
  const Tenant before = settings_.Find(change.tenant);
  RETURN_IF_ERROR(settings_.SetTenant(change, who, static_cast<uint64_t>(time(nullptr))));
  const Tenant now = settings_.Find(change.tenant);
  const auto tell = [&](const char* what, const auto& is, const auto& was) {
    const std::string name = PrintableName(change.tenant);
    LOG(INFO) << who << " set the " << what << " of " << name << " to " << is << " (was " << was
              << ")";
    events_.Add(EventLevel::kInfo, absl::StrCat("the ", what, " of ", name, " is ", is, ", was ",
                                                was, "; set by ", who));
  };
  if (change.weight.has_value()) tell("weight", now.weight, before.weight);
  if (change.gpus.has_value()) tell("list of GPUs", now.gpus.Text(), before.gpus.Text());
  if (change.launches_per_second.has_value()) {
    tell("limit of launches a second", RateText(now.rates.launches_per_second),
         RateText(before.rates.launches_per_second));
  }
  if (change.copy_bytes_per_second.has_value()) {
    tell("limit of bytes copied a second", RateText(now.rates.copy_bytes_per_second),
         RateText(before.rates.copy_bytes_per_second));
  }
  SendTerms(before, now);
  return absl::OkStatus();
}

absl::Status Daemon::Trace(const TraceRequest& request, const std::string& who) {
  if (request.record) {
    RETURN_IF_ERROR(traces_.Begin(options_.trace_folder, request.bytes_max, who,
                                  static_cast<uint64_t>(time(nullptr))));
  } else {
    RETURN_IF_ERROR(traces_.End());
  }
  const std::string done = absl::StrCat(who, request.record ? " began" : " ended",
                                        " the schedulers' traces in ", options_.trace_folder);
  LOG(INFO) << done;
  events_.Add(EventLevel::kInfo, done);
  for (const auto& [worker, running] : workers_) {
    if (worker->state != WorkerProcess::State::kStarting) SendTrace(worker);
  }
  return absl::OkStatus();
}

std::string Daemon::Traces() const { return traces_.Json(); }

void Daemon::SendTrace(WorkerProcess* worker) {
  SetTrace message;
  SetText(message.policy, settings_.policy());
  message.bytes_max = traces_.bytes_max();
  if (traces_.recording()) {
    const absl::StatusOr<std::string> path = traces_.NextFile(worker->device_index());
    if (!path.ok() || path->size() >= sizeof(message.path)) {
      LOG(ERROR) << "no trace of worker " << worker->pid() << ": "
                 << (path.ok() ? absl::InvalidArgumentError("its path is too long")
                               : path.status());
      return;
    }
    SetText(message.path, *path);
  }
  const absl::Status sent = worker->control().Send(message);
  LOG_IF(ERROR, !sent.ok()) << "worker " << worker->pid() << " was not told of traces: " << sent;
}

void Daemon::Denied(const std::string& who, const std::string& what) {
  LOG(WARNING) << who << " was denied a change of " << PrintableName(what);
  events_.Add(EventLevel::kWarning,
              absl::StrCat(who, " was denied a change of ", PrintableName(what)));
}

void Daemon::SendTerms(const Tenant& before, const Tenant& now) {
  host::SetWeight weight;
  SetText(weight.tenant, now.name);
  weight.weight = now.weight;
  SetRates rates;
  SetText(rates.tenant, now.name);
  rates.rates = now.rates;
  for (auto& [id, session] : sessions_) {
    if (session.identity.tenant == now.name) session.weight = now.weight;
  }
  for (const auto& [worker, running] : workers_) {
    absl::Status sent = absl::OkStatus();
    if (before.weight != now.weight) sent.Update(worker->control().Send(weight));
    if (before.rates != now.rates) sent.Update(worker->control().Send(rates));
    LOG_IF(ERROR, !sent.ok()) << "worker " << worker->pid()
                              << " was not told a tenant's terms: " << sent;
  }
}

void Daemon::AddShares(const Device& device, DaemonStatus* status) const {
  const ShareWindow::DeviceTimes used = device.shares.Used();
  const Nanos span = device.shares.span();
  uint64_t all = 0;
  for (const auto& [session, nanos] : used) all += nanos;
  std::map<std::string, TenantShare> tenants;
  for (SessionStatus& session : status->sessions) {
    if (session.device != device.index) continue;
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

size_t Daemon::SessionsOf(const WorkerProcess* worker) const {
  return static_cast<size_t>(
      std::count_if(sessions_.begin(), sessions_.end(),
                    [worker](const auto& entry) { return entry.second.worker == worker; }));
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
    out.worker_starts = device->worker_starts;
    out.workers_retired = device->workers_retired;
    out.windows_used = kWindowSlots - device->windows.free_slots();
  }
  for (const auto& [id, session] : sessions_) {
    if (session.stage != Session::Stage::kOpen) continue;
    SessionStatus& out = status.sessions.emplace_back();
    out.id = id;
    out.tenant = session.identity.tenant;
    out.vm = session.identity.vm;
    out.application = session.identity.application;
    out.pid = session.identity.pid;
    out.front_door = session.identity.front_door;
    out.device = session.identity.device_index;
    out.worker_pid = session.worker->pid();
    out.assembly = session.assembly;
    out.vgpu = session.vgpu;
    out.why = session.why;
    out.weight = session.weight;
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
  for (const auto& device : devices_) AddShares(*device, &status);
  status.policy = settings_.policy();
  for (auto& [name, tenant] : settings_.Tenants()) {
    status.weights[name] = tenant.weight;
    status.limits[name] = {std::move(tenant.gpus), tenant.rates};
  }
  for (const SessionStatus& session : status.sessions) {
    status.weights.try_emplace(session.tenant, session.weight);
  }
  status.reload_failed = reload_failed_;
  status.usage = usage_.totals();
  status.refused = refused_;
  status.errors = errors_;
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
    const auto stop = [this](Slot* slot) {
      if (slot->restart != 0) loop_->Cancel(slot->restart);
      slot->waiting.clear();
    };
    stop(&device->packed);
    for (auto& [tenant, slot] : device->own) stop(&slot);
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
