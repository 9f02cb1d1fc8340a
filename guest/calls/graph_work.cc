// SPDX-License-Identifier: Apache-2.0
// guest/calls/graph_work.cc: see the header.
#include "guest/calls/graph_work.h"

#include <string.h>

#include <cstddef>

#include "gen/guest/calls.h"
#include "guest/call.h"
#include "guest/calls/graph_memory.h"
#include "guest/calls/graph_store.h"
#include "guest/runtime.h"
#include "guest/unsupported.h"

namespace consort::guest {
namespace {

CUDA_KERNEL_NODE_PARAMS_v2 Widen(const CUDA_KERNEL_NODE_PARAMS_v1& params) {
  CUDA_KERNEL_NODE_PARAMS_v2 wide = {};
  memcpy(&wide, &params, sizeof params);  // the newer form adds members behind the older one's
  return wide;
}
static_assert(offsetof(CUDA_KERNEL_NODE_PARAMS_v2, kern) == sizeof(CUDA_KERNEL_NODE_PARAMS_v1));
static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS_v2) == sizeof(CUDA_KERNEL_NODE_PARAMS_v3));

CUresult MakeFill(const CUDA_MEMSET_NODE_PARAMS_v2& params, GraphWork* work) {
  if (params.elementSize != 1 && params.elementSize != 2 && params.elementSize != 4)
    return CUDA_ERROR_INVALID_VALUE;
  if (params.width == 0 || params.height == 0) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = FindHome(params.ctx, &context); result != CUDA_SUCCESS) return result;
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

}  // namespace

CUresult MakeKernel(const CUDA_KERNEL_NODE_PARAMS_v2* params, GraphWork* work) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS_v2 known = *params;
  Context* context = nullptr;
  const CUcontext wanted = known.func == nullptr ? known.ctx : nullptr;
  if (CUresult result = wanted != nullptr ? FindHome(wanted, &context) : CurrentContext(&context);
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
  if (CUresult result = FindHome(handle, &context); result != CUDA_SUCCESS) return result;
  if (CUresult result = PrepareCopy(*copy); result != CUDA_SUCCESS) return result;
  work->type = CU_GRAPH_NODE_TYPE_MEMCPY;
  work->context_id = context->id;
  work->copy = *copy;
  return CUDA_SUCCESS;
}

CUresult MakeFill(const CUDA_MEMSET_NODE_PARAMS_v1* params, CUcontext context, GraphWork* work) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return MakeFill({params->dst, params->pitch, params->value, params->elementSize, params->width,
                   params->height, context},
                  work);
}

CUresult MakeHost(const CUDA_HOST_NODE_PARAMS_v1* params, GraphWork* work) {
  if (params == nullptr || params->fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  work->type = CU_GRAPH_NODE_TYPE_HOST;
  work->host.fn = params->fn;
  work->host.userData = params->userData;
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
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
        type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  Graph* clone = CloneGraph(*original);
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
  CUDA_HOST_NODE_PARAMS_v1 host;
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
      host = {params->host.fn, params->host.userData};
      return MakeHost(&host, work);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return MakeChild(params->graph.graph, work);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return MakeEvent(params->type, params->eventWait.event, work);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return MakeEvent(params->type, params->eventRecord.event, work);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return MakeAllocation(params->alloc.poolProps, params->alloc.bytesize, work);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return MakeFree(params->free.dptr, work);
    default:
      NoteUnsupported("cuGraphAddNode",
                      "a semaphore or memory operation node, or a change of a conditional one");
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult SendWork(const StreamRef& stream, const GraphWork& work) {
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

}  // namespace consort::guest
