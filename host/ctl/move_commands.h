// SPDX-License-Identifier: Apache-2.0
// host/ctl/move_commands.h: consortctl migrate, drain, undrain, checkpoint and restore: tells
// consortd and waits until the applications have gone, or stay.
#ifndef CONSORT_HOST_CTL_MOVE_COMMANDS_H_
#define CONSORT_HOST_CTL_MOVE_COMMANDS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace consort::host {

// The session that `application` means in consortd's status, of those whose state is `state`
// ("open", "held"): a session's number, a process's ("pid:4711"), or the name of an application
// that runs once. kInvalidArgument: none, or several.
absl::StatusOr<uint64_t> FindApplication(const nlohmann::ordered_json& status,
                                         const std::string& application,
                                         const std::string& state = "open");

// Tells `application` to go to `device`, and `out` how long it stopped. kFailedPrecondition: it
// stays, with the reason.
absl::Status Migrate(const std::string& admin_socket, const std::string& application,
                     uint32_t device, std::ostream& out);

// `device` takes no new applications from here on, and those that it has go. kFailedPrecondition:
// some stay; `out` says which and why.
absl::Status DrainDevice(const std::string& admin_socket, uint32_t device, std::ostream& out);
absl::Status UndrainDevice(const std::string& admin_socket, uint32_t device);

// Takes `application` off its device into a checkpoint in `folder`, a path on consortd's host, and
// tells `out` what that took. kFailedPrecondition: it stays on its device, with the reason.
// `leaves`: its connection too, so that its program goes on where the folder is awaited.
absl::Status Checkpoint(const std::string& admin_socket, const std::string& application,
                        const std::string& folder, bool leaves, std::ostream& out);

// A program that has left comes to this host, for its session in `folder`.
struct AwaitTarget {
  std::string folder;
  std::optional<uint32_t> device;  // none: of the number that it was on
};
absl::Status Await(const std::string& admin_socket, const AwaitTarget& target);

// Puts `application`, which is held, back on a device. kFailedPrecondition: it is still held, with
// the reason.
struct RestoreTarget {
  std::string application;
  std::string folder;              // empty: that with which it was held
  std::optional<uint32_t> device;  // none: that which it was on
};
absl::Status Restore(const std::string& admin_socket, const RestoreTarget& target,
                     std::ostream& out);

// What is in the checkpoint in `folder`, of this machine: each part is read and compared with its
// checksum. Errors say what is wrong with it.
absl::Status ShowCheckpoint(const std::string& folder, std::ostream& out);

}  // namespace consort::host

#endif  // CONSORT_HOST_CTL_MOVE_COMMANDS_H_
