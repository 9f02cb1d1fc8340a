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
#include "vmsock/wire/handshake.h"

namespace consort::host {
namespace {

// A guest has one vsock device, so its address need not differ from that of other VMs.
constexpr uint32_t kGuestCid = 3;

// What a connection of VM `vm` to `port` is joined to.
absl::StatusOr<UniqueFd> Connect(EventLoop* loop, const VmOptions& vm, uint32_t port,
                                 uint32_t guest_port,
                                 const std::shared_ptr<OnConnection>& on_connection) {
  if (port != wire::kVsockPort) {
    const std::string path = absl::StrCat(vm.socket_path, "_", port);
    UniqueFd fd = ConnectUnix(path);
    if (!fd.valid()) return absl::NotFoundError(absl::StrCat("nobody listens on ", path));
    return fd;
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("socketpair: ", strerror(errno)));
  }
  UniqueFd device_end(ends[0]);
  // Shared: a function that can be posted must be copyable, and a descriptor is not.
  auto connection = std::make_shared<Connection>();
  connection->fd.Reset(ends[1]);
  connection->tenant = vm.name;
  connection->front_door = "vhost-user";
  connection->peer = absl::StrCat("port ", guest_port);
  loop->Post([on_connection, connection] {
    if (*on_connection) (*on_connection)(std::move(*connection));
  });
  return device_end;
}

}  // namespace

absl::StatusOr<std::unique_ptr<VmDoors>> VmDoors::Open(EventLoop* loop,
                                                       const std::vector<VmOptions>& vms,
                                                       OnConnection on_connection) {
  std::unique_ptr<VmDoors> doors(new VmDoors());
  const auto shared = std::make_shared<OnConnection>(std::move(on_connection));
  doors->on_connection_ = shared;
  for (const VmOptions& vm : vms) {
    const std::filesystem::path folder = std::filesystem::path(vm.socket_path).parent_path();
    std::error_code error;
    if (!folder.empty()) std::filesystem::create_directories(folder, error);
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("VM ", vm.name, ": ", folder.string(), ": ", error.message()));
    }
    vhost_user::VsockDeviceOptions options;
    options.socket_path = vm.socket_path;
    options.guest_cid = kGuestCid;
    auto device = vhost_user::VsockDevice::Create(
        options, [loop, vm, shared](uint32_t port, uint32_t guest_port) {
          return Connect(loop, vm, port, guest_port, shared);
        });
    if (!device.ok()) {
      return absl::Status(device.status().code(),
                          absl::StrCat("VM ", vm.name, ": ", device.status().message()));
    }
    Door door;
    door.device = *std::move(device);
    door.thread = std::thread([borrowed = door.device.get(), name = vm.name] {
      const absl::Status ran = borrowed->Run();
      LOG_IF(ERROR, !ran.ok()) << "VM " << name << ": its vsock device ended: " << ran;
    });
    doors->doors_.push_back(std::move(door));
  }
  return doors;
}

VmDoors::~VmDoors() {
  for (Door& door : doors_) door.device->Stop();
  for (Door& door : doors_) door.thread.join();
  *on_connection_ = nullptr;
}

}  // namespace consort::host
