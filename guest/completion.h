// SPDX-License-Identifier: Apache-2.0
// guest/completion.h: how far streams and events have come, seen without a round trip.
//
// A completion word is a word of shared host memory to which the device writes a number when a
// stream gets there, or all of a context (requests StreamSignal, ContextSignal); each number that
// is sent for a word is greater than the one before. A thread that waits for a short kernel so sees
// its end at once, while a reply would be two hops later; one that asks whether an event has
// completed reads a word. Whatever a word does not tell (errors, long waits, copies whose data
// crosses the channel) is asked of the host as before, so words are only ever a short cut.
//
// Words belong to contexts (one for all their streams, one for the legacy one), streams and events,
// by the index in their handles; objects beyond the table's end do without. An event gets its
// signals from the first time on that the program has asked for its state, each before the record
// that it stands for: so who knows of the record, by whatever way, finds the word written. A stream
// that gets later to an earlier record sets the word back, and then the host is asked. Made by a
// device's first use; thread safe.
#ifndef CONSORT_GUEST_COMPLETION_H_
#define CONSORT_GUEST_COMPLETION_H_

#include <cuda.h>

#include <cstdint>

#include "gen/wire/requests.h"
#include "guest/mutex.h"
#include "guest/objects.h"
#include "guest/session.h"
#include "vmsock/ring.h"
#include "vmsock/wire/frame.h"

namespace consort::guest {

// A wait for a word that lasts longer than this asks the host, which knows of errors: a reply wakes
// a sleeper some 200 us after the end, which is little then.
inline constexpr int64_t kWordWaitNanos = 50'000'000;

class Completion {
 public:
  enum class State : uint8_t {
    kPending,
    kReached,
    kReachedAfterError,  // an earlier request has failed, which a reply will tell
  };

  static constexpr uint32_t kContextWords = 32;  // and as many of their legacy streams
  static constexpr uint32_t kStreamWords = 448;
  static constexpr uint32_t kEventWords = 1536;
  static constexpr uint32_t kBulkWords = 64;  // of guest/bulk_copy.h

  // The device's, or null: the session shares no memory, or the device cannot write words.
  static Completion* Of(Device* device);

  // Words; kNone where there is none.
  static constexpr uint32_t kNone = UINT32_MAX;
  static uint32_t WordOfStream(const Context* context, uint64_t stream_id);
  static uint32_t WordOfEvent(uint64_t event_id);
  static uint32_t WordOfBulk(uint32_t index);

  // Whether words tell all that a synchronisation promises: no data of a copy may be on its way
  // through the channel, nor a host function that may send some; and no kernel of the context may
  // have printed what is to be shown then.
  static bool TellsAll(const Context* context);

  // Lets the device write the word's next number when the stream, or kAllStreams of the context,
  // gets there.
  CUresult Signal(const Context* context, uint64_t stream_id, uint32_t word, uint64_t* number);
  // The same for an event's word, with `next`, the event's record in that stream, right behind it.
  // The number is in `*number` (atomic) before anything is sent; 0 after an error.
  template <class Request>
  CUresult SignalBefore(const Context* context, uint64_t stream_id, uint32_t word,
                        const Request& next, uint64_t* number) {
    wire::StreamSignalRequest request;
    request.stream = stream_id;
    request.address = AddressOf(word);
    request.of_event = 1;
    // Numbers are sent in their order.
    MutexLock lock(&send_mutex_);
    request.number = ++issued_[word];
    __atomic_store_n(number, request.number, __ATOMIC_RELEASE);
    const CUresult result = context->device->session->PostBoth(context->wire_id, request, next);
    if (result != CUDA_SUCCESS) __atomic_store_n(number, 0, __ATOMIC_RELEASE);
    return result;
  }
  State Look(uint32_t word, uint64_t number) const {
    // Acquire: what the device did before is settled.
    const uint64_t value = __atomic_load_n(words_ + word * kStride, __ATOMIC_ACQUIRE);
    if ((value & ~wire::kSignalError) < number) return State::kPending;
    if (may_combine_) CombinedLoadsFence();
    return (value & wire::kSignalError) != 0 ? State::kReachedAfterError : State::kReached;
  }

 private:
  static constexpr uint32_t kWords = 2 * kContextWords + kStreamWords + kEventWords + kBulkWords;
  static constexpr uint32_t kStride = 8;  // a cache line each

  // `may_combine`: the words may be mapped write-combining, where acquire does not suffice.
  Completion(const uint64_t* words, bool may_combine) : words_(words), may_combine_(may_combine) {}

  uint64_t AddressOf(uint32_t word) const {
    return reinterpret_cast<uint64_t>(words_ + word * kStride);
  }

  const uint64_t* const words_;
  const bool may_combine_;
  Mutex send_mutex_;
  uint64_t issued_[kWords] = {};  // guarded by it
};

// Whether the program has said that its threads sleep while they wait for this context.
bool WaitsAsleep(const Context* context);

// Hooks of Post and Ask in guest/call.h, by the type of the request.

// Sends a request that is not part of a capture.
template <class Request>
CUresult Submit(Context* context, const Request& request) {
  return context->device->session->Post(context->wire_id, request);
}
CUresult Submit(Context* context, const wire::cuEventRecordRequest& request);
CUresult Submit(Context* context, const wire::cuEventRecordWithFlagsRequest& request);

// Before a question is sent. True: `*result` is the answer.
template <class Request>
bool AnsweredAtHome(Context*, const Request&, CUresult*) {
  return false;
}
bool AnsweredAtHome(Context* context, const wire::StreamSynchronizeRequest& request,
                    CUresult* result);
bool AnsweredAtHome(Context* context, const wire::ContextSynchronizeRequest& request,
                    CUresult* result);
bool AnsweredAtHome(Context* context, const wire::EventSynchronizeRequest& request,
                    CUresult* result);
bool AnsweredAtHome(Context* context, const wire::cuEventQueryRequest& request, CUresult* result);
bool AnsweredAtHome(Context* context, const wire::cuStreamQueryRequest& request, CUresult* result);

// After the answer CUDA_ERROR_NOT_READY. True: the events are known to have completed, so that the
// host will know in a moment.
template <class Request>
bool IsAboutToBeReady(Context*, const Request&) {
  return false;
}
bool IsAboutToBeReady(Context* context, const wire::cuEventElapsedTimeRequest& request);
bool IsAboutToBeReady(Context* context, const wire::cuEventElapsedTime_v2Request& request);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_COMPLETION_H_
