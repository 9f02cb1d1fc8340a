// SPDX-License-Identifier: Apache-2.0
// vmsock/stream_channel.h: a channel over a connected stream socket: AF_VSOCK, AF_UNIX or TCP.
//
// Frames follow each other on the stream as they are. Both directions have one buffer of fixed
// size, mapped twice in a row (mirror_buffer.h), so that frames are written and handed up where
// they lie and one plain buffer serves a send or receive of many frames: each byte is copied once
// by the kernel on each side. When a buffer runs empty it starts again at its beginning, which
// stays in the cache.
//
// A descriptor travels with a transport frame (kFrameTransport, 16 bytes, no body), which only sees
// to it that there is a byte for it to travel with; the receiver queues it when its bytes arrive.
// So who sends a descriptor before the frame that speaks of it finds it there when that frame is
// received.
//
// Threads as channel.h says; SendDescriptor counts as sending, ReceiveDescriptor as receiving.
// After the peer is gone, TryReceive gives what had arrived before it says kClosed. Compiled into
// the guest library.
#ifndef CONSORT_VMSOCK_STREAM_CHANNEL_H_
#define CONSORT_VMSOCK_STREAM_CHANNEL_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/unique_fd.h"
#include "base/units.h"
#include "vmsock/channel.h"
#include "vmsock/held_frames.h"
#include "vmsock/limits.h"
#include "vmsock/mirror_buffer.h"
#include "vmsock/spin_budget.h"

namespace consort {

class StreamChannel final : public Channel {
 public:
  // Takes `socket`, connected, with no byte of a frame read from it yet. Null on failure, with
  // errno.
  static std::unique_ptr<StreamChannel> Create(UniqueFd socket);
  // In the process that created it: Close. In a forked child: only gives the child's copies back.
  ~StreamChannel() override;

  std::byte* TryReserve(uint32_t bytes) override;
  void Commit() override;
  ChannelStatus Flush() override;
  ChannelStatus TryReceive(Frame* frame) override;
  void Release(const Frame& frame) override;
  bool PutBack() override;
  ChannelStatus Wait(uint32_t events, Nanos spin, Nanos timeout) override;
  bool passes_descriptors() const override;
  bool SendDescriptor(int fd) override;
  int ReceiveDescriptor(Nanos timeout) override;
  bool Describe(ChannelHandover* handover) const override;
  void Abandon() override;
  bool Part() override;
  bool Rejoin(UniqueFd socket) override;
  void Close() override;
  const char* name() const override;

  // Goes on where another process stopped: with these bytes, which it had read. Before any other
  // use. False: they are too many.
  bool Resume(std::span<const std::byte> unread);

  // From malloc, so that the guest library needs no allocator of C++.
  static void* operator new(size_t bytes) noexcept;
  static void operator delete(void* memory);

 private:
  // Why the channel ended, if it did.
  enum class State : uint8_t { kOpen, kClosed, kProtocol };

  StreamChannel(UniqueFd socket, int family);

  // Wait, less the learning: spins for all of `spin`.
  ChannelStatus Poll(uint32_t events, Nanos spin, Nanos timeout);
  ChannelStatus EndStatus() const;
  void End(State state);
  bool SendQueueHasRoom(uint32_t bytes) const {
    return bytes <= send_.bytes() - (send_end_ - sent_);
  }
  // Reads what fits and is there. kOk: at least one byte more.
  ChannelStatus Fill();
  // kOk: a whole frame lies at received_, with a valid header, given in `header`.
  ChannelStatus Peek(wire::FrameHeader* header) const;
  // Tells waiters whether a frame is there, or whether only a Release can bring one.
  void PublishReceiveState();

  const UniqueFd socket_;
  const int family_;
  const pid_t creator_;

  // Written by Close and on failure, by any thread; an old value has the effect of having come
  // earlier, so relaxed order is enough.
  std::atomic<State> state_{State::kOpen};
  // The stream ended or broke; set by sender or receiver, until Rejoin. Relaxed for the same
  // reason.
  std::atomic<bool> peer_gone_{false};

  SpinBudget spin_;

  // Sender's: positions in the stream, sent_ <= send_end_; reserved_ lies after send_end_.
  MirrorBuffer send_;
  uint64_t sent_ = 0;
  uint64_t send_end_ = 0;
  uint32_t reserved_ = 0;
  UniqueFd descriptors_out_[kDescriptorsInFlightMax];
  uint32_t descriptors_out_count_ = 0;
  // The kernel took no more: wait for the socket. Written by the sender, read by waiters; poll(2)
  // has the last word, so relaxed order is enough.
  std::atomic<bool> send_blocked_{false};

  // Receiver's: positions, held_.released_end() <= received_ <= fill_end_.
  MirrorBuffer receive_;
  HeldFrames held_;
  uint64_t received_ = 0;
  uint64_t fill_end_ = 0;
  UniqueFd descriptors_in_[kDescriptorsInFlightMax];
  uint32_t descriptors_in_first_ = 0;
  uint32_t descriptors_in_count_ = 0;
  // For waiters, written by the receiver. Relaxed: a waiter that is not the receiver may wait once
  // too long only if the receiver does not come back to the frame that it knows of.
  std::atomic<bool> frame_buffered_{false};
  std::atomic<bool> receive_blocked_{false};  // every place or byte is held
};

}  // namespace consort

#endif  // CONSORT_VMSOCK_STREAM_CHANNEL_H_
