// SPDX-License-Identifier: Apache-2.0
// guest/calls/graph.cc: graphs: making them, and what nodes and edges there are.
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "gen/guest/calls.h"
#include "guest/calls/graph_condition.h"
#include "guest/calls/graph_store.h"
#include "guest/calls/user_object.h"
#include "guest/runtime.h"

namespace consort::guest {
namespace {

// Writes at most *count of `ids` and says how many there are; the rest of the room is set null.
CUresult ListNodes(const std::vector<uint64_t>& ids, CUgraphNode* nodes, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (nodes == nullptr) {
    *count = ids.size();
    return CUDA_SUCCESS;
  }
  for (size_t i = 0; i < *count; ++i) nodes[i] = i < ids.size() ? NodeHandle(ids[i]) : nullptr;
  if (*count > ids.size()) *count = ids.size();
  return CUDA_SUCCESS;
}

void ClearEdgeData(CUgraphEdgeData* data, const size_t* count) {
  if (data != nullptr) memset(data, 0, *count * sizeof *data);
}

CUresult ListEdges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
                   size_t* count) {
  if (count == nullptr || (from == nullptr) != (to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->graph_mutex);
  const Graph* graph = FindGraph(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<uint64_t> sources;
  std::vector<uint64_t> targets;
  for (uint64_t id : graph->nodes) {
    for (uint64_t dependency : runtime->graph_nodes.Find(id)->dependencies) {
      sources.push_back(dependency);
      targets.push_back(id);
    }
  }
  size_t room = *count;
  if (CUresult result = ListNodes(sources, from, count); result != CUDA_SUCCESS) return result;
  if (from != nullptr) ClearEdgeData(data, count);
  return ListNodes(targets, to, from != nullptr ? &room : count);
}

CUresult ListDependencies(CUgraphNode handle, bool dependents, CUgraphNode* nodes,
                          CUgraphEdgeData* data, size_t* count) {
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->graph_mutex);
  const GraphNode* node = FindNode(handle);
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<uint64_t> ids;
  if (dependents) {
    const Graph* graph = runtime->graphs.Find(node->graph_id);
    for (uint64_t id : graph->nodes) {
      for (uint64_t dependency : runtime->graph_nodes.Find(id)->dependencies) {
        if (dependency == node->id) ids.push_back(id);
      }
    }
  } else {
    ids = node->dependencies;
  }
  const CUresult result = ListNodes(ids, nodes, count);
  if (result == CUDA_SUCCESS && nodes != nullptr) ClearEdgeData(data, count);
  return result;
}

CUresult ChangeEdges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, size_t count,
                     bool add) {
  if (count != 0 && (from == nullptr || to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(&GetRuntime()->graph_mutex);
  const Graph* graph = FindGraph(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // All or nothing.
  for (size_t i = 0; i < count; ++i) {
    const GraphNode* source = FindNode(from[i]);
    const GraphNode* target = FindNode(to[i]);
    if (source == nullptr || target == nullptr || source->graph_id != graph->id ||
        target->graph_id != graph->id || source == target) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const bool there = std::find(target->dependencies.begin(), target->dependencies.end(),
                                 source->id) != target->dependencies.end();
    if (there == add) return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < count; ++i) {
    std::vector<uint64_t>* dependencies = &FindNode(to[i])->dependencies;
    const uint64_t source = reinterpret_cast<uint64_t>(from[i]);
    if (add) {
      dependencies->push_back(source);
    } else {
      dependencies->erase(std::remove(dependencies->begin(), dependencies->end(), source),
                          dependencies->end());
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

namespace calls {

CUresult cuGraphCreate(CUgraph* phGraph, unsigned int flags) {
  if (phGraph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(&GetRuntime()->graph_mutex);
  const Graph* graph = NewGraph();
  if (graph == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *phGraph = reinterpret_cast<CUgraph>(graph->id);
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph hGraph) {
  std::vector<RetainedObject> objects;
  {
    MutexLock lock(&GetRuntime()->graph_mutex);
    Graph* graph = FindGraph(hGraph);
    if (graph == nullptr || graph->owned || graph->capturing) return CUDA_ERROR_INVALID_VALUE;
    DestroyGraph(graph, &objects);
  }
  ReleaseObjects(objects);
  return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph* phGraphClone, CUgraph originalGraph) {
  if (phGraphClone == nullptr) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(&GetRuntime()->graph_mutex);
  const Graph* original = FindGraph(originalGraph);
  if (original == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (HasConditions(*original)) return CUDA_ERROR_NOT_SUPPORTED;  // "The graph cannot be cloned"
  const Graph* clone = CloneGraph(*original);
  if (clone == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *phGraphClone = reinterpret_cast<CUgraph>(clone->id);
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode* nodes, size_t* numNodes) {
  MutexLock lock(&GetRuntime()->graph_mutex);
  const Graph* graph = FindGraph(hGraph);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return ListNodes(graph->nodes, nodes, numNodes);
}

CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode* rootNodes, size_t* numRootNodes) {
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->graph_mutex);
  const Graph* graph = FindGraph(hGraph);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<uint64_t> roots;
  for (uint64_t id : graph->nodes) {
    if (runtime->graph_nodes.Find(id)->dependencies.empty()) roots.push_back(id);
  }
  return ListNodes(roots, rootNodes, numRootNodes);
}

CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to, size_t* numEdges) {
  return ListEdges(hGraph, from, to, nullptr, numEdges);
}

CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to,
                            CUgraphEdgeData* edgeData, size_t* numEdges) {
  return ListEdges(hGraph, from, to, edgeData, numEdges);
}

CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode* dependencies,
                                    size_t* numDependencies) {
  return ListDependencies(hNode, false, dependencies, nullptr, numDependencies);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode* dependencies,
                                       CUgraphEdgeData* edgeData, size_t* numDependencies) {
  return ListDependencies(hNode, false, dependencies, edgeData, numDependencies);
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode* dependentNodes,
                                      size_t* numDependentNodes) {
  return ListDependencies(hNode, true, dependentNodes, nullptr, numDependentNodes);
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode* dependentNodes,
                                         CUgraphEdgeData* edgeData, size_t* numDependentNodes) {
  return ListDependencies(hNode, true, dependentNodes, edgeData, numDependentNodes);
}

CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                size_t numDependencies) {
  return ChangeEdges(hGraph, from, to, numDependencies, true);
}

CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData*, size_t numDependencies) {
  return ChangeEdges(hGraph, from, to, numDependencies, true);
}

CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                   size_t numDependencies) {
  return ChangeEdges(hGraph, from, to, numDependencies, false);
}

CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode* from,
                                      const CUgraphNode* to, const CUgraphEdgeData*,
                                      size_t numDependencies) {
  return ChangeEdges(hGraph, from, to, numDependencies, false);
}

CUresult cuGraphDestroyNode(CUgraphNode hNode) {
  Runtime* runtime = GetRuntime();
  std::vector<RetainedObject> objects;
  {
    MutexLock lock(&runtime->graph_mutex);
    const GraphNode* node = FindNode(hNode);
    if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t id = node->id;
    Graph* graph = runtime->graphs.Find(node->graph_id);
    graph->nodes.erase(std::remove(graph->nodes.begin(), graph->nodes.end(), id),
                       graph->nodes.end());
    for (uint64_t other : graph->nodes) {
      std::vector<uint64_t>* dependencies = &runtime->graph_nodes.Find(other)->dependencies;
      dependencies->erase(std::remove(dependencies->begin(), dependencies->end(), id),
                          dependencies->end());
    }
    DestroyNode(id, &objects);
  }
  ReleaseObjects(objects);
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType* type) {
  if (type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(&GetRuntime()->graph_mutex);
  const GraphNode* node = FindNode(hNode);
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = node->work.type;
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeFindInClone(CUgraphNode* phNode, CUgraphNode hOriginalNode,
                                CUgraph hClonedGraph) {
  if (phNode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->graph_mutex);
  const Graph* clone = FindGraph(hClonedGraph);
  if (clone == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (uint64_t id : clone->nodes) {
    if (runtime->graph_nodes.Find(id)->cloned_from != reinterpret_cast<uint64_t>(hOriginalNode))
      continue;
    *phNode = NodeHandle(id);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char* path, unsigned int) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->graph_mutex);
  const Graph* graph = FindGraph(hGraph);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FILE* file = fopen(path, "we");
  if (file == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  static constexpr const char* kTypes[] = {
      "kernel",           "memcpy",         "memset",     "host",
      "child graph",      "empty",          "event wait", "event record",
      "semaphore signal", "semaphore wait", "allocation", "free",
      "memory operation", "conditional"};
  fprintf(file, "digraph graph_%llx {\n", static_cast<unsigned long long>(graph->id));
  for (uint64_t id : graph->nodes) {
    const GraphNode* node = runtime->graph_nodes.Find(id);
    const Kernel* kernel = runtime->kernels.Find(node->work.kernel_id);
    fprintf(file, "  \"%llx\" [label=\"%s %s\"];\n", static_cast<unsigned long long>(id),
            kTypes[node->work.type], kernel != nullptr ? kernel->name : "");
    for (uint64_t dependency : node->dependencies) {
      fprintf(file, "  \"%llx\" -> \"%llx\";\n", static_cast<unsigned long long>(dependency),
              static_cast<unsigned long long>(id));
    }
  }
  fprintf(file, "}\n");
  return fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

}  // namespace calls
}  // namespace consort::guest
