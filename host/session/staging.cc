// SPDX-License-Identifier: Apache-2.0
#include "host/session/staging.h"

#include "base/log.h"

namespace consort::host {

Staging::~Staging() {
  if (owned_) driver_.cuMemFreeHost(memory_);
}

CUresult Staging::Make() {
  void* memory = nullptr;
  const CUresult result = driver_.cuMemHostAlloc(&memory, kBytes, CU_MEMHOSTALLOC_PORTABLE);
  if (result != CUDA_SUCCESS) return result;
  owned_ = true;
  Divide(static_cast<std::byte*>(memory));
  return CUDA_SUCCESS;
}

void Staging::Use(std::span<std::byte> memory) {
  CHECK(memory_ == nullptr);
  CHECK_GE(memory.size(), kBytes);
  Divide(memory.data());
}

void Staging::Divide(std::byte* memory) {
  constexpr Bytes kLarge = kStagingPieces * kStagingPieceBytes;
  memory_ = memory;
  for (uint32_t i = kStagingPieces; i-- > 0;) large_.push_back(memory_ + i * kStagingPieceBytes);
  for (uint32_t i = kStagingSmallPieces; i-- > 0;) {
    small_.push_back(memory_ + kLarge + i * kStagingSmallPieceBytes);
  }
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
