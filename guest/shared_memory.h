// SPDX-License-Identifier: Apache-2.0
// guest/shared_memory.h: host memory at one address in this process, in the worker and on the
// device; host/session/shared_host.h is the other side. For sessions that share memory
// (Session::shares_memory). Thread safe.
#ifndef CONSORT_GUEST_SHARED_MEMORY_H_
#define CONSORT_GUEST_SHARED_MEMORY_H_

#include <cuda.h>

#include <cstdint>

#include "guest/session.h"

namespace consort::guest {

// Allocates `bytes`, rounded up to pages, zeroed; `flags` are cuMemHostAlloc's. `memory`, if not
// null, gets the descriptor of it, for the caller to close; for sessions that share files.
// CUDA_ERROR_OUT_OF_MEMORY: the host's, this machine's or the session's share is used up.
CUresult AllocateSharedMemory(Session* session, uint64_t bytes, unsigned flags, uint64_t* address,
                              int* memory);

// Likewise for this library's use: the program never has its address, so no kernel does.
CUresult AllocateOwnMemory(Session* session, uint64_t bytes, uint64_t* address);
// Shares memory that this process has mapped from `file`, or is to, for sessions that share files:
// the request says which part of
// it and where; `address` is the device's. CUDA_ERROR_OUT_OF_MEMORY: as above.
// CUDA_ERROR_INVALID_VALUE: no file that long.
CUresult AdoptSharedMemory(Session* session, int file, const wire::HostAdoptRequest& request,
                           uint64_t* address);
// Has the worker of `to` map memory of `from`, in which `address` lies, where that has it.
// `request` names `from` to the host, and gets the rest. Errors: of both;
// CUDA_ERROR_OPERATING_SYSTEM: the descriptor did not come.
CUresult PassSharedMemory(Session* from, uint64_t address, Session* to,
                          wire::HostReachRequest* request);
// Maps memory that the worker has made for managed variables of `library_id`.
// CUDA_ERROR_NOT_FOUND: none.
CUresult MapManagedVariables(Session* session, uint64_t library_id, uint64_t* address,
                             uint64_t* bytes);
// Ends it here; on the host it goes with the library.
void UnmapSharedMemory(uint64_t address, uint64_t bytes);
// Ends it here at once and on the host when earlier work is done. `bytes` as allocated.
CUresult FreeSharedMemory(Session* session, uint64_t address, uint64_t bytes);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_SHARED_MEMORY_H_
