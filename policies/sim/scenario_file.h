// SPDX-License-Identifier: Apache-2.0
// policies/sim/scenario_file.h: scenarios of the pool simulation as TOML; docs/SIMULATOR.md lists
// the keys. Read by the operator's own program: a mistake is told with line and column.
#ifndef CONSORT_POLICIES_SIM_SCENARIO_FILE_H_
#define CONSORT_POLICIES_SIM_SCENARIO_FILE_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "policies/sim/pool_simulation.h"

namespace consort::sim {

// `path` is for messages. kInvalidArgument: the text is no scenario; says where and why.
absl::StatusOr<PoolScenario> ParseScenario(const std::string& path, std::string_view text);

}  // namespace consort::sim

#endif  // CONSORT_POLICIES_SIM_SCENARIO_FILE_H_
