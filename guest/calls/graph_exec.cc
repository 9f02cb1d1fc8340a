// SPDX-License-Identifier: Apache-2.0
// guest/calls/graph_exec.cc: executable graphs: instantiating, updating, changing and launching
// them.
#include <algorithm>
#include <utility>
#include <vector>

#include "gen/guest/calls.h"
#include "guest/call.h"
#include "guest/calls/graph_condition.h"
#include "guest/calls/graph_memory.h"
#include "guest/calls/graph_store.h"
#include "guest/calls/graph_work.h"
#include "guest/calls/user_object.h"
#include "guest/capture.h"
#include "guest/runtime.h"
#include "guest/unsupported.h"

namespace consort::guest {
namespace {

// A marker in GraphExec::shape around a child graph's part; no type or index has it.
constexpr uint64_t kShapeOpens = UINT64_MAX;
constexpr uint64_t kShapeCloses = UINT64_MAX - 1;

// Appends the steps of `graph`, which is the `part`, in an order that its edges allow, earlier
// nodes first, and its shape. CUDA_ERROR_INVALID_VALUE: the edges go round in a circle.
CUresult Flatten(const Graph& graph, uint32_t part, GraphExec* exec) {
  Runtime* runtime = GetRuntime();
  const size_t count = graph.nodes.size();
  std::vector<std::pair<uint64_t, uint32_t>> places(count);  // id to index
  for (size_t i = 0; i < count; ++i) places[i] = {graph.nodes[i], static_cast<uint32_t>(i)};
  std::sort(places.begin(), places.end());
  const auto place = [&](uint64_t id) {
    return std::lower_bound(places.begin(), places.end(), std::pair<uint64_t, uint32_t>(id, 0))
        ->second;
  };
  std::vector<uint32_t> waits(count);
  std::vector<std::vector<uint32_t>> followers(count);
  for (size_t i = 0; i < count; ++i) {
    const GraphNode* node = runtime->graph_nodes.Find(graph.nodes[i]);
    waits[i] = static_cast<uint32_t>(node->dependencies.size());
    for (uint64_t dependency : node->dependencies)
      followers[place(dependency)].push_back(static_cast<uint32_t>(i));
  }
  // A heap of the nodes that may run: the one made first is taken first.
  std::vector<uint32_t> ready;
  const auto later = [](uint32_t a, uint32_t b) { return a > b; };
  for (size_t i = 0; i < count; ++i) {
    if (waits[i] == 0) ready.push_back(static_cast<uint32_t>(i));
  }
  size_t taken = 0;
  for (; !ready.empty(); ++taken) {
    std::pop_heap(ready.begin(), ready.end(), later);
    const uint32_t index = ready.back();
    ready.pop_back();
    const GraphNode* node = runtime->graph_nodes.Find(graph.nodes[index]);
    exec->shape.push_back(node->work.type);
    exec->shape.push_back(node->dependencies.size());
    for (uint64_t dependency : node->dependencies) exec->shape.push_back(place(dependency));
    if (node->work.type == CU_GRAPH_NODE_TYPE_GRAPH) {
      const Graph* child = runtime->graphs.Find(node->work.child_id);
      exec->shape.push_back(kShapeOpens);
      if (child != nullptr) {
        if (CUresult result = Flatten(*child, part, exec); result != CUDA_SUCCESS) return result;
      }
      exec->shape.push_back(kShapeCloses);
    } else {
      GraphExec::Step step;
      step.node_id = node->id;
      step.part = part;
      step.first_body = exec->parts;
      step.work = node->work;
      step.work.pointers.clear();
      step.work.body_ids.clear();
      const uint32_t first_body = exec->parts;
      exec->steps.push_back(std::move(step));
      exec->parts += static_cast<uint32_t>(node->work.body_ids.size());
      for (size_t i = 0; i < node->work.body_ids.size(); ++i) {
        const Graph* body = runtime->graphs.Find(node->work.body_ids[i]);
        const CUresult result = Flatten(*body, first_body + static_cast<uint32_t>(i), exec);
        if (result != CUDA_SUCCESS) return result;
      }
    }
    for (uint32_t follower : followers[index]) {
      if (--waits[follower] != 0) continue;
      ready.push_back(follower);
      std::push_heap(ready.begin(), ready.end(), later);
    }
  }
  return taken == count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// A launch into a captured stream: the steps become nodes there. The graph that the executable one
// was made of may be gone, so they stand for it.
CUresult CaptureLaunch(const StreamRef& stream, const GraphExec& exec, bool* captured) {
  *captured = false;
  bool none = true;
  for (const GraphExec::Step& step : exec.steps) {
    if (!step.enabled) continue;
    GraphWork work = step.work;
    if (CUresult result = CaptureWork(stream.context, stream.id, &work, captured);
        result != CUDA_SUCCESS || !*captured) {
      return result;
    }
    none = false;
  }
  if (!none) return CUDA_SUCCESS;
  GraphWork empty;
  return CaptureWork(stream.context, stream.id, &empty, captured);
}

// An executable graph of what the nodes do now.
CUresult MakeExec(CUgraph handle, unsigned long long flags, GraphExec** out) {
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->graph_mutex);
  const Graph* graph = FindGraph(handle);
  if (graph == nullptr || graph->capturing) return CUDA_ERROR_INVALID_VALUE;
  GraphExec made;
  if (CUresult result = Flatten(*graph, 0, &made); result != CUDA_SUCCESS) return result;
  CollectObjects(*graph, &made.objects);
  made.flags = flags;
  made.graph_id = graph->id;
  const uint64_t id = runtime->graph_execs.Create([&](GraphExec* exec, uint64_t new_id) {
    *exec = std::move(made);
    exec->id = new_id;
  });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  GraphExec* exec = runtime->graph_execs.Find(id);
  RetainAgain(exec->objects);
  for (const GraphExec::Step& step : exec->steps) KeepMemory(step.work);
  *out = exec;
  return CUDA_SUCCESS;
}

CUresult Instantiate(CUgraphExec* out, CUgraph handle, unsigned long long flags,
                     CUgraphNode* error_node) {
  constexpr unsigned long long kFlags = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                        CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                        CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if (error_node != nullptr) *error_node = nullptr;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) {
    NoteUnsupported("cuGraphInstantiate", "graphs that are launched from the device");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if ((flags & ~kFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  GraphExec* exec = nullptr;
  if (CUresult result = MakeExec(handle, flags, &exec); result != CUDA_SUCCESS) return result;
  const auto made = reinterpret_cast<CUgraphExec>(exec->id);
  if (exec->parts > 1) {
    if (CUresult result = Record(exec); result != CUDA_SUCCESS) {
      calls::cuGraphExecDestroy(made);
      return result;
    }
  }
  *out = made;
  return CUDA_SUCCESS;
}

CUresult Update(CUgraphExec handle, CUgraph graph_handle, CUgraphExecUpdateResultInfo* info) {
  info->result = CU_GRAPH_EXEC_UPDATE_ERROR;
  info->errorNode = nullptr;
  info->errorFromNode = nullptr;
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->graph_mutex);
  GraphExec* exec = FindExec(handle);
  const Graph* graph = FindGraph(graph_handle);
  if (exec == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GraphExec made;
  if (CUresult result = Flatten(*graph, 0, &made); result != CUDA_SUCCESS) return result;
  // A recorded graph has its own conditions.
  if (made.parts > 1 || exec->parts > 1) {
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  if (made.shape.size() != exec->shape.size() || made.steps.size() != exec->steps.size()) {
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  for (size_t i = 0; i < made.steps.size(); ++i) {
    if (made.steps[i].work.type == exec->steps[i].work.type) continue;
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    info->errorNode = NodeHandle(made.steps[i].node_id);
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  if (made.shape != exec->shape) {
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  for (const GraphExec::Step& step : made.steps) {
    if (step.work.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
        step.work.type != CU_GRAPH_NODE_TYPE_MEM_FREE) {
      continue;
    }
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
    info->errorNode = NodeHandle(step.node_id);
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  for (size_t i = 0; i < made.steps.size(); ++i)
    exec->steps[i].work = std::move(made.steps[i].work);
  info->result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  return CUDA_SUCCESS;
}

CUresult SetStepEvent(CUgraphNodeType type, CUgraphExec exec, CUgraphNode node, CUevent event) {
  GraphWork work;
  if (CUresult result = MakeEvent(type, event, &work); result != CUDA_SUCCESS) return result;
  return ReplaceStep(exec, node, std::move(work));
}

}  // namespace

namespace calls {

CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                  CUgraphNodeParams* nodeParams) {
  if (nodeParams != nullptr && nodeParams->type == CU_GRAPH_NODE_TYPE_GRAPH)
    return calls::cuGraphExecChildGraphNodeSetParams(hGraphExec, hNode, nodeParams->graph.graph);
  if (nodeParams != nullptr && nodeParams->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
    return CUDA_ERROR_NOT_SUPPORTED;
  GraphWork work;
  if (CUresult result = MakeAny(nodeParams, &work); result != CUDA_SUCCESS) return result;
  return ReplaceStep(hGraphExec, hNode, std::move(work));
}

CUresult cuGraphInstantiate(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode,
                            char* logBuffer, size_t bufferSize) {
  if (logBuffer != nullptr && bufferSize != 0) *logBuffer = '\0';
  return Instantiate(phGraphExec, hGraph, 0, phErrorNode);
}

CUresult cuGraphInstantiate_v2(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode,
                               char* logBuffer, size_t bufferSize) {
  return calls::cuGraphInstantiate(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph,
                                     unsigned long long flags) {
  return Instantiate(phGraphExec, hGraph, flags, nullptr);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* phGraphExec, CUgraph hGraph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams,
                                      DefaultStream) {
  if (instantiateParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  instantiateParams->hErrNode_out = nullptr;
  const CUresult result =
      Instantiate(phGraphExec, hGraph, instantiateParams->flags, &instantiateParams->hErrNode_out);
  instantiateParams->result_out =
      result == CUDA_SUCCESS               ? CUDA_GRAPH_INSTANTIATE_SUCCESS
      : result == CUDA_ERROR_NOT_SUPPORTED ? CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED
      : result == CUDA_ERROR_INVALID_VALUE ? CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
                                           : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t* flags) {
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(&GetRuntime()->graph_mutex);
  const GraphExec* exec = FindExec(hGraphExec);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->flags;
  return CUDA_SUCCESS;
}

// There is nothing to upload: each launch sends what it does.
CUresult cuGraphUpload(CUgraphExec hGraph, CUstream hStream, DefaultStream default_stream) {
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  MutexLock lock(&GetRuntime()->graph_mutex);
  return FindExec(hGraph) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphLaunch(CUgraphExec hGraph, CUstream hStream, DefaultStream default_stream) {
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  // Not locked below: "A graph cannot be launched and changed at once".
  GraphExec* exec = FindExec(hGraph);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (exec->parts > 1) {
    if (CUresult result = RefuseInCapture(stream.context, stream.id); result != CUDA_SUCCESS)
      return result;
  } else if (MaybeCapturing()) {
    bool captured = false;
    const CUresult result = CaptureLaunch(stream, *exec, &captured);
    if (captured || result != CUDA_SUCCESS) return result;
  }
  if (CUresult result = MarkMemory(*exec); result != CUDA_SUCCESS) return result;
  exec->context_id = stream.context->id;
  if (exec->parts > 1) return LaunchRecorded(stream, exec);
  for (const GraphExec::Step& step : exec->steps) {
    if (!step.enabled) continue;
    if (CUresult result = SendWork(stream, step.work); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) {
  Runtime* runtime = GetRuntime();
  std::vector<RetainedObject> objects;
  uint64_t context_id = 0;
  {
    MutexLock lock(&runtime->graph_mutex);
    GraphExec* exec = FindExec(hGraphExec);
    if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
    objects = std::move(exec->objects);
    context_id = exec->context_id;
    for (const GraphExec::Step& step : exec->steps) DropMemory(step.work);
    ForgetRecorded(exec);
    const uint64_t id = exec->id;
    exec->steps.clear();
    runtime->graph_execs.Destroy(id);
  }
  // What the objects stand for may be used by a launch that is still running.
  Context* context = runtime->contexts.Find(context_id);
  if (!objects.empty() && context != nullptr && context->device->session != nullptr) {
    wire::ContextSynchronizeRequest request;
    wire::EmptyReply reply;
    Ask(context, request, &reply);
  }
  ReleaseObjects(objects);
  return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode* hErrorNode_out,
                           CUgraphExecUpdateResult* updateResult_out) {
  CUgraphExecUpdateResultInfo info;
  const CUresult result = Update(hGraphExec, hGraph, &info);
  if (hErrorNode_out != nullptr) *hErrorNode_out = info.errorNode;
  if (updateResult_out != nullptr) *updateResult_out = info.result;
  return result;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                              CUgraphExecUpdateResultInfo* resultInfo) {
  if (resultInfo == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Update(hGraphExec, hGraph, resultInfo);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  GraphWork work;
  if (CUresult result = MakeKernel(nodeParams, &work); result != CUDA_SUCCESS) return result;
  return ReplaceStep(hGraphExec, hNode, std::move(work));
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) {
  GraphWork work;
  if (CUresult result = MakeKernel(nodeParams, &work); result != CUDA_SUCCESS) return result;
  return ReplaceStep(hGraphExec, hNode, std::move(work));
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMCPY3D* copyParams, CUcontext ctx) {
  GraphWork work;
  if (CUresult result = MakeCopy(copyParams, ctx, &work); result != CUDA_SUCCESS) return result;
  return ReplaceStep(hGraphExec, hNode, std::move(work));
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMSET_NODE_PARAMS_v1* memsetParams,
                                        CUcontext ctx) {
  GraphWork work;
  if (CUresult result = MakeFill(memsetParams, ctx, &work); result != CUDA_SUCCESS) return result;
  return ReplaceStep(hGraphExec, hNode, std::move(work));
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                      const CUDA_HOST_NODE_PARAMS_v1* nodeParams) {
  GraphWork work;
  if (CUresult result = MakeHost(nodeParams, &work); result != CUDA_SUCCESS) return result;
  return ReplaceStep(hGraphExec, hNode, std::move(work));
}

// The steps of the node's own child graph take over what the given graph's nodes do.
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            CUgraph childGraph) {
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->graph_mutex);
  GraphExec* exec = FindExec(hGraphExec);
  const GraphNode* node = FindNode(hNode);
  const Graph* given = FindGraph(childGraph);
  if (exec == nullptr || given == nullptr || node == nullptr ||
      node->work.type != CU_GRAPH_NODE_TYPE_GRAPH) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Graph* own = runtime->graphs.Find(node->work.child_id);
  GraphExec before;
  GraphExec after;
  if (own == nullptr || Flatten(*own, 0, &before) != CUDA_SUCCESS ||
      Flatten(*given, 0, &after) != CUDA_SUCCESS || before.shape != after.shape) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  exec->stale = true;
  for (size_t i = 0; i < before.steps.size(); ++i) {
    for (GraphExec::Step& step : exec->steps) {
      if (step.node_id == before.steps[i].node_id) step.work = after.steps[i].work;
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            CUevent event) {
  return SetStepEvent(CU_GRAPH_NODE_TYPE_EVENT_RECORD, hGraphExec, hNode, event);
}

CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode,
                                          CUevent event) {
  return SetStepEvent(CU_GRAPH_NODE_TYPE_WAIT_EVENT, hGraphExec, hNode, event);
}

// "Currently only kernel, memset and memcpy nodes are supported."
CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled) {
  MutexLock lock(&GetRuntime()->graph_mutex);
  GraphExec* exec = FindExec(hGraphExec);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (GraphExec::Step& step : exec->steps) {
    if (step.node_id != reinterpret_cast<uint64_t>(hNode)) continue;
    if (step.work.type > CU_GRAPH_NODE_TYPE_MEMSET) return CUDA_ERROR_INVALID_VALUE;
    step.enabled = isEnabled != 0;
    exec->stale = true;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int* isEnabled) {
  if (isEnabled == nullptr) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(&GetRuntime()->graph_mutex);
  const GraphExec* exec = FindExec(hGraphExec);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (const GraphExec::Step& step : exec->steps) {
    if (step.node_id != reinterpret_cast<uint64_t>(hNode)) continue;
    *isEnabled = step.enabled ? 1 : 0;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace calls
}  // namespace consort::guest
