// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/fill_job.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "vmsock/prefetch.h"

namespace consort::vhost_user {

FillJob::FillJob() { pieces_.reserve(kPacketsPerCopy); }

void FillJob::Clear() {
  bytes_ = 0;
  pieces_.clear();
  sources_.clear();
}

void FillJob::AddSource(std::span<const std::byte> bytes) { sources_.push_back(bytes); }

size_t FillJob::AddPackets(std::span<const WritableBuffer> places, uint64_t payload_bytes,
                           std::span<uint32_t> payloads) {
  const size_t before = pieces_.size();
  pieces_.resize(before + places.size());
  Piece* const pieces = pieces_.data() + before;
  size_t count = 0;
  uint64_t left = payload_bytes;
  for (; left > 0 && count < places.size(); ++count) {
    const iovec& place = places[count].place;
    const auto payload = static_cast<uint32_t>(std::min(
        left, std::min<uint64_t>(place.iov_len - kPacketHeaderBytes, kPacketPayloadBytesMax)));
    pieces[count] = {static_cast<std::byte*>(place.iov_base),
                     static_cast<uint32_t>(kPacketHeaderBytes) + payload, payload};
    payloads[count] = payload;
    left -= payload;
  }
  pieces_.resize(before + count);
  bytes_ += count * kPacketHeaderBytes + payload_bytes - left;
  return count;
}

void FillJob::CopyAlone() const { CopyPieces({}, pieces_.size()); }

void FillJob::PrefetchForNext() const {
  PrefetchForWrite(&header_, reinterpret_cast<const std::byte*>(places_.data() + shares_) -
                                 reinterpret_cast<const std::byte*>(&header_));
  PrefetchForWrite(pieces_.data(), kPacketsPerCopy * sizeof(Piece));
  if (!sources_.empty()) PrefetchForWrite(sources_.data(), sizeof(sources_[0]));
  PrefetchCount();
}

uint32_t FillJob::Divide(uint64_t share_bytes) {
  shares_ = 0;
  Place next;
  uint64_t room = 0;     // of the share that the next packet belongs to
  uint64_t payload = 0;  // of that share
  for (const Piece& piece : pieces_) {
    if (piece.payload_bytes > 0) {
      const uint64_t count = kPacketHeaderBytes + piece.payload_bytes;
      if (count > room) {
        for (next.offset += payload;
             next.source < sources_.size() && next.offset >= sources_[next.source].size();
             ++next.source) {
          next.offset -= sources_[next.source].size();
        }
        CHECK_LT(shares_, places_.size());
        places_[shares_++] = next;
        room = std::max(share_bytes, count);
        payload = 0;
      }
      room -= count;
      payload += piece.payload_bytes;
    }
    ++next.piece;
  }
  return shares_;
}

void FillJob::CopyShare(uint32_t share) const {
  CopyPieces(places_[share], share + 1 < shares_ ? places_[share + 1].piece : pieces_.size());
}

void FillJob::CopyPieces(Place begin, size_t end) const {
  auto [first, source, offset] = begin;
  PacketHeader header = header_;
  const auto* const header_bytes = reinterpret_cast<const std::byte*>(&header);
  size_t header_at = 0;
  for (size_t i = first; i < end; ++i) {
    const Piece& piece = pieces_[i];
    if (piece.payload_bytes > 0) {
      header.len = piece.payload_bytes;
      header_at = 0;
    }
    std::byte* to = piece.to;
    size_t left = piece.bytes;
    const size_t of_header = std::min(left, kPacketHeaderBytes - header_at);
    std::memcpy(to, header_bytes + header_at, of_header);
    header_at += of_header;
    to += of_header;
    left -= of_header;
    while (left > 0) {
      const std::span<const std::byte> from = sources_[source];
      const size_t count = std::min(left, from.size() - offset);
      std::memcpy(to, from.data() + offset, count);
      to += count;
      left -= count;
      offset += count;
      if (offset == from.size()) {
        ++source;
        offset = 0;
      }
    }
  }
}

}  // namespace consort::vhost_user
