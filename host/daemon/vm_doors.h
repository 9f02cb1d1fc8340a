// SPDX-License-Identifier: Apache-2.0
// host/daemon/vm_doors.h: the vhost-user vsock devices of the VMs, one socket and tenant each.
//
// A VM's connection to Consort's port becomes a Connection under the VM's name. Any other port
// leads to the UNIX socket `<socket path>_<port>` if somebody listens there, and is refused if not:
// the form that Firecracker and Cloud Hypervisor use. Each device has a thread of its own, which
// posts to the loop; this object itself belongs to the loop.
#ifndef CONSORT_HOST_DAEMON_VM_DOORS_H_
#define CONSORT_HOST_DAEMON_VM_DOORS_H_

#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "host/daemon/event_loop.h"
#include "host/daemon/front_doors.h"
#include "host/daemon/options.h"
#include "vmsock/vhost_user/vsock_device.h"

namespace consort::host {

class VmDoors {
 public:
  // Opens one device a VM. `on_connection` is called on the loop's thread, as long as this object
  // is there. Errors name the VM.
  static absl::StatusOr<std::unique_ptr<VmDoors>> Open(EventLoop* loop,
                                                       const std::vector<VmOptions>& vms,
                                                       OnConnection on_connection);
  // Ends the devices and waits for their threads.
  ~VmDoors();

 private:
  struct Door {
    std::unique_ptr<vhost_user::VsockDevice> device;
    std::thread thread;
  };
  VmDoors() = default;

  // Shared with calls that are on their way to the loop when the doors close, and are then empty.
  std::shared_ptr<OnConnection> on_connection_;
  std::vector<Door> doors_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_VM_DOORS_H_
