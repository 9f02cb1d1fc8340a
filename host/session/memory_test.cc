// SPDX-License-Identifier: Apache-2.0
// Memory of sessions that share a small device: limits, quotas, waiting, swapping. Every byte is
// compared with a model.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/log.h"
#include "host/control/control_socket.h"
#include "host/limits.h"
#include "host/memory/memory_broker.h"
#include "host/session/session_test_support.h"
#include "memmgr/limits.h"
#include "memmgr/swap_store.h"
#include "vmsock/deadline.h"

namespace consort::host {
namespace {

constexpr Bytes kChunkBytes = 4 * kMiB;
constexpr CUresult kOutOfMemory = CUDA_ERROR_OUT_OF_MEMORY;

// PTX of a kernel that does what `add` does for each of a table of pointers.
constexpr char kFollow[] = R"(
.visible .entry follow(.param .u64 table, .param .u32 entries, .param .u32 count, .param .u32 value)
{
  .reg .pred %p, %q;
  .reg .b32 %r<12>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [table];
  ld.param.u32 %r8, [entries];
  ld.param.u32 %r1, [count];
  ld.param.u32 %r2, [value];
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mad.lo.s32 %r6, %r3, %r4, %r5;
  setp.ge.u32 %p, %r6, %r1;
  @%p bra done;
  cvta.to.global.u64 %rd2, %rd1;
  mul.wide.u32 %rd3, %r6, 4;
  mov.u32 %r9, 0;
next:
  setp.ge.u32 %q, %r9, %r8;
  @%q bra done;
  mul.wide.u32 %rd5, %r9, 8;
  add.s64 %rd6, %rd2, %rd5;
  ld.global.u64 %rd7, [%rd6];
  add.s64 %rd4, %rd7, %rd3;
  ld.global.u32 %r7, [%rd4];
  add.u32 %r7, %r7, %r2;
  st.global.u32 [%rd4], %r7;
  add.u32 %r9, %r9, 1;
  bra next;
done:
  ret;
}
)";

template <class T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

struct World {
  explicit World(Bytes capacity, const memmgr::SwapOptions& swap = {},
                 admission::Order order = admission::Order::kFifo) {
    MemoryRules rules;
    rules.capacity = capacity;
    rules.limited = true;
    rules.order = order;
    // Of a test that does not want to wait.
    rules.idle_least = 0;
    rules.patience_least = 5 * kMillisecond;
    rules.chunk_granules = kChunkBytes / memmgr::kGranuleBytes;
    if (swap.total() != 0) {
      auto opened = memmgr::SwapStore::Open(CpuDevice().driver(), swap);
      CHECK(opened.ok()) << opened.status();
      store = *std::move(opened);
    }
    broker = std::make_unique<MemoryBroker>(CpuDevice().driver(), rules, store.get(),
                                            [] { return CpuDevice().MakeCurrent(); });
  }
  std::unique_ptr<memmgr::SwapStore> store;
  std::unique_ptr<MemoryBroker> broker;
};

// A guest with a session of its own.
class Guest {
 public:
  explicit Guest(World* world, PeerOptions options = {}) {
    options.broker = world->broker.get();
    options.rings = true;
    peer_ = std::make_unique<SessionPeer>(options);
  }
  SessionPeer& peer() { return *peer_; }

  CUresult Allocate(Bytes bytes, uint64_t* address) {
    wire::MemAllocRequest request;
    request.bytes = bytes;
    wire::MemAllocReply reply;
    const std::optional<CUresult> result = peer_->Ask(request, &reply);
    *address = reply.address;
    return result.value_or(CUDA_ERROR_UNKNOWN);
  }
  uint64_t MustAllocate(Bytes bytes) {
    uint64_t address = 0;
    EXPECT_EQ(Allocate(bytes, &address), CUDA_SUCCESS);
    return address;
  }
  uint32_t StartAllocate(Bytes bytes) {
    wire::MemAllocRequest request;
    request.bytes = bytes;
    return peer_->Start(request);
  }
  void Free(uint64_t address) {
    wire::MemFreeRequest request;
    request.address = address;
    peer_->Post(request);
  }
  MemoryClient::Info Info() {
    wire::MemGetInfoRequest request;
    wire::MemGetInfoReply reply;
    EXPECT_EQ(peer_->Ask(request, &reply), CUDA_SUCCESS);
    return {reply.total, reply.free};
  }
  void Write(uint64_t address, std::span<const std::byte> data) {
    while (!data.empty()) {
      const auto piece = data.first(std::min<size_t>(data.size(), wire::kBulkBytesMax));
      wire::CopyToDeviceRequest request;
      request.stream = kLegacy;
      request.dst = address;
      request.dst_pitch = request.width = piece.size();
      request.rows = 1;
      request.data = piece;
      peer_->Post(request);
      address += piece.size();
      data = data.subspan(piece.size());
    }
  }
  std::vector<std::byte> Read(uint64_t address, Bytes bytes) {
    wire::CopyToHostRequest request;
    request.stream = kLegacy;
    request.src = address;
    request.src_pitch = request.width = bytes;
    request.rows = 1;
    request.transfer = ++transfer_;
    peer_->Post(request);
    EXPECT_EQ(peer_->Synchronize(), CUDA_SUCCESS);
    return peer_->Transfer(transfer_);
  }
  void Copy(uint64_t to, uint64_t from, Bytes bytes) {
    wire::CopyRowsRequest request;
    request.stream = kLegacy;
    request.dst = to;
    request.src = from;
    request.dst_pitch = request.src_pitch = request.width = bytes;
    request.rows = 1;
    peer_->Post(request);
  }
  void Fill(uint64_t address, uint8_t value, Bytes bytes) {
    wire::cuMemsetD8AsyncRequest request;
    request.dstDevice = address;
    request.uc = value;
    request.N = bytes;
    request.hStream = kLegacy;
    peer_->Post(request);
  }
  void LoadKernels() { LoadLibrary(peer_.get(), kFollow, {"follow"}); }
  void Add(uint64_t words, uint32_t count, uint32_t value) {
    const struct {
      uint64_t words;
      uint32_t count;
      uint32_t value;
    } params = {words, count, value};
    Launch(1, count, BytesOf(params));
  }
  void Follow(uint64_t table, uint32_t entries, uint32_t count, uint32_t value) {
    const struct {
      uint64_t table;
      uint32_t entries;
      uint32_t count;
      uint32_t value;
      uint32_t unused = 0;
    } params = {table, entries, count, value};
    Launch(2, count, BytesOf(params).first(20));
  }

 private:
  void Launch(uint32_t kernel, uint32_t count, std::span<const std::byte> params) {
    wire::LaunchRequest launch;
    launch.kernel = GuestId(kKernelKind, kernel);
    launch.stream = kLegacy;
    launch.grid_x = (count + 127) / 128;
    launch.grid_y = launch.grid_z = launch.block_y = launch.block_z = 1;
    launch.block_x = 128;
    launch.params = params;
    peer_->Post(launch);
  }

  std::unique_ptr<SessionPeer> peer_;
  uint64_t transfer_ = 0;
};

PeerOptions Waiting(uint64_t wait_ms, uint32_t priority = 0) {
  PeerOptions options;
  options.memory_wait_ms = wait_ms;
  options.priority = priority;
  return options;
}

constexpr uint64_t kLong = 50'000;

// --- Admission

TEST(SessionMemory, NothingStaysWithAGuestWhereMemoryIsRationed) {
  World world(64 * kMiB);
  Guest guest(&world);
  wire::MemAllocRequest request;
  request.bytes = 4096;
  wire::MemAllocReply reply;
  ASSERT_EQ(guest.peer().Ask(request, &reply), CUDA_SUCCESS);
  EXPECT_EQ(reply.flags, wire::kAllocationIdle);
}

TEST(SessionMemory, ALimitIsKeptAndRefusesAtOnce) {
  World world(64 * kMiB);
  Guest a(&world);
  Guest b(&world);
  a.MustAllocate(40 * kMiB);
  uint64_t address = 0;
  EXPECT_EQ(b.Allocate(40 * kMiB, &address), kOutOfMemory);
  EXPECT_EQ(b.Allocate(24 * kMiB, &address), CUDA_SUCCESS);
  EXPECT_EQ(a.Allocate(2 * kMiB, &address), kOutOfMemory);
  EXPECT_EQ(a.Info().total, 64 * kMiB);
  EXPECT_EQ(a.Info().free, 0u);
  EXPECT_EQ(world.broker->Totals().on_device, 64 * kMiB);
}

TEST(SessionMemory, WaitsUntilAnotherFrees) {
  World world(64 * kMiB);
  Guest a(&world);
  Guest b(&world, Waiting(kLong));
  const uint64_t taken = a.MustAllocate(40 * kMiB);
  const uint32_t call = b.StartAllocate(40 * kMiB);
  // It waits, and others of the same program go on meanwhile.
  EXPECT_EQ(b.Info().free, 24 * kMiB);
  EXPECT_FALSE(b.peer().Arrived(call));
  a.Free(taken);
  EXPECT_EQ(b.peer().Await(call), CUDA_SUCCESS);
}

TEST(SessionMemory, WaitsNoLongerThanItsTenantSays) {
  World world(64 * kMiB);
  Guest a(&world);
  Guest b(&world, Waiting(30));
  a.MustAllocate(40 * kMiB);
  uint64_t address = 0;
  EXPECT_EQ(b.Allocate(40 * kMiB, &address), kOutOfMemory);
  // What could never be is refused at once, not after the wait.
  Guest c(&world, Waiting(kLong));
  EXPECT_EQ(c.Allocate(65 * kMiB, &address), kOutOfMemory);
  EXPECT_EQ(world.broker->Totals().waiting, 0u);
}

TEST(SessionMemory, WhereAllThatHaveMemoryWaitForMoreOneIsRefused) {
  World world(64 * kMiB);
  Guest a(&world, Waiting(kLong));
  Guest b(&world, Waiting(kLong));
  Guest c(&world, Waiting(kLong));
  a.MustAllocate(30 * kMiB);
  const uint64_t of_b = b.MustAllocate(30 * kMiB);
  // Sessions run side by side: an answer to another call says that the first waits.
  const uint32_t first = a.StartAllocate(20 * kMiB);
  a.Info();
  // Has nothing that anybody could wait for.
  const uint32_t poor = c.StartAllocate(20 * kMiB);
  c.Info();
  const uint32_t last = b.StartAllocate(20 * kMiB);
  EXPECT_EQ(b.peer().Await(last), kOutOfMemory);
  EXPECT_FALSE(a.peer().Arrived(first));
  // It can go on now, and so can they.
  b.Free(of_b);
  EXPECT_EQ(a.peer().Await(first), CUDA_SUCCESS);
  EXPECT_FALSE(c.peer().Arrived(poor));
}

TEST(SessionMemory, OfThoseThatWaitForEachOtherTheLeastImportantIsRefused) {
  World world(64 * kMiB);
  Guest humble(&world, Waiting(kLong, 1));
  Guest proud(&world, Waiting(kLong, 2));
  humble.MustAllocate(30 * kMiB);
  proud.MustAllocate(30 * kMiB);
  const uint32_t first = humble.StartAllocate(20 * kMiB);
  const uint32_t last = proud.StartAllocate(20 * kMiB);
  EXPECT_EQ(humble.peer().Await(first), kOutOfMemory);
  EXPECT_FALSE(proud.peer().Arrived(last));
}

TEST(SessionMemory, MemoryOfTheDeadIsFree) {
  World world(64 * kMiB);
  auto a = std::make_unique<Guest>(&world);
  Guest b(&world, Waiting(kLong));
  a->MustAllocate(64 * kMiB);
  const uint32_t call = b.StartAllocate(64 * kMiB);
  {
    // One that waits and dies is in nobody's way.
    Guest c(&world, Waiting(kLong));
    c.StartAllocate(64 * kMiB);
    c.Info();
  }
  a.reset();
  EXPECT_EQ(b.peer().Await(call), CUDA_SUCCESS);
  EXPECT_EQ(world.broker->Totals().waiting, 0u);
}

TEST(SessionMemory, FifoKeepsTheOrderAndMmuFillsTheDevice) {
  for (const bool mmu : {false, true}) {
    World world(64 * kMiB, {}, mmu ? admission::Order::kMmu : admission::Order::kFifo);
    Guest holder(&world);
    Guest large(&world, Waiting(kLong));
    Guest small(&world, Waiting(kLong));
    const uint64_t taken = holder.MustAllocate(40 * kMiB);
    const uint32_t first = large.StartAllocate(48 * kMiB);
    large.Info();
    const uint32_t second = small.StartAllocate(16 * kMiB);
    small.Info();
    if (mmu) {
      EXPECT_EQ(small.peer().Await(second), CUDA_SUCCESS);
    } else {
      EXPECT_FALSE(small.peer().Arrived(second));
    }
    EXPECT_FALSE(large.peer().Arrived(first));
    holder.Free(taken);
    EXPECT_EQ(large.peer().Await(first), CUDA_SUCCESS);
    if (!mmu) {
      EXPECT_EQ(small.peer().Await(second), CUDA_SUCCESS);
    }
  }
}

TEST(SessionMemory, PriorityGoesFirst) {
  World world(64 * kMiB, {}, admission::Order::kPriorityFifo);
  Guest holder(&world);
  Guest low(&world, Waiting(kLong, 1));
  Guest high(&world, Waiting(kLong, 2));
  const uint64_t taken = holder.MustAllocate(64 * kMiB);
  const uint32_t first = low.StartAllocate(64 * kMiB);
  low.Info();
  const uint32_t second = high.StartAllocate(64 * kMiB);
  high.Info();
  holder.Free(taken);
  EXPECT_EQ(high.peer().Await(second), CUDA_SUCCESS);
  EXPECT_FALSE(low.peer().Arrived(first));
}

TEST(SessionMemory, QuotasHoldForAllSessionsOfATenantAndForVirtualMemory) {
  World world(256 * kMiB);
  PeerOptions options = Waiting(kLong);
  options.tenant = "small";
  options.memory_hard = 32 * kMiB;
  Guest a(&world, options);
  Guest b(&world, options);
  Guest other(&world);
  EXPECT_EQ(a.Info().total, 32 * kMiB);
  a.MustAllocate(20 * kMiB);
  EXPECT_EQ(b.Info().free, 12 * kMiB);
  uint64_t address = 0;
  // At once, though the tenant may wait for memory: nobody else's free helps.
  EXPECT_EQ(b.Allocate(14 * kMiB, &address), kOutOfMemory);
  wire::MemoryCreateRequest create;
  create.memory = 7;
  create.bytes = 14 * kMiB;
  EXPECT_EQ(b.peer().Ask(create), kOutOfMemory);
  create.bytes = 12 * kMiB;
  EXPECT_EQ(b.peer().Ask(create), CUDA_SUCCESS);
  EXPECT_EQ(a.Info().free, 0u);
  EXPECT_EQ(a.Allocate(2 * kMiB, &address), kOutOfMemory);
  // Released but mapped is not gone.
  wire::VirtualReserveRequest reserve;
  reserve.bytes = 12 * kMiB;
  wire::VirtualReserveReply range;
  ASSERT_EQ(b.peer().Ask(reserve, &range), CUDA_SUCCESS);
  wire::VirtualMapRequest map;
  map.address = range.address;
  map.bytes = 12 * kMiB;
  map.memory = 7;
  ASSERT_EQ(b.peer().Ask(map), CUDA_SUCCESS);
  wire::MemoryReleaseRequest release;
  release.memory = 7;
  b.peer().Post(release);
  EXPECT_EQ(b.Info().free, 0u);
  wire::VirtualUnmapRequest unmap;
  unmap.address = range.address;
  unmap.bytes = 12 * kMiB;
  ASSERT_EQ(b.peer().Ask(unmap), CUDA_SUCCESS);
  EXPECT_EQ(b.Info().free, 12 * kMiB);
  other.MustAllocate(200 * kMiB);
}

TEST(SessionMemory, AReservationIsKeptForWhoMadeIt) {
  World world(64 * kMiB);
  Guest a(&world);
  Guest b(&world, Waiting(kLong));
  wire::MemoryReserveRequest reserve;
  reserve.bytes = 40 * kMiB;
  EXPECT_EQ(a.peer().Ask(reserve), CUDA_SUCCESS);
  EXPECT_EQ(b.Info().free, 24 * kMiB);
  const uint32_t call = b.StartAllocate(40 * kMiB);
  b.Info();
  EXPECT_FALSE(b.peer().Arrived(call));
  // Of what is kept.
  const uint64_t taken = a.MustAllocate(40 * kMiB);
  // More has to wait, for as long as it says.
  reserve.bytes = 65 * kMiB;
  EXPECT_EQ(a.peer().Ask(reserve), kOutOfMemory);
  reserve.bytes = 64 * kMiB;
  reserve.wait_ms = 20;
  EXPECT_EQ(a.peer().Ask(reserve), kOutOfMemory);
  a.Free(taken);
  a.Info();
  EXPECT_FALSE(b.peer().Arrived(call));
  reserve.bytes = 0;
  EXPECT_EQ(a.peer().Ask(reserve), CUDA_SUCCESS);
  EXPECT_EQ(b.peer().Await(call), CUDA_SUCCESS);
  wire::MemoryHintRequest hint;
  hint.hint = 77;
  EXPECT_EQ(a.peer().Ask(hint), CUDA_ERROR_INVALID_VALUE);
  hint.hint = wire::kHintCpuPhase;
  EXPECT_EQ(a.peer().Ask(hint), CUDA_SUCCESS);
}

// --- Swapping

std::vector<std::byte> Pattern(Bytes bytes, uint32_t seed) {
  std::vector<std::byte> data(bytes);
  std::mt19937 random(seed);
  for (Bytes i = 0; i < bytes; i += 4) {
    const uint32_t word = random();
    std::memcpy(&data[i], &word, std::min<Bytes>(4, bytes - i));
  }
  return data;
}

memmgr::SwapOptions Swap(Bytes pinned, Bytes pageable, Bytes file) {
  memmgr::SwapOptions options;
  options.pinned_bytes = pinned;
  options.pageable_bytes = pageable;
  options.file_bytes = file;
  options.file_folder = ::testing::TempDir();
  options.chunk_bytes = kChunkBytes;
  return options;
}

class Tiers : public ::testing::TestWithParam<memmgr::SwapOptions> {};

TEST_P(Tiers, ApplicationsThatDoNotFitTogetherKeepTheirBytes) {
  World world(24 * kMiB, GetParam());
  Guest a(&world);
  Guest b(&world);
  Guest c(&world);
  Guest* const guests[] = {&a, &b, &c};
  uint64_t addresses[3] = {};
  std::vector<std::byte> contents[3];
  for (uint32_t i = 0; i < 3; ++i) {
    guests[i]->LoadKernels();
    addresses[i] = guests[i]->MustAllocate(17 * kMiB);
    contents[i] = Pattern(17 * kMiB, i);
    guests[i]->Write(addresses[i], contents[i]);
    EXPECT_EQ(guests[i]->peer().Synchronize(), CUDA_SUCCESS);
  }
  for (uint32_t round = 1; round <= 3; ++round) {
    for (uint32_t i = 0; i < 3; ++i) {
      // The last word but some, so that the last chunk changes.
      const Bytes at = 17 * kMiB - 4096 * round;
      guests[i]->Add(addresses[i] + at, 1, round);
      uint32_t word;
      std::memcpy(&word, &contents[i][at], 4);
      word += round;
      std::memcpy(&contents[i][at], &word, 4);
      ASSERT_TRUE(guests[i]->Read(addresses[i], 17 * kMiB) == contents[i]) << i << " " << round;
    }
  }
  const MemoryTotals totals = world.broker->Totals();
  EXPECT_GT(totals.swapped_out_bytes, 60 * kMiB);
  EXPECT_GT(totals.swapped_in_bytes, 60 * kMiB);
  EXPECT_LE(totals.on_device, 24 * kMiB);
}

std::string TierName(const ::testing::TestParamInfo<memmgr::SwapOptions>& info) {
  const char* const names[] = {"Pinned", "Pageable", "File", "All"};
  return names[info.index];
}

INSTANTIATE_TEST_SUITE_P(, Tiers,
                         ::testing::Values(Swap(64 * kMiB, 0, 0), Swap(0, 64 * kMiB, 0),
                                           Swap(0, 0, 80 * kMiB),
                                           Swap(16 * kMiB, 16 * kMiB, 32 * kMiB)),
                         TierName);

TEST(SessionMemory, WhatWasNeverWrittenOrIsUnchangedIsNotCopied) {
  World world(24 * kMiB, Swap(0, 128 * kMiB, 0));
  Guest a(&world);
  Guest b(&world);
  const uint64_t of_a = a.MustAllocate(20 * kMiB);
  a.Fill(of_a, 1, 4096);
  EXPECT_EQ(a.peer().Synchronize(), CUDA_SUCCESS);
  const uint64_t untouched = b.MustAllocate(20 * kMiB);
  // Brings all of b's in: a's leave.
  EXPECT_EQ(b.Read(untouched, 8).size(), 8u);
  EXPECT_EQ(a.Read(of_a, 1)[0], std::byte{1});
  const uint64_t first = world.broker->Totals().swapped_out_bytes;
  EXPECT_LE(first, 20 * kMiB);
  // Reading changes nothing: neither has to be copied again.
  EXPECT_EQ(b.Read(untouched, 8).size(), 8u);
  EXPECT_EQ(a.Read(of_a, 1)[0], std::byte{1});
  EXPECT_EQ(world.broker->Totals().swapped_out_bytes, first);
  EXPECT_GT(world.broker->Totals().clean_bytes, 25 * kMiB);
}

// Contents that are on the device again need no pinned memory that another's need.
TEST(SessionMemory, WhatFitsPinnedMemoryGoesNowhereSlower) {
  World world(24 * kMiB, Swap(24 * kMiB, 64 * kMiB, 0));
  Guest a(&world);
  Guest b(&world);
  Guest* const guests[] = {&a, &b};
  uint64_t addresses[2] = {};
  for (size_t i = 0; i < 2; ++i) addresses[i] = guests[i]->MustAllocate(16 * kMiB);
  for (uint8_t round = 1; round <= 3; ++round) {
    for (size_t i = 0; i < 2; ++i) {
      guests[i]->Fill(addresses[i], round, 16 * kMiB);
      EXPECT_EQ(guests[i]->Read(addresses[i] + 16 * kMiB - 1, 1)[0], std::byte{round});
      EXPECT_EQ(world.broker->Totals().swapped[1], 0u);
    }
  }
  EXPECT_GE(world.broker->Totals().swapped_out_bytes, 60 * kMiB);
  EXPECT_GT(world.broker->Totals().swapped[0], 0u);
}

// It has been away and is here unchanged, so that without more it would not be copied again.
TEST(SessionMemory, WhatComesOutOfAnArrayIsAChange) {
  World world(24 * kMiB, Swap(0, 128 * kMiB, 0));
  Guest a(&world);
  Guest b(&world);
  const uint64_t of_a = a.MustAllocate(20 * kMiB);
  const std::vector<std::byte> row = Pattern(64, 7);
  a.Write(of_a + 64, row);
  wire::ArrayCreateRequest create;
  create.array = 1;
  create.width = 64;
  create.format = CU_AD_FORMAT_UNSIGNED_INT8;
  create.channels = 1;
  ASSERT_EQ(a.peer().Ask(create), CUDA_SUCCESS);
  wire::ArrayCopyRequest in;
  in.stream = kLegacy;
  in.dst_array = create.array;
  in.src = of_a + 64;
  in.src_pitch = in.dst_pitch = in.width = 64;
  in.src_rows = in.dst_rows = in.height = in.depth = 1;
  a.peer().Post(in);
  ASSERT_EQ(a.peer().Synchronize(), CUDA_SUCCESS);
  const uint64_t of_b = b.MustAllocate(20 * kMiB);
  b.Fill(of_b, 2, 8);
  EXPECT_EQ(b.Read(of_b, 1)[0], std::byte{2});
  EXPECT_EQ(a.Read(of_a, 1).size(), 1u);
  wire::ArrayCopyRequest out = in;
  std::swap(out.dst_array, out.src_array);
  out.dst = of_a;
  a.peer().Post(out);
  EXPECT_EQ(a.Read(of_a, 64), row);
  EXPECT_EQ(b.Read(of_b, 1)[0], std::byte{2});
  EXPECT_EQ(a.Read(of_a, 64), row);
}

TEST(SessionMemory, PointersInMemoryStayGoodAcrossSwaps) {
  World world(16 * kMiB, Swap(0, 64 * kMiB, 0));
  Guest a(&world);
  Guest b(&world);
  a.LoadKernels();
  uint64_t table[3];
  for (uint64_t& entry : table) {
    entry = a.MustAllocate(4 * kMiB);
    a.Fill(entry, 0, 4 * kMiB);
  }
  const uint64_t where = a.MustAllocate(sizeof(table));
  a.Write(where, BytesOf(table));
  EXPECT_EQ(a.peer().Synchronize(), CUDA_SUCCESS);
  for (uint32_t round = 1; round <= 3; ++round) {
    const uint64_t other = b.MustAllocate(14 * kMiB);
    b.Fill(other, 7, 14 * kMiB);
    EXPECT_EQ(b.Read(other + 14 * kMiB - 1, 1)[0], std::byte{7});
    b.Free(other);
    a.Follow(where, 3, 1000, 1);
    for (const uint64_t entry : table) {
      const std::vector<std::byte> word = a.Read(entry + 4 * 999, 4);
      EXPECT_EQ(word[0], std::byte(round));
    }
  }
  EXPECT_GT(world.broker->Totals().swapped_in_bytes, 0u);
}

TEST(SessionMemory, WithSwappingTheRoomIsTheDeviceAndTheStore) {
  World world(64 * kMiB, Swap(0, 66 * kMiB, 0));
  Guest a(&world);
  Guest b(&world);
  Guest c(&world, Waiting(kLong));
  uint64_t address = 0;
  const uint64_t of_a = a.MustAllocate(60 * kMiB);
  // One may not have more than the device, without a quota that says so.
  EXPECT_EQ(a.Allocate(10 * kMiB, &address), kOutOfMemory);
  b.MustAllocate(60 * kMiB);
  EXPECT_EQ(b.Allocate(20 * kMiB, &address), kOutOfMemory);
  const uint32_t call = c.StartAllocate(40 * kMiB);
  c.Info();
  EXPECT_FALSE(c.peer().Arrived(call));
  a.Free(of_a);
  EXPECT_EQ(c.peer().Await(call), CUDA_SUCCESS);
}

TEST(SessionMemory, WorkThatCanNeverFitFailsAndTheSessionGoesOn) {
  World world(16 * kMiB, Swap(0, 64 * kMiB, 0));
  PeerOptions options;
  options.memory_hard = 50 * kMiB;
  Guest a(&world, options);
  a.LoadKernels();
  uint64_t address = 0;
  EXPECT_EQ(a.Allocate(18 * kMiB, &address), kOutOfMemory);
  const uint64_t first = a.MustAllocate(10 * kMiB);
  const uint64_t second = a.MustAllocate(10 * kMiB);
  a.Fill(first, 3, 10 * kMiB);
  a.Fill(second, 4, 10 * kMiB);
  EXPECT_EQ(a.Read(first, 1)[0], std::byte{3});
  EXPECT_EQ(a.Read(second, 1)[0], std::byte{4});
  // Both at once.
  a.Copy(first, second, 10 * kMiB);
  EXPECT_EQ(a.peer().Synchronize(), kOutOfMemory);
  a.Free(first);
  a.Add(second, 100, 1);
  EXPECT_EQ(a.peer().Synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(a.Read(second, 1)[0], std::byte{5});
}

// The store holds what does not fit, and nothing more: sets change places part by part.
TEST(SessionMemory, AFullStoreIsEnough) {
  // 40 MiB of 48, with the chunks' room.
  World world(24 * kMiB, Swap(0, 26 * kMiB, 0));
  Guest a(&world);
  Guest b(&world);
  const std::vector<std::byte> of_a = Pattern(20 * kMiB, 1);
  const std::vector<std::byte> of_b = Pattern(20 * kMiB, 2);
  const uint64_t at_a = a.MustAllocate(20 * kMiB);
  a.Write(at_a, of_a);
  EXPECT_EQ(a.peer().Synchronize(), CUDA_SUCCESS);
  const uint64_t at_b = b.MustAllocate(20 * kMiB);
  b.Write(at_b, of_b);
  EXPECT_EQ(b.peer().Synchronize(), CUDA_SUCCESS);
  uint64_t more = 0;
  EXPECT_EQ(b.Allocate(2 * kMiB, &more), kOutOfMemory);
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(a.Read(at_a, 20 * kMiB) == of_a);
    ASSERT_TRUE(b.Read(at_b, 20 * kMiB) == of_b);
  }
}

// A chain of kernels, each of which needs a part of what one program has.
TEST(SessionMemory, OneProgramMayHaveMoreThanTheDevice) {
  World world(16 * kMiB, Swap(0, 64 * kMiB, 0));
  PeerOptions options;
  options.memory_hard = 48 * kMiB;
  Guest a(&world, options);
  a.LoadKernels();
  std::vector<uint64_t> parts;
  for (uint8_t i = 0; i < 10; ++i) {
    parts.push_back(a.MustAllocate(4 * kMiB));
    a.Fill(parts.back(), i, 4 * kMiB);
  }
  EXPECT_EQ(a.Info().total, 48 * kMiB);
  EXPECT_EQ(a.Info().free, 8 * kMiB);
  for (uint32_t round = 1; round <= 2; ++round) {
    for (const uint64_t part : parts) a.Add(part, kMiB, 0x10101010u);
  }
  for (uint8_t i = 0; i < 10; ++i) {
    const std::vector<std::byte> bytes = a.Read(parts[i], 4 * kMiB);
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte(i + 0x20)), 4 * kMiB);
  }
  // One that follows pointers may reach anything, and everything does not fit.
  a.Follow(parts[0], 0, 1, 1);
  EXPECT_EQ(a.peer().Synchronize(), kOutOfMemory);
  EXPECT_EQ(a.Read(parts[9], 1)[0], std::byte(9 + 0x20));
}

// --- All of it at random

int Number(const char* variable, int otherwise) {
  const char* given = std::getenv(variable);
  return given != nullptr ? std::atoi(given) : otherwise;
}

// Random allocations, copies, fills, kernels and frees of some programs that together need some
// times the device: programs that each fit, with kernels that follow pointers, and programs that do
// not, with kernels that do not. CONSORT_TEST_STEPS=1000000 for a night.
class RandomUse : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(, RandomUse, ::testing::Bool(), [](const auto& info) {
  return info.param ? "LargerThanTheDevice" : "EachFits";
});

TEST_P(RandomUse, EveryByteIsRight) {
  const bool larger = GetParam();
  const auto seed = static_cast<unsigned>(
      Number("CONSORT_TEST_SEED", static_cast<int>(std::random_device()() >> 1)));
  const int steps = Number("CONSORT_TEST_STEPS", larger ? 400 : 1500);
  SCOPED_TRACE(::testing::Message() << "CONSORT_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  constexpr size_t kGuests = 3;
  constexpr Bytes kCapacity = 24 * kMiB;
  World world(kCapacity, Swap(16 * kMiB, 32 * kMiB, 300 * kMiB));
  struct Buffer {
    uint64_t address = 0;
    std::vector<std::byte> bytes;
  };
  std::vector<std::unique_ptr<Guest>> guests;
  std::vector<std::vector<Buffer>> buffers(kGuests);
  PeerOptions options;
  options.memory_hard = 4 * kCapacity;
  for (size_t i = 0; i < kGuests; ++i) {
    options.tenant = "tenant-" + std::to_string(i);
    guests.push_back(std::make_unique<Guest>(&world, options));
    guests.back()->LoadKernels();
  }
  const auto add = [](Buffer* buffer, Bytes from, uint32_t count, uint32_t value) {
    for (uint32_t i = 0; i < count; ++i) {
      uint32_t word;
      std::memcpy(&word, &buffer->bytes[from + 4 * i], 4);
      word += value;
      std::memcpy(&buffer->bytes[from + 4 * i], &word, 4);
    }
  };
  size_t g = 0;
  for (int step = 0; step < steps; ++step) {
    if (random() % 12 == 0) g = random() % kGuests;
    Guest& guest = *guests[g];
    std::vector<Buffer>& mine = buffers[g];
    Bytes held = 0;
    for (const Buffer& buffer : mine) held += AlignUp(buffer.bytes.size(), 2 * kMiB);
    const unsigned what = random() % 16;
    const Bytes held_most = larger ? 3 * kCapacity : kCapacity - 8 * kMiB;
    if (mine.empty() || (what < (larger ? 2 : 1) && held < held_most)) {
      Buffer buffer;
      buffer.bytes.resize(4 * (2 + random() % (random() % 3 == 0 ? 5000 : 1200000)));
      buffer.address = guest.MustAllocate(buffer.bytes.size());
      const auto value = static_cast<uint8_t>(random());
      guest.Fill(buffer.address, value, buffer.bytes.size());
      std::fill(buffer.bytes.begin(), buffer.bytes.end(), std::byte{value});
      mine.push_back(std::move(buffer));
      continue;
    }
    Buffer& one = mine[random() % mine.size()];
    const Bytes words = one.bytes.size() / 4;
    const Bytes first = random() % words;
    const Bytes count = 1 + random() % (words - first);
    if (what == 2 && mine.size() > 1) {
      ASSERT_TRUE(guest.Read(one.address, one.bytes.size()) == one.bytes) << "step " << step;
      guest.Free(one.address);
      std::swap(one, mine.back());
      mine.pop_back();
    } else if (what < 5) {
      guest.Add(one.address + 4 * first, static_cast<uint32_t>(count), 0x01020304u + what);
      add(&one, 4 * first, static_cast<uint32_t>(count), 0x01020304u + what);
    } else if (what < 7 && !larger) {
      // Through pointers that lie in memory: in the last words of `one`.
      const Bytes table_bytes = 8 * std::min<size_t>(mine.size(), 3);
      if (one.bytes.size() < table_bytes + 16) continue;
      const Bytes at = (one.bytes.size() - table_bytes) / 8 * 8;
      Bytes shortest = at / 4;
      std::vector<uint64_t> table;
      std::vector<size_t> entries;
      for (size_t i = 0; i < table_bytes / 8; ++i) {
        entries.push_back(i);
        table.push_back(mine[i].address);
        shortest = std::min<Bytes>(shortest, mine[i].bytes.size() / 4);
      }
      const auto data = std::as_bytes(std::span(table));
      guest.Write(one.address + at, data);
      std::copy(data.begin(), data.end(), one.bytes.begin() + static_cast<ptrdiff_t>(at));
      const auto length = static_cast<uint32_t>(1 + random() % shortest);
      bool overlaps = false;
      for (const size_t i : entries) overlaps |= &mine[i] == &one && 4 * length > at;
      if (overlaps) continue;
      guest.Follow(one.address + at, static_cast<uint32_t>(entries.size()), length, 3);
      for (const size_t i : entries) add(&mine[i], 0, length, 3);
    } else if (what < 9) {
      const std::vector<std::byte> data = Pattern(std::min<Bytes>(4 * count, 256 * kKiB), random());
      guest.Write(one.address + 4 * first, data);
      std::copy(data.begin(), data.end(), one.bytes.begin() + static_cast<ptrdiff_t>(4 * first));
    } else if (what < 11 && mine.size() > 1) {
      Buffer& from = mine[random() % mine.size()];
      if (&from == &one) continue;
      const Bytes length = std::min<Bytes>(4 * count, from.bytes.size());
      guest.Copy(one.address + 4 * first, from.address, length);
      std::copy_n(from.bytes.begin(), length,
                  one.bytes.begin() + static_cast<ptrdiff_t>(4 * first));
    } else if (what < 13) {
      guest.Fill(one.address + 4 * first, static_cast<uint8_t>(step), 4 * count);
      std::fill_n(one.bytes.begin() + static_cast<ptrdiff_t>(4 * first), 4 * count,
                  std::byte(static_cast<uint8_t>(step)));
    } else {
      const Bytes length = std::min<Bytes>(4 * count, 512 * kKiB);
      const std::vector<std::byte> got = guest.Read(one.address + 4 * first, length);
      ASSERT_EQ(got.size(), length);
      ASSERT_TRUE(
          std::equal(got.begin(), got.end(), one.bytes.begin() + static_cast<ptrdiff_t>(4 * first)))
          << "step " << step;
    }
  }
  for (size_t i = 0; i < kGuests; ++i) {
    for (const Buffer& buffer : buffers[i]) {
      ASSERT_TRUE(guests[i]->Read(buffer.address, buffer.bytes.size()) == buffer.bytes);
    }
  }
  const MemoryTotals totals = world.broker->Totals();
  RecordProperty("swapped_out_mib", static_cast<int>(totals.swapped_out_bytes / kMiB));
  if (steps >= 400) {
    EXPECT_GT(totals.swapped_out_bytes, 0u);
  }
  guests.clear();
  // Nothing is left behind.
  const MemoryTotals after = world.broker->Totals();
  EXPECT_EQ(after.on_device, 0u);
  EXPECT_EQ(after.promised, 0u);
  for (const Bytes used : after.swapped) EXPECT_EQ(used, 0u);
}

// --- A device that is chosen when it is first used

// Who chooses, as far as a session sees it.
class Chooser {
 public:
  Chooser() {
    auto pair = ControlSocket::MakePair();
    CHECK(pair.ok()) << pair.status();
    sessions_ = std::make_unique<ControlSocket>(std::move(pair->first));
    own_ = std::make_unique<ControlSocket>(std::move(pair->second));
  }
  ControlSocket* socket() { return sessions_.get(); }
  // What was asked; nothing: nobody has, or does while one may wait for it.
  std::optional<BindWanted> Asked(bool wait) {
    pollfd asked = {own_->fd(), POLLIN, 0};
    poll(&asked, 1, wait ? 20'000 : 0);
    ControlPacket packet;
    BindWanted wanted;
    if (!own_->Receive(/*wait=*/false, &packet).ok()) return std::nullopt;
    EXPECT_TRUE(packet.As(&wanted));
    return wanted;
  }

 private:
  std::unique_ptr<ControlSocket> sessions_;
  std::unique_ptr<ControlSocket> own_;
};

PeerOptions Deferred(Chooser* chooser) {
  PeerOptions options;
  options.binds_by = chooser->socket();
  return options;
}

std::vector<std::byte> WordBytes(uint32_t word) {
  const std::span<const std::byte> bytes = BytesOf(word);
  return {bytes.begin(), bytes.end()};
}

TEST(SessionBinding, NothingIsOnTheDeviceUntilALaunchAndAllOfItIsRightThen) {
  World world(64 * kMiB, Swap(8 * kMiB, 120 * kMiB, 0));
  Chooser chooser;
  Guest a(&world, Deferred(&chooser));
  a.LoadKernels();
  const uint64_t address = a.MustAllocate(30 * kMiB);
  const uint64_t small = a.MustAllocate(4096);
  std::vector<std::byte> contents = Pattern(30 * kMiB, 7);
  // Over the bounds of chunks, beginning and ending inside of one.
  a.Fill(address, 0, 30 * kMiB);
  a.Write(address + 1000, std::span(contents).subspan(1000, 20 * kMiB));
  std::fill(contents.begin(), contents.begin() + 1000, std::byte{0});
  std::fill(contents.begin() + 20 * kMiB + 1000, contents.end(), std::byte{0});
  a.Fill(address + 5 * kMiB - 3, 9, 100'000);
  std::fill_n(contents.begin() + 5 * kMiB - 3, 100'000, std::byte{9});
  a.Fill(address + 6 * kMiB, 0, 4 * kMiB);
  std::fill_n(contents.begin() + 6 * kMiB, 4 * kMiB, std::byte{0});
  // Rows with gaps that stay.
  wire::CopyToDeviceRequest rows;
  const std::vector<std::byte> row_bytes = Pattern(24 * 10, 8);
  rows.stream = kLegacy;
  rows.dst = address + 4 * kMiB - 100;
  rows.dst_pitch = 50;
  rows.width = 24;
  rows.rows = 10;
  rows.data = row_bytes;
  a.peer().Post(rows);
  for (size_t row = 0; row < 10; ++row) {
    std::copy_n(row_bytes.begin() + row * 24, 24, contents.begin() + 4 * kMiB - 100 + row * 50);
  }
  wire::cuMemsetD2D32AsyncRequest fill;
  fill.dstDevice = address + 12 * kMiB;
  fill.dstPitch = 64;
  fill.ui = 0x01020304;
  fill.Width = 5;
  fill.Height = 3;
  fill.hStream = kLegacy;
  a.peer().Post(fill);
  for (size_t row = 0; row < 3; ++row) {
    for (size_t at = 0; at < 20; at += 4) {
      const std::vector<std::byte> word = WordBytes(0x01020304);
      std::copy(word.begin(), word.end(), contents.begin() + 12 * kMiB + row * 64 + at);
    }
  }
  EXPECT_TRUE(a.Read(address, 30 * kMiB) == contents);
  EXPECT_EQ(a.Read(small, 8), std::vector<std::byte>(8));
  EXPECT_EQ(world.broker->Totals().on_device, 0u);
  EXPECT_EQ(world.broker->Totals().promised, 32 * kMiB);
  EXPECT_FALSE(chooser.Asked(false).has_value());

  a.Add(address + 8 * kMiB, 1000, 5);
  a.Add(address + 8 * kMiB, 1, 6);
  const std::optional<BindWanted> wanted = chooser.Asked(true);
  ASSERT_TRUE(wanted.has_value());
  EXPECT_EQ(wanted->usage.memory_bytes, 32 * kMiB);
  EXPECT_STREQ(wanted->stays, "");
  const uint32_t synchronized = a.peer().Start([] {
    wire::StreamSynchronizeRequest request;
    request.stream = kLegacy;
    return request;
  }());
  EXPECT_FALSE(a.peer().Arrived(synchronized));
  EXPECT_EQ(world.broker->Totals().on_device, 0u);
  a.peer().Bind();
  EXPECT_EQ(a.peer().Await(synchronized), CUDA_SUCCESS);
  for (uint32_t i = 0; i < 1000; ++i) {
    uint32_t word;
    std::memcpy(&word, &contents[8 * kMiB + i * 4], 4);
    word += i == 0 ? 11 : 5;
    std::memcpy(&contents[8 * kMiB + i * 4], &word, 4);
  }
  EXPECT_TRUE(a.Read(address, 30 * kMiB) == contents);
  EXPECT_EQ(world.broker->Totals().on_device, 32 * kMiB);
  // From here on it is as any other, and asks no more.
  const uint64_t later = a.MustAllocate(2 * kMiB);
  EXPECT_EQ(world.broker->Totals().on_device, 34 * kMiB);
  a.Add(later, 1, 1);
  EXPECT_EQ(a.peer().Synchronize(), CUDA_SUCCESS);
  EXPECT_FALSE(chooser.Asked(false).has_value());
}

// What the processor copies waits for nobody's turn, and is nothing that the device did.
TEST(SessionBinding, TakesNoTurnOfADeviceThatOthersHave) {
  std::unique_ptr<schedule::Policy> policy;
  ASSERT_TRUE(MakeSchedulerPolicy("fcfs", &policy));
  Scheduler scheduler(std::move(policy));
  const Scheduler::Id other = scheduler.Join("other", 1, MonotonicNow());
  scheduler.SetActive(other, true);
  for (uint32_t i = 0; i < schedule::Options().batches_in_flight; ++i) {
    scheduler.Start(other, MonotonicNow());
  }
  World world(64 * kMiB, Swap(0, 64 * kMiB, 0));
  Chooser chooser;
  PeerOptions options = Deferred(&chooser);
  options.scheduler = &scheduler;
  Guest a(&world, options);
  const uint64_t address = a.MustAllocate(4 * kMiB);
  const std::vector<std::byte> contents = Pattern(2 * kMiB, 3);
  a.Fill(address, 9, 4 * kMiB);
  a.Write(address + kMiB, contents);
  EXPECT_TRUE(a.Read(address + kMiB, 2 * kMiB) == contents);
  EXPECT_EQ(a.Read(address, 1)[0], std::byte{9});
  EXPECT_FALSE(chooser.Asked(false).has_value());
  for (const ApplicationState& state : scheduler.States(MonotonicNow())) {
    EXPECT_EQ(state.usage.batches, 0u);
    EXPECT_EQ(state.usage.device_time_sum(), 0);
  }
}

TEST(SessionBinding, WhatTheStoreHasNoRoomForGoesToTheDevice) {
  World world(64 * kMiB, Swap(0, 0, 64 * kMiB));
  Chooser chooser;
  Guest a(&world, Deferred(&chooser));
  const uint64_t address = a.MustAllocate(8 * kMiB);
  a.Fill(address, 0, 8 * kMiB);
  EXPECT_EQ(a.Read(address + 4, 4), std::vector<std::byte>(4));
  EXPECT_FALSE(chooser.Asked(false).has_value());
  // A file is no place for a processor's copies.
  a.Fill(address + kMiB, 3, kMiB);
  ASSERT_TRUE(chooser.Asked(true).has_value());
  a.peer().Bind();
  EXPECT_EQ(a.Read(address + kMiB, 1)[0], std::byte{3});
  EXPECT_EQ(a.Read(address, 1)[0], std::byte{0});
  EXPECT_EQ(world.broker->Totals().on_device, 8 * kMiB);
}

TEST(SessionBinding, ASessionThatIsNotAnsweredGoesOn) {
  World world(64 * kMiB, Swap(0, 64 * kMiB, 0));
  Chooser chooser;
  Guest a(&world, Deferred(&chooser));
  a.LoadKernels();
  const uint64_t address = a.MustAllocate(4096);
  const Nanos begin = MonotonicNow();
  a.Add(address, 2, 5);
  EXPECT_EQ(a.Read(address + 4, 4), WordBytes(5));
  EXPECT_GE(MonotonicNow() - begin, kBindAnswerMax);
  EXPECT_LT(MonotonicNow() - begin, 4 * kBindAnswerMax);
}

TEST(SessionBinding, WhatBelongsToADeviceIsMadeOnTheOneThatIsChosen) {
  const auto event = [](uint32_t flags) {
    return [flags](Guest* guest) {
      wire::EventCreateRequest create;
      create.event = GuestId(kEventKind, 1);
      create.flags = flags;
      guest->peer().Post(create);
      wire::cuEventRecordRequest record;
      record.hEvent = create.event;
      record.hStream = kLegacy;
      guest->peer().Post(record);
    };
  };
  const struct {
    const char* what;
    std::function<void(Guest*)> act;
    bool asks;
  } cases[] = {
      {"an event that takes the time", event(0), true},
      {"one that does not", event(CU_EVENT_DISABLE_TIMING), false},
      {"memory without an address",
       [](Guest* guest) {
         wire::MemoryCreateRequest create;
         create.memory = 7;
         create.bytes = 2 * kMiB;
         guest->peer().Start(create);
       },
       true},
      {"an array",
       [](Guest* guest) {
         wire::ArrayCreateRequest create;
         create.array = 1;
         create.width = 64;
         create.format = CU_AD_FORMAT_UNSIGNED_INT8;
         create.channels = 1;
         guest->peer().Start(create);
       },
       true},
      {"a copy on the device",
       [](Guest* guest) {
         const uint64_t address = guest->MustAllocate(4096);
         guest->Copy(address, address + 2048, 1024);
       },
       true},
      {"a fill of what is not there", [](Guest* guest) { guest->Fill(8, 1, 1); }, true},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.what);
    World world(64 * kMiB, Swap(0, 64 * kMiB, 0));
    Chooser chooser;
    Guest a(&world, Deferred(&chooser));
    one.act(&a);
    if (!one.asks) {
      EXPECT_EQ(a.peer().Synchronize(), CUDA_SUCCESS);
    }
    EXPECT_EQ(chooser.Asked(one.asks).has_value(), one.asks);
    a.peer().Bind();
    // Errors are those of any session.
    const std::optional<CUresult> result = a.peer().Synchronize();
    EXPECT_EQ(result.has_value() && *result != CUDA_SUCCESS,
              one.what == std::string("a fill of what is not there"));
  }
}

TEST(SessionBinding, AVariableHasItsCopyInTheStore) {
  World world(64 * kMiB, Swap(0, 64 * kMiB, 0));
  Chooser chooser;
  Guest a(&world, Deferred(&chooser));
  LoadLibrary(&a.peer(), ".visible .const .align 4 .u32 factors[2] = {7, 9};\n");
  wire::GlobalGetReply factors;
  ASSERT_EQ(AskGlobal(&a.peer(), "factors", &factors), CUDA_SUCCESS);
  EXPECT_EQ(a.Read(factors.address + 4, 4), WordBytes(9));
  EXPECT_EQ(world.broker->Totals().on_device, 0u);
  EXPECT_FALSE(chooser.Asked(false).has_value());
  // It goes on to the variable, which is on a device.
  a.Write(factors.address, WordBytes(11));
  ASSERT_TRUE(chooser.Asked(true).has_value());
  a.peer().Bind();
  std::vector<std::byte> both = WordBytes(11);
  const std::vector<std::byte> second = WordBytes(9);
  both.insert(both.end(), second.begin(), second.end());
  EXPECT_EQ(a.Read(factors.address, 8), both);
}

TEST(SessionBinding, OneWhoseFirstWorkIsBehindAHostFunctionStays) {
  World world(64 * kMiB, Swap(0, 64 * kMiB, 0));
  Chooser chooser;
  Guest a(&world, Deferred(&chooser));
  a.LoadKernels();
  const uint64_t address = a.MustAllocate(4096);
  wire::HostFunctionRequest function;
  function.stream = kLegacy;
  function.callback = 3;
  a.peer().Post(function);
  ASSERT_EQ(a.peer().AwaitHostFunction(), 3u);
  a.Add(address, 1, 5);
  wire::HostFunctionDoneRequest done;
  done.callback = 3;
  a.peer().Post(done);
  EXPECT_EQ(a.Read(address, 4), WordBytes(5));
  const std::optional<BindWanted> told = chooser.Asked(false);
  ASSERT_TRUE(told.has_value());
  EXPECT_STREQ(told->stays, "its first work is behind a host function");
}

}  // namespace
}  // namespace consort::host
