// SPDX-License-Identifier: Apache-2.0
#include "host/session/residency.h"

#include <vector>

namespace consort::host {

// Makes the window this session's.
Residency::Verdict Residency::Take(const MemoryNeed& need, Nanos now) {
  if (bringing_) {
    const MemoryClient::Answer brought = client_->Brought(now);
    if (brought == MemoryClient::Answer::kWaiting) return Verdict::kWait;
    bringing_ = false;
    in_use_ = true;
    failure_ = client_->failure();
    if (brought == MemoryClient::Answer::kNo) return Verdict::kRefuse;
  }
  if (!in_use_) {
    if (!client_->BeginUse()) {
      client_->RequestBring(need, now);
      bringing_ = true;
      return Verdict::kWait;
    }
    in_use_ = true;
    failure_ = client_->failure();
    if (failure_ != CUDA_SUCCESS) return Verdict::kRefuse;
  }
  if (client_->leave_asked()) return Verdict::kWait;
  return Verdict::kGo;
}

Residency::Verdict Residency::CheckTable(Nanos now) {
  if (!swaps_ || (in_use_ && !client_->leave_asked())) return Verdict::kGo;
  return Take(MemoryNeed(), now);
}

Residency::Verdict Residency::Check(const MemoryNeed& need, Nanos now) {
  const Verdict taken = Take(need, now);
  if (taken != Verdict::kGo) return taken;
  const std::vector<uint64_t> extents = client_->Resolve(need);
  if (window_->AwayBytesOf(extents) == 0) {
    window_->NoteUse(extents);
    missing_.reset();
    wants_rest_ = false;
    return Verdict::kGo;
  }
  if (window_->BytesOf(extents) > client_->device_bytes_max()) return Verdict::kRefuse;
  missing_ = need;
  wants_rest_ = true;
  return Verdict::kWait;
}

void Residency::Rest(Nanos since) {
  if (!in_use_) return;
  client_->EndUse(since);
  in_use_ = false;
  wants_rest_ = false;
  if (!missing_.has_value()) return;
  client_->RequestBring(*std::move(missing_), since);
  missing_.reset();
  bringing_ = true;
}

}  // namespace consort::host
