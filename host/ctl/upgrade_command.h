// SPDX-License-Identifier: Apache-2.0
// host/ctl/upgrade_command.h: consortctl upgrade: the consortd that is installed now takes over
// from the one that runs.
#ifndef CONSORT_HOST_CTL_UPGRADE_COMMAND_H_
#define CONSORT_HOST_CTL_UPGRADE_COMMAND_H_

#include <ostream>
#include <string>

#include "absl/status/status.h"

namespace consort::host {

// Tells consortd, waits until another binary answers, and `out` which version that is.
// kFailedPrecondition, kInternal: the one that runs goes on, with the reason. kUnavailable: nobody
// answers any more.
absl::Status UpgradeDaemon(const std::string& admin_socket, std::ostream& out);

}  // namespace consort::host

#endif  // CONSORT_HOST_CTL_UPGRADE_COMMAND_H_
