// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/fill_job.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "vmsock/prefetch.h"
#include "vmsock/streaming_copy.h"

namespace consort::vhost_user {

FillJob::FillJob() { pieces_.reserve(kPacketsPerCopy); }

void FillJob::Clear() {
  bytes_ = 0;
  alike_.count = 0;
  pieces_.clear();
  sources_.clear();
}

void FillJob::AddSource(std::span<const std::byte> bytes) { sources_.push_back(bytes); }

size_t FillJob::AddPackets(std::span<const WritableBuffer> places, uint64_t payload_bytes,
                           std::span<uint32_t> payloads) {
  uint64_t left = payload_bytes;
  size_t count = pieces_.empty() ? AddAlike(places, &left, payloads) : 0;
  if (left > 0 && count < places.size()) SpreadAlike();
  for (; left > 0 && count < places.size(); ++count) {
    const iovec& place = places[count].place;
    const auto payload = static_cast<uint32_t>(std::min(left, PayloadRoom(place.iov_len)));
    pieces_.push_back({static_cast<std::byte*>(place.iov_base),
                       static_cast<uint32_t>(kPacketHeaderBytes) + payload, payload});
    payloads[count] = payload;
    left -= payload;
  }
  bytes_ += count * kPacketHeaderBytes + payload_bytes - left;
  return count;
}

size_t FillJob::AddAlike(std::span<const WritableBuffer> places, uint64_t* left,
                         std::span<uint32_t> payloads) {
  if (places.empty() || *left == 0) return 0;
  const uint64_t place_bytes = places[0].place.iov_len;
  const uint64_t room = PayloadRoom(place_bytes);
  if (alike_.count == 0) {
    alike_.payload_bytes = alike_.last_bytes = static_cast<uint32_t>(std::min(*left, room));
  } else if (alike_.last_bytes != room || alike_.payload_bytes != room) {
    return 0;
  }
  const uint32_t each = alike_.payload_bytes;
  // Those that are filled.
  std::byte** const to = to_.data() + alike_.count;
  const size_t full = std::min<uint64_t>(places.size(), *left / each);
  size_t count = 0;
  for (; count < full && places[count].place.iov_len == place_bytes; ++count) {
    to[count] = static_cast<std::byte*>(places[count].place.iov_base);
    payloads[count] = each;
  }
  *left -= count * uint64_t{each};
  // And the last, if what is left does not fill it.
  if (count == full && count < places.size() && *left > 0 &&
      PayloadRoom(places[count].place.iov_len) >= *left) {
    to[count] = static_cast<std::byte*>(places[count].place.iov_base);
    payloads[count] = alike_.last_bytes = static_cast<uint32_t>(*left);
    *left = 0;
    ++count;
  }
  alike_.count += static_cast<uint32_t>(count);
  return count;
}

void FillJob::SpreadAlike() {
  for (uint32_t i = 0; i < alike_.count; ++i) {
    const uint32_t payload = i + 1 < alike_.count ? alike_.payload_bytes : alike_.last_bytes;
    pieces_.push_back({to_[i], static_cast<uint32_t>(kPacketHeaderBytes) + payload, payload});
  }
  alike_.count = 0;
}

void FillJob::CopyAlone() const {
  if (alike_.count > 0) {
    CopyAlike(0, alike_.count, /*past_caches=*/false);
  } else {
    CopyPieces({}, pieces_.size(), /*past_caches=*/false);
  }
}

void FillJob::PrefetchForNext() const {
  PrefetchForWrite(&alike_, sizeof(alike_));
  PrefetchForWrite(&sources_, sizeof(sources_));
  PrefetchForWrite(&to_, sizeof(to_));
  if (!pieces_.empty()) {
    PrefetchForWrite(pieces_.data(), pieces_.size() * sizeof(Piece));
    PrefetchForWrite(&places_, shares_ * sizeof(Place));
  }
  PrefetchCount();
}

uint32_t FillJob::Divide(uint64_t share_bytes) {
  if (alike_.count > 0) {
    const uint64_t packets = share_bytes / (kPacketHeaderBytes + alike_.payload_bytes);
    alike_.share_packets = static_cast<uint32_t>(std::clamp<uint64_t>(packets, 1, alike_.count));
    return (alike_.count - 1) / alike_.share_packets + 1;
  }
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
  const bool past_caches = alike_.past_caches;
  if (alike_.count > 0) {
    const uint32_t begin = share * alike_.share_packets;
    CopyAlike(begin, std::min(begin + alike_.share_packets, alike_.count), past_caches);
  } else {
    CopyPieces(places_[share], share + 1 < shares_ ? places_[share + 1].piece : pieces_.size(),
               past_caches);
  }
  if (past_caches) StreamingCopiesDone();
}

void FillJob::CopyAlike(uint32_t begin, uint32_t end, bool past_caches) const {
  PacketHeader header = alike_.header;
  Place from;
  for (from.offset = uint64_t{begin} * alike_.payload_bytes;
       from.offset >= sources_[from.source].size(); ++from.source) {
    from.offset -= sources_[from.source].size();
  }
  for (uint32_t i = begin; i < end; ++i) {
    header.len = i + 1 < alike_.count ? alike_.payload_bytes : alike_.last_bytes;
    std::memcpy(to_[i], &header, sizeof(header));
    CopyPayload(to_[i] + sizeof(header), header.len, past_caches, &from);
  }
}

void FillJob::CopyPieces(Place begin, size_t end, bool past_caches) const {
  Place from = begin;
  PacketHeader header = alike_.header;
  const auto* const header_bytes = reinterpret_cast<const std::byte*>(&header);
  size_t header_at = 0;
  for (size_t i = begin.piece; i < end; ++i) {
    const Piece& piece = pieces_[i];
    if (piece.payload_bytes > 0) {
      header.len = piece.payload_bytes;
      header_at = 0;
    }
    const size_t of_header = std::min<size_t>(piece.bytes, kPacketHeaderBytes - header_at);
    std::memcpy(piece.to, header_bytes + header_at, of_header);
    header_at += of_header;
    CopyPayload(piece.to + of_header, piece.bytes - of_header, past_caches, &from);
  }
}

void FillJob::CopyPayload(std::byte* to, size_t bytes, bool past_caches, Place* from) const {
  while (bytes > 0) {
    const std::span<const std::byte> source = sources_[from->source];
    const size_t count = std::min<size_t>(bytes, source.size() - from->offset);
    if (past_caches) {
      StreamingCopy(to, source.data() + from->offset, count);
    } else {
      std::memcpy(to, source.data() + from->offset, count);
    }
    to += count;
    bytes -= count;
    from->offset += count;
    if (from->offset == source.size()) {
      ++from->source;
      from->offset = 0;
    }
  }
}

}  // namespace consort::vhost_user
