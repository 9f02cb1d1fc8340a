// SPDX-License-Identifier: Apache-2.0
// vmsock/copy_crew.h: threads that copy memory beside the one that asks for it, shared by all that
// ask.
//
// One processor copies less than a device takes (vm_front_bench says what each gives): the bytes
// that a virtual machine's device moves between guest and conduit (conduit.h) are copied by
// several. Thread safe. Copy returns when
// all is copied, so whoever calls it is the only one that need know when memory goes: guest memory
// is unmapped by the thread of its device, which is in Copy while the crew touches it. A fault in
// that memory is what it is on the calling thread: the end of the process (memory_map.h, sealed).
//
// One caller at a time has the crew; another one that comes meanwhile copies alone, so nobody waits
// for another's copy. An idle crew sleeps; after work it looks on for kCopyCrewSpin.
#ifndef CONSORT_VMSOCK_COPY_CREW_H_
#define CONSORT_VMSOCK_COPY_CREW_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
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
// The most that a thread takes at a time, and how many shares there are for each of those that copy
// if they are no larger or smaller than allowed: all should end about together.
inline constexpr Bytes kCopyShareMost = 64 * kKiB;
inline constexpr uint32_t kCopySharesEach = 4;
// How long a thread looks for more work before it sleeps, so that a stream finds it awake. Chosen,
// not measured.
inline constexpr Nanos kCopyCrewSpin = 50 * kMicrosecond;

struct CopyCrewOptions {
  uint32_t threads = 0;  // beside the caller's; at most kCopyCrewThreadsMax
  // Copies of fewer bytes are the caller's alone: handing them over would not pay. Half of Linux's
  // receive buffers, which it posts at once, are 239 KB.
  Bytes shared_from = 128 * kKiB;
  // The least that a thread takes at a time.
  Bytes share_least = 8 * kKiB;
};

class CopyCrew {
 public:
  explicit CopyCrew(const CopyCrewOptions& options);
  // Nobody is in Copy, or will be.
  ~CopyCrew();
  CopyCrew(const CopyCrew&) = delete;
  CopyCrew& operator=(const CopyCrew&) = delete;

  // How many threads a host with so many processors can spare.
  static uint32_t ThreadsFor(uint32_t processors);

  // Copies all parts, in no order: which bytes win where two parts are written to one place is not
  // said. No part is written where another one is read.
  void Copy(std::span<const CopyPart> parts);

 private:
  // Where a share begins.
  struct Place {
    size_t part = 0;
    uint64_t offset = 0;
  };

  // Cuts `parts`, of `bytes` in all, into shares. Returns their count.
  uint32_t Divide(std::span<const CopyPart> parts, uint64_t bytes);
  void CopyShare(uint32_t share) const;
  // Copies one share that nobody has. False: there is none.
  bool TakeShare();
  bool HasShares() const;
  void Wake();
  // Of each of the crew's threads.
  void Run();

  const CopyCrewOptions options_;
  // Whether somebody has the crew. Acquire and release: the members below are theirs meanwhile.
  std::atomic<bool> taken_{false};

  // The copy that goes on: written by whoever has the crew, before its store to shares_.
  std::span<const CopyPart> parts_;
  uint64_t share_ = 0;
  std::vector<Place> places_;

  // Their count, in the upper half, and how many have been taken. Taking one is a compare and swap
  // that succeeds only while its copy is unfinished, so the members above hold for whoever did
  // it: it acquires what the caller's store released.
  alignas(128) std::atomic<uint64_t> shares_{0};
  // Shares that are copied. Released by each copier, acquired by the caller.
  alignas(128) std::atomic<uint32_t> copied_{0};
  // Threads that sleep or are about to. Changed with the mutex held. Sequentially consistent, as
  // shares_ is stored and loaded: a thread counts itself, then looks at shares_, and the caller
  // stores shares_, then looks here, so one of them sees the other.
  alignas(128) std::atomic<uint32_t> sleepers_{0};
  // Between a thread's last look and its sleep. Guards no data: what it looks at is atomic.
  absl::Mutex mutex_;
  absl::CondVar work_;
  std::atomic<bool> ending_{false};

  std::vector<std::thread> threads_;
};

}  // namespace consort

#endif  // CONSORT_VMSOCK_COPY_CREW_H_
