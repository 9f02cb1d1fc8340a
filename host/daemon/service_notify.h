// SPDX-License-Identifier: Apache-2.0
// host/daemon/service_notify.h: tells a service manager how consortd is doing.
#ifndef CONSORT_HOST_DAEMON_SERVICE_NOTIFY_H_
#define CONSORT_HOST_DAEMON_SERVICE_NOTIFY_H_

#include <string>
#include <string_view>

namespace consort::host {

// Sends `state` ("READY=1", "STOPPING=1") to `notify_socket`, the value of NOTIFY_SOCKET; empty:
// does nothing. A leading '@' is an abstract name. Failure is logged: the manager's own time limit
// acts on it. Source: systemd's sd_notify(3), section "Notes" (datagram on an AF_UNIX socket).
void NotifyServiceManager(const std::string& notify_socket, std::string_view state);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_SERVICE_NOTIFY_H_
