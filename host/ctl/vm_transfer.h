// SPDX-License-Identifier: Apache-2.0
// host/ctl/vm_transfer.h: consortctl vm save, restore, migrate: a virtual machine of QEMU with its
// programs' sessions.
//
//   sessions leave ─▶ vsock device unplugged ─▶ machine saved or migrated by QEMU
//   sessions awaited ◀─ device plugged in ◀─ machine loaded
//
// QEMU does not migrate the device, so the machine that is loaded begins without it. In FOLDER:
//
//   session-N   a checkpoint of each session (host/checkpoint/folder.h)
//   device      of the vsock device, what it is to be plugged in with: JSON
//   machine     QEMU's stream (save and restore)
//
// What fails before the machine has gone is taken back, as far as it can be. Blocks.
#ifndef CONSORT_HOST_CTL_VM_TRANSFER_H_
#define CONSORT_HOST_CTL_VM_TRANSFER_H_

#include <ostream>
#include <string>

#include "absl/status/status.h"

namespace consort::host {

// A running QEMU and the consortd of its device.
struct QemuMachine {
  std::string name;  // as consortd knows it
  std::string admin_socket;
  std::string monitor;  // QMP's socket
};

// Ends that QEMU. `device`: the id of its vsock device.
absl::Status SaveVm(const QemuMachine& machine, const std::string& device,
                    const std::string& folder, std::ostream& out);

// `machine` is a QEMU that waits (-incoming defer), with all that the saved one had but its vsock
// device.
absl::Status RestoreVm(const QemuMachine& machine, const std::string& folder, std::ostream& out);

// Likewise, from one to the other while it runs, through `uri` (QEMU's: unix:PATH, tcp:HOST:PORT).
// Both daemons see `folder`.
absl::Status MigrateVm(const QemuMachine& from, const QemuMachine& to, const std::string& device,
                       const std::string& uri, const std::string& folder, std::ostream& out);

}  // namespace consort::host

#endif  // CONSORT_HOST_CTL_VM_TRANSFER_H_
