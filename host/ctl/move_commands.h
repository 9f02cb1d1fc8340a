// SPDX-License-Identifier: Apache-2.0
// host/ctl/move_commands.h: consortctl migrate, drain and undrain: tells consortd and waits until
// the applications have gone, or stay.
#ifndef CONSORT_HOST_CTL_MOVE_COMMANDS_H_
#define CONSORT_HOST_CTL_MOVE_COMMANDS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace consort::host {

// The open session that `application` means in consortd's status: a session's number, a process's
// ("pid:4711"), or the name of an application that runs once. kInvalidArgument: none, or several.
absl::StatusOr<uint64_t> FindApplication(const nlohmann::ordered_json& status,
                                         const std::string& application);

// Tells `application` to go to `device`, and `out` how long it stopped. kFailedPrecondition: it
// stays, with the reason.
absl::Status Migrate(const std::string& admin_socket, const std::string& application,
                     uint32_t device, std::ostream& out);

// `device` takes no new applications from here on, and those that it has go. kFailedPrecondition:
// some stay; `out` says which and why.
absl::Status DrainDevice(const std::string& admin_socket, uint32_t device, std::ostream& out);
absl::Status UndrainDevice(const std::string& admin_socket, uint32_t device);

}  // namespace consort::host

#endif  // CONSORT_HOST_CTL_MOVE_COMMANDS_H_
