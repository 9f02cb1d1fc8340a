// SPDX-License-Identifier: Apache-2.0
#include "base/inherited_fds.h"

#include <fcntl.h>

#include <utility>

namespace consort {

InheritedFds::InheritedFds(std::span<const int> descriptors) {
  for (const int descriptor : descriptors) {
    if (descriptor < 0 || fds_.contains(descriptor)) continue;
    fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    fds_[descriptor].Reset(descriptor);
  }
}

UniqueFd InheritedFds::Take(int descriptor) {
  const auto it = fds_.find(descriptor);
  if (it == fds_.end()) return UniqueFd();
  UniqueFd fd = std::move(it->second);
  fds_.erase(it);
  return fd;
}

}  // namespace consort
