// SPDX-License-Identifier: Apache-2.0
// guest/call.h: what the body of a call is made of: from the program's handles and pointers to ids
// and checked ranges, and from a request to a frame. Used by generated and hand-written bodies
// alike.
#ifndef CONSORT_GUEST_CALL_H_
#define CONSORT_GUEST_CALL_H_

#include <cuda.h>

#include <cstdint>

#include "guest/capture.h"
#include "guest/completion.h"
#include "guest/default_stream.h"
#include "guest/objects.h"
#include "guest/runtime.h"
#include "guest/session.h"

namespace consort::guest {

// Wire ids of a context's legacy default stream; see FindStream.
inline constexpr uint64_t kLegacyStreamId = 1;

struct StreamRef {
  Context* context = nullptr;
  uint64_t id = 0;  // on the wire: kLegacyStreamId or the stream's handle
  uint64_t green_id = 0;
  uint32_t flags = 0;
  int priority = 0;
  CUstream handle = nullptr;  // what the program would call it: CU_STREAM_LEGACY for the default
};

struct EventRef {
  Context* context = nullptr;
  uint64_t id = 0;
};

// The calling thread's current context, whose session is open.
// A green one counts as its device's primary one, whose objects it makes.
// CUDA_ERROR_INVALID_CONTEXT: none. CUDA_ERROR_CONTEXT_IS_DESTROYED: it was destroyed, or is a
// primary one that was reset or released. Else what has broken the device (Session::failure).
CUresult CurrentContext(Context** context);
// The same, where a green context is not taken for its primary one.
CUresult CurrentOrGreenContext(Context** context);
// The context behind a handle, whatever its state; null handle: the current one. Errors as above,
// but for the last.
CUresult FindContext(CUcontext handle, Context** context);
// The same, where a green one counts as its primary one.
CUresult FindHome(CUcontext handle, Context** context);

// The stream that `handle` means; NULL is `default_stream`'s, 1 and 2 are CU_STREAM_LEGACY and
// CU_STREAM_PER_THREAD. The per-thread stream is made at its first use. Errors of the device as in
// CurrentContext; likewise below.
CUresult FindStream(CUstream handle, DefaultStream default_stream, StreamRef* ref);
CUresult FindEvent(CUevent handle, EventRef* ref);
// Makes a stream of the context, and of its green one if `green_id` is not 0.
CUresult CreateStream(Context* context, uint64_t green_id, uint32_t flags, int priority,
                      CUstream* stream);
CUresult FindKernel(CUfunction handle, Kernel** kernel);

// CUDA_ERROR_INVALID_VALUE unless [address, address + bytes) lies in one range that the device
// reaches by address and `address` is a multiple of `alignment`. Zero bytes are always fine.
CUresult CheckDeviceRange(Context* context, CUdeviceptr address, uint64_t bytes,
                          uint64_t alignment);

// Puts `function(argument)` into the stream; see Session::AddHostFunction. With an error the
// function will not be called.
CUresult EnqueueHostFunction(const StreamRef& stream, void (*function)(void*), void* argument,
                             Session::AfterFailure after);

// The device in whose window the address lies; null: none.
Device* DeviceOfAddress(uint64_t address);

// Frees on the host what the device's FreedMemory keeps. Before a request that takes memory of the
// device, or counts it.
void GiveBackFreed(Device* device);

// Waits for all work of the process on the device, whatever the context.
CUresult SynchroniseDevice(const Device* device);

// Waits for copies to the device whose calls have returned as if they were done
// (CopyToDevice.precedes): once others than the session's own work may look. For nothing else.
CUresult AwaitGoneAhead(const Device* device);

// Whether objects of both contexts are known to one worker.
bool SameSession(const Context* a, const Context* b);
// Lets the stream go on after the latest record of another device's event, whose worker it does not
// know: by waiting for that here.
CUresult WaitForOtherDevice(const StreamRef& stream, const EventRef& event);
// Records an event that is of another context than the stream: one of another process and device
// that the stream's context has opened, when what is in the stream so far has been waited for here.
// CUDA_ERROR_INVALID_HANDLE: any other.
CUresult RecordForOtherDevice(const StreamRef& stream, const EventRef& event);
// Notes that `call` was asked about objects of two devices, and says CUDA_ERROR_NOT_SUPPORTED.
CUresult AcrossDevices(const char* call);

// Whether kernels that were launched in the context may have printed what was not shown yet.
inline bool MayHavePrinted(const Context* context) {
  return context->printing_launches.load(std::memory_order_relaxed) !=
         context->printing_shown.load(std::memory_order_relaxed);
}

// Requests after whose reply all work of a stream, or of a context, has finished that was submitted
// before.
template <class Request>
inline constexpr bool kSynchronises = false;
template <>
inline constexpr bool kSynchronises<wire::StreamSynchronizeRequest> = true;
template <>
inline constexpr bool kSynchronises<wire::ContextSynchronizeRequest> = true;
// Memory pools give back what they hold too much of; a stream is known to be quiet. `before`: what
// had been sent when the call began.
void AfterSynchronise(Context* context, const wire::StreamSynchronizeRequest& request,
                      const Session::Sent& before);
void AfterSynchronise(Context* context, const wire::ContextSynchronizeRequest& request,
                      const Session::Sent& before);

// Requests that make the latest record of `hEvent`, or wait for it.
template <class Request>
inline constexpr bool kIsOfRecord = false;
template <>
inline constexpr bool kIsOfRecord<wire::cuEventRecordRequest> = true;
template <>
inline constexpr bool kIsOfRecord<wire::cuEventRecordWithFlagsRequest> = true;
template <>
inline constexpr bool kIsOfRecord<wire::cuStreamWaitEventRequest> = true;
// If the event is one of several processes: returns once the host has what was sent of it, since
// the others, whom the program may tell of it now, have sessions of their own.
CUresult SettleRecord(Context* context, uint64_t event_id);

template <class Request>
CUresult Post(Context* context, const Request& request) {
  bool captured = false;
  if (CUresult result = CaptureRequest(context, request, &captured);
      result != CUDA_SUCCESS || captured) {
    return result;
  }
  const CUresult result = Submit(context, request);
  if constexpr (kIsOfRecord<Request>) {
    if (result == CUDA_SUCCESS) return SettleRecord(context, request.hEvent);
  }
  return result;
}

template <class Request>
CUresult Ask(Context* context, const Request& request, typename Request::Reply* reply) {
  bool captured = false;  // never true of a request with a reply
  CUresult result = CaptureRequest(context, request, &captured);
  if (result != CUDA_SUCCESS) return result;
  const Session::Sent before = context->device->session->sent();
  if (!AnsweredAtHome(context, request, &result)) {
    do {
      result = context->device->session->Ask(context->wire_id, request, reply);
    } while (result == CUDA_ERROR_NOT_READY && IsAboutToBeReady(context, request));
  }
  if constexpr (kSynchronises<Request>) {
    if (result == CUDA_SUCCESS) AfterSynchronise(context, request, before);
  }
  return result;
}

inline CUcontext ToHandle(const Context* context) {
  return reinterpret_cast<CUcontext>(context->id);
}

}  // namespace consort::guest

#endif  // CONSORT_GUEST_CALL_H_
