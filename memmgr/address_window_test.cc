// SPDX-License-Identifier: Apache-2.0
// Address windows over the CPU driver, whose virtual memory calls are real.
#include "memmgr/address_window.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <vector>

#include "base/log.h"
#include "device/driver/driver_loader.h"
#include "memmgr/limits.h"

namespace consort::memmgr {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kBase = 0x3000000000;
#else
constexpr uint64_t kBase = 0x300000000000;
#endif
constexpr Bytes kWindowBytes = 2 * kGiB;

class AddressWindowTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
    auto loaded = device::LoadDriver(device::DriverKind::kCpu,
                                     (self.parent_path().parent_path() / "lib").string());
    CHECK(loaded.ok()) << loaded.status();
    driver_ = new device::LoadedDriver(*std::move(loaded));
    CUcontext context = nullptr;
    CHECK_EQ(table().cuDeviceGet(&device_, 0), CUDA_SUCCESS);
    CHECK_EQ(table().cuDevicePrimaryCtxRetain(&context, device_), CUDA_SUCCESS);
    CHECK_EQ(table().cuCtxSetCurrent(context), CUDA_SUCCESS);
  }
  void SetUp() override {
    ASSERT_EQ(AddressWindow::Create(table(), Options(), &window_), CUDA_SUCCESS);
    before_ = FreeOnDevice();
  }
  WindowOptions Options() {
    WindowOptions options;
    options.device = device_;
    options.base = kBase;
    options.bytes = kWindowBytes;
    options.budget = &budget_;
    return options;
  }
  static const device::DriverTable& table() { return driver_->table; }
  static Bytes FreeOnDevice() {
    size_t free = 0, total = 0;
    CHECK_EQ(table().cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    return free;
  }
  uint64_t Allocate(Bytes bytes) {
    uint64_t address = 0;
    EXPECT_EQ(window_->Allocate(bytes, &address), CUDA_SUCCESS) << bytes;
    return address;
  }
  // Writes and reads one byte through the driver, so that the address is mapped for certain.
  static void Touch(uint64_t address, unsigned char value) {
    unsigned char back = 0;
    ASSERT_EQ(table().cuMemcpyHtoDAsync_v2(address, &value, 1, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(table().cuMemcpyDtoHAsync_v2(&back, address, 1, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(table().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    ASSERT_EQ(back, value);
  }

  static device::LoadedDriver* driver_;
  static CUdevice device_;
  NoBudget budget_;
  std::unique_ptr<AddressWindow> window_;
  Bytes before_ = 0;
};

device::LoadedDriver* AddressWindowTest::driver_ = nullptr;
CUdevice AddressWindowTest::device_ = 0;

TEST_F(AddressWindowTest, SmallAllocationsShareAGranuleAndLargeOnesHaveTheirOwn) {
  const uint64_t a = Allocate(1);
  const uint64_t b = Allocate(513);
  EXPECT_EQ(b - a, kAllocationAlignment);
  EXPECT_EQ(window_->used_bytes(), kGranuleBytes);
  const uint64_t large = Allocate(kSharedAllocationBytesMax + 1);
  EXPECT_EQ(large % kGranuleBytes, 0u);
  EXPECT_EQ(window_->used_bytes(), 2 * kGranuleBytes);
  const uint64_t shared_most = Allocate(kSharedAllocationBytesMax);
  EXPECT_EQ(shared_most / kGranuleBytes, a / kGranuleBytes);
  for (const uint64_t address : {a, b, large, large + kSharedAllocationBytesMax, shared_most}) {
    Touch(address, 0x5a);
  }
  EXPECT_EQ(before_ - FreeOnDevice(), 2 * kGranuleBytes);
}

// What a driver that checks kernels is told; the functions have no other place to put it.
std::map<uint64_t, Bytes>& Noted() {
  static auto* const noted = new std::map<uint64_t, Bytes>();
  return *noted;
}

TEST_F(AddressWindowTest, TellsTheDriverWhatIsGivenOut) {
  window_.reset();
  Noted().clear();
  WindowOptions options = Options();
  options.notes.placed = [](uint64_t address, uint64_t bytes) { Noted()[address] = bytes; };
  options.notes.gone = [](uint64_t address) { EXPECT_EQ(Noted().erase(address), 1u) << address; };
  ASSERT_EQ(AddressWindow::Create(table(), options, &window_), CUDA_SUCCESS);
  const uint64_t small = Allocate(100);
  const uint64_t large = Allocate(5 * kMiB + 1);
  uint64_t range = 0;
  ASSERT_EQ(window_->TakeRange(2 * kGranuleBytes, &range), CUDA_SUCCESS);
  EXPECT_EQ(Noted(), (std::map<uint64_t, Bytes>{
                         {small, 100}, {large, 5 * kMiB + 1}, {range, 2 * kGranuleBytes}}));
  ASSERT_EQ(window_->Free(small), CUDA_SUCCESS);
  window_->ReturnRange(range, 2 * kGranuleBytes);
  EXPECT_EQ(Noted(), (std::map<uint64_t, Bytes>{{large, 5 * kMiB + 1}}));
}

TEST_F(AddressWindowTest, AllocatesAgainWhereItHasBefore) {
  const uint64_t small = Allocate(1000);
  const uint64_t next = Allocate(600);
  const uint64_t large = Allocate(3 * kGranuleBytes);
  const uint64_t last = Allocate(kGranuleBytes + 1);
  for (const uint64_t address : {small, large, last}) {
    ASSERT_EQ(window_->Free(address), CUDA_SUCCESS);
  }
  // What is cached there lies otherwise.
  const uint64_t other = Allocate(2 * kGranuleBytes);
  ASSERT_EQ(window_->Free(other), CUDA_SUCCESS);
  EXPECT_EQ(window_->AllocateAt({large, 3 * kGranuleBytes}), CUDA_SUCCESS);
  EXPECT_EQ(window_->AllocateAt({small, 1000}), CUDA_SUCCESS);
  for (const uint64_t address : {small, large, large + 3 * kGranuleBytes - 1}) Touch(address, 7);
  // Not where something is, in part or in all, nor outside.
  EXPECT_EQ(window_->AllocateAt({small, 1000}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(window_->AllocateAt({small + kAllocationAlignment, 600}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(window_->AllocateAt({large, kGranuleBytes * 2}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(window_->AllocateAt({kBase - kGranuleBytes, 100}), CUDA_ERROR_INVALID_VALUE);
  const Bytes used = window_->used_bytes();
  EXPECT_EQ(window_->AllocateAt({kBase + kWindowBytes - kGranuleBytes + 1, 100}),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(window_->used_bytes(), used);
  // In a granule where nothing was.
  ASSERT_EQ(window_->Free(next), CUDA_SUCCESS);
  ASSERT_EQ(window_->Free(small), CUDA_SUCCESS);
  window_->Trim();
  EXPECT_EQ(window_->AllocateAt({next, 600}), CUDA_SUCCESS);
  Touch(next, 9);
  ASSERT_EQ(window_->Free(next), CUDA_SUCCESS);
  ASSERT_EQ(window_->Free(large), CUDA_SUCCESS);
  window_->Trim();
  EXPECT_EQ(FreeOnDevice(), before_);
}

TEST_F(AddressWindowTest, FindsTheAllocationAroundAnAddress) {
  const uint64_t a = Allocate(1000);
  ASSERT_TRUE(window_->Find(a + 999).has_value());
  EXPECT_EQ(window_->Find(a + 999)->address, a);
  EXPECT_EQ(window_->Find(a + 999)->bytes, 1000u);
  EXPECT_FALSE(window_->Find(a + 1000).has_value());
  EXPECT_FALSE(window_->Find(a - 1).has_value());
}

TEST_F(AddressWindowTest, KeepsFreedMemoryMappedUpToABoundAndUsesItAgain) {
  const uint64_t a = Allocate(8 * kMiB);
  ASSERT_EQ(window_->Free(a), CUDA_SUCCESS);
  EXPECT_EQ(window_->cached_bytes(), 8 * kMiB);
  EXPECT_EQ(window_->used_bytes(), 0u);
  EXPECT_EQ(Allocate(8 * kMiB - 5), a);
  EXPECT_EQ(window_->cached_bytes(), 0u);
  // Too much of it would be wasted.
  ASSERT_EQ(window_->Free(a), CUDA_SUCCESS);
  EXPECT_NE(Allocate(4 * kMiB), a);

  std::vector<uint64_t> many;
  for (Bytes bytes = 0; bytes < kCachedBytesMax + 64 * kMiB; bytes += 32 * kMiB) {
    many.push_back(Allocate(32 * kMiB));
  }
  for (const uint64_t address : many) ASSERT_EQ(window_->Free(address), CUDA_SUCCESS);
  EXPECT_LE(window_->cached_bytes(), kCachedBytesMax);
  EXPECT_GE(window_->cached_bytes(), kCachedBytesMax - 32 * kMiB);
  window_->Trim();
  EXPECT_EQ(window_->cached_bytes(), 0u);
  EXPECT_EQ(before_ - FreeOnDevice(), window_->used_bytes());
}

TEST_F(AddressWindowTest, GivesCachedMemoryUpBeforeItIsOutOfMemory) {
  // All of the device but a little is taken by somebody else.
  const Bytes rest = 200 * kMiB;
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
  CUmemGenericAllocationHandle other = 0;
  ASSERT_EQ(
      table().cuMemCreate(&other, (before_ - rest) / kGranuleBytes * kGranuleBytes, &properties, 0),
      CUDA_SUCCESS);
  const uint64_t a = Allocate(150 * kMiB);
  ASSERT_EQ(window_->Free(a), CUDA_SUCCESS);
  EXPECT_EQ(window_->cached_bytes(), 150 * kMiB);
  // 190 MiB fit only without the cached 150.
  const uint64_t b = Allocate(190 * kMiB);
  EXPECT_EQ(window_->cached_bytes(), 0u);
  uint64_t c = 0;
  EXPECT_EQ(window_->Allocate(100 * kMiB, &c), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(window_->Free(b), CUDA_SUCCESS);
  EXPECT_EQ(table().cuMemRelease(other), CUDA_SUCCESS);
}

TEST_F(AddressWindowTest, RefusesWhatCannotBe) {
  uint64_t address = 0;
  EXPECT_EQ(window_->Allocate(0, &address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(window_->Allocate(kWindowBytes + 1, &address), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(window_->Allocate(~uint64_t{0}, &address), CUDA_ERROR_OUT_OF_MEMORY);
  const uint64_t a = Allocate(4096);
  EXPECT_EQ(window_->Free(a + 512), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(window_->Free(a), CUDA_SUCCESS);
  EXPECT_EQ(window_->Free(a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(window_->Contains(kBase + kWindowBytes - 4, 8));
  EXPECT_FALSE(window_->Contains(kBase - 1, 1));
  EXPECT_FALSE(window_->Contains(kBase + 8, ~uint64_t{0}));
  EXPECT_TRUE(window_->Contains(kBase, kWindowBytes));
}

TEST_F(AddressWindowTest, RefusesAddressesThatAreTaken) {
  std::unique_ptr<AddressWindow> second;
  EXPECT_NE(AddressWindow::Create(table(), Options(), &second), CUDA_SUCCESS);
  EXPECT_EQ(second, nullptr);
}

// Random use: allocations never overlap, each keeps its contents, all of the device comes back.
TEST_F(AddressWindowTest, ANewWindowTakesAnothersLayoutAndGoesOn) {
  std::mt19937 random(7);
  std::vector<uint64_t> live;
  for (int i = 0; i < 300; ++i) {
    live.push_back(Allocate(random() % 3 == 0 ? 3 * kMiB + random() % kMiB : 1 + random() % 9000));
    if (i % 3 == 2) {
      const size_t which = random() % live.size();
      EXPECT_EQ(window_->Free(live[which]), CUDA_SUCCESS);
      live[which] = live.back();
      live.pop_back();
    }
  }
  EXPECT_GT(window_->cached_bytes(), 0u);
  const AddressWindow::Layout layout = window_->Describe();
  const Bytes used = window_->used_bytes();
  ASSERT_EQ(layout.allocations.size(), live.size());
  window_.reset();
  ASSERT_EQ(AddressWindow::Create(table(), Options(), &window_), CUDA_SUCCESS);
  ASSERT_EQ(window_->Restore(layout), CUDA_SUCCESS);
  EXPECT_EQ(window_->used_bytes(), used);
  EXPECT_EQ(window_->cached_bytes(), 0u);
  Bytes pieces = 0;
  for (const AddressWindow::Piece& piece : window_->Pieces()) {
    EXPECT_TRUE(piece.here);
    pieces += piece.bytes;
  }
  EXPECT_EQ(pieces, used);
  for (const Allocation& allocation : layout.allocations) {
    const auto found = window_->Find(allocation.address + allocation.bytes - 1);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->address, allocation.address);
    Touch(allocation.address, 1);
    Touch(allocation.address + allocation.bytes - 1, 2);
  }
  // What comes now overlaps nothing, and everything can be freed.
  for (int i = 0; i < 100; ++i) live.push_back(Allocate(1 + random() % 9000));
  std::map<uint64_t, Bytes> all;
  for (const Allocation& allocation : window_->Describe().allocations) {
    all.emplace(allocation.address, allocation.bytes);
  }
  ASSERT_EQ(all.size(), live.size());
  uint64_t end = 0;
  for (const auto& [address, bytes] : all) {
    EXPECT_GE(address, end);
    end = address + bytes;
  }
  for (const uint64_t address : live) EXPECT_EQ(window_->Free(address), CUDA_SUCCESS);
  EXPECT_EQ(window_->used_bytes(), 0u);
}

// What a window that is to move looks like changes until it stops.
TEST_F(AddressWindowTest, MemoryThatWasPreparedIsTakenWhereItStillFits) {
  const uint64_t small = Allocate(100);
  const uint64_t stays = Allocate(6 * kMiB);
  const uint64_t goes = Allocate(4 * kMiB);
  const std::vector<AddressWindow::PlacedExtent> told = window_->Describe().extents;
  ASSERT_EQ(window_->Free(goes), CUDA_SUCCESS);
  window_->Trim();
  const uint64_t comes = Allocate(2 * kMiB);
  EXPECT_EQ(comes, goes);
  const AddressWindow::Layout layout = window_->Describe();
  window_.reset();
  ASSERT_EQ(AddressWindow::Create(table(), Options(), &window_), CUDA_SUCCESS);
  window_->Prepare(told);
  EXPECT_EQ(window_->used_bytes(), 0u);
  EXPECT_EQ(window_->cached_bytes(), 12 * kMiB);
  EXPECT_EQ(before_ - FreeOnDevice(), 12 * kMiB);
  ASSERT_EQ(window_->Restore(layout), CUDA_SUCCESS);
  EXPECT_EQ(window_->used_bytes(), 10 * kMiB);
  EXPECT_EQ(window_->cached_bytes(), 0u);
  EXPECT_EQ(before_ - FreeOnDevice(), 10 * kMiB);
  for (const uint64_t address : {small, stays, stays + 6 * kMiB - 1, comes}) Touch(address, 3);
  for (const uint64_t address : {small, stays, comes}) {
    EXPECT_EQ(window_->Free(address), CUDA_SUCCESS);
  }
}

TEST_F(AddressWindowTest, APieceIsExportedAsLongAsItIsTheSameMemory) {
  window_.reset();
  WindowOptions options = Options();
  options.exportable = true;
  ASSERT_EQ(AddressWindow::Create(table(), options, &window_), CUDA_SUCCESS);
  const uint64_t address = Allocate(4 * kMiB);
  Touch(address, 0x5a);
  const std::vector<AddressWindow::Piece> before = window_->Pieces();
  ASSERT_EQ(before.size(), 1u);
  UniqueFd memory;
  ASSERT_EQ(window_->Export(before[0], &memory), CUDA_SUCCESS);
  // The file is the CPU device's memory.
  unsigned char byte = 0;
  ASSERT_EQ(pread(memory.get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 0x5a);
  memory.Reset();
  // From the cache, it is the same.
  ASSERT_EQ(window_->Free(address), CUDA_SUCCESS);
  ASSERT_EQ(Allocate(4 * kMiB), address);
  EXPECT_EQ(window_->Pieces()[0].made, before[0].made);
  ASSERT_EQ(window_->Free(address), CUDA_SUCCESS);
  window_->Trim();
  EXPECT_EQ(window_->Export(before[0], &memory), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(Allocate(4 * kMiB), address);
  EXPECT_NE(window_->Pieces()[0].made, before[0].made);
  EXPECT_EQ(window_->Export(before[0], &memory), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(AddressWindowTest, RefusesALayoutThatCannotBe) {
  using Layout = AddressWindow::Layout;
  constexpr Bytes kGranule = kGranuleBytes;
  const Layout wrong[] = {
      {{{kBase + 4096, kGranule, false}}, {}},                           // not aligned
      {{{kBase + kWindowBytes, kGranule, false}}, {}},                   // outside
      {{{kBase, kGranule, false}, {kBase, kGranule, false}}, {}},        // twice
      {{{kBase, 2 * kGranule, true}}, {{kBase, 512}}},                   // shared and large
      {{{kBase, kGranule, true}}, {}},                                   // nobody's
      {{{kBase, kGranule, false}}, {{kBase + 512, 512}}},                // not at its beginning
      {{{kBase, kGranule, false}}, {{kBase, kGranule + 1}}},             // too long
      {{{kBase, kGranule, true}}, {{kBase, 1024}, {kBase + 512, 512}}},  // one in another
      {{}, {{kBase, 512}}},                                              // without memory
  };
  for (const Layout& layout : wrong) {
    window_.reset();
    ASSERT_EQ(AddressWindow::Create(table(), Options(), &window_), CUDA_SUCCESS);
    EXPECT_EQ(window_->Restore(layout), CUDA_ERROR_INVALID_VALUE) << &layout - wrong;
    window_.reset();
    ASSERT_EQ(AddressWindow::Create(table(), Options(), &window_), CUDA_SUCCESS);
    window_->Prepare(layout.extents);
    EXPECT_EQ(window_->Restore(layout), CUDA_ERROR_INVALID_VALUE) << &layout - wrong;
  }
}

TEST_F(AddressWindowTest, KeepsContentsApartUnderRandomUse) {
  const char* given = std::getenv("CONSORT_TEST_SEED");
  const auto seed =
      given != nullptr ? static_cast<unsigned>(std::atoi(given)) : std::random_device()();
  SCOPED_TRACE(::testing::Message() << "CONSORT_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  struct Live {
    Bytes bytes;
    unsigned char value;
  };
  std::map<uint64_t, Live> live;
  for (int step = 0; step < 1500; ++step) {
    if (random() % 5 < 3) {
      const Bytes bytes = 1 + random() % (random() % 4 == 0 ? 6 * kMiB : 40 * kKiB);
      const uint64_t address = Allocate(bytes);
      const auto next = live.lower_bound(address);
      ASSERT_TRUE(next == live.end() || address + bytes <= next->first);
      if (next != live.begin()) {
        const auto previous = std::prev(next);
        ASSERT_LE(previous->first + previous->second.bytes, address);
      }
      const auto value = static_cast<unsigned char>(random());
      ASSERT_EQ(table().cuMemsetD8Async(address, value, bytes, nullptr), CUDA_SUCCESS);
      live[address] = {bytes, value};
    } else if (!live.empty()) {
      auto it = live.begin();
      std::advance(it, random() % live.size());
      unsigned char first = 0, last = 0;
      ASSERT_EQ(table().cuMemcpyDtoHAsync_v2(&first, it->first, 1, nullptr), CUDA_SUCCESS);
      ASSERT_EQ(table().cuMemcpyDtoHAsync_v2(&last, it->first + it->second.bytes - 1, 1, nullptr),
                CUDA_SUCCESS);
      ASSERT_EQ(table().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
      ASSERT_EQ(first, it->second.value);
      ASSERT_EQ(last, it->second.value);
      ASSERT_EQ(window_->Free(it->first), CUDA_SUCCESS);
      live.erase(it);
    }
  }
  // The last memsets may still run, and memory in use must not go.
  ASSERT_EQ(table().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  window_.reset();
  EXPECT_EQ(FreeOnDevice(), before_);
}

class Watcher final : public ChunkWatcher {
 public:
  void Made(uint64_t address, Bytes bytes, CUmemGenericAllocationHandle) override {
    EXPECT_TRUE(there.emplace(address, bytes).second);
  }
  void Going(uint64_t address) override { EXPECT_EQ(there.erase(address), 1u); }
  std::map<uint64_t, Bytes> there;
};

TEST_F(AddressWindowTest, WatchersHearOfAllMemoryUntilTheyWatchNoMore) {
  const uint64_t cached = Allocate(4 * kMiB);
  const uint64_t before = Allocate(6 * kMiB);
  ASSERT_EQ(window_->Free(cached), CUDA_SUCCESS);
  Watcher watcher;
  window_->Watch(&watcher);
  // What is cached may be given out without being made.
  EXPECT_EQ(watcher.there, (std::map<uint64_t, Bytes>{{cached, 4 * kMiB}, {before, 6 * kMiB}}));
  const uint64_t small = Allocate(100);
  EXPECT_EQ(watcher.there.count(small), 1u);
  ASSERT_EQ(window_->Free(before), CUDA_SUCCESS);
  EXPECT_EQ(watcher.there.count(before), 1u);
  window_->Trim();
  EXPECT_EQ(watcher.there, (std::map<uint64_t, Bytes>{{small, kGranuleBytes}}));
  window_->Unwatch(&watcher);
  ASSERT_EQ(window_->Free(small), CUDA_SUCCESS);
  window_->Trim();
  EXPECT_EQ(watcher.there.size(), 1u);
}

TEST_F(AddressWindowTest, WhatIsMadeAwayHasItsContentsInTheStoreUntilItIsBroughtIn) {
  WindowOptions options = Options();
  options.chunk_granules = 2;
  options.may_be_away = true;
  window_.reset();
  ASSERT_EQ(AddressWindow::Create(table(), options, &window_), CUDA_SUCCESS);
  SwapOptions swap;
  swap.pinned_bytes = 2 * kGranuleBytes;
  swap.pageable_bytes = 6 * kGranuleBytes;
  swap.chunk_bytes = 2 * kGranuleBytes;
  auto store = SwapStore::Open(table(), swap);
  ASSERT_TRUE(store.ok());
  SwapStore* const to = store->get();
  // Pinned memory that has been used is not 0.
  {
    const auto used = to->Make(2 * kGranuleBytes, SwapStore::Within::kPinned);
    ASSERT_NE(used, nullptr);
    const std::vector<std::byte> old(2 * kGranuleBytes, std::byte{0x77});
    used->CopyFrom(old.data(), 0, old.size());
  }
  window_->MakeAway(true);
  const uint64_t a = Allocate(5 * kGranuleBytes);
  const uint64_t small = Allocate(100);
  EXPECT_EQ(window_->here_bytes(), 0u);
  EXPECT_EQ(window_->away_bytes(), 6 * kGranuleBytes);
  EXPECT_TRUE(window_->IsAway({a, 6 * kGranuleBytes}));
  EXPECT_TRUE(window_->IsAway({small, 100}));
  EXPECT_FALSE(window_->IsAway({a, 6 * kGranuleBytes + 1}));
  EXPECT_FALSE(window_->IsAway({kBase + kWindowBytes - 1, 2}));
  EXPECT_FALSE(window_->IsAway({kBase - 1, 2}));

  std::vector<std::byte> contents(5 * kGranuleBytes);
  const auto read = [&] {
    std::vector<std::byte> got(contents.size(), std::byte{1});
    window_->ReadAway(a, got);
    return got;
  };
  EXPECT_TRUE(read() == contents);
  // The end of one chunk and the beginning of the next.
  const Bytes at = 2 * kGranuleBytes - 10;
  ASSERT_TRUE(window_->MakeSlots({a + at, 30}, to));
  EXPECT_EQ(to->used(SwapTier::kPinned), 2 * kGranuleBytes);
  EXPECT_EQ(to->used(SwapTier::kPageable), 2 * kGranuleBytes);
  std::vector<std::byte> piece(30);
  for (size_t i = 0; i < piece.size(); ++i) piece[i] = contents[at + i] = std::byte(i + 1);
  window_->WriteAway(a + at, piece);
  EXPECT_TRUE(read() == contents);
  window_->ClearAway({a + at + 5, 10});
  std::fill_n(contents.begin() + at + 5, 10, std::byte{0});
  EXPECT_TRUE(read() == contents);
  // There is room for the first, and not for all of the second: what has a slot keeps it.
  EXPECT_FALSE(window_->MakeSlots({a, 6 * kGranuleBytes}, to) &&
               window_->MakeSlots({Allocate(4 * kGranuleBytes), 4 * kGranuleBytes}, to));
  EXPECT_TRUE(read() == contents);

  window_->MakeAway(false);
  std::unique_ptr<Mover> mover;
  ASSERT_EQ(Mover::Create(table(), &mover), CUDA_SUCCESS);
  AddressWindow::Moved moved;
  ASSERT_EQ(
      window_->BringIn(window_->AllExtents(), AddressWindow::KeepSlots::kNone, mover.get(), &moved),
      CUDA_SUCCESS);
  EXPECT_TRUE(window_->all_here());
  EXPECT_FALSE(window_->IsAway({a, 1}));
  std::vector<std::byte> got(contents.size());
  ASSERT_EQ(table().cuMemcpyDtoHAsync_v2(got.data(), a, got.size(), nullptr), CUDA_SUCCESS);
  ASSERT_EQ(table().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_TRUE(got == contents);
  const uint64_t here = Allocate(3 * kGranuleBytes);
  EXPECT_TRUE(window_->all_here());
  Touch(here, 0x5a);
  window_.reset();
}

TEST_F(AddressWindowTest, SlotsOfWhatIsAwayAreInTheHostsMemory) {
  WindowOptions options = Options();
  options.may_be_away = true;
  window_.reset();
  ASSERT_EQ(AddressWindow::Create(table(), options, &window_), CUDA_SUCCESS);
  SwapOptions swap;
  swap.file_bytes = 64 * kMiB;
  swap.file_folder = ::testing::TempDir();
  auto store = SwapStore::Open(table(), swap);
  ASSERT_TRUE(store.ok());
  window_->MakeAway(true);
  const uint64_t a = Allocate(kGranuleBytes);
  EXPECT_FALSE(window_->MakeSlots({a, 1}, store->get()));
  EXPECT_EQ((*store)->used(SwapTier::kFile), 0u);
  window_.reset();
}

}  // namespace
}  // namespace consort::memmgr
