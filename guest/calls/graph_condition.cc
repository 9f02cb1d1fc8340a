// SPDX-License-Identifier: Apache-2.0
// guest/calls/graph_condition.cc: see the header.
#include "guest/calls/graph_condition.h"

#include <utility>

#include "gen/guest/calls.h"
#include "guest/calls/graph_store.h"
#include "guest/calls/graph_work.h"
#include "guest/own_stream.h"
#include "guest/runtime.h"
#include "guest/unsupported.h"

namespace consort::guest {
namespace {

// The graph that has the conditions of `handle`'s. Null: no such graph.
Graph* FindRoot(CUgraph handle) {
  Graph* graph = FindGraph(handle);
  if (graph == nullptr || graph->root_id == 0) return graph;
  return GetRuntime()->graphs.Find(graph->root_id);
}

GraphCondition* FindCondition(Graph* root, CUgraphConditionalHandle handle) {
  for (GraphCondition& condition : root->conditions) {
    if (condition.handle == handle) return &condition;
  }
  return nullptr;
}

// Where it is recorded. Null: it has no conditional nodes, or its context is gone.
Context* RecordingContext(const GraphExec& exec) {
  for (const GraphExec::Step& step : exec.steps) {
    if (step.work.type != CU_GRAPH_NODE_TYPE_CONDITIONAL) continue;
    Context* context = GetRuntime()->contexts.Find(step.work.context_id);
    return context != nullptr && context->device->session != nullptr ? context : nullptr;
  }
  return nullptr;
}

bool BodiesValid(const CUDA_CONDITIONAL_NODE_PARAMS& params) {
  switch (params.type) {
    case CU_GRAPH_COND_TYPE_IF:
      return params.size == 1 || params.size == 2;
    case CU_GRAPH_COND_TYPE_WHILE:
      return params.size == 1;
    case CU_GRAPH_COND_TYPE_SWITCH:
      return params.size != 0;
  }
  return false;
}

// Makes the bodies of a node.
CUresult MakeConditional(CUgraph handle, const CUDA_CONDITIONAL_NODE_PARAMS& params,
                         GraphWork* work) {
  MutexLock lock(&GetRuntime()->graph_mutex);
  Graph* root = FindRoot(handle);
  if (root == nullptr || !BodiesValid(params)) return CUDA_ERROR_INVALID_VALUE;
  const GraphCondition* condition = FindCondition(root, params.handle);
  if (condition == nullptr || condition->used) return CUDA_ERROR_INVALID_VALUE;
  work->type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  work->context_id = root->condition_context_id;
  work->condition = params;
  for (unsigned i = 0; i < params.size; ++i) {
    Graph* body = NewGraph();
    if (body == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    body->owned = true;
    body->root_id = root->id;
    work->body_ids.push_back(body->id);
  }
  return CUDA_SUCCESS;
}

// Whether the host's driver can do a step without the guest. `context`: of the recording.
bool IsRecordable(const Context* context, const GraphExec::Step& step) {
  switch (step.work.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return true;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return IsCopyByAddress(context, step.work);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return step.part == 0;
    default:
      return false;
  }
}

CUresult SendCondition(const StreamRef& stream, const GraphExec& exec,
                       const GraphExec::Step& step) {
  wire::GraphConditionRequest request;
  request.graph = exec.graph_id;
  request.stream = stream.id;
  request.handle = step.work.condition.handle;
  request.type = step.work.condition.type;
  request.size = step.work.condition.size;
  request.first_part = step.first_body;
  return Post(stream.context, request);
}

CUresult SendPart(const StreamRef& stream, const GraphExec& exec, uint32_t part) {
  wire::GraphRecordRequest request;
  request.graph = exec.graph_id;
  request.part = part;
  request.stream = stream.id;
  if (CUresult result = Post(stream.context, request); result != CUDA_SUCCESS) return result;
  for (const GraphExec::Step& step : exec.steps) {
    if (step.part != part || !step.enabled) continue;
    const CUresult result = step.work.type == CU_GRAPH_NODE_TYPE_CONDITIONAL
                                ? SendCondition(stream, exec, step)
                                : SendWork(stream, step.work);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace

bool HasConditions(const Graph& graph) {
  for (uint64_t id : graph.nodes) {
    if (GetRuntime()->graph_nodes.Find(id)->work.type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
      return true;
  }
  return false;
}

void ForgetConditions(const Graph& graph) {
  Context* context = GetRuntime()->contexts.Find(graph.condition_context_id);
  if (context == nullptr || context->device->session == nullptr) return;
  wire::GraphDestroyRequest request;
  request.graph = graph.id;
  Post(context, request);
}

void ForgetRecorded(GraphExec* exec) {
  if (!std::exchange(exec->recorded, false)) return;
  Context* context = RecordingContext(*exec);
  if (context == nullptr) return;
  wire::GraphExecDestroyRequest request;
  request.exec = exec->id;
  Post(context, request);
}

CUresult AddConditional(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                        size_t count, CUDA_CONDITIONAL_NODE_PARAMS* params) {
  GraphWork work;
  if (CUresult result = MakeConditional(graph, *params, &work); result != CUDA_SUCCESS)
    return result;
  if (CUresult result = AddNode(out, graph, dependencies, count, work); result != CUDA_SUCCESS)
    return result;
  static_assert(sizeof(CUgraph) == sizeof(uint64_t));
  return WithNode(*out, CU_GRAPH_NODE_TYPE_CONDITIONAL, [&](GraphNode* node) {
    node->work.condition.phGraph_out = reinterpret_cast<CUgraph*>(node->work.body_ids.data());
    params->phGraph_out = node->work.condition.phGraph_out;
    FindCondition(FindRoot(graph), params->handle)->used = true;
    return CUDA_SUCCESS;
  });
}

CUresult Record(GraphExec* exec) {
  Context* context = RecordingContext(*exec);
  if (context == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (GetRuntime()->graphs.Find(exec->graph_id) == nullptr) {
    NoteUnsupported("cuGraphLaunch", "changes of conditional graphs after cuGraphDestroy");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  for (const GraphExec::Step& step : exec->steps) {
    if (IsRecordable(context, step)) continue;
    NoteUnsupported("cuGraphInstantiate",
                    "beside conditional nodes: host functions, events, copies of memory that the "
                    "worker cannot reach; in bodies: allocations");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const OwnStream stream(context);
  for (uint32_t part = 0; part < exec->parts; ++part) {
    if (CUresult result = SendPart(stream.ref(), *exec, part); result != CUDA_SUCCESS)
      return result;
  }
  wire::GraphInstantiateRequest request;
  wire::EmptyReply reply;
  request.graph = exec->graph_id;
  request.stream = stream.ref().id;
  request.exec = exec->id;
  const CUresult result = Ask(context, request, &reply);
  exec->recorded = result == CUDA_SUCCESS;
  return result;
}

CUresult LaunchRecorded(const StreamRef& stream, GraphExec* exec) {
  if (exec->stale) {
    ForgetRecorded(exec);
    if (CUresult result = Record(exec); result != CUDA_SUCCESS) return result;
    exec->stale = false;
  }
  wire::GraphLaunchRequest request;
  request.exec = exec->id;
  request.stream = stream.id;
  if (CUresult result = Post(stream.context, request); result != CUDA_SUCCESS) return result;
  for (const GraphExec::Step& step : exec->steps) {
    const Kernel* kernel = GetRuntime()->kernels.Find(step.work.kernel_id);
    if (kernel == nullptr) continue;
    if (CUresult result = EndLaunch(stream.context, stream.id, *kernel, step.work.parameters);
        result != CUDA_SUCCESS) {
      return result;
    }
  }
  return CUDA_SUCCESS;
}

namespace calls {

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle* pHandle_out, CUgraph hGraph,
                                        CUcontext ctx, unsigned int defaultLaunchValue,
                                        unsigned int flags) {
  if (pHandle_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = ctx != nullptr ? FindHome(ctx, &context) : CurrentContext(&context);
      result != CUDA_SUCCESS) {
    return result;
  }
  Runtime* runtime = GetRuntime();
  wire::GraphHandleCreateRequest request;
  request.default_value = defaultLaunchValue;
  request.flags = flags;
  {
    MutexLock lock(&runtime->graph_mutex);
    Graph* root = FindRoot(hGraph);
    if (root == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Context* first = runtime->contexts.Find(root->condition_context_id);
    if (first != nullptr && !SameSession(first, context)) return CUDA_ERROR_INVALID_VALUE;
    if (root->condition_context_id == 0) root->condition_context_id = context->id;
    request.graph = root->id;
  }
  wire::GraphHandleCreateReply reply;
  if (CUresult result = Ask(context, request, &reply); result != CUDA_SUCCESS) {
    if (result == CUDA_ERROR_NOT_SUPPORTED)
      NoteUnsupported("cuGraphConditionalHandleCreate", "with a part of the multiprocessors");
    return result;
  }
  MutexLock lock(&runtime->graph_mutex);
  Graph* root = runtime->graphs.Find(request.graph);
  if (root == nullptr) return CUDA_ERROR_INVALID_VALUE;
  root->conditions.push_back({reply.handle, false});
  *pHandle_out = reply.handle;
  return CUDA_SUCCESS;
}

}  // namespace calls
}  // namespace consort::guest
