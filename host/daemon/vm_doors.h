// SPDX-License-Identifier: Apache-2.0
// host/daemon/vm_doors.h: the vhost-user vsock devices of the VMs, one socket and tenant each.
//
// A VM's connection to Consort's port becomes a Connection of the VM's tenant. Any other port
// leads to the UNIX socket `<socket path>_<port>` if somebody listens there, and is refused if not:
// the form that Firecracker and Cloud Hypervisor use. Each device has a thread of its own, which
// posts to the loop; this object itself belongs to the loop.
#ifndef CONSORT_HOST_DAEMON_VM_DOORS_H_
#define CONSORT_HOST_DAEMON_VM_DOORS_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/inherited_fds.h"
#include "host/daemon/daemon_state.h"
#include "host/daemon/event_loop.h"
#include "host/daemon/front_doors.h"
#include "host/daemon/options.h"
#include "host/daemon/vm_memory_file.h"
#include "vmsock/copy_crew.h"
#include "vmsock/vhost_user/vsock_device.h"

namespace consort::host {

class VmDoors {
 public:
  struct Options {
    std::optional<gid_t> group;  // that may connect to the sockets too
    // That help the devices copy (copy_crew.h), at most kCopyCrewThreadsMax; none: by the host's
    // processors.
    std::optional<uint32_t> copy_threads;
  };
  // `on_connection` is called on the loop's thread, as long as this object is there.
  VmDoors(EventLoop* loop, const Options& options, OnConnection on_connection);
  // Ends the devices and waits for their threads.
  ~VmDoors();

  // Opens the VM's device, and makes its shared memory. Errors name the VM; one of that name may
  // not be there.
  absl::Status Add(const VmOptions& vm);
  // From now on the VM's connections have this tenant and so many devices; its socket stays. Other
  // shared memory is made when no program uses what there is, for the VM's next start. An error
  // names the VM.
  absl::Status Change(const VmOptions& vm);
  // Ends the VM's device. A running VM is without it until it is started again.
  void Remove(const std::string& name);

  // Nothing moves any more, and whoever was connecting has been given to `on_connection`; until
  // GoOn. No other call but Save comes between.
  void Pause();
  void GoOn();
  // All of them while they are paused, for Restore in the next binary.
  std::vector<DaemonState::Vm> Save() const;
  // The VM's device goes on where it was. Takes its descriptors from `fds`. An error names the VM:
  // its device begins anew, and a running VM is without it until it is started again.
  absl::Status Restore(const DaemonState::Vm& state, InheritedFds* fds);

  // Null: the VM has none, or is not there.
  std::shared_ptr<VmMemoryFile> MemoryOf(const std::string& name) const;

  // By name.
  const std::map<std::string, VmOptions>& vms() const { return shared_->vms; }
  // What the device of a VM that is there has counted.
  vhost_user::VsockDeviceStats StatsOf(const std::string& name) const {
    return doors_.at(name).device->stats();
  }

 private:
  // With calls that are on their way to the loop; `on_connection` is empty once the doors close.
  struct Shared {
    OnConnection on_connection;
    std::map<std::string, VmOptions> vms;
    absl::Mutex mutex;
    std::vector<Connection> arrived ABSL_GUARDED_BY(mutex);  // for the loop to take
  };
  struct Door {
    std::unique_ptr<vhost_user::VsockDevice> device;
    std::thread thread;
  };
  static absl::StatusOr<UniqueFd> Connect(EventLoop* loop, const std::string& name,
                                          const std::string& socket_path, uint32_t port,
                                          uint32_t guest_port,
                                          const std::shared_ptr<Shared>& shared);
  // Gives `on_connection` those who have arrived, with the terms of their VM. On the loop.
  static void Deliver(Shared* shared);
  vhost_user::VsockDeviceOptions OptionsOf(const VmOptions& vm);
  vhost_user::ConnectHandler HandlerOf(const VmOptions& vm) const;
  void Start(const VmOptions& vm, std::unique_ptr<vhost_user::VsockDevice> device);
  static void Run(const std::string& name, Door* door);
  // Makes the VM's shared memory what `vm` says.
  absl::Status UpdateMemory(const VmOptions& vm);

  EventLoop* const loop_;
  const std::optional<gid_t> group_;
  CopyCrew crew_;  // before the devices, which borrow it
  const std::shared_ptr<Shared> shared_;
  std::map<std::string, Door> doors_;
  // By name. Shared with the sessions that have parts of one (VmLoan).
  std::map<std::string, std::shared_ptr<VmMemoryFile>> memories_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_VM_DOORS_H_
