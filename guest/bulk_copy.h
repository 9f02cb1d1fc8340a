// SPDX-License-Identifier: Apache-2.0
// guest/bulk_copy.h: copies between the program's own memory and the device, where the
// session shares memory with the host.
//
//   program's memory  ◄─ several threads ─►  slots of shared host memory  ◄─ the device ─►  device
//
// One CPU copies at a fraction of what the bus takes, so a few threads share the work; they live
// only as long as one copy. The device reaches a slot by its address, so nothing of the data
// crosses the channel. After each slot's copy the device writes its completion word
// (guest/completion.h), by which the threads see without a round trip that the slot may be used.
// Made by a session's first such copy. One copy at a time; whoever finds it in use goes the
// ordinary way, so that no copy waits for another one's stream.
#ifndef CONSORT_GUEST_BULK_COPY_H_
#define CONSORT_GUEST_BULK_COPY_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "guest/call.h"
#include "guest/completion.h"
#include "guest/mutex.h"

namespace consort::guest {

// Shorter copies to the device cost less as frames, which need no answer (H200). To the host all go
// this way: a word is seen sooner than a frame.
inline constexpr uint64_t kBulkToDeviceBytesMin = 2 << 20;

class BulkCopy {
 public:
  // Copies `bytes` contiguous bytes to device address `to`, in stream order; returns when `from`
  // has been read. False: nothing was done, the copy goes another way. `*result`: of the session.
  static bool ToDevice(const StreamRef& stream, uint64_t to, const std::byte* from, uint64_t bytes,
                       CUresult* result);
  // Copies from device address `from`, in stream order; returns when the bytes are at `to` and the
  // stream has nothing left to do, with the error of earlier work if there is one.
  static bool ToHost(const StreamRef& stream, std::byte* to, uint64_t from, uint64_t bytes,
                     CUresult* result);

 private:
  static constexpr uint64_t kSlotBytes = 1 << 20;
  static constexpr uint64_t kPieceBytesMin = 128 << 10;
  static constexpr uint32_t kSlots = 24;
  // Copies that go without a further slot where there was no memory for one: asking is a round
  // trip.
  static constexpr uint32_t kCopiesBetweenAsks = 1000;

  struct Slot {
    std::byte* memory = nullptr;  // null until first needed
    uint32_t word = 0;            // its completion word
    uint64_t submitted = 0;       // what that shows after the last copy that was submitted
  };
  struct Job;

  BulkCopy(Session* session, Completion* completion) : session_(session), completion_(completion) {}
  // The session's, held by the caller from now on, with slots that the device has done with at
  // `usable`, as many as `pieces` where there are; null if it is in use or has too few.
  static BulkCopy* Take(const StreamRef& stream, uint64_t pieces);
  // Runs `body(job)` on this thread and some others, and ends the copy.
  void Run(Job* job, void (*body)(void*));

  Session* const session_;
  Completion* const completion_;
  Mutex mutex_;  // one copy at a time; guards what follows
  Slot slots_[kSlots];
  uint32_t usable_[kSlots];
  uint32_t usable_count_ = 0;
  uint32_t asks_after_ = 0;  // copies, for another slot
};

}  // namespace consort::guest

#endif  // CONSORT_GUEST_BULK_COPY_H_
