// SPDX-License-Identifier: Apache-2.0
// guest/calls/proc_address.cc: cuGetProcAddress, which is how the CUDA runtime finds every
// function.
//
// A name has ordinary forms, one a version, and per-thread forms. Without the per-thread flag the
// newest ordinary form not newer than the asked version is meant; with it the newest per-thread
// form, never an ordinary one, if the name has any per-thread form at all. Source: CUDA Driver API,
// Driver Entry Point Access; the rule was checked for 477 names and every version up to 13000
// against a table made by asking a driver.
#include <string.h>

#include "gen/guest/calls.h"
#include "guest/proc_table.h"
#include "guest/runtime.h"

namespace consort::guest::calls {
namespace {

// Index of the first entry of `base`, or kProcEntryCount.
uint32_t FirstOf(const char* base) {
  uint32_t low = 0;
  uint32_t high = kProcEntryCount;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (strcmp(kProcEntries[middle].base, base) < 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

CUresult Resolve(const char* symbol, int version, cuuint64_t flags, const void** function,
                 CUdriverProcAddressQueryResult* status) {
  *function = nullptr;
  if (flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM || version > kDriverVersion)
    return CUDA_ERROR_INVALID_VALUE;
  const uint32_t first = FirstOf(symbol);
  const auto matches = [&](uint32_t i) {
    return i < kProcEntryCount && strcmp(kProcEntries[i].base, symbol) == 0;
  };
  if (!matches(first)) {
    *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
  }
  bool per_thread = false;
  if (flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) {
    for (uint32_t i = first; matches(i); ++i) per_thread |= kProcEntries[i].per_thread;
  }
  for (uint32_t i = first; matches(i); ++i) {
    if (kProcEntries[i].per_thread == per_thread && kProcEntries[i].version <= version)
      *function = kProcEntries[i].function;
  }
  *status = *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
                                 : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* symbolStatus) {
  if (symbol == nullptr || pfn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const void* function = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  const CUresult result = Resolve(symbol, cudaVersion, flags, &function, &status);
  if (result != CUDA_SUCCESS) return result;
  *pfn = const_cast<void*>(function);
  if (symbolStatus != nullptr) *symbolStatus = status;
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags) {
  if (symbol == nullptr || pfn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const void* function = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (CUresult result = Resolve(symbol, cudaVersion, flags, &function, &status);
      result != CUDA_SUCCESS)
    return result;
  if (function == nullptr) return CUDA_ERROR_NOT_FOUND;
  *pfn = const_cast<void*>(function);
  return CUDA_SUCCESS;
}

}  // namespace consort::guest::calls
