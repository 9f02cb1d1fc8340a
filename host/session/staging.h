// SPDX-License-Identifier: Apache-2.0
// host/session/staging.h: pinned pieces of host memory through which copies go that have no better
// way.
//
// Two sizes, so that many small copies can be in flight. Made at first use, or part of a channel's
// memory. Owned by the session loop; calls need the worker's context. Bounds: kStaging... in
// host/limits.h.
#ifndef CONSORT_HOST_SESSION_STAGING_H_
#define CONSORT_HOST_SESSION_STAGING_H_

#include <cstddef>
#include <span>
#include <vector>

#include "base/units.h"
#include "gen/device/driver_table.h"
#include "host/limits.h"

namespace consort::host {

class Staging {
 public:
  struct Piece {
    std::byte* memory = nullptr;
    Bytes bytes = 0;  // kStagingPieceBytes or kStagingSmallPieceBytes
  };

  explicit Staging(const device::DriverTable& driver) : driver_(driver) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  static constexpr Bytes kBytes =
      kStagingPieces * kStagingPieceBytes + kStagingSmallPieces * kStagingSmallPieceBytes;

  // Uses `memory`, kBytes that are pinned and outlive the last Take, instead of making its own.
  // Before the first Take.
  void Use(std::span<std::byte> memory);
  // Whether Take of `bytes` finds a piece.
  bool Has(Bytes bytes) const {
    if (memory_ == nullptr) return true;
    return !(bytes <= kStagingSmallPieceBytes ? small_ : large_).empty();
  }
  // A piece of at least `bytes`, at most kStagingPieceBytes; Has said so, or the memory is not made
  // yet, in which case the driver's error may come back.
  CUresult Take(Bytes bytes, Piece* piece);
  void Return(const Piece& piece);

 private:
  CUresult Make();
  void Divide(std::byte* memory);

  const device::DriverTable& driver_;
  std::byte* memory_ = nullptr;
  bool owned_ = false;
  std::vector<std::byte*> large_;
  std::vector<std::byte*> small_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_STAGING_H_
