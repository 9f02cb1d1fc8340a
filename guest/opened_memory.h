// SPDX-License-Identifier: Apache-2.0
// guest/opened_memory.h: memory of other processes at addresses of this one. However often it is
// opened, it has one address, and goes with the last close. Any thread. Source: CUDA Driver API,
// cuIpcOpenMemHandle, cuMemPoolImportPointer.
#ifndef CONSORT_GUEST_OPENED_MEMORY_H_
#define CONSORT_GUEST_OPENED_MEMORY_H_

#include <cuda.h>

#include <cstdint>

#include "guest/call.h"

namespace consort::guest {

// What the worker shares by this token; `pool_id` is of the pool that it is imported from, or 0.
CUresult OpenSharedMemory(Context* context, uint64_t token_high, uint64_t token_low,
                          uint64_t pool_id, CUdeviceptr* address);
// Waits for the work of its context first. CUDA_ERROR_INVALID_VALUE: nothing was opened there.
CUresult CloseOpenedMemory(CUdeviceptr address);
// Whether what begins there was imported from a pool, which is freed and not closed.
bool IsImportedFromPool(CUdeviceptr address);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_OPENED_MEMORY_H_
