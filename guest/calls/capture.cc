// SPDX-License-Identifier: Apache-2.0
// guest/calls/capture.cc: stream capture; see guest/capture.h.
#include "guest/capture.h"

#include "gen/guest/calls.h"
#include "guest/call.h"
#include "guest/runtime.h"
#include "guest/thread_state.h"
#include "guest/unsupported.h"

namespace consort::guest {

constinit std::atomic<uint32_t> captures_active{0};

namespace {

// graph_mutex is held in all of these.

Capture::Lane* FindLane(uint64_t stream_id, Capture** capture) {
  for (Capture* active : GetRuntime()->captures) {
    for (Capture::Lane& lane : active->lanes) {
      if (lane.stream_id != stream_id) continue;
      *capture = active;
      return &lane;
    }
  }
  return nullptr;
}

// The legacy stream would wait for captured streams of its context, and they for it.
CUresult CheckLegacy(const Context* context) {
  for (Capture* capture : GetRuntime()->captures) {
    for (const Capture::Lane& lane : capture->lanes) {
      if (!lane.blocking || lane.context_id != context->id) continue;
      capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  return CUDA_SUCCESS;
}

void Join(std::vector<uint64_t>* dependencies, const std::vector<uint64_t>& more) {
  for (uint64_t node : more) {
    bool known = false;
    for (uint64_t there : *dependencies) known = known || there == node;
    if (!known) dependencies->push_back(node);
  }
}

Capture* FindCapture(uint64_t id) {
  for (Capture* capture : GetRuntime()->captures) {
    if (capture->id == id) return capture;
  }
  return nullptr;
}

bool Contains(const std::vector<uint64_t>& nodes, uint64_t node) {
  for (uint64_t each : nodes) {
    if (each == node) return true;
  }
  return false;
}

// Whether every end of the captured work is what the origin stream has come to.
bool AllJoined(const Capture& capture, const Graph& graph) {
  const std::vector<uint64_t>* joined = nullptr;
  for (const Capture::Lane& lane : capture.lanes) {
    if (lane.stream_id == capture.origin_id) joined = &lane.dependencies;
  }
  Runtime* runtime = GetRuntime();
  for (const Capture::Lane& lane : capture.lanes) {
    for (uint64_t end : lane.dependencies) {
      if (Contains(*joined, end)) continue;
      // Not an end if another captured node follows it: then that one must be joined.
      bool followed = false;
      for (size_t i = capture.first_node; i < graph.nodes.size() && !followed; ++i) {
        const GraphNode* node = runtime->graph_nodes.Find(graph.nodes[i]);
        followed = node != nullptr && Contains(node->dependencies, end);
      }
      if (!followed) return false;
    }
  }
  return true;
}

CUresult Append(Capture* capture, Capture::Lane* lane, GraphWork* work) {
  if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  Graph* graph = GetRuntime()->graphs.Find(capture->graph_id);
  const uint64_t node =
      graph != nullptr ? AddGraphNode(graph, lane->dependencies, std::move(*work)) : 0;
  if (node == 0) {
    capture->invalidated = true;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  work->address = GetRuntime()->graph_nodes.Find(node)->work.address;
  lane->dependencies.assign(1, node);
  return CUDA_SUCCESS;
}

CUresult CaptureFill(Context* context, uint64_t stream, CUdeviceptr address, uint64_t pitch,
                     uint32_t value, uint32_t element, uint64_t width, uint64_t height,
                     bool* done) {
  if (!MaybeCapturing()) return CUDA_SUCCESS;
  GraphWork work;
  work.type = CU_GRAPH_NODE_TYPE_MEMSET;
  work.context_id = context->id;
  work.fill = {address, pitch, value, element, width, height, ToHandle(context)};
  return CaptureWork(context, stream, &work, done);
}

CUresult CaptureOperation(Context* context, uint64_t stream, CUdeviceptr address,
                          const MemoryOperation& operation, bool* done) {
  if (!MaybeCapturing()) return CUDA_SUCCESS;
  GraphWork work;
  work.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  work.context_id = context->id;
  work.address = address;
  work.operation = operation;
  return CaptureWork(context, stream, &work, done);
}

CUresult CaptureRecord(Context* context, uint64_t event_id, uint64_t stream, bool external,
                       bool* done) {
  Runtime* runtime = GetRuntime();
  Event* event = runtime->events.Find(event_id);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!MaybeCapturing()) {
    __atomic_store_n(&event->capture_id, 0, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
  }
  if (external) {
    GraphWork work;
    work.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    work.context_id = context->id;
    work.event_id = event_id;
    return CaptureWork(context, stream, &work, done);
  }
  MutexLock lock(&runtime->graph_mutex);
  if (stream == kLegacyStreamId) return CheckLegacy(context);
  Capture* capture = nullptr;
  const Capture::Lane* lane = FindLane(stream, &capture);
  if (lane == nullptr) {
    __atomic_store_n(&event->capture_id, 0, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
  }
  *done = true;
  if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  __atomic_store_n(&event->capture_id, capture->id, __ATOMIC_RELAXED);
  for (Capture::Mark& mark : capture->marks) {
    if (mark.event_id != event_id) continue;
    mark.dependencies = lane->dependencies;
    return CUDA_SUCCESS;
  }
  capture->marks.push_back({event_id, lane->dependencies});
  return CUDA_SUCCESS;
}

// A wait for a captured event brings its stream into the capture.
CUresult CaptureWait(Context* context, uint64_t stream, uint64_t event_id, bool external,
                     bool* done) {
  Runtime* runtime = GetRuntime();
  const Event* event = runtime->events.Find(event_id);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const uint64_t recorded_in = __atomic_load_n(&event->capture_id, __ATOMIC_RELAXED);
  if (recorded_in == 0 && !MaybeCapturing()) return CUDA_SUCCESS;
  if (external && MaybeCapturing()) {
    GraphWork work;
    work.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    work.context_id = context->id;
    work.event_id = event_id;
    return CaptureWork(context, stream, &work, done);
  }
  MutexLock lock(&runtime->graph_mutex);
  if (stream == kLegacyStreamId) {
    if (CUresult result = CheckLegacy(context); result != CUDA_SUCCESS) return result;
  }
  Capture* capture = nullptr;
  Capture::Lane* lane = FindLane(stream, &capture);
  if (recorded_in == 0) {
    if (lane == nullptr) return CUDA_SUCCESS;
    // The work that the event stands for is not part of the graph.
    *done = true;
    if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  *done = true;
  Capture* source = FindCapture(recorded_in);
  if (source == nullptr) return CUDA_ERROR_CAPTURED_EVENT;  // that capture has ended
  if (stream == kLegacyStreamId) {
    source->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (capture != nullptr && capture != source) {
    capture->invalidated = source->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (source->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (lane == nullptr) {
    const Stream* joining = runtime->streams.Find(stream);
    source->lanes.push_back({stream,
                             context->id,
                             joining != nullptr && (joining->flags & CU_STREAM_NON_BLOCKING) == 0,
                             {}});
    lane = &source->lanes.back();
  }
  for (const Capture::Mark& mark : source->marks) {
    if (mark.event_id == event_id) Join(&lane->dependencies, mark.dependencies);
  }
  return CUDA_SUCCESS;
}

// Whether an event was last recorded in a capture, of which nothing can be asked.
CUresult RefuseCapturedEvent(uint64_t event_id) {
  const Event* event = GetRuntime()->events.Find(event_id);
  if (event == nullptr || __atomic_load_n(&event->capture_id, __ATOMIC_RELAXED) == 0)
    return CUDA_SUCCESS;
  MutexLock lock(&GetRuntime()->graph_mutex);
  if (Capture* capture = FindCapture(event->capture_id); capture != nullptr)
    capture->invalidated = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

}  // namespace

CUresult CaptureWork(const Context* context, uint64_t stream_id, GraphWork* work, bool* captured) {
  MutexLock lock(&GetRuntime()->graph_mutex);
  if (stream_id == kLegacyStreamId) return CheckLegacy(context);
  Capture* capture = nullptr;
  Capture::Lane* lane = FindLane(stream_id, &capture);
  if (lane == nullptr) return CUDA_SUCCESS;
  *captured = true;
  return Append(capture, lane, work);
}

CUresult RefuseInCapture(const Context* context, uint64_t stream_id) {
  if (!MaybeCapturing()) return CUDA_SUCCESS;
  MutexLock lock(&GetRuntime()->graph_mutex);
  if (stream_id == kLegacyStreamId) return CheckLegacy(context);
  Capture* capture = nullptr;
  if (FindLane(stream_id, &capture) == nullptr) return CUDA_SUCCESS;
  capture->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult RefuseUnsafeCall() {
  if (!MaybeCapturing()) return CUDA_SUCCESS;
  const CUstreamCaptureMode own = CurrentThread().capture_mode;
  if (own == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  MutexLock lock(&GetRuntime()->graph_mutex);
  CUresult result = CUDA_SUCCESS;
  for (Capture* capture : GetRuntime()->captures) {
    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    // Of this thread, whatever the modes; of others, where both sides say so.
    const bool mine = pthread_equal(capture->thread, pthread_self()) != 0;
    if (!mine &&
        (capture->mode != CU_STREAM_CAPTURE_MODE_GLOBAL || own != CU_STREAM_CAPTURE_MODE_GLOBAL)) {
      continue;
    }
    capture->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult CaptureRequest(Context* context, const wire::cuMemsetD8AsyncRequest& request, bool* done) {
  return CaptureFill(context, request.hStream, request.dstDevice, request.N, request.uc, 1,
                     request.N, 1, done);
}
CUresult CaptureRequest(Context* context, const wire::cuMemsetD16AsyncRequest& request,
                        bool* done) {
  return CaptureFill(context, request.hStream, request.dstDevice, request.N * 2, request.us, 2,
                     request.N, 1, done);
}
CUresult CaptureRequest(Context* context, const wire::cuMemsetD32AsyncRequest& request,
                        bool* done) {
  return CaptureFill(context, request.hStream, request.dstDevice, request.N * 4, request.ui, 4,
                     request.N, 1, done);
}
CUresult CaptureRequest(Context* context, const wire::cuMemsetD2D8AsyncRequest& request,
                        bool* done) {
  return CaptureFill(context, request.hStream, request.dstDevice, request.dstPitch, request.uc, 1,
                     request.Width, request.Height, done);
}
CUresult CaptureRequest(Context* context, const wire::cuMemsetD2D16AsyncRequest& request,
                        bool* done) {
  return CaptureFill(context, request.hStream, request.dstDevice, request.dstPitch, request.us, 2,
                     request.Width, request.Height, done);
}
CUresult CaptureRequest(Context* context, const wire::cuMemsetD2D32AsyncRequest& request,
                        bool* done) {
  return CaptureFill(context, request.hStream, request.dstDevice, request.dstPitch, request.ui, 4,
                     request.Width, request.Height, done);
}
CUresult CaptureRequest(Context* context, const wire::cuStreamWriteValue32_v2Request& request,
                        bool* done) {
  return CaptureOperation(context, request.stream, request.addr,
                          {false, false, request.value, request.flags}, done);
}
CUresult CaptureRequest(Context* context, const wire::cuStreamWriteValue64_v2Request& request,
                        bool* done) {
  return CaptureOperation(context, request.stream, request.addr,
                          {false, true, request.value, request.flags}, done);
}
CUresult CaptureRequest(Context* context, const wire::cuStreamWaitValue32_v2Request& request,
                        bool* done) {
  return CaptureOperation(context, request.stream, request.addr,
                          {true, false, request.value, request.flags}, done);
}
CUresult CaptureRequest(Context* context, const wire::cuStreamWaitValue64_v2Request& request,
                        bool* done) {
  return CaptureOperation(context, request.stream, request.addr,
                          {true, true, request.value, request.flags}, done);
}
CUresult CaptureRequest(Context* context, const wire::cuEventRecordRequest& request, bool* done) {
  return CaptureRecord(context, request.hEvent, request.hStream, false, done);
}
CUresult CaptureRequest(Context* context, const wire::cuEventRecordWithFlagsRequest& request,
                        bool* done) {
  return CaptureRecord(context, request.hEvent, request.hStream,
                       (request.flags & CU_EVENT_RECORD_EXTERNAL) != 0, done);
}
CUresult CaptureRequest(Context* context, const wire::cuStreamWaitEventRequest& request,
                        bool* done) {
  return CaptureWait(context, request.hStream, request.hEvent,
                     (request.Flags & CU_EVENT_WAIT_EXTERNAL) != 0, done);
}
CUresult CaptureRequest(Context*, const wire::StreamDestroyRequest& request, bool*) {
  if (!MaybeCapturing()) return CUDA_SUCCESS;
  // A capture that began in it ends now. One that only reached it has its work, which must be
  // joined as ever.
  Runtime* runtime = GetRuntime();
  std::vector<RetainedObject> objects;
  {
    MutexLock lock(&runtime->graph_mutex);
    for (size_t i = 0; i < runtime->captures.size(); ++i) {
      Capture* capture = runtime->captures[i];
      Capture* of_stream = nullptr;
      if (FindLane(request.stream, &of_stream) == nullptr || of_stream != capture) continue;
      if (capture->origin_id != request.stream) continue;
      Graph* graph = runtime->graphs.Find(capture->graph_id);
      if (graph != nullptr) {
        graph->capturing = false;
        if (capture->own_graph) DestroyGraph(graph, &objects);
      }
      runtime->captures.erase(runtime->captures.begin() + i);
      captures_active.fetch_sub(1, std::memory_order_relaxed);
      delete capture;
      break;
    }
  }
  ReleaseObjects(objects);
  return CUDA_SUCCESS;
}
CUresult CaptureRequest(Context* context, const wire::StreamSynchronizeRequest& request, bool*) {
  return RefuseInCapture(context, request.stream);
}
CUresult CaptureRequest(Context* context, const wire::cuStreamQueryRequest& request, bool*) {
  return RefuseInCapture(context, request.hStream);
}
CUresult CaptureRequest(Context* context, const wire::ContextSynchronizeRequest&, bool*) {
  if (!MaybeCapturing()) return CUDA_SUCCESS;
  MutexLock lock(&GetRuntime()->graph_mutex);
  CUresult result = CUDA_SUCCESS;
  for (Capture* capture : GetRuntime()->captures) {
    for (const Capture::Lane& lane : capture->lanes) {
      if (lane.context_id != context->id) continue;
      capture->invalidated = true;
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  return result;
}
CUresult CaptureRequest(Context*, const wire::EventSynchronizeRequest& request, bool*) {
  return RefuseCapturedEvent(request.event);
}
CUresult CaptureRequest(Context*, const wire::cuEventQueryRequest& request, bool*) {
  return RefuseCapturedEvent(request.hEvent);
}

namespace calls {
namespace {

CUresult Begin(CUstream handle, CUgraph into, const CUgraphNode* dependencies, size_t count,
               CUstreamCaptureMode mode, DefaultStream default_stream) {
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  if (CUresult result = FindStream(handle, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  if (stream.handle == CU_STREAM_LEGACY) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->graph_mutex);
  Capture* other = nullptr;
  if (FindLane(stream.id, &other) != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  Capture::Lane lane{
      stream.id, stream.context->id, (stream.flags & CU_STREAM_NON_BLOCKING) == 0, {}};
  Graph* graph = nullptr;
  if (into != nullptr) {
    graph = runtime->graphs.Find(reinterpret_cast<uint64_t>(into));
    if (graph == nullptr || graph->capturing || (count != 0 && dependencies == nullptr))
      return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
      const GraphNode* node =
          runtime->graph_nodes.Find(reinterpret_cast<uint64_t>(dependencies[i]));
      if (node == nullptr || node->graph_id != graph->id) return CUDA_ERROR_INVALID_VALUE;
      lane.dependencies.push_back(node->id);
    }
  } else {
    graph = NewGraph();
    if (graph == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  graph->capturing = true;
  auto* capture = new Capture;
  capture->id = ++runtime->last_capture_id;
  capture->graph_id = graph->id;
  capture->own_graph = into == nullptr;
  capture->first_node = graph->nodes.size();
  capture->mode = mode;
  capture->thread = pthread_self();
  capture->origin_id = stream.id;
  capture->lanes.push_back(std::move(lane));
  runtime->captures.push_back(capture);
  captures_active.fetch_add(1, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

struct CaptureOutputs {
  CUstreamCaptureStatus* status = nullptr;
  cuuint64_t* id = nullptr;
  CUgraph* graph = nullptr;
  const CUgraphNode** dependencies = nullptr;
  size_t* count = nullptr;
};

CUresult Info(CUstream handle, const CaptureOutputs& out, DefaultStream default_stream) {
  if (out.status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  if (CUresult result = FindStream(handle, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  *out.status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!MaybeCapturing()) return CUDA_SUCCESS;
  MutexLock lock(&GetRuntime()->graph_mutex);
  if (stream.id == kLegacyStreamId) {
    // Asking does not invalidate.
    for (const Capture* capture : GetRuntime()->captures) {
      for (const Capture::Lane& lane : capture->lanes) {
        if (lane.blocking && lane.context_id == stream.context->id)
          return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
      }
    }
    return CUDA_SUCCESS;
  }
  Capture* capture = nullptr;
  const Capture::Lane* lane = FindLane(stream.id, &capture);
  if (lane == nullptr) return CUDA_SUCCESS;
  *out.status =
      capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (capture->invalidated) return CUDA_SUCCESS;
  if (out.id != nullptr) *out.id = capture->id;
  if (out.graph != nullptr) *out.graph = reinterpret_cast<CUgraph>(capture->graph_id);
  // Valid until the next call that changes them, as documented.
  if (out.dependencies != nullptr)
    *out.dependencies = reinterpret_cast<const CUgraphNode*>(lane->dependencies.data());
  if (out.count != nullptr) *out.count = lane->dependencies.size();
  return CUDA_SUCCESS;
}

static_assert(sizeof(CUgraphNode) == sizeof(uint64_t));

}  // namespace

CUresult cuStreamBeginCapture(CUstream hStream, DefaultStream default_stream) {
  return Begin(hStream, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_GLOBAL, default_stream);
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode,
                                 DefaultStream default_stream) {
  return Begin(hStream, nullptr, nullptr, 0, mode, default_stream);
}

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
                                     const CUgraphNode* dependencies, const CUgraphEdgeData*,
                                     size_t numDependencies, CUstreamCaptureMode mode,
                                     DefaultStream default_stream) {
  if (hGraph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Begin(hStream, hGraph, dependencies, numDependencies, mode, default_stream);
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph* phGraph, DefaultStream default_stream) {
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  if (phGraph != nullptr) *phGraph = nullptr;
  Runtime* runtime = GetRuntime();
  std::vector<RetainedObject> objects;
  CUresult result = CUDA_SUCCESS;
  {
    MutexLock lock(&runtime->graph_mutex);
    Capture* capture = nullptr;
    if (stream.id == kLegacyStreamId || FindLane(stream.id, &capture) == nullptr)
      return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin_id != stream.id) {
      capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
        pthread_equal(capture->thread, pthread_self()) == 0) {
      return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    Graph* graph = runtime->graphs.Find(capture->graph_id);
    if (capture->invalidated || graph == nullptr) {
      result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else if (!AllJoined(*capture, *graph)) {
      result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    if (graph != nullptr) {
      graph->capturing = false;
      if (result != CUDA_SUCCESS && capture->own_graph) {
        DestroyGraph(graph, &objects);
      } else if (result == CUDA_SUCCESS && phGraph != nullptr) {
        *phGraph = reinterpret_cast<CUgraph>(graph->id);
      }
    }
    for (size_t i = 0; i < runtime->captures.size(); ++i) {
      if (runtime->captures[i] != capture) continue;
      runtime->captures.erase(runtime->captures.begin() + i);
      break;
    }
    captures_active.fetch_sub(1, std::memory_order_relaxed);
    delete capture;
  }
  ReleaseObjects(objects);
  return result;
}

CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus* captureStatus,
                             DefaultStream default_stream) {
  return Info(hStream, {captureStatus, nullptr, nullptr, nullptr, nullptr}, default_stream);
}

CUresult cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                cuuint64_t* id_out, DefaultStream default_stream) {
  return Info(hStream, {captureStatus_out, id_out, nullptr, nullptr, nullptr}, default_stream);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                   cuuint64_t* id_out, CUgraph* graph_out,
                                   const CUgraphNode** dependencies_out,
                                   size_t* numDependencies_out, DefaultStream default_stream) {
  return Info(hStream,
              {captureStatus_out, id_out, graph_out, dependencies_out, numDependencies_out},
              default_stream);
}

// Edges carry no data here: every one is a full dependency.
CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                   cuuint64_t* id_out, CUgraph* graph_out,
                                   const CUgraphNode** dependencies_out,
                                   const CUgraphEdgeData** edgeData_out,
                                   size_t* numDependencies_out, DefaultStream default_stream) {
  if (edgeData_out != nullptr) *edgeData_out = nullptr;
  return Info(hStream,
              {captureStatus_out, id_out, graph_out, dependencies_out, numDependencies_out},
              default_stream);
}

CUresult cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode* dependencies,
                                           size_t numDependencies, unsigned int flags,
                                           DefaultStream default_stream) {
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES ||
      (numDependencies != 0 && dependencies == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->graph_mutex);
  Capture* capture = nullptr;
  Capture::Lane* lane = FindLane(stream.id, &capture);
  if (lane == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  std::vector<uint64_t> given;
  for (size_t i = 0; i < numDependencies; ++i) {
    const GraphNode* node = runtime->graph_nodes.Find(reinterpret_cast<uint64_t>(dependencies[i]));
    if (node == nullptr || node->graph_id != capture->graph_id) return CUDA_ERROR_INVALID_VALUE;
    given.push_back(node->id);
  }
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) lane->dependencies.clear();
  Join(&lane->dependencies, given);
  return CUDA_SUCCESS;
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode* dependencies,
                                              const CUgraphEdgeData*, size_t numDependencies,
                                              unsigned int flags, DefaultStream default_stream) {
  return cuStreamUpdateCaptureDependencies(hStream, dependencies, numDependencies, flags,
                                           default_stream);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
      *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ThreadState& thread = CurrentThread();
  const CUstreamCaptureMode old = thread.capture_mode;
  thread.capture_mode = *mode;
  *mode = old;
  return CUDA_SUCCESS;
}

}  // namespace calls
}  // namespace consort::guest
