// SPDX-License-Identifier: Apache-2.0
// vmsock/copy_crew.h: threads that copy memory for those that have other things to do, shared by
// all that ask.
//
// One processor copies less than a device takes (vm_front_bench says what each gives): the bytes
// that a virtual machine's device moves between guest and conduit (conduit.h) are copied by
// several, while the device's thread goes on with its queues. Thread safe. A job that has begun is
// over when done() says so; whoever began it knows so when its memory may go, and waits for it with
// Finish before that. A fault in that memory is what it is on any thread: the end of the process
// (memory_map.h, sealed).
//
// Jobs stand in one line, whoever they come from, and are cut into shares. A thread takes a share
// of the first; whoever waits takes some, too, so nobody needs a thread of the crew to get on. An
// idle crew sleeps; after work it looks on for kCopyCrewSpin.
#ifndef CONSORT_VMSOCK_COPY_CREW_H_
#define CONSORT_VMSOCK_COPY_CREW_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/units.h"

namespace consort {

struct CopyPart {
  void* to = nullptr;
  const void* from = nullptr;
  uint64_t bytes = 0;
};

// A bound for who says how many: more do not make memory faster.
inline constexpr uint32_t kCopyCrewThreadsMax = 64;
// Jobs that stand in line at most: 8 MiB in each direction, which is what a queue of QEMU's holds,
// in the device's steps. Those for which there is no room are copied by whoever brings them.
inline constexpr uint32_t kCopyJobsWaitingMax = 128;
// Shares of a job at most; of a larger one they are larger.
inline constexpr uint32_t kCopySharesMax = 512;
// How long a thread looks for more work before it sleeps, so that a stream finds it awake. Chosen,
// not measured.
inline constexpr Nanos kCopyCrewSpin = 50 * kMicrosecond;

struct CopyCrewOptions {
  uint32_t threads = 0;  // at most kCopyCrewThreadsMax; none: Begin copies
  // Jobs of fewer bytes are copied by Begin: handing them over would not pay.
  Bytes shared_from = 32 * kKiB;
  // What a thread takes at a time, about: a job says where it can be cut. On H200s' hosts 12 KiB,
  // three receive buffers of Linux, gave more than 8, 16, 20, 24 and 32.
  Bytes share = 12 * kKiB;
  // A thread that sleeps is woken when as much waits; less is copied by whoever waits for it before
  // a thread would be awake.
  Bytes wakes_from = 128 * kKiB;
};

// What a crew copies: cut into shares, each of which one thread copies, in any order. Neither
// copied nor moved; owned by whoever begins it, who changes it only while done and keeps it for its
// storage.
class CopyJob {
 public:
  CopyJob() = default;
  virtual ~CopyJob() = default;
  CopyJob(const CopyJob&) = delete;
  CopyJob& operator=(const CopyJob&) = delete;

  // All is copied, and seen by the calling thread. So it is before it has begun.
  bool done() const { return left_.load(std::memory_order_acquire) == 0; }
  // Copies all at once, on the calling thread.
  virtual void CopyAlone() const = 0;

 protected:
  // Asks for what every job has, as PrefetchForWrite does.
  void PrefetchCount() const;

 private:
  friend class CopyCrew;
  virtual uint64_t bytes() const = 0;
  // Cuts it into shares of about so many bytes and says how many they are.
  virtual uint32_t Divide(uint64_t share_bytes) = 0;
  virtual void CopyShare(uint32_t share) const = 0;

  // Shares that are not copied. Released by each copier, acquired by done(). What a job adds begins
  // in another cache line: copiers read that.
  alignas(64) std::atomic<uint32_t> left_{0};
};

// Parts that are copied in no order: which bytes win where two are written to one place is not
// said. No part is written where another one is read. Shares are written past the caches
// (streaming_copy.h): who reads them next is another, a conduit's a device.
class PartsJob final : public CopyJob {
 public:
  // Changed only while done.
  std::vector<CopyPart>& parts() { return parts_; }
  void Clear() { parts_.clear(); }
  void CopyAlone() const override;
  // It will be filled again soon; threads of the crew have read what it had.
  void PrefetchForNext() const;

 private:
  // Where a share begins.
  struct Place {
    size_t part = 0;
    uint64_t offset = 0;
  };

  uint64_t bytes() const override;
  // The last one may have fewer bytes, no other has.
  uint32_t Divide(uint64_t share_bytes) override;
  void CopyShare(uint32_t share) const override;

  alignas(64) std::vector<CopyPart> parts_;
  std::vector<Place> places_;
  uint64_t share_bytes_ = 0;
};

class CopyCrew {
 public:
  explicit CopyCrew(const CopyCrewOptions& options);
  // All jobs are done, and no more begin.
  ~CopyCrew();
  CopyCrew(const CopyCrew&) = delete;
  CopyCrew& operator=(const CopyCrew&) = delete;

  // How many threads a host with so many processors can spare.
  static uint32_t ThreadsFor(uint32_t processors);

  // Hands the job over, or copies it: small ones, and without a crew. It and what it names stay as
  // they are until it is done.
  void Begin(CopyJob* job);
  // Copies a share of the job that stands first in line. False: there is none.
  bool Help();
  // The same, for who has nothing else to do just now but may soon: only if others wait behind it.
  void HelpIfBehind();
  // Returns when the job is done, and helps meanwhile.
  void Finish(const CopyJob& job);

 private:
  // What is left to take of a job, in one word, so that a share is taken, and all known of it, by
  // adding one: the job's address, how many shares it has, and which of them is next. None is left
  // from where that is as many; it grows beyond by those who came too late, each at most once for
  // each job.
  class Left {
   public:
    explicit constexpr Left(uint64_t word) : word_(word) {}
    // The first share is next. Whether it can say so: addresses have 48 bits, of a cache line each.
    static bool Fits(const CopyJob* job) {
      return Address(job) % 64 == 0 && Address(job) >> 48 == 0;
    }
    static Left All(const CopyJob* job, uint32_t shares) {
      return Left(Address(job) << 16 | uint64_t{shares} << kNextBits);
    }
    uint64_t word() const { return word_; }
    bool any() const { return share() < shares(); }
    uint32_t share() const { return word_ & kNextMask; }
    CopyJob* job() const { return reinterpret_cast<CopyJob*>(word_ >> 22 << 6); }

   private:
    static constexpr int kNextBits = 11;
    static constexpr uint64_t kNextMask = (1 << kNextBits) - 1;
    static_assert(kCopySharesMax + 2 * kCopyCrewThreadsMax < kNextMask);
    static uint64_t Address(const CopyJob* job) { return reinterpret_cast<uintptr_t>(job); }
    uint32_t shares() const { return word_ >> kNextBits & kNextMask; }

    uint64_t word_;
  };

  // A place in the line: a cache line that goes from one processor to the next. The line is a
  // bounded queue of many producers, like D. Vyukov's (1024cores.net), whose consumers take shares.
  // `published` is one more than the position of the job that was put there last. The place is free
  // for the next lap's when that one has no shares left.
  struct alignas(64) Slot {
    std::atomic<uint64_t> published{0};
    std::atomic<uint64_t> left{0};
  };

  // False: there is no room.
  bool Append(CopyJob* job, uint32_t shares);
  // Whether there is a share to take; no job before `first` has any, nor afterwards.
  bool HasShares(uint64_t* first) const;
  // Takes one and copies it. False: there is none.
  bool TakeShare(uint64_t* first);
  // How many jobs have shares to take, about.
  uint64_t waiting() {
    const uint64_t end = end_.load(std::memory_order_relaxed);
    uint64_t first = first_.load(std::memory_order_relaxed);
    if (!HasShares(&first)) return 0;
    first_.store(first, std::memory_order_relaxed);
    return end > first ? end - first : 1;
  }
  void Wake();
  // Of each of the crew's threads.
  void Run();

  const CopyCrewOptions options_;
  std::array<Slot, kCopyJobsWaitingMax> slots_;
  // Where the next job is appended. Changed by compare and swap; what it guards is passed by the
  // place.
  alignas(128) std::atomic<uint64_t> end_{0};
  // For who is not of the crew: a position before which no job has shares to take. Those of the
  // crew know their own, which they need not take from another processor.
  alignas(128) std::atomic<uint64_t> first_{0};
  // Whether a thread that goes to sleep can make all others' stores and loads so far seen in their
  // order (membarrier(2)), so that who appends need not.
  const bool barriers_;
  // Threads that sleep or are about to. Changed with the mutex held. A thread counts itself, then
  // looks for shares; who has appended some looks at the count: of the two, whoever came later sees
  // what the other had done.
  alignas(128) std::atomic<uint32_t> sleepers_{0};
  // Between a thread's last look and its sleep. Guards no data: what it looks at is atomic.
  absl::Mutex mutex_;
  absl::CondVar work_;
  std::atomic<bool> ending_{false};

  std::vector<std::thread> threads_;
};

}  // namespace consort

#endif  // CONSORT_VMSOCK_COPY_CREW_H_
