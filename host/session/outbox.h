// SPDX-License-Identifier: Apache-2.0
// host/session/outbox.h: what a session has to say, in order, whether or not the channel has room.
//
// Frames go straight into the channel while it has room. What does not fit is kept here and goes
// first later; while anything is kept the session reads no further request, so the outbox holds at
// most what one request and the completions in flight produce. Owned by the session loop.
#ifndef CONSORT_HOST_SESSION_OUTBOX_H_
#define CONSORT_HOST_SESSION_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "host/session/staging.h"
#include "vmsock/channel.h"
#include "vmsock/conduit_channel.h"
#include "vmsock/wire/frame.h"

namespace consort::host {

class Outbox {
 public:
  // All are borrowed for the outbox's life. `conduit`: `channel`, if it is one and staging has its
  // memory; then large pieces are sent from where they are. Else null.
  Outbox(Channel* channel, Staging* staging, ConduitChannel* conduit)
      : channel_(channel), staging_(staging), conduit_(conduit) {}

  // Room for the body of a frame with `header`, whose length is set here; 8-aligned, until End.
  // body_bytes <= kFrameBytesMax - header.
  std::byte* Begin(wire::FrameHeader header, uint32_t body_bytes);
  void End();

  // Sends bytes [offset, offset + bytes) of a transfer, which lie at the beginning of `piece`; the
  // piece goes back to staging when they are in the channel, or were taken from where they are.
  void SendTransferData(uint64_t transfer, uint64_t offset, uint32_t bytes,
                        const Staging::Piece& piece);

  // Moves what was kept into the channel and makes all of it visible to the guest. Gives pieces
  // back that were taken. False: something is left for later.
  bool Pump();
  // Whether there is room for more: nothing was kept.
  bool empty() const { return kept_.empty(); }
  // Whether the frame that was begun last has its place in the channel.
  bool in_channel() const { return in_channel_; }
  // Whether everything is on its way: Pump has nothing to do until there is more.
  bool flushed() const { return kept_.empty() && !unflushed_ && lent_.empty(); }
  // Bytes of transfers that a CPU has copied into the channel.
  uint64_t copied_bytes() const { return copied_bytes_; }

 private:
  struct Kept {
    std::vector<std::byte> frame;  // empty: transfer data
    uint64_t transfer = 0;
    uint64_t offset = 0;
    uint32_t bytes = 0;
    Staging::Piece piece;
  };
  // A piece that the channel sends from, until so much was taken.
  struct Lent {
    uint64_t until = 0;
    Staging::Piece piece;
  };
  bool TrySendTransferData(const Kept& data);
  // The header and all fields but the data, which is the last; `at` has room for
  // kTransferHeadBytes.
  static void EncodeTransferHead(const Kept& data, std::byte* at);
  void TakeBackLent();

  Channel* const channel_;
  Staging* const staging_;
  ConduitChannel* const conduit_;
  std::deque<Kept> kept_;
  std::deque<Lent> lent_;
  uint64_t copied_bytes_ = 0;
  bool in_channel_ = false;  // the frame between Begin and End
  bool unflushed_ = false;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_OUTBOX_H_
