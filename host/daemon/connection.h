// SPDX-License-Identifier: Apache-2.0
// host/daemon/connection.h: an accepted connection and who is at its other end. Value type.
#ifndef CONSORT_HOST_DAEMON_CONNECTION_H_
#define CONSORT_HOST_DAEMON_CONNECTION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "host/control/messages.h"
#include "host/daemon/window_pool.h"

namespace consort::host {

// The identity is the door's, set by the operator or the kernel; nothing that the guest says
// changes it.
struct Connection {
  UniqueFd fd;                        // connected, SOCK_STREAM, non-blocking
  std::string tenant;                 // who pays: "local", a VM's tenant, "cid-3"
  std::string vm;                     // the VM's name; empty: no VM that we know by name
  uint32_t devices_max = UINT32_MAX;  // how many of the host's devices it sees
  std::string front_door;             // "unix", "vhost-user", "vsock", "pool"
  std::string peer;                   // for people: "uid 1000 pid 4711", "port 1025"
  bool shares_memory = false;         // descriptors can be passed
  uint32_t weight = 0;                // of the tenant; 0: as our own files say
  std::optional<TenantRates> rates;   // likewise; no value: as our own files say
  SlotSet slots_taken = {};           // by other sessions of the application
  uint64_t assembly = 0;              // of ours, that it belongs to; 0: none
  uint32_t vgpu = 0;                  // of a session: what its program calls the device
  std::string why;                    // of a session: it has the device, for an operator
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_CONNECTION_H_
