// SPDX-License-Identifier: Apache-2.0
// Code that sessions of one worker share, over the CPU device.
#include "host/session/loaded_library.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "host/session/session_test_support.h"

namespace consort::host {
namespace {

std::atomic<int> loads{0};
std::atomic<int> unloads{0};

// A device that shares, with a driver that counts what it loads.
const WorkerDevice* MakeSharingDevice(Bytes kept_max) {
  device::LoadedDriver driver = CpuDriver();
  static const auto load = driver.table.cuLibraryLoadData;
  static const auto unload = driver.table.cuLibraryUnload;
  driver.table.cuLibraryLoadData = [](CUlibrary* library, const void* code, CUjit_option* options,
                                      void** values, unsigned int count, CUlibraryOption* named,
                                      void** named_values, unsigned int named_count) {
    ++loads;
    return load(library, code, options, values, count, named, named_values, named_count);
  };
  driver.table.cuLibraryUnload = [](CUlibrary library) {
    ++unloads;
    return unload(library);
  };
  std::unique_ptr<WorkerDevice> device = OpenDevice(driver);
  device->ShareLibraries(kept_max);
  return device.release();
}

class SharedCodeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    static const WorkerDevice* const device = MakeSharingDevice(0);
    options_.device = device;
    loads = unloads = 0;
  }
  PeerOptions options_;
};

// What `add` makes of a word that is 5, by 3; nothing if the launch fails.
std::optional<uint32_t> AddedWord(SessionPeer& peer, uint32_t shared_bytes = 0) {
  wire::MemAllocRequest allocate;
  allocate.bytes = 4;
  wire::MemAllocReply memory;
  EXPECT_EQ(peer.Ask(allocate, &memory), CUDA_SUCCESS);
  wire::cuMemsetD32AsyncRequest set;
  set.dstDevice = memory.address;
  set.ui = 5;
  set.N = 1;
  set.hStream = kLegacy;
  peer.Post(set);
  const struct {
    uint64_t words;
    uint32_t count, value;
  } params = {memory.address, 1, 3};
  wire::LaunchRequest launch;
  launch.kernel = GuestId(kKernelKind, 1);
  launch.stream = kLegacy;
  launch.grid_x = launch.grid_y = launch.grid_z = 1;
  launch.block_x = launch.block_y = launch.block_z = 1;
  launch.shared_bytes = shared_bytes;
  launch.params = std::as_bytes(std::span(&params, 1));
  peer.Post(launch);
  wire::CopyToHostRequest copy;
  copy.stream = kLegacy;
  copy.src = memory.address;
  copy.width = copy.src_pitch = 4;
  copy.rows = 1;
  static std::atomic<uint64_t> transfer{1};
  copy.transfer = transfer++;
  peer.Post(copy);
  if (const auto result = peer.Synchronize(); result != CUDA_SUCCESS) {
    EXPECT_EQ(result, CUDA_ERROR_INVALID_VALUE);
    return std::nullopt;
  }
  uint32_t word = 0;
  std::memcpy(&word, peer.Transfer(copy.transfer).data(), 4);
  return word;
}

std::optional<CUresult> SetAttribute(SessionPeer& peer, CUfunction_attribute attribute, int value,
                                     int* told = nullptr) {
  wire::FunctionSetAttributeRequest set;
  set.kernel = GuestId(kKernelKind, 1);
  set.attribute = static_cast<uint32_t>(attribute);
  set.value = value;
  wire::FunctionSetAttributeReply reply;
  const auto result = peer.Ask(set, &reply);
  if (told != nullptr && result == CUDA_SUCCESS) {
    std::memcpy(told, reply.attributes.data() + 4 * static_cast<size_t>(attribute), 4);
  }
  return result;
}

TEST_F(SharedCodeTest, IsLoadedOnceAndUnloadedWithItsLastUser) {
  auto first = std::make_unique<SessionPeer>(options_);
  SessionPeer second(options_);
  LoadLibrary(first.get(), "");
  LoadLibrary(&second, "");
  EXPECT_EQ(loads, 1);
  EXPECT_EQ(AddedWord(*first), 8u);
  EXPECT_EQ(AddedWord(second), 8u);
  first.reset();
  EXPECT_EQ(unloads, 0);
  EXPECT_EQ(AddedWord(second), 8u);
  wire::LibraryUnloadRequest unload;
  unload.library = GuestId(kLibraryKind, 1);
  second.Post(unload);
  EXPECT_EQ(second.Synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(unloads, 1);
  // Nobody has it any more: loaded anew.
  SessionPeer third(options_);
  LoadLibrary(&third, "");
  EXPECT_EQ(loads, 2);
  EXPECT_EQ(AddedWord(third), 8u);
}

TEST_F(SharedCodeTest, WhatWasUsedLastStaysForTheNext) {
  // Room for two images, about.
  static const WorkerDevice* const device = MakeSharingDevice(5 * kKiB);
  options_.device = device;
  const auto use = [&](const std::string& more) {
    SessionPeer peer(options_);
    LoadLibrary(&peer, more);
    EXPECT_EQ(AddedWord(peer), 8u);
  };
  const std::string padding(1500, ' ');
  const std::string one = "// one" + padding + "\n";
  const std::string two = "// two" + padding + "\n";
  use(one);
  use(one);
  EXPECT_EQ(loads, 1);
  use(two);
  use(one);
  EXPECT_EQ(loads, 2);
  EXPECT_EQ(unloads, 0);
  // A third takes the place of what was used longest ago.
  use("// three" + padding + "\n");
  EXPECT_EQ(unloads, 1);
  use(one);
  EXPECT_EQ(loads, 3);
  // What has no room at all goes with its session, and leaves the others.
  use(std::string(6 * kKiB, ' '));
  EXPECT_EQ(loads, 4);
  use(one);
  EXPECT_EQ(loads, 4);
}

TEST_F(SharedCodeTest, ManyAtOnceLoadItOnce) {
  std::vector<std::unique_ptr<SessionPeer>> peers;
  for (int i = 0; i < 8; ++i) peers.push_back(std::make_unique<SessionPeer>(options_));
  std::vector<std::thread> threads;
  for (auto& peer : peers) {
    threads.emplace_back([&] {
      LoadLibrary(peer.get(), "");
      EXPECT_EQ(AddedWord(*peer), 8u);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(loads, 1);
  peers.clear();
  EXPECT_EQ(unloads, 1);
}

TEST_F(SharedCodeTest, WhatHasStateIsEachSessionsOwn) {
  SessionPeer first(options_);
  SessionPeer second(options_);
  for (const char* variable :
       {".global .align 4 .u32 counter;\n", ".const .align 4 .u32 constant = 7;\n",
        ".global .align 1 .b8 flag[1];\n",
        ".visible .global .attribute(.managed) .align 4 .u32 managed = 5;\n"}) {
    loads = 0;
    for (SessionPeer* peer : {&first, &second}) {
      LoadLibrary(peer, variable);
      wire::LibraryUnloadRequest unload;
      unload.library = GuestId(kLibraryKind, 1);
      peer->Post(unload);
    }
    EXPECT_EQ(loads, 2) << variable;
  }
}

TEST_F(SharedCodeTest, TextsAndTagsOfCompilersAreNoState) {
  SessionPeer first(options_);
  SessionPeer second(options_);
  const std::string more =
      ".global .align 1 .b8 $str[3] = {104, 105, 0};\n"
      ".global .align 1 .b8 _ZN32_INTERNAL_89b8bf71_4_t_cu__Z1kPi4cuda3std3__48in_placeE[1];\n";
  LoadLibrary(&first, more);
  LoadLibrary(&second, more);
  EXPECT_EQ(loads, 1);
  // Who wants its address gets a library of its own, and its kernels with it.
  wire::GlobalGetReply global;
  ASSERT_EQ(AskGlobal(&second, "$str", &global), CUDA_SUCCESS);
  EXPECT_EQ(global.bytes, 3u);
  EXPECT_EQ(loads, 2);
  EXPECT_EQ(AddedWord(first), 8u);
  EXPECT_EQ(AddedWord(second), 8u);
}

TEST_F(SharedCodeTest, DynamicSharedMemoryIsAllowedToWhoAskedForIt) {
  constexpr int kMore = 64 * 1024;
  constexpr auto kAttribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  SessionPeer first(options_);
  SessionPeer second(options_);
  SessionPeer third(options_);
  LoadLibrary(&first, "");
  LoadLibrary(&second, "");
  int told = 0;
  ASSERT_EQ(SetAttribute(first, kAttribute, kMore, &told), CUDA_SUCCESS);
  EXPECT_EQ(told, kMore);
  EXPECT_EQ(AddedWord(first, kMore), 8u);
  EXPECT_EQ(AddedWord(first, kMore + 1), std::nullopt);
  EXPECT_EQ(AddedWord(second, kMore), std::nullopt);
  // One that comes later is told what it would be told alone.
  wire::KernelGetReply kernel;
  LoadLibrary(&third, "", {}, &kernel);
  std::memcpy(&told, kernel.attributes.data() + 4 * kAttribute, 4);
  EXPECT_EQ(told, 48 * 1024);
  EXPECT_EQ(AddedWord(third, 48 * 1024), 8u);
  EXPECT_EQ(AddedWord(third, 48 * 1024 + 1), std::nullopt);
  // Less takes nothing away from others.
  ASSERT_EQ(SetAttribute(second, kAttribute, 1024, &told), CUDA_SUCCESS);
  EXPECT_EQ(told, 1024);
  EXPECT_EQ(AddedWord(second, 1025), std::nullopt);
  EXPECT_EQ(AddedWord(first, kMore), 8u);
  EXPECT_EQ(SetAttribute(second, kAttribute, -1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(SetAttribute(second, kAttribute, 1 << 30), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(loads, 1);
}

TEST_F(SharedCodeTest, OtherAttributesMakeItTheSessionsOwn) {
  constexpr int kMore = 64 * 1024;
  SessionPeer first(options_);
  SessionPeer second(options_);
  LoadLibrary(&first, "");
  LoadLibrary(&second, "");
  ASSERT_EQ(SetAttribute(first, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kMore),
            CUDA_SUCCESS);
  int told = 0;
  constexpr auto kCarveout = CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
  ASSERT_EQ(SetAttribute(first, kCarveout, 50, &told), CUDA_SUCCESS);
  EXPECT_EQ(told, 50);
  EXPECT_EQ(loads, 1);  // a hint
  // The CPU device has no clusters.
  EXPECT_EQ(SetAttribute(first, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(loads, 2);
  // What it had set before holds.
  EXPECT_EQ(AddedWord(first, kMore), 8u);
  EXPECT_EQ(AddedWord(second), 8u);
  EXPECT_EQ(AddedWord(second, kMore), std::nullopt);
  ASSERT_EQ(SetAttribute(second, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 2048, &told),
            CUDA_SUCCESS);
  EXPECT_EQ(told, 2048);
  ASSERT_EQ(SetAttribute(first, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kMore + 1, &told),
            CUDA_SUCCESS);
  EXPECT_EQ(told, kMore + 1);
}

}  // namespace
}  // namespace consort::host
