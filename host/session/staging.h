// SPDX-License-Identifier: Apache-2.0
// host/session/staging.h: pinned pieces of host memory through which copies go that have no better
// way.
//
// Two sizes, so that many small copies can be in flight. Those of a size are made at the first use
// of one, or all are part of a channel's memory. Owned by the session loop; calls need the worker's
// context. Bounds: kStaging... in host/limits.h.
#ifndef CONSORT_HOST_SESSION_STAGING_H_
#define CONSORT_HOST_SESSION_STAGING_H_

#include <cstddef>
#include <span>
#include <vector>

#include "base/units.h"
#include "gen/device/driver_table.h"
#include "host/limits.h"

namespace consort::host {

class WorkerDevice;

class Staging {
 public:
  struct Piece {
    std::byte* memory = nullptr;
    Bytes bytes = 0;  // kStagingPieceBytes or kStagingSmallPieceBytes
  };

  explicit Staging(const WorkerDevice& device) : device_(device) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  static constexpr Bytes kBytes =
      kStagingPieces * kStagingPieceBytes + kStagingSmallPieces * kStagingSmallPieceBytes;
  // In large pages.
  static_assert(kStagingPieces * kStagingPieceBytes % (2 * kMiB) == 0);
  static_assert(kStagingSmallPieces * kStagingSmallPieceBytes % (2 * kMiB) == 0);

  // Uses `memory`, kBytes that are pinned and outlive the last Take, instead of making its own.
  // Before the first Take.
  void Use(std::span<std::byte> memory);
  // Whether Take of `bytes` finds a piece.
  bool Has(Bytes bytes) const {
    const Pieces& pieces = bytes <= kStagingSmallPieceBytes ? small_ : large_;
    return pieces.memory == nullptr || !pieces.free.empty();
  }
  // A piece of at least `bytes`, at most kStagingPieceBytes; Has said so, or there are none of that
  // size yet, in which case the driver's error may come back.
  CUresult Take(Bytes bytes, Piece* piece);
  void Return(const Piece& piece);

 private:
  // Of one size.
  struct Pieces {
    uint32_t count;
    Bytes bytes;  // each
    std::byte* memory = nullptr;
    bool owned = false;
    std::vector<std::byte*> free = {};
  };
  static void Divide(std::byte* memory, Pieces* pieces);

  const WorkerDevice& device_;
  Pieces large_ = {kStagingPieces, kStagingPieceBytes};
  Pieces small_ = {kStagingSmallPieces, kStagingSmallPieceBytes};
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_STAGING_H_
