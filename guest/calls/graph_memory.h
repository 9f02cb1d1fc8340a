// SPDX-License-Identifier: Apache-2.0
// guest/calls/graph_memory.h: memory that allocation nodes make; see GraphMemory in guest/graph.h.
#ifndef CONSORT_GUEST_CALLS_GRAPH_MEMORY_H_
#define CONSORT_GUEST_CALLS_GRAPH_MEMORY_H_

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "guest/graph.h"

namespace consort::guest {

// Null: no allocation node made it. graph_mutex held.
GraphMemory* FindMemory(CUdeviceptr address);

// If `work` allocates: has it use memory that nodes of the graph have freed for good before a node
// after `dependencies` begins, if there is enough of it; what was made for it goes then. As the
// driver does, so that a chain of allocations needs the memory of one. graph_mutex held.
void ReuseMemory(const Graph& graph, const std::vector<uint64_t>& dependencies, GraphWork* work);

// A reference to the memory of an allocation node; nothing for other work. graph_mutex held.
void KeepMemory(const GraphWork& work);
void DropMemory(const GraphWork& work);

// Marks what the launch allocates and frees. CUDA_ERROR_INVALID_VALUE: memory of an earlier launch
// has not been freed. graph_mutex not held.
CUresult MarkMemory(const GraphExec& exec);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_CALLS_GRAPH_MEMORY_H_
