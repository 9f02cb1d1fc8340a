// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/event_api.cc: events.
#include <utility>

#include "device/cpu/driver/device_pace.h"
#include "device/cpu/driver/state.h"

namespace consort::cpu {
namespace {

constexpr unsigned int kEventFlagsKnown =
    CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

// Runs body(state, event), unless the event's context has failed.
template <typename Body>
CUresult WithEvent(CUevent handle, Body&& body) {
  return WithState([&](State& state) {
    const std::shared_ptr<Event> event = state.events.Find(handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult error = event->context()->error(); error != CUDA_SUCCESS) return error;
    return body(state, event);
  });
}

CUresult RecordEvent(CUevent handle, CUstream stream_handle) {
  return WithStream(stream_handle, [&](State& state, const std::shared_ptr<Stream>& stream) {
    const std::shared_ptr<Event> event = state.events.Find(handle);
    if (event == nullptr || event->context() != stream->context()) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (stream->capture().graph != nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    auto record = std::make_shared<EventRecord>();
    event->set_record(record);
    stream->context()->Submit(stream, [record = std::move(record)](CUresult) {
      // Also after an error: somebody may be waiting.
      record->time = MonotonicNow();
      record->reached.Notify();
    });
    return CUDA_SUCCESS;
  });
}

CUresult ElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return WithEvent(start, [&](State&, const std::shared_ptr<Event>& first) {
    return WithEvent(end, [&](State&, const std::shared_ptr<Event>& second) {
      // Driver 580 takes a missing output for a bad handle.
      if (milliseconds == nullptr) return CUDA_ERROR_INVALID_HANDLE;
      if (!first->timed() || !second->timed()) return CUDA_ERROR_INVALID_HANDLE;
      const auto first_record = first->record();
      const auto second_record = second->record();
      if (first_record == nullptr || second_record == nullptr) return CUDA_ERROR_INVALID_HANDLE;
      if (!first_record->reached.HasBeenNotified() || !second_record->reached.HasBeenNotified()) {
        return CUDA_ERROR_NOT_READY;
      }
      const Nanos elapsed = second_record->time - first_record->time;
      *milliseconds = static_cast<float>(static_cast<double>(elapsed) / kMillisecond);
      return CUDA_SUCCESS;
    });
  });
}

}  // namespace

}  // namespace consort::cpu

using namespace consort::cpu;  // the entry points are global: their prototypes are cuda.h's

extern "C" {

CUresult CUDAAPI cuEventCreate(CUevent* phEvent, unsigned int Flags) {
  return WithContext([&](State& state, const std::shared_ptr<Context>& context) {
    if (phEvent == nullptr || (Flags & ~kEventFlagsKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((Flags & CU_EVENT_INTERPROCESS) != 0) {
      return (Flags & CU_EVENT_DISABLE_TIMING) != 0 ? CUDA_ERROR_NOT_SUPPORTED
                                                    : CUDA_ERROR_INVALID_VALUE;
    }
    *phEvent = state.events.Insert(std::make_shared<Event>(context, Flags));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuEventDestroy_v2(CUevent hEvent) {
  return WithState([&](State& state) {
    const std::shared_ptr<Event> event = state.events.Remove(hEvent);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return event->context()->error();
  });
}

CUresult CUDAAPI cuEventRecord(CUevent hEvent, CUstream hStream) {
  return RecordEvent(hEvent, hStream);
}

CUresult CUDAAPI cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
  // CU_EVENT_RECORD_EXTERNAL is for streams under capture, where this driver records none.
  if (flags != CU_EVENT_RECORD_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  return RecordEvent(hEvent, hStream);
}

CUresult CUDAAPI cuEventQuery(CUevent hEvent) {
  return WithEvent(hEvent, [](State&, const std::shared_ptr<Event>& event) {
    const std::shared_ptr<EventRecord> record = event->record();
    if (record == nullptr) return CUDA_SUCCESS;
    if (!record->reached.HasBeenNotified()) return CUDA_ERROR_NOT_READY;
    // What was before it may have failed since WithEvent looked.
    return event->context()->error();
  });
}

CUresult CUDAAPI cuEventSynchronize(CUevent hEvent) {
  return WithEvent(hEvent, [](State&, const std::shared_ptr<Event>& event) {
    const std::shared_ptr<EventRecord> record = event->record();
    if (record != nullptr) record->reached.WaitForNotification();
    return event->context()->error();
  });
}

CUresult CUDAAPI cuEventElapsedTime(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  return ElapsedTime(pMilliseconds, hStart, hEnd);
}

CUresult CUDAAPI cuEventElapsedTime_v2(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  return ElapsedTime(pMilliseconds, hStart, hEnd);
}

}  // extern "C"
