// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/options.h: the devices to present, read from the environment once, in cuInit.
//
//   CONSORT_CPU_DEVICES   number of devices, 0 to kDeviceCountMax, default 1; or a list of devices
//                         (below); or the absolute path of a file with such a list
//   CONSORT_CPU_MEMORY    memory of devices that the list gives none: "4GiB", "512MiB", or a list
//                         "8GiB,2GiB"; the last entry holds for the devices that the list does not
//                         reach; default 4GiB
//   CONSORT_CPU_SANITIZE  "memory": kernels are stopped at their first access outside of memory
//   that
//                         is theirs, with a report in the log; default none
//   CONSORT_CPU_KERNEL_LIMIT   how long a kernel may run ("10s"); default as long as it likes
//   CONSORT_CPU_CACHE     directory of compiled code, "" for none; default $XDG_CACHE_HOME/consort,
//                         else $HOME/.cache/consort (XDG Base Directory Specification)
//
// A list of devices: one a line or separated by ";", "#" begins a comment, each of KEY=VALUE words.
//
//   name="Big one"   what cuDeviceGetName says; default "Consort CPU device"
//   uuid=HEX         32 hexadecimal digits, with or without dashes; default made of the index
//   memory=8GiB
//   speed=0.5        of compute, in (0, 1]: 1 is as fast as this machine; also scales the clock
//   cores=2          CPUs that its kernels run on, which are its multiprocessors; default all
//   copy=12GiB       bytes a second between host and device, each way; default as fast as it goes
//   launch=5us       from when a stream gets to a kernel until it begins (ns, us, ms, s); default 0
//   host_atomics=no  says that its atomics are none for the host's, as GPUs on PCIe do; default yes
//   links=18         links (NVLink) to a switch that devices with links share, for NVML; default 0
//   count=4          so many devices like this one; those after the first get UUIDs of their index
// Pure; thread safe.
#ifndef CONSORT_DEVICE_CPU_DRIVER_OPTIONS_H_
#define CONSORT_DEVICE_CPU_DRIVER_OPTIONS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "device/cpu/driver/device_pace.h"
#include "device/cpu/driver/limits.h"

namespace consort::cpu {

struct DeviceOptions {
  std::string name = "Consort CPU device";
  std::optional<std::array<unsigned char, 16>> uuid;
  Bytes memory = kDeviceMemoryDefault;  // a multiple of kGranularity
  uint32_t cores = 0;                   // 0: all of this machine's
  bool host_atomics = true;
  uint32_t links = 0;
  PaceOptions pace;
};

struct Options {
  std::vector<DeviceOptions> devices;
};

// `devices` is a number or a list, not a path. Empty strings stand for unset variables.
// kInvalidArgument: not a number, out of range, less memory than kGranularity, an unknown key, two
// devices with one UUID; says which variable and what.
absl::StatusOr<Options> ParseOptions(std::string_view devices, std::string_view memory);

// How kernels are guarded.
struct GuardOptions {
  bool checks_memory = false;
  Nanos kernel_limit = 0;  // 0: none
};

// `sanitize` and `kernel_limit` are the variables' values, empty where not set.
// kInvalidArgument: names the variable and what it does not understand.
absl::StatusOr<GuardOptions> ParseGuards(std::string_view sanitize, std::string_view kernel_limit);

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
