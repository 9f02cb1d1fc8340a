// SPDX-License-Identifier: Apache-2.0
#include "vmsock/copy_crew.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "vmsock/deadline.h"
#include "vmsock/prefetch.h"
#include "vmsock/spin.h"
#include "vmsock/streaming_copy.h"

namespace consort {
namespace {

// Between two looks at the clock, and before a caller lets another thread have its processor: about
// a microsecond.
constexpr int kPausesAtOnce = 32;
// Places in line that are asked for at a time: a processor has about as many misses at once.
constexpr uint32_t kSlotsAhead = 8;

}  // namespace

// ---- jobs ----

void CopyJob::PrefetchCount() const { PrefetchForWrite(&left_, sizeof(left_)); }

void PartsJob::CopyAlone() const {
  for (const CopyPart& part : parts_) {
    // memcpy takes no null pointers, not even for nothing.
    if (part.bytes > 0) std::memcpy(part.to, part.from, part.bytes);
  }
}

void PartsJob::PrefetchForNext() const {
  PrefetchForWrite(parts_.data(), parts_.capacity() * sizeof(CopyPart));
  PrefetchForWrite(places_.data(), places_.capacity() * sizeof(Place));
  PrefetchCount();
}

uint64_t PartsJob::bytes() const {
  uint64_t bytes = 0;
  for (const CopyPart& part : parts_) bytes += part.bytes;
  return bytes;
}

uint32_t PartsJob::Divide(uint64_t share_bytes) {
  share_bytes_ = share_bytes;
  places_.clear();
  uint64_t room = 0;  // of the share that the next byte belongs to
  for (size_t i = 0; i < parts_.size(); ++i) {
    for (uint64_t offset = 0; offset < parts_[i].bytes;) {
      if (room == 0) {
        places_.push_back({i, offset});
        room = share_bytes;
      }
      const uint64_t count = std::min(room, parts_[i].bytes - offset);
      offset += count;
      room -= count;
    }
  }
  return static_cast<uint32_t>(places_.size());
}

void PartsJob::CopyShare(uint32_t share) const {
  auto [part, offset] = places_[share];
  for (uint64_t left = share_bytes_; left > 0 && part < parts_.size(); ++part, offset = 0) {
    const uint64_t count = std::min(left, parts_[part].bytes - offset);
    if (count == 0) continue;
    StreamingCopy(static_cast<std::byte*>(parts_[part].to) + offset,
                  static_cast<const std::byte*>(parts_[part].from) + offset, count);
    left -= count;
  }
  StreamingCopiesDone();
}

// ---- the crew ----

CopyCrew::CopyCrew(const CopyCrewOptions& options) : options_(options) {
  CHECK_LE(options_.threads, kCopyCrewThreadsMax);
  CHECK_GT(options_.share, 0u);
  for (uint64_t i = 0; i < slots_.size(); ++i) {
    slots_[i].turn.store(i, std::memory_order_relaxed);
  }
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
  return processors < 8 ? 0 : std::min(processors * 3 / 8, 6u);
}

void CopyCrew::Begin(CopyJob* job) {
  const uint64_t bytes = job->bytes();
  if (threads_.empty() || bytes == 0 || bytes < options_.shared_from) {
    job->CopyAlone();
    return;
  }
  const uint32_t shares = job->Divide(options_.share);
  // Before the first can be copied.
  job->left_.store(shares, std::memory_order_relaxed);
  for (uint32_t share = 0; share < shares;) {
    const uint32_t appended = Append(job, share, shares - share);
    share += appended;
    if (appended > 0) continue;
    job->CopyShare(share++);
    job->left_.fetch_sub(1, std::memory_order_release);
  }
  // The next job's places, which threads of the crew have left.
  const uint64_t end = end_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < std::min(shares, kSlotsAhead); ++i) {
    PrefetchForWrite(&slots_[(end + i) % slots_.size()], sizeof(Slot));
  }
  // It changes nothing, and stands before a thread's change or behind it: then that thread sees the
  // shares, or is seen here.
  if (sleepers_.fetch_add(0, std::memory_order_acq_rel) == 0) return;
  if (waiting() * options_.share >= options_.wakes_from) Wake();
}

uint32_t CopyCrew::Append(CopyJob* job, uint32_t first, uint32_t shares) {
  uint64_t position = end_.load(std::memory_order_relaxed);
  while (true) {
    uint64_t turn = position;
    uint32_t room = 0;
    for (; room < shares; ++room) {
      turn = slots_[(position + room) % slots_.size()].turn.load(std::memory_order_acquire);
      if (turn != position + room) break;
    }
    if (room == 0) {
      if (turn < position) return 0;
      position = end_.load(std::memory_order_relaxed);
    } else if (end_.compare_exchange_weak(position, position + room, std::memory_order_relaxed)) {
      for (uint32_t i = 0; i < room; ++i) {
        Slot& slot = slots_[(position + i) % slots_.size()];
        slot.job = job;
        slot.share = first + i;
        slot.turn.store(position + i + 1, std::memory_order_release);
      }
      return room;
    }
  }
}

bool CopyCrew::Help() {
  uint64_t position = first_.load(std::memory_order_relaxed);
  while (true) {
    Slot& slot = slots_[position % slots_.size()];
    const uint64_t turn = slot.turn.load(std::memory_order_acquire);
    if (turn <= position) return false;
    if (turn > position + 1) {
      position = first_.load(std::memory_order_relaxed);
    } else if (first_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) {
      CopyJob* const job = slot.job;
      const uint32_t share = slot.share;
      slot.turn.store(position + slots_.size(), std::memory_order_release);
      job->CopyShare(share);
      // The job's owner may have it for another copy from here on.
      job->left_.fetch_sub(1, std::memory_order_release);
      return true;
    }
  }
}

void CopyCrew::HelpIfBehind() {
  const uint64_t awake = threads_.size() - sleepers_.load(std::memory_order_relaxed);
  if (waiting() > awake) Help();
}

bool CopyCrew::HasShares() const {
  const uint64_t position = first_.load(std::memory_order_relaxed);
  // More than one ahead: the position is an old one, and there may be some.
  return slots_[position % slots_.size()].turn.load(std::memory_order_acquire) > position;
}

void CopyCrew::Finish(const CopyJob& job) {
  for (int pauses = 0; !job.done();) {
    if (Help()) continue;
    // What others have taken they are copying; one may have lost its processor.
    if (++pauses < kPausesAtOnce) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
}

// One: it wakes the next. To wake all would take a caller as long as a small copy.
void CopyCrew::Wake() {
  if (sleepers_.load(std::memory_order_relaxed) == 0) return;
  absl::MutexLock lock(&mutex_);
  work_.Signal();
}

void CopyCrew::Run() {
  while (true) {
    for (Nanos until = MonotonicNow() + kCopyCrewSpin; MonotonicNow() < until;) {
      for (int pauses = 0; pauses < kPausesAtOnce && !HasShares(); ++pauses) Pause();
      bool worked = false;
      while (Help()) worked = true;
      if (worked) until = MonotonicNow() + kCopyCrewSpin;
    }
    {
      absl::MutexLock lock(&mutex_);
      sleepers_.fetch_add(1, std::memory_order_acq_rel);
      while (!HasShares() && !ending_.load(std::memory_order_relaxed)) work_.Wait(&mutex_);
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
      if (ending_.load(std::memory_order_relaxed)) return;
    }
    if (HasShares()) Wake();
  }
}

}  // namespace consort
