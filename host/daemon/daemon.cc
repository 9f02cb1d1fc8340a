// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/daemon.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "host/limits.h"

namespace consort::host {
namespace {

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
          [this] { PaceDoors(); }),
      greet_([this](Connection connection) {
        if (greeter_.full()) {
          // Only a VM's device comes here with the greeter full; sockets are paused then.
          LOG(WARNING) << connection.tenant
                       << ": too many connections without a Hello; one dropped";
          return;
        }
        greeter_.Add(std::move(connection));
      }),
      node_(HostName()),
      events_([] { return static_cast<uint64_t>(time(nullptr)); }),
      keeper_(loop),
      started_unix_seconds_(static_cast<uint64_t>(time(nullptr))),
      tasks_(loop) {}

Daemon::~Daemon() {
  cancel_tasks_.store(true, std::memory_order_relaxed);
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
  RETURN_IF_ERROR(OpenSaves());
  if (options_.bind_at_launch) {
    ASSIGN_OR_RETURN(binder_, Binder::Make(options_.binding));
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

void Daemon::CheckAllReady() {
  if (ready_ || stopping_) return;
  for (const auto& device : devices_) {
    if (!device->info.has_value()) return;
  }
  if (options_.pool.has_value() || options_.balance) {
    const absl::StatusOr<bool> all = CalibrateAll();
    if (!all.ok()) return Fail(all.status());
    if (!*all) return;
  }
  const absl::Status opened = OpenDoors();
  if (!opened.ok()) return Fail(opened);
  ready_ = true;
  if (options_.balance) Balance();
  on_ready_();
}

absl::Status Daemon::OpenDoors() {
  if (!unix_doors_.contains(options_.socket_path)) {
    ASSIGN_OR_RETURN(unix_doors_[options_.socket_path],
                     Door::OpenUnix(loop_, options_.socket_path, "local", greet_));
    LOG(INFO) << "listening on " << options_.socket_path;
  }
  RETURN_IF_ERROR(OpenTenantDoors());
  if (options_.vsock_port.has_value() && vsock_door_ == nullptr) {
    auto door = Door::OpenVsock(loop_, *options_.vsock_port, greet_);
    if (door.ok()) {
      vsock_door_ = *std::move(door);
      LOG(INFO) << "listening on vsock port " << *options_.vsock_port;
    } else {
      LOG(INFO) << "no kernel vsock: " << door.status().message();
    }
  }
  if (vm_doors_ == nullptr) {
    vm_doors_ = std::make_unique<VmDoors>(
        loop_, VmDoors::Options{options_.vm_group, options_.vm_copy_threads}, greet_);
  }
  for (const VmOptions& vm : options_.vms) {
    if (!vm_doors_->vms().contains(vm.name)) RETURN_IF_ERROR(vm_doors_->Add(vm));
  }
  RETURN_IF_ERROR(OpenVmDoors());
  return JoinPool();
}

void Daemon::PaceDoors() {
  // The kernel's queue holds what comes while the greeter is full, or while nobody may begin.
  const auto pace = [this](Door* door) {
    if (greeter_.full() || handing_over_) {
      door->Pause();
    } else {
      door->Resume();
    }
  };
  for (const auto& [path, door] : unix_doors_) pace(door.get());
  if (vsock_door_ != nullptr) pace(vsock_door_.get());
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
  hooks.tenants = [this](const gpool::TenantValues& values) { TakePoolTenants(values); };
  hooks.administer = [this](UniqueFd connection, const gpool::Identity& peer) {
    admin_doors_->Adopt(std::move(connection), peer);
  };
  hooks.answer_alone = [this](Connection connection) {
    AnswerQuery(std::move(connection), wire::Hello());
  };
  ASSIGN_OR_RETURN(
      pool_, PoolSessions::Start(loop_, *options_.pool, devices, kWindowLayout, std::move(hooks)));
  return absl::OkStatus();
}

void Daemon::Fail(absl::Status status) {
  if (stopping_) return;
  Stop();
  on_end_(std::move(status));
}

void Daemon::Stop() {
  if (stopping_) return;
  stopping_ = true;
  cancel_tasks_.store(true, std::memory_order_relaxed);
  if (rehearsal_ != nullptr) rehearsal_->Kill();
  unix_doors_.clear();
  vsock_door_.reset();
  vm_doors_.reset();
  admin_doors_.reset();
  pool_.reset();
  greeter_.Clear();
  std::vector<uint64_t> held;
  for (const auto& [id, session] : sessions_) {
    if (session.stage == Session::Stage::kHeld && moves_.Find(id) == nullptr) held.push_back(id);
  }
  for (const uint64_t id : held) EndHeld(id, "consortd ends");
  for (const auto& device : devices_) {
    const auto stop = [this](Slot* slot) {
      if (slot->restart != 0) loop_->Cancel(slot->restart);
      if (slot->standby_start != 0) loop_->Cancel(slot->standby_start);
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
  if (!stopping_ || !children_.empty() || !workers_.empty() || tasks_.running() != 0) return;
  if (stop_timer_ != 0) loop_->Cancel(stop_timer_);
  stop_timer_ = 0;
  on_end_(absl::OkStatus());
}

}  // namespace consort::host
