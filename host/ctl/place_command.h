// SPDX-License-Identifier: Apache-2.0
// host/ctl/place_command.h: consortctl place: where applications' devices are, and why there. Pure.
#ifndef CONSORT_HOST_CTL_PLACE_COMMAND_H_
#define CONSORT_HOST_CTL_PLACE_COMMAND_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace consort::host {

// Of consortd's state, one entry a device of an application: this host's applications wherever
// their devices are, and other hosts' on ours. `application`: only those of that name or process
// id; empty: all. kNotFound: there is none such; the text says what to do.
absl::StatusOr<nlohmann::ordered_json> PlacementsOf(const nlohmann::ordered_json& status,
                                                    const std::string& application);

std::string PlacementTable(const nlohmann::ordered_json& placements);

}  // namespace consort::host

#endif  // CONSORT_HOST_CTL_PLACE_COMMAND_H_
