// SPDX-License-Identifier: Apache-2.0
// vmsock/held_frames.h: which received frames are still in use, so that their memory is reused in
// order.
//
// A queue of at most kHeldFramesMax frames, each with the position in the byte stream where it
// ends. Frames are released in any order; the end of the last frame before which all are released
// is where the peer may write up to. Thread compatible: belongs to the receiver. Needs no library.
#ifndef CONSORT_VMSOCK_HELD_FRAMES_H_
#define CONSORT_VMSOCK_HELD_FRAMES_H_

#include <cstdint>

#include "vmsock/limits.h"

namespace consort {

class HeldFrames {
 public:
  bool full() const { return next_ - first_ == kHeldFramesMax; }
  bool empty() const { return next_ == first_; }
  // All bytes before this position are free.
  uint64_t released_end() const { return released_end_; }

  // Notes a frame that ends at `end`; not full(). The result is its token.
  uint64_t Add(uint64_t end) {
    if (full()) __builtin_trap();
    entries_[next_ % kHeldFramesMax] = {end, false};
    return next_++;
  }

  // True if released_end() advanced. A token that is not held is a bug of ours and traps.
  bool Release(uint64_t token) {
    if (token - first_ >= next_ - first_ || entries_[token % kHeldFramesMax].released) {
      __builtin_trap();
    }
    entries_[token % kHeldFramesMax].released = true;
    if (token != first_) return false;
    while (first_ != next_ && entries_[first_ % kHeldFramesMax].released) {
      released_end_ = entries_[first_ % kHeldFramesMax].end;
      ++first_;
    }
    return true;
  }

  // Those that are held are not any more, and positions go on at released_end(). False: one behind
  // a held one was released, and nothing has changed.
  bool Forget() {
    for (uint64_t token = first_; token != next_; ++token) {
      if (entries_[token % kHeldFramesMax].released) return false;
    }
    next_ = first_;
    return true;
  }

  // Positions go on at `position`; empty() only.
  void StartAt(uint64_t position) {
    if (!empty()) __builtin_trap();
    released_end_ = position;
  }

 private:
  struct Entry {
    uint64_t end;
    bool released;
  };
  Entry entries_[kHeldFramesMax];
  uint64_t first_ = 0;
  uint64_t next_ = 0;
  uint64_t released_end_ = 0;
};

}  // namespace consort

#endif  // CONSORT_VMSOCK_HELD_FRAMES_H_
