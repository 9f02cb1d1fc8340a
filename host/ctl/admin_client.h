// SPDX-License-Identifier: Apache-2.0
// host/ctl/admin_client.h: asks consortd over its admin socket. Blocks; thread compatible.
#ifndef CONSORT_HOST_CTL_ADMIN_CLIENT_H_
#define CONSORT_HOST_CTL_ADMIN_CLIENT_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace consort::host {

// The body of GET `path`. kUnavailable: nobody answers there. kPermissionDenied: this user may not
// ask. kInternal: an answer that is none. The texts say what to do.
absl::StatusOr<std::string> AdminGet(const std::string& socket_path, const std::string& path);

// PUT `body` to `path` (host/daemon/admin_doors.h). Errors as above, and kInvalidArgument with
// consortd's text: it wants something else.
absl::Status AdminPut(const std::string& socket_path, const std::string& path,
                      const nlohmann::ordered_json& body);

// The same, as an object of JSON.
absl::StatusOr<nlohmann::ordered_json> AdminGetJson(const std::string& socket_path,
                                                    const std::string& path);

// consortd's state: host/daemon/status_json.h.
absl::StatusOr<nlohmann::ordered_json> AdminStatus(const std::string& socket_path);

}  // namespace consort::host

#endif  // CONSORT_HOST_CTL_ADMIN_CLIENT_H_
