// SPDX-License-Identifier: Apache-2.0
// host/daemon/status.h: what consortd tells of itself, as plain values.
//
// One snapshot, made on consortd's loop; metrics_text.h and status_json.h give it to programs and
// people. A fact that is not known is absent, never 0.
#ifndef CONSORT_HOST_DAEMON_STATUS_H_
#define CONSORT_HOST_DAEMON_STATUS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gpool/gmap.h"
#include "host/control/messages.h"
#include "host/daemon/gpu_list.h"
#include "host/daemon/usage_book.h"
#include "vmsock/vhost_user/vsock_device.h"

namespace consort::host {

struct DeviceStatus {
  uint32_t index = 0;
  std::string state;             // "ready", "starting": has a worker or waits for one
  std::optional<Ready> info;     // of its latest worker
  MemoryReport memory;           // likewise; zeros until it had a session
  int64_t worker_pid = 0;        // 0: none runs
  int64_t standby_pid = 0;       // of a worker that is ready to take its place; 0: none is
  uint32_t sessions = 0;         // open ones, those of a worker that is being replaced included
  uint64_t worker_starts = 0;    // the first one included
  uint64_t workers_retired = 0;  // which take no new sessions: a fault, or work that never ends
  uint32_t windows_used = 0;     // by its sessions, of kWindowSlots
};

struct SessionStatus {
  uint64_t id = 0;
  std::string tenant;
  std::string vm;
  std::string application;  // the guest's word
  uint32_t pid = 0;         // likewise
  std::string front_door;
  uint32_t device = 0;
  int64_t worker_pid = 0;
  std::string held_in;           // the folder of a checkpoint; empty: it is open
  bool outlives_worker = false;  // it would go on if that died now
  uint64_t assembly = 0;         // of ours on the pool, that it belongs to; 0: none
  uint32_t vgpu = 0;             // what its program calls the device
  std::string why;               // it has the device
  bool bound = true;             // false: for now; it may get another one when it first uses it
  uint32_t weight = 1;           // of its tenant
  uint64_t started_unix_seconds = 0;
  SessionUsage usage;
  double share = 0;  // of its device's time, over the last kShareWindow
};

struct TenantLimits {
  GpuList gpus;
  std::string placement;  // empty: the pool's
  TenantRates rates;
};

// What a tenant has of a device, over the last kShareWindow.
struct TenantShare {
  std::string tenant;
  uint32_t device = 0;
  uint32_t weight = 1;
  double share = 0;       // of the device's time that was used
  double busy = 0;        // of all of the device's time, used or not
  double target = 0;      // its weight among those that compete; 0 if it does not
  bool competes = false;  // has had device time, or wants some
  uint32_t waiting = 0;   // batches that wait for a turn
};

struct VmStatus {
  std::string name;
  std::string socket_path;
  std::string tenant;
  std::optional<uint32_t> vgpus;  // none: all devices
  vhost_user::VsockDeviceStats device;
  struct SharedMemory {
    Bytes bytes = 0;  // what QEMU gave the machine, the part that tells programs of it included
    Bytes lent = 0;   // to programs that run there
  };
  std::optional<SharedMemory> shared_memory = {};  // none: the machine has none
};

struct VgpuStatus {
  gpool::Gid gid = 0;
  std::string node;
  uint32_t device = 0;  // of that node
  bool local = false;
  std::string why;  // it was chosen
};

// An application of this host that has sessions on the pool.
struct AssemblyStatus {
  uint64_t id = 0;
  std::string tenant;
  std::string vm;
  std::string application;  // the guest's word
  uint32_t pid = 0;         // likewise
  uint32_t sessions = 0;
  std::vector<VgpuStatus> vgpus;
};

struct PoolStatus {
  std::string pool;
  std::string node;
  bool joined = false;
  std::string problem;  // why not
  std::string mapper;   // its node; empty: nobody is
  std::string policy;   // by which the mapper decides now; empty: not known
  gpool::Gmap map;
  std::map<gpool::Gid, uint32_t> bound;  // vGPUs in use on each GPU, in the whole pool
  std::vector<AssemblyStatus> assemblies;
  uint32_t remote_sessions = 0;  // of this host's applications on other nodes
};

// Kinds of DaemonStatus::errors.
inline constexpr char kErrorAccount[] = "account";           // a line could not be written
inline constexpr char kErrorWorkerDied[] = "worker_died";    // with or without sessions
inline constexpr char kErrorWorkerStart[] = "worker_start";  // one did not get ready

struct DaemonStatus {
  std::string version;
  std::string node;  // this host's name
  uint64_t started_unix_seconds = 0;
  std::vector<DeviceStatus> devices;
  std::vector<SessionStatus> sessions;  // open and held ones
  std::vector<VmStatus> vms;
  std::map<UsageKey, UsageTotals> usage;
  std::optional<PoolStatus> pool;              // none: this daemon is in no pool
  std::string policy;                          // of the scheduler
  std::map<std::string, uint32_t> weights;     // of tenants that are known
  std::map<std::string, TenantLimits> limits;  // of tenants that a file names or that were set
  std::vector<TenantShare> shares;             // of tenants that have sessions
  bool reload_failed = false;                  // the last reading of the VMs' files
  std::map<std::string, uint64_t> unsupported_calls;  // by the function's name
  std::map<std::string, uint64_t> refused;            // connections, by reason: see RefusalReason
  std::map<std::string, uint64_t> errors;             // by kind
  std::map<std::string, uint64_t> saves;  // checkpoints by themselves, by what became of them
};

// The reason of a wire::kWelcome... status, as metrics name it.
std::string RefusalReason(uint32_t status);

// "kernel", "to_device", "to_host" or "none": a schedule::Phase of SessionUsage.
const char* PhaseName(uint32_t phase);

// "GPU-01020304-...", as the driver's tools write it; empty for an all-zero one.
std::string UuidText(const uint8_t (&uuid)[16]);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_STATUS_H_
