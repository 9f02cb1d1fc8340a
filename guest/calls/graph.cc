// SPDX-License-Identifier: Apache-2.0
// guest/calls/graph.cc: graphs, their nodes and launching them; see guest/graph.h.
#include "guest/graph.h"

#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <utility>

#include "gen/guest/calls.h"
#include "guest/call.h"
#include "guest/capture.h"
#include "guest/pool.h"
#include "guest/runtime.h"
#include "guest/unsupported.h"

namespace consort::guest {
namespace {

constexpr size_t kAttributeBytes = 8 + sizeof(CUlaunchAttributeValue);
// A marker in GraphExec::shape around a child graph's part; no type or index has it.
constexpr uint64_t kShapeOpens = UINT64_MAX;
constexpr uint64_t kShapeCloses = UINT64_MAX - 1;

CUgraphNode NodeHandle(uint64_t id) { return reinterpret_cast<CUgraphNode>(id); }

Graph* FindGraph(CUgraph handle) {
  return GetRuntime()->graphs.Find(reinterpret_cast<uint64_t>(handle));
}

GraphNode* FindNode(CUgraphNode handle) {
  return GetRuntime()->graph_nodes.Find(reinterpret_cast<uint64_t>(handle));
}

GraphExec* FindExec(CUgraphExec handle) {
  return GetRuntime()->graph_execs.Find(reinterpret_cast<uint64_t>(handle));
}

GraphMemory* FindMemory(CUdeviceptr address) {
  for (GraphMemory& memory : GetRuntime()->graph_memory) {
    if (memory.address == address) return &memory;
  }
  return nullptr;
}

// A reference to the memory of an allocation node. graph_mutex held.
void KeepMemory(const GraphWork& work) {
  if (work.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return;
  if (GraphMemory* memory = FindMemory(work.address); memory != nullptr) ++memory->references;
}

// Frees memory that no graph knows any more, unless the program still has it. graph_mutex held;
// what is posted to the host needs no answer.
void ForgetMemory(GraphMemory* memory) {
  Runtime* runtime = GetRuntime();
  Allocation removed;
  if (runtime->allocations.Remove(memory->address, 1u << static_cast<uint32_t>(MemoryKind::kDevice),
                                  &removed)) {
    Context* context = runtime->contexts.Find(removed.context_id);
    if (context != nullptr && context->device->session != nullptr)
      ReleasePoolBlock(context, removed);
  }
  runtime->graph_memory.erase(runtime->graph_memory.begin() +
                              (memory - runtime->graph_memory.data()));
}

void DropMemory(const GraphWork& work) {
  if (work.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return;
  GraphMemory* memory = FindMemory(work.address);
  if (memory != nullptr && --memory->references == 0 && !memory->live) ForgetMemory(memory);
}

// The objects of `graph` once more: for a clone or an executable graph. graph_mutex held.
std::vector<RetainedObject> RetainAgain(const std::vector<RetainedObject>& objects) {
  for (const RetainedObject& retained : objects) {
    if (UserObject* object = GetRuntime()->user_objects.Find(retained.object_id); object != nullptr)
      object->count += retained.count;
  }
  return objects;
}

Graph* CloneGraph(const Graph& original, bool keep_objects);

// A copy of what a node does; a child graph is cloned with it. False: too many.
bool CloneWork(const GraphWork& work, GraphWork* clone) {
  *clone = work;
  clone->pointers.clear();
  if (work.type != CU_GRAPH_NODE_TYPE_GRAPH) return true;
  const Graph* child = GetRuntime()->graphs.Find(work.child_id);
  Graph* made = child != nullptr ? CloneGraph(*child, true) : nullptr;
  if (made == nullptr) return false;
  made->owned = true;
  clone->child_id = made->id;
  return true;
}

Graph* CloneGraph(const Graph& original, bool keep_objects) {
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
  if (keep_objects) clone->objects = RetainAgain(original.objects);
  return clone;
}

// Appends the steps of `graph` in an order that its edges allow, earlier nodes first, and its
// shape. CUDA_ERROR_INVALID_VALUE: the edges go round in a circle.
CUresult Flatten(const Graph& graph, GraphExec* exec) {
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
        if (CUresult result = Flatten(*child, exec); result != CUDA_SUCCESS) return result;
      }
      exec->shape.push_back(kShapeCloses);
    } else {
      GraphExec::Step step;
      step.node_id = node->id;
      step.work = node->work;
      step.work.pointers.clear();
      exec->steps.push_back(std::move(step));
    }
    for (uint32_t follower : followers[index]) {
      if (--waits[follower] != 0) continue;
      ready.push_back(follower);
      std::push_heap(ready.begin(), ready.end(), later);
    }
  }
  return taken == count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// The user objects of a graph and of its children. graph_mutex held.
void CollectObjects(const Graph& graph, std::vector<RetainedObject>* objects) {
  Runtime* runtime = GetRuntime();
  objects->insert(objects->end(), graph.objects.begin(), graph.objects.end());
  for (uint64_t id : graph.nodes) {
    const GraphNode* node = runtime->graph_nodes.Find(id);
    if (node->work.type != CU_GRAPH_NODE_TYPE_GRAPH) continue;
    if (const Graph* child = runtime->graphs.Find(node->work.child_id); child != nullptr)
      CollectObjects(*child, objects);
  }
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

CUresult Add(CUgraphNode* out, CUgraph handle, const CUgraphNode* dependencies, size_t count,
             GraphWork work) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(&GetRuntime()->graph_mutex);
  Graph* graph = FindGraph(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<uint64_t> ids;
  if (CUresult result = ReadDependencies(*graph, dependencies, count, &ids);
      result != CUDA_SUCCESS) {
    return result;
  }
  const uint64_t id = AddGraphNode(graph, ids, std::move(work));
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = NodeHandle(id);
  return CUDA_SUCCESS;
}

// Calls `visit(node)` under the lock if the node is there and of `type`.
template <class Visit>
CUresult WithNode(CUgraphNode handle, CUgraphNodeType type, Visit visit) {
  MutexLock lock(&GetRuntime()->graph_mutex);
  GraphNode* node = FindNode(handle);
  if (node == nullptr || node->work.type != type) return CUDA_ERROR_INVALID_VALUE;
  return visit(node);
}

// Puts `work` in the place of what the node does in an executable graph.
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
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult ReplaceNode(CUgraphNode handle, GraphWork work) {
  return WithNode(handle, work.type, [&](GraphNode* node) {
    if (work.type == CU_GRAPH_NODE_TYPE_KERNEL) work.attributes = node->work.attributes;
    node->work = std::move(work);
    return CUDA_SUCCESS;
  });
}

// --- From a program's parameters to work

CUDA_KERNEL_NODE_PARAMS_v2 Widen(const CUDA_KERNEL_NODE_PARAMS_v1& params) {
  CUDA_KERNEL_NODE_PARAMS_v2 wide = {};
  memcpy(&wide, &params, sizeof params);  // the newer form adds members behind the older one's
  return wide;
}
static_assert(offsetof(CUDA_KERNEL_NODE_PARAMS_v2, kern) == sizeof(CUDA_KERNEL_NODE_PARAMS_v1));
static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS_v2) == sizeof(CUDA_KERNEL_NODE_PARAMS_v3));

CUresult MakeKernel(const CUDA_KERNEL_NODE_PARAMS_v2* params, GraphWork* work) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS_v2 known = *params;
  Context* context = nullptr;
  const CUcontext wanted = known.func == nullptr ? known.ctx : nullptr;
  if (CUresult result =
          wanted != nullptr ? FindContext(wanted, &context) : CurrentContext(&context);
      result != CUDA_SUCCESS) {
    return result;
  }
  if (known.func == nullptr) known.func = reinterpret_cast<CUfunction>(known.kern);
  return PrepareLaunch(context, known, {}, work);
}

CUresult MakeKernel(const CUDA_KERNEL_NODE_PARAMS_v1* params, GraphWork* work) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_KERNEL_NODE_PARAMS_v2 wide = Widen(*params);
  return MakeKernel(&wide, work);
}

CUresult MakeCopy(const CUDA_MEMCPY3D* copy, CUcontext handle, GraphWork* work) {
  if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = FindContext(handle, &context); result != CUDA_SUCCESS) return result;
  if (CUresult result = PrepareCopy(*copy); result != CUDA_SUCCESS) return result;
  work->type = CU_GRAPH_NODE_TYPE_MEMCPY;
  work->context_id = context->id;
  work->copy = *copy;
  return CUDA_SUCCESS;
}

CUresult MakeFill(const CUDA_MEMSET_NODE_PARAMS_v2& params, GraphWork* work) {
  if (params.elementSize != 1 && params.elementSize != 2 && params.elementSize != 4)
    return CUDA_ERROR_INVALID_VALUE;
  if (params.width == 0 || params.height == 0) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = FindContext(params.ctx, &context); result != CUDA_SUCCESS) return result;
  uint64_t row = 0;
  uint64_t extent = 0;
  if (__builtin_mul_overflow(params.width, uint64_t{params.elementSize}, &row))
    return CUDA_ERROR_INVALID_VALUE;
  if (params.height > 1 &&
      (params.pitch < row || __builtin_mul_overflow(params.pitch, params.height - 1, &extent))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (__builtin_add_overflow(extent, row, &extent)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = CheckDeviceRange(context, params.dst, extent, params.elementSize);
      result != CUDA_SUCCESS) {
    return result;
  }
  work->type = CU_GRAPH_NODE_TYPE_MEMSET;
  work->context_id = context->id;
  work->fill = params;
  return CUDA_SUCCESS;
}

CUresult MakeFill(const CUDA_MEMSET_NODE_PARAMS_v1* params, CUcontext context, GraphWork* work) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return MakeFill({params->dst, params->pitch, params->value, params->elementSize, params->width,
                   params->height, context},
                  work);
}

CUresult MakeHost(CUhostFn function, void* argument, GraphWork* work) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  work->type = CU_GRAPH_NODE_TYPE_HOST;
  work->host.fn = function;
  work->host.userData = argument;
  return CUDA_SUCCESS;
}

CUresult MakeEvent(CUgraphNodeType type, CUevent handle, GraphWork* work) {
  EventRef event;
  if (FindEvent(handle, &event) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  work->type = type;
  work->context_id = event.context->id;
  work->event_id = event.id;
  return CUDA_SUCCESS;
}

CUresult MakeChild(CUgraph child, GraphWork* work) {
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->graph_mutex);
  const Graph* original = FindGraph(child);
  if (original == nullptr || original->capturing) return CUDA_ERROR_INVALID_VALUE;
  for (uint64_t id : original->nodes) {
    const CUgraphNodeType type = runtime->graph_nodes.Find(id)->work.type;
    // "If the child graph contains allocation nodes, free nodes, or conditional nodes, this call
    // will return an error."
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE)
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  Graph* clone = CloneGraph(*original, true);
  if (clone == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  clone->owned = true;
  work->type = CU_GRAPH_NODE_TYPE_GRAPH;
  work->child_id = clone->id;
  return CUDA_SUCCESS;
}

CUresult MakeAllocation(const CUmemPoolProps& pool, uint64_t bytes, GraphWork* work) {
  Runtime* runtime = GetRuntime();
  if (bytes == 0 || pool.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE || pool.location.id < 0 ||
      pool.location.id >= runtime->device_count) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (pool.handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
  StreamRef stream;
  if (CUresult result = CurrentContext(&stream.context); result != CUDA_SUCCESS) return result;
  if (stream.context->device->ordinal != pool.location.id) return CUDA_ERROR_NOT_SUPPORTED;
  stream.id = kLegacyStreamId;
  if (CUresult result = AllocateGraphMemory(stream, bytes, &work->address); result != CUDA_SUCCESS)
    return result;
  work->type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  work->context_id = stream.context->id;
  work->bytes = bytes;
  return CUDA_SUCCESS;
}

CUresult MakeFree(CUdeviceptr address, GraphWork* work) {
  MutexLock lock(&GetRuntime()->graph_mutex);
  if (FindMemory(address) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  work->type = CU_GRAPH_NODE_TYPE_MEM_FREE;
  work->address = address;
  return CUDA_SUCCESS;
}

CUresult MakeAny(CUgraphNodeParams* params, GraphWork* work) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      CUDA_KERNEL_NODE_PARAMS_v2 kernel;
      memcpy(&kernel, &params->kernel, sizeof kernel);
      return MakeKernel(&kernel, work);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return MakeCopy(&params->memcpy.copyParams, params->memcpy.copyCtx, work);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return MakeFill(params->memset, work);
    case CU_GRAPH_NODE_TYPE_HOST:
      return MakeHost(params->host.fn, params->host.userData, work);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return MakeChild(params->graph.graph, work);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return MakeEvent(params->type, params->eventWait.event, work);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return MakeEvent(params->type, params->eventRecord.event, work);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      const CUresult result = MakeAllocation(params->alloc.poolProps, params->alloc.bytesize, work);
      if (result == CUDA_SUCCESS) params->alloc.dptr = work->address;
      return result;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return MakeFree(params->free.dptr, work);
    default:
      NoteUnsupported("cuGraphAddNode", "a conditional, semaphore or memory operation node");
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// --- From work to requests

CUresult SendFill(const StreamRef& stream, const CUDA_MEMSET_NODE_PARAMS_v2& fill) {
  const auto send = [&](auto request, auto value) {
    request.dstDevice = fill.dst;
    request.dstPitch = fill.height == 1 ? fill.width * fill.elementSize : fill.pitch;
    value(&request);
    request.Width = fill.width;
    request.Height = fill.height;
    request.hStream = stream.id;
    return Post(stream.context, request);
  };
  switch (fill.elementSize) {
    case 1:
      return send(wire::cuMemsetD2D8AsyncRequest(),
                  [&](auto* request) { request->uc = fill.value & 0xFF; });
    case 2:
      return send(wire::cuMemsetD2D16AsyncRequest(),
                  [&](auto* request) { request->us = fill.value & 0xFFFF; });
    default:
      return send(wire::cuMemsetD2D32AsyncRequest(),
                  [&](auto* request) { request->ui = fill.value; });
  }
}

CUresult SendOperation(const StreamRef& stream, const GraphWork& work) {
  const MemoryOperation& operation = work.operation;
  const auto send = [&](auto request) {
    request.stream = stream.id;
    request.addr = work.address;
    request.value = operation.value;
    request.flags = operation.flags;
    return Post(stream.context, request);
  };
  if (operation.wait) {
    return operation.wide ? send(wire::cuStreamWaitValue64_v2Request())
                          : send(wire::cuStreamWaitValue32_v2Request());
  }
  return operation.wide ? send(wire::cuStreamWriteValue64_v2Request())
                        : send(wire::cuStreamWriteValue32_v2Request());
}

CUresult Send(const StreamRef& stream, const GraphWork& work) {
  switch (work.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return SendLaunch(stream, work);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return SendCopy(stream, work);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return SendFill(stream, work.fill);
    case CU_GRAPH_NODE_TYPE_HOST:
      return SendHostFunction(stream, work);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: {
      wire::cuEventRecordRequest request;
      request.hEvent = work.event_id;
      request.hStream = stream.id;
      return Post(stream.context, request);
    }
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: {
      wire::cuStreamWaitEventRequest request;
      request.hEvent = work.event_id;
      request.hStream = stream.id;
      return Post(stream.context, request);
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return SendOperation(stream, work);
    default:  // empty nodes, and memory nodes, whose memory is there
      return CUDA_SUCCESS;
  }
}

// Marks what the launch allocates and frees. CUDA_ERROR_INVALID_VALUE: memory of an earlier launch
// has not been freed.
CUresult MarkMemory(const GraphExec& exec) {
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->graph_mutex);
  const bool frees_before = (exec.flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  for (const GraphExec::Step& step : exec.steps) {
    if (step.work.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) continue;
    const GraphMemory* memory = FindMemory(step.work.address);
    if (memory != nullptr && memory->live && !frees_before) return CUDA_ERROR_INVALID_VALUE;
  }
  for (const GraphExec::Step& step : exec.steps) {
    const bool allocates = step.work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    if (!allocates && step.work.type != CU_GRAPH_NODE_TYPE_MEM_FREE) continue;
    if (GraphMemory* memory = FindMemory(step.work.address); memory != nullptr)
      memory->live = allocates;
  }
  return CUDA_SUCCESS;
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
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->graph_mutex);
  const Graph* graph = FindGraph(handle);
  if (graph == nullptr || graph->capturing) return CUDA_ERROR_INVALID_VALUE;
  GraphExec made;
  if (CUresult result = Flatten(*graph, &made); result != CUDA_SUCCESS) return result;
  CollectObjects(*graph, &made.objects);
  made.flags = flags;
  const uint64_t id = runtime->graph_execs.Create([&](GraphExec* exec, uint64_t new_id) {
    *exec = std::move(made);
    exec->id = new_id;
  });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const GraphExec* exec = runtime->graph_execs.Find(id);
  RetainAgain(exec->objects);
  for (const GraphExec::Step& step : exec->steps) KeepMemory(step.work);
  *out = reinterpret_cast<CUgraphExec>(id);
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
  if (CUresult result = Flatten(*graph, &made); result != CUDA_SUCCESS) return result;
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

// The parameters of a kernel node; the arrays stay the node's.
void KernelParams(GraphWork* work, CUDA_KERNEL_NODE_PARAMS_v2* params) {
  *params = {};
  params->func = reinterpret_cast<CUfunction>(work->kernel_id);
  params->gridDimX = work->grid[0], params->gridDimY = work->grid[1];
  params->gridDimZ = work->grid[2];
  params->blockDimX = work->block[0], params->blockDimY = work->block[1];
  params->blockDimZ = work->block[2];
  params->sharedMemBytes = work->shared_bytes;
  const Kernel* kernel = GetRuntime()->kernels.Find(work->kernel_id);
  if (kernel == nullptr) return;
  work->pointers.clear();
  for (const KernelParameter& parameter : kernel->parameters)
    work->pointers.push_back(work->parameters.data() + parameter.offset);
  if (!work->pointers.empty()) params->kernelParams = work->pointers.data();
}

// The place of attribute `id` in the packed list, or its end.
size_t AttributeAt(const std::vector<std::byte>& attributes, uint64_t id) {
  for (size_t at = 0; at + kAttributeBytes <= attributes.size(); at += kAttributeBytes) {
    uint64_t there;
    memcpy(&there, &attributes[at], sizeof there);
    if (there == id) return at;
  }
  return attributes.size();
}

}  // namespace

Graph* NewGraph() {
  Runtime* runtime = GetRuntime();
  const uint64_t id =
      runtime->graphs.Create([](Graph* graph, uint64_t new_id) { graph->id = new_id; });
  return runtime->graphs.Find(id);
}

uint64_t AddGraphNode(Graph* graph, const std::vector<uint64_t>& dependencies, GraphWork work) {
  const uint64_t id = GetRuntime()->graph_nodes.Create([&](GraphNode* node, uint64_t new_id) {
    node->id = new_id;
    node->graph_id = graph->id;
    node->dependencies = dependencies;
    node->work = std::move(work);
  });
  if (id == 0) return 0;
  graph->nodes.push_back(id);
  KeepMemory(GetRuntime()->graph_nodes.Find(id)->work);
  return id;
}

namespace {

// graph_mutex held. The node is out of its graph's list already, or the graph goes.
void DestroyNode(uint64_t id, std::vector<RetainedObject>* objects) {
  Runtime* runtime = GetRuntime();
  GraphNode* node = runtime->graph_nodes.Find(id);
  if (node == nullptr) return;
  DropMemory(node->work);
  if (node->work.type == CU_GRAPH_NODE_TYPE_GRAPH) {
    if (Graph* child = runtime->graphs.Find(node->work.child_id); child != nullptr)
      DestroyGraph(child, objects);
  }
  node->work = GraphWork();
  node->dependencies.clear();
  runtime->graph_nodes.Destroy(id);
}

}  // namespace

void DestroyGraph(Graph* graph, std::vector<RetainedObject>* objects) {
  for (uint64_t id : graph->nodes) DestroyNode(id, objects);
  graph->nodes.clear();
  objects->insert(objects->end(), graph->objects.begin(), graph->objects.end());
  graph->objects.clear();
  GetRuntime()->graphs.Destroy(graph->id);
}

void ReleaseObjects(const std::vector<RetainedObject>& objects) {
  Runtime* runtime = GetRuntime();
  for (const RetainedObject& retained : objects) {
    UserObject last;
    {
      MutexLock lock(&runtime->graph_mutex);
      UserObject* object = runtime->user_objects.Find(retained.object_id);
      if (object == nullptr) continue;
      object->count -= retained.count < object->count ? retained.count : object->count;
      if (object->count != 0) continue;
      last = *object;
      runtime->user_objects.Destroy(last.id);
    }
    last.destroy(last.argument);
  }
}

CUresult AllocateGraphMemory(const StreamRef& stream, uint64_t bytes, CUdeviceptr* address) {
  Runtime* runtime = GetRuntime();
  Pool* pool = CurrentPool(stream.context->device);
  if (pool == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  if (CUresult result = AllocateFromPool(pool, stream, bytes, address); result != CUDA_SUCCESS)
    return result;
  MutexLock lock(&runtime->graph_mutex);
  runtime->graph_memory.push_back({*address, bytes, 0, false});
  return CUDA_SUCCESS;
}

bool FreeGraphMemory(CUdeviceptr address) {
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->graph_mutex);
  GraphMemory* memory = FindMemory(address);
  if (memory == nullptr) return false;
  memory->live = false;
  if (memory->references == 0) ForgetMemory(memory);
  return true;
}

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
  const Graph* clone = CloneGraph(*original, true);
  if (clone == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *phGraphClone = reinterpret_cast<CUgraph>(clone->id);
  return CUDA_SUCCESS;
}

CUresult cuGraphAddKernelNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                              const CUgraphNode* dependencies, size_t numDependencies,
                              const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  GraphWork work;
  if (CUresult result = MakeKernel(nodeParams, &work); result != CUDA_SUCCESS) return result;
  return Add(phGraphNode, hGraph, dependencies, numDependencies, std::move(work));
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                                 const CUgraphNode* dependencies, size_t numDependencies,
                                 const CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) {
  GraphWork work;
  if (CUresult result = MakeKernel(nodeParams, &work); result != CUDA_SUCCESS) return result;
  return Add(phGraphNode, hGraph, dependencies, numDependencies, std::move(work));
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS_v2 wide;
  const CUresult result = calls::cuGraphKernelNodeGetParams_v2(hNode, &wide);
  if (result == CUDA_SUCCESS) memcpy(nodeParams, &wide, sizeof *nodeParams);
  return result;
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode* node) {
    KernelParams(&node->work, nodeParams);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode,
                                    const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  GraphWork work;
  if (CUresult result = MakeKernel(nodeParams, &work); result != CUDA_SUCCESS) return result;
  return ReplaceNode(hNode, std::move(work));
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode,
                                       const CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) {
  GraphWork work;
  if (CUresult result = MakeKernel(nodeParams, &work); result != CUDA_SUCCESS) return result;
  return ReplaceNode(hNode, std::move(work));
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                       CUkernelNodeAttrValue* value_out) {
  if (value_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode* node) {
    memset(value_out, 0, sizeof *value_out);
    const size_t at = AttributeAt(node->work.attributes, attr);
    if (at < node->work.attributes.size())
      memcpy(value_out, &node->work.attributes[at + 8], sizeof *value_out);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                       const CUkernelNodeAttrValue* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (attr == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ||
      attr == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT ||
      attr == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE) {
    NoteUnsupported("cuGraphKernelNodeSetAttribute", "an attribute that names an event or a node");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode* node) {
    std::vector<std::byte>& attributes = node->work.attributes;
    const size_t at = AttributeAt(attributes, attr);
    if (at == attributes.size()) attributes.resize(at + kAttributeBytes);
    const uint64_t id = attr;
    memcpy(&attributes[at], &id, sizeof id);
    memcpy(&attributes[at + 8], value, sizeof *value);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src) {
  std::vector<std::byte> attributes;
  const CUresult result = WithNode(src, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode* node) {
    attributes = node->work.attributes;
    return CUDA_SUCCESS;
  });
  if (result != CUDA_SUCCESS) return result;
  return WithNode(dst, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode* node) {
    node->work.attributes = std::move(attributes);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphAddMemcpyNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                              const CUgraphNode* dependencies, size_t numDependencies,
                              const CUDA_MEMCPY3D* copyParams, CUcontext ctx) {
  GraphWork work;
  if (CUresult result = MakeCopy(copyParams, ctx, &work); result != CUDA_SUCCESS) return result;
  return Add(phGraphNode, hGraph, dependencies, numDependencies, std::move(work));
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_MEMCPY, [&](GraphNode* node) {
    *nodeParams = node->work.copy;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D* nodeParams) {
  GraphWork work;
  if (CUresult result = MakeCopy(nodeParams, nullptr, &work); result != CUDA_SUCCESS) return result;
  return ReplaceNode(hNode, std::move(work));
}

CUresult cuGraphAddMemsetNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                              const CUgraphNode* dependencies, size_t numDependencies,
                              const CUDA_MEMSET_NODE_PARAMS_v1* memsetParams, CUcontext ctx) {
  GraphWork work;
  if (CUresult result = MakeFill(memsetParams, ctx, &work); result != CUDA_SUCCESS) return result;
  return Add(phGraphNode, hGraph, dependencies, numDependencies, std::move(work));
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS_v1* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_MEMSET, [&](GraphNode* node) {
    const CUDA_MEMSET_NODE_PARAMS_v2& fill = node->work.fill;
    *nodeParams = {fill.dst, fill.pitch, fill.value, fill.elementSize, fill.width, fill.height};
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode,
                                    const CUDA_MEMSET_NODE_PARAMS_v1* nodeParams) {
  GraphWork work;
  if (CUresult result = MakeFill(nodeParams, nullptr, &work); result != CUDA_SUCCESS) return result;
  return ReplaceNode(hNode, std::move(work));
}

CUresult cuGraphAddHostNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                            const CUgraphNode* dependencies, size_t numDependencies,
                            const CUDA_HOST_NODE_PARAMS_v1* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GraphWork work;
  if (CUresult result = MakeHost(nodeParams->fn, nodeParams->userData, &work);
      result != CUDA_SUCCESS) {
    return result;
  }
  return Add(phGraphNode, hGraph, dependencies, numDependencies, std::move(work));
}

CUresult cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS_v1* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_HOST, [&](GraphNode* node) {
    *nodeParams = {node->work.host.fn, node->work.host.userData};
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS_v1* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GraphWork work;
  if (CUresult result = MakeHost(nodeParams->fn, nodeParams->userData, &work);
      result != CUDA_SUCCESS) {
    return result;
  }
  return ReplaceNode(hNode, std::move(work));
}

CUresult cuGraphAddEmptyNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                             const CUgraphNode* dependencies, size_t numDependencies) {
  return Add(phGraphNode, hGraph, dependencies, numDependencies, GraphWork());
}

CUresult cuGraphAddChildGraphNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                  const CUgraphNode* dependencies, size_t numDependencies,
                                  CUgraph childGraph) {
  GraphWork work;
  if (CUresult result = MakeChild(childGraph, &work); result != CUDA_SUCCESS) return result;
  return Add(phGraphNode, hGraph, dependencies, numDependencies, std::move(work));
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph* phGraph) {
  if (phGraph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_GRAPH, [&](GraphNode* node) {
    *phGraph = reinterpret_cast<CUgraph>(node->work.child_id);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphAddEventRecordNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                   const CUgraphNode* dependencies, size_t numDependencies,
                                   CUevent event) {
  GraphWork work;
  if (CUresult result = MakeEvent(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, &work);
      result != CUDA_SUCCESS) {
    return result;
  }
  return Add(phGraphNode, hGraph, dependencies, numDependencies, std::move(work));
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent* event_out) {
  if (event_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, [&](GraphNode* node) {
    *event_out = reinterpret_cast<CUevent>(node->work.event_id);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event) {
  GraphWork work;
  if (CUresult result = MakeEvent(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, &work);
      result != CUDA_SUCCESS) {
    return result;
  }
  return ReplaceNode(hNode, std::move(work));
}

CUresult cuGraphAddEventWaitNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                 const CUgraphNode* dependencies, size_t numDependencies,
                                 CUevent event) {
  GraphWork work;
  if (CUresult result = MakeEvent(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, &work);
      result != CUDA_SUCCESS) {
    return result;
  }
  return Add(phGraphNode, hGraph, dependencies, numDependencies, std::move(work));
}

CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent* event_out) {
  if (event_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, [&](GraphNode* node) {
    *event_out = reinterpret_cast<CUevent>(node->work.event_id);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event) {
  GraphWork work;
  if (CUresult result = MakeEvent(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, &work);
      result != CUDA_SUCCESS) {
    return result;
  }
  return ReplaceNode(hNode, std::move(work));
}

CUresult cuGraphAddMemAllocNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                const CUgraphNode* dependencies, size_t numDependencies,
                                CUDA_MEM_ALLOC_NODE_PARAMS* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GraphWork work;
  if (CUresult result = MakeAllocation(nodeParams->poolProps, nodeParams->bytesize, &work);
      result != CUDA_SUCCESS) {
    return result;
  }
  const CUdeviceptr address = work.address;
  const CUresult result = Add(phGraphNode, hGraph, dependencies, numDependencies, std::move(work));
  if (result == CUDA_SUCCESS) {
    nodeParams->dptr = address;
  } else {
    FreeGraphMemory(address);
  }
  return result;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS* params_out) {
  if (params_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_MEM_ALLOC, [&](GraphNode* node) {
    *params_out = {};
    params_out->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params_out->poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    const Context* context = GetRuntime()->contexts.Find(node->work.context_id);
    if (context != nullptr) params_out->poolProps.location.id = context->device->ordinal;
    params_out->bytesize = node->work.bytes;
    params_out->dptr = node->work.address;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphAddMemFreeNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                               const CUgraphNode* dependencies, size_t numDependencies,
                               CUdeviceptr dptr) {
  GraphWork work;
  if (CUresult result = MakeFree(dptr, &work); result != CUDA_SUCCESS) return result;
  return Add(phGraphNode, hGraph, dependencies, numDependencies, std::move(work));
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr* dptr_out) {
  if (dptr_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_MEM_FREE, [&](GraphNode* node) {
    *dptr_out = node->work.address;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphAddNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                        size_t numDependencies, CUgraphNodeParams* nodeParams) {
  GraphWork work;
  if (CUresult result = MakeAny(nodeParams, &work); result != CUDA_SUCCESS) return result;
  return Add(phGraphNode, hGraph, dependencies, numDependencies, std::move(work));
}

// A programmatic edge lets its target begin early; here it waits, which is always right.
CUresult cuGraphAddNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                           const CUgraphNode* dependencies, const CUgraphEdgeData*,
                           size_t numDependencies, CUgraphNodeParams* nodeParams) {
  return calls::cuGraphAddNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}

CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams* nodeParams) {
  GraphWork work;
  if (nodeParams != nullptr && (nodeParams->type == CU_GRAPH_NODE_TYPE_GRAPH ||
                                nodeParams->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (CUresult result = MakeAny(nodeParams, &work); result != CUDA_SUCCESS) return result;
  return ReplaceNode(hNode, std::move(work));
}

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
  if (MaybeCapturing()) {
    bool captured = false;
    const CUresult result = CaptureLaunch(stream, *exec, &captured);
    if (captured || result != CUDA_SUCCESS) return result;
  }
  if (CUresult result = MarkMemory(*exec); result != CUDA_SUCCESS) return result;
  exec->context_id = stream.context->id;
  for (const GraphExec::Step& step : exec->steps) {
    if (!step.enabled) continue;
    if (CUresult result = Send(stream, step.work); result != CUDA_SUCCESS) return result;
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
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GraphWork work;
  if (CUresult result = MakeHost(nodeParams->fn, nodeParams->userData, &work);
      result != CUDA_SUCCESS) {
    return result;
  }
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
  if (own == nullptr || Flatten(*own, &before) != CUDA_SUCCESS ||
      Flatten(*given, &after) != CUDA_SUCCESS || before.shape != after.shape) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < before.steps.size(); ++i) {
    for (GraphExec::Step& step : exec->steps) {
      if (step.node_id == before.steps[i].node_id) step.work = after.steps[i].work;
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            CUevent event) {
  GraphWork work;
  if (CUresult result = MakeEvent(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, &work);
      result != CUDA_SUCCESS) {
    return result;
  }
  return ReplaceStep(hGraphExec, hNode, std::move(work));
}

CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode,
                                          CUevent event) {
  GraphWork work;
  if (CUresult result = MakeEvent(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, &work);
      result != CUDA_SUCCESS) {
    return result;
  }
  return ReplaceStep(hGraphExec, hNode, std::move(work));
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

CUresult cuUserObjectCreate(CUuserObject* object_out, void* ptr, CUhostFn destroy,
                            unsigned int initialRefcount, unsigned int flags) {
  if (object_out == nullptr || destroy == nullptr || initialRefcount == 0 ||
      flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t id = GetRuntime()->user_objects.Create([&](UserObject* object, uint64_t new_id) {
    object->id = new_id;
    object->count = initialRefcount;
    object->destroy = destroy;
    object->argument = ptr;
  });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *object_out = reinterpret_cast<CUuserObject>(id);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) {
  MutexLock lock(&GetRuntime()->graph_mutex);
  UserObject* found = GetRuntime()->user_objects.Find(reinterpret_cast<uint64_t>(object));
  if (found == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  found->count += count;
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
  const uint64_t id = reinterpret_cast<uint64_t>(object);
  {
    MutexLock lock(&GetRuntime()->graph_mutex);
    const UserObject* found = GetRuntime()->user_objects.Find(id);
    if (found == nullptr || count == 0 || count > found->count) return CUDA_ERROR_INVALID_VALUE;
  }
  ReleaseObjects({{id, count}});
  return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                 unsigned int flags) {
  MutexLock lock(&GetRuntime()->graph_mutex);
  Graph* found = FindGraph(graph);
  UserObject* user = GetRuntime()->user_objects.Find(reinterpret_cast<uint64_t>(object));
  if (found == nullptr || user == nullptr || count == 0 ||
      (flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (flags == 0) user->count += count;
  found->objects.push_back({user->id, count});
  return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count) {
  const uint64_t id = reinterpret_cast<uint64_t>(object);
  {
    MutexLock lock(&GetRuntime()->graph_mutex);
    Graph* found = FindGraph(graph);
    if (found == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    uint32_t held = 0;
    for (const RetainedObject& retained : found->objects)
      held += retained.object_id == id ? retained.count : 0;
    if (held < count) return CUDA_ERROR_INVALID_VALUE;
    uint32_t left = count;
    for (RetainedObject& retained : found->objects) {
      if (retained.object_id != id) continue;
      const uint32_t taken = std::min(left, retained.count);
      retained.count -= taken;
      left -= taken;
    }
  }
  ReleaseObjects({{id, count}});
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void* value) {
  Runtime* runtime = GetRuntime();
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= runtime->device_count) return CUDA_ERROR_INVALID_DEVICE;
  MutexLock lock(&runtime->graph_mutex);
  uint64_t used = 0;
  uint64_t reserved = 0;
  for (const GraphMemory& memory : runtime->graph_memory) {
    reserved += memory.bytes;
    if (memory.live) used += memory.bytes;
  }
  // The marks rise when they are asked for: what they are for is a hint of sizes.
  runtime->graph_used_high = std::max(runtime->graph_used_high, used);
  runtime->graph_reserved_high = std::max(runtime->graph_reserved_high, reserved);
  auto* out = static_cast<cuuint64_t*>(value);
  switch (attr) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      *out = used;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      *out = runtime->graph_used_high;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      *out = reserved;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      *out = runtime->graph_reserved_high;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void* value) {
  Runtime* runtime = GetRuntime();
  if (value == nullptr || *static_cast<cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= runtime->device_count) return CUDA_ERROR_INVALID_DEVICE;
  MutexLock lock(&runtime->graph_mutex);
  if (attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) {
    runtime->graph_used_high = 0;
  } else if (attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) {
    runtime->graph_reserved_high = 0;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

// Graph memory goes with its last graph; nothing is kept beyond.
CUresult cuDeviceGraphMemTrim(CUdevice device) {
  return device >= 0 && device < GetRuntime()->device_count ? CUDA_SUCCESS
                                                            : CUDA_ERROR_INVALID_DEVICE;
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
      "memory operation"};
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
