// SPDX-License-Identifier: Apache-2.0
#include "host/session/outbox.h"

#include <cstring>
#include <utility>

#include "base/log.h"
#include "gen/wire/requests.h"

namespace consort::host {

std::byte* Outbox::Begin(wire::FrameHeader header, uint32_t body_bytes) {
  header.bytes = wire::FrameBytes(body_bytes);
  CHECK_LE(header.bytes, wire::kFrameBytesMax);
  std::byte* at = kept_.empty() ? channel_->TryReserve(header.bytes) : nullptr;
  in_channel_ = at != nullptr;
  if (!in_channel_) {
    kept_.emplace_back();
    kept_.back().frame.resize(header.bytes);
    at = kept_.back().frame.data();
  }
  std::memcpy(at, &header, sizeof(header));
  return at + sizeof(header);
}

void Outbox::End() {
  if (!in_channel_) return;
  channel_->Commit();
  unflushed_ = true;
}

bool Outbox::TrySendTransferData(const Kept& data) {
  wire::TransferDataEvent event;
  event.transfer = data.transfer;
  event.offset = data.offset;
  event.data = {data.piece.memory, data.bytes};
  wire::FrameHeader header;
  header.bytes = wire::FrameBytes(event.BodyBytes());
  header.opcode = static_cast<uint16_t>(wire::TransferDataEvent::kOpcode);
  std::byte* at = channel_->TryReserve(header.bytes);
  if (at == nullptr) return false;
  std::memcpy(at, &header, sizeof(header));
  wire::Encoder encoder(at + sizeof(header), header.bytes - sizeof(header));
  event.Encode(encoder);
  channel_->Commit();
  unflushed_ = true;
  staging_->Return(data.piece);
  return true;
}

void Outbox::SendTransferData(uint64_t transfer, uint64_t offset, uint32_t bytes,
                              const Staging::Piece& piece) {
  Kept data;
  data.transfer = transfer;
  data.offset = offset;
  data.bytes = bytes;
  data.piece = piece;
  if (kept_.empty() && TrySendTransferData(data)) {
    // The guest copies this piece out while the next is copied in.
    Pump();
    return;
  }
  kept_.push_back(std::move(data));
}

bool Outbox::Pump() {
  while (!kept_.empty()) {
    const Kept& first = kept_.front();
    if (first.frame.empty()) {
      if (!TrySendTransferData(first)) break;
    } else {
      std::byte* at = channel_->TryReserve(static_cast<uint32_t>(first.frame.size()));
      if (at == nullptr) break;
      std::memcpy(at, first.frame.data(), first.frame.size());
      channel_->Commit();
      unflushed_ = true;
    }
    kept_.pop_front();
  }
  if (unflushed_) unflushed_ = channel_->Flush() == ChannelStatus::kAgain;
  return kept_.empty() && !unflushed_;
}

}  // namespace consort::host
