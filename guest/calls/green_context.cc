// SPDX-License-Identifier: Apache-2.0
// guest/calls/green_context.cc: resources of devices, their partition, green contexts and their
// streams. Source: CUDA Driver API, Green Contexts.
#include "guest/green_context.h"

#include <string.h>

#include <atomic>

#include "gen/guest/calls.h"
#include "guest/call.h"
#include "guest/own_stream.h"
#include "guest/runtime.h"
#include "guest/thread_state.h"

namespace consort::guest {
namespace {

constexpr uint64_t kMagic = 0x636f6e7372657363;

// As request DeviceResource has one.
constexpr size_t kResourceBytes = 4 * sizeof(uint32_t);

void ReadResource(std::span<const std::byte> bytes, const ResourceOrigin& origin,
                  CUdevResource* resource) {
  uint32_t words[kResourceBytes / sizeof(uint32_t)];
  memcpy(words, bytes.data(), sizeof words);
  *resource = {};
  resource->type = static_cast<CUdevResourceType>(words[0]);
  if (resource->type != CU_DEV_RESOURCE_TYPE_SM) return;
  memcpy(resource->_internal_padding, &origin, sizeof origin);
  resource->sm.smCount = words[1];
  resource->sm.minSmPartitionSize = words[2];
  resource->sm.smCoscheduledAlignment = words[3];
}

// False: it is no resource of this library.
bool OriginOf(const CUdevResource& resource, ResourceOrigin* origin) {
  memcpy(origin, resource._internal_padding, sizeof *origin);
  return resource.type == CU_DEV_RESOURCE_TYPE_SM && origin->magic == kMagic &&
         origin->device >= 0 && origin->device < GetRuntime()->device_count;
}

// All that `source` has, which is the device if it is 0.
CUresult GetResource(Device* device, uint64_t source, CUdevResource* resource,
                     CUdevResourceType type) {
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  CUresult result = CUDA_SUCCESS;
  Session* session = OpenDevice(device, &result);
  if (session == nullptr) return result;
  wire::DeviceResourceRequest request;
  wire::DeviceResourceReply reply;
  request.source = source;
  if (result = session->Ask(0, request, &reply); result != CUDA_SUCCESS) return result;
  if (reply.resource.size() != kResourceBytes) return CUDA_ERROR_UNKNOWN;
  ResourceOrigin origin;
  origin.magic = kMagic;
  origin.source = source;
  origin.device = device->ordinal;
  ReadResource(reply.resource, origin, resource);
  return CUDA_SUCCESS;
}

CUresult FindGreen(CUgreenCtx handle, GreenContext** green) {
  const auto& greens = GetRuntime()->green_contexts;
  const uint64_t id = reinterpret_cast<uint64_t>(handle);
  *green = greens.Find(id);
  if (*green != nullptr) {
    const Session* session = (*green)->device->session;
    return session != nullptr ? session->failure() : CUDA_SUCCESS;
  }
  return greens.WasDestroyed(id) ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
}

Context* PrimaryOf(const Device* device) { return GetRuntime()->contexts.Find(device->primary_id); }

StreamRef RefOf(const GreenContext& green, uint64_t stream) {
  StreamRef ref;
  ref.context = PrimaryOf(green.device);
  ref.id = stream;
  return ref;
}

// Streams with work of the green context, or none.
std::vector<StreamRef> StreamsOf(const GreenContext& green) {
  Runtime* runtime = GetRuntime();
  uint64_t gate;
  {
    MutexLock lock(&runtime->green_mutex);
    gate = green.gate;
  }
  std::vector<StreamRef> streams;
  runtime->streams.ForEach([&](const Stream* stream, uint64_t id) {
    if (stream->green_id == green.id && id != gate) streams.push_back(RefOf(green, id));
  });
  return streams;
}

uint64_t AddStream(const GreenContext& green, uint32_t flags, int priority) {
  return GetRuntime()->streams.Create([&](Stream* stream, uint64_t id) {
    stream->id = id;
    stream->context_id = green.device->primary_id;
    stream->green_id = green.id;
    stream->flags = flags;
    stream->priority = priority;
  });
}

// A stream of our own beside those of the program, made when first used. 0: there are too many.
// green_mutex held.
uint64_t Hidden(const GreenContext& green, uint64_t* stream) {
  if (*stream != 0) return *stream;
  *stream = AddStream(green, CU_STREAM_NON_BLOCKING, 0);
  if (*stream == 0) return 0;
  wire::StreamCreateRequest request;
  request.stream = *stream;
  request.flags = CU_STREAM_NON_BLOCKING;
  request.green = green.id;
  Post(PrimaryOf(green.device), request);
  return *stream;
}

// An event for the time of a scope.
class OwnEvent {
 public:
  explicit OwnEvent(Context* context) {
    ref_.context = context;
    ref_.id = GetRuntime()->events.Create([&](Event* event, uint64_t id) {
      event->id = id;
      event->context_id = context->id;
      event->flags = CU_EVENT_DISABLE_TIMING;
    });
    wire::EventCreateRequest request;
    request.event = ref_.id;
    request.flags = CU_EVENT_DISABLE_TIMING;
    Post(context, request);
  }
  ~OwnEvent() {
    wire::EventDestroyRequest request;
    request.event = ref_.id;
    Post(ref_.context, request);
    GetRuntime()->events.Destroy(ref_.id);
  }
  OwnEvent(const OwnEvent&) = delete;
  OwnEvent& operator=(const OwnEvent&) = delete;
  const EventRef& ref() const { return ref_; }

 private:
  EventRef ref_;
};

CUresult Record(const EventRef& event, const StreamRef& stream) {
  wire::cuEventRecordRequest request;
  request.hEvent = event.id;
  request.hStream = stream.id;
  return Post(stream.context, request);
}

CUresult WaitFor(const StreamRef& stream, const EventRef& event) {
  wire::cuStreamWaitEventRequest request;
  request.hStream = stream.id;
  request.hEvent = event.id;
  return Post(stream.context, request);
}

// `later` goes on after what is in `earlier` now.
CUresult Order(const StreamRef& earlier, const StreamRef& later) {
  const OwnEvent event(earlier.context);
  if (CUresult result = Record(event.ref(), earlier); result != CUDA_SUCCESS) return result;
  return WaitFor(later, event.ref());
}

CUresult RefuseWhileCaptured(const std::vector<StreamRef>& streams) {
  CUresult result = CUDA_SUCCESS;
  for (const StreamRef& stream : streams) {
    if (CUresult refused = RefuseInCapture(stream.context, stream.id); refused != CUDA_SUCCESS)
      result = refused;
  }
  return result;
}

// Takes the names of `green` and of its streams that the program does not have away.
void Forget(const GreenContext& green) {
  Runtime* runtime = GetRuntime();
  runtime->contexts.Destroy(green.context_id);
  runtime->green_contexts.Destroy(green.id);
  // Those of the program stay as names of what is gone; see FindStream.
  for (uint64_t id : {green.default_stream, green.ended_work, green.gate}) {
    if (id != 0) runtime->streams.Destroy(id);
  }
}

}  // namespace

Context* HomeOf(Context* context) {
  return context->green_id != 0 ? PrimaryOf(context->device) : context;
}

void PassGate(uint64_t green_id, uint64_t stream_id) {
  Runtime* runtime = GetRuntime();
  const GreenContext* green = runtime->green_contexts.Find(green_id);
  if (green == nullptr) return;
  MutexLock lock(&runtime->green_mutex);
  if (green->gate != 0) Order(RefOf(*green, green->gate), RefOf(*green, stream_id));
}

void KeepEndedWork(const StreamRef& stream) {
  Runtime* runtime = GetRuntime();
  GreenContext* green = runtime->green_contexts.Find(stream.green_id);
  if (green == nullptr) return;
  MutexLock lock(&runtime->green_mutex);
  if (Hidden(*green, &green->ended_work) != 0) Order(stream, RefOf(*green, green->ended_work));
}

CUresult SynchroniseGreen(const Context* context) {
  const GreenContext* green = GetRuntime()->green_contexts.Find(context->green_id);
  if (green == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  const std::vector<StreamRef> streams = StreamsOf(*green);
  if (CUresult result = RefuseWhileCaptured(streams); result != CUDA_SUCCESS) return result;
  for (const StreamRef& stream : streams) {
    wire::StreamSynchronizeRequest request;
    wire::EmptyReply reply;
    request.stream = stream.id;
    if (CUresult result = Ask(stream.context, request, &reply); result != CUDA_SUCCESS)
      return result;
  }
  return CUDA_SUCCESS;
}

void ForgetGreenContexts(const Device* device) {
  std::vector<GreenContext> gone;
  GetRuntime()->green_contexts.ForEach([&](const GreenContext* green, uint64_t) {
    if (green->device == device) gone.push_back(*green);
  });
  for (const GreenContext& green : gone) Forget(green);
}

namespace calls {

CUresult cuDeviceGetDevResource(CUdevice dev, CUdevResource* result, CUdevResourceType type) {
  if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Runtime* runtime = GetRuntime();
  if (dev < 0 || dev >= runtime->device_count) return CUDA_ERROR_INVALID_DEVICE;
  return GetResource(&runtime->devices[dev], 0, result, type);
}

CUresult cuCtxGetDevResource(CUcontext hCtx, CUdevResource* result, CUdevResourceType type) {
  if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult found = FindContext(hCtx, &context); found != CUDA_SUCCESS) return found;
  return GetResource(context->device, context->green_id, result, type);
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx hCtx, CUdevResource* result, CUdevResourceType type) {
  if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GreenContext* green = nullptr;
  if (CUresult found = FindGreen(hCtx, &green); found != CUDA_SUCCESS) return found;
  return GetResource(green->device, green->id, result, type);
}

CUresult cuDevSmResourceSplitByCount(CUdevResource* result, unsigned int* nbGroups,
                                     const CUdevResource* input, CUdevResource* remaining,
                                     unsigned int useFlags, unsigned int minCount) {
  static std::atomic<uint64_t> last_split{0};
  if (nbGroups == nullptr || input == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ResourceOrigin origin;
  if (!OriginOf(*input, &origin)) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  // "The output results cannot be split again without first creating a descriptor and a green
  // context with that descriptor."
  if (origin.split != 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  if (result != nullptr && *nbGroups == 0) return CUDA_ERROR_INVALID_VALUE;
  Device* device = &GetRuntime()->devices[origin.device];
  CUresult opened = CUDA_SUCCESS;
  Session* session = OpenDevice(device, &opened);
  if (session == nullptr) return opened;
  wire::DeviceResourceSplitRequest request;
  wire::DeviceResourceSplitReply reply;
  request.source = origin.source;
  // More than there are multiprocessors are as good as all.
  request.groups = result == nullptr ? 0 : std::min(*nbGroups, input->sm.smCount);
  request.flags = useFlags;
  request.fewest = minCount;
  if (CUresult asked = session->Ask(0, request, &reply); asked != CUDA_SUCCESS) return asked;
  if (reply.resources.size() != (size_t{reply.groups} + 1) * kResourceBytes ||
      (result != nullptr && reply.groups > request.groups))
    return CUDA_ERROR_UNKNOWN;
  origin.split = last_split.fetch_add(1, std::memory_order_relaxed) + 1;
  origin.cut = {request.groups, useFlags, minCount};
  for (uint32_t i = 0; i <= reply.groups; ++i) {
    const bool rest = i == reply.groups;
    CUdevResource* resource = !rest ? (result == nullptr ? nullptr : &result[i]) : remaining;
    if (resource == nullptr) continue;
    origin.part = rest ? request.groups : i;
    ReadResource(reply.resources.subspan(i * kResourceBytes, kResourceBytes), origin, resource);
  }
  *nbGroups = reply.groups;
  return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* phDesc, CUdevResource* resources,
                                   unsigned int nbResources) {
  if (phDesc == nullptr || resources == nullptr || nbResources == 0)
    return CUDA_ERROR_INVALID_VALUE;
  ResourceDescription description;
  uint64_t split = 0;
  for (unsigned int i = 0; i < nbResources; ++i) {
    ResourceOrigin origin;
    if (!OriginOf(resources[i], &origin)) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    if (i == 0) {
      description.device = origin.device;
      description.source = origin.source;
      description.cut = origin.cut;
      split = origin.split;
    } else if (origin.split == 0 || origin.split != split) {
      return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    }
    if (origin.split == 0) continue;
    for (uint32_t part : description.parts) {
      if (part == origin.part) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    }
    description.parts.push_back(origin.part);
  }
  const uint64_t id =
      GetRuntime()->resource_descriptions.Create([&](ResourceDescription* made, uint64_t new_id) {
        *made = std::move(description);
        made->id = new_id;
      });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *phDesc = reinterpret_cast<CUdevResourceDesc>(id);
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx* phCtx, CUdevResourceDesc desc, CUdevice dev,
                          unsigned int flags) {
  Runtime* runtime = GetRuntime();
  if (phCtx == nullptr || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  if (dev < 0 || dev >= runtime->device_count) return CUDA_ERROR_INVALID_DEVICE;
  const ResourceDescription* description =
      runtime->resource_descriptions.Find(reinterpret_cast<uint64_t>(desc));
  if (description == nullptr || description->device != dev) return CUDA_ERROR_INVALID_VALUE;
  Device* device = &runtime->devices[dev];
  CUcontext primary = nullptr;
  if (CUresult result = calls::cuDevicePrimaryCtxRetain(&primary, dev); result != CUDA_SUCCESS)
    return result;
  const uint64_t context_id = NewContext(device, false, PrimaryOf(device)->flags.load());
  const uint64_t id = runtime->green_contexts.Create([&](GreenContext* green, uint64_t new_id) {
    green->id = new_id;
    green->device = device;
    green->context_id = context_id;
    green->default_stream = AddStream(*green, CU_STREAM_DEFAULT, 0);
  });
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  if (context_id != 0 && id != 0) {
    runtime->contexts.Find(context_id)->green_id = id;
    wire::GreenContextCreateRequest request;
    wire::EmptyReply reply;
    request.green = id;
    request.default_stream = runtime->green_contexts.Find(id)->default_stream;
    request.source = description->source;
    request.groups = description->cut.groups;
    request.flags = description->cut.flags;
    request.fewest = description->cut.fewest;
    request.parts = std::as_bytes(std::span(description->parts));
    result = Ask(PrimaryOf(device), request, &reply);
  }
  if (result != CUDA_SUCCESS) {
    if (id != 0) {
      Forget(*runtime->green_contexts.Find(id));
    } else if (context_id != 0) {
      runtime->contexts.Destroy(context_id);
    }
    calls::cuDevicePrimaryCtxRelease_v2(dev);
    return result;
  }
  *phCtx = reinterpret_cast<CUgreenCtx>(id);
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx) {
  GreenContext* green = nullptr;
  if (CUresult result = FindGreen(hCtx, &green); result != CUDA_SUCCESS) return result;
  const GreenContext gone = *green;
  if (Context* context = GetRuntime()->contexts.Find(gone.context_id); context != nullptr)
    EndLocals(context);
  wire::GreenContextDestroyRequest request;
  request.green = gone.id;
  const CUresult result = Post(PrimaryOf(gone.device), request);
  Forget(gone);
  const CUresult released = calls::cuDevicePrimaryCtxRelease_v2(gone.device->ordinal);
  return result != CUDA_SUCCESS ? result : released;
}

CUresult cuCtxFromGreenCtx(CUcontext* pContext, CUgreenCtx hCtx) {
  if (pContext == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GreenContext* green = nullptr;
  if (CUresult result = FindGreen(hCtx, &green); result != CUDA_SUCCESS) return result;
  *pContext = reinterpret_cast<CUcontext>(green->context_id);
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxStreamCreate(CUstream* phStream, CUgreenCtx greenCtx, unsigned int flags,
                                int priority) {
  if (phStream == nullptr || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  GreenContext* green = nullptr;
  if (CUresult result = FindGreen(greenCtx, &green); result != CUDA_SUCCESS) return result;
  return CreateStream(PrimaryOf(green->device), green->id, flags, priority, phStream);
}

CUresult cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx* phCtx) {
  if (phCtx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  if (CUresult result = FindStream(hStream, DefaultStream::kLegacy, &stream);
      result != CUDA_SUCCESS)
    return result;
  *phCtx = reinterpret_cast<CUgreenCtx>(stream.green_id);
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx hCtx, CUevent hEvent) {
  GreenContext* green = nullptr;
  if (CUresult result = FindGreen(hCtx, &green); result != CUDA_SUCCESS) return result;
  EventRef event;
  if (CUresult result = FindEvent(hEvent, &event); result != CUDA_SUCCESS) return result;
  Context* context = PrimaryOf(green->device);
  if (event.context != context) return CUDA_ERROR_INVALID_HANDLE;
  const std::vector<StreamRef> streams = StreamsOf(*green);
  if (CUresult result = RefuseWhileCaptured(streams); result != CUDA_SUCCESS) return result;
  // A stream that has waited for all of them has their end.
  const OwnStream all(context);
  for (const StreamRef& stream : streams) {
    if (CUresult result = Order(stream, all.ref()); result != CUDA_SUCCESS) return result;
  }
  return Record(event, all.ref());
}

CUresult cuGreenCtxWaitEvent(CUgreenCtx hCtx, CUevent hEvent) {
  Runtime* runtime = GetRuntime();
  GreenContext* green = nullptr;
  if (CUresult result = FindGreen(hCtx, &green); result != CUDA_SUCCESS) return result;
  EventRef event;
  if (CUresult result = FindEvent(hEvent, &event); result != CUDA_SUCCESS) return result;
  std::vector<StreamRef> streams = StreamsOf(*green);
  if (CUresult result = RefuseWhileCaptured(streams); result != CUDA_SUCCESS) return result;
  wire::EventSynchronizeRequest request;
  request.event = event.id;
  if (CaptureRequest(event.context, request, nullptr) != CUDA_SUCCESS)
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (!SameSession(event.context, PrimaryOf(green->device))) {
    wire::EmptyReply reply;
    return Ask(event.context, request, &reply);
  }
  {
    // Streams that are made later wait for what the gate has waited for.
    MutexLock lock(&runtime->green_mutex);
    if (Hidden(*green, &green->gate) == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    streams.push_back(RefOf(*green, green->gate));
  }
  for (const StreamRef& stream : streams) {
    if (CUresult result = WaitFor(stream, event); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxGetId(CUgreenCtx greenCtx, unsigned long long* greenCtxId) {
  if (greenCtxId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (greenCtx == nullptr) {
    if (CUresult result = FindContext(nullptr, &context); result != CUDA_SUCCESS) return result;
    if (context->green_id == 0) return CUDA_ERROR_INVALID_CONTEXT;
  } else {
    GreenContext* green = nullptr;
    if (CUresult result = FindGreen(greenCtx, &green); result != CUDA_SUCCESS) return result;
    context = GetRuntime()->contexts.Find(green->context_id);
    if (context == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  *greenCtxId = context->wire_id;
  return CUDA_SUCCESS;
}

}  // namespace calls
}  // namespace consort::guest
