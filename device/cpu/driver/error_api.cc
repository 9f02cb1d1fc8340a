// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/error_api.cc: names and descriptions of results. Both work before cuInit, and
// what they return lives forever.
#include "device/cpu/driver/cuda_api.h"
#include "gen/errors/error_table.h"

using namespace consort;  // the entry points are global: their prototypes are cuda.h's

extern "C" {

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** pStr) {
  if (pStr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* found = FindErrorText(error);
  *pStr = found != nullptr ? found->name : nullptr;
  return found != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char** pStr) {
  if (pStr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* found = FindErrorText(error);
  *pStr = found != nullptr ? found->text : nullptr;
  return found != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // extern "C"
