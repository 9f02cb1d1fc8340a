// SPDX-License-Identifier: Apache-2.0
#include "host/session/staging.h"

#include "base/log.h"

namespace consort::host {

Staging::~Staging() {
  if (memory_ != nullptr) driver_.cuMemFreeHost(memory_);
}

CUresult Staging::Make() {
  constexpr Bytes kLarge = kStagingPieces * kStagingPieceBytes;
  constexpr Bytes kSmall = kStagingSmallPieces * kStagingSmallPieceBytes;
  void* memory = nullptr;
  const CUresult result =
      driver_.cuMemHostAlloc(&memory, kLarge + kSmall, CU_MEMHOSTALLOC_PORTABLE);
  if (result != CUDA_SUCCESS) return result;
  memory_ = static_cast<std::byte*>(memory);
  for (uint32_t i = kStagingPieces; i-- > 0;) large_.push_back(memory_ + i * kStagingPieceBytes);
  for (uint32_t i = kStagingSmallPieces; i-- > 0;) {
    small_.push_back(memory_ + kLarge + i * kStagingSmallPieceBytes);
  }
  return CUDA_SUCCESS;
}

CUresult Staging::Take(Bytes bytes, Piece* piece) {
  CHECK_LE(bytes, kStagingPieceBytes);
  if (memory_ == nullptr) {
    const CUresult made = Make();
    if (made != CUDA_SUCCESS) return made;
  }
  const bool is_small = bytes <= kStagingSmallPieceBytes;
  std::vector<std::byte*>& free = is_small ? small_ : large_;
  CHECK(!free.empty());
  *piece = {free.back(), is_small ? kStagingSmallPieceBytes : kStagingPieceBytes};
  free.pop_back();
  return CUDA_SUCCESS;
}

void Staging::Return(const Piece& piece) {
  (piece.bytes == kStagingSmallPieceBytes ? small_ : large_).push_back(piece.memory);
}

}  // namespace consort::host
