// SPDX-License-Identifier: Apache-2.0
// host/daemon/vm_files.h: the virtual machines that an operator has named in files.
//
// A folder, one file NAME.toml a machine; consortctl writes them, and a person may:
//   tenant = "research"   # who pays; the machine's own name if left out
//   vgpus = 1             # how many of the host's devices it sees; all if left out
//   shared_memory = "256MiB"   # that it shares with the host; "0": none, as --vm-memory if left
//   out
// NAME is of letters, digits, '.', '_' and '-', begins with a letter or digit and has at most
// kVmNameBytesMax of them.
// Its socket is NAME.sock in the folder of the VMs' sockets. Plain functions.
#ifndef CONSORT_HOST_DAEMON_VM_FILES_H_
#define CONSORT_HOST_DAEMON_VM_FILES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "host/daemon/options.h"

namespace consort::host {

// A socket's address has 107 bytes, folder and all.
inline constexpr size_t kVmNameBytesMax = 48;

bool IsVmName(std::string_view name);

// The machines of `folder`, by name. Files of other endings are passed over; a folder that is not
// there has none. kInvalidArgument: file, line and what is wrong; nothing is taken from any file.
absl::StatusOr<std::vector<VmOptions>> ReadVmFiles(const std::string& folder,
                                                   const VmDefaults& defaults);

// Where the shared memory of the machine of that name lies.
std::string VmMemoryPath(const VmDefaults& defaults, std::string_view name);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_VM_FILES_H_
