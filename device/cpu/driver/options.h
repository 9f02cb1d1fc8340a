// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/options.h: the devices to present, read from the environment once, in cuInit.
//
//   CONSORT_CPU_DEVICES   number of devices, 0 to kDeviceCountMax; default 1
//   CONSORT_CPU_MEMORY    memory of each device: "4GiB", "512MiB", or a list "8GiB,2GiB"; the last
//                         entry holds for the devices that the list does not reach; default 4GiB
//   CONSORT_CPU_CACHE     directory of compiled code, "" for none; default $XDG_CACHE_HOME/consort,
//                         else $HOME/.cache/consort (XDG Base Directory Specification)
// Pure; thread safe.
#ifndef CONSORT_DEVICE_CPU_DRIVER_OPTIONS_H_
#define CONSORT_DEVICE_CPU_DRIVER_OPTIONS_H_

#include <string>
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

// The environment's variables, null where not set.
struct CacheEnvironment {
  const char* directory = nullptr;  // CONSORT_CPU_CACHE
  const char* xdg_cache_home = nullptr;
  const char* home = nullptr;
};

// The directory of compiled code; empty: none. Relative paths count as not set.
std::string CacheDirectory(const CacheEnvironment& environment);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_OPTIONS_H_
