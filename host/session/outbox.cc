// SPDX-License-Identifier: Apache-2.0
#include "host/session/outbox.h"

#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "gen/wire/requests.h"

namespace consort::host {
namespace {

// Of a frame with TransferData, before its data.
constexpr uint32_t kTransferHeadBytes = sizeof(wire::FrameHeader) + 3 * sizeof(uint64_t);
// Smaller pieces are copied: waking up to take them back would cost more.
constexpr uint32_t kLentBytesMin = 64 * kKiB;

}  // namespace

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

void Outbox::EncodeTransferHead(const Kept& data, std::byte* at) {
  wire::TransferDataEvent event;
  event.transfer = data.transfer;
  event.offset = data.offset;
  wire::Encoder encoder(at + sizeof(wire::FrameHeader), event.BodyBytes());
  event.Encode(encoder);
  const uint64_t length = data.bytes;
  CHECK(encoder.at() == at + kTransferHeadBytes);
  std::memcpy(encoder.at() - sizeof(length), &length, sizeof(length));
  event.data = {data.piece.memory, data.bytes};
  wire::FrameHeader header;
  header.bytes = wire::FrameBytes(event.BodyBytes());
  header.opcode = static_cast<uint16_t>(wire::TransferDataEvent::kOpcode);
  std::memcpy(at, &header, sizeof(header));
}

bool Outbox::TrySendTransferData(const Kept& data) {
  const uint32_t padded = (data.bytes + 7) & ~7u;
  const bool lend = conduit_ != nullptr && data.bytes >= kLentBytesMin;
  std::byte* at = channel_->TryReserve(lend ? kTransferHeadBytes : kTransferHeadBytes + padded);
  if (at == nullptr) return false;
  EncodeTransferHead(data, at);
  unflushed_ = true;
  if (lend) {
    // Pieces are multiples of 8.
    std::memset(data.piece.memory + data.bytes, 0, padded - data.bytes);
    lent_.push_back({conduit_->CommitWith({data.piece.memory, padded}), data.piece});
    return true;
  }
  std::memcpy(at + kTransferHeadBytes, data.piece.memory, data.bytes);
  std::memset(at + kTransferHeadBytes + data.bytes, 0, padded - data.bytes);
  copied_bytes_ += data.bytes;
  channel_->Commit();
  staging_->Return(data.piece);
  return true;
}

void Outbox::TakeBackLent() {
  if (lent_.empty()) return;
  const uint64_t taken = conduit_->taken();
  while (!lent_.empty() && lent_.front().until <= taken) {
    staging_->Return(lent_.front().piece);
    lent_.pop_front();
  }
  if (!lent_.empty()) conduit_->AwaitTaken(lent_.front().until);
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
  TakeBackLent();
  return kept_.empty() && !unflushed_;
}

}  // namespace consort::host
