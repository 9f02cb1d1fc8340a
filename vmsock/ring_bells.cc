// SPDX-License-Identifier: Apache-2.0
#include "vmsock/ring_bells.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>

#include "vmsock/channel.h"
#include "vmsock/socket_io.h"
#include "vmsock/spin.h"

namespace consort {
namespace {

timespec ToTimespec(Nanos time) {
  return {static_cast<time_t>(time / kSecond), static_cast<long>(time % kSecond)};
}

// Not FUTEX_PRIVATE_FLAG: the word is shared between processes. Source: futex(2).
void FutexWait(std::atomic<uint32_t>* word, uint32_t value, Nanos timeout) {
  const timespec limit = ToTimespec(timeout);
  syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void Ring(RingBell* bell) {
  // Partner: the load in FutexBells::Rings.
  bell->rings.fetch_add(1, std::memory_order_release);
  FutexWakeAll(&bell->rings);
}

uint32_t Reads(uint32_t events) { return (events & Channel::kReadable) != 0 ? 1 : 0; }
uint32_t Writes(uint32_t events) { return (events & Channel::kWritable) != 0 ? 1 : 0; }

}  // namespace

void* RingBells::operator new(size_t bytes) noexcept { return malloc(bytes); }
void RingBells::operator delete(void* memory) { free(memory); }

uint32_t RingBells::Announce(uint32_t events) {
  // Before the flags: a bell rung for them ends the nap. One rung before this is seen with what it
  // was rung for.
  const uint32_t rings = Rings();
  // Partners: the loads in WakeIfAsleep and PeersWriterSleeps, after the peer's stores of head and
  // tail.
  if (Reads(events)) mine_->sleeps_until_readable.store(1, std::memory_order_seq_cst);
  if (Writes(events)) mine_->sleeps_until_writable.store(1, std::memory_order_seq_cst);
  return rings;
}

// ---- a futex of both sides ----

void FutexBells::WakeAll() {
  Ring(mine_);
  Ring(peers_);
}

void FutexBells::RingPeer() { Ring(peers_); }

void FutexBells::Nap(uint32_t rings, Nanos nap, bool) { FutexWait(&mine_->rings, rings, nap); }

// ---- bytes on a stream ----

void StreamBells::WakeAll() {
  // Who polls sees the stream's end, on both sides.
  WakeOwn();
}

void StreamBells::RingPeer() {
  // A stream without room has bells in it.
  const std::byte bell{0};
  SendSome(stream_, {&bell, 1}, {});
}

void StreamBells::Enter(uint32_t events) {
  LockSleepers();
  sleepers_until_readable_ += Reads(events);
  sleepers_until_writable_ += Writes(events);
  UnlockSleepers();
}

void StreamBells::Leave(uint32_t events) {
  LockSleepers();
  sleepers_until_readable_ -= Reads(events);
  sleepers_until_writable_ -= Writes(events);
  if (sleepers_until_readable_ == 0) {
    mine_->sleeps_until_readable.store(0, std::memory_order_relaxed);
  }
  if (sleepers_until_writable_ == 0) {
    mine_->sleeps_until_writable.store(0, std::memory_order_relaxed);
  }
  UnlockSleepers();
}

void StreamBells::LockSleepers() {
  while (sleepers_locked_.exchange(true, std::memory_order_acquire)) Pause();
}

void StreamBells::Nap(uint32_t rings, Nanos nap, bool stream_ended) {
  // A stream that has ended would let poll return at once, for good.
  if (!stream_ended && !polled_.exchange(true, std::memory_order_acquire)) {
    pollfd entry = {stream_, POLLIN, 0};
    const timespec limit = ToTimespec(nap);
    if (ppoll(&entry, 1, &limit, nullptr) > 0) {
      // As many bells as there are: what they were rung for is looked at after this.
      std::byte bells[256];
      size_t count;
      ReceiveSome(stream_, bells, {}, &count);
    }
    polled_.store(false, std::memory_order_release);
    WakeOwn();  // what the bells said may be for others, and one of them polls from now on
    return;
  }
  // Partner: the load in WakeOwn, after its increment: it sees this, or the futex that.
  wake_waiters_.fetch_add(1, std::memory_order_seq_cst);
  FutexWait(&wakes_, rings, nap);
  wake_waiters_.fetch_sub(1, std::memory_order_relaxed);
}

void StreamBells::WakeOwn() {
  // Partner: the load in Rings.
  wakes_.fetch_add(1, std::memory_order_seq_cst);
  if (wake_waiters_.load(std::memory_order_seq_cst) != 0) FutexWakeAll(&wakes_);
}

}  // namespace consort
