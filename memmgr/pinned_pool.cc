// SPDX-License-Identifier: Apache-2.0
#include "memmgr/pinned_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/log.h"
#include "base/pages.h"
#include "base/units.h"
#include "memmgr/limits.h"

namespace consort::memmgr {
namespace {

// Registered rather than allocated: in large pages.
std::byte* MakePinned(const device::DriverTable& driver, Bytes bytes) {
  std::byte* const memory = MapLargePages(bytes);
  if (memory == nullptr) return nullptr;
  // Before the driver does so while it registers, which keeps everybody else's calls waiting: 23 ms
  // for 64 MiB on an H200, 4 where pages are there.
  Populate(memory, bytes);
  if (driver.cuMemHostRegister_v2(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS) {
    return memory;
  }
  munmap(memory, bytes);
  return nullptr;
}

Bytes BlockBytes(Bytes limit, Bytes block) {
  return std::max(kGranuleBytes, std::min(limit, block) / kGranuleBytes * kGranuleBytes);
}

}  // namespace

PinnedPool::PinnedPool(const device::DriverTable& driver, Bytes limit, Bytes block)
    : driver_(driver), block_bytes_(BlockBytes(limit, block)), blocks_max_(limit / block_bytes_) {}

PinnedPool::~PinnedPool() {
  absl::MutexLock lock(&mutex_);
  for (const auto& [memory, block] : blocks_) {
    driver_.cuMemHostUnregister(memory);
    munmap(memory, block_bytes_);
  }
}

// Nothing of the driver is called under the lock: making pinned memory takes its time.
bool PinnedPool::Prepare() {
  {
    absl::MutexLock lock(&mutex_);
    if (blocks_made_ == blocks_max_) return false;
    ++blocks_made_;
  }
  std::byte* const memory = MakePinned(driver_, block_bytes_);
  absl::MutexLock lock(&mutex_);
  if (memory == nullptr) {
    --blocks_made_;
    return false;
  }
  blocks_.emplace(memory, Block());
  whole_.push_back(memory);
  free_ += block_bytes_;
  return true;
}

PinnedPool::Runs PinnedPool::Take(Bytes bytes) {
  Runs runs;
  do {
    absl::MutexLock lock(&mutex_);
    if (TryTake(bytes, &runs)) break;
  } while (Prepare());
  return runs;
}

bool PinnedPool::TryTake(Bytes bytes, Runs* runs) {
  if (free_ < bytes) return false;
  free_ -= bytes;
  while (bytes >= block_bytes_ && !whole_.empty()) {
    blocks_.at(whole_.back()).whole = false;
    runs->emplace_back(whole_.back(), block_bytes_);
    whole_.pop_back();
    bytes -= block_bytes_;
  }
  while (bytes != 0) {
    if (broken_.empty()) {
      Block& block = blocks_.at(whole_.back());
      block.whole = false;
      for (size_t i = 0; i < block_bytes_ / kGranuleBytes; ++i) block.free.insert(i);
      broken_.insert(whole_.back());
      whole_.pop_back();
    }
    std::byte* const memory = *broken_.begin();
    Block& block = blocks_.at(memory);
    const size_t index = *block.free.begin();
    std::byte* const granule = memory + index * kGranuleBytes;
    // No run goes over the end of a block, as no copy may.
    if (index != 0 && !runs->empty() && runs->back().data() + runs->back().size() == granule) {
      runs->back() = {runs->back().data(), runs->back().size() + kGranuleBytes};
    } else {
      runs->emplace_back(granule, kGranuleBytes);
    }
    block.free.erase(block.free.begin());
    if (block.free.empty()) broken_.erase(broken_.begin());
    bytes -= kGranuleBytes;
  }
  return true;
}

void PinnedPool::Return(const Runs& runs) {
  absl::MutexLock lock(&mutex_);
  for (const std::span<std::byte> run : runs) {
    free_ += run.size();
    const auto it = std::prev(blocks_.upper_bound(run.data()));
    for (Bytes at = 0; at < run.size(); at += kGranuleBytes) {
      CHECK(!it->second.whole);
      it->second.free.insert(static_cast<size_t>(run.data() + at - it->first) / kGranuleBytes);
      if (it->second.free.size() == 1) broken_.insert(it->first);
    }
    if (it->second.free.size() == block_bytes_ / kGranuleBytes) {
      it->second = Block();
      broken_.erase(it->first);
      whole_.push_back(it->first);
    }
  }
}

}  // namespace consort::memmgr
