// SPDX-License-Identifier: Apache-2.0
// host/daemon/flags.h: consortd's command line.
#ifndef CONSORT_HOST_DAEMON_FLAGS_H_
#define CONSORT_HOST_DAEMON_FLAGS_H_

#include <optional>
#include <string>

#include "host/daemon/options.h"
#include "host/daemon/tenants.h"

namespace consort::host {

struct Flags {
  DaemonOptions daemon;
  // What Settings::Load wants.
  TenantsFile tenants;
  std::string policy;      // empty: what the tenants' file or the state says
  std::string state_path;  // empty: nothing is kept
  // Descriptors of a state (upgrade.h) to go on from, and to look at only; -1: none.
  int resume = -1;
  int rehearse = -1;
};

// None: the program ends at once with *exit_status; after --help and --version, or with wrong
// flags, of which it has told on stderr.
std::optional<Flags> ReadFlags(int argc, char** argv, int* exit_status);

// Tells what is wrong with flags or with files that they name. The exit status for it.
int UsageError(const std::string& what);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_FLAGS_H_
