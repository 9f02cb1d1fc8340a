// SPDX-License-Identifier: Apache-2.0
// guest/pool.h: memory pools of stream-ordered allocation, which live in the guest alone.
//
// A pool keeps blocks that were freed in a stream. The next allocation of the same size in the same
// stream gets one without asking the host: it begins after the free by the order of the stream.
// After a synchronisation any stream may have them, and what a pool holds beyond its release
// threshold goes back to the host. Everything here is guarded by Runtime::pool_mutex, which is
// never held while the host is asked. Source: CUDA C++ Programming Guide, Stream Ordered Memory
// Allocator.
#ifndef CONSORT_GUEST_POOL_H_
#define CONSORT_GUEST_POOL_H_

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "guest/allocations.h"
#include "guest/call.h"

namespace consort::guest {

// A block of `bytes` (already a multiple of kPoolAlignment) for work of `stream` from `pool`, whose
// owner becomes `context`; enters it among the allocations.
CUresult AllocateFromPool(Pool* pool, const StreamRef& stream, uint64_t bytes,
                          CUdeviceptr* address);
// A pool of memory of the device; 0: there are too many.
uint64_t CreatePool(Device* device, uint64_t bytes_max, CUmemAllocationHandleType handle_types,
                    bool imported);
// The pool that cuMemAllocAsync of `device` takes from; null if there are too many pools.
Pool* CurrentPool(Device* device);

// A block of a pool that was taken out of the allocations: cuMemFree, which frees it on the host.
void ReleasePoolBlock(Context* context, const Allocation& removed);
// All work of one of the context's streams has finished, or of all of them (kAllStreams).
void PoolsAfterSynchronise(Context* context, uint64_t stream);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_POOL_H_
