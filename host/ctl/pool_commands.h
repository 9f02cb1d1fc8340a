// SPDX-License-Identifier: Apache-2.0
// host/ctl/pool_commands.h: what consortctl says of a pool, from consortd's state, as tables.
// Stateless.
#ifndef CONSORT_HOST_CTL_POOL_COMMANDS_H_
#define CONSORT_HOST_CTL_POOL_COMMANDS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace consort::host {

// The part of consortd's state (host/daemon/status_json.h) about its pool. kFailedPrecondition: it
// is in none.
absl::StatusOr<nlohmann::ordered_json> PoolOf(const nlohmann::ordered_json& status);

std::string NodesTable(const nlohmann::ordered_json& pool);
std::string GpusTable(const nlohmann::ordered_json& pool);
// Of a host by itself: its devices, of the same state.
std::string DevicesTable(const nlohmann::ordered_json& devices);
// The assemblies of this host: which GPUs each application has.
std::string SlicesTable(const nlohmann::ordered_json& pool);

}  // namespace consort::host

#endif  // CONSORT_HOST_CTL_POOL_COMMANDS_H_
