// SPDX-License-Identifier: Apache-2.0
#include "memmgr/mover.h"

#include <time.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/log.h"

namespace consort::memmgr {
namespace {

// Between two looks at a copy; a chunk of 64 MiB takes 1.2 ms (measured, H200).
constexpr timespec kLookEvery = {0, 50'000};

}  // namespace

class Mover::InOwnContext {
 public:
  explicit InOwnContext(const Mover& mover) : mover_(mover) {
    if (mover.own_ != mover.worker_) mover.driver_.cuCtxSetCurrent(mover.own_);
  }
  ~InOwnContext() {
    if (mover_.own_ != mover_.worker_) mover_.driver_.cuCtxSetCurrent(mover_.worker_);
  }
  InOwnContext(const InOwnContext&) = delete;
  InOwnContext& operator=(const InOwnContext&) = delete;

 private:
  const Mover& mover_;
};

CUresult Mover::Create(const device::DriverTable& driver, std::unique_ptr<Mover>* mover) {
  std::unique_ptr<Mover> made(new Mover(driver));
  CUresult result = made->MakeContext();
  if (result != CUDA_SUCCESS) return result;
  result = driver.cuStreamCreateWithPriority(&made->clearing_, CU_STREAM_NON_BLOCKING, 0);
  if (result != CUDA_SUCCESS) return result;
  const InOwnContext own(*made);
  result = driver.cuStreamCreateWithPriority(&made->stream_, CU_STREAM_NON_BLOCKING, 0);
  if (result == CUDA_SUCCESS) *mover = std::move(made);
  return result;
}

CUresult Mover::MakeContext() {
  CUdevice device = 0;
  CUresult result = driver_.cuCtxGetCurrent(&worker_);
  if (result == CUDA_SUCCESS) result = driver_.cuCtxGetDevice(&device);
  if (result != CUDA_SUCCESS) return result;
  own_ = worker_;
  if (driver_.cuCtxCreate_v4 == nullptr || driver_.cuCtxDestroy_v2 == nullptr) return result;
  CUctxCreateParams parameters = {};
  CUcontext made = nullptr;
  result = driver_.cuCtxCreate_v4(&made, &parameters, CU_CTX_SCHED_AUTO, device);
  if (result == CUDA_SUCCESS) own_ = made;
  LOG_IF(WARNING, result != CUDA_SUCCESS)
      << "no context for swapping alone: moves may wait for applications' kernels (error " << result
      << ")";
  return driver_.cuCtxSetCurrent(worker_);
}

Mover::~Mover() {
  {
    const InOwnContext own(*this);
    for (const Pending& pending : pending_) {
      if (pending.event != nullptr) driver_.cuEventDestroy_v2(pending.event);
    }
    for (CUevent event : events_) driver_.cuEventDestroy_v2(event);
    for (CUevent event : buffer_events_) {
      if (event != nullptr) driver_.cuEventDestroy_v2(event);
    }
    for (std::byte* buffer : buffers_) {
      if (buffer != nullptr) driver_.cuMemFreeHost(buffer);
    }
    if (stream_ != nullptr) driver_.cuStreamDestroy_v2(stream_);
  }
  if (clearing_ != nullptr) driver_.cuStreamDestroy_v2(clearing_);
  if (own_ != worker_) driver_.cuCtxDestroy_v2(own_);
}

CUresult Mover::CopyOut(std::byte* to, uint64_t from, Bytes bytes) {
  const InOwnContext own(*this);
  return driver_.cuMemcpyDtoHAsync_v2(to, from, bytes, stream_);
}

CUresult Mover::CopyIn(uint64_t to, const std::byte* from, Bytes bytes) {
  const InOwnContext own(*this);
  return driver_.cuMemcpyHtoDAsync_v2(to, from, bytes, stream_);
}

CUresult Mover::RecordEvent(CUevent event) {
  const InOwnContext own(*this);
  return driver_.cuEventRecord(event, stream_);
}

// Asks and sleeps: the driver's own waiting may keep others out.
CUresult Mover::Await(CUevent event) {
  const InOwnContext own(*this);
  CUresult state;
  while ((state = driver_.cuEventQuery(event)) == CUDA_ERROR_NOT_READY) {
    nanosleep(&kLookEvery, nullptr);
  }
  return state;
}

CUresult Mover::Record(std::function<CUresult()> done) {
  Pending pending;
  pending.done = std::move(done);
  if (!events_.empty()) {
    pending.event = events_.back();
    events_.pop_back();
  } else {
    const InOwnContext own(*this);
    const CUresult made = driver_.cuEventCreate(&pending.event, CU_EVENT_DISABLE_TIMING);
    if (made != CUDA_SUCCESS) return made;
  }
  const CUresult recorded = RecordEvent(pending.event);
  if (recorded != CUDA_SUCCESS) {
    events_.push_back(pending.event);
    return recorded;
  }
  pending_.push_back(std::move(pending));
  return CUDA_SUCCESS;
}

CUresult Mover::CompleteFirst() {
  Pending pending = std::move(pending_[first_]);
  pending_[first_].event = nullptr;
  ++first_;
  CUresult result = Await(pending.event);
  events_.push_back(pending.event);
  if (result == CUDA_SUCCESS && pending.done != nullptr) result = pending.done();
  return result;
}

CUresult Mover::Out(const Piece& piece, std::function<CUresult()> done) {
  if (piece.slot->tier() != SwapTier::kPinned) {
    const CUresult copied = StagedOut(piece);
    return copied == CUDA_SUCCESS ? done() : copied;
  }
  CUresult result = CUDA_SUCCESS;
  uint64_t address = piece.address;
  for (const std::span<std::byte> run : piece.slot->runs()) {
    result = CopyOut(run.data(), address, run.size());
    if (result != CUDA_SUCCESS) break;
    address += run.size();
  }
  if (result == CUDA_SUCCESS) result = Record(std::move(done));
  while (result == CUDA_SUCCESS && pending_.size() - first_ > kInFlightMax) {
    result = CompleteFirst();
  }
  return result;
}

CUresult Mover::In(const Piece& piece) {
  if (piece.slot->tier() != SwapTier::kPinned) return StagedIn(piece);
  uint64_t address = piece.address;
  for (const std::span<std::byte> run : piece.slot->runs()) {
    const CUresult result = CopyIn(address, run.data(), run.size());
    if (result != CUDA_SUCCESS) return result;
    address += run.size();
  }
  return CUDA_SUCCESS;
}

CUresult Mover::Clear(uint64_t address, Bytes bytes) {
  clears_ = true;
  return driver_.cuMemsetD8Async(address, 0, bytes, clearing_);
}

CUresult Mover::Finish() {
  CUresult result = CUDA_SUCCESS;
  // What failed leaves the rest unfinished: their memory must stay until the device is done.
  const CUresult recorded = Record(nullptr);
  while (first_ < pending_.size()) {
    Pending& pending = pending_[first_];
    if (result != CUDA_SUCCESS) pending.done = nullptr;
    const CUresult one = CompleteFirst();
    if (result == CUDA_SUCCESS) result = one;
  }
  pending_.clear();
  first_ = 0;
  if (std::exchange(clears_, false)) {
    CUresult cleared;
    while ((cleared = driver_.cuStreamQuery(clearing_)) == CUDA_ERROR_NOT_READY) {
      nanosleep(&kLookEvery, nullptr);
    }
    if (result == CUDA_SUCCESS) result = cleared;
  }
  return result != CUDA_SUCCESS ? result : recorded;
}

CUresult Mover::MakeBuffers() {
  const InOwnContext own(*this);
  for (size_t i = 0; i < kBuffers; ++i) {
    if (buffers_[i] == nullptr) {
      void* memory = nullptr;
      const CUresult made = driver_.cuMemHostAlloc(&memory, kBufferBytes, CU_MEMHOSTALLOC_PORTABLE);
      if (made != CUDA_SUCCESS) return made;
      buffers_[i] = static_cast<std::byte*>(memory);
    }
    if (buffer_events_[i] == nullptr) {
      const CUresult made = driver_.cuEventCreate(&buffer_events_[i], CU_EVENT_DISABLE_TIMING);
      if (made != CUDA_SUCCESS) return made;
    }
  }
  return CUDA_SUCCESS;
}

CUresult Mover::StagedOut(const Piece& piece) {
  CUresult result = MakeBuffers();
  const Bytes bytes = piece.slot->bytes();
  const uint64_t count = (bytes + kBufferBytes - 1) / kBufferBytes;
  for (uint64_t i = 0; result == CUDA_SUCCESS && i <= count; ++i) {
    if (i < count) {
      const Bytes length = std::min(kBufferBytes, bytes - i * kBufferBytes);
      result = CopyOut(buffers_[i % kBuffers], piece.address + i * kBufferBytes, length);
      if (result == CUDA_SUCCESS) result = RecordEvent(buffer_events_[i % kBuffers]);
    }
    if (i == 0 || result != CUDA_SUCCESS) continue;
    const Bytes offset = (i - 1) * kBufferBytes;
    const Bytes length = std::min(kBufferBytes, bytes - offset);
    const std::byte* const buffer = buffers_[(i - 1) % kBuffers];
    result = Await(buffer_events_[(i - 1) % kBuffers]);
    if (result != CUDA_SUCCESS) break;
    if (piece.slot->tier() == SwapTier::kPageable) {
      piece.slot->CopyFrom(buffer, offset, length);
      continue;
    }
    for (Bytes at = 0; at < length; at += SwapStore::kFilePieceBytes) {
      const absl::Status written = piece.slot->Write(
          (offset + at) / SwapStore::kFilePieceBytes,
          {buffer + at, std::min<Bytes>(SwapStore::kFilePieceBytes, length - at)});
      if (!written.ok()) {
        LOG(ERROR) << written;
        result = CUDA_ERROR_OPERATING_SYSTEM;
        break;
      }
    }
  }
  // The next user of the buffers must not meet a copy that still writes to them.
  const CUresult drained = RecordEvent(buffer_events_[0]);
  if (drained == CUDA_SUCCESS) Await(buffer_events_[0]);
  return result;
}

CUresult Mover::StagedIn(const Piece& piece) {
  CUresult result = MakeBuffers();
  const Bytes bytes = piece.slot->bytes();
  for (Bytes offset = 0; result == CUDA_SUCCESS && offset < bytes; offset += kBufferBytes) {
    const size_t which = offset / kBufferBytes % kBuffers;
    const Bytes length = std::min(kBufferBytes, bytes - offset);
    // Its last copy to the device; an event that was never recorded counts as passed.
    result = Await(buffer_events_[which]);
    if (result != CUDA_SUCCESS) break;
    if (piece.slot->tier() == SwapTier::kPageable) {
      piece.slot->CopyTo(buffers_[which], offset, length);
    } else {
      for (Bytes at = 0; at < length; at += SwapStore::kFilePieceBytes) {
        const absl::Status read = piece.slot->Read(
            (offset + at) / SwapStore::kFilePieceBytes,
            {buffers_[which] + at, std::min<Bytes>(SwapStore::kFilePieceBytes, length - at)});
        if (!read.ok()) {
          LOG(ERROR) << read;
          return CUDA_ERROR_UNKNOWN;
        }
      }
    }
    result = CopyIn(piece.address + offset, buffers_[which], length);
    if (result == CUDA_SUCCESS) result = RecordEvent(buffer_events_[which]);
  }
  return result;
}

}  // namespace consort::memmgr
