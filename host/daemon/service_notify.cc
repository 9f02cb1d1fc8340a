// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/service_notify.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/log.h"
#include "base/unique_fd.h"

namespace consort::host {

void NotifyServiceManager(const std::string& notify_socket, std::string_view state) {
  if (notify_socket.empty()) return;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (notify_socket.size() >= sizeof(address.sun_path)) {
    LOG(WARNING) << "NOTIFY_SOCKET is too long";
    return;
  }
  memcpy(address.sun_path, notify_socket.data(), notify_socket.size());
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  const socklen_t bytes =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + notify_socket.size());
  const UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() || sendto(fd.get(), state.data(), state.size(), MSG_NOSIGNAL,
                            reinterpret_cast<const sockaddr*>(&address), bytes) < 0) {
    LOG(WARNING) << "telling the service manager " << state << ": " << strerror(errno);
  }
}

}  // namespace consort::host
