// SPDX-License-Identifier: Apache-2.0
// vmsock/ring.h: frames from one producer to one consumer through memory that both map.
//
// Two such rings and their doorbells make a channel (ring_channel.h). The memory of a ring:
//
//   head   u64, on a cache line of its own: bytes ever written; only the producer stores it
//   tail   u64, on a cache line of its own: bytes ever released; only the consumer stores it, in
//          steps of capacity / 64 while it knows of frames that it has not received
//   data   `capacity` bytes, a power of two; position p lies at data[p % capacity]
//
//   data:  | free | frame | frame | ... | frame | W unused | frame | free |
//                  ^ tail                       ^ wrap     ^ position 0 of the next lap      ^ head
//
// A frame is contiguous and 8-aligned. Where the next one would not fit before the end, the
// producer puts a wrap marker W (a u64 of 0: no frame has `bytes` 0) and goes on at data[0]; marker
// and frame are published together. It does the same behind kRingLapBytes if all that it wrote is
// released, so that a consumer that keeps up uses the same few pages again and again: a new page
// costs both sides a fault, and the processors' caches a refill. Neither index wraps: 2^64 bytes
// take a century at 5 GB/s.
//
// The other side is not trusted. Each side keeps its own index in private memory and treats what it
// reads of the other's as a claim: a claim outside of what is possible is kProtocol, a possible lie
// hurts only who tells it. The consumer copies a header out once and checks the copy; all it hands
// up lies within data, and it looks at no more than one marker and one header a call.
//
// Thread compatible, each class owned by one side's sender or receiver, except what says "any
// thread". Needs no library.
#ifndef CONSORT_VMSOCK_RING_H_
#define CONSORT_VMSOCK_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "vmsock/channel.h"
#include "vmsock/held_frames.h"
#include "vmsock/limits.h"
#include "vmsock/prefetch.h"
#include "vmsock/wire/frame.h"

namespace consort {

// The indexes are shared between processes: only lock-free atomics work there.
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8);
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

// Orders stores (loads) of memory that is mapped write-combining, where the processor's own order
// and with it release (acquire) does not hold. Source: Intel SDM volume 3, "Methods of Caching
// Available".
inline void CombinedStoresFence() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}
inline void CombinedLoadsFence() {
#if defined(__x86_64__)
  __builtin_ia32_lfence();
#endif
}

// Where a ring lies; borrowed.
struct RingView {
  std::atomic<uint64_t>* head = nullptr;
  std::atomic<uint64_t>* tail = nullptr;
  std::byte* data = nullptr;     // 8-aligned
  uint64_t capacity = 0;         // power of two, >= 64
  bool write_combining = false;  // this side's mapping
};

// Bytes that a frame of `bytes` takes when the head is at `head`: itself, and the rest before the
// end if it does not fit there.
constexpr uint64_t RingBytesTaken(uint64_t head, uint64_t capacity, uint64_t bytes) {
  const uint64_t to_end = capacity - (head & (capacity - 1));
  return bytes <= to_end ? bytes : to_end + bytes;
}

// Whether a frame of `bytes` fits between `head` and `tail`. Impossible indexes do not fit.
constexpr bool RingHasRoom(uint64_t head, uint64_t tail, uint64_t capacity, uint64_t bytes) {
  return head - tail <= capacity &&
         RingBytesTaken(head, capacity, bytes) <= capacity - (head - tail);
}

class RingProducer {
 public:
  explicit RingProducer(const RingView& ring) : ring_(ring) {}
  RingProducer(const RingProducer&) = delete;
  RingProducer& operator=(const RingProducer&) = delete;

  // Room for one frame of `bytes` (multiple of 8, 16..capacity / 2), or null: full, or corrupt().
  std::byte* TryReserve(uint32_t bytes) {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    const uint64_t offset = head & (ring_.capacity - 1);
    uint64_t taken = RingBytesTaken(head, ring_.capacity, bytes);
    // A frame that is larger than what lies before it would not fit behind the end of the lap.
    // Memory that is mapped write-combining is not cached: to look costs more there than it gains.
    const bool may_end_lap = offset >= kRingLapBytes && bytes <= offset && !ring_.write_combining;
    if (may_end_lap || taken > ring_.capacity - (head - tail_)) {
      // Partner: the consumer's store in Release. Acquire: it has done reading what we overwrite.
      const uint64_t tail = ring_.tail->load(std::memory_order_acquire);
      if (head - tail > head - tail_) {
        corrupt_ = true;
        return nullptr;
      }
      tail_ = tail;
      if (may_end_lap && tail == head) taken = ring_.capacity - offset + bytes;
      if (taken > ring_.capacity - (head - tail_)) return nullptr;
    }
    reserved_ = taken;
    if (taken == bytes) return ring_.data + offset;
    const uint64_t marker = 0;
    std::memcpy(ring_.data + offset, &marker, sizeof(marker));
    return ring_.data;
  }

  // Makes the reserved frame visible to a consumer that looks.
  void Commit() {
    const uint64_t head = head_.load(std::memory_order_relaxed) + reserved_;
    reserved_ = 0;
    head_.store(head, std::memory_order_relaxed);
    if (ring_.write_combining) CombinedStoresFence();
    // Partner: the load in RingConsumer::TryReceive. Release: the frame's bytes come first.
    ring_.head->store(head, std::memory_order_release);
  }

  // The store of a Dekker pair: stores the head again, before a seq_cst load of the flag with which
  // the consumer says that it sleeps. Partner: RingConsumer::Readable. (Sequentially consistent
  // accesses rather than fences: the thread sanitizer does not know fences.)
  void Publish() {
    ring_.head->store(head_.load(std::memory_order_relaxed), std::memory_order_seq_cst);
  }

  // Whether TryReserve would give room or report corruption. The load of a Dekker pair, after the
  // store of our flag; partner: the consumer's store in Release. Any thread.
  bool Writable(uint32_t bytes) const {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    const uint64_t tail = ring_.tail->load(std::memory_order_seq_cst);
    return head - tail > ring_.capacity || RingHasRoom(head, tail, ring_.capacity, bytes);
  }

  // All before it was committed.
  uint64_t position() const { return head_.load(std::memory_order_relaxed); }
  // Goes on at the position of another producer of this ring; before any other use. False: the
  // consumer's index cannot belong to it.
  bool StartAt(uint64_t position) {
    const uint64_t tail = ring_.tail->load(std::memory_order_acquire);
    if (position - tail > ring_.capacity || position % 8 != 0) return false;
    head_.store(position, std::memory_order_relaxed);
    tail_ = tail;
    return true;
  }

  // The consumer's index went backwards or past ours; final.
  bool corrupt() const { return corrupt_; }

 private:
  const RingView ring_;
  // Ours, and the truth; written by the sender, read by any thread in Writable, which needs no
  // order: a thread that waits for room sees the head that it, or whose lock it took, has
  // committed.
  std::atomic<uint64_t> head_{0};
  uint64_t tail_ = 0;  // the consumer's claim, as checked last
  uint64_t reserved_ = 0;
  bool corrupt_ = false;
};

class RingConsumer {
 public:
  explicit RingConsumer(const RingView& ring) : ring_(ring) {}
  RingConsumer(const RingConsumer&) = delete;
  RingConsumer& operator=(const RingConsumer&) = delete;

  // kOk: `frame` is the next one. kAgain: there is none, or kHeldFramesMax are held. kProtocol:
  // final.
  ChannelStatus TryReceive(Frame* frame) {
    if (corrupt_) return ChannelStatus::kProtocol;
    if (held_.full()) return ChannelStatus::kAgain;
    const uint64_t read = read_.load(std::memory_order_relaxed);
    if (head_ == read) {
      // Partner: the store in RingProducer::Commit. Acquire: the frames' bytes are there.
      const uint64_t head = ring_.head->load(std::memory_order_acquire);
      if (head == read) return ChannelStatus::kAgain;
      // No more than what is free beyond `read`; a head that went backwards is a huge distance.
      if (head - read > ring_.capacity - (read - held_.released_end()) || head % 8 != 0) {
        return Corrupt();
      }
      head_ = head;
      if (ring_.write_combining) CombinedLoadsFence();
    }
    uint64_t at = read;
    uint64_t offset = at & (ring_.capacity - 1);
    uint64_t words[2] = {Word(offset), 0};
    if (static_cast<uint32_t>(words[0]) == 0) {
      const uint64_t to_end = ring_.capacity - offset;
      // A marker stands before the end and before a frame, never alone and never at data[0].
      if (offset == 0 || to_end >= head_ - at) return Corrupt();
      at += to_end;
      offset = 0;
      words[0] = Word(0);
    }
    const uint64_t bytes_max =
        head_ - at < ring_.capacity - offset ? head_ - at : ring_.capacity - offset;
    if (bytes_max < sizeof(wire::FrameHeader)) return Corrupt();
    words[1] = Word(offset + 8);
    static_assert(sizeof(words) == sizeof(wire::FrameHeader));
    std::memcpy(&frame->header, words, sizeof(words));
    if (!wire::FrameHeaderValid(frame->header) || frame->header.bytes > bytes_max) return Corrupt();
    frame->body = {ring_.data + offset + sizeof(wire::FrameHeader),
                   frame->header.bytes - sizeof(wire::FrameHeader)};
    at += frame->header.bytes;
    if (at != head_) PrefetchFrame(at);
    frame->end = at;
    frame->token = held_.Add(at);
    read_.store(at, std::memory_order_relaxed);
    held_full_.store(held_.full(), std::memory_order_relaxed);
    return ChannelStatus::kOk;
  }

  // True if room became free that the producer is told of: of small frames not of each, as long as
  // there are more that are known and not received, since telling waits for all earlier stores.
  // Then the store of the tail is the store of a Dekker pair, before a seq_cst load of the flag
  // with which the producer says that it sleeps. Partner: RingProducer::Writable, and (for the
  // bytes that we no longer read) its load in TryReserve.
  bool Release(uint64_t token) {
    if (!held_.Release(token)) return false;
    held_full_.store(false, std::memory_order_relaxed);
    const uint64_t end = held_.released_end();
    if (end - told_ < ring_.capacity / kUntoldDivisor &&
        read_.load(std::memory_order_relaxed) != head_) {
      return false;
    }
    told_ = end;
    ring_.tail->store(end, std::memory_order_seq_cst);
    return true;
  }

  // As Channel::Expect. What is known to be there was asked for when it became known.
  void Expect() const {
    const uint64_t read = read_.load(std::memory_order_relaxed);
    if (head_ != read) return;
    PrefetchForRead(ring_.head);
    PrefetchFrame(read);
  }
  // Of a frame that is there.
  void PrefetchNext() const { PrefetchFrame(read_.load(std::memory_order_relaxed)); }

  // As Channel::PutBack.
  bool PutBack() {
    if (corrupt_ || !held_.Forget()) return false;
    read_.store(held_.released_end(), std::memory_order_relaxed);
    held_full_.store(false, std::memory_order_relaxed);
    return true;
  }

  // Whether the producer, if it sleeps until the largest frame fits, should be woken now. The head
  // is its claim: a lie costs the liar its wake-up.
  bool RoomForProducer(uint32_t bytes) const {
    return RingHasRoom(ring_.head->load(std::memory_order_relaxed), held_.released_end(),
                       ring_.capacity, bytes);
  }

  // Whether TryReceive would give a frame or report corruption. The load of a Dekker pair, after
  // the store of our flag; partner: RingProducer::Publish. Any thread.
  bool Readable() const { return Pending() && !held_full_.load(std::memory_order_relaxed); }

  // Whether all frames that were received are released.
  bool idle() const { return held_.empty() && !corrupt_; }
  // All before it was received.
  uint64_t position() const { return read_.load(std::memory_order_relaxed); }
  // Goes on at the position of another consumer of this ring; before any other use. False: it is
  // none.
  bool StartAt(uint64_t position) {
    if (position % 8 != 0) return false;
    held_.StartAt(position);
    head_ = told_ = position;
    read_.store(position, std::memory_order_relaxed);
    // Another one that ended in the middle of its work may not have told all that it released.
    ring_.tail->store(position, std::memory_order_seq_cst);
    return true;
  }

  // Whether there is anything left that was not received. Any thread.
  bool Pending() const {
    return ring_.head->load(std::memory_order_seq_cst) != read_.load(std::memory_order_relaxed);
  }

 private:
  // Reads 8 bytes of shared memory exactly once.
  uint64_t Word(uint64_t offset) const {
    return __atomic_load_n(reinterpret_cast<const uint64_t*>(ring_.data + offset),
                           __ATOMIC_RELAXED);
  }
  ChannelStatus Corrupt() {
    corrupt_ = true;
    return ChannelStatus::kProtocol;
  }
  // The frame at position `at`: the producer wrote it on another core, and it takes as long to come
  // from there as a small frame takes to be handled.
  void PrefetchFrame(uint64_t at) const {
    const std::byte* const frame = ring_.data + (at & (ring_.capacity - 1));
    for (size_t line = 0; line < 3; ++line) PrefetchForRead(frame + line * kCacheLineBytes);
  }
  // Part of the ring that a producer may miss while it is free: too little to wait for.
  static constexpr uint64_t kUntoldDivisor = 64;

  const RingView ring_;
  HeldFrames held_;
  // Position after the last frame received; written by the receiver, read by any thread in
  // Readable, where an old value only makes a wait return early.
  std::atomic<uint64_t> read_{0};
  std::atomic<bool> held_full_{false};  // a copy of held_.full(), for Readable
  uint64_t head_ = 0;                   // the producer's claim, as checked last
  uint64_t told_ = 0;                   // the tail, as the producer sees it
  bool corrupt_ = false;
};

}  // namespace consort

#endif  // CONSORT_VMSOCK_RING_H_
