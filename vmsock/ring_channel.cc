// SPDX-License-Identifier: Apache-2.0
#include "vmsock/ring_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

#include "vmsock/deadline.h"
#include "vmsock/socket_io.h"

namespace consort {
namespace {

constexpr size_t kControlBytes = 0x1000;
constexpr size_t kRequestHead = 0x000;
constexpr size_t kRequestTail = 0x080;
constexpr size_t kReplyHead = 0x100;
constexpr size_t kReplyTail = 0x180;
constexpr size_t kGuestBell = 0x200;
constexpr size_t kHostBell = 0x280;
constexpr size_t kGuestClosed = 0x300;
constexpr size_t kHostClosed = 0x380;

// Between two looks at the clock while spinning: a look costs about as much as 16 pauses.
constexpr int kPausesPerLook = 16;

static_assert(RingMemoryBytes({0, 0}) == kControlBytes);

template <typename T>
T* At(std::span<std::byte> memory, size_t offset) {
  return reinterpret_cast<T*>(memory.data() + offset);
}

RingView RequestRing(std::span<std::byte> memory, const RingSizes& sizes, bool write_combining) {
  return {At<std::atomic<uint64_t>>(memory, kRequestHead),
          At<std::atomic<uint64_t>>(memory, kRequestTail), memory.data() + kControlBytes,
          sizes.request_ring_bytes, write_combining};
}

RingView ReplyRing(std::span<std::byte> memory, const RingSizes& sizes, bool write_combining) {
  return {At<std::atomic<uint64_t>>(memory, kReplyHead),
          At<std::atomic<uint64_t>>(memory, kReplyTail),
          memory.data() + kControlBytes + sizes.request_ring_bytes, sizes.reply_ring_bytes,
          write_combining};
}

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Not FUTEX_PRIVATE_FLAG: the word is shared between processes. Source: futex(2).
void FutexWait(std::atomic<uint32_t>* word, uint32_t value, Nanos timeout) {
  const timespec limit = {static_cast<time_t>(timeout / kSecond),
                          static_cast<long>(timeout % kSecond)};
  syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void RingBell(std::atomic<uint32_t>* rings) {
  // Partner: the load in Sleep.
  rings->fetch_add(1, std::memory_order_release);
  FutexWakeAll(rings);
}

bool RingBytesValid(Bytes bytes) {
  return bytes >= kRingBytesMin && bytes <= kRingBytesMax && (bytes & (bytes - 1)) == 0;
}

}  // namespace

bool RingSizesValid(const RingSizes& sizes) {
  return RingBytesValid(sizes.request_ring_bytes) && RingBytesValid(sizes.reply_ring_bytes);
}

UniqueFd CreateRingMemory(const RingSizes& sizes) {
  if (!RingSizesValid(sizes)) {
    errno = EINVAL;
    return UniqueFd();
  }
  UniqueFd memory(memfd_create("consort-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) return memory;
  if (ftruncate(memory.get(), static_cast<off_t>(RingMemoryBytes(sizes))) != 0 ||
      fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const int error = errno;
    memory.Reset();
    errno = error;
  }
  return memory;
}

std::unique_ptr<RingChannel> RingChannel::Create(Side side, const RingSizes& sizes, UniqueFd memory,
                                                 UniqueFd socket) {
  if (!RingSizesValid(sizes)) {
    errno = EINVAL;
    return nullptr;
  }
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  const off_t bytes = lseek(memory.get(), 0, SEEK_END);
  if (seals < 0 || bytes < 0) return nullptr;
  if ((seals & F_SEAL_SHRINK) == 0 || static_cast<Bytes>(bytes) < RingMemoryBytes(sizes)) {
    errno = EPROTO;
    return nullptr;
  }
  Parts parts;
  parts.socket = static_cast<UniqueFd&&>(socket);
  parts.file = static_cast<UniqueFd&&>(memory);
  return Map(side, sizes, static_cast<Parts&&>(parts));
}

std::unique_ptr<RingChannel> RingChannel::CreateInVm(Side side, const RingSizes& sizes,
                                                     VmRingPlace place, UniqueFd socket) {
  if (!RingSizesValid(sizes)) {
    errno = EINVAL;
    return nullptr;
  }
  const off_t bytes = lseek(place.file.get(), 0, SEEK_END);
  if (bytes < 0) return nullptr;
  if (RingMemoryBytes(sizes) > static_cast<Bytes>(bytes) ||
      place.offset > static_cast<Bytes>(bytes) - RingMemoryBytes(sizes)) {
    errno = EPROTO;
    return nullptr;
  }
  Parts parts;
  parts.socket = static_cast<UniqueFd&&>(socket);
  parts.file = static_cast<UniqueFd&&>(place.file);
  parts.offset = place.offset;
  parts.in_vm = true;
  parts.write_combining = place.write_combining;
  return Map(side, sizes, static_cast<Parts&&>(parts));
}

std::unique_ptr<RingChannel> RingChannel::Map(Side side, const RingSizes& sizes, Parts parts) {
  const int error = PrepareSocket(parts.socket.get());
  if (error != 0) {
    errno = error;
    return nullptr;
  }
  const Bytes bytes = RingMemoryBytes(sizes);
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, parts.file.get(),
                      static_cast<off_t>(parts.offset));
  if (mapped == MAP_FAILED) return nullptr;
  parts.memory = {static_cast<std::byte*>(mapped), bytes};
  if (side == Side::kGuest) parts.file.Reset();
  std::unique_ptr<RingChannel> channel(new RingChannel(side, sizes, static_cast<Parts&&>(parts)));
  if (channel == nullptr) {
    munmap(mapped, bytes);
    errno = ENOMEM;
  }
  return channel;
}

RingChannel::RingChannel(Side side, const RingSizes& sizes, Parts parts)
    : memory_(parts.memory),
      socket_(static_cast<UniqueFd&&>(parts.socket)),
      file_(static_cast<UniqueFd&&>(parts.file)),
      offset_(parts.offset),
      in_vm_(parts.in_vm),
      sizes_(sizes),
      creator_(getpid()),
      my_bell_(At<Bell>(memory_, side == Side::kGuest ? kGuestBell : kHostBell)),
      peer_bell_(At<Bell>(memory_, side == Side::kGuest ? kHostBell : kGuestBell)),
      i_closed_(
          At<std::atomic<uint32_t>>(memory_, side == Side::kGuest ? kGuestClosed : kHostClosed)),
      peer_closed_(
          At<std::atomic<uint32_t>>(memory_, side == Side::kGuest ? kHostClosed : kGuestClosed)),
      producer_(side == Side::kGuest ? RequestRing(memory_, sizes, parts.write_combining)
                                     : ReplyRing(memory_, sizes, parts.write_combining)),
      consumer_(side == Side::kGuest ? ReplyRing(memory_, sizes, parts.write_combining)
                                     : RequestRing(memory_, sizes, parts.write_combining)) {}

RingChannel::~RingChannel() {
  if (getpid() == creator_) Close();
  munmap(memory_.data(), memory_.size());
}

void* RingChannel::operator new(size_t bytes) noexcept { return malloc(bytes); }
void RingChannel::operator delete(void* memory) { free(memory); }

std::byte* RingChannel::TryReserve(uint32_t bytes) {
  if (state_.load(std::memory_order_relaxed) != State::kOpen || PeerGone(false)) return nullptr;
  std::byte* room = producer_.TryReserve(bytes);
  if (room != nullptr) return room;
  if (producer_.corrupt()) {
    Fail();
  } else if (++full_polls_ % kPeerCheckPolls == 0) {
    PeerGone(true);
  }
  return nullptr;
}

void RingChannel::Commit() {
  producer_.Commit();
  unflushed_ = true;
}

ChannelStatus RingChannel::Flush() {
  if (state_.load(std::memory_order_relaxed) != State::kOpen) return EndStatus();
  if (PeerGone(false)) return ChannelStatus::kClosed;
  if (unflushed_) {
    unflushed_ = false;
    producer_.Publish();
    WakeIfAsleep(&peer_bell_->sleeps_until_readable);
  }
  return ChannelStatus::kOk;
}

ChannelStatus RingChannel::TryReceive(Frame* frame) {
  if (state_.load(std::memory_order_relaxed) != State::kOpen) return EndStatus();
  ChannelStatus status = consumer_.TryReceive(frame);
  if (status == ChannelStatus::kAgain && PeerGone(++empty_polls_ % kPeerCheckPolls == 0)) {
    // What the peer sent before it went is visible now, if it was not before.
    status = consumer_.TryReceive(frame);
    if (status == ChannelStatus::kAgain && !consumer_.Pending()) return ChannelStatus::kClosed;
  }
  if (status == ChannelStatus::kProtocol) Fail();
  return status;
}

void RingChannel::Release(const Frame& frame) {
  if (!consumer_.Release(frame.token)) return;
  // Partner: the waiter's store in Wait. Only once the largest frame fits: a producer that sleeps
  // was stopped by a full ring, and waking it for each small frame would cost a system call each.
  if (peer_bell_->sleeps_until_writable.load(std::memory_order_seq_cst) != 0 &&
      consumer_.RoomForProducer(wire::kFrameBytesMax)) {
    WakeIfAsleep(&peer_bell_->sleeps_until_writable);
  }
}

bool RingChannel::Ready(uint32_t events) const {
  return ((events & kReadable) != 0 && consumer_.Readable()) ||
         ((events & kWritable) != 0 && producer_.Writable(wire::kFrameBytesMax));
}

ChannelStatus RingChannel::EndStatus() const {
  return state_.load(std::memory_order_relaxed) == State::kProtocol ? ChannelStatus::kProtocol
                                                                    : ChannelStatus::kClosed;
}

ChannelStatus RingChannel::Look(uint32_t events) const {
  if (state_.load(std::memory_order_relaxed) != State::kOpen) return EndStatus();
  // First whether the peer is gone, then what it left. Partner: its store in End.
  const bool gone = hung_up_.load(std::memory_order_acquire) ||
                    peer_closed_->load(std::memory_order_acquire) != 0;
  if ((events & kReadable) != 0 && consumer_.Readable()) return ChannelStatus::kOk;
  if (gone) {
    // With frames left but all places held, the caller must release before it can receive.
    return (events & kReadable) != 0 && consumer_.Pending() ? ChannelStatus::kAgain
                                                            : ChannelStatus::kClosed;
  }
  return Ready(events) ? ChannelStatus::kOk : ChannelStatus::kAgain;
}

ChannelStatus RingChannel::Wait(uint32_t events, Nanos spin, Nanos timeout) {
  const ChannelStatus status = Look(events);
  if (status != ChannelStatus::kAgain || timeout == 0) return status;
  if (spin <= 0) return Sleep(events, Deadline(timeout));
  const Nanos begin = MonotonicNow();
  const Nanos allowed = spin_.Allow(spin);
  const ChannelStatus result = SpinThenSleep(events, allowed, Deadline(timeout));
  spin_.Learn(spin, allowed, MonotonicNow() - begin);
  return result;
}

ChannelStatus RingChannel::SpinThenSleep(uint32_t events, Nanos spin, const Deadline& deadline) {
  const Deadline spin_deadline(spin);
  while (spin_deadline.Left() > 0 && deadline.Left() > 0) {
    for (int pause = 0; pause < kPausesPerLook; ++pause) {
      const ChannelStatus status = Look(events);
      if (status != ChannelStatus::kAgain) return status;
      Pause();
    }
  }
  return Sleep(events, deadline);
}

ChannelStatus RingChannel::Sleep(uint32_t events, const Deadline& deadline) {
  const uint32_t reads = (events & kReadable) != 0 ? 1 : 0;
  const uint32_t writes = (events & kWritable) != 0 ? 1 : 0;
  if (in_vm_) {
    LockSleepers();
    sleepers_until_readable_ += reads;
    sleepers_until_writable_ += writes;
    UnlockSleepers();
  }
  ChannelStatus status;
  for (;;) {
    PeerGone(true);
    // Partners: the increments in RingPeer and WakeOwn. Acquire: a bell rung before this is seen
    // with what it was rung for; one rung later lets the futex return at once.
    const uint32_t rings = (in_vm_ ? wakes_ : my_bell_->rings).load(std::memory_order_acquire);
    RaiseFlags(events);
    status = Look(events);
    const Nanos left = deadline.Left();
    if (status != ChannelStatus::kAgain || left == 0) break;
    // Frames that wait while all places are held: a Release of ours ends that, and rings no bell.
    const Nanos slice =
        (events & kReadable) != 0 && consumer_.Pending() ? kHeldCheckInterval : kPeerCheckInterval;
    const Nanos nap = left < slice ? left : slice;
    if (in_vm_) {
      Nap(rings, nap);
    } else {
      FutexWait(&my_bell_->rings, rings, nap);
    }
  }
  if (in_vm_) {
    LockSleepers();
    sleepers_until_readable_ -= reads;
    sleepers_until_writable_ -= writes;
    if (sleepers_until_readable_ == 0) {
      my_bell_->sleeps_until_readable.store(0, std::memory_order_relaxed);
    }
    if (sleepers_until_writable_ == 0) {
      my_bell_->sleeps_until_writable.store(0, std::memory_order_relaxed);
    }
    UnlockSleepers();
  }
  return status;
}

void RingChannel::RaiseFlags(uint32_t events) {
  // Partners: the loads in WakeIfAsleep and Release, after the peer's stores of head and tail.
  if ((events & kReadable) != 0) {
    my_bell_->sleeps_until_readable.store(1, std::memory_order_seq_cst);
  }
  if ((events & kWritable) != 0) {
    my_bell_->sleeps_until_writable.store(1, std::memory_order_seq_cst);
  }
}

void RingChannel::LockSleepers() {
  while (sleepers_locked_.exchange(true, std::memory_order_acquire)) Pause();
}

void RingChannel::Nap(uint32_t wakes, Nanos nap) {
  // A stream that has ended would let poll return at once, for good.
  const bool streams = !hung_up_.load(std::memory_order_relaxed);
  if (streams && !polled_.exchange(true, std::memory_order_acquire)) {
    pollfd entry = {socket_.get(), POLLIN, 0};
    const timespec limit = {static_cast<time_t>(nap / kSecond), static_cast<long>(nap % kSecond)};
    if (ppoll(&entry, 1, &limit, nullptr) > 0) {
      // As many bells as there are: what they were rung for is looked at after this.
      std::byte bells[256];
      size_t count;
      ReceiveSome(socket_.get(), bells, {}, &count);
    }
    polled_.store(false, std::memory_order_release);
    WakeOwn();  // what the bells said may be for others, and one of them polls from now on
    return;
  }
  // Partner: the load in WakeOwn, after its increment: it sees this, or the futex that.
  wake_waiters_.fetch_add(1, std::memory_order_seq_cst);
  FutexWait(&wakes_, wakes, nap);
  wake_waiters_.fetch_sub(1, std::memory_order_relaxed);
}

void RingChannel::WakeOwn() {
  wakes_.fetch_add(1, std::memory_order_seq_cst);
  if (wake_waiters_.load(std::memory_order_seq_cst) != 0) FutexWakeAll(&wakes_);
}

bool RingChannel::PeerGone(bool ask_kernel) {
  // Partner: the store in End. Acquire: all that the peer published before it closed is visible.
  if (peer_closed_->load(std::memory_order_acquire) != 0) return true;
  if (hung_up_.load(std::memory_order_acquire)) return true;
  if (!ask_kernel || !PeerHungUp(socket_.get())) return false;
  hung_up_.store(true, std::memory_order_release);
  return true;
}

bool RingChannel::SendDescriptor(int fd) {
  if (in_vm_ || state_.load(std::memory_order_relaxed) != State::kOpen) return false;
  // The byte only carries the descriptor.
  const std::byte carrier{0};
  return SendSome(socket_.get(), {&carrier, 1}, {&fd, 1}) == 1;
}

int RingChannel::ReceiveDescriptor(Nanos timeout) {
  const Deadline deadline(timeout);
  while (!in_vm_ && state_.load(std::memory_order_relaxed) == State::kOpen) {
    std::byte carrier;
    UniqueFd descriptor;
    size_t count;
    const ssize_t received = ReceiveSome(socket_.get(), {&carrier, 1}, {&descriptor, 1}, &count);
    if (received == 1 && count == 1) return descriptor.Release();
    if (received == 0) return -1;
    if (received > 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
      // A byte without its descriptor, or several at once: not what SendDescriptor sends.
      if (received > 0 || errno == EPROTO) Fail();
      return -1;
    }
    const int wait_ms = deadline.LeftMs();
    if (wait_ms == 0) return -1;
    pollfd entry = {socket_.get(), POLLIN, 0};
    poll(&entry, 1, wait_ms);
  }
  return -1;
}

bool RingChannel::Describe(ChannelHandover* handover) const {
  if (!file_.valid() || !consumer_.idle() || unflushed_) return false;
  *handover = {};
  handover->socket = socket_.get();
  handover->memory = file_.get();
  handover->memory_offset = offset_;
  handover->in_vm = in_vm_;
  handover->request_ring_bytes = sizes_.request_ring_bytes;
  handover->reply_ring_bytes = sizes_.reply_ring_bytes;
  handover->received = consumer_.position();
  handover->sent = producer_.position();
  return true;
}

bool RingChannel::Resume(uint64_t received, uint64_t sent) {
  return consumer_.StartAt(received) && producer_.StartAt(sent);
}

void RingChannel::Abandon() { state_.store(State::kClosed, std::memory_order_relaxed); }

void RingChannel::Close() { End(State::kClosed); }

void RingChannel::Fail() { End(State::kProtocol); }

void RingChannel::End(State state) {
  State expected = State::kOpen;
  if (!state_.compare_exchange_strong(expected, state, std::memory_order_relaxed)) return;
  // Partners: the loads in PeerGone and Look. Release: our last frames come first.
  i_closed_->store(1, std::memory_order_release);
  shutdown(socket_.get(), SHUT_RDWR);
  if (in_vm_) return WakeOwn();  // who polls sees the stream's end, on both sides
  RingBell(&my_bell_->rings);
  RingBell(&peer_bell_->rings);
}

void RingChannel::WakeIfAsleep(std::atomic<uint32_t>* flag) {
  // Partner: the store in RaiseFlags. Cleared by whoever wakes, so that a burst of frames to a side
  // that is just waking up costs one system call.
  if (flag->load(std::memory_order_seq_cst) != 0 &&
      flag->exchange(0, std::memory_order_seq_cst) != 0) {
    RingPeer();
  }
}

void RingChannel::RingPeer() {
  if (!in_vm_) return RingBell(&peer_bell_->rings);
  // A stream without room has bells in it.
  const std::byte bell{0};
  SendSome(socket_.get(), {&bell, 1}, {});
}

}  // namespace consort
