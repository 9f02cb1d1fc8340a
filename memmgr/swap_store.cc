// SPDX-License-Identifier: Apache-2.0
#include "memmgr/swap_store.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
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
    : options_(options), pinned_(driver, options.pinned_bytes, options.chunk_bytes) {
  // What compresses badly takes a little more than its size. And of each tier but pinned memory a
  // part that is smaller than the largest chunk may stay unused.
  const Bytes in_file = options.file_bytes / WorstPieceBytes(kBlockBytes) * kFilePieceBytes;
  capacity_ = pinned_.capacity();
  for (const Bytes tier : {options.pageable_bytes, in_file}) {
    const Bytes unused = options.chunk_bytes - kGranuleBytes;
    capacity_ += tier - std::min(tier, unused);
  }
}

SwapStore::~SwapStore() = default;

std::unique_ptr<SwapStore::Slot> SwapStore::MakePinned(Bytes bytes) {
  PinnedPool::Runs runs = pinned_.Take(bytes);
  if (runs.empty()) return nullptr;
  std::unique_ptr<Slot> slot(new Slot(this, SwapTier::kPinned, bytes));
  slot->runs_ = std::move(runs);
  absl::MutexLock lock(&mutex_);
  used_[static_cast<size_t>(SwapTier::kPinned)] += bytes;
  return slot;
}

std::unique_ptr<SwapStore::Slot> SwapStore::Make(Bytes bytes, Within within) {
  std::unique_ptr<Slot> slot = MakePinned(bytes);
  if (slot != nullptr || within == Within::kPinned) return slot;
  {
    absl::MutexLock lock(&mutex_);
    Bytes& used = used_[static_cast<size_t>(SwapTier::kPageable)];
    if (used + bytes <= options_.pageable_bytes) {
      void* memory =
          mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory != MAP_FAILED) {
        slot.reset(new Slot(this, SwapTier::kPageable, bytes));
        slot->runs_.emplace_back(static_cast<std::byte*>(memory), bytes);
        used += bytes;
        return slot;
      }
    }
  }
  if (within == Within::kMemory) return nullptr;
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
  if (slot->tier_ == SwapTier::kPageable) munmap(slot->runs_[0].data(), slot->bytes_);
  if (slot->tier_ == SwapTier::kPinned) pinned_.Return(slot->runs_);
  absl::MutexLock lock(&mutex_);
  Bytes& used = used_[static_cast<size_t>(slot->tier_)];
  used -= slot->tier_ == SwapTier::kFile ? slot->pieces_.size() * kFilePieceBytes : slot->bytes_;
  for (const Slot::Piece& piece : slot->pieces_) {
    blocks_free_.insert(blocks_free_.end(), piece.blocks.begin(), piece.blocks.end());
  }
}

Bytes SwapStore::used(SwapTier tier) const {
  absl::MutexLock lock(&mutex_);
  return used_[static_cast<size_t>(tier)];
}

void SwapStore::Slot::CopyTo(std::byte* to, Bytes offset, Bytes bytes) const {
  for (const std::span<std::byte> run : runs_) {
    if (offset < run.size() && bytes != 0) {
      const Bytes length = std::min<Bytes>(bytes, run.size() - offset);
      std::memcpy(to, run.data() + offset, length);
      to += length;
      bytes -= length;
    }
    offset -= std::min<Bytes>(offset, run.size());
  }
}

void SwapStore::Slot::CopyFrom(const std::byte* from, Bytes offset, Bytes bytes) {
  for (const std::span<std::byte> run : runs_) {
    if (offset < run.size() && bytes != 0) {
      const Bytes length = std::min<Bytes>(bytes, run.size() - offset);
      std::memcpy(run.data() + offset, from, length);
      from += length;
      bytes -= length;
    }
    offset -= std::min<Bytes>(offset, run.size());
  }
}

void SwapStore::Slot::Clear() {
  // Pageable memory is new, and so it is.
  if (tier_ == SwapTier::kPageable) return;
  for (const std::span<std::byte> run : runs_) std::fill(run.begin(), run.end(), std::byte{0});
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
