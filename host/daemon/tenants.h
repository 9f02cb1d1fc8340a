// SPDX-License-Identifier: Apache-2.0
// host/daemon/tenants.h: the operator's file of tenants, /etc/consort/tenants.toml. Value types.
//
//   scheduler = "tfs"                        how devices are shared; --scheduler comes first
//
//   [[tenant]]
//   name = "web-1"                           as a front door names it: a VM's name (--vm), "cid-3"
//                                            of the kernel's vsock, "local", or any name with a
//                                            socket
//   weight = 2                               1 to 10000; 1 if it is not there
//   stream_priority = "high"                 of its streams on the device beside others': low,
//                                            normal (if it is not there) or high
//   isolation = "process"                    "packed" (if it is not there): one process of the host
//                                            for all; "process": one for this tenant alone;
//                                            "partition": packed, on multiprocessors of its own, by
//                                            weight among all such tenants
//   gpus = [0, "NVIDIA H200"]                that it may use (gpu_list.h); all if it is not there
//   placement = "mbf"                        the policy of policies/placement by which it gets its
//                                            GPUs of a pool; the pool's if it is not there
//   max_launches_per_second = 20000          kernels and fills, on each device; what is over it
//                                            waits
//   max_copy_bytes_per_second = "2GiB"       between host and device, on each device, likewise
//   socket = "/run/consort/web-1.sock"       a UNIX socket whose programs are this tenant's
//
// A tenant that is not in the file has weight 1, and so has everybody without a file.
#ifndef CONSORT_HOST_DAEMON_TENANTS_H_
#define CONSORT_HOST_DAEMON_TENANTS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "host/control/messages.h"
#include "host/daemon/gpu_list.h"
#include "host/session/stream_priority.h"

namespace consort::host {

enum class Isolation : uint8_t {
  kPacked,     // one worker, one context for all
  kProcess,    // a worker of its own on each device
  kPartition,  // multiprocessors of its own
};

struct Tenant {
  std::string name;
  uint32_t weight = 1;
  // Memory of each device. 0: no quota; no wait: refused at once.
  Bytes memory_soft = 0;
  Bytes memory_hard = 0;
  uint64_t memory_wait_ms = 0;
  uint32_t priority = 0;  // among those that wait for memory; higher first
  PriorityLevel stream_priority = PriorityLevel::kNormal;
  Isolation isolation = Isolation::kPacked;
  GpuList gpus;
  std::string placement;  // empty: the pool's
  TenantRates rates;
  std::string socket_path;  // empty: none of its own
};

// kInvalidArgument: there is no such placement policy; the text names those that there are. None
// (empty) is fine.
absl::Status CheckPlacement(std::string_view policy);

// What a rate may be: 0 (none), or at least kLaunchRateLeast, kCopyRateLeast.
bool IsLaunchRate(uint64_t per_second);
bool IsCopyRate(uint64_t bytes_per_second);

struct TenantsFile {
  std::string scheduler;  // empty: not said
  std::vector<Tenant> tenants;

  std::string admission;  // likewise

  // The tenant of that name, or one with nothing but the name.
  Tenant Find(std::string_view name) const;
  // Of a tenant that has multiprocessors of its own: by weight, in the order of the file.
  PartitionRange PartitionOf(std::string_view tenant) const;
};

// Reads `text`, the contents of the file `path`. kInvalidArgument names file, line and column, and
// says what to write instead.
absl::StatusOr<TenantsFile> ParseTenants(const std::string& path, std::string_view text);

// Reads the file. kNotFound: there is none.
absl::StatusOr<TenantsFile> ReadTenants(const std::string& path);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_TENANTS_H_
