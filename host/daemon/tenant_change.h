// SPDX-License-Identifier: Apache-2.0
// host/daemon/tenant_change.h: what an operator changes of a tenant while consortd runs. Value
// type.
//
//   {"tenant": "web-1", "weight": 4, "gpus": [0, "NVIDIA H200"], "placement": "mbf",
//    "max_launches_per_second": 20000, "max_copy_bytes_per_second": "1GiB", "pool": true}
//
// A size is text or a number. A key that is not there changes nothing; null goes back to what the
// file says. No gpus ([]) are all of them, no placement ("") is the pool's, and a rate of 0 is
// none.
#ifndef CONSORT_HOST_DAEMON_TENANT_CHANGE_H_
#define CONSORT_HOST_DAEMON_TENANT_CHANGE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "host/daemon/gpu_list.h"

namespace consort::host {

// No value: not touched. In it no value: as the file says.
template <class T>
using Change = std::optional<std::optional<T>>;

struct TenantChange {
  std::string tenant;
  bool pool = false;  // of all hosts of the pool, and not of this one
  Change<uint32_t> weight;
  Change<GpuList> gpus;
  Change<std::string> placement;
  Change<uint64_t> launches_per_second;
  Change<uint64_t> copy_bytes_per_second;
};

// Of the JSON above. kInvalidArgument: it is none; the text shows one. Whether the values may be is
// for Settings to say.
absl::StatusOr<TenantChange> ParseTenantChange(std::string_view json);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_TENANT_CHANGE_H_
