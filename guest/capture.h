// SPDX-License-Identifier: Apache-2.0
// guest/capture.h: stream capture. While a stream is captured, its calls become nodes of a graph
// instead of requests.
//
//   active       BeginCapture .. EndCapture of the stream where it began
//   invalidated  a call was made that cannot be part of it; EndCapture says so and ends it
//
// A capture spreads to the streams that wait for an event recorded in it, and all of them must be
// joined again before its end. State is guarded by Runtime::graph_mutex; what every call looks at
// while nothing is captured is one counter. Source: CUDA Driver API, Stream Management; CUDA C++
// Programming Guide, Creating a Graph Using Stream Capture.
#ifndef CONSORT_GUEST_CAPTURE_H_
#define CONSORT_GUEST_CAPTURE_H_

#include <cuda.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "gen/wire/requests.h"
#include "guest/graph.h"

namespace consort::guest {

struct Capture {
  struct Lane {
    uint64_t stream_id = 0;
    uint64_t context_id = 0;
    bool blocking = false;
    std::vector<uint64_t> dependencies;  // what the stream's next node follows
  };
  struct Mark {
    uint64_t event_id = 0;
    std::vector<uint64_t> dependencies;
  };
  uint64_t id = 0;
  uint64_t graph_id = 0;
  bool own_graph = true;  // made for this capture
  size_t first_node = 0;  // of the graph's nodes, those from here on are the capture's
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  pthread_t thread = {};
  uint64_t origin_id = 0;  // the stream where it began
  bool invalidated = false;
  std::vector<Lane> lanes;
  std::vector<Mark> marks;
};

// Captures that have begun and not ended. Written under graph_mutex; a thread sees those of its
// own.
extern std::atomic<uint32_t> captures_active;

inline bool MaybeCapturing() { return captures_active.load(std::memory_order_relaxed) != 0; }

// Makes `work` a node if the stream is captured, and says so in `*captured`. An error: the call is
// over with it.
CUresult CaptureWork(const Context* context, uint64_t stream_id, GraphWork* work, bool* captured);
// Before a call that cannot be part of a capture, such as waiting for the stream.
CUresult RefuseInCapture(const Context* context, uint64_t stream_id);
// Before a call that allocates without a stream. Source: Programming Guide, Prohibited and
// Unhandled Operations.
CUresult RefuseUnsafeCall();

// Hooks of Post and Ask in guest/call.h: by the type of the request.
template <class Request>
CUresult CaptureRequest(Context*, const Request&, bool*) {
  return CUDA_SUCCESS;
}
CUresult CaptureRequest(Context* context, const wire::cuMemsetD8AsyncRequest& request, bool* done);
CUresult CaptureRequest(Context* context, const wire::cuMemsetD16AsyncRequest& request, bool* done);
CUresult CaptureRequest(Context* context, const wire::cuMemsetD32AsyncRequest& request, bool* done);
CUresult CaptureRequest(Context* context, const wire::cuMemsetD2D8AsyncRequest& request,
                        bool* done);
CUresult CaptureRequest(Context* context, const wire::cuMemsetD2D16AsyncRequest& request,
                        bool* done);
CUresult CaptureRequest(Context* context, const wire::cuMemsetD2D32AsyncRequest& request,
                        bool* done);
CUresult CaptureRequest(Context* context, const wire::cuStreamWriteValue32_v2Request& request,
                        bool* done);
CUresult CaptureRequest(Context* context, const wire::cuStreamWriteValue64_v2Request& request,
                        bool* done);
CUresult CaptureRequest(Context* context, const wire::cuStreamWaitValue32_v2Request& request,
                        bool* done);
CUresult CaptureRequest(Context* context, const wire::cuStreamWaitValue64_v2Request& request,
                        bool* done);
CUresult CaptureRequest(Context* context, const wire::cuEventRecordRequest& request, bool* done);
CUresult CaptureRequest(Context* context, const wire::cuEventRecordWithFlagsRequest& request,
                        bool* done);
CUresult CaptureRequest(Context* context, const wire::cuStreamWaitEventRequest& request,
                        bool* done);
CUresult CaptureRequest(Context* context, const wire::StreamDestroyRequest& request, bool* done);
// Requests with a reply are never captured, only refused.
CUresult CaptureRequest(Context* context, const wire::StreamSynchronizeRequest& request,
                        bool* done);
CUresult CaptureRequest(Context* context, const wire::cuStreamQueryRequest& request, bool* done);
CUresult CaptureRequest(Context* context, const wire::ContextSynchronizeRequest& request,
                        bool* done);
CUresult CaptureRequest(Context* context, const wire::EventSynchronizeRequest& request, bool* done);
CUresult CaptureRequest(Context* context, const wire::cuEventQueryRequest& request, bool* done);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_CAPTURE_H_
