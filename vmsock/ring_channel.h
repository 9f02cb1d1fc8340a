// SPDX-License-Identifier: Apache-2.0
// vmsock/ring_channel.h: a channel through two rings in one shared memory file, "unix+rings" or
// "vsock+rings".
//
// The host makes the memory, the guest maps the same memfd. A UNIX socket stands beside it: it
// passes descriptors, and its hang-up tells that the peer is gone. Or the rings lie in a part of
// the memory that a virtual machine shares with its host (CreateInVm), and any stream stands
// beside them. Memory by offset:
//
//   offset  bytes  field                                                     stored by
//    0x000      8  request ring: head                                        guest
//    0x080      8  request ring: tail                                        host
//    0x100      8  reply ring: head                                          host
//    0x180      8  reply ring: tail                                          guest
//    0x200     12  guest's bell (ring_bells.h)                               both
//    0x280     12  host's bell                                               both
//    0x300      4  guest has closed (u32)                                    guest
//    0x380      4  host has closed (u32)                                     host
//   0x1000      .  request ring: data, request_ring_bytes
//        .      .  reply ring: data, reply_ring_bytes
//
// Every field has 128 bytes to itself (adjacent cache lines are fetched in pairs). All begins as
// zero.
//
// Sleeping and waking: ring_bells.h. No sleep is longer than kPeerCheckInterval.
//
// Threads as channel.h says. Compiled into the guest library.
#ifndef CONSORT_VMSOCK_RING_CHANNEL_H_
#define CONSORT_VMSOCK_RING_CHANNEL_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/unique_fd.h"
#include "base/units.h"
#include "vmsock/channel.h"
#include "vmsock/deadline.h"
#include "vmsock/limits.h"
#include "vmsock/ring.h"
#include "vmsock/ring_bells.h"
#include "vmsock/spin_budget.h"

namespace consort {

// A part of the memory that a virtual machine shares with its host.
struct VmRingPlace {
  UniqueFd file;
  Bytes offset = 0;              // of whole pages
  bool write_combining = false;  // as this side has it mapped
};

// Powers of two, kRingBytesMin..kRingBytesMax.
struct RingSizes {
  Bytes request_ring_bytes = kRequestRingBytes;
  Bytes reply_ring_bytes = kReplyRingBytes;
};
inline constexpr RingSizes kVmRingSizes = {kVmRingBytes, kVmRingBytes};
bool RingSizesValid(const RingSizes& sizes);
// What rings of `sizes` take, with their bells.
constexpr Bytes RingMemoryBytes(const RingSizes& sizes) {
  return 0x1000 + sizes.request_ring_bytes + sizes.reply_ring_bytes;
}

// Up to which position of the reply ring in this memory (RingChannel::shared_memory) there are
// replies: as the host has published it last, which the guest could change.
uint64_t RepliesUntil(std::span<const std::byte> memory);
// Likewise of a file with such memory at `offset`. False: there is none.
bool ReadRepliesUntil(int file, Bytes offset, uint64_t* position);

// A new memfd for rings of `sizes`, of fixed size for good (sealed), all zero, close-on-exec. Empty
// on failure, with errno.
UniqueFd CreateRingMemory(const RingSizes& sizes);

class RingChannel final : public Channel {
 public:
  // Which end this is: the guest sends requests and receives replies.
  enum class Side : uint8_t { kGuest, kHost };

  // Maps `memory` and takes `socket`, a connected UNIX stream with nothing unread on it. Null on
  // failure, with errno: EINVAL, sizes out of range; EPROTO, the memory is smaller than they say or
  // could still shrink (which would be a SIGBUS later); else what the kernel says.
  static std::unique_ptr<RingChannel> Create(Side side, const RingSizes& sizes, UniqueFd memory,
                                             UniqueFd socket);
  // Likewise in a virtual machine's memory, over any stream, on which there may be bells already.
  // The part is all zero at first. EPROTO: the file ends before the rings do.
  static std::unique_ptr<RingChannel> CreateInVm(Side side, const RingSizes& sizes,
                                                 VmRingPlace place, UniqueFd socket);
  // In the process that created it: Close. In a forked child: only gives the child's copies back.
  ~RingChannel() override;

  std::byte* TryReserve(uint32_t bytes) override;
  void Commit() override;
  ChannelStatus Flush() override;
  ChannelStatus TryReceive(Frame* frame) override;
  void Release(const Frame& frame) override;
  void Expect() override { consumer_.Expect(); }
  bool PutBack() override;
  ChannelStatus Wait(uint32_t events, Nanos spin, Nanos timeout) override;
  bool passes_descriptors() const override { return !bells_->on_stream(); }
  bool SendDescriptor(int fd) override;
  int ReceiveDescriptor(Nanos timeout) override;
  bool Describe(ChannelHandover* handover) const override;
  void Abandon() override;
  bool Part() override { return false; }  // its memory cannot follow
  bool Rejoin(UniqueFd) override { return false; }
  void Close() override;
  const char* name() const override { return name_; }

  // Goes on where another process stopped, at its positions. Before any other use. False: they
  // cannot be.
  bool Resume(uint64_t received, uint64_t sent);

  // The whole mapping, page aligned, for registration with a device driver. Frames' bodies and
  // reservations lie within. Valid as long as the channel.
  std::span<std::byte> shared_memory() const { return memory_; }

  // Where in the file they begin.
  Bytes offset() const { return offset_; }

  // From malloc, so that the guest library needs no allocator of C++.
  static void* operator new(size_t bytes) noexcept;
  static void operator delete(void* memory);

 private:
  // Why the channel ended, if it did.
  enum class State : uint8_t { kOpen, kClosed, kProtocol };

  struct Parts {
    const char* name = nullptr;
    UniqueFd socket;
    UniqueFd file;
    Bytes offset = 0;
    bool write_combining = false;
    std::span<std::byte> memory;
    std::unique_ptr<RingBells> bells;
  };
  RingChannel(Side side, const RingSizes& sizes, Parts parts);
  // Prepares the socket and maps the memory. False on failure, with errno.
  static bool Map(const RingSizes& sizes, Parts* parts);
  // Of parts that are mapped. Null when there is no memory, for the bells neither.
  static std::unique_ptr<RingChannel> Make(Side side, const RingSizes& sizes, Parts parts);

  bool Ready(uint32_t events) const;
  ChannelStatus EndStatus() const;
  // kAgain while the channel can go on and none of `events` is possible yet.
  ChannelStatus Look(uint32_t events) const;
  // Whether the peer has closed or is gone. `ask_kernel`: looks at the socket.
  bool PeerGone(bool ask_kernel);
  ChannelStatus Sleep(uint32_t events, const Deadline& deadline);
  void Fail();
  void End(State state);

  const char* const name_;
  const std::span<std::byte> memory_;
  const UniqueFd socket_;
  const UniqueFd file_;  // of the memory, for Describe; a host's only
  const Bytes offset_;   // in the file
  const RingSizes sizes_;
  const pid_t creator_;
  const std::unique_ptr<RingBells> bells_;
  std::atomic<uint32_t>* const i_closed_;
  std::atomic<uint32_t>* const peer_closed_;

  // Written by Close and on failure, by any thread; all readers act the same on an old value as if
  // they had come earlier, so relaxed order is enough.
  std::atomic<State> state_{State::kOpen};
  // Set for good by the first thread that sees the socket hang up. Release and acquire: who reads
  // it sees the last frames, as the thread that asked the kernel does.
  std::atomic<bool> hung_up_{false};
  SpinBudget spin_;

  // Sender's.
  RingProducer producer_;
  uint32_t full_polls_ = 0;
  bool unflushed_ = false;
  // Receiver's.
  RingConsumer consumer_;
  uint32_t empty_polls_ = 0;
};

}  // namespace consort

#endif  // CONSORT_VMSOCK_RING_CHANNEL_H_
