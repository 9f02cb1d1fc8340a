// SPDX-License-Identifier: Apache-2.0
// guest/calls/graph_condition.h: graphs with conditional nodes, which the host's driver records.
#ifndef CONSORT_GUEST_CALLS_GRAPH_CONDITION_H_
#define CONSORT_GUEST_CALLS_GRAPH_CONDITION_H_

#include <cuda.h>

#include <cstddef>

#include "guest/call.h"
#include "guest/graph.h"

namespace consort::guest {

// Whether the graph has conditional nodes. graph_mutex held; likewise in the next one.
bool HasConditions(const Graph& graph);
// The graph goes: its conditions, and what was recorded of it.
void ForgetConditions(const Graph& graph);
// The executable graph goes, or is recorded anew.
void ForgetRecorded(GraphExec* exec);

// As AddNode; `params->phGraph_out` gets the bodies. CUDA_ERROR_INVALID_VALUE: not a condition of
// the graph, or one that a node has already, or a wrong number of bodies.
CUresult AddConditional(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                        size_t count, CUDA_CONDITIONAL_NODE_PARAMS* params);

// Has the host record what the executable graph does. CUDA_ERROR_NOT_SUPPORTED: it does something
// that only the guest can, such as calling a host function.
CUresult Record(GraphExec* exec);
// Launches it into `stream`, which is not captured.
CUresult LaunchRecorded(const StreamRef& stream, GraphExec* exec);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_CALLS_GRAPH_CONDITION_H_
