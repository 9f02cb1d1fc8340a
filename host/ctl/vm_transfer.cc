// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/vm_transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "host/ctl/admin_client.h"
#include "host/ctl/move_commands.h"
#include "host/ctl/qmp_monitor.h"

namespace consort::host {
namespace {

using Json = nlohmann::ordered_json;

// A guest that unplugs has a driver to stop; one that loads or sends has its memory's size to do.
constexpr int kUnplugSeconds = 60;
constexpr int kTransferSeconds = 3600;
constexpr char kPeripherals[] = "/machine/peripheral";
constexpr char kChardev[] = "consort-vsock";
constexpr char kSessionPrefix[] = "session-";

std::string In(const std::string& folder, const std::string& name) {
  return absl::StrCat(folder, "/", name);
}

absl::StatusOr<std::vector<uint64_t>> SessionsOf(const QemuMachine& machine) {
  ASSIGN_OR_RETURN(const Json status, AdminStatus(machine.admin_socket));
  std::vector<uint64_t> sessions;
  for (const Json& session : status.value("sessions", Json::array())) {
    if (session.value("vm", "") == machine.name && session.value("state", "") == "open") {
      sessions.push_back(session.value("id", uint64_t{0}));
    }
  }
  return sessions;
}

absl::StatusOr<std::string> SocketOf(const QemuMachine& machine) {
  ASSIGN_OR_RETURN(const Json status, AdminStatus(machine.admin_socket));
  for (const Json& vm : status.value("vms", Json::array())) {
    if (vm.value("name", "") == machine.name) return vm.value("socket", "");
  }
  return absl::InvalidArgumentError(absl::StrCat("consortd has no VM ", machine.name));
}

// A folder that consortd may write: it is made for its user.
absl::Status MakeFolder(const QemuMachine& machine, const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0) {
    if (errno != EEXIST) return absl::UnavailableError(absl::StrCat(folder, ": ", strerror(errno)));
    if (!std::filesystem::is_empty(folder)) {
      return absl::FailedPreconditionError(absl::StrCat(folder, " is not empty"));
    }
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Json status, AdminStatus(machine.admin_socket));
  struct stat daemon;
  const std::string process = absl::StrCat("/proc/", status.value("pid", 0));
  if (stat(process.c_str(), &daemon) == 0 && daemon.st_uid != geteuid() &&
      chown(folder.c_str(), daemon.st_uid, daemon.st_gid) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(folder, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

// The vsock device of a QEMU, and what it was plugged in with.
struct Plug {
  std::string id;
  std::string bus;
  std::string chardev;
};

std::string TextOf(const Plug& plug) { return Json({{"id", plug.id}, {"bus", plug.bus}}).dump(); }

absl::StatusOr<Plug> ReadPlug(const std::string& folder) {
  std::ifstream file(In(folder, "device"));
  const Json json = Json::parse(std::string{std::istreambuf_iterator<char>(file), {}}, nullptr,
                                /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("id") || !json.contains("bus")) {
    return absl::DataLossError(absl::StrCat(folder, ": no machine was saved there"));
  }
  return Plug{json.value("id", ""), json.value("bus", ""), ""};
}

absl::StatusOr<Plug> FindPlug(QmpMonitor* monitor, const std::string& id) {
  const std::string path = In(kPeripherals, id);
  const auto property = [&](const char* name) -> absl::StatusOr<std::string> {
    ASSIGN_OR_RETURN(const Json value,
                     monitor->Execute("qom-get", {{"path", path}, {"property", name}}));
    return value.is_string() ? value.get<std::string>() : "";
  };
  ASSIGN_OR_RETURN(const std::string bus, property("parent_bus"));
  ASSIGN_OR_RETURN(const std::string chardev, property("chardev"));
  return Plug{id, bus.substr(bus.rfind('/') + 1), chardev};
}

absl::Status PlugIn(QmpMonitor* monitor, const Plug& plug, const std::string& socket) {
  const Json address = {{"type", "unix"}, {"data", {{"path", socket}}}};
  const Json backend = {{"type", "socket"}, {"data", {{"addr", address}, {"server", false}}}};
  RETURN_IF_ERROR(
      monitor->Execute("chardev-add", {{"id", kChardev}, {"backend", backend}}).status());
  return monitor
      ->Execute("device_add", {{"driver", "vhost-user-vsock-pci"},
                               {"id", plug.id},
                               {"chardev", kChardev},
                               {"bus", plug.bus}})
      .status();
}

// With its chardev, which QEMU lets go of a moment after the device.
absl::Status Unplug(QmpMonitor* monitor, const Plug& plug) {
  RETURN_IF_ERROR(monitor->Execute("device_del", {{"id", plug.id}}).status());
  return monitor->Await(
      "qom-list", {{"path", kPeripherals}},
      [&](const Json& items) -> absl::StatusOr<bool> {
        const bool there = std::any_of(items.begin(), items.end(), [&](const Json& item) {
          return item.value("name", "") == plug.id;
        });
        if (there) return false;
        const absl::Status removed =
            monitor->Execute("chardev-remove", {{"id", plug.chardev}}).status();
        if (absl::IsFailedPrecondition(removed)) return false;
        RETURN_IF_ERROR(removed);
        return true;
      },
      kUnplugSeconds, "the guest to let go of its vsock device");
}

absl::Status AwaitSent(QmpMonitor* monitor) {
  return monitor->Await(
      "query-migrate", Json::object(),
      [](const Json& migration) -> absl::StatusOr<bool> {
        const std::string status = migration.value("status", "");
        if (status == "failed" || status == "cancelled") {
          return absl::FailedPreconditionError(
              absl::StrCat("QEMU could not send the machine: ",
                           migration.value("error-desc", std::string(status))));
        }
        return status == "completed";
      },
      kTransferSeconds, "QEMU to send the machine");
}

absl::Status AwaitLoaded(QmpMonitor* monitor) {
  return monitor->Await(
      "query-status", Json::object(),
      [](const Json& status) -> absl::StatusOr<bool> {
        return status.value("status", "") != "inmigrate";
      },
      kTransferSeconds, "QEMU to load the machine");
}

absl::Status AwaitSessions(const QemuMachine& machine, const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (!absl::StartsWith(entry.path().filename().string(), kSessionPrefix)) continue;
    RETURN_IF_ERROR(Await(machine.admin_socket, {entry.path().string(), std::nullopt}));
  }
  if (error) return absl::UnavailableError(absl::StrCat(folder, ": ", error.message()));
  return absl::OkStatus();
}

// A machine that is on its way from here, until Gone.
class Leaving {
 public:
  Leaving(const QemuMachine& machine, const std::string& folder, std::ostream& out)
      : machine_(machine), folder_(folder), out_(out) {}
  ~Leaving() {
    if (gone_) return;
    absl::Status back = AwaitSessions(machine_, folder_);
    if (unplugged_) {
      const absl::StatusOr<std::string> socket = SocketOf(machine_);
      back.Update(socket.ok() ? PlugIn(monitor_.get(), plug_, *socket) : socket.status());
    }
    if (!back.ok()) out_ << "and it cannot be as it was: " << back.message() << "\n";
  }
  Leaving(const Leaving&) = delete;
  Leaving& operator=(const Leaving&) = delete;

  // Its programs have left, and its device is unplugged.
  absl::Status Begin(const std::string& device) {
    ASSIGN_OR_RETURN(monitor_, QmpMonitor::Connect(machine_.monitor));
    ASSIGN_OR_RETURN(plug_, FindPlug(monitor_.get(), device));
    RETURN_IF_ERROR(SocketOf(machine_).status());
    RETURN_IF_ERROR(MakeFolder(machine_, folder_));
    while (true) {
      // Programs that begin meanwhile come after the others.
      ASSIGN_OR_RETURN(const std::vector<uint64_t> sessions, SessionsOf(machine_));
      if (sessions.empty()) break;
      for (const uint64_t session : sessions) {
        RETURN_IF_ERROR(Checkpoint(machine_.admin_socket, absl::StrCat(session),
                                   In(folder_, absl::StrCat(kSessionPrefix, session)),
                                   /*leaves=*/true, out_));
      }
    }
    RETURN_IF_ERROR(Unplug(monitor_.get(), plug_));
    unplugged_ = true;
    std::ofstream file(In(folder_, "device"));
    file << TextOf(plug_) << "\n";
    file.close();
    return file ? absl::OkStatus()
                : absl::UnavailableError(absl::StrCat(folder_, ": ", strerror(errno)));
  }
  QmpMonitor* monitor() { return monitor_.get(); }
  const Plug& plug() const { return plug_; }
  // It runs elsewhere, or its state is kept: this QEMU is of no use any more.
  absl::Status Gone() {
    gone_ = true;
    return monitor_->Execute("quit").status();
  }

 private:
  const QemuMachine& machine_;
  const std::string& folder_;
  std::ostream& out_;
  std::unique_ptr<QmpMonitor> monitor_;
  Plug plug_;
  bool unplugged_ = false;
  bool gone_ = false;
};

// A machine that was loaded has its programs and its device again.
absl::Status Arrive(QmpMonitor* monitor, const QemuMachine& machine, const Plug& plug,
                    const std::string& folder) {
  RETURN_IF_ERROR(AwaitLoaded(monitor));
  RETURN_IF_ERROR(AwaitSessions(machine, folder));
  ASSIGN_OR_RETURN(const std::string socket, SocketOf(machine));
  return PlugIn(monitor, plug, socket);
}

}  // namespace

absl::Status SaveVm(const QemuMachine& machine, const std::string& device,
                    const std::string& folder, std::ostream& out) {
  Leaving leaving(machine, folder, out);
  RETURN_IF_ERROR(leaving.Begin(device));
  const std::string path = In(folder, "machine");
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) return absl::UnavailableError(absl::StrCat(path, ": ", strerror(errno)));
  QmpMonitor* const monitor = leaving.monitor();
  RETURN_IF_ERROR(monitor->GiveDescriptor("consort-machine", file.get()));
  RETURN_IF_ERROR(monitor->Execute("migrate", {{"uri", "fd:consort-machine"}}).status());
  absl::Status kept = AwaitSent(monitor);
  if (kept.ok() && fsync(file.get()) != 0) {
    kept = absl::UnavailableError(absl::StrCat(path, ": ", strerror(errno)));
  }
  if (!kept.ok()) {
    // Stopped only if it was sent.
    (void)monitor->Execute("cont");
    return kept;
  }
  out << machine.name << " is in " << folder << "\n";
  return leaving.Gone();
}

absl::Status RestoreVm(const QemuMachine& machine, const std::string& folder, std::ostream& out) {
  ASSIGN_OR_RETURN(const Plug plug, ReadPlug(folder));
  ASSIGN_OR_RETURN(const auto monitor, QmpMonitor::Connect(machine.monitor));
  const std::string path = In(folder, "machine");
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return absl::UnavailableError(absl::StrCat(path, ": ", strerror(errno)));
  RETURN_IF_ERROR(monitor->GiveDescriptor("consort-machine", file.get()));
  RETURN_IF_ERROR(monitor->Execute("migrate-incoming", {{"uri", "fd:consort-machine"}}).status());
  RETURN_IF_ERROR(Arrive(monitor.get(), machine, plug, folder));
  out << machine.name << " goes on\n";
  return absl::OkStatus();
}

absl::Status MigrateVm(const QemuMachine& from, const QemuMachine& to, const std::string& device,
                       const std::string& uri, const std::string& folder, std::ostream& out) {
  ASSIGN_OR_RETURN(const auto monitor, QmpMonitor::Connect(to.monitor));
  RETURN_IF_ERROR(SocketOf(to).status());
  Leaving leaving(from, folder, out);
  RETURN_IF_ERROR(leaving.Begin(device));
  RETURN_IF_ERROR(monitor->Execute("migrate-incoming", {{"uri", uri}}).status());
  RETURN_IF_ERROR(leaving.monitor()->Execute("migrate", {{"uri", uri}}).status());
  RETURN_IF_ERROR(AwaitSent(leaving.monitor()));
  RETURN_IF_ERROR(leaving.Gone());
  RETURN_IF_ERROR(Arrive(monitor.get(), to, leaving.plug(), folder));
  out << to.name << " goes on\n";
  return absl::OkStatus();
}

}  // namespace consort::host
