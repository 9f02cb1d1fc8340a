// SPDX-License-Identifier: Apache-2.0
#include "vmsock/copy_crew.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "vmsock/deadline.h"
#include "vmsock/spin.h"

namespace consort {
namespace {

// Between two looks at the clock, and before a caller lets another thread have its processor: about
// a microsecond.
constexpr int kPausesAtOnce = 32;

uint32_t Count(uint64_t shares) { return static_cast<uint32_t>(shares >> 32); }
uint32_t Taken(uint64_t shares) { return static_cast<uint32_t>(shares); }

void CopyPiece(const CopyPart& part, uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return;  // memcpy takes no null pointers, not even then
  std::memcpy(static_cast<std::byte*>(part.to) + offset,
              static_cast<const std::byte*>(part.from) + offset, bytes);
}

}  // namespace

CopyCrew::CopyCrew(const CopyCrewOptions& options) : options_(options) {
  CHECK_LE(options_.threads, kCopyCrewThreadsMax);
  CHECK_GT(options_.share_least, 0u);
  for (uint32_t i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this] { Run(); });
    pthread_setname_np(threads_.back().native_handle(), "vm-copy");
  }
}

CopyCrew::~CopyCrew() {
  {
    absl::MutexLock lock(&mutex_);
    ending_.store(true, std::memory_order_relaxed);
    work_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

uint32_t CopyCrew::ThreadsFor(uint32_t processors) {
  return processors < 8 ? 0 : std::min(processors / 4, 6u);
}

void CopyCrew::Copy(std::span<const CopyPart> parts) {
  uint64_t bytes = 0;
  for (const CopyPart& part : parts) bytes += part.bytes;
  if (threads_.empty() || bytes == 0 || bytes < options_.shared_from ||
      taken_.exchange(true, std::memory_order_acquire)) {
    for (const CopyPart& part : parts) CopyPiece(part, 0, part.bytes);
    return;
  }
  parts_ = parts;
  const uint32_t count = Divide(parts, bytes);
  copied_.store(0, std::memory_order_relaxed);
  shares_.store(uint64_t{count} << 32, std::memory_order_seq_cst);
  if (count > 1) Wake();
  while (TakeShare()) {
  }
  // What others have taken they are copying; one may have lost its processor.
  for (int pauses = 0; copied_.load(std::memory_order_acquire) != count; ++pauses) {
    if (pauses < kPausesAtOnce) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
  taken_.store(false, std::memory_order_release);
}

uint32_t CopyCrew::Divide(std::span<const CopyPart> parts, uint64_t bytes) {
  share_ =
      std::clamp<uint64_t>(bytes / (kCopySharesEach * (threads_.size() + 1)), options_.share_least,
                           std::max(options_.share_least, kCopyShareMost));
  places_.clear();
  uint64_t room = 0;  // of the share that the next byte belongs to
  for (size_t i = 0; i < parts.size(); ++i) {
    for (uint64_t offset = 0; offset < parts[i].bytes;) {
      if (room == 0) {
        places_.push_back({i, offset});
        room = share_;
      }
      const uint64_t count = std::min(room, parts[i].bytes - offset);
      offset += count;
      room -= count;
    }
  }
  return static_cast<uint32_t>(places_.size());
}

void CopyCrew::CopyShare(uint32_t share) const {
  uint64_t left = share_;
  auto [part, offset] = places_[share];
  for (; left > 0 && part < parts_.size(); ++part, offset = 0) {
    const uint64_t count = std::min(left, parts_[part].bytes - offset);
    CopyPiece(parts_[part], offset, count);
    left -= count;
  }
}

bool CopyCrew::TakeShare() {
  uint64_t shares = shares_.load(std::memory_order_relaxed);
  while (Taken(shares) < Count(shares)) {
    if (shares_.compare_exchange_weak(shares, shares + 1, std::memory_order_acq_rel,
                                      std::memory_order_relaxed)) {
      CopyShare(Taken(shares));
      copied_.fetch_add(1, std::memory_order_release);
      return true;
    }
  }
  return false;
}

bool CopyCrew::HasShares() const {
  const uint64_t shares = shares_.load(std::memory_order_seq_cst);
  return Taken(shares) < Count(shares);
}

// One: it wakes the next. To wake all would take a caller as long as a small copy.
void CopyCrew::Wake() {
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  absl::MutexLock lock(&mutex_);
  work_.Signal();
}

void CopyCrew::Run() {
  while (true) {
    for (Nanos until = MonotonicNow() + kCopyCrewSpin; MonotonicNow() < until;) {
      for (int pauses = 0; pauses < kPausesAtOnce && !HasShares(); ++pauses) Pause();
      bool worked = false;
      while (TakeShare()) worked = true;
      if (worked) until = MonotonicNow() + kCopyCrewSpin;
    }
    {
      absl::MutexLock lock(&mutex_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      while (!HasShares() && !ending_.load(std::memory_order_relaxed)) work_.Wait(&mutex_);
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
      if (ending_.load(std::memory_order_relaxed)) return;
    }
    if (HasShares()) Wake();
  }
}

}  // namespace consort
