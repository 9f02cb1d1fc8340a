// SPDX-License-Identifier: Apache-2.0
// device/cpu/memory_map.h: what memory there is, for kernels whose accesses are checked.
//
// Implemented by the driver half, asked by the engine while kernels run. Thread safe; called on a
// kernel's stack, so that it must neither wait for a kernel nor throw.
#ifndef CONSORT_DEVICE_CPU_MEMORY_MAP_H_
#define CONSORT_DEVICE_CPU_MEMORY_MAP_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>

namespace consort::cpu {

struct MemoryBlock {
  uintptr_t base = 0;
  uint64_t bytes = 0;
  bool readable = true;
  bool writable = true;
  bool constant = false;  // a variable of the .const state space
};

class MemoryMap {
 public:
  virtual ~MemoryMap() = default;

  // The block that `address` is in.
  virtual std::optional<MemoryBlock> BlockAt(uintptr_t address) const = 0;
  // The block with the byte nearest to `address`; none if there is no block.
  virtual std::optional<MemoryBlock> NearestBlock(uintptr_t address) const = 0;
  // The block that `address` was in before it was freed, as far as that is remembered.
  virtual std::optional<MemoryBlock> FreedBlock(uintptr_t address) const = 0;
  // Told of the first bad access of a launch, in lines that a person reads.
  virtual void Report(std::string_view text) const = 0;

  // Greater after every change by which a block goes, shrinks or is protected. Acquire: who sees
  // the number sees the change.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }

 protected:
  void Changed() { version_.fetch_add(1, std::memory_order_release); }

 private:
  std::atomic<uint64_t> version_{1};
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_MEMORY_MAP_H_
