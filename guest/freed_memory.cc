// SPDX-License-Identifier: Apache-2.0
#include "guest/freed_memory.h"

namespace consort::guest {

bool FreedMemory::Keep(const Block& block) {
  MutexLock lock(&mutex_);
  const size_t count = count_.load(std::memory_order_relaxed);
  if (count == kBlocksMax || block.bytes > kBytesMax - bytes_) return false;
  blocks_[count] = block;
  bytes_ += block.bytes;
  count_.store(count + 1, std::memory_order_relaxed);
  return true;
}

uint64_t FreedMemory::Take(uint64_t context_id, uint64_t bytes) {
  if (count_.load(std::memory_order_relaxed) == 0) return 0;
  MutexLock lock(&mutex_);
  // The latest first: its contents may still be in the device's cache.
  for (size_t i = count_.load(std::memory_order_relaxed); i-- > 0;) {
    if (blocks_[i].bytes != bytes || blocks_[i].context_id != context_id) continue;
    const uint64_t address = blocks_[i].address;
    Remove(i);
    return address;
  }
  return 0;
}

bool FreedMemory::TakeAny(Block* block) {
  if (count_.load(std::memory_order_relaxed) == 0) return false;
  MutexLock lock(&mutex_);
  if (count_.load(std::memory_order_relaxed) == 0) return false;
  *block = blocks_[0];
  Remove(0);
  return true;
}

void FreedMemory::Forget(uint64_t context_id) {
  MutexLock lock(&mutex_);
  for (size_t i = count_.load(std::memory_order_relaxed); i-- > 0;) {
    if (blocks_[i].context_id == context_id) Remove(i);
  }
}

void FreedMemory::Remove(size_t index) {
  const size_t count = count_.load(std::memory_order_relaxed) - 1;
  bytes_ -= blocks_[index].bytes;
  for (size_t i = index; i < count; ++i) blocks_[i] = blocks_[i + 1];
  count_.store(count, std::memory_order_relaxed);
}

}  // namespace consort::guest
