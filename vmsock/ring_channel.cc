// SPDX-License-Identifier: Apache-2.0
#include "vmsock/ring_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "base/pages.h"
#include "vmsock/deadline.h"
#include "vmsock/socket_io.h"
#include "vmsock/spin.h"

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

RingBell* MyBell(RingChannel::Side side, std::span<std::byte> memory) {
  return At<RingBell>(memory, side == RingChannel::Side::kGuest ? kGuestBell : kHostBell);
}

RingBell* PeersBell(RingChannel::Side side, std::span<std::byte> memory) {
  return At<RingBell>(memory, side == RingChannel::Side::kGuest ? kHostBell : kGuestBell);
}

bool RingBytesValid(Bytes bytes) {
  return bytes >= kRingBytesMin && bytes <= kRingBytesMax && (bytes & (bytes - 1)) == 0;
}

}  // namespace

bool RingSizesValid(const RingSizes& sizes) {
  return RingBytesValid(sizes.request_ring_bytes) && RingBytesValid(sizes.reply_ring_bytes);
}

uint64_t RepliesUntil(std::span<const std::byte> memory) {
  return reinterpret_cast<const std::atomic<uint64_t>*>(memory.data() + kReplyHead)
      ->load(std::memory_order_acquire);
}

bool ReadRepliesUntil(int file, Bytes offset, uint64_t* position) {
  return pread(file, position, sizeof(*position), static_cast<off_t>(offset + kReplyHead)) ==
         static_cast<ssize_t>(sizeof(*position));
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
  parts.name = "unix+rings";
  parts.socket = static_cast<UniqueFd&&>(socket);
  parts.file = static_cast<UniqueFd&&>(memory);
  if (!Map(sizes, &parts)) return nullptr;
  parts.bells.reset(new FutexBells(MyBell(side, parts.memory), PeersBell(side, parts.memory)));
  return Make(side, sizes, static_cast<Parts&&>(parts));
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
  parts.name = "vsock+rings";
  parts.socket = static_cast<UniqueFd&&>(socket);
  parts.file = static_cast<UniqueFd&&>(place.file);
  parts.offset = place.offset;
  parts.write_combining = place.write_combining;
  if (!Map(sizes, &parts)) return nullptr;
  parts.bells.reset(new StreamBells(MyBell(side, parts.memory), PeersBell(side, parts.memory),
                                    parts.socket.get()));
  return Make(side, sizes, static_cast<Parts&&>(parts));
}

bool RingChannel::Map(const RingSizes& sizes, Parts* parts) {
  const int error = PrepareSocket(parts->socket.get());
  if (error != 0) {
    errno = error;
    return false;
  }
  const Bytes bytes = RingMemoryBytes(sizes);
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, parts->file.get(),
                      static_cast<off_t>(parts->offset));
  if (mapped == MAP_FAILED) return false;
  parts->memory = {static_cast<std::byte*>(mapped), bytes};
  // Where the memory is a device's of a virtual machine it has its pages, and this does nothing.
  Populate(mapped, kControlBytes + kRingPopulatedBytes);
  Populate(parts->memory.data() + kControlBytes + sizes.request_ring_bytes, kRingPopulatedBytes);
  return true;
}

std::unique_ptr<RingChannel> RingChannel::Make(Side side, const RingSizes& sizes, Parts parts) {
  if (side == Side::kGuest) parts.file.Reset();
  const std::span<std::byte> memory = parts.memory;
  std::unique_ptr<RingChannel> channel;
  if (parts.bells != nullptr) {
    channel.reset(new RingChannel(side, sizes, static_cast<Parts&&>(parts)));
  }
  if (channel == nullptr) {
    munmap(memory.data(), memory.size());
    errno = ENOMEM;
  }
  return channel;
}

RingChannel::RingChannel(Side side, const RingSizes& sizes, Parts parts)
    : name_(parts.name),
      memory_(parts.memory),
      socket_(static_cast<UniqueFd&&>(parts.socket)),
      file_(static_cast<UniqueFd&&>(parts.file)),
      offset_(parts.offset),
      sizes_(sizes),
      creator_(getpid()),
      bells_(static_cast<std::unique_ptr<RingBells>&&>(parts.bells)),
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
    bells_->WakeReader();
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
  // Only once the largest frame fits: a producer that sleeps was stopped by a full ring, and waking
  // it for each small frame would cost a system call each.
  if (bells_->PeersWriterSleeps() && consumer_.RoomForProducer(wire::kFrameBytesMax)) {
    bells_->WakeWriter();
  }
}

bool RingChannel::PutBack() { return consumer_.PutBack(); }

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
  if ((events & kReadable) != 0 && consumer_.Readable()) {
    consumer_.PrefetchNext();
    return ChannelStatus::kOk;
  }
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
  const Deadline deadline(timeout);
  if (spin <= 0) return Sleep(events, deadline);
  return SpinThenSleep(
      &spin_, spin, deadline, [&] { return Look(events); },
      [&] { return Sleep(events, deadline); });
}

ChannelStatus RingChannel::Sleep(uint32_t events, const Deadline& deadline) {
  bells_->Enter(events);
  ChannelStatus status;
  for (;;) {
    PeerGone(true);
    const uint32_t rings = bells_->Announce(events);
    status = Look(events);
    const Nanos left = deadline.Left();
    if (status != ChannelStatus::kAgain || left == 0) break;
    // Frames that wait while all places are held: a Release of ours ends that, and rings no bell.
    const Nanos slice =
        (events & kReadable) != 0 && consumer_.Pending() ? kHeldCheckInterval : kPeerCheckInterval;
    bells_->Nap(rings, left < slice ? left : slice, hung_up_.load(std::memory_order_relaxed));
  }
  bells_->Leave(events);
  return status;
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
  if (!passes_descriptors() || state_.load(std::memory_order_relaxed) != State::kOpen) return false;
  // The byte only carries the descriptor.
  const std::byte carrier{0};
  return SendSome(socket_.get(), {&carrier, 1}, {&fd, 1}) == 1;
}

int RingChannel::ReceiveDescriptor(Nanos timeout) {
  const Deadline deadline(timeout);
  while (passes_descriptors() && state_.load(std::memory_order_relaxed) == State::kOpen) {
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
  handover->in_vm = bells_->on_stream();
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
  bells_->WakeAll();
}

}  // namespace consort
