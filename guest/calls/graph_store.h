// SPDX-License-Identifier: Apache-2.0
// guest/calls/graph_store.h: graphs, nodes and executable graphs by their handles, and changes of
// them.
//
// What the calls of graphs share; what other calls need of graphs is in guest/graph.h.
#ifndef CONSORT_GUEST_CALLS_GRAPH_STORE_H_
#define CONSORT_GUEST_CALLS_GRAPH_STORE_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "guest/graph.h"
#include "guest/runtime.h"

namespace consort::guest {

inline CUgraphNode NodeHandle(uint64_t id) { return reinterpret_cast<CUgraphNode>(id); }

// Null: there is none. graph_mutex held.
Graph* FindGraph(CUgraph handle);
GraphNode* FindNode(CUgraphNode handle);
GraphExec* FindExec(CUgraphExec handle);

// A copy of the graph, of its child graphs and its references to user objects. Null: too many.
// graph_mutex held.
Graph* CloneGraph(const Graph& original);

// Adds a node to the graph, or drops what `work` holds. CUDA_ERROR_INVALID_VALUE: `out` is null, no
// such graph, or a dependency is not a node of it or is named twice. graph_mutex not held.
CUresult AddNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                 const GraphWork& work);

// The node is out of its graph's list already, or the graph goes. graph_mutex held.
void DestroyNode(uint64_t id, std::vector<RetainedObject>* objects);

// Calls `visit(node)` under the lock if the node is there and of `type`.
template <class Visit>
CUresult WithNode(CUgraphNode handle, CUgraphNodeType type, Visit visit) {
  MutexLock lock(&GetRuntime()->graph_mutex);
  GraphNode* node = FindNode(handle);
  if (node == nullptr || node->work.type != type) return CUDA_ERROR_INVALID_VALUE;
  return visit(node);
}

// Puts `work` in the place of what the node does.
CUresult ReplaceNode(CUgraphNode handle, GraphWork work);

// Puts `work` in the place of what the node does in an executable graph.
CUresult ReplaceStep(CUgraphExec handle, CUgraphNode node, GraphWork work);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_CALLS_GRAPH_STORE_H_
