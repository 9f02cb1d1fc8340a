// SPDX-License-Identifier: Apache-2.0
#include "host/session/managed_variables.h"

#include <algorithm>
#include <vector>

#include "absl/status/statusor.h"
#include "base/log.h"
#include "device/image/image.h"

namespace consort::host {

void* ManagedVariables::Take(Bytes bytes, int* fresh) {
  // Once a library: the driver loads one.
  if (taken_ != 0) return nullptr;
  *fresh = given_ == 0 ? 1 : 0;
  if (given_ != 0 ? !memory_->IsAllocation(given_) || !memory_->Covers(given_, bytes)
                  : memory_->Allocate(bytes, &taken_) != CUDA_SUCCESS) {
    return nullptr;
  }
  if (given_ != 0) taken_ = given_;
  bytes_ = bytes;
  return reinterpret_cast<void*>(taken_);
}

void ManagedVariables::Drop() {
  if (taken_ != 0 && given_ == 0) (void)memory_->Free(taken_);
  taken_ = 0;
  bytes_ = 0;
  places_.clear();
}

std::optional<std::string> ManagedVariables::PlaceIn(std::span<const std::byte> image,
                                                     uint32_t capability) {
  if (asks_ || memory_ == nullptr) return std::nullopt;
  absl::StatusOr<std::vector<std::string>> texts = image::SelectPtx(
      image, {.capability = capability, .machine_code = false, .prefer_portable = false});
  if (!texts.ok() || texts->size() != 1 || !image::ManagedPtx::MayBeIn(texts->front())) {
    return std::nullopt;
  }
  const absl::StatusOr<image::ManagedPtx> ptx = image::ManagedPtx::Parse(std::move(texts->front()));
  if (!ptx.ok()) {
    VLOG(1) << "managed variables stay the driver's: " << ptx.status().message();
    return std::nullopt;
  }
  int fresh = 0;
  if (ptx->variables().empty() || Take(ptx->bytes(), &fresh) == nullptr) return std::nullopt;
  if (fresh != 0) {
    for (const image::ManagedPtx::Contents& contents : ptx->contents()) {
      std::copy(contents.bytes.begin(), contents.bytes.end(),
                reinterpret_cast<std::byte*>(taken_ + contents.offset));
    }
  }
  for (const auto& [name, variable] : ptx->variables()) {
    places_[name] = {taken_ + variable.offset, variable.bytes};
  }
  return ptx->At(taken_);
}

}  // namespace consort::host
