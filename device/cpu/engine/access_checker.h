// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/access_checker.h: whether a kernel may touch the memory that it is about to
// touch.
//
// In checked code (LoadOptions::memory) each access calls CheckAccess first, with what it is packed
// in a number, and with its place in the program. Blocks of device memory are those of the
// MemoryMap; what a thread has beside them is known here:
//
//   shared     the static and the dynamic bytes of the block, exactly, and the system's
//   grid       the words by which the blocks of a cooperative launch meet
//   local      StackBlocks, which the thread's functions put into its context while they run
//   param      the kernel's parameters, to read
//   heap       what the kernel got from malloc (DeviceHeap)
//
// Owned by a BlockRunner; used on its thread.
#ifndef CONSORT_DEVICE_CPU_ENGINE_ACCESS_CHECKER_H_
#define CONSORT_DEVICE_CPU_ENGINE_ACCESS_CHECKER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "device/cpu/engine/thread_context.h"
#include "device/cpu/memory_map.h"
#include "device/cpu/program.h"

namespace consort::cpu {

enum class AccessKind : uint8_t { kRead, kWrite, kAtomic };
// As the instruction names it.
enum class AccessSpace : uint8_t { kGeneric, kGlobal, kShared, kLocal, kConst, kParam };

struct Access {
  AccessKind kind = AccessKind::kRead;
  AccessSpace space = AccessSpace::kGeneric;
  uint32_t bytes = 0;  // 0: nothing is touched. A power of two, and the alignment

  // bytes 0 to 15, kind 16 to 19, space 20 to 23.
  constexpr uint32_t Pack() const {
    return bytes | static_cast<uint32_t>(kind) << 16 | static_cast<uint32_t>(space) << 20;
  }
  static constexpr Access Unpack(uint32_t packed) {
    return {static_cast<AccessKind>(packed >> 16 & 0xF),
            static_cast<AccessSpace>(packed >> 20 & 0xF), packed & 0xFFFF};
  }
};

// A .local variable, or a parameter whose address is taken, of a function that runs. On that
// function's stack; code writes it by offsets.
struct StackBlock {
  const StackBlock* next = nullptr;
  uint64_t base = 0;
  uint64_t bytes = 0;
};
static_assert(std::is_standard_layout_v<StackBlock>);

// Says where in a program an instruction is. Immutable; any thread.
class SiteNames {
 public:
  virtual ~SiteNames() = default;
  // Lines of a report, for the instruction that code calls `site`.
  virtual std::string Describe(uint64_t site) const = 0;
};

// What all blocks of a checked launch share.
struct CheckedLaunch {
  const MemoryMap* memory = nullptr;
  const SiteNames* sites = nullptr;
  const char* kernel = nullptr;
  const uint8_t* params = nullptr;
  uint32_t param_bytes = 0;
  uint32_t static_shared_bytes = 0;
  uint32_t reserved_shared_bytes = 0;
  // Set by whoever reports; relaxed, as only one of them needs to.
  std::atomic<bool> reported{false};
};

// The device's malloc and free of checked code. Blocks have room around them, and what was freed is
// kept for a while, so that neither overflow nor use after free reaches another block. One a
// process, as kernels of all contexts may free what others made. Thread safe.
class DeviceHeap {
 public:
  static DeviceHeap& Get();

  // 0: no memory.
  uint64_t Allocate(uint64_t bytes);
  // False: no block begins there.
  bool Free(uint64_t address);
  std::optional<MemoryBlock> BlockAt(uint64_t address) const;
  std::optional<MemoryBlock> FreedBlock(uint64_t address) const;
  std::optional<MemoryBlock> NearestBlock(uint64_t address) const;

 private:
  struct Block {
    uint64_t bytes = 0;
    std::unique_ptr<uint8_t[]> memory;
  };
  using Blocks = std::map<uint64_t, Block>;
  static std::optional<MemoryBlock> Find(const Blocks& blocks, uint64_t address);

  mutable absl::Mutex mutex_;
  Blocks live_ ABSL_GUARDED_BY(mutex_);
  Blocks freed_ ABSL_GUARDED_BY(mutex_);
  uint64_t freed_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

class AccessChecker {
 public:
  // Before each block of a checked launch.
  void Begin(CheckedLaunch& launch) { launch_ = &launch; }

  // kNone, or what the access ends the launch with, reported.
  LaunchFault Check(const ThreadContext& context, uint64_t address, uint32_t access, uint64_t site);
  // The same for a texture or surface object; 0: no such object.
  LaunchFault CheckObject(const ThreadContext& context, uint64_t handle, bool is_surface,
                          uint64_t site);
  // Reports an access of a surface outside of it, at the place last given to CheckObject.
  void ReportSurface(const ThreadContext& context);
  // Reports a free() of what is no block.
  void ReportFree(const ThreadContext& context, uint64_t address, uint64_t site);

 private:
  bool IsKnown(const MemoryBlock& block, uint64_t address, const Access& access) const;
  void Report(const ThreadContext& context, const std::string& what, const std::string& where,
              uint64_t site);
  std::string Distance(uint64_t address) const;

  CheckedLaunch* launch_ = nullptr;
  // Blocks that were hit last, good while the map has this version.
  uint64_t version_ = 0;
  std::array<MemoryBlock, 4> recent_;
  size_t next_recent_ = 0;
  uint64_t surface_site_ = 0;
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_ACCESS_CHECKER_H_
