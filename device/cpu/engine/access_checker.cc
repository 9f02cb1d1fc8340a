// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/engine/access_checker.h"

#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"
#include "device/cpu/texture.h"

namespace consort::cpu {
namespace {

// Addresses below it are what a null pointer with an index gives.
constexpr uint64_t kNullBytes = 4096;
// Around blocks of the device's heap. An overflow by more is found only if it misses all blocks.
constexpr uint64_t kHeapGapBytes = 256;
constexpr uint64_t kHeapAlign = 16;
// Of freed blocks that are kept.
constexpr uint64_t kHeapFreedBytesMax = uint64_t{64} << 20;
// Shared memory's window of addresses: any 32-bit offset, and an access that begins at the last.
constexpr uint64_t kWindowBytes = (uint64_t{1} << 32) + 65536;

bool Holds(uint64_t base, uint64_t bytes, uint64_t address, uint64_t access_bytes) {
  return address - base < bytes && access_bytes <= bytes - (address - base);
}

const char* SpaceName(AccessSpace space) {
  switch (space) {
    case AccessSpace::kShared:
      return "__shared__";
    case AccessSpace::kLocal:
      return "__local__";
    case AccessSpace::kConst:
      return "__constant__";
    case AccessSpace::kParam:
      return "parameter";
    case AccessSpace::kGlobal:
    case AccessSpace::kGeneric:
      break;
  }
  return "__global__";
}

const char* KindName(AccessKind kind) {
  switch (kind) {
    case AccessKind::kRead:
      return "read";
    case AccessKind::kWrite:
      return "write";
    case AccessKind::kAtomic:
      break;
  }
  return "atomic";
}

uint64_t DistanceTo(const MemoryBlock& block, uint64_t address) {
  if (address < block.base) return block.base - address;
  return address < block.base + block.bytes ? 0 : address - (block.base + block.bytes) + 1;
}

}  // namespace

// --- DeviceHeap ---

DeviceHeap& DeviceHeap::Get() {
  static DeviceHeap* const heap = new DeviceHeap();
  return *heap;
}

uint64_t DeviceHeap::Allocate(uint64_t bytes) {
  const uint64_t all = bytes + 2 * kHeapGapBytes + kHeapAlign;
  if (all < bytes) return 0;
  std::unique_ptr<uint8_t[]> memory(new (std::nothrow) uint8_t[all]);
  if (memory == nullptr) return 0;
  const uint64_t start = reinterpret_cast<uint64_t>(memory.get()) + kHeapGapBytes;
  const uint64_t base = (start + kHeapAlign - 1) / kHeapAlign * kHeapAlign;
  absl::MutexLock lock(&mutex_);
  live_[base] = {bytes, std::move(memory)};
  return base;
}

bool DeviceHeap::Free(uint64_t address) {
  absl::MutexLock lock(&mutex_);
  const auto found = live_.find(address);
  if (found == live_.end()) return false;
  freed_bytes_ += found->second.bytes;
  freed_.insert(live_.extract(found));
  // Which of them goes does not matter much: the bound is there to be far away.
  while (freed_bytes_ > kHeapFreedBytesMax) {
    freed_bytes_ -= freed_.begin()->second.bytes;
    freed_.erase(freed_.begin());
  }
  return true;
}

std::optional<MemoryBlock> DeviceHeap::Find(const Blocks& blocks, uint64_t address) {
  auto at = blocks.upper_bound(address);
  if (at == blocks.begin()) return std::nullopt;
  --at;
  if (address - at->first >= at->second.bytes) return std::nullopt;
  return MemoryBlock{at->first, at->second.bytes};
}

std::optional<MemoryBlock> DeviceHeap::BlockAt(uint64_t address) const {
  absl::MutexLock lock(&mutex_);
  return Find(live_, address);
}

std::optional<MemoryBlock> DeviceHeap::FreedBlock(uint64_t address) const {
  absl::MutexLock lock(&mutex_);
  return Find(freed_, address);
}

std::optional<MemoryBlock> DeviceHeap::NearestBlock(uint64_t address) const {
  absl::MutexLock lock(&mutex_);
  std::optional<MemoryBlock> nearest;
  auto at = live_.upper_bound(address);
  if (at != live_.end()) nearest = MemoryBlock{at->first, at->second.bytes};
  if (at == live_.begin()) return nearest;
  --at;
  const MemoryBlock below = {at->first, at->second.bytes};
  if (!nearest || DistanceTo(below, address) < DistanceTo(*nearest, address)) nearest = below;
  return nearest;
}

// --- AccessChecker ---

bool AccessChecker::IsKnown(const MemoryBlock& block, uint64_t address,
                            const Access& access) const {
  return Holds(block.base, block.bytes, address, access.bytes) && block.readable &&
         (access.kind == AccessKind::kRead || (block.writable && !block.constant)) &&
         (access.space != AccessSpace::kConst || block.constant);
}

LaunchFault AccessChecker::Check(const ThreadContext& context, uint64_t address, uint32_t packed,
                                 uint64_t site) {
  Access access = Access::Unpack(packed);
  if (access.bytes == 0) return LaunchFault::kNone;
  const bool aligned = address % access.bytes == 0;
  const uint64_t shared = reinterpret_cast<uint64_t>(context.shared);
  const bool generic = access.space == AccessSpace::kGeneric;
  if ((generic || access.space == AccessSpace::kShared) && address - shared < kWindowBytes) {
    const uint64_t offset = address - shared;
    const uint64_t dynamic = AlignUp(launch_->static_shared_bytes, kDynamicSharedAlign);
    const uint64_t reserved = AlignUp(dynamic + context.dynamic_shared_bytes, kReservedSharedAlign);
    const bool inside = Holds(0, launch_->static_shared_bytes, offset, access.bytes) ||
                        Holds(dynamic, context.dynamic_shared_bytes, offset, access.bytes) ||
                        Holds(reserved, launch_->reserved_shared_bytes, offset, access.bytes);
    if (inside && aligned) return LaunchFault::kNone;
    access.space = AccessSpace::kShared;
    Report(context,
           absl::StrFormat("Invalid __shared__ %s of size %u bytes", KindName(access.kind),
                           access.bytes),
           inside ? absl::StrFormat("Address 0x%x is misaligned", offset)
                  : absl::StrFormat("Address 0x%x is out of bounds: the block has %u bytes of "
                                    "static and %u of dynamic shared memory",
                                    offset, launch_->static_shared_bytes,
                                    context.dynamic_shared_bytes),
           site);
    return inside ? LaunchFault::kMisaligned : LaunchFault::kIllegalAddress;
  }
  bool inside = false;
  if (generic || access.space == AccessSpace::kLocal || access.space == AccessSpace::kParam) {
    for (const StackBlock* block = context.stack_blocks; block != nullptr && !inside;
         block = block->next) {
      inside = Holds(block->base, block->bytes, address, access.bytes);
    }
    const uint64_t params = reinterpret_cast<uint64_t>(launch_->params);
    inside = inside || (access.kind == AccessKind::kRead &&
                        Holds(params, launch_->param_bytes, address, access.bytes));
  }
  if ((generic || access.space == AccessSpace::kGlobal) && context.grid_workspace != 0) {
    inside = inside || Holds(context.grid_workspace, kGridWorkspaceBytes, address, access.bytes);
  }
  if (!inside && access.space != AccessSpace::kLocal && access.space != AccessSpace::kShared) {
    const uint64_t version = launch_->memory->version();
    if (version != version_) {
      recent_.fill(MemoryBlock());
      version_ = version;
    }
    for (const MemoryBlock& block : recent_) inside = inside || IsKnown(block, address, access);
    if (!inside) {
      // The heap's blocks are not kept in `recent_`: they come and go without a new version.
      if (const auto block = launch_->memory->BlockAt(address)) {
        inside = IsKnown(*block, address, access);
        if (inside) recent_[next_recent_++ % recent_.size()] = *block;
      } else if (const auto heap_block = DeviceHeap::Get().BlockAt(address)) {
        inside = IsKnown(*heap_block, address, access);
      }
    }
  }
  if (inside && aligned) return LaunchFault::kNone;
  const bool on_stack = address - reinterpret_cast<uint64_t>(context.stack_low) <
                        static_cast<uint64_t>(context.stack_high - context.stack_low);
  if (generic && on_stack) access.space = AccessSpace::kLocal;
  std::string where;
  if (inside) {
    where = absl::StrFormat("Address 0x%x is misaligned", address);
  } else if (access.space == AccessSpace::kLocal && on_stack) {
    const StackBlock* nearest = context.stack_blocks;
    auto distance = [address](const StackBlock& block) {
      return DistanceTo({block.base, block.bytes}, address);
    };
    for (const StackBlock* block = nearest; block != nullptr; block = block->next) {
      if (distance(*block) < distance(*nearest)) nearest = block;
    }
    where = absl::StrFormat("Address 0x%x is out of bounds", address);
    if (nearest != nullptr) {
      absl::StrAppendFormat(&where, "\nand is %d bytes %s the nearest local variables of %d bytes",
                            distance(*nearest), address < nearest->base ? "before" : "after",
                            nearest->bytes);
    }
  } else {
    where =
        absl::StrCat(absl::StrFormat("Address 0x%x is out of bounds", address), Distance(address));
  }
  Report(context,
         absl::StrFormat("Invalid %s %s of size %u bytes", SpaceName(access.space),
                         KindName(access.kind), access.bytes),
         where, site);
  return inside ? LaunchFault::kMisaligned : LaunchFault::kIllegalAddress;
}

// A further line on what is near the address.
std::string AccessChecker::Distance(uint64_t address) const {
  if (address < kNullBytes) return "\nand is a null pointer, or was made from one";
  auto say = [&](const char* relation, const MemoryBlock& block, const char* kind) {
    return absl::StrFormat("\nand is %d bytes %s the %s at 0x%x of size %d bytes",
                           relation[0] == 'i' ? address - block.base : DistanceTo(block, address),
                           relation, kind, block.base, block.bytes);
  };
  const MemoryMap& memory = *launch_->memory;
  if (const auto block = memory.BlockAt(address)) {
    return say("inside", *block,
               block->constant    ? "constant variable"
               : !block->readable ? "inaccessible mapping"
               : !block->writable ? "read-only allocation"
                                  : "allocation");
  }
  for (const auto& freed : {memory.FreedBlock(address), DeviceHeap::Get().FreedBlock(address)}) {
    if (freed) return say("inside", *freed, "freed allocation");
  }
  std::optional<MemoryBlock> nearest = memory.NearestBlock(address);
  const std::optional<MemoryBlock> heap = DeviceHeap::Get().NearestBlock(address);
  if (heap && (!nearest || DistanceTo(*heap, address) < DistanceTo(*nearest, address))) {
    nearest = heap;
  }
  if (!nearest) return "\nand there is no allocation";
  return say(address < nearest->base ? "before" : "after", *nearest, "nearest allocation");
}

LaunchFault AccessChecker::CheckObject(const ThreadContext& context, uint64_t handle,
                                       bool is_surface, uint64_t site) {
  surface_site_ = site;
  const TextureObject* const object = FindTexture(handle);
  const char* const what = is_surface ? "surface" : "texture";
  if (object == nullptr || (is_surface && !object->is_surface)) {
    Report(context, absl::StrFormat("Invalid %s access", what),
           absl::StrFormat("0x%x is no %s object, or one that was destroyed", handle, what), site);
    return LaunchFault::kIllegalAddress;
  }
  const TexelGrid& grid = object->grid;
  const auto block = launch_->memory->BlockAt(grid.base);
  // The last row of pitched memory may end with its texels.
  const Bytes bytes = (grid.slices - 1) * grid.slice_bytes + (grid.height - 1) * grid.pitch +
                      grid.width * grid.texel_bytes();
  if (block && Holds(block->base, block->bytes, grid.base, bytes)) return LaunchFault::kNone;
  Report(context, absl::StrFormat("Invalid %s access", what),
         absl::StrCat(absl::StrFormat("The object's memory of %d bytes at address 0x%x is gone",
                                      bytes, grid.base),
                      Distance(grid.base)),
         site);
  return LaunchFault::kIllegalAddress;
}

void AccessChecker::ReportSurface(const ThreadContext& context) {
  Report(context, "Invalid surface access", "The coordinates are out of bounds", surface_site_);
}

void AccessChecker::ReportFree(const ThreadContext& context, uint64_t address, uint64_t site) {
  const bool again = DeviceHeap::Get().FreedBlock(address).has_value();
  Report(context, again ? "Invalid free, for the second time" : "Invalid free",
         absl::StrCat(absl::StrFormat("Address 0x%x is no block of malloc", address),
                      Distance(address)),
         site);
}

void AccessChecker::Report(const ThreadContext& context, const std::string& what,
                           const std::string& where, uint64_t site) {
  if (launch_->reported.exchange(true, std::memory_order_relaxed)) return;
  const std::string text = absl::StrFormat(
      "%s\n%s\nin kernel %s\nby thread (%u,%u,%u) in block (%u,%u,%u)\n%s", what,
      launch_->sites->Describe(site), launch_->kernel, context.tid[0], context.tid[1],
      context.tid[2], context.ctaid[0], context.ctaid[1], context.ctaid[2], where);
  std::string lines;
  for (size_t begin = 0, line = 0; begin <= text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    absl::StrAppend(&lines, line == 0 ? "========= " : "\n=========     ",
                    absl::string_view(text).substr(begin, end - begin));
    begin = end + 1;
  }
  launch_->memory->Report(lines);
}

}  // namespace consort::cpu
