// SPDX-License-Identifier: Apache-2.0
// guest/calls/graph_memory.h: memory that allocation nodes make; see GraphMemory in guest/graph.h.
#ifndef CONSORT_GUEST_CALLS_GRAPH_MEMORY_H_
#define CONSORT_GUEST_CALLS_GRAPH_MEMORY_H_

#include <cuda.h>

#include "guest/graph.h"

namespace consort::guest {

// Null: no allocation node made it. graph_mutex held.
GraphMemory* FindMemory(CUdeviceptr address);

// A reference to the memory of an allocation node; nothing for other work. graph_mutex held.
void KeepMemory(const GraphWork& work);
void DropMemory(const GraphWork& work);

// Marks what the launch allocates and frees. CUDA_ERROR_INVALID_VALUE: memory of an earlier launch
// has not been freed. graph_mutex not held.
CUresult MarkMemory(const GraphExec& exec);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_CALLS_GRAPH_MEMORY_H_
