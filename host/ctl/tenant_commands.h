// SPDX-License-Identifier: Apache-2.0
// host/ctl/tenant_commands.h: consortctl tenant. Pure.
#ifndef CONSORT_HOST_CTL_TENANT_COMMANDS_H_
#define CONSORT_HOST_CTL_TENANT_COMMANDS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace consort::host {

// The words of `consortctl tenant set`; what has no value is not changed.
struct TenantOptions {
  std::string tenant;
  bool pool = false;  // of all hosts of the pool
  std::optional<uint32_t> weight;
  std::vector<std::string> gpus;         // "all" alone: all of them
  std::optional<std::string> placement;  // a policy, or "default"
  std::optional<std::string> launches;   // a number, or "none"
  std::optional<std::string> copies;     // a size, or "none"
};

// What consortd is to be asked for (host/daemon/tenant_change.h). kInvalidArgument: nothing is to
// be changed, or a word means nothing.
absl::StatusOr<nlohmann::ordered_json> TenantSetBody(const TenantOptions& options);
// Nothing of what may be set is said any more.
nlohmann::ordered_json TenantResetBody(const std::string& tenant, bool pool);

// The tenants of consortd's state, for people.
std::string TenantTable(const nlohmann::ordered_json& status);

}  // namespace consort::host

#endif  // CONSORT_HOST_CTL_TENANT_COMMANDS_H_
