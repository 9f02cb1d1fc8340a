// SPDX-License-Identifier: Apache-2.0
// vmsock/ring_bells.h: how the two sides of a ring channel (ring_channel.h) sleep and wake each
// other.
//
// Each side has a bell in the memory of the rings, by offset:
//
//   offset  bytes  field                                       stored by
//        0      4  rings (u32, the futex word)                 both
//        4      4  sleeps until readable (u32, 0 or 1)         its side sets, the other clears
//        8      4  sleeps until writable (u32, 0 or 1)         its side sets, the other clears
//
// A thread that wants to sleep reads how often its side was rung for, sets its flag, looks once
// more, and sleeps if it was not rung for since. The other side publishes (head or tail), then
// looks at the flag; if set it clears it and rings. Store-then-load on both sides, all sequentially
// consistent: one of the two sees the other (Dekker). No sleep is longer than its caller says, so
// a peer that writes nonsense there gains nothing.
//
// FutexBells: the word of the bell is a futex of both sides. A flag that a waiter left behind when
// its time was over costs one superfluous wake-up.
//
// StreamBells: for rings in a virtual machine, whose futexes are not the host's. A byte of any
// value on the stream wakes, and the word of the bell is not used. Of the threads of a process that
// sleep one polls the stream, the others wait for it. Whoever stops sleeping takes its flag back,
// since a byte that is sent in vain makes a virtual CPU exit.
//
// Thread safe. Compiled into the guest library.
#ifndef CONSORT_VMSOCK_RING_BELLS_H_
#define CONSORT_VMSOCK_RING_BELLS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/units.h"

namespace consort {

struct RingBell {
  std::atomic<uint32_t> rings;
  std::atomic<uint32_t> sleeps_until_readable;
  std::atomic<uint32_t> sleeps_until_writable;
};

// The bells as one side sees them. Events are Channel's.
class RingBells {
 public:
  // Both bells outlive this.
  RingBells(RingBell* mine, RingBell* peers) : mine_(mine), peers_(peers) {}
  RingBells(const RingBells&) = delete;
  RingBells& operator=(const RingBells&) = delete;
  virtual ~RingBells() = default;

  // Wakes the peer if it sleeps until it can read, or write: what it waits for is published.
  void WakeReader() { WakeIfAsleep(&peers_->sleeps_until_readable); }
  void WakeWriter() { WakeIfAsleep(&peers_->sleeps_until_writable); }
  bool PeersWriterSleeps() const {
    // Partner: the store in Announce.
    return peers_->sleeps_until_writable.load(std::memory_order_seq_cst) != 0;
  }
  // Wakes all who sleep, on both sides. The stream is shut down.
  virtual void WakeAll() = 0;

  // A thread sleeps so: Enter; then, as often as it likes, Announce, a look at the rings, and Nap
  // if there was nothing; at last Leave, of the same events.
  virtual void Enter(uint32_t events) = 0;
  // For Nap.
  uint32_t Announce(uint32_t events);
  // At most `nap`, and not if this side was rung for since Announce gave `rings`. `stream_ended`:
  // the stream will bring nothing more.
  virtual void Nap(uint32_t rings, Nanos nap, bool stream_ended) = 0;
  virtual void Leave(uint32_t events) = 0;

  // Whether the stream carries bells, and so nothing else.
  virtual bool on_stream() const = 0;

  // From malloc, so that the guest library needs no allocator of C++. Null when there is no memory.
  static void* operator new(size_t bytes) noexcept;
  static void operator delete(void* memory);

 protected:
  virtual void RingPeer() = 0;
  // How often this side was rung for. Acquire: with what it was rung for.
  virtual uint32_t Rings() const = 0;

  RingBell* const mine_;
  RingBell* const peers_;

 private:
  void WakeIfAsleep(std::atomic<uint32_t>* flag) {
    // Partner: the store in Announce. Cleared by whoever wakes, so that a burst of frames to a side
    // that is just waking up costs one system call.
    if (flag->load(std::memory_order_seq_cst) != 0 &&
        flag->exchange(0, std::memory_order_seq_cst) != 0) {
      RingPeer();
    }
  }
};

class FutexBells final : public RingBells {
 public:
  using RingBells::RingBells;
  void WakeAll() override;
  void Enter(uint32_t) override {}
  void Nap(uint32_t rings, Nanos nap, bool stream_ended) override;
  void Leave(uint32_t) override {}
  bool on_stream() const override { return false; }

 private:
  void RingPeer() override;
  uint32_t Rings() const override { return mine_->rings.load(std::memory_order_acquire); }
};

class StreamBells final : public RingBells {
 public:
  // `stream` is connected, non-blocking, and outlives this. There may be bells on it already.
  StreamBells(RingBell* mine, RingBell* peers, int stream)
      : RingBells(mine, peers), stream_(stream) {}
  void WakeAll() override;
  void Enter(uint32_t events) override;
  void Nap(uint32_t rings, Nanos nap, bool stream_ended) override;
  void Leave(uint32_t events) override;
  bool on_stream() const override { return true; }

 private:
  void RingPeer() override;
  uint32_t Rings() const override { return wakes_.load(std::memory_order_acquire); }
  // Wakes this side's own threads.
  void WakeOwn();
  void LockSleepers();
  void UnlockSleepers() { sleepers_locked_.store(false, std::memory_order_release); }

  const int stream_;
  // The lock is held for a few stores only.
  std::atomic<bool> sleepers_locked_{false};
  uint32_t sleepers_until_readable_ = 0;  // guarded by the lock, as is the next
  uint32_t sleepers_until_writable_ = 0;
  std::atomic<bool> polled_{false};  // some thread polls the stream
  std::atomic<uint32_t> wakes_{0};   // the futex word of the other threads
  std::atomic<uint32_t> wake_waiters_{0};
};

}  // namespace consort

#endif  // CONSORT_VMSOCK_RING_BELLS_H_
