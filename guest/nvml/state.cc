// SPDX-License-Identifier: Apache-2.0
#include "guest/nvml/state.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "gen/wire/opcodes.h"
#include "guest/config.h"
#include "guest/log.h"
#include "guest/mutex.h"
#include "vmsock/dial.h"

// Only its address means something.
struct nvmlDevice_st {
  char unused;
};

namespace consort::nvml {
namespace {

guest::Mutex mutex;
// Guarded by mutex.
uint32_t initialised = 0;
Status latest;
int64_t asked_at = 0;  // 0: never

nvmlDevice_st handles[kDeviceSnapshotsMax];
std::atomic<bool> said{false};

int64_t Now() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

nvmlReturn_t AskLocked() {
  static Status fresh;  // guarded by mutex
  DialOptions options;
  options.endpoint = guest::GetConfig().endpoint;
  options.description_hash = wire::kDescriptionHash;
  options.application = "nvml";
  options.connect_timeout = guest::GetConfig().connect_timeout_ms * kMillisecond;
  StatusAnswer answer = {fresh.devices, fresh.uses, fresh.processes};
  DialResult result;
  QueryStatus(options, &result, &answer);
  if (result.error != DialError::kNone) {
    guest::LogLine("NVML: %s (endpoint %s; set CONSORT_ENDPOINT or /etc/consort/guest.toml)",
                   result.text, options.endpoint);
    return result.error == DialError::kVersionMismatch ? NVML_ERROR_LIB_RM_VERSION_MISMATCH
                                                       : NVML_ERROR_DRIVER_NOT_LOADED;
  }
  fresh.device_count = result.welcome.device_count;
  fresh.process_count = static_cast<uint32_t>(answer.process_count);
  fresh.cuda_version = result.welcome.driver_version;
  snprintf(fresh.driver_release, sizeof(fresh.driver_release), "%s", result.welcome.driver_release);
  latest = fresh;
  asked_at = Now();
  return NVML_SUCCESS;
}

}  // namespace

nvmlReturn_t Initialise() {
  guest::MutexLock lock(&mutex);
  if (initialised == 0) {
    const nvmlReturn_t result = AskLocked();
    if (result != NVML_SUCCESS) return result;
  }
  ++initialised;
  return NVML_SUCCESS;
}

nvmlReturn_t Shutdown() {
  guest::MutexLock lock(&mutex);
  if (initialised == 0) return NVML_ERROR_UNINITIALIZED;
  --initialised;
  return NVML_SUCCESS;
}

StatusScope::StatusScope(Wanted wanted) {
  mutex.Lock();
  if (initialised == 0) {
    result = NVML_ERROR_UNINITIALIZED;
    return;
  }
  if (wanted == Wanted::kFresh && Now() - asked_at > kStatusAgeMaxNanos) {
    result = AskLocked();
    if (result != NVML_SUCCESS) return;
  }
  status = &latest;
}

StatusScope::~StatusScope() { mutex.Unlock(); }

nvmlDevice_t HandleOf(uint32_t index) { return &handles[index]; }

bool IndexOf(nvmlDevice_t device, uint32_t* index) {
  const auto address = reinterpret_cast<uintptr_t>(device);
  const auto base = reinterpret_cast<uintptr_t>(&handles[0]);
  if (address < base || address >= base + sizeof(handles) ||
      (address - base) % sizeof(handles[0]) != 0) {
    return false;
  }
  *index = static_cast<uint32_t>((address - base) / sizeof(handles[0]));
  return true;
}

uint64_t WallClockMicroseconds() {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

nvmlReturn_t NotSupported(const char* function) {
  {
    guest::MutexLock lock(&mutex);
    if (initialised == 0) return NVML_ERROR_UNINITIALIZED;
  }
  if (!said.exchange(true, std::memory_order_relaxed)) {
    guest::LogLine("%s and the like are not answered for a vGPU: NVML_ERROR_NOT_SUPPORTED",
                   function);
  }
  return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t CopyText(const char* text, char* out, uint32_t length) {
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (strlen(text) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
  strcpy(out, text);
  return NVML_SUCCESS;
}

}  // namespace consort::nvml
