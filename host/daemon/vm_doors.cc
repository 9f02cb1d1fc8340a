// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/vm_doors.h"

namespace consort::host {

absl::StatusOr<std::unique_ptr<VmDoors>> VmDoors::Open(EventLoop*, const std::vector<VmOptions>& vms,
                                                       OnConnection) {
  if (!vms.empty()) return absl::UnimplementedError("--vm: no vhost-user device in this build");
  return std::make_unique<VmDoors>();
}

}  // namespace consort::host
