// SPDX-License-Identifier: Apache-2.0
#include "vmsock/copy_crew.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

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

// membarrier(2): threads of this process that run have then passed a full barrier. Processes say
// beforehand that they will use it; kernels before 4.14 have none.
bool RegisterForBarriers() {
  return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}
void BarrierForAll() {
  PCHECK(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0);
}

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

CopyCrew::CopyCrew(const CopyCrewOptions& options)
    : options_(options), barriers_(options.threads > 0 && RegisterForBarriers()) {
  CHECK_LE(options_.threads, kCopyCrewThreadsMax);
  CHECK_GT(options_.share, 0u);
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
  return processors < 8 ? 0 : std::min(processors / 2, 8u);
}

void CopyCrew::Begin(CopyJob* job) {
  const uint64_t bytes = job->bytes();
  if (threads_.empty() || bytes == 0 || bytes < options_.shared_from) {
    job->CopyAlone();
    return;
  }
  const uint32_t shares = job->Divide(std::max(options_.share, bytes / kCopySharesMax + 1));
  // Before the first can be copied.
  job->left_.store(shares, std::memory_order_relaxed);
  if (!Append(job, shares)) {
    job->CopyAlone();
    job->left_.store(0, std::memory_order_relaxed);
    return;
  }
  // The look stays behind the store of the shares: by the barrier of a thread that goes to sleep,
  // or as a change that changes nothing, which stands before the thread's or behind it. So that
  // thread sees the shares, or is seen here.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  const uint32_t sleepers = barriers_ ? sleepers_.load(std::memory_order_relaxed)
                                      : sleepers_.fetch_add(0, std::memory_order_acq_rel);
  if (sleepers == 0) return;
  // As if all were like this one.
  if (waiting() * bytes >= options_.wakes_from) Wake();
}

bool CopyCrew::Append(CopyJob* job, uint32_t shares) {
  if (!Left::Fits(job)) return false;
  uint64_t position = end_.load(std::memory_order_relaxed);
  while (true) {
    Slot& slot = slots_[position % slots_.size()];
    // What stood here a lap ago.
    const uint64_t last = position < slots_.size() ? 0 : position - slots_.size() + 1;
    const uint64_t published = slot.published.load(std::memory_order_acquire);
    if (published < last) return false;
    if (published > last) {
      position = end_.load(std::memory_order_relaxed);
      continue;
    }
    if (Left(slot.left.load(std::memory_order_relaxed)).any()) return false;
    if (!end_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) continue;
    // Nobody else puts a job here, and who comes too late for the last one changes nothing.
    slot.left.store(Left::All(job, shares).word(), std::memory_order_release);
    slot.published.store(position + 1, std::memory_order_release);
    return true;
  }
}

bool CopyCrew::HasShares(uint64_t* first) const {
  while (true) {
    const Slot& slot = slots_[*first % slots_.size()];
    const uint64_t published = slot.published.load(std::memory_order_acquire);
    if (published <= *first) return false;
    if (published > *first + 1) {
      // Of a later lap: all that stood before it by a lap are taken, or it would not be here.
      *first = published - slots_.size();
      continue;
    }
    if (Left(slot.left.load(std::memory_order_relaxed)).any()) return true;
    ++*first;
  }
}

bool CopyCrew::TakeShare(uint64_t* first) {
  while (HasShares(first)) {
    // Whichever job stands there by now: what is taken says which.
    const Left taken(slots_[*first % slots_.size()].left.fetch_add(1, std::memory_order_acq_rel));
    if (!taken.any()) continue;
    CopyJob* const job = taken.job();
    job->CopyShare(taken.share());
    // The job's owner may have it for another copy from here on.
    job->left_.fetch_sub(1, std::memory_order_release);
    return true;
  }
  return false;
}

bool CopyCrew::Help() {
  uint64_t first = first_.load(std::memory_order_relaxed);
  const bool helped = TakeShare(&first);
  first_.store(first, std::memory_order_relaxed);
  return helped;
}

void CopyCrew::HelpIfBehind() {
  if (waiting() > 2) Help();
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
  uint64_t first = 0;
  while (true) {
    for (Nanos until = MonotonicNow() + kCopyCrewSpin; MonotonicNow() < until;) {
      for (int pauses = 0; pauses < kPausesAtOnce && !HasShares(&first); ++pauses) Pause();
      bool worked = false;
      while (TakeShare(&first)) worked = true;
      if (worked) until = MonotonicNow() + kCopyCrewSpin;
    }
    {
      absl::MutexLock lock(&mutex_);
      sleepers_.fetch_add(1, std::memory_order_acq_rel);
      if (barriers_) BarrierForAll();
      while (!HasShares(&first) && !ending_.load(std::memory_order_relaxed)) work_.Wait(&mutex_);
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
      if (ending_.load(std::memory_order_relaxed)) return;
    }
    if (HasShares(&first)) Wake();
  }
}

}  // namespace consort
