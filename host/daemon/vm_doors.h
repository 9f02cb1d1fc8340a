// SPDX-License-Identifier: Apache-2.0
// host/daemon/vm_doors.h: the vhost-user vsock devices of the VMs, one socket and tenant each.
//
// A VM's connection to Consort's port becomes a Connection under the VM's name. Any other port leads to
// the UNIX socket `<socket path>_<port>` if somebody listens there, and is refused if not: the form
// that Firecracker and Cloud Hypervisor use. Owned by consortd's loop; the devices have threads of
// their own and post to it.
#ifndef CONSORT_HOST_DAEMON_VM_DOORS_H_
#define CONSORT_HOST_DAEMON_VM_DOORS_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "host/daemon/event_loop.h"
#include "host/daemon/front_doors.h"
#include "host/daemon/options.h"

namespace consort::host {

class VmDoors {
 public:
  // Opens one device a VM. `on_connection` is called on the loop's thread, until this object goes.
  static absl::StatusOr<std::unique_ptr<VmDoors>> Open(EventLoop* loop,
                                                       const std::vector<VmOptions>& vms,
                                                       OnConnection on_connection);
  virtual ~VmDoors() = default;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_VM_DOORS_H_
