// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/vm_doors.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "host/limits.h"
#include "vmsock/wire/handshake.h"

namespace consort::host {
namespace {

// A guest has one vsock device, so its address need not differ from that of other VMs.
constexpr uint32_t kGuestCid = 3;
constexpr mode_t kOwnSocketMode = 0600;
constexpr mode_t kGroupSocketMode = 0660;

}  // namespace

// What a connection of VM `name` to `port` is joined to. On the thread of its device.
absl::StatusOr<UniqueFd> VmDoors::Connect(EventLoop* loop, const std::string& name,
                                          const std::string& socket_path, uint32_t port,
                                          uint32_t guest_port,
                                          const std::shared_ptr<Shared>& shared) {
  if (port != wire::kVsockPort) {
    const std::string path = absl::StrCat(socket_path, "_", port);
    UniqueFd fd = ConnectUnix(path);
    if (!fd.valid()) return absl::NotFoundError(absl::StrCat("nobody listens on ", path));
    return fd;
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("socketpair: ", strerror(errno)));
  }
  UniqueFd device_end(ends[0]);
  Connection connection;
  connection.fd.Reset(ends[1]);
  connection.vm = name;
  connection.front_door = kVhostUserDoor;
  connection.peer = absl::StrCat("port ", guest_port);
  {
    absl::MutexLock lock(&shared->mutex);
    shared->arrived.push_back(std::move(connection));
  }
  loop->Post([shared] { Deliver(shared.get()); });
  return device_end;
}

void VmDoors::Deliver(Shared* shared) {
  std::vector<Connection> arrived;
  {
    absl::MutexLock lock(&shared->mutex);
    arrived.swap(shared->arrived);
  }
  for (Connection& connection : arrived) {
    const auto vm = shared->vms.find(connection.vm);
    if (!shared->on_connection || vm == shared->vms.end()) continue;
    const VmOptions& options = vm->second;
    connection.tenant = options.tenant.empty() ? options.name : options.tenant;
    connection.devices_max = options.vgpus.value_or(UINT32_MAX);
    shared->on_connection(std::move(connection));
  }
}

VmDoors::VmDoors(EventLoop* loop, const Options& options, OnConnection on_connection)
    : loop_(loop),
      group_(options.group),
      crew_({.threads = options.copy_threads.value_or(
                 CopyCrew::ThreadsFor(std::thread::hardware_concurrency()))}),
      shared_(std::make_shared<Shared>()) {
  shared_->on_connection = std::move(on_connection);
}

absl::Status VmDoors::Add(const VmOptions& vm) {
  if (doors_.size() >= kVmsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("VM ", vm.name, ": this host has its limit of ", kVmsMax));
  }
  if (doors_.contains(vm.name)) {
    return absl::AlreadyExistsError(absl::StrCat("VM ", vm.name, " is named twice"));
  }
  const std::filesystem::path folder = std::filesystem::path(vm.socket_path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("VM ", vm.name, ": ", folder.string(), ": ", error.message()));
  }
  auto device = vhost_user::VsockDevice::Create(OptionsOf(vm), HandlerOf(vm));
  if (!device.ok()) {
    return absl::Status(device.status().code(),
                        absl::StrCat("VM ", vm.name, ": ", device.status().message()));
  }
  RETURN_IF_ERROR(UpdateMemory(vm));
  Start(vm, *std::move(device));
  LOG(INFO) << "VM " << vm.name << ": vhost-user vsock device on " << vm.socket_path;
  return absl::OkStatus();
}

absl::Status VmDoors::UpdateMemory(const VmOptions& vm) {
  const std::shared_ptr<VmMemoryFile> present = MemoryOf(vm.name);
  if ((present != nullptr ? present->bytes() : 0) == vm.shared_memory) return absl::OkStatus();
  if (present != nullptr && present->lent_bytes() != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("VM ", vm.name, ": programs of it use its shared memory of ",
                     present->bytes() / kMiB, " MiB, which stays; try again when none runs"));
  }
  memories_.erase(vm.name);
  if (present != nullptr) present->Unlink();
  if (vm.shared_memory == 0) return absl::OkStatus();
  auto made = VmMemoryFile::Create({vm.memory_path, vm.shared_memory, group_});
  if (!made.ok()) {
    return absl::Status(made.status().code(),
                        absl::StrCat("VM ", vm.name, ": ", made.status().message()));
  }
  memories_[vm.name] = *std::move(made);
  LOG(INFO) << "VM " << vm.name << ": shared memory of " << vm.shared_memory / kMiB << " MiB in "
            << vm.memory_path;
  return absl::OkStatus();
}

std::shared_ptr<VmMemoryFile> VmDoors::MemoryOf(const std::string& name) const {
  const auto it = memories_.find(name);
  return it != memories_.end() ? it->second : nullptr;
}

vhost_user::VsockDeviceOptions VmDoors::OptionsOf(const VmOptions& vm) {
  vhost_user::VsockDeviceOptions options;
  options.socket_path = vm.socket_path;
  options.socket_mode = group_.has_value() ? kGroupSocketMode : kOwnSocketMode;
  options.socket_group = group_;
  options.guest_cid = kGuestCid;
  options.copy_crew = &crew_;
  return options;
}

vhost_user::ConnectHandler VmDoors::HandlerOf(const VmOptions& vm) const {
  return [loop = loop_, name = vm.name, path = vm.socket_path, shared = shared_](
             uint32_t port, uint32_t guest_port) {
    return Connect(loop, name, path, port, guest_port, shared);
  };
}

void VmDoors::Start(const VmOptions& vm, std::unique_ptr<vhost_user::VsockDevice> device) {
  Door& door = doors_[vm.name];
  door.device = std::move(device);
  shared_->vms[vm.name] = vm;
  Run(vm.name, &door);
}

void VmDoors::Run(const std::string& name, Door* door) {
  door->thread = std::thread([borrowed = door->device.get(), name] {
    const absl::Status ran = borrowed->Run();
    LOG_IF(ERROR, !ran.ok()) << "VM " << name << ": its vsock device ended: " << ran;
  });
}

void VmDoors::Pause() {
  for (auto& [name, door] : doors_) door.device->Stop();
  for (auto& [name, door] : doors_) door.thread.join();
  Deliver(shared_.get());
}

void VmDoors::GoOn() {
  for (auto& [name, door] : doors_) Run(name, &door);
}

std::vector<DaemonState::Vm> VmDoors::Save() const {
  std::vector<DaemonState::Vm> states;
  for (const auto& [name, door] : doors_) {
    const VmOptions& vm = shared_->vms.at(name);
    DaemonState::Vm& state = states.emplace_back();
    state.name = name;
    state.socket_path = vm.socket_path;
    state.tenant = vm.tenant;
    if (vm.vgpus.has_value()) state.vgpus = {*vm.vgpus};
    state.device = door.device->Save();
    if (const auto memory = MemoryOf(name); memory != nullptr) {
      state.memory = {{memory->path(), memory->bytes(), memory->fd()}};
    }
  }
  return states;
}

absl::Status VmDoors::Restore(const DaemonState::Vm& state, InheritedFds* fds) {
  VmOptions vm;
  vm.name = state.name;
  vm.socket_path = state.socket_path;
  vm.tenant = state.tenant;
  if (!state.vgpus.empty()) vm.vgpus = state.vgpus.front();
  for (const DaemonState::VmMemory& memory : state.memory) {
    auto adopted = VmMemoryFile::Adopt(memory.path, memory.bytes, fds->Take(memory.file));
    // Without it its programs' sessions could not be told apart from others'.
    RETURN_IF_ERROR(adopted.status());
    vm.memory_path = memory.path;
    vm.shared_memory = memory.bytes;
    memories_[vm.name] = *std::move(adopted);
  }
  auto device = vhost_user::VsockDevice::Restore(OptionsOf(vm), HandlerOf(vm), state.device, fds);
  if (device.ok()) {
    Start(vm, *std::move(device));
    return absl::OkStatus();
  }
  // Its programs and its VMM see the end of their connections now.
  for (const int descriptor : vhost_user::DescriptorsOf(state.device)) fds->Take(descriptor);
  absl::Status status(
      device.status().code(),
      absl::StrCat("VM ", vm.name, " is without its vsock device until it is ",
                   "started again, which could not go on: ", device.status().message()));
  if (const absl::Status added = Add(vm); !added.ok()) {
    return absl::Status(added.code(), absl::StrCat(status.message(), "; ", added.message()));
  }
  return status;
}

absl::Status VmDoors::Change(const VmOptions& vm) {
  shared_->vms.at(vm.name) = vm;
  return UpdateMemory(vm);
}

void VmDoors::Remove(const std::string& name) {
  const auto it = doors_.find(name);
  if (it == doors_.end()) return;
  it->second.device->Stop();
  it->second.thread.join();
  doors_.erase(it);
  shared_->vms.erase(name);
  if (const auto memory = MemoryOf(name); memory != nullptr) memory->Unlink();
  memories_.erase(name);
  LOG(INFO) << "VM " << name << ": its vsock device is closed";
}

VmDoors::~VmDoors() {
  for (auto& [name, door] : doors_) door.device->Stop();
  for (auto& [name, door] : doors_) door.thread.join();
  shared_->on_connection = nullptr;
}

}  // namespace consort::host
