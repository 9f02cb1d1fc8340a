// SPDX-License-Identifier: Apache-2.0
// guest/thread_state.h: what this library keeps for each thread of the program.
#ifndef CONSORT_GUEST_THREAD_STATE_H_
#define CONSORT_GUEST_THREAD_STATE_H_

#include <cuda.h>

#include <cstdint>
#include <vector>

namespace consort::guest {

class Session;
struct ReplySlot;

struct ThreadState {
  struct Slot {
    Session* session;
    ReplySlot* slot;
    uint32_t call;
  };
  struct PerThreadStream {
    uint64_t context_id;
    uint64_t stream_id;
  };

  // Context ids, the current one last; 0 stands for a pushed NULL.
  std::vector<uint64_t> contexts;
  std::vector<Slot> slots;
  // The per-thread default streams that this thread has used.
  std::vector<PerThreadStream> streams;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  bool service = false;  // this is a session's service thread
};

// The calling thread's state; made at its first call and freed when it ends, its reply slots and
// streams with it.
ThreadState& CurrentThread();

}  // namespace consort::guest

#endif  // CONSORT_GUEST_THREAD_STATE_H_
