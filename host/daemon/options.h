// SPDX-License-Identifier: Apache-2.0
// host/daemon/options.h: what consortd was started with. Plain values; made by host/main.cc only.
#ifndef CONSORT_HOST_DAEMON_OPTIONS_H_
#define CONSORT_HOST_DAEMON_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vmsock/wire/handshake.h"

namespace consort::host {

struct VmOptions {
  std::string name;         // of the tenant, as accounts name it
  std::string socket_path;  // that QEMU's vhost-user-vsock device connects to
};

struct AdminOptions {
  std::string socket_path;         // of the admin socket; empty: none
  std::string metrics_address;     // ADDRESS:PORT; empty: off
  bool metrics_by_default = true;  // nobody asked for that address: a taken port is no error
};

struct DaemonOptions {
  std::string socket_path;  // of local applications
  std::vector<VmOptions> vms;
  std::optional<uint32_t> vsock_port = wire::kVsockPort;  // AF_VSOCK; none: off
  std::string device = "auto";                            // auto, cpu or nvidia
  uint32_t cpu_devices = 0;  // how many the CPU driver presents; 0: its own default
  std::string account_path;  // empty: no account file
  std::string worker_path;   // consort-worker's binary
  int verbosity = 0;
  AdminOptions admin;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_OPTIONS_H_
