// SPDX-License-Identifier: Apache-2.0
#include "guest/completion.h"

#include "guest/call.h"
#include "guest/patience.h"
#include "guest/runtime.h"
#include "guest/shared_memory.h"

namespace consort::guest {
namespace {

// Every so many queries in a row that find nothing, the host is asked: it knows of errors.
constexpr uint32_t kQueriesBetweenAsks = 16;

uint32_t IndexOf(uint64_t handle) { return static_cast<uint32_t>(handle); }

// Whether the word shows the number in time, and no error beside it.
bool Await(Session* session, const Completion& completion, uint32_t word, uint64_t number,
           bool asleep) {
  for (Patience patience(asleep); patience.waited() < kWordWaitNanos; patience.Pause()) {
    const Completion::State state = completion.Look(word, number);
    if (state != Completion::State::kPending) return state == Completion::State::kReached;
    if (!patience.naps()) continue;
    session->HelpReceive();  // the device may have failed meanwhile
    if (session->failure() != CUDA_SUCCESS) return false;
  }
  return false;
}

// As AnsweredAtHome, of the wait for one stream, or for kAllStreams.
bool AwaitStream(Context* context, uint64_t stream_id, CUresult* result) {
  Session* session = context->device->session;
  if (!Completion::TellsAll(context)) return false;
  // Programs wait for a stream after copies that waited already.
  if (session->IsIdle(context->wire_id, stream_id)) {
    session->HelpReceive();  // the device may have failed meanwhile
    *result = session->failure();
    return true;
  }
  Completion* completion = Completion::Of(context->device);
  const uint32_t word = Completion::WordOfStream(context, stream_id);
  if (completion == nullptr || word == Completion::kNone) return false;
  uint64_t number = 0;
  *result = completion->Signal(context, stream_id, word, &number);
  return *result != CUDA_SUCCESS || Await(session, *completion, word, number, WaitsAsleep(context));
}

// Whether records of the event get a signal each.
bool IsSignalled(const Event* event) {
  return event != nullptr && __atomic_load_n(&event->polled, __ATOMIC_RELAXED) &&
         // Others record it too: only the host knows of the latest record.
         (event->flags & CU_EVENT_INTERPROCESS) == 0;
}

template <class Request>
CUresult SubmitRecord(Context* context, const Request& request) {
  Event* event = GetRuntime()->events.Find(request.hEvent);
  if (!IsSignalled(event)) return context->device->session->Post(context->wire_id, request);
  __atomic_store_n(&event->queries, 0, __ATOMIC_RELAXED);
  Completion* completion = Completion::Of(context->device);
  const uint32_t word = Completion::WordOfEvent(request.hEvent);
  if (completion != nullptr && word != Completion::kNone) {
    return completion->SignalBefore(context, request.hStream, word, request, &event->signal);
  }
  // What was signalled before says nothing of this record.
  __atomic_store_n(&event->signal, 0, __ATOMIC_RELEASE);
  return context->device->session->Post(context->wire_id, request);
}

// By its word, or else as the host says.
bool HasCompleted(Context* context, uint64_t event_id) {
  const Event* event = GetRuntime()->events.Find(event_id);
  if (event == nullptr) return false;
  const uint64_t number = __atomic_load_n(&event->signal, __ATOMIC_ACQUIRE);
  if (number != 0) {
    return Completion::Of(context->device)->Look(Completion::WordOfEvent(event_id), number) ==
           Completion::State::kReached;
  }
  wire::cuEventQueryRequest request;
  wire::EmptyReply reply;
  request.hEvent = event_id;
  return context->device->session->Ask(context->wire_id, request, &reply) == CUDA_SUCCESS;
}

}  // namespace

Completion* Completion::Of(Device* device) {
  Completion* made = device->completion.load(std::memory_order_acquire);
  if (made != nullptr) return made;
  Session* session = device->session;
  if (!session->shares_memory() || device->no_completion.load(std::memory_order_relaxed) ||
      device->snapshot.attributes[CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS] == 0) {
    return nullptr;
  }
  uint64_t address = 0;
  constexpr uint64_t kBytes = uint64_t{kWords} * kStride * sizeof(uint64_t);
  if (AllocateOwnMemory(session, kBytes, &address) != CUDA_SUCCESS) {
    // Not asked for at each wait: a virtual machine's shared memory may be full for long.
    device->no_completion.store(true, std::memory_order_relaxed);
    return nullptr;
  }
  auto* fresh = new Completion(reinterpret_cast<const uint64_t*>(address), session->in_vm_memory());
  if (device->completion.compare_exchange_strong(made, fresh, std::memory_order_acq_rel))
    return fresh;
  delete fresh;
  FreeSharedMemory(session, address, kBytes);
  return made;
}

bool Completion::TellsAll(const Context* context) {
  Session* session = context->device->session;
  return !MayHavePrinted(context) && !session->TransfersOutstanding() &&
         !session->HostFunctionsOutstanding();
}

uint32_t Completion::WordOfStream(const Context* context, uint64_t stream_id) {
  if (stream_id == kAllStreams || stream_id == kLegacyStreamId) {
    const uint32_t index = IndexOf(context->id);
    if (index >= kContextWords) return kNone;
    return stream_id == kAllStreams ? index : kContextWords + index;
  }
  const uint32_t index = IndexOf(stream_id);
  return index < kStreamWords ? 2 * kContextWords + index : kNone;
}

uint32_t Completion::WordOfEvent(uint64_t event_id) {
  const uint32_t index = IndexOf(event_id);
  return index < kEventWords ? 2 * kContextWords + kStreamWords + index : kNone;
}

uint32_t Completion::WordOfBulk(uint32_t index) {
  return 2 * kContextWords + kStreamWords + kEventWords + index;
}

bool WaitsAsleep(const Context* context) {
  const unsigned flags = context->flags.load(std::memory_order_relaxed);
  return (flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC;
}

CUresult Completion::Signal(const Context* context, uint64_t stream_id, uint32_t word,
                            uint64_t* number) {
  // Numbers are sent in their order.
  MutexLock lock(&send_mutex_);
  *number = ++issued_[word];
  const auto signal = [&](auto request) {
    request.address = AddressOf(word);
    request.number = *number;
    return context->device->session->Post(context->wire_id, request);
  };
  if (stream_id == kAllStreams) return signal(wire::ContextSignalRequest());
  wire::StreamSignalRequest request;
  request.stream = stream_id;
  return signal(request);
}

CUresult Submit(Context* context, const wire::cuEventRecordRequest& request) {
  return SubmitRecord(context, request);
}

CUresult Submit(Context* context, const wire::cuEventRecordWithFlagsRequest& request) {
  return SubmitRecord(context, request);
}

bool IsAboutToBeReady(Context* context, const wire::cuEventElapsedTimeRequest& request) {
  return HasCompleted(context, request.hStart) && HasCompleted(context, request.hEnd);
}

bool IsAboutToBeReady(Context* context, const wire::cuEventElapsedTime_v2Request& request) {
  return HasCompleted(context, request.hStart) && HasCompleted(context, request.hEnd);
}

bool AnsweredAtHome(Context* context, const wire::StreamSynchronizeRequest& request,
                    CUresult* result) {
  return AwaitStream(context, request.stream, result);
}

bool AnsweredAtHome(Context* context, const wire::ContextSynchronizeRequest&, CUresult* result) {
  return AwaitStream(context, kAllStreams, result);
}

bool AnsweredAtHome(Context* context, const wire::EventSynchronizeRequest& request,
                    CUresult* result) {
  const Event* event = GetRuntime()->events.Find(request.event);
  const uint64_t number = event != nullptr ? __atomic_load_n(&event->signal, __ATOMIC_ACQUIRE) : 0;
  if (number == 0 || !Completion::TellsAll(context)) return false;
  *result = CUDA_SUCCESS;
  const bool asleep = WaitsAsleep(context) || (event->flags & CU_EVENT_BLOCKING_SYNC) != 0;
  return Await(context->device->session, *Completion::Of(context->device),
               Completion::WordOfEvent(request.event), number, asleep);
}

bool AnsweredAtHome(Context* context, const wire::cuStreamQueryRequest& request, CUresult* result) {
  // What has gone ahead is done, as far as the program knows.
  return context->device->session->HasGoneAhead(context->wire_id, request.hStream) &&
         AwaitStream(context, request.hStream, result);
}

bool AnsweredAtHome(Context* context, const wire::cuEventQueryRequest& request, CUresult* result) {
  Event* event = GetRuntime()->events.Find(request.hEvent);
  if (event == nullptr) return false;
  __atomic_store_n(&event->polled, true, __ATOMIC_RELAXED);
  const uint64_t number = __atomic_load_n(&event->signal, __ATOMIC_ACQUIRE);
  if (number == 0) return false;
  switch (Completion::Of(context->device)->Look(Completion::WordOfEvent(request.hEvent), number)) {
    case Completion::State::kReached:
      *result = CUDA_SUCCESS;
      return Completion::TellsAll(context);
    case Completion::State::kReachedAfterError:
      return false;
    case Completion::State::kPending:
      *result = CUDA_ERROR_NOT_READY;
      return __atomic_add_fetch(&event->queries, 1, __ATOMIC_RELAXED) % kQueriesBetweenAsks != 0;
  }
  __builtin_unreachable();
}

}  // namespace consort::guest
