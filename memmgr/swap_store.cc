// SPDX-License-Identifier: Apache-2.0
#include "memmgr/swap_store.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "memmgr/packed_frame.h"

namespace consort::memmgr {
namespace {

// Of one piece, compressed badly; blocks are whole.
size_t WorstPieceBytes(Bytes block) {
  return AlignUp(ZSTD_compressBound(SwapStore::kFilePieceBytes), block);
}

// Registered rather than allocated: in large pages, which take a fraction of the time to make.
constexpr Bytes kLargePageBytes = 2 * kMiB;

std::byte* MakePinned(const device::DriverTable& driver, Bytes bytes) {
  const Bytes mapped = bytes + kLargePageBytes;
  void* const map =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(map);
  std::byte* const memory =
      reinterpret_cast<std::byte*>(AlignUp(reinterpret_cast<uint64_t>(map), kLargePageBytes));
  if (memory != begin) munmap(begin, static_cast<size_t>(memory - begin));
  munmap(memory + bytes, static_cast<size_t>(begin + mapped - (memory + bytes)));
  // Only a wish; without it everything works, slower.
  (void)madvise(memory, bytes, MADV_HUGEPAGE);
  if (driver.cuMemHostRegister_v2(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS) {
    return memory;
  }
  munmap(memory, bytes);
  return nullptr;
}

void FreePinned(const device::DriverTable& driver, std::byte* memory, Bytes bytes) {
  driver.cuMemHostUnregister(memory);
  munmap(memory, bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SwapStore>> SwapStore::Open(const device::DriverTable& driver,
                                                           const SwapOptions& options) {
  std::unique_ptr<SwapStore> store(new SwapStore(driver, options));
  if (options.file_bytes != 0) {
    // Without a name: nobody else opens it, and it goes with this process.
    store->file_ =
        UniqueFd(open(options.file_folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (!store->file_.valid()) {
      return absl::UnavailableError(
          absl::StrCat("a swap file in ", options.file_folder, ": ", strerror(errno)));
    }
  }
  return store;
}

SwapStore::SwapStore(const device::DriverTable& driver, const SwapOptions& options)
    : driver_(driver), options_(options) {
  // What compresses badly takes a little more than its size. And of each tier a part that is
  // smaller than the largest chunk may stay unused.
  const Bytes in_file = options.file_bytes / WorstPieceBytes(kBlockBytes) * kFilePieceBytes;
  for (const Bytes tier : {options.pinned_bytes, options.pageable_bytes, in_file}) {
    const Bytes unused = options.chunk_bytes - kGranuleBytes;
    capacity_ += tier - std::min(tier, unused);
  }
}

SwapStore::~SwapStore() {
  absl::MutexLock lock(&mutex_);
  for (const auto& [bytes, memory] : pinned_free_) FreePinned(driver_, memory, bytes);
}

// Nothing of the driver is called under the lock: making pinned memory takes its time.
std::byte* SwapStore::TakePinned(Bytes bytes) {
  std::vector<std::pair<Bytes, std::byte*>> drop;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto fit = pinned_free_.find(bytes); fit != pinned_free_.end()) {
      std::byte* memory = fit->second;
      pinned_free_.erase(fit);
      return memory;
    }
    // Free memory of other sizes makes room.
    while (pinned_made_ + bytes > options_.pinned_bytes && !pinned_free_.empty()) {
      drop.push_back(*pinned_free_.begin());
      pinned_made_ -= pinned_free_.begin()->first;
      pinned_free_.erase(pinned_free_.begin());
    }
    if (pinned_made_ + bytes <= options_.pinned_bytes) {
      pinned_made_ += bytes;
    } else {
      bytes = 0;
    }
  }
  for (const auto& [old_bytes, old] : drop) FreePinned(driver_, old, old_bytes);
  if (bytes == 0) return nullptr;
  if (std::byte* const memory = MakePinned(driver_, bytes); memory != nullptr) return memory;
  absl::MutexLock lock(&mutex_);
  pinned_made_ -= bytes;
  return nullptr;
}

bool SwapStore::Prepare(Bytes bytes) {
  {
    absl::MutexLock lock(&mutex_);
    if (pinned_made_ + bytes > options_.pinned_bytes) return false;
    pinned_made_ += bytes;
  }
  std::byte* const memory = MakePinned(driver_, bytes);
  absl::MutexLock lock(&mutex_);
  if (memory == nullptr) {
    pinned_made_ -= bytes;
    return false;
  }
  pinned_free_.emplace(bytes, memory);
  return true;
}

std::unique_ptr<SwapStore::Slot> SwapStore::Make(Bytes bytes) {
  std::unique_ptr<Slot> slot;
  if (options_.pinned_bytes != 0) {
    if (std::byte* memory = TakePinned(bytes); memory != nullptr) {
      slot.reset(new Slot(this, SwapTier::kPinned, bytes));
      slot->memory_ = memory;
      absl::MutexLock lock(&mutex_);
      used_[0] += bytes;
      return slot;
    }
  }
  {
    absl::MutexLock lock(&mutex_);
    Bytes& used = used_[static_cast<size_t>(SwapTier::kPageable)];
    if (used + bytes <= options_.pageable_bytes) {
      void* memory =
          mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory != MAP_FAILED) {
        slot.reset(new Slot(this, SwapTier::kPageable, bytes));
        slot->memory_ = static_cast<std::byte*>(memory);
        used += bytes;
        return slot;
      }
    }
  }
  const size_t pieces = (bytes + kFilePieceBytes - 1) / kFilePieceBytes;
  absl::MutexLock lock(&mutex_);
  Bytes& used = used_[static_cast<size_t>(SwapTier::kFile)];
  const Bytes whole = options_.file_bytes / WorstPieceBytes(kBlockBytes) * kFilePieceBytes;
  if (used + pieces * kFilePieceBytes > whole) return nullptr;
  slot.reset(new Slot(this, SwapTier::kFile, bytes));
  slot->pieces_.resize(pieces);
  used += pieces * kFilePieceBytes;
  return slot;
}

SwapStore::Slot::~Slot() { store_->Return(this); }

void SwapStore::Return(Slot* slot) {
  if (slot->tier_ == SwapTier::kPageable) munmap(slot->memory_, slot->bytes_);
  absl::MutexLock lock(&mutex_);
  Bytes& used = used_[static_cast<size_t>(slot->tier_)];
  used -= slot->tier_ == SwapTier::kFile ? slot->pieces_.size() * kFilePieceBytes : slot->bytes_;
  if (slot->tier_ == SwapTier::kPinned) pinned_free_.emplace(slot->bytes_, slot->memory_);
  for (const Slot::Piece& piece : slot->pieces_) {
    blocks_free_.insert(blocks_free_.end(), piece.blocks.begin(), piece.blocks.end());
  }
}

Bytes SwapStore::used(SwapTier tier) const {
  absl::MutexLock lock(&mutex_);
  return used_[static_cast<size_t>(tier)];
}

absl::Status SwapStore::Slot::Write(size_t index, std::span<const std::byte> data) {
  ASSIGN_OR_RETURN(const std::vector<std::byte> packed, PackFrame(data));
  const size_t bytes = packed.size();
  Piece& piece = pieces_[index];
  const size_t wanted = (bytes + kBlockBytes - 1) / kBlockBytes;
  {
    absl::MutexLock lock(&store_->mutex_);
    while (piece.blocks.size() > wanted) {
      store_->blocks_free_.push_back(piece.blocks.back());
      piece.blocks.pop_back();
    }
    while (piece.blocks.size() < wanted) {
      if (store_->blocks_free_.empty()) {
        piece.blocks.push_back(store_->blocks_made_++);
      } else {
        piece.blocks.push_back(store_->blocks_free_.back());
        store_->blocks_free_.pop_back();
      }
    }
  }
  piece.bytes = bytes;
  for (size_t at = 0; at < bytes;) {
    const size_t length = std::min<size_t>(kBlockBytes - at % kBlockBytes, bytes - at);
    const auto offset =
        static_cast<off_t>(piece.blocks[at / kBlockBytes] * kBlockBytes + at % kBlockBytes);
    const ssize_t written = pwrite(store_->file_.get(), packed.data() + at, length, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return absl::UnavailableError(absl::StrCat("swap file: ", strerror(errno)));
    at += static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

absl::Status SwapStore::Slot::Read(size_t index, std::span<std::byte> data) {
  const Piece& piece = pieces_[index];
  std::vector<std::byte> packed(piece.bytes);
  for (size_t at = 0; at < packed.size();) {
    const size_t length = std::min<size_t>(kBlockBytes - at % kBlockBytes, packed.size() - at);
    const auto offset =
        static_cast<off_t>(piece.blocks[at / kBlockBytes] * kBlockBytes + at % kBlockBytes);
    const ssize_t got = pread(store_->file_.get(), packed.data() + at, length, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return absl::DataLossError(absl::StrCat("swap file: ", strerror(errno)));
    at += static_cast<size_t>(got);
  }
  const absl::Status unpacked = UnpackFrame(packed, data);
  if (!unpacked.ok()) {
    return absl::DataLossError(absl::StrCat("swap file: ", unpacked.message()));
  }
  return absl::OkStatus();
}

}  // namespace consort::memmgr
