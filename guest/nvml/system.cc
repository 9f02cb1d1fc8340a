// SPDX-License-Identifier: Apache-2.0
// guest/nvml/system.cc: NVML's start and end, versions, errors, and what is asked of the machine.
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guest/nvml/state.h"

namespace consort::nvml {
namespace {

using Wanted = StatusScope::Wanted;

// Of NVML's interface as it is here.
constexpr int kNvmlMajor = 13;

nvmlReturn_t NoneOf(uint32_t* count) {
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const StatusScope scope(Wanted::kAny);
  if (scope.status != nullptr) *count = 0;
  return scope.result;
}

}  // namespace

NVML_API nvmlReturn_t nvmlInit_v2() { return Initialise(); }
NVML_API nvmlReturn_t nvmlInit() { return Initialise(); }

// The flags say that no GPU is no failure, and that none shall be attached: neither can be here.
NVML_API nvmlReturn_t nvmlInitWithFlags(uint32_t) { return Initialise(); }

NVML_API nvmlReturn_t nvmlShutdown() { return Shutdown(); }

// Source: NVML API Reference, nvmlReturn_t; the texts in our words.
NVML_API const char* nvmlErrorString(int32_t result) {
  static constexpr const char* kTexts[] = {
      "Success",
      "Uninitialized",
      "Invalid Argument",
      "Not Supported",
      "Insufficient Permissions",
      "Already Initialized",
      "Not Found",
      "Insufficient Size",
      "Insufficient External Power",
      "Driver Not Loaded",
      "Timeout",
      "Interrupt Request Issue",
      "NVML Shared Library Not Found",
      "Function Not Found",
      "Corrupted infoROM",
      "GPU is lost",
      "GPU requires reset",
      "The operating system has blocked the request",
      "RM has detected an NVML/RM version mismatch",
      "The operation cannot be performed since the GPU is in use",
      "Insufficient Memory",
      "No data",
      "The requested vGPU operation is not available, since ECC is enabled",
      "Insufficient resources",
      "The requested frequency is not supported",
      "The version of the argument is not known",
      "Deprecated",
      "Not ready",
      "No GPU was found",
      "Invalid state",
      "The reset type is not supported",
  };
  constexpr int32_t kCount = sizeof(kTexts) / sizeof(kTexts[0]);
  return result >= 0 && result < kCount ? kTexts[result] : "Unknown Error";
}

NVML_API nvmlReturn_t nvmlSystemGetDriverVersion(char* version, uint32_t length) {
  const StatusScope scope(Wanted::kAny);
  return scope.status == nullptr ? scope.result
                                 : CopyText(scope.status->driver_release, version, length);
}

// As NVIDIA's: the major version, then the driver's release, which is not known before nvmlInit.
NVML_API nvmlReturn_t nvmlSystemGetNVMLVersion(char* version, uint32_t length) {
  char text[80];
  const StatusScope scope(Wanted::kAny);
  snprintf(text, sizeof(text), "%d.%.*s", kNvmlMajor,
           static_cast<int>(sizeof(Status::driver_release)),
           scope.status != nullptr ? scope.status->driver_release : "0");
  return CopyText(text, version, length);
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* cudaDriverVersion) {
  if (cudaDriverVersion == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const StatusScope scope(Wanted::kAny);
  if (scope.status != nullptr) *cudaDriverVersion = static_cast<int>(scope.status->cuda_version);
  return scope.result;
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* cudaDriverVersion) {
  return nvmlSystemGetCudaDriverVersion_v2(cudaDriverVersion);
}

// The name that the process's own CUDA library told the host. Cut to `length`.
NVML_API nvmlReturn_t nvmlSystemGetProcessName(uint32_t pid, char* name, uint32_t length) {
  if (name == nullptr || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
  const StatusScope scope(Wanted::kFresh);
  if (scope.status == nullptr) return scope.result;
  for (uint32_t i = 0; i < scope.status->process_count; ++i) {
    const wire::ProcessUse& process = scope.status->processes[i];
    if (process.pid != pid) continue;
    snprintf(name, length, "%s", process.application);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlSystemGetHicVersion(uint32_t* hwbcCount, void*) {
  return NoneOf(hwbcCount);
}

// A set of events, of which a vGPU has none.
NVML_API nvmlReturn_t nvmlEventSetCreate(void** set) {
  if (set == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const StatusScope scope(Wanted::kAny);
  if (scope.status == nullptr) return scope.result;
  *set = malloc(1);
  return *set != nullptr ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

NVML_API nvmlReturn_t nvmlEventSetFree(void* set) {
  if (set == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  free(set);
  return NVML_SUCCESS;
}

// Nothing comes, so the time passes.
NVML_API nvmlReturn_t nvmlEventSetWait_v2(void* set, void* data, uint32_t timeoutms) {
  if (set == nullptr || data == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  poll(nullptr, 0, timeoutms < INT_MAX ? static_cast<int>(timeoutms) : INT_MAX);
  return NVML_ERROR_TIMEOUT;
}

NVML_API nvmlReturn_t nvmlEventSetWait(void* set, void* data, uint32_t timeoutms) {
  return nvmlEventSetWait_v2(set, data, timeoutms);
}

NVML_API nvmlReturn_t nvmlUnitGetCount(uint32_t* unitCount) { return NoneOf(unitCount); }

NVML_API nvmlReturn_t nvmlGetExcludedDeviceCount(uint32_t* deviceCount) {
  return NoneOf(deviceCount);
}

}  // namespace consort::nvml
