// SPDX-License-Identifier: Apache-2.0
// memmgr/swap_store.h: where contents of device memory lie while they are not on the device.
//
//   pinned    host memory that the device copies to and from at full speed
//   pageable  host memory; a copy goes through pinned memory of the mover
//   file      on disk, compressed, each piece with a checksum; the file has no name
//
// Each tier has a bound and is left out where that is 0; the first with room is taken. A slot holds
// one chunk. Thread safe; a slot itself belongs to one owner. Slots do not outlive the store.
#ifndef CONSORT_MEMMGR_SWAP_STORE_H_
#define CONSORT_MEMMGR_SWAP_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "gen/device/driver_table.h"
#include "memmgr/limits.h"
#include "memmgr/pinned_pool.h"

namespace consort::memmgr {

struct SwapOptions {
  Bytes pinned_bytes = 0;
  Bytes pageable_bytes = 0;
  Bytes file_bytes = 0;
  std::string file_folder;                                 // of the file, if it may have bytes
  Bytes chunk_bytes = kSwapChunkGranules * kGranuleBytes;  // of the largest slot

  Bytes total() const { return pinned_bytes + pageable_bytes + file_bytes; }
};

enum class SwapTier : uint8_t { kPinned, kPageable, kFile };
inline constexpr size_t kSwapTiers = 3;

class SwapStore {
 public:
  // Room for the contents of one chunk.
  class Slot {
   public:
    ~Slot();
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;

    SwapTier tier() const { return tier_; }
    Bytes bytes() const { return bytes_; }
    // Of a slot in host memory: where its bytes lie, one run after the other; each of pinned
    // memory is of one registration.
    const PinnedPool::Runs& runs() const { return runs_; }
    // Of a slot in host memory.
    void CopyTo(std::byte* to, Bytes offset, Bytes bytes) const;
    void CopyFrom(const std::byte* from, Bytes offset, Bytes bytes);
    // Makes all bytes of one that is new, in host memory, 0.
    void Clear();

    // For slots in a file: pieces in ascending order, all of kFilePieceBytes but the last. What was
    // written before goes. Reading gives a piece back, or an error where it is not what was
    // written.
    absl::Status Write(size_t piece, std::span<const std::byte> data);
    absl::Status Read(size_t piece, std::span<std::byte> data);

   private:
    friend class SwapStore;
    Slot(SwapStore* store, SwapTier tier, Bytes bytes)
        : store_(store), tier_(tier), bytes_(bytes) {}
    struct Piece {
      std::vector<uint64_t> blocks;
      size_t bytes = 0;  // compressed
    };
    SwapStore* const store_;
    const SwapTier tier_;
    const Bytes bytes_;
    PinnedPool::Runs runs_;
    std::vector<Piece> pieces_;
  };

  static constexpr Bytes kFilePieceBytes = 1 * kMiB;

  // kUnavailable: the file cannot be made. `driver` is borrowed.
  static absl::StatusOr<std::unique_ptr<SwapStore>> Open(const device::DriverTable& driver,
                                                         const SwapOptions& options);
  ~SwapStore();
  SwapStore(const SwapStore&) = delete;
  SwapStore& operator=(const SwapStore&) = delete;

  enum class Within : uint8_t { kPinned, kMemory, kAllTiers };
  // Null: no such tier has room. Needs the worker's context.
  std::unique_ptr<Slot> Make(Bytes bytes, Within within = Within::kAllTiers);
  // Makes some of the pinned memory ahead; false: there is all, or the driver gives no more. Needs
  // the worker's context.
  bool Prepare() { return pinned_.Prepare(); }

  // Bytes of contents that lie in the tier.
  Bytes used(SwapTier tier) const;
  // What fits at least, whatever the contents are and in whatever order slots come and go.
  Bytes capacity() const { return capacity_; }
  bool has_pinned() const { return pinned_.capacity() != 0; }
  // Of pinned memory alone.
  Bytes pinned_capacity() const { return pinned_.capacity(); }

 private:
  static constexpr Bytes kBlockBytes = 64 * kKiB;

  SwapStore(const device::DriverTable& driver, const SwapOptions& options);
  std::unique_ptr<Slot> MakePinned(Bytes bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void Return(Slot* slot);

  const SwapOptions options_;
  PinnedPool pinned_;
  Bytes capacity_ = 0;
  UniqueFd file_;

  mutable absl::Mutex mutex_;
  Bytes used_[kSwapTiers] ABSL_GUARDED_BY(mutex_) = {};
  uint64_t blocks_made_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> blocks_free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace consort::memmgr

#endif  // CONSORT_MEMMGR_SWAP_STORE_H_
