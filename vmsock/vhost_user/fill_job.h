// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/fill_job.h: packets that carry bytes of a stream into receive buffers of a
// guest, for a crew to write (copy_crew.h).
//
// Owned by the device's thread, which fills it while done; copiers read it until then. It says as
// little as it can, for all of it goes from one processor's cache to another's: packets of a job
// have one header but for its length, and their payloads follow each other in the job's sources.
// Where all have their place in one piece and carry alike, as Linux's buffers do, an address is all
// that is said of each. A share is so many whole packets.
#ifndef CONSORT_VMSOCK_VHOST_USER_FILL_JOB_H_
#define CONSORT_VMSOCK_VHOST_USER_FILL_JOB_H_

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "vmsock/copy_crew.h"
#include "vmsock/vhost_user/limits.h"
#include "vmsock/vhost_user/packet.h"
#include "vmsock/vhost_user/virtqueue.h"

namespace consort::vhost_user {

// Most that a packet carries whose place has so many bytes, more than a header.
inline uint64_t PayloadRoom(uint64_t place_bytes) {
  return std::min<uint64_t>(place_bytes - kPacketHeaderBytes, kPacketPayloadBytesMax);
}

class FillJob final : public CopyJob {
 public:
  FillJob();

  // Forgets what it had.
  void Clear();
  // It has as much as a step should: no further packet, and no source that no packet needs.
  bool full() const {
    return pieces_.size() >= kPiecesPerCopy || sources_.size() >= kPiecesPerCopy;
  }
  // What payloads are read from, behind the sources before: in all at least as many bytes as
  // payloads have.
  void AddSource(std::span<const std::byte> bytes);
  // The next packet, at the beginning of `pieces`, which have room for its header and
  // `payload_bytes`, of which there is one at least. At most kPacketsPerCopy packets.
  void AddPacket(std::span<const iovec> pieces, uint32_t payload_bytes) {
    SpreadAlike();
    uint32_t begins = payload_bytes;
    uint64_t left = kPacketHeaderBytes + payload_bytes;
    bytes_ += left;
    for (const iovec& piece : pieces) {
      const uint64_t count = std::min<uint64_t>(left, piece.iov_len);
      pieces_.push_back(
          {static_cast<std::byte*>(piece.iov_base), static_cast<uint32_t>(count), begins});
      left -= count;
      if (left == 0) return;
      begins = 0;
    }
  }
  // The same for packets that carry `payload_bytes` in all, one at least: one a place, as much in
  // each as it and a packet have room for, until the bytes or the places are over. Tells each one's
  // payload, and returns how many they are.
  size_t AddPackets(std::span<const WritableBuffer> places, uint64_t payload_bytes,
                    std::span<uint32_t> payloads);
  // Of each packet; `len` is filled in. Before it begins.
  void SetHeader(const PacketHeader& header) { alike_.header = header; }
  // Whether a crew writes payloads past the caches (streaming_copy.h): no processor will read them
  // soon. Before it begins.
  void SetPastCaches(bool past) { alike_.past_caches = past; }

  void CopyAlone() const override;
  // It will be filled again soon; threads of the crew have read what it had.
  void PrefetchForNext() const;

 private:
  // A piece of a packet's place, as it is filled.
  struct Piece {
    std::byte* to = nullptr;
    uint32_t bytes = 0;
    uint32_t payload_bytes = 0;  // of the packet that begins here; none: it goes on here
  };
  // Packets of one piece each, at `to_`, that carry as much as each other, but for the last, which
  // may carry less; and, of all packets, their header. What copiers of such packets read of a job
  // besides are addresses and sources.
  struct alignas(64) Alike {
    PacketHeader header;
    uint32_t count = 0;  // none: packets are pieces
    uint32_t payload_bytes = 0;
    uint32_t last_bytes = 0;  // payload of the last
    uint32_t share_packets = 0;
    bool past_caches = false;  // of all packets, too
  };
  // Where a share of pieces begins.
  struct Place {
    uint32_t piece = 0;
    uint32_t source = 0;
    uint64_t offset = 0;  // in that source
  };

  uint64_t bytes() const override { return bytes_; }
  uint32_t Divide(uint64_t share_bytes) override;
  void CopyShare(uint32_t share) const override;
  // Of AddPackets the first ones that are like those before, which are alike; `left` says what of
  // the bytes is left for others. Says how many they are.
  size_t AddAlike(std::span<const WritableBuffer> places, uint64_t* left,
                  std::span<uint32_t> payloads);
  // Packets that are alike become pieces, for others to follow.
  void SpreadAlike();
  // Those from `begin` on, before the one at `end`.
  void CopyAlike(uint32_t begin, uint32_t end, bool past_caches) const;
  void CopyPieces(Place begin, size_t end, bool past_caches) const;
  // Of the sources from the place on, which moves behind it.
  void CopyPayload(std::byte* to, size_t bytes, bool past_caches, Place* from) const;

  Alike alike_;
  alignas(64) absl::InlinedVector<std::span<const std::byte>, 3> sources_;
  alignas(64) std::array<std::byte*, kPacketsPerCopy> to_;
  alignas(64) uint64_t bytes_ = 0;
  uint32_t shares_ = 0;  // of pieces
  std::vector<Piece> pieces_;
  std::array<Place, kPacketsPerCopy> places_;  // of the first `shares_`
};

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_FILL_JOB_H_
