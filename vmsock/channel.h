// SPDX-License-Identifier: Apache-2.0
// vmsock/channel.h: an ordered, reliable, two-way pipe of frames between a guest process and a host
// session. The seam between transports and everything else: a transport does not know what a call
// is, nothing above knows how bytes travel.
//
// Threads: one sender and one receiver at a time, who may be different threads (callers hold a lock
// each); Wait and Close may be called from any thread at any time.
// Nothing but Wait blocks. A full or empty channel is an ordinary result: the caller does something
// useful (drains the other direction, polls the device) and waits.
// Compiled into the guest library: no exceptions, no allocation after construction, no libstdc++.
//
// Received bytes come from a peer that is not trusted. A frame's header is copied out and checked
// before the frame is handed up; its body may lie in memory that the peer can still write (rings),
// so whoever decodes it must read each field once (Decoder does) and must not re-read after
// checking.
#ifndef CONSORT_VMSOCK_CHANNEL_H_
#define CONSORT_VMSOCK_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/unique_fd.h"
#include "base/units.h"
#include "vmsock/wire/frame.h"

namespace consort {

enum class ChannelStatus : uint8_t {
  kOk,
  kAgain,     // nothing to receive, no room to send, or the wait timed out
  kClosed,    // the peer is gone or Close was called; final
  kProtocol,  // the peer sent something that is no frame; final, the channel is closed
};

// A received frame. `body` is valid until Release.
struct Frame {
  wire::FrameHeader header;
  std::span<const std::byte> body;
  uint64_t token = 0;  // the channel's own; for Release
  uint64_t end = 0;    // of a channel with rings: the position after it
};

// What another process of the same side needs to go on with a channel where this one stops.
struct ChannelHandover {
  int socket = -1;               // borrowed
  int memory = -1;               // of rings or a conduit, borrowed; -1: there is none
  Bytes memory_offset = 0;       // of rings, in that file
  bool in_vm = false;            // rings: the file is a virtual machine's memory
  Bytes request_ring_bytes = 0;  // of a conduit: 0
  Bytes reply_ring_bytes = 0;
  // Positions in the rings: what was received and released, and what was sent.
  uint64_t received = 0;
  uint64_t sent = 0;
  // Bytes of a stream that were read and are not received; valid until the next call. Those of a
  // conduit lie in its memory, too.
  std::span<const std::byte> unread;
};

class Channel {
 public:
  virtual ~Channel() = default;

  // Sending. TryReserve gives room for one frame of `bytes` in all (multiple of 8, <=
  // kFrameBytesMax), 8-aligned, or null when full or closed. The caller writes the header and body
  // there and Commits. One reservation at a time. A committed frame may sit here until Flush, which
  // makes all of them visible to the peer and wakes it if it sleeps; kAgain from Flush: some bytes
  // are still queued, Wait for kWritable and Flush again.
  virtual std::byte* TryReserve(uint32_t bytes) = 0;
  virtual void Commit() = 0;
  virtual ChannelStatus Flush() = 0;

  // Receiving. kOk: `frame` holds the next frame. Frames may be held and Released in any order;
  // memory is reused in order of receipt, so a frame that is held long stops the peer in the end.
  virtual ChannelStatus TryReceive(Frame* frame) = 0;
  virtual void Release(const Frame& frame) = 0;
  // A frame is received in a moment, if there is one: what that needs from other processors is on
  // its way meanwhile, where that helps.
  virtual void Expect() {}
  // All frames that are held are as if they had not been received: TryReceive gives them again.
  // False: one that came after one of them was released, and nothing has changed.
  virtual bool PutBack() = 0;

  // Waits until one of `events` may be possible, the channel is closed, or `timeout` is over
  // (negative: no limit). May return early. Spins at most `spin` of that time before it sleeps,
  // less where spinning has not paid lately (spin_budget.h).
  static constexpr uint32_t kReadable = 1;  // TryReceive may succeed
  static constexpr uint32_t kWritable = 2;  // TryReserve of kFrameBytesMax, or Flush, may succeed
  virtual ChannelStatus Wait(uint32_t events, Nanos spin, Nanos timeout) = 0;

  // Passes an open descriptor beside the frames, in order among themselves, where both ends are on
  // one machine. Send borrows `fd`. Receive gives a new descriptor that the caller owns, or -1; it
  // waits at most `timeout`. False and -1 where the transport cannot.
  virtual bool passes_descriptors() const = 0;
  virtual bool SendDescriptor(int fd) = 0;
  virtual int ReceiveDescriptor(Nanos timeout) = 0;

  // Describes where the channel stands, for another process that goes on with it. False: frames are
  // held or not wholly sent, or this end is not a host's. Sender and receiver at once.
  virtual bool Describe(ChannelHandover* handover) const = 0;
  // Ends this object alone: the peer notices nothing, another process has the channel now.
  virtual void Abandon() = 0;

  // Ends the connection and keeps the channel for Rejoin, once the peer has ended its direction and
  // all that it said was received. Sender and receiver at once. False: not this kind of channel, or
  // a frame is half-way.
  virtual bool Part() = 0;
  // Goes on over another connection to whoever has the peer's end by now. After Part; likewise
  // sender and receiver at once. False: the descriptor could not take the old one's place.
  virtual bool Rejoin(UniqueFd socket) = 0;

  // Ends both directions; the peer sees kClosed after what was flushed before. Idempotent.
  virtual void Close() = 0;

  // The transport's name for people: "unix+rings", "vsock+rings", "conduit", "vsock", "unix",
  // "tcp".
  virtual const char* name() const = 0;
};

}  // namespace consort

#endif  // CONSORT_VMSOCK_CHANNEL_H_
