// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/options.h: the devices to present, read from the environment once, in cuInit.
//
//   CONSORT_CPU_DEVICES   number of devices, 0 to kDeviceCountMax; default 1
//   CONSORT_CPU_MEMORY    memory of each device: "4GiB", "512MiB", or a list "8GiB,2GiB"; the last
//                         entry holds for the devices that the list does not reach; default 4GiB
// Pure; thread safe.
#ifndef CONSORT_DEVICE_CPU_DRIVER_OPTIONS_H_
#define CONSORT_DEVICE_CPU_DRIVER_OPTIONS_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"

namespace consort::cpu {

struct Options {
  std::vector<Bytes> device_memory;  // one a device, each a multiple of kGranularity
};

// Empty strings stand for unset variables. kInvalidArgument: not a number, out of range, or less
// than kGranularity; says which variable.
absl::StatusOr<Options> ParseOptions(std::string_view devices, std::string_view memory);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_OPTIONS_H_
