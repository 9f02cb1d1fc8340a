// SPDX-License-Identifier: Apache-2.0
#include "guest/call.h"

#include "guest/log.h"
#include "guest/own_stream.h"
#include "guest/pool.h"
#include "guest/thread_state.h"
#include "guest/unsupported.h"

namespace consort::guest {
namespace {

CUresult DeviceFailure(const Context* context) {
  const Session* session = context->device->session;
  return session != nullptr ? session->failure() : CUDA_SUCCESS;
}

}  // namespace

CUresult FindContext(CUcontext handle, Context** context) {
  Runtime* runtime = GetRuntime();
  uint64_t id = reinterpret_cast<uint64_t>(handle);
  if (id == 0) {
    const ThreadState& thread = CurrentThread();
    id = thread.contexts.empty() ? 0 : thread.contexts.back();
    if (id == 0) return CUDA_ERROR_INVALID_CONTEXT;
  }
  Context* found = runtime->contexts.Find(id);
  if (found == nullptr) {
    return runtime->contexts.WasDestroyed(id) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                              : CUDA_ERROR_INVALID_CONTEXT;
  }
  *context = found;
  return CUDA_SUCCESS;
}

CUresult FindHome(CUcontext handle, Context** context) {
  const CUresult result = FindContext(handle, context);
  if (result == CUDA_SUCCESS) *context = HomeOf(*context);
  return result;
}

CUresult CurrentContext(Context** context) {
  const CUresult result = CurrentOrGreenContext(context);
  if (result == CUDA_SUCCESS) *context = HomeOf(*context);
  return result;
}

CUresult CurrentOrGreenContext(Context** context) {
  // Only CUDA's own calls are forbidden in a host function, and they all come through here or
  // FindStream.
  if (Session::OnServiceThread()) return CUDA_ERROR_NOT_PERMITTED;
  Context* found = nullptr;
  if (CUresult result = FindContext(nullptr, &found); result != CUDA_SUCCESS) return result;
  if (!found->active.load(std::memory_order_relaxed)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *context = found;
  return DeviceFailure(found);
}

namespace {

CUresult PerThreadStream(Context* context, StreamRef* ref) {
  ThreadState& thread = CurrentThread();
  Runtime* runtime = GetRuntime();
  for (size_t i = 0; i < thread.streams.size(); ++i) {
    if (thread.streams[i].context_id != context->id) continue;
    if (runtime->streams.Find(thread.streams[i].stream_id) != nullptr) {
      ref->id = thread.streams[i].stream_id;
      return CUDA_SUCCESS;
    }
    thread.streams.erase(thread.streams.begin() + i);  // its context was emptied
    break;
  }
  const uint64_t id = runtime->streams.Create([&](Stream* stream, uint64_t new_id) {
    stream->id = new_id;
    stream->context_id = context->id;
  });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  wire::StreamCreateRequest request;
  request.stream = id;
  request.flags = CU_STREAM_DEFAULT;
  if (CUresult result = Post(context, request); result != CUDA_SUCCESS) return result;
  thread.streams.push_back({context->id, id});
  ref->id = id;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult FindStream(CUstream handle, DefaultStream default_stream, StreamRef* ref) {
  if (handle == nullptr)
    handle = default_stream == DefaultStream::kPerThread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  ref->handle = handle;
  if (handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    if (CUresult result = CurrentOrGreenContext(&ref->context); result != CUDA_SUCCESS)
      return result;
    if (ref->context->green_id != 0) {
      const GreenContext* green = GetRuntime()->green_contexts.Find(ref->context->green_id);
      if (green == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
      if (handle == CU_STREAM_PER_THREAD) return CUDA_ERROR_INVALID_HANDLE;
      ref->context = HomeOf(ref->context);
      ref->id = green->default_stream;
      ref->green_id = green->id;
      return CUDA_SUCCESS;
    }
    if (handle == CU_STREAM_PER_THREAD) return PerThreadStream(ref->context, ref);
    ref->id = kLegacyStreamId;
    return CUDA_SUCCESS;
  }
  if (Session::OnServiceThread()) return CUDA_ERROR_NOT_PERMITTED;
  Runtime* runtime = GetRuntime();
  const Stream* stream = runtime->streams.Find(reinterpret_cast<uint64_t>(handle));
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Context* context = runtime->contexts.Find(stream->context_id);
  if (context == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (stream->green_id != 0 && runtime->green_contexts.Find(stream->green_id) == nullptr)
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  ref->context = context;
  ref->id = stream->id;
  ref->green_id = stream->green_id;
  ref->flags = stream->flags;
  ref->priority = stream->priority;
  return DeviceFailure(context);
}

CUresult FindEvent(CUevent handle, EventRef* ref) {
  if (Session::OnServiceThread()) return CUDA_ERROR_NOT_PERMITTED;
  Runtime* runtime = GetRuntime();
  const Event* event = runtime->events.Find(reinterpret_cast<uint64_t>(handle));
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Context* context = runtime->contexts.Find(event->context_id);
  if (context == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  ref->context = context;
  ref->id = event->id;
  return DeviceFailure(context);
}

CUresult FindKernel(CUfunction handle, Kernel** kernel) {
  Kernel* found = GetRuntime()->kernels.Find(reinterpret_cast<uint64_t>(handle));
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *kernel = found;
  return CUDA_SUCCESS;
}

CUresult CheckDeviceRange(Context*, CUdeviceptr address, uint64_t bytes, uint64_t alignment) {
  if (address % alignment != 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) return CUDA_SUCCESS;
  Allocation range;
  if (!GetRuntime()->allocations.Find(address, &range) || !Addressable(range.kind))
    return CUDA_ERROR_INVALID_VALUE;
  return GetRuntime()->allocations.Covers(range, address, bytes) ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_INVALID_VALUE;
}

void GiveBackFreed(Device* device) {
  FreedMemory::Block block;
  while (device->freed_memory.TakeAny(&block)) {
    wire::MemFreeRequest request;
    request.address = block.address;
    device->session->Post(0, request);  // a lost connection has given the memory back already
  }
}

CUresult EnqueueHostFunction(const StreamRef& stream, void (*function)(void*), void* argument,
                             Session::AfterFailure after) {
  Session* session = stream.context->device->session;
  wire::HostFunctionRequest request;
  request.stream = stream.id;
  request.callback = session->AddHostFunction(function, argument, after);
  if (request.callback == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = Post(stream.context, request);
  if (result == CUDA_SUCCESS || session->CancelHostFunction(request.callback)) return result;
  return CUDA_SUCCESS;  // a failure came between, and it was called because of that
}

void AfterSynchronise(Context* context, const wire::StreamSynchronizeRequest& request,
                      const Session::Sent& before) {
  // First: what the pools give back is sent after it.
  context->device->session->SetQuiet(context->wire_id, request.stream, before);
  PoolsAfterSynchronise(context, request.stream);
}

void AfterSynchronise(Context* context, const wire::ContextSynchronizeRequest&,
                      const Session::Sent& before) {
  context->device->session->SetQuiet(context->wire_id, kAllStreams, before);
  PoolsAfterSynchronise(context, kAllStreams);
}

Device* DeviceOfAddress(uint64_t address) {
  Runtime* runtime = GetRuntime();
  for (int i = 0; i < runtime->device_count; ++i) {
    Device* device = &runtime->devices[i];
    if (device->session == nullptr) continue;
    const wire::Welcome& welcome = device->session->welcome();
    if (address >= welcome.window_base && address - welcome.window_base < welcome.window_bytes)
      return device;
  }
  return nullptr;
}

CUresult SynchroniseDevice(const Device* device) {
  Runtime* runtime = GetRuntime();
  std::vector<Context*> contexts;
  runtime->contexts.ForEach([&](Context* context, uint64_t) {
    if (context->device == device && context->active.load()) contexts.push_back(context);
  });
  for (Context* context : contexts) {
    wire::ContextSynchronizeRequest request;
    wire::EmptyReply reply;
    if (CUresult result = Ask(context, request, &reply); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult AwaitGoneAhead(const Device* device) {
  if (!device->session->any_gone_ahead()) return CUDA_SUCCESS;
  Context* context = nullptr;
  GetRuntime()->contexts.ForEach([&](Context* each, uint64_t) {
    if (each->device == device && each->active.load()) context = each;
  });
  if (context == nullptr) return CUDA_SUCCESS;  // it went with them
  // Nothing else comes before what is on a new stream.
  const OwnStream stream(context);
  wire::StreamSynchronizeRequest request;
  wire::EmptyReply reply;
  request.stream = stream.ref().id;
  return Ask(context, request, &reply);
}

bool SameSession(const Context* a, const Context* b) { return a->device == b->device; }

CUresult WaitForOtherDevice(const StreamRef& stream, const EventRef& event) {
  if (CUresult result = RefuseInCapture(stream.context, stream.id); result != CUDA_SUCCESS)
    return result;
  wire::EventSynchronizeRequest request;
  wire::EmptyReply reply;
  request.event = event.id;
  return Ask(event.context, request, &reply);
}

CUresult RecordForOtherDevice(const StreamRef& stream, const EventRef& event) {
  const Event* object = GetRuntime()->events.Find(event.id);
  if (object == nullptr || object->opened_by != stream.context->id)
    return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult result = RefuseInCapture(stream.context, stream.id); result != CUDA_SUCCESS)
    return result;
  wire::StreamSynchronizeRequest wait;
  wire::EmptyReply reply;
  wait.stream = stream.id;
  if (CUresult result = Ask(stream.context, wait, &reply); result != CUDA_SUCCESS) return result;
  const OwnStream there(event.context);
  wire::cuEventRecordRequest record;
  record.hEvent = event.id;
  record.hStream = there.ref().id;
  return Post(event.context, record);
}

CUresult SettleRecord(Context* context, uint64_t event_id) {
  const Event* event = GetRuntime()->events.Find(event_id);
  if (event == nullptr || (event->flags & CU_EVENT_INTERPROCESS) == 0) return CUDA_SUCCESS;
  wire::cuEventQueryRequest request;
  wire::EmptyReply reply;
  request.hEvent = event_id;
  const CUresult result = context->device->session->Ask(context->wire_id, request, &reply);
  return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result;
}

CUresult AcrossDevices(const char* call) {
  NoteUnsupported(call, "objects of two devices in one call");
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace consort::guest
