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
#include "vmsock/wire/frame.h"

namespace consort::host {

class Outbox {
 public:
  // Both are borrowed for the outbox's life.
  Outbox(Channel* channel, Staging* staging) : channel_(channel), staging_(staging) {}

  // Room for the body of a frame with `header`, whose length is set here; 8-aligned, until End.
  // body_bytes <= kFrameBytesMax - header.
  std::byte* Begin(wire::FrameHeader header, uint32_t body_bytes);
  void End();

  // Sends bytes [offset, offset + bytes) of a transfer, which lie at the beginning of `piece`; the
  // piece goes back to staging when they are in the channel.
  void SendTransferData(uint64_t transfer, uint64_t offset, uint32_t bytes,
                        const Staging::Piece& piece);

  // Moves what was kept into the channel and makes all of it visible to the guest.
  // False: something is left for later.
  bool Pump();
  // Whether there is room for more: nothing was kept.
  bool empty() const { return kept_.empty(); }
  // Whether everything is on its way: Pump has nothing to do until there is more.
  bool flushed() const { return kept_.empty() && !unflushed_; }

 private:
  struct Kept {
    std::vector<std::byte> frame;  // empty: transfer data
    uint64_t transfer = 0;
    uint64_t offset = 0;
    uint32_t bytes = 0;
    Staging::Piece piece;
  };
  bool TrySendTransferData(const Kept& data);

  Channel* const channel_;
  Staging* const staging_;
  std::deque<Kept> kept_;
  bool in_channel_ = false;  // the frame between Begin and End
  bool unflushed_ = false;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_OUTBOX_H_
