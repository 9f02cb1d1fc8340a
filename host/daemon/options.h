// SPDX-License-Identifier: Apache-2.0
// host/daemon/options.h: what consortd was started with. Plain values; made by flags.cc only.
#ifndef CONSORT_HOST_DAEMON_OPTIONS_H_
#define CONSORT_HOST_DAEMON_OPTIONS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "gpool/pool.h"
#include "host/limits.h"
#include "vmsock/wire/handshake.h"

namespace consort::host {

struct VmOptions {
  std::string name;
  std::string socket_path;        // that QEMU's vhost-user-vsock device connects to
  std::string tenant;             // who pays; empty: the machine's own name
  std::optional<uint32_t> vgpus;  // how many of the host's devices it sees; none: all
  Bytes shared_memory = 0;        // IsVmMemorySize (vm_memory_file.h), or none
  std::string memory_path;        // of the file that QEMU gives it as shared memory
};

// What VMs have that say nothing else.
struct VmDefaults {
  std::string socket_folder;  // of the sockets of those that are named in files
  std::string memory_folder = "/dev/shm";
  Bytes shared_memory = 0;
};

struct AdminOptions {
  std::string socket_path;         // of the admin socket; empty: none
  std::string metrics_address;     // ADDRESS:PORT; empty: off
  bool metrics_by_default = true;  // nobody asked for that address: a taken port is no error
};

// Of each device.
struct MemoryOptions {
  Bytes device_bytes = 0;  // for programs; 0: all of it
  std::string admission = "fifo";
  // Where contents lie that are not on the device; all 0: no swapping.
  Bytes swap_pinned = 0;
  Bytes swap_pageable = 0;
  Bytes swap_file = 0;
  std::string swap_folder;  // of the file

  bool swaps() const { return swap_pinned != 0 || swap_pageable != 0 || swap_file != 0; }
};

struct PoolMemberOptions {
  gpool::PoolOptions pool;
  std::optional<uint32_t>
      vgpus;  // that a program sees, where its VM's file says nothing; none: all
};

// What consortd was started as, and is again after an upgrade.
struct DaemonCommand {
  std::string binary;  // by its path: what lies there then
  std::vector<std::string> arguments;
};

struct DaemonOptions {
  DaemonCommand command;
  std::string socket_path;  // of local applications
  std::vector<VmOptions> vms;
  std::string vm_folder;  // of the files of more VMs (vm_files.h); empty: none
  VmDefaults vm_defaults;
  std::optional<gid_t> vm_group;  // that may connect to the VMs' sockets too
  // Threads that help the VMs' devices copy, all of them together; none: by the host's processors.
  std::optional<uint32_t> vm_copy_threads;
  std::optional<uint32_t> vsock_port = wire::kVsockPort;  // AF_VSOCK; none: off
  std::string device = "auto";                            // auto, cpu, nvidia or none
  // How many devices the CPU driver presents, or the path of a file that describes them; empty: its
  // own default.
  std::string cpu_devices;
  std::string account_path;  // empty: no account file
  Nanos account_every = kAccountEvery;
  MemoryOptions memory;
  // Whether sessions outlive their worker: on, off, or auto, which is on for the CPU driver.
  std::string keep_memory = "off";
  // Whether each device has a second worker that takes the place of one that dies.
  bool standby_workers = false;
  // After how much work of a session on its device a checkpoint of it is written; 0: none is. And
  // where.
  uint32_t save_after_seconds = 0;
  std::string save_folder;
  // Whether many launches that wait go to the driver as one: on, off, or auto, which is on for
  // NVIDIA's driver.
  std::string launch_chains = "auto";
  // Whether vGPUs reach each other's memory, where the driver can: on, off, or auto, which is on.
  std::string peer_access = "auto";
  // Whether programs with the same code have it loaded once: on, off, or auto, which is on for the
  // CPU driver.
  std::string shared_code = "auto";
  // Whether applications are bound to a device when they first use one, and by whom; else they are
  // when they connect.
  bool bind_at_launch = false;
  gpool::MapperOptions binding;
  // Whether applications go to devices that have fallen idle by themselves.
  bool balance = false;
  std::string tenants_path;   // that need not be there
  std::string trace_folder;   // of the schedulers' traces
  bool traces_first = false;  // recorded from the start on, without a bound
  std::string worker_path;    // consort-worker's binary
  int verbosity = 0;
  AdminOptions admin;
  std::optional<PoolMemberOptions> pool;  // none: this host's devices only
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_OPTIONS_H_
