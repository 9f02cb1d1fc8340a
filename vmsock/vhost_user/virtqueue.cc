// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/virtqueue.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "vmsock/prefetch.h"
#include "vmsock/vhost_user/limits.h"

namespace consort::vhost_user {
namespace {

constexpr uint16_t kDescriptorNext = 1;
constexpr uint16_t kDescriptorWrite = 2;
constexpr uint16_t kDescriptorIndirect = 4;

constexpr uint16_t kAvailableNoInterrupt = 1;  // available ring, flags
constexpr uint16_t kUsedNoNotify = 1;          // used ring, flags

constexpr size_t kDescriptorBytes = 16;
constexpr size_t kUsedElementBytes = 8;
constexpr size_t kFlagsOffset = 0;
constexpr size_t kIndexOffset = 2;
constexpr size_t kRingOffset = 4;

// Chains behind the one that is taken whose descriptors, and whose tables, are asked for: one miss
// takes about as long as some chains.
constexpr uint16_t kDescriptorsAhead = 8;
constexpr uint16_t kTablesAhead = 3;
// Entries of the available ring that are looked at in one piece.
constexpr size_t kHeadsAtOnce = 64;

constexpr size_t AvailableBytes(uint32_t entries) { return kRingOffset + 2 * entries + 2; }
constexpr size_t UsedBytes(uint32_t entries) {
  return kRingOffset + kUsedElementBytes * entries + 2;
}

// The 16-bit cells that both sides touch at once. Their order pairs with the guest's own barriers
// around its indices (virtio 1.2, sections 2.7.13 and 2.7.14).
uint16_t Load16(std::byte* cell, std::memory_order order) {
  return std::atomic_ref<uint16_t>(*reinterpret_cast<uint16_t*>(cell)).load(order);
}
void Store16(std::byte* cell, uint16_t value, std::memory_order order) {
  std::atomic_ref<uint16_t>(*reinterpret_cast<uint16_t*>(cell)).store(value, order);
}

bool Aligned(const std::byte* address, size_t alignment) {
  return reinterpret_cast<uintptr_t>(address) % alignment == 0;
}

absl::Status Broken(const char* what, uint64_t value) {
  return absl::DataLossError(absl::StrCat("virtqueue: ", what, " ", value));
}

}  // namespace

absl::StatusOr<Virtqueue> Virtqueue::Attach(const MemoryMap* memory, const Options& options) {
  const uint32_t entries = options.layout.entries;
  if (entries == 0 || entries > kRingEntriesMax || !std::has_single_bit(entries)) {
    return absl::InvalidArgumentError(absl::StrCat("virtqueue of ", entries, " entries"));
  }
  Virtqueue queue(memory, options);
  RETURN_IF_ERROR(queue.Translate());
  queue.used_index_ = Load16(queue.used_ + kIndexOffset, std::memory_order_relaxed);
  queue.published_index_ = queue.used_index_;
  return queue;
}

absl::Status Virtqueue::Translate() {
  const VirtqueueLayout& layout = options_.layout;
  descriptors_ = memory_->FromUser(layout.descriptors_user_addr, kDescriptorBytes * layout.entries);
  available_ = memory_->FromUser(layout.available_user_addr, AvailableBytes(layout.entries));
  used_ = memory_->FromUser(layout.used_user_addr, UsedBytes(layout.entries));
  if (descriptors_ == nullptr || available_ == nullptr || used_ == nullptr) {
    return absl::InvalidArgumentError("virtqueue outside guest memory");
  }
  // Virtio 1.2, section 2.7: 16, 2 and 4.
  if (!Aligned(descriptors_, 16) || !Aligned(available_, 2) || !Aligned(used_, 4)) {
    return absl::InvalidArgumentError("virtqueue misaligned");
  }
  return absl::OkStatus();
}

uint16_t Virtqueue::AvailableIndex() const {
  return Load16(available_ + kIndexOffset, std::memory_order_seq_cst);
}

inline Virtqueue::Descriptor Virtqueue::ReadDescriptor(const std::byte* table, uint32_t index) {
  static_assert(sizeof(Descriptor) == kDescriptorBytes);
  Descriptor descriptor;
  std::memcpy(&descriptor, table + kDescriptorBytes * index, sizeof(descriptor));
  return descriptor;
}

inline uint16_t Virtqueue::ReadHead(uint16_t ahead) const {
  const uint32_t slot = (next_available_ + ahead) & (options_.layout.entries - 1);
  uint16_t head = 0;
  std::memcpy(&head, available_ + kRingOffset + 2 * slot, sizeof(head));
  return head;
}

void Virtqueue::ReadHeads(uint16_t ahead, std::span<uint16_t> heads) const {
  const uint32_t slot =
      static_cast<uint16_t>(next_available_ + ahead) & (options_.layout.entries - 1);
  const size_t first = std::min<size_t>(heads.size(), options_.layout.entries - slot);
  std::memcpy(heads.data(), available_ + kRingOffset + 2 * slot, 2 * first);
  std::memcpy(heads.data() + first, available_ + kRingOffset, 2 * (heads.size() - first));
}

inline void Virtqueue::PrefetchDescriptor(uint16_t waiting) const {
  if (waiting <= kDescriptorsAhead) return;
  const uint32_t index = ReadHead(kDescriptorsAhead) & (options_.layout.entries - 1);
  PrefetchForRead(descriptors_ + kDescriptorBytes * index);
}

absl::StatusOr<bool> Virtqueue::Pop(Chain& chain) {
  if (available_seen_ == next_available_) {
    const uint16_t index = AvailableIndex();
    const uint16_t more = static_cast<uint16_t>(index - next_available_);
    if (more > options_.layout.entries) return Broken("available index jumps by", more);
    if (more == 0) return false;
    available_seen_ = index;
  }
  const uint16_t waiting = static_cast<uint16_t>(available_seen_ - next_available_);
  const uint16_t head = ReadHead(0);
  PrefetchDescriptor(waiting);
  PrefetchTable(waiting);
  RETURN_IF_ERROR(Walk(head, chain));
  ++next_available_;
  return true;
}

size_t Virtqueue::PopWritable(uint32_t bytes_min, std::span<WritableBuffer> buffers) {
  uint16_t waiting = static_cast<uint16_t>(available_seen_ - next_available_);
  if (waiting == 0) {
    const uint16_t index = AvailableIndex();
    waiting = static_cast<uint16_t>(index - next_available_);
    if (waiting > options_.layout.entries) return 0;
    available_seen_ = index;
  }
  const auto wanted =
      static_cast<uint16_t>(std::min<size_t>({waiting, buffers.size(), kHeadsAtOnce}));
  const auto mask = static_cast<uint16_t>(options_.layout.entries - 1);
  std::array<uint16_t, kHeadsAtOnce> heads;
  // The misses of all of these at once, and of as many that are taken next.
  auto asked = static_cast<uint16_t>(asked_ - next_available_);
  if (asked > waiting) asked = 0;
  for (const auto ahead = static_cast<uint16_t>(std::min<uint32_t>(waiting, 2u * wanted));
       asked < ahead;) {
    const auto count = static_cast<uint16_t>(std::min<size_t>(ahead - asked, kHeadsAtOnce));
    ReadHeads(asked, std::span(heads).first(count));
    for (uint16_t i = 0; i < count; ++i) {
      PrefetchForRead(descriptors_ + kDescriptorBytes * (heads[i] & mask));
    }
    asked = static_cast<uint16_t>(asked + count);
  }
  asked_ = static_cast<uint16_t>(next_available_ + asked);
  ReadHeads(0, std::span(heads).first(wanted));
  MemoryMap::Window window = memory_->last_window();
  uint16_t taken = 0;
  for (; taken < wanted; ++taken) {
    const uint16_t head = heads[taken];
    if (head > mask) break;
    const Descriptor descriptor = ReadDescriptor(descriptors_, head);
    if ((descriptor.flags & (kDescriptorNext | kDescriptorWrite | kDescriptorIndirect)) !=
            kDescriptorWrite ||
        descriptor.len < bytes_min) {
      break;
    }
    if (!window.Contains(descriptor.addr, descriptor.len)) {
      if (memory_->FromGuest(descriptor.addr, descriptor.len) == nullptr) break;
      window = memory_->last_window();
    }
    buffers[taken] = {head, {window.At(descriptor.addr), descriptor.len}};
  }
  next_available_ = static_cast<uint16_t>(next_available_ + taken);
  return taken;
}

void Virtqueue::PrefetchTable(uint16_t waiting) const {
  if (waiting <= kTablesAhead) return;
  const Descriptor descriptor =
      ReadDescriptor(descriptors_, ReadHead(kTablesAhead) & (options_.layout.entries - 1));
  if (!(descriptor.flags & kDescriptorIndirect)) return;
  const std::byte* const table = memory_->FromGuest(descriptor.addr, descriptor.len);
  if (table == nullptr) return;
  PrefetchForRead(table);
  if (descriptor.len > kCacheLineBytes) PrefetchForRead(table + kCacheLineBytes);
}

absl::Status Virtqueue::Walk(uint16_t head, Chain& chain) const {
  chain.head = head;
  chain.readable.clear();
  chain.writable.clear();
  chain.readable_bytes = 0;
  chain.writable_bytes = 0;

  const std::byte* table = descriptors_;
  uint32_t table_entries = options_.layout.entries;
  bool in_indirect = false;
  uint32_t index = head;
  // A chain without a loop visits no entry of a table twice, so its table's size bounds it.
  for (uint32_t hops = 0; hops < table_entries && hops < kDescriptorsPerChainMax;) {
    if (index >= table_entries) return Broken("descriptor index", index);
    const Descriptor descriptor = ReadDescriptor(table, index);
    if (descriptor.flags & kDescriptorIndirect) {
      // Section 2.7.5.3: no table inside a table, and none in a chain that goes on. Linux puts one
      // first in its chain; the specification also allows direct descriptors before it.
      if (in_indirect || !options_.indirect) return Broken("unexpected indirect table at", index);
      if (descriptor.flags & kDescriptorNext) return Broken("chain after indirect table at", index);
      if (descriptor.len == 0 || descriptor.len % kDescriptorBytes != 0 ||
          descriptor.len / kDescriptorBytes > kIndirectEntriesMax) {
        return Broken("indirect table of bytes", descriptor.len);
      }
      table = memory_->FromGuest(descriptor.addr, descriptor.len);
      if (table == nullptr) return Broken("indirect table outside memory at", descriptor.addr);
      table_entries = descriptor.len / kDescriptorBytes;
      in_indirect = true;
      index = 0;
      hops = 0;
      continue;
    }
    const bool writable = (descriptor.flags & kDescriptorWrite) != 0;
    // Section 2.7.4.2: all that the device reads comes before all that it writes.
    if (!writable && chain.writable_bytes > 0) return Broken("readable after writable at", index);
    if (!memory_->AppendGuest(descriptor.addr, descriptor.len,
                              writable ? chain.writable : chain.readable)) {
      return Broken("buffer outside memory at", descriptor.addr);
    }
    (writable ? chain.writable_bytes : chain.readable_bytes) += descriptor.len;
    if (!(descriptor.flags & kDescriptorNext)) return absl::OkStatus();
    index = descriptor.next;
    ++hops;
  }
  return Broken("endless chain at head", head);
}

void Virtqueue::Rewind(uint16_t count) {
  next_available_ = static_cast<uint16_t>(next_available_ - count);
}

void Virtqueue::Push(std::span<const UsedChain> chains) {
  static_assert(sizeof(UsedChain) == kUsedElementBytes);
  while (!chains.empty()) {
    const uint32_t slot = used_index_ & (options_.layout.entries - 1);
    const auto some = chains.first(std::min<size_t>(chains.size(), options_.layout.entries - slot));
    std::byte* const at = used_ + kRingOffset + kUsedElementBytes * slot;
    std::memcpy(at, some.data(), some.size_bytes());
    used_index_ = static_cast<uint16_t>(used_index_ + some.size());
    chains = chains.subspan(some.size());
    // The guest has read the line that comes next, a lap ago.
    if (slot + some.size() < options_.layout.entries) {
      PrefetchForWrite(at + some.size_bytes(), kCacheLineBytes);
    }
  }
}

bool Virtqueue::Publish() {
  const uint16_t old_index = std::exchange(published_index_, used_index_);
  if (old_index == used_index_) return false;
  // The guest must see the index before we look at what it wants, as it does the reverse: each
  // store and the load after it are sequentially consistent, which keeps them in order.
  Store16(used_ + kIndexOffset, used_index_, std::memory_order_seq_cst);
  if (std::exchange(interrupt_owed_, false)) return true;
  if (!options_.event_idx) {
    return !(Load16(available_ + kFlagsOffset, std::memory_order_seq_cst) & kAvailableNoInterrupt);
  }
  // Section 2.7.10: interrupt if the index passed used_event just now.
  const uint16_t used_event =
      Load16(available_ + kRingOffset + 2 * options_.layout.entries, std::memory_order_seq_cst);
  return static_cast<uint16_t>(used_index_ - used_event - 1) <
         static_cast<uint16_t>(used_index_ - old_index);
}

void Virtqueue::DisableKicks() {
  // With EVENT_IDX an avail_event that is not moved is passed once and then stays behind.
  if (!options_.event_idx) {
    Store16(used_ + kFlagsOffset, kUsedNoNotify, std::memory_order_relaxed);
  }
}

bool Virtqueue::EnableKicks() {
  // The guest must see the request before we look for chains, as in Publish.
  if (options_.event_idx) {
    Store16(used_ + kRingOffset + kUsedElementBytes * options_.layout.entries, next_available_,
            std::memory_order_seq_cst);
  } else {
    Store16(used_ + kFlagsOffset, 0, std::memory_order_seq_cst);
  }
  return AvailableIndex() != next_available_;
}

}  // namespace consort::vhost_user
