// SPDX-License-Identifier: Apache-2.0
// memmgr/pinned_pool.h: pinned host memory, made in blocks and never given back while the pool
// lives: the driver may wait for work of the device while it registers memory or lets go of it.
//
// What is taken comes in runs of granules: a whole block where there is one, else what others left.
// So nothing is too scattered to be used. Thread safe. Calls that may make blocks need the device's
// context.
#ifndef CONSORT_MEMMGR_PINNED_POOL_H_
#define CONSORT_MEMMGR_PINNED_POOL_H_

#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/units.h"
#include "gen/device/driver_table.h"

namespace consort::memmgr {

class PinnedPool {
 public:
  using Runs = std::vector<std::span<std::byte>>;

  // Of at most `limit` bytes, in blocks of `block`. `driver` is borrowed.
  PinnedPool(const device::DriverTable& driver, Bytes limit, Bytes block);
  // All has been returned.
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // What can be had of it.
  Bytes capacity() const { return blocks_max_ * block_bytes_; }
  // Makes a block ahead; false: there are all, or the driver gives no more.
  bool Prepare() ABSL_LOCKS_EXCLUDED(mutex_);
  // `bytes`, a multiple of kGranuleBytes; empty: there is not so much.
  Runs Take(Bytes bytes);
  void Return(const Runs& runs);

 private:
  struct Block {
    std::set<size_t> free;  // granules, if it is broken
    bool whole = true;      // all of it is free
  };
  using Blocks = std::map<std::byte*, Block>;

  bool TryTake(Bytes bytes, Runs* runs) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const device::DriverTable& driver_;
  const Bytes block_bytes_;
  const size_t blocks_max_;

  absl::Mutex mutex_;
  size_t blocks_made_ ABSL_GUARDED_BY(mutex_) = 0;  // those being made, too
  Blocks blocks_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::byte*> whole_ ABSL_GUARDED_BY(mutex_);
  std::set<std::byte*> broken_ ABSL_GUARDED_BY(mutex_);  // with a free granule
  Bytes free_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace consort::memmgr

#endif  // CONSORT_MEMMGR_PINNED_POOL_H_
