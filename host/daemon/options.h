// SPDX-License-Identifier: Apache-2.0
// host/daemon/options.h: what consortd was started with. Plain values; made by host/main.cc only.
#ifndef CONSORT_HOST_DAEMON_OPTIONS_H_
#define CONSORT_HOST_DAEMON_OPTIONS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpool/pool.h"
#include "host/daemon/tenants.h"
#include "vmsock/wire/handshake.h"

namespace consort::host {

struct VmOptions {
  std::string name;
  std::string socket_path;        // that QEMU's vhost-user-vsock device connects to
  std::string tenant;             // who pays; empty: the machine's own name
  std::optional<uint32_t> vgpus;  // how many of the host's devices it sees; none: all
};

struct AdminOptions {
  std::string socket_path;         // of the admin socket; empty: none
  std::string metrics_address;     // ADDRESS:PORT; empty: off
  bool metrics_by_default = true;  // nobody asked for that address: a taken port is no error
};

struct PoolMemberOptions {
  gpool::PoolOptions pool;
  std::optional<uint32_t>
      vgpus;  // that a program sees, where its VM's file says nothing; none: all
};

struct DaemonOptions {
  std::string socket_path;  // of local applications
  std::vector<VmOptions> vms;
  std::string vm_folder;          // of the files of more VMs (vm_files.h); empty: none
  std::string vm_socket_folder;   // of the sockets of those
  std::optional<gid_t> vm_group;  // that may connect to the VMs' sockets too
  std::optional<uint32_t> vsock_port = wire::kVsockPort;  // AF_VSOCK; none: off
  std::string device = "auto";                            // auto, cpu, nvidia or none
  // How many devices the CPU driver presents, or the path of a file that describes them; empty: its
  // own default.
  std::string cpu_devices;
  std::string account_path;       // empty: no account file
  std::string scheduler = "tfs";  // a policy's name, or none
  TenantsFile tenants;
  std::string worker_path;  // consort-worker's binary
  int verbosity = 0;
  AdminOptions admin;
  std::optional<PoolMemberOptions> pool;  // none: this host's devices only
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_OPTIONS_H_
