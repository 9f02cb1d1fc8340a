// SPDX-License-Identifier: Apache-2.0
#include "host/session/host_functions.h"

#include <cstring>

#include "base/log.h"
#include "host/limits.h"

namespace consort::host {

HostFunctions::~HostFunctions() {
  if (words_ != nullptr) driver_.cuMemFreeHost(words_);
}

CUresult HostFunctions::Make() {
  constexpr size_t kBytes = kHostFunctionsPerSession * 2 * sizeof(uint32_t);
  void* memory = nullptr;
  CUresult result =
      driver_.cuMemHostAlloc(&memory, kBytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  if (result != CUDA_SUCCESS) return result;
  result = driver_.cuMemHostGetDevicePointer_v2(&device_words_, memory, 0);
  if (result != CUDA_SUCCESS) {
    driver_.cuMemFreeHost(memory);
    return result;
  }
  std::memset(memory, 0, kBytes);
  words_ = static_cast<uint32_t*>(memory);
  slots_.resize(kHostFunctionsPerSession);
  for (uint64_t slot = kHostFunctionsPerSession; slot-- > 0;) free_.push_back(slot);
  return CUDA_SUCCESS;
}

CUresult HostFunctions::Enqueue(CUstream stream, uint64_t callback, const uint32_t** reached,
                                uint64_t* slot) {
  if (by_callback_.contains(callback)) return CUDA_ERROR_INVALID_VALUE;
  if (words_ == nullptr) {
    const CUresult made = Make();
    if (made != CUDA_SUCCESS) return made;
  }
  if (free_.empty()) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t taken = free_.back();
  gate_->AddHold();
  const CUdeviceptr device_reached = device_words_ + taken * 2 * sizeof(uint32_t);
  // Nothing is in the stream yet if the first fails. If only the second fails the device is broken,
  // and the slot stays out of use.
  CUresult result =
      driver_.cuStreamWriteValue32_v2(stream, device_reached, 1, CU_STREAM_WRITE_VALUE_DEFAULT);
  if (result != CUDA_SUCCESS) {
    gate_->RemoveHold();
    return result;
  }
  free_.pop_back();
  result = driver_.cuStreamWaitValue32_v2(stream, device_reached + sizeof(uint32_t), 1,
                                          CU_STREAM_WAIT_VALUE_EQ);
  if (result != CUDA_SUCCESS) {
    gate_->RemoveHold();
    return result;
  }
  slots_[taken] = {State::kQueued, callback};
  by_callback_.emplace(callback, taken);
  *reached = ReachedWord(taken);
  *slot = taken;
  return CUDA_SUCCESS;
}

uint64_t HostFunctions::Announced(uint64_t slot) {
  CHECK(slots_[slot].state == State::kQueued);
  slots_[slot].state = State::kAnnounced;
  return slots_[slot].callback;
}

bool HostFunctions::Done(uint64_t callback) {
  const auto it = by_callback_.find(callback);
  if (it == by_callback_.end() || slots_[it->second].state != State::kAnnounced) return false;
  slots_[it->second].state = State::kDone;
  // Release: what the function's thread wrote before is there when the device goes on.
  __atomic_store_n(GoWord(it->second), 1, __ATOMIC_RELEASE);
  by_callback_.erase(it);
  return true;
}

void HostFunctions::Passed(uint64_t slot) {
  // Forgotten: a session that leaves hands its pending items up after ForgetAll has ended their
  // holds.
  if (slots_[slot].state == State::kFree) return;
  __atomic_store_n(ReachedWord(slot), 0, __ATOMIC_RELAXED);
  __atomic_store_n(GoWord(slot), 0, __ATOMIC_RELAXED);
  slots_[slot].state = State::kFree;
  free_.push_back(slot);
  gate_->RemoveHold();
}

void HostFunctions::ReleaseAll() {
  for (uint64_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].state != State::kFree) __atomic_store_n(GoWord(slot), 1, __ATOMIC_RELEASE);
  }
}

void HostFunctions::ForgetAll() {
  for (Slot& slot : slots_) {
    if (slot.state == State::kFree) continue;
    slot.state = State::kFree;
    gate_->RemoveHold();
  }
}

}  // namespace consort::host
