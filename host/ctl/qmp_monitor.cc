// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/qmp_monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "vmsock/deadline.h"
#include "vmsock/socket_io.h"

namespace consort::host {
namespace {

using Json = nlohmann::ordered_json;

// A command of QEMU's main loop; what takes longer is a job that is asked for.
constexpr Nanos kQmpPatience = 30 * kSecond;
constexpr size_t kLineBytesMax = size_t{16} << 20;
constexpr timespec kQmpAskEvery = {0, 50'000'000};

absl::Status Gone(int error) {
  return absl::UnavailableError(absl::StrCat("QEMU's monitor: ", strerror(error)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<QmpMonitor>> QmpMonitor::Connect(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError("a monitor's socket is a path of at most 107 bytes");
  }
  path.copy(address.sun_path, path.size());
  UniqueFd opened(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!opened.valid() ||
      connect(opened.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::UnavailableError(absl::StrCat(
        path, ": ", strerror(errno), "; QEMU's -qmp unix:", path, ",server=on,wait=off makes it"));
  }
  const int error = PrepareSocket(opened.get());
  if (error != 0) return Gone(error);
  std::unique_ptr<QmpMonitor> monitor(new QmpMonitor(std::move(opened)));
  ASSIGN_OR_RETURN(const Json greeting, monitor->ReceiveLine());
  if (!greeting.contains("QMP")) {
    return absl::UnavailableError(absl::StrCat(path, ": that is no monitor of QEMU"));
  }
  RETURN_IF_ERROR(monitor->Execute("qmp_capabilities").status());
  return monitor;
}

absl::Status QmpMonitor::Send(const std::string& line, int fd) {
  const std::span<const int> descriptors =
      fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>();
  const int error = SendAll(socket_.get(), std::as_bytes(std::span(line.data(), line.size())),
                            descriptors, Deadline(kQmpPatience));
  return error == 0 ? absl::OkStatus() : Gone(error);
}

absl::StatusOr<Json> QmpMonitor::ReceiveLine() {
  const Deadline deadline(kQmpPatience);
  size_t end;
  while ((end = received_.find('\n')) == std::string::npos) {
    if (received_.size() > kLineBytesMax) return Gone(EMSGSIZE);
    // The first byte is waited for, with what came along.
    std::array<char, 4096> bytes;
    const auto room = std::as_writable_bytes(std::span(bytes));
    const int error = ReceiveAll(socket_.get(), room.first(1), nullptr, deadline);
    if (error != 0) return Gone(error);
    size_t descriptors = 0;
    const ssize_t more = ReceiveSome(socket_.get(), room.subspan(1), {}, &descriptors);
    received_.append(bytes.data(), 1 + static_cast<size_t>(std::max<ssize_t>(more, 0)));
  }
  const Json line = Json::parse(received_.substr(0, end), nullptr, /*allow_exceptions=*/false);
  received_.erase(0, end + 1);
  if (!line.is_object()) return absl::UnavailableError("QEMU's monitor says what is no JSON");
  return line;
}

absl::StatusOr<Json> QmpMonitor::ReceiveAnswer(const std::string& command) {
  while (true) {
    ASSIGN_OR_RETURN(const Json line, ReceiveLine());
    if (line.contains("return")) return line["return"];
    if (line.contains("error")) {
      return absl::FailedPreconditionError(absl::StrCat(
          "QEMU: ", command, ": ",
          line["error"].is_object() ? line["error"].value("desc", "refused") : "refused"));
    }
  }
}

absl::StatusOr<Json> QmpMonitor::Execute(const std::string& command, const Json& arguments) {
  const Json request = {{"execute", command}, {"arguments", arguments}};
  RETURN_IF_ERROR(Send(request.dump() + "\n", -1));
  return ReceiveAnswer(command);
}

absl::Status QmpMonitor::GiveDescriptor(const std::string& name, int fd) {
  const Json request = {{"execute", "getfd"}, {"arguments", {{"fdname", name}}}};
  RETURN_IF_ERROR(Send(request.dump() + "\n", fd));
  return ReceiveAnswer("getfd").status();
}

absl::Status QmpMonitor::Await(const std::string& command, const Json& arguments,
                               const std::function<absl::StatusOr<bool>(const Json&)>& enough,
                               int patience_seconds, const std::string& what) {
  const Deadline deadline(patience_seconds * kSecond);
  while (true) {
    ASSIGN_OR_RETURN(const Json answer, Execute(command, arguments));
    ASSIGN_OR_RETURN(const bool over, enough(answer));
    if (over) return absl::OkStatus();
    if (deadline.Left() == 0) {
      return absl::UnavailableError(absl::StrCat("waited ", patience_seconds, " s for ", what));
    }
    nanosleep(&kQmpAskEvery, nullptr);
  }
}

}  // namespace consort::host
