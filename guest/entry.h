// SPDX-License-Identifier: Apache-2.0
// guest/entry.h: what every exported entry point does first, and last.
#ifndef CONSORT_GUEST_ENTRY_H_
#define CONSORT_GUEST_ENTRY_H_

#include <cuda.h>

#include <cstdint>

#define CONSORT_EXPORT __attribute__((visibility("default")))

namespace consort::guest {

// CUDA_SUCCESS if driver calls may be made in this process now: cuInit has succeeded, and not in a
// parent of this process only (a forked child of an initialised process must not use CUDA:
// CUDA_ERROR_NOT_INITIALIZED). Any thread; a few loads.
CUresult EnterCall();

// With CONSORT_LOG=errors, logs that `call` returned `result`, which is not CUDA_SUCCESS.
// CUDA_ERROR_NOT_READY is no failure. Any thread.
void LogFailedCall(const char* call, CUresult result);

inline CUresult LeaveCall(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) [[unlikely]]
    LogFailedCall(call, result);
  return result;
}

}  // namespace consort::guest

#endif  // CONSORT_GUEST_ENTRY_H_
