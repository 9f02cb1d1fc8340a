// SPDX-License-Identifier: Apache-2.0
// guest/calls/graph_store.cc: graphs and their nodes as the guest keeps them; see the header.
#include "guest/calls/graph_store.h"

#include <utility>

#include "guest/calls/graph_condition.h"
#include "guest/calls/graph_memory.h"
#include "guest/calls/user_object.h"
#include "guest/runtime.h"

namespace consort::guest {
namespace {

// A copy of what a node does; a child graph is cloned with it. False: too many.
bool CloneWork(const GraphWork& work, GraphWork* clone) {
  *clone = work;
  clone->pointers.clear();
  if (work.type != CU_GRAPH_NODE_TYPE_GRAPH) return true;
  const Graph* child = GetRuntime()->graphs.Find(work.child_id);
  Graph* made = child != nullptr ? CloneGraph(*child) : nullptr;
  if (made == nullptr) return false;
  made->owned = true;
  clone->child_id = made->id;
  return true;
}

CUresult ReadDependencies(const Graph& graph, const CUgraphNode* dependencies, size_t count,
                          std::vector<uint64_t>* ids) {
  if (count != 0 && dependencies == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const GraphNode* node = FindNode(dependencies[i]);
    if (node == nullptr || node->graph_id != graph.id) return CUDA_ERROR_INVALID_VALUE;
    for (uint64_t there : *ids) {
      if (there == node->id) return CUDA_ERROR_INVALID_VALUE;
    }
    ids->push_back(node->id);
  }
  return CUDA_SUCCESS;
}

CUresult Insert(CUgraphNode* out, CUgraph handle, const CUgraphNode* dependencies, size_t count,
                const GraphWork& work) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(&GetRuntime()->graph_mutex);
  Graph* graph = FindGraph(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<uint64_t> ids;
  if (CUresult result = ReadDependencies(*graph, dependencies, count, &ids);
      result != CUDA_SUCCESS) {
    return result;
  }
  const uint64_t id = AddGraphNode(graph, ids, work);
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = NodeHandle(id);
  return CUDA_SUCCESS;
}

// Destroys the graphs that are part of a node. graph_mutex held.
void DestroyParts(const GraphWork& work, std::vector<RetainedObject>* objects) {
  Runtime* runtime = GetRuntime();
  if (Graph* child = runtime->graphs.Find(work.child_id); child != nullptr)
    DestroyGraph(child, objects);
  for (uint64_t body_id : work.body_ids) {
    if (Graph* body = runtime->graphs.Find(body_id); body != nullptr) DestroyGraph(body, objects);
  }
}

// What was made for a node that never came to be.
void Discard(const GraphWork& work) {
  if (work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) FreeGraphMemory(work.address);
  std::vector<RetainedObject> objects;
  {
    MutexLock lock(&GetRuntime()->graph_mutex);
    DestroyParts(work, &objects);
  }
  ReleaseObjects(objects);
}

}  // namespace

Graph* FindGraph(CUgraph handle) {
  return GetRuntime()->graphs.Find(reinterpret_cast<uint64_t>(handle));
}

GraphNode* FindNode(CUgraphNode handle) {
  return GetRuntime()->graph_nodes.Find(reinterpret_cast<uint64_t>(handle));
}

GraphExec* FindExec(CUgraphExec handle) {
  return GetRuntime()->graph_execs.Find(reinterpret_cast<uint64_t>(handle));
}

Graph* NewGraph() {
  Runtime* runtime = GetRuntime();
  const uint64_t id =
      runtime->graphs.Create([](Graph* graph, uint64_t new_id) { graph->id = new_id; });
  return runtime->graphs.Find(id);
}

Graph* CloneGraph(const Graph& original) {
  Runtime* runtime = GetRuntime();
  Graph* clone = NewGraph();
  if (clone == nullptr) return nullptr;
  for (size_t i = 0; i < original.nodes.size(); ++i) {
    const GraphNode* node = runtime->graph_nodes.Find(original.nodes[i]);
    GraphWork work;
    if (!CloneWork(node->work, &work)) return nullptr;
    const uint64_t id = AddGraphNode(clone, {}, std::move(work));
    if (id == 0) return nullptr;
    runtime->graph_nodes.Find(id)->cloned_from = node->id;
  }
  // Edges may point to nodes that were made later.
  for (size_t i = 0; i < original.nodes.size(); ++i) {
    const GraphNode* node = runtime->graph_nodes.Find(original.nodes[i]);
    GraphNode* copy = runtime->graph_nodes.Find(clone->nodes[i]);
    for (uint64_t dependency : node->dependencies) {
      for (size_t j = 0; j < original.nodes.size(); ++j) {
        if (original.nodes[j] == dependency) copy->dependencies.push_back(clone->nodes[j]);
      }
    }
  }
  clone->objects = original.objects;
  RetainAgain(clone->objects);
  return clone;
}

uint64_t AddGraphNode(Graph* graph, const std::vector<uint64_t>& dependencies, GraphWork work) {
  const uint64_t id = GetRuntime()->graph_nodes.Create([&](GraphNode* node, uint64_t new_id) {
    node->id = new_id;
    node->graph_id = graph->id;
    node->dependencies = dependencies;
    node->work = std::move(work);
  });
  if (id == 0) return 0;
  GraphWork* made = &GetRuntime()->graph_nodes.Find(id)->work;
  ReuseMemory(*graph, dependencies, made);
  KeepMemory(*made);
  graph->nodes.push_back(id);
  return id;
}

CUresult AddNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                 const GraphWork& work) {
  const CUresult result = Insert(out, graph, dependencies, count, work);
  if (result != CUDA_SUCCESS) Discard(work);
  return result;
}

CUresult ReplaceNode(CUgraphNode handle, GraphWork work) {
  return WithNode(handle, work.type, [&](GraphNode* node) {
    if (work.type == CU_GRAPH_NODE_TYPE_KERNEL) work.attributes = node->work.attributes;
    node->work = std::move(work);
    return CUDA_SUCCESS;
  });
}

CUresult ReplaceStep(CUgraphExec handle, CUgraphNode node, GraphWork work) {
  MutexLock lock(&GetRuntime()->graph_mutex);
  GraphExec* exec = FindExec(handle);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (GraphExec::Step& step : exec->steps) {
    if (step.node_id != reinterpret_cast<uint64_t>(node)) continue;
    if (step.work.type != work.type) return CUDA_ERROR_INVALID_VALUE;
    // Attributes are not among the parameters of a kernel node.
    if (work.type == CU_GRAPH_NODE_TYPE_KERNEL) work.attributes = step.work.attributes;
    step.work = std::move(work);
    exec->stale = true;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

void DestroyNode(uint64_t id, std::vector<RetainedObject>* objects) {
  Runtime* runtime = GetRuntime();
  GraphNode* node = runtime->graph_nodes.Find(id);
  if (node == nullptr) return;
  DropMemory(node->work);
  DestroyParts(node->work, objects);
  node->work = GraphWork();
  node->dependencies.clear();
  runtime->graph_nodes.Destroy(id);
}

void DestroyGraph(Graph* graph, std::vector<RetainedObject>* objects) {
  for (uint64_t id : graph->nodes) DestroyNode(id, objects);
  graph->nodes.clear();
  objects->insert(objects->end(), graph->objects.begin(), graph->objects.end());
  graph->objects.clear();
  ForgetConditions(*graph);
  GetRuntime()->graphs.Destroy(graph->id);
}

}  // namespace consort::guest
