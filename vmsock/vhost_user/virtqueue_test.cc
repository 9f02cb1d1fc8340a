// SPDX-License-Identifier: Apache-2.0
// The walker alone, on rings in a memfd. Broken chains are in vsock_device_test.cc, where their
// effect shows.
#include "vmsock/vhost_user/virtqueue.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <iterator>
#include <span>

#include "base/log.h"
#include "base/units.h"
#include "gtest/gtest.h"

namespace consort::vhost_user {
namespace {

constexpr uint32_t kEntries = 8;
constexpr uint64_t kAvailable = 0x1000;
constexpr uint64_t kUsed = 0x2000;
constexpr uint64_t kBuffers = 0x3000;
constexpr uint64_t kUser = kGiB;
constexpr uint64_t kMemoryBytes = 64 * kKiB;

class VirtqueueTest : public testing::Test {
 protected:
  void SetUp() override {
    std::vector<UniqueFd> fds;
    fds.emplace_back(memfd_create("memory", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(fds[0].get(), kMemoryBytes), 0);
    const MemoryRegionSpec spec{
        .guest_addr = 0, .bytes = kMemoryBytes, .user_addr = kUser, .mmap_offset = 0};
    ASSERT_TRUE(memory_.Update({&spec, 1}, std::move(fds), false).ok());
  }
  absl::StatusOr<Virtqueue> Attach(uint16_t base, bool event_idx = true) {
    return Virtqueue::Attach(
        &memory_,
        {.layout = layout_, .next_available = base, .event_idx = event_idx, .indirect = true});
  }
  uint16_t& Cell(uint64_t offset) {
    return *reinterpret_cast<uint16_t*>(memory_.FromGuest(offset, 2));
  }
  void Descriptor(uint32_t index, uint64_t addr, uint32_t len, uint16_t flags, uint16_t next) {
    std::byte* const at = memory_.FromGuest(16 * index, 16);
    std::memcpy(at, &addr, 8);
    std::memcpy(at + 8, &len, 4);
    std::memcpy(at + 12, &flags, 2);
    std::memcpy(at + 14, &next, 2);
  }
  void Offer(uint16_t slot, uint16_t head) { Cell(kAvailable + 4 + 2 * (slot % kEntries)) = head; }
  uint16_t& AvailableIndex() { return Cell(kAvailable + 2); }
  uint16_t& UsedEvent() { return Cell(kAvailable + 4 + 2 * kEntries); }
  uint16_t& UsedIndex() { return Cell(kUsed + 2); }
  uint16_t& AvailEvent() { return Cell(kUsed + 4 + 8 * kEntries); }

  MemoryMap memory_;
  VirtqueueLayout layout_{.entries = kEntries,
                          .descriptors_user_addr = kUser,
                          .available_user_addr = kUser + kAvailable,
                          .used_user_addr = kUser + kUsed};
};

TEST_F(VirtqueueTest, RefusesRingsThatAreNone) {
  const VirtqueueLayout good = layout_;
  EXPECT_TRUE(Attach(0).ok());
  for (const uint32_t entries : {0u, 3u, 2 * kRingEntriesMax, 0x80000000u}) {
    layout_.entries = entries;
    EXPECT_FALSE(Attach(0).ok()) << entries;
  }
  layout_ = good;
  layout_.descriptors_user_addr += 8;
  EXPECT_FALSE(Attach(0).ok());
  layout_ = good;
  layout_.available_user_addr += 1;
  EXPECT_FALSE(Attach(0).ok());
  layout_ = good;
  layout_.used_user_addr = kUser + kMemoryBytes - 4;
  EXPECT_FALSE(Attach(0).ok());
}

TEST_F(VirtqueueTest, WalksChainsInOrderAndAcrossTheWrapOfBothIndices) {
  UsedIndex() = 0xfffe;
  AvailableIndex() = 0xfffe;
  auto queue = Attach(0xfffe);
  ASSERT_TRUE(queue.ok());
  Chain chain;
  for (int round = 0; round < 5; ++round) {
    const uint16_t slot = static_cast<uint16_t>(0xfffe + round);
    Descriptor(3, kBuffers, 44, 1, 6);
    Descriptor(6, kBuffers + 100, 10, 1, 1);
    Descriptor(1, kBuffers + 300, 20, 2, 0);
    EXPECT_FALSE(*queue->Pop(chain));
    Offer(slot, 3);
    AvailableIndex() = static_cast<uint16_t>(slot + 1);
    const auto popped = queue->Pop(chain);
    ASSERT_TRUE(popped.ok() && *popped) << popped.status();
    EXPECT_EQ(chain.head, 3);
    EXPECT_EQ(chain.readable.size(), 2u);
    EXPECT_EQ(chain.readable_bytes, 54u);
    EXPECT_EQ(chain.writable_bytes, 20u);
    EXPECT_EQ(chain.readable[1].iov_base, memory_.FromGuest(kBuffers + 100, 10));
    queue->Push(chain.head, 20);
    EXPECT_EQ(UsedIndex(), slot) << "visible before Publish";
    queue->Publish();
    EXPECT_EQ(UsedIndex(), static_cast<uint16_t>(slot + 1));
    EXPECT_EQ(Cell(kUsed + 4 + 8 * (slot % kEntries)), 3);
    EXPECT_EQ(Cell(kUsed + 4 + 8 * (slot % kEntries) + 4), 20);
  }
}

TEST_F(VirtqueueTest, RewindReadsTheChainAgain) {
  auto queue = Attach(0);
  Descriptor(0, kBuffers, 44, 0, 0);
  Descriptor(1, kBuffers, 55, 0, 0);
  Offer(0, 0);
  Offer(1, 1);
  AvailableIndex() = 2;
  Chain chain;
  ASSERT_TRUE(*queue->Pop(chain));
  ASSERT_TRUE(*queue->Pop(chain));
  EXPECT_EQ(chain.readable_bytes, 55u);
  queue->Rewind(2);
  Descriptor(0, kBuffers, 66, 0, 0);
  ASSERT_TRUE(*queue->Pop(chain));
  EXPECT_EQ(chain.readable_bytes, 66u);
  EXPECT_EQ(queue->next_available(), 1);
}

TEST_F(VirtqueueTest, TakesWritableBuffersUpToTheFirstOtherChain) {
  auto queue = Attach(0);
  const uint32_t lengths[] = {100, 101, 102, 9, 103};
  for (uint16_t i = 0; i < std::size(lengths); ++i) {
    Descriptor(i, kBuffers + 1000 * i, lengths[i], 2, 0);
    Offer(i, i);
  }
  AvailableIndex() = std::size(lengths);
  std::array<WritableBuffer, 8> buffers;
  EXPECT_EQ(queue->PopWritable(10, std::span(buffers).first(2)), 2u);
  EXPECT_EQ(queue->next_available(), 2);
  EXPECT_EQ(buffers[1].place.iov_len, 101u);
  // Taken anew after a Rewind; the fourth is too small.
  queue->Rewind(1);
  EXPECT_EQ(queue->PopWritable(10, buffers), 2u);
  EXPECT_EQ(queue->next_available(), 3);
  for (uint16_t i = 0; i < 2; ++i) {
    EXPECT_EQ(buffers[i].head, i + 1);
    EXPECT_EQ(buffers[i].place.iov_base, memory_.FromGuest(kBuffers + 1000 * (i + 1), 100));
    EXPECT_EQ(buffers[i].place.iov_len, lengths[i + 1]);
  }
  EXPECT_EQ(queue->PopWritable(10, buffers), 0u);
  Chain chain;
  ASSERT_TRUE(*queue->Pop(chain));
  EXPECT_EQ(chain.writable_bytes, 9u);
  EXPECT_EQ(queue->PopWritable(10, buffers), 1u);
  EXPECT_EQ(queue->PopWritable(10, {}), 0u);
}

TEST_F(VirtqueueTest, TakesWritableBuffersForLessAndLeavesOtherChains) {
  auto queue = Attach(0);
  Chain chain;
  WritableBuffer buffer;
  EXPECT_FALSE(queue->PopWritable(1, {&buffer, 1})) << "there is none";
  Descriptor(0, kBuffers, 100, 2, 0);
  Offer(0, 0);
  Offer(1, 0);
  AvailableIndex() = 2;
  EXPECT_FALSE(queue->PopWritable(101, {&buffer, 1})) << "too small";
  EXPECT_EQ(queue->next_available(), 0);
  ASSERT_TRUE(*queue->Pop(chain));
  ASSERT_TRUE(queue->PopWritable(100, {&buffer, 1}));
  EXPECT_EQ(buffer.head, 0);
  EXPECT_EQ(buffer.place.iov_base, memory_.FromGuest(kBuffers, 100));
  EXPECT_EQ(buffer.place.iov_len, 100u);
  EXPECT_EQ(queue->next_available(), 2);
  EXPECT_FALSE(queue->PopWritable(1, {&buffer, 1})) << "none is left";
  AvailableIndex() = 2 + kEntries + 1;
  EXPECT_FALSE(queue->PopWritable(1, {&buffer, 1})) << "the index jumps";
  EXPECT_FALSE(queue->Pop(chain).ok());

  // The last byte of memory, and one more; what is no plain writable buffer.
  const struct {
    uint16_t head;
    uint64_t addr;
    uint32_t len;
    uint16_t flags;
    bool taken;
    bool broken;
  } cases[] = {
      {1, kMemoryBytes - 100, 100, 2, true, false},
      {1, kMemoryBytes - 100, 101, 2, false, true},
      {1, kMemoryBytes, 1, 2, false, true},
      {1, UINT64_MAX - 50, 100, 2, false, true},
      {1, kBuffers, 0, 2, false, false},
      {1, kBuffers, 100, 0, false, false},
      {1, kBuffers, 100, 3, false, false},
      {1, 0x8000, 16, 4, false, false},
      {1, 0x8000, 16, 6, false, false},
      {kEntries, kBuffers, 100, 2, false, true},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.addr);
    SCOPED_TRACE(one.flags);
    auto next = Attach(0);
    Descriptor(0, kBuffers, 44, 2, 0);
    Descriptor(static_cast<uint32_t>(0x8000 / 16), kBuffers, 100, 2, 0);
    Descriptor(one.head, one.addr, one.len, one.flags, 0);
    if (one.flags == 3) Descriptor(one.head, one.addr, one.len, one.flags, 2);
    Descriptor(2, kBuffers, 44, 2, 0);
    Offer(0, 0);
    Offer(1, one.head);
    AvailableIndex() = 2;
    ASSERT_TRUE(*next->Pop(chain));
    EXPECT_EQ(next->PopWritable(1, {&buffer, 1}) == 1, one.taken);
    EXPECT_EQ(next->next_available(), one.taken ? 2 : 1);
    if (one.taken) continue;
    const auto popped = next->Pop(chain);
    EXPECT_EQ(popped.ok(), !one.broken) << popped.status();
  }
}

TEST_F(VirtqueueTest, InterruptsOnlyWhenTheDriverAskedForThis) {
  auto queue = Attach(0);
  queue->Push(0, 0);
  EXPECT_TRUE(queue->Publish()) << "the first one is owed";
  EXPECT_FALSE(queue->Publish()) << "nothing new";
  UsedEvent() = 3;
  queue->Push(0, 0);
  queue->Push(0, 0);
  EXPECT_FALSE(queue->Publish());  // index 3: not past it
  queue->Push(0, 0);
  EXPECT_TRUE(queue->Publish());
  queue->Push(0, 0);
  EXPECT_FALSE(queue->Publish());

  auto plain = Attach(0, /*event_idx=*/false);
  plain->Push(0, 0);
  EXPECT_TRUE(plain->Publish());
  plain->Push(0, 0);
  EXPECT_TRUE(plain->Publish());
  Cell(kAvailable) = 1;
  plain->Push(0, 0);
  EXPECT_FALSE(plain->Publish());
}

TEST_F(VirtqueueTest, AsksForKicksAtTheNextChainOnly) {
  auto queue = Attach(0);
  EXPECT_FALSE(queue->EnableKicks());
  EXPECT_EQ(AvailEvent(), 0);
  Descriptor(0, kBuffers, 44, 0, 0);
  AvailableIndex() = 1;
  EXPECT_TRUE(queue->EnableKicks()) << "a chain came before we asked";
  Chain chain;
  ASSERT_TRUE(*queue->Pop(chain));
  EXPECT_FALSE(queue->EnableKicks());
  EXPECT_EQ(AvailEvent(), 1);

  auto plain = Attach(1, /*event_idx=*/false);
  plain->DisableKicks();
  EXPECT_EQ(Cell(kUsed), 1);
  plain->EnableKicks();
  EXPECT_EQ(Cell(kUsed), 0);
}

TEST_F(VirtqueueTest, TakesAFullRingAndRefusesOneMore) {
  auto queue = Attach(0);
  for (uint16_t i = 0; i < kEntries; ++i) {
    Descriptor(i, kBuffers, 44, 0, 0);
    Offer(i, i);
  }
  AvailableIndex() = kEntries + 1;
  Chain chain;
  EXPECT_EQ(queue->Pop(chain).status().code(), absl::StatusCode::kDataLoss);
  AvailableIndex() = kEntries;
  for (uint32_t i = 0; i < kEntries; ++i) EXPECT_TRUE(*queue->Pop(chain));
  EXPECT_FALSE(*queue->Pop(chain));
}

// A chain as long as the ring is legal; each of the bounds is tried from both sides.
TEST_F(VirtqueueTest, TakesChainsAsLongAsTheirTable) {
  auto queue = Attach(0);
  for (uint16_t i = 0; i < kEntries; ++i) {
    Descriptor(i, kBuffers + i, 1, i < kEntries - 1 ? 1 : 0, static_cast<uint16_t>(i + 1));
  }
  Offer(0, 0);
  AvailableIndex() = 1;
  Chain chain;
  ASSERT_TRUE(*queue->Pop(chain));
  EXPECT_EQ(chain.readable.size(), kEntries);

  // Indirect: kIndirectEntriesMax entries, at 0x8000.
  constexpr uint64_t kTable = 0x8000;
  for (uint32_t i = 0; i < kIndirectEntriesMax; ++i) {
    Descriptor(static_cast<uint32_t>(kTable / 16 + i), kBuffers, 1,
               i + 1 < kIndirectEntriesMax ? 1 : 0, static_cast<uint16_t>(i + 1));
  }
  Descriptor(0, kTable, kIndirectEntriesMax * 16, 4, 0);
  Offer(1, 0);
  AvailableIndex() = 2;
  ASSERT_TRUE(*queue->Pop(chain));
  EXPECT_EQ(chain.readable_bytes, kIndirectEntriesMax);
  Descriptor(0, kTable, (kIndirectEntriesMax + 1) * 16, 4, 0);
  Offer(2, 0);
  AvailableIndex() = 3;
  EXPECT_EQ(queue->Pop(chain).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(VirtqueueTest, RefusesIndirectTablesThatWereNotNegotiated) {
  auto queue = Virtqueue::Attach(
      &memory_, {.layout = layout_, .next_available = 0, .event_idx = true, .indirect = false});
  Descriptor(0, 0x8000, 16, 4, 0);
  Offer(0, 0);
  AvailableIndex() = 1;
  Chain chain;
  EXPECT_EQ(queue->Pop(chain).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace consort::vhost_user
