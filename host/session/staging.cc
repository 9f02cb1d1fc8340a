// SPDX-License-Identifier: Apache-2.0
#include "host/session/staging.h"

#include "base/log.h"
#include "host/session/worker_device.h"

namespace consort::host {

Staging::~Staging() {
  for (const Pieces* pieces : {&large_, &small_}) {
    if (pieces->owned) device_.FreePinned(pieces->memory, pieces->count * pieces->bytes);
  }
}

void Staging::Use(std::span<std::byte> memory) {
  CHECK(large_.memory == nullptr && small_.memory == nullptr);
  CHECK_GE(memory.size(), kBytes);
  Divide(memory.data(), &large_);
  Divide(memory.data() + large_.count * large_.bytes, &small_);
}

void Staging::Divide(std::byte* memory, Pieces* pieces) {
  pieces->memory = memory;
  for (uint32_t i = pieces->count; i-- > 0;) pieces->free.push_back(memory + i * pieces->bytes);
}

CUresult Staging::Take(Bytes bytes, Piece* piece) {
  CHECK_LE(bytes, kStagingPieceBytes);
  Pieces& pieces = bytes <= kStagingSmallPieceBytes ? small_ : large_;
  if (pieces.memory == nullptr) {
    std::byte* memory = nullptr;
    const CUresult made = device_.MakePinned(pieces.count * pieces.bytes, &memory);
    if (made != CUDA_SUCCESS) return made;
    pieces.owned = true;
    Divide(memory, &pieces);
  }
  CHECK(!pieces.free.empty());
  *piece = {pieces.free.back(), pieces.bytes};
  pieces.free.pop_back();
  return CUDA_SUCCESS;
}

void Staging::Return(const Piece& piece) {
  (piece.bytes == kStagingSmallPieceBytes ? small_ : large_).free.push_back(piece.memory);
}

}  // namespace consort::host
