// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/fill_job.h: packets that carry bytes of a stream into receive buffers of a
// guest, for a crew to write (copy_crew.h).
//
// Owned by the device's thread, which fills it while done; copiers read it until then. It says as
// little as it can, for all of it goes from one processor's cache to another's: packets of a job
// have one header but for its length, and their payloads follow each other in the job's sources.
// A share is so many whole packets.
#ifndef CONSORT_VMSOCK_VHOST_USER_FILL_JOB_H_
#define CONSORT_VMSOCK_VHOST_USER_FILL_JOB_H_

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "vmsock/copy_crew.h"
#include "vmsock/vhost_user/limits.h"
#include "vmsock/vhost_user/packet.h"
#include "vmsock/vhost_user/virtqueue.h"

namespace consort::vhost_user {

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
  void SetHeader(const PacketHeader& header) { header_ = header; }

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
  // Where a share begins.
  struct Place {
    uint32_t piece = 0;
    uint32_t source = 0;
    uint64_t offset = 0;  // in that source
  };

  uint64_t bytes() const override { return bytes_; }
  uint32_t Divide(uint64_t share_bytes) override;
  void CopyShare(uint32_t share) const override;
  // The pieces from `begin` on, before the one at `end`.
  void CopyPieces(Place begin, size_t end) const;

  alignas(64) PacketHeader header_;
  uint32_t shares_ = 0;
  uint64_t bytes_ = 0;
  std::vector<Piece> pieces_;
  std::vector<std::span<const std::byte>> sources_;
  std::array<Place, kPacketsPerCopy> places_;  // of the first `shares_`
};

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_FILL_JOB_H_
