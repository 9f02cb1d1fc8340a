// SPDX-License-Identifier: Apache-2.0
// guest/calls/stream.cc: streams and events. Source: CUDA Driver API, Stream Management, Event
// Management.
#include "gen/guest/calls.h"
#include "guest/call.h"
#include "guest/green_context.h"

namespace consort::guest {

CUresult CreateStream(Context* context, uint64_t green_id, uint32_t flags, int priority,
                      CUstream* stream) {
  const wire::DeviceSnapshot& device = context->device->snapshot;
  // "If the specified priority is outside the numerical range, it will automatically be clamped."
  if (priority > device.stream_priority_least) priority = device.stream_priority_least;
  if (priority < device.stream_priority_greatest) priority = device.stream_priority_greatest;
  const uint64_t id = GetRuntime()->streams.Create([&](Stream* made, uint64_t new_id) {
    made->id = new_id;
    made->context_id = context->id;
    made->green_id = green_id;
    made->flags = flags;
    made->priority = priority;
  });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  wire::StreamCreateRequest request;
  request.stream = id;
  request.flags = flags;
  request.priority = priority;
  request.green = green_id;
  if (CUresult result = Post(context, request); result != CUDA_SUCCESS) return result;
  if (green_id != 0) PassGate(green_id, id);
  *stream = reinterpret_cast<CUstream>(id);
  return CUDA_SUCCESS;
}

namespace calls {
namespace {

CUresult Create(CUstream* phStream, unsigned flags, int priority) {
  if (phStream == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentOrGreenContext(&context); result != CUDA_SUCCESS) return result;
  return CreateStream(HomeOf(context), context->green_id, flags, priority, phStream);
}

}  // namespace

CUresult cuStreamCreate(CUstream* phStream, unsigned int Flags) {
  return Create(phStream, Flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) {
  return Create(phStream, flags, priority);
}

CUresult cuStreamDestroy_v2(CUstream hStream) {
  if (hStream == nullptr || hStream == CU_STREAM_LEGACY || hStream == CU_STREAM_PER_THREAD) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  StreamRef stream;
  if (CUresult result = FindStream(hStream, DefaultStream::kLegacy, &stream);
      result != CUDA_SUCCESS)
    return result;
  if (stream.green_id != 0) KeepEndedWork(stream);
  if (!GetRuntime()->streams.Destroy(stream.id)) return CUDA_ERROR_INVALID_HANDLE;
  {
    Runtime* runtime = GetRuntime();
    MutexLock lock(&runtime->stream_mutex);
    std::erase_if(runtime->stream_attributes, [&](const StreamAttributes& attributes) {
      return attributes.stream_id == stream.id;
    });
  }
  wire::StreamDestroyRequest request;
  request.stream = stream.id;
  return Post(stream.context, request);
}

CUresult cuStreamGetPriority(CUstream hStream, int* priority, DefaultStream default_stream) {
  if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  *priority = stream.priority;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream hStream, unsigned int* flags, DefaultStream default_stream) {
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  *flags = stream.flags;
  return CUDA_SUCCESS;
}

// Unique in the process; the legacy stream's differs by context.
CUresult cuStreamGetId(CUstream hStream, unsigned long long* streamId,
                       DefaultStream default_stream) {
  if (streamId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  *streamId = stream.id == kLegacyStreamId ? stream.context->wire_id : stream.id;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream hStream, CUcontext* pctx, DefaultStream default_stream) {
  if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  const GreenContext* green = GetRuntime()->green_contexts.Find(stream.green_id);
  *pctx =
      green != nullptr ? reinterpret_cast<CUcontext>(green->context_id) : ToHandle(stream.context);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext* pCtx, CUgreenCtx* pGreenCtx,
                           DefaultStream default_stream) {
  if (pCtx == nullptr || pGreenCtx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  *pCtx = ToHandle(stream.context);
  *pGreenCtx = reinterpret_cast<CUgreenCtx>(stream.green_id);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetDevice(CUstream hStream, CUdevice* device, DefaultStream default_stream) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  *device = stream.context->device->ordinal;
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream hStream, DefaultStream default_stream) {
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  wire::StreamSynchronizeRequest request;
  wire::EmptyReply reply;
  request.stream = stream.id;
  return Ask(stream.context, request, &reply);
}

CUresult cuEventCreate(CUevent* phEvent, unsigned int Flags) {
  constexpr unsigned kFlags =
      CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (phEvent == nullptr || (Flags & ~kFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((Flags & CU_EVENT_INTERPROCESS) != 0 && (Flags & CU_EVENT_DISABLE_TIMING) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  const uint64_t id = GetRuntime()->events.Create([&](Event* event, uint64_t new_id) {
    event->id = new_id;
    event->context_id = context->id;
    event->flags = Flags;
  });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  wire::EventCreateRequest request;
  request.event = id;
  request.flags = Flags;
  if (CUresult result = Post(context, request); result != CUDA_SUCCESS) return result;
  *phEvent = reinterpret_cast<CUevent>(id);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent hEvent) {
  EventRef event;
  if (CUresult result = FindEvent(hEvent, &event); result != CUDA_SUCCESS) return result;
  if (!GetRuntime()->events.Destroy(event.id)) return CUDA_ERROR_INVALID_HANDLE;
  wire::EventDestroyRequest request;
  request.event = event.id;
  return Post(event.context, request);
}

CUresult cuEventSynchronize(CUevent hEvent) {
  EventRef event;
  if (CUresult result = FindEvent(hEvent, &event); result != CUDA_SUCCESS) return result;
  wire::EventSynchronizeRequest request;
  wire::EmptyReply reply;
  request.event = event.id;
  return Ask(event.context, request, &reply);
}

}  // namespace calls
}  // namespace consort::guest
