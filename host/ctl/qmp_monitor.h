// SPDX-License-Identifier: Apache-2.0
// host/ctl/qmp_monitor.h: tells QEMU things over its monitor (QMP) on a UNIX socket.
//
// One connection, one command at a time; events are passed over. Blocks, each answer within
// kQmpPatience. Thread compatible. Source: QEMU's documentation, "QEMU Machine Protocol
// Specification" and "QEMU QMP Reference Manual".
#ifndef CONSORT_HOST_CTL_QMP_MONITOR_H_
#define CONSORT_HOST_CTL_QMP_MONITOR_H_

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace consort::host {

class QmpMonitor {
 public:
  // kUnavailable: nobody answers there, or no QEMU does.
  static absl::StatusOr<std::unique_ptr<QmpMonitor>> Connect(const std::string& path);

  // What `command` returns. kFailedPrecondition: QEMU refuses, with its text. kUnavailable: it has
  // gone or does not answer.
  absl::StatusOr<nlohmann::ordered_json> Execute(
      const std::string& command,
      const nlohmann::ordered_json& arguments = nlohmann::ordered_json::object());
  // Gives QEMU a descriptor, for URIs of the form fd:NAME.
  absl::Status GiveDescriptor(const std::string& name, int fd);
  // Executes `command` until `enough` of what it returns, which may fail for good. kUnavailable:
  // not in `patience_seconds`; `what` says what was waited for.
  absl::Status Await(
      const std::string& command, const nlohmann::ordered_json& arguments,
      const std::function<absl::StatusOr<bool>(const nlohmann::ordered_json&)>& enough,
      int patience_seconds, const std::string& what);

 private:
  explicit QmpMonitor(UniqueFd socket) : socket_(std::move(socket)) {}
  absl::Status Send(const std::string& line, int fd);
  absl::StatusOr<nlohmann::ordered_json> ReceiveLine();
  absl::StatusOr<nlohmann::ordered_json> ReceiveAnswer(const std::string& command);

  const UniqueFd socket_;
  std::string received_;  // that is no whole line yet
};

}  // namespace consort::host

#endif  // CONSORT_HOST_CTL_QMP_MONITOR_H_
