// SPDX-License-Identifier: Apache-2.0
// vmsock/conduit_channel.h: a session's channel through a conduit (conduit.h), the worker's end:
// "conduit".
//
// Frames are received in place. Frames that are sent lie in a ring; the payload of one may lie
// elsewhere in the memory, where a copy engine has put it (CommitWith), and must stay there until
// it was taken. Both rings are mapped twice in a row, so no frame is split.
//
// Threads as channel.h says. Host only; no descriptors are passed to the guest.
#ifndef CONSORT_VMSOCK_CONDUIT_CHANNEL_H_
#define CONSORT_VMSOCK_CONDUIT_CHANNEL_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "vmsock/channel.h"
#include "vmsock/conduit.h"
#include "vmsock/deadline.h"
#include "vmsock/held_frames.h"
#include "vmsock/spin_budget.h"

namespace consort {

class ConduitChannel final : public Channel {
 public:
  // Makes the memory of a conduit and asks the vsock device at the other end of `socket` to go on
  // through it. `unread`: bytes that were read from the stream before and begin with a frame.
  // kUnavailable, kDeadlineExceeded: the device. kInvalidArgument: the guest said too much before
  // the conduit could begin. kResourceExhausted: no memory or descriptors.
  static absl::StatusOr<std::unique_ptr<ConduitChannel>> Open(UniqueFd socket,
                                                              std::span<const std::byte> unread,
                                                              Nanos timeout);
  // Goes on with a channel that another process has described and abandons. kInvalidArgument: it is
  // none.
  static absl::StatusOr<std::unique_ptr<ConduitChannel>> Resume(UniqueFd socket, UniqueFd memory);
  ~ConduitChannel() override;

  std::byte* TryReserve(uint32_t bytes) override;
  void Commit() override;
  ChannelStatus Flush() override;
  ChannelStatus TryReceive(Frame* frame) override;
  void Release(const Frame& frame) override;
  bool PutBack() override;
  ChannelStatus Wait(uint32_t events, Nanos spin, Nanos timeout) override;
  bool passes_descriptors() const override { return false; }
  bool SendDescriptor(int) override { return false; }
  int ReceiveDescriptor(Nanos) override { return -1; }
  // Not while something that was sent is not taken.
  bool Describe(ChannelHandover* handover) const override;
  void Abandon() override;
  bool Part() override { return false; }
  bool Rejoin(UniqueFd) override { return false; }
  void Close() override;
  const char* name() const override { return "conduit"; }

  // For registration with a device driver, page aligned: received frames and bulk_memory() lie
  // within. Valid as long as the channel.
  std::span<std::byte> device_memory() const;
  // For payloads of CommitWith; whoever sends divides it.
  std::span<std::byte> bulk_memory() const { return {bulk_, kConduitBulkBytes}; }
  // Commits the reservation as the beginning of a frame whose rest is `payload`, in bulk_memory().
  // It stays as it is until taken() is the result or more.
  uint64_t CommitWith(std::span<const std::byte> payload);
  // How many bytes the device has taken so far, in the count of CommitWith. Sender only.
  uint64_t taken();
  // Wait(kWritable) ends when so many were taken, too. Sender only, until its next call of another
  // function.
  void AwaitTaken(uint64_t position) { writable_at_.store(position, std::memory_order_relaxed); }

 private:
  enum class State : uint8_t { kOpen, kClosed, kProtocol };
  // A piece that was not taken.
  struct Sent {
    uint64_t end = 0;          // in the stream
    uint64_t replies_end = 0;  // what the ring has free then
  };

  ConduitChannel(UniqueFd socket, UniqueFd memory, std::byte* base);
  static absl::StatusOr<std::unique_ptr<ConduitChannel>> Map(UniqueFd socket, UniqueFd memory);
  // Reads what comes through the socket before the device's descriptor, and puts it in front of
  // what comes through memory.
  absl::Status Join(std::span<const std::byte> unread, const Deadline& deadline);

  ChannelStatus EndStatus() const;
  void End(State state);
  std::byte* RequestAt(uint64_t position) const {
    return requests_ + (position & (kConduitRequestBytes - 1));
  }
  std::byte* ReplyAt(uint64_t position) const {
    return replies_ + (position & (kConduitReplyBytes - 1));
  }
  // kOk: a whole frame lies at received_.
  ChannelStatus Peek(wire::FrameHeader* header) const;
  // Takes the device's head. False: it is impossible.
  bool LoadHead();
  void PublishReceiveState();
  // Reads bells; sees whether the device has ended the stream.
  void TakeBells();
  void RingBell();
  void AddPiece(uint64_t offset, uint64_t bytes);
  // Makes a piece of the frames that were committed since the last.
  void CloseReplies();
  bool HasRoom(uint32_t bytes) const;
  // kAgain while none of `events` is possible yet, or the time is over.
  ChannelStatus Look(uint32_t events) const;
  ChannelStatus Sleep(uint32_t events, const Deadline& deadline);

  const UniqueFd socket_;
  const UniqueFd memory_;
  std::byte* const base_;
  ConduitControl* const control_;
  std::byte* const requests_;
  std::byte* const bulk_;
  std::byte* const replies_;

  // Written by Close and on failure, by any thread; an old value has the effect of having come
  // earlier, so relaxed order is enough.
  std::atomic<State> state_{State::kOpen};
  // The stream's socket has ended. Release and acquire: what the device wrote before is seen.
  std::atomic<bool> peer_gone_{false};
  SpinBudget spin_;

  // Sender's.
  uint64_t pieces_ = 0;        // made so far; those of the last Flush are shown
  uint64_t pieces_taken_ = 0;  // of which the device has taken so many
  std::array<Sent, kConduitPieces> sent_{};
  uint64_t stream_end_ = 0;     // of all pieces
  uint64_t replies_free_ = 0;   // position in the ring: all before it was taken
  uint64_t replies_piece_ = 0;  // all before it is in pieces
  uint64_t replies_end_ = 0;    // all before it was committed
  uint32_t reserved_ = 0;
  uint64_t taken_ = 0;
  bool unflushed_ = false;
  // What Wait(kWritable) waits for to be taken; 0: nothing. Relaxed: waiters that are not the
  // sender may wait once too long for an old value.
  std::atomic<uint64_t> writable_at_{0};

  // Receiver's.
  HeldFrames held_;
  uint64_t received_ = 0;
  uint64_t head_ = 0;  // the device's claim, as checked last
  uint32_t empty_polls_ = 0;
  // The head at which a frame will be whole; all ones: while all places are held. For waiters, as
  // above.
  std::atomic<uint64_t> readable_at_{0};
};

}  // namespace consort

#endif  // CONSORT_VMSOCK_CONDUIT_CHANNEL_H_
