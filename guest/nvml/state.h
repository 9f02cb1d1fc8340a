// SPDX-License-Identifier: Apache-2.0
// guest/nvml/state.h: what this library knows of the host: its vGPUs and what is in use.
//
// Asked of consortd over the endpoint of the CUDA library, by one query that stands for
// kStatusAgeMax; no connection stays open and no thread is started, so a fork needs no care. Device
// handles are addresses in a table that lives as long as the process. Thread safe.
#ifndef CONSORT_GUEST_NVML_STATE_H_
#define CONSORT_GUEST_NVML_STATE_H_

#include <cstdint>

#include "base/nvml_types.h"
#include "vmsock/limits.h"
#include "vmsock/wire/handshake.h"

#define NVML_API extern "C" __attribute__((visibility("default")))

namespace consort::nvml {

// nvidia-smi asks a hundred questions in a row, which should have one answer; who polls does so
// some times a second at most, and workers report twice a second.
inline constexpr int64_t kStatusAgeMaxNanos = 100'000'000;

// What one query said. Value type; some 200 KiB, so never on a stack.
struct Status {
  uint32_t device_count = 0;
  uint32_t process_count = 0;
  uint32_t cuda_version = 0;  // 13000
  char driver_release[64] = {};
  wire::DeviceSnapshot devices[kDeviceSnapshotsMax];
  wire::DeviceUse uses[kDeviceSnapshotsMax];
  wire::ProcessUse processes[kProcessUsesMax];
};

// NVML counts: each Initialise needs a Shutdown. NVML_ERROR_DRIVER_NOT_LOADED: no host answers.
nvmlReturn_t Initialise();
nvmlReturn_t Shutdown();

// Holds the state's lock for a scope. `status` is null, and `result` says why, unless NVML is
// initialised and, where a fresh answer is wanted, the host gave one.
class StatusScope {
 public:
  enum class Wanted { kAny, kFresh };
  explicit StatusScope(Wanted wanted);
  ~StatusScope();
  StatusScope(const StatusScope&) = delete;
  StatusScope& operator=(const StatusScope&) = delete;

  const Status* status = nullptr;
  nvmlReturn_t result = NVML_SUCCESS;
};

nvmlDevice_t HandleOf(uint32_t index);
// False for what is no handle of ours. Whether there is such a device, Status says.
bool IndexOf(nvmlDevice_t device, uint32_t* index);

// Calls `then` with the status and the device's index, and returns its answer.
template <typename Then>
nvmlReturn_t WithDevice(nvmlDevice_t device, StatusScope::Wanted wanted, Then then) {
  const StatusScope scope(wanted);
  if (scope.status == nullptr) return scope.result;
  uint32_t index = 0;
  if (!IndexOf(device, &index) || index >= scope.status->device_count) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  return then(*scope.status, index);
}

// Microseconds since 1970, as NVML counts.
uint64_t WallClockMicroseconds();

// NVML_ERROR_NOT_SUPPORTED, or NVML_ERROR_UNINITIALIZED. Says so once a process, with the name of
// the first function: programs ask a vGPU for dozens of things that it does not have.
nvmlReturn_t NotSupported(const char* function);

// An answer that is text, into its caller's `length` bytes, with its terminating zero.
// NVML_ERROR_INSUFFICIENT_SIZE: it does not fit, nothing is written.
nvmlReturn_t CopyText(const char* text, char* out, uint32_t length);

}  // namespace consort::nvml

#endif  // CONSORT_GUEST_NVML_STATE_H_
