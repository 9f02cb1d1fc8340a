// SPDX-License-Identifier: Apache-2.0
// On the CPU device, which exports and imports as GPUs do.
#include "host/session/peer_memory.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "host/limits.h"
#include "host/session/session_test_support.h"
#include "host/session/virtual_memory.h"
#include "memmgr/address_window.h"
#include "memmgr/limits.h"

namespace consort::host {
namespace {

class PeerMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(CpuDevice().MakeCurrent(), CUDA_SUCCESS);
    memmgr::WindowOptions options;
    options.device = CpuDevice().device();
    options.base = kWindowBase;
    options.bytes = kGiB;
    options.budget = &budget_;
    options.exportable = true;
    ASSERT_EQ(memmgr::AddressWindow::Create(driver_, options, &window_), CUDA_SUCCESS);
    ASSERT_EQ(window_->Allocate(kBytes, &address_), CUDA_SUCCESS);
    std::vector<unsigned char> contents(kBytes);
    for (size_t i = 0; i < kBytes; ++i) contents[i] = Expected(i);
    ASSERT_EQ(driver_.cuMemcpyHtoDAsync_v2(address_, contents.data(), kBytes, nullptr),
              CUDA_SUCCESS);
    ASSERT_EQ(driver_.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    ASSERT_EQ(window_->Export(window_->Pieces()[0], &memory_), CUDA_SUCCESS);
  }
  static unsigned char Expected(size_t at) { return static_cast<unsigned char>(at * 37 >> 4); }
  Bytes Free() {
    size_t free = 0, total = 0;
    EXPECT_EQ(driver_.cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    return free;
  }

  static constexpr Bytes kBytes = 4 * kMiB;
  const device::DriverTable& driver_ = CpuDevice().driver();
  memmgr::NoBudget budget_;
  std::unique_ptr<memmgr::AddressWindow> window_;
  uint64_t address_ = 0;
  UniqueFd memory_;
};

TEST_F(PeerMemoryTest, TheOthersMemoryIsReadWhereItIsMappedHere) {
  const Bytes before = Free();
  {
    PeerMemory peer(driver_, CpuDevice().device());
    ASSERT_TRUE(peer.Add(address_, kBytes, memory_).ok());
    const std::optional<uint64_t> here = peer.Find(address_ + kMiB, 3 * kMiB);
    ASSERT_TRUE(here.has_value());
    EXPECT_NE(*here, address_ + kMiB);
    std::vector<unsigned char> got(3 * kMiB);
    ASSERT_EQ(driver_.cuMemcpyDtoHAsync_v2(got.data(), *here, got.size(), nullptr), CUDA_SUCCESS);
    ASSERT_EQ(driver_.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], Expected(kMiB + i)) << i;
    EXPECT_FALSE(peer.Find(address_ - 1, 1).has_value());
    EXPECT_FALSE(peer.Find(address_ + kMiB, 3 * kMiB + 1).has_value());
    EXPECT_FALSE(peer.Find(address_ + kBytes + 1, 1).has_value());
  }
  EXPECT_EQ(Free(), before);
}

TEST_F(PeerMemoryTest, AddressesAreKeptWhereTheyAreFree) {
  const Bytes before = Free();
  // Here they are the other session's itself.
  EXPECT_EQ(PeerAddresses::Keep(driver_, kWindowBase, kGiB).status().message(),
            "reserving the other device's addresses: taken");
  // As if all of it lay elsewhere.
  const uint64_t elsewhere = kWindowBase + kWindowSlotBytes;
  {
    const auto addresses = PeerAddresses::Keep(driver_, elsewhere, kGiB);
    ASSERT_TRUE(addresses.ok());
    EXPECT_FALSE(PeerAddresses::Keep(driver_, elsewhere, kGiB).ok());
    PeerMemory peer(driver_, CpuDevice().device(), *addresses);
    const uint64_t there = address_ + kWindowSlotBytes;
    ASSERT_TRUE(peer.Add(there, kBytes, memory_).ok());
    EXPECT_EQ(peer.Find(there + kMiB, 1), there + kMiB);
    std::vector<unsigned char> got(kBytes);
    ASSERT_EQ(driver_.cuMemcpyDtoHAsync_v2(got.data(), there, kBytes, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(driver_.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    for (size_t i = 0; i < kBytes; ++i) ASSERT_EQ(got[i], Expected(i)) << i;
    EXPECT_FALSE(peer.Add(there, kBytes, memory_).ok());
    EXPECT_FALSE(peer.Add(elsewhere + kGiB, kBytes, memory_).ok());
    peer.Remove(there);
    EXPECT_TRUE(peer.empty());
    ASSERT_TRUE(peer.Add(there, kBytes, memory_).ok());
    peer.Clear();
  }
  // They are free again.
  EXPECT_TRUE(PeerAddresses::Keep(driver_, elsewhere, kGiB).ok());
  EXPECT_EQ(Free(), before);
}

// What a program maps itself at a peer's addresses: host/session/virtual_memory.h.
TEST_F(PeerMemoryTest, ProgramsMapAtAPeersAddressesWhileTheyAreKept) {
  constexpr uint64_t kElsewhere = kWindowBase + kWindowSlotBytes;
  constexpr Bytes kGranule = memmgr::kGranuleBytes;
  const Bytes before = Free();
  {
    VirtualMemory memory(driver_, CpuDevice().device(), window_.get(), &budget_, true);
    ASSERT_EQ(memory.Create(1, kGranule), CUDA_SUCCESS);
    EXPECT_EQ(memory.Map(kElsewhere, kGranule, 1), CUDA_ERROR_INVALID_VALUE);
    auto addresses = PeerAddresses::Keep(driver_, kElsewhere, kGiB);
    ASSERT_TRUE(addresses.ok());
    memory.Join(*addresses);
    EXPECT_FALSE(memory.empty());
    // At both ends, and in a row.
    for (const uint64_t at :
         {kElsewhere, kElsewhere + kGiB - 2 * kGranule, kElsewhere + kGiB - kGranule}) {
      EXPECT_EQ(memory.Map(at, kGranule, 1), CUDA_SUCCESS);
    }
    EXPECT_EQ(memory.Map(kElsewhere, kGranule, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(memory.Map(kElsewhere + kGiB, kGranule, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(memory.Map(kElsewhere - kGranule, kGranule, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(memory.SetAccess(kElsewhere, kGranule, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
              CUDA_SUCCESS);
    EXPECT_TRUE(memory.AtPeers(kElsewhere, kGranule));
    EXPECT_FALSE(memory.AtPeers(kElsewhere, kGranule + 1));
    EXPECT_FALSE(memory.AtPeers(kElsewhere + kGranule, 1));
    EXPECT_TRUE(memory.AtPeers(kElsewhere + kGiB - kGranule - 1, 2));
    EXPECT_FALSE(memory.AtPeers(kElsewhere + kGiB - 1, 2));
    EXPECT_FALSE(memory.AtPeers(address_, 1));
    // What is mapped goes with the addresses, which then are free.
    EXPECT_EQ(memory.Release(1), CUDA_SUCCESS);
    memory.Leave(**addresses);
    EXPECT_TRUE(memory.empty());
    EXPECT_FALSE(memory.AtPeers(kElsewhere, 1));
    EXPECT_EQ(Free(), before);
    addresses = absl::UnavailableError("let go");
    EXPECT_TRUE(PeerAddresses::Keep(driver_, kElsewhere, kGiB).ok());
  }
}

TEST_F(PeerMemoryTest, WhatTheDeviceDoesNotReachIsRefusedAndLeavesNothing) {
  device::DriverTable refuses = driver_;
  refuses.cuMemImportFromShareableHandle = [](CUmemGenericAllocationHandle*, void*,
                                              CUmemAllocationHandleType) {
    return CUDA_ERROR_NOT_SUPPORTED;
  };
  const Bytes before = Free();
  {
    PeerMemory peer(refuses, CpuDevice().device());
    const absl::Status added = peer.Add(address_, kBytes, memory_);
    EXPECT_EQ(added.message(), "mapping the other device's memory: CUDA_ERROR_NOT_SUPPORTED");
    EXPECT_TRUE(peer.empty());
    EXPECT_FALSE(peer.Find(address_, 1).has_value());
  }
  // A descriptor that is no memory.
  {
    PeerMemory peer(driver_, CpuDevice().device());
    EXPECT_FALSE(peer.Add(address_, kBytes, UniqueFd()).ok());
    EXPECT_TRUE(peer.empty());
  }
  EXPECT_EQ(Free(), before);
}

}  // namespace
}  // namespace consort::host
