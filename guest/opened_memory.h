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

// What a session, perhaps of another device, has exported.
struct SharedToken {
  uint64_t session = 0;
  uint64_t high = 0;
  uint64_t low = 0;
};

// Maps it for the context's device; `pool_id` is of the pool that it is imported from, or 0.
CUresult OpenSharedMemory(Context* context, const SharedToken& token, uint64_t pool_id,
                          CUdeviceptr* address);
// Waits for the work of its context first. CUDA_ERROR_INVALID_VALUE: nothing was opened there.
CUresult CloseOpenedMemory(CUdeviceptr address);
// Whether what begins there was imported from a pool, which is freed and not closed.
bool IsImportedFromPool(CUdeviceptr address);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_OPENED_MEMORY_H_
