// SPDX-License-Identifier: Apache-2.0
// guest/calls/entry.cc: initialisation, versions, errors, profiler. Source: CUDA Driver API,
// sections Initialization, Version Management, Error Handling, Profiler Control.
#include "gen/errors/error_table.h"
#include "gen/guest/calls.h"
#include "guest/runtime.h"

namespace consort::guest::calls {

CUresult cuInit(unsigned int Flags) {
  if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return Initialise();
}

CUresult cuDriverGetVersion(int* driverVersion) {
  if (driverVersion == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *driverVersion = kDriverVersion;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** pStr) {
  if (pStr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* found = FindErrorText(error);
  *pStr = found != nullptr ? found->name : nullptr;
  return found != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** pStr) {
  if (pStr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* found = FindErrorText(error);
  *pStr = found != nullptr ? found->text : nullptr;
  return found != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuProfilerStart() { return CUDA_SUCCESS; }

CUresult cuProfilerStop() { return CUDA_SUCCESS; }

// "Starting with CUDA 12.0, it always returns error code CUDA_ERROR_NOT_SUPPORTED."
CUresult cuProfilerInitialize(const char*, const char*, CUoutput_mode) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace consort::guest::calls
