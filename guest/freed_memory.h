// SPDX-License-Identifier: Apache-2.0
// guest/freed_memory.h: small blocks of device memory that the program has freed, kept for a
// moment.
//
// Programs free memory and allocate as much again, often in a loop. A block that nothing on the
// device can still use is kept here, and the next allocation of its size in its context gets it
// without asking the host, to which it was never free. Whatever does ask the host for memory, or
// how much there is, gives back first what is kept (GiveBackFreed, guest/call.h), so a program
// cannot tell. One that frees and then asks for nothing more keeps kBytesMax at most; on the device
// each block may be the last in its 2 MiB, so that kBlocksMax of those stay.
#ifndef CONSORT_GUEST_FREED_MEMORY_H_
#define CONSORT_GUEST_FREED_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "guest/mutex.h"

namespace consort::guest {

// Of one device. Thread safe.
class FreedMemory {
 public:
  static constexpr uint64_t kBytesMax = 2 * 1024 * 1024;
  static constexpr size_t kBlocksMax = 4;

  struct Block {
    uint64_t address = 0;
    uint64_t bytes = 0;  // as the program asked for
    uint64_t context_id = 0;
  };

  constexpr FreedMemory() = default;
  FreedMemory(const FreedMemory&) = delete;
  FreedMemory& operator=(const FreedMemory&) = delete;

  // False: there is no room.
  bool Keep(const Block& block);
  // The address of a block of the context that has so many bytes, which is kept no more. 0: none.
  uint64_t Take(uint64_t context_id, uint64_t bytes);
  // Any block. False: nothing is kept.
  bool TakeAny(Block* block);
  // Of a context whose memory the host has freed.
  void Forget(uint64_t context_id);

 private:
  // mutex_ held.
  void Remove(size_t index);

  Mutex mutex_;
  std::atomic<size_t> count_{0};  // written under mutex_; so that nobody locks for nothing
  uint64_t bytes_ = 0;
  Block blocks_[kBlocksMax];  // the first count_
};

}  // namespace consort::guest

#endif  // CONSORT_GUEST_FREED_MEMORY_H_
