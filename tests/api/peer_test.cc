// SPDX-License-Identifier: Apache-2.0
// Two devices in one process: copies between them, waits of one for the other, host memory of the
// one's context in kernels of the other's, peer access as far as the devices have it: that of
// contexts, and that to mappings.
#include <stdlib.h>
#include <string.h>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

constexpr size_t kWords = 100'000;

// The primary contexts of the first two devices; device 0's is current.
class PeerTest : public ContextTest {
 protected:
  void SetUp() override {
    ContextTest::SetUp();
    int count = 0;
    Require(Drv().cuDeviceGetCount(&count), "cuDeviceGetCount");
    if (count < 2) GTEST_SKIP() << "needs two devices";
    CUdevice device = 0;
    Require(Drv().cuDeviceGet(&device, 1), "cuDeviceGet");
    Require(Drv().cuDevicePrimaryCtxRetain(&other_, device), "cuDevicePrimaryCtxRetain");
  }
  void TearDown() override {
    if (other_ != nullptr) {
      EXPECT_OK(Drv().cuCtxSetCurrent(context()));
      EXPECT_OK(Drv().cuDevicePrimaryCtxRelease_v2(1));
    }
    ContextTest::TearDown();
  }
  CUcontext other() const { return other_; }
  // Runs `body` with the other device's context current.
  template <typename Body>
  void OnOther(Body body) const {
    Require(Drv().cuCtxSetCurrent(other_), "cuCtxSetCurrent");
    body();
    Require(Drv().cuCtxSetCurrent(context()), "cuCtxSetCurrent");
  }
  CUdeviceptr AllocateOnOther(size_t bytes) const {
    CUdeviceptr address = 0;
    OnOther([&] { Require(Drv().cuMemAlloc_v2(&address, bytes), "cuMemAlloc"); });
    return address;
  }

 private:
  CUcontext other_ = nullptr;
};

API_TEST(PeerTest, CopiesFromOneDeviceToTheOther) {
  const DeviceBuffer here(kWords * sizeof(unsigned));
  here.Write(Iota(kWords));
  const CUdeviceptr there = AllocateOnOther(kWords * sizeof(unsigned));
  EXPECT_OK(Drv().cuMemcpyPeer(there, other(), here, context(), kWords * sizeof(unsigned)));
  std::vector<unsigned> words(kWords);
  OnOther([&] {
    EXPECT_OK(Drv().cuMemcpyDtoH_v2(words.data(), there, kWords * sizeof(unsigned)));
    EXPECT_OK(Drv().cuMemsetD32_v2(there, 3, kWords));
    EXPECT_OK(Drv().cuCtxSynchronize());
  });
  EXPECT_EQ(words, Iota(kWords));
  // And back, by addresses alone.
  EXPECT_OK(Drv().cuMemcpy(here, there, kWords * sizeof(unsigned)));
  EXPECT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(here.Read<unsigned>(kWords), std::vector<unsigned>(kWords, 3));
  OnOther([&] { EXPECT_OK(Drv().cuMemFree_v2(there)); });
}

API_TEST(PeerTest, ACopyComesAfterWhatIsInItsStream) {
  const Module module(kBasicPtx);
  const DeviceBuffer here(kWords * sizeof(unsigned));
  here.Fill(0);
  const CUdeviceptr there = AllocateOnOther(kWords * sizeof(unsigned));
  const Stream stream;
  ASSERT_OK(Launch(module.Function("fill_index"), (kWords + 255) / 256, 256, stream, here.get(),
                   static_cast<unsigned>(kWords)));
  EXPECT_OK(
      Drv().cuMemcpyPeerAsync(there, other(), here, context(), kWords * sizeof(unsigned), stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  std::vector<unsigned> words(kWords);
  OnOther([&] {
    EXPECT_OK(Drv().cuMemcpyDtoH_v2(words.data(), there, kWords * sizeof(unsigned)));
    EXPECT_OK(Drv().cuMemFree_v2(there));
  });
  EXPECT_EQ(words, Iota(kWords));
}

// Rows of which each is longer than what a copy may pass through at once would be tens of MiB;
// these are many short ones with gaps.
API_TEST(PeerTest, CopiesRowsWithGaps) {
  constexpr size_t kWidth = 100, kHeight = 50, kPitchHere = 128, kPitchThere = 256;
  const DeviceBuffer here(kPitchHere * kHeight);
  std::vector<unsigned char> bytes(kPitchHere * kHeight);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 7);
  here.Write(bytes);
  const CUdeviceptr there = AllocateOnOther(kPitchThere * kHeight);
  OnOther([&] {
    EXPECT_OK(Drv().cuMemsetD8_v2(there, 0xEE, kPitchThere * kHeight));
    EXPECT_OK(Drv().cuCtxSynchronize());
  });
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = here;
  copy.srcPitch = kPitchHere;
  copy.dstDevice = there;
  copy.dstPitch = kPitchThere;
  copy.WidthInBytes = kWidth;
  copy.Height = kHeight;
  EXPECT_OK(Drv().cuMemcpy2D_v2(&copy));
  EXPECT_OK(Drv().cuCtxSynchronize());
  std::vector<unsigned char> got(kPitchThere * kHeight);
  OnOther([&] {
    EXPECT_OK(Drv().cuMemcpyDtoH_v2(got.data(), there, got.size()));
    EXPECT_OK(Drv().cuMemFree_v2(there));
  });
  for (size_t row = 0; row < kHeight; ++row) {
    for (size_t x = 0; x < kPitchThere; ++x) {
      const unsigned char wanted = x < kWidth ? bytes[row * kPitchHere + x] : 0xEE;
      ASSERT_EQ(got[row * kPitchThere + x], wanted) << row << " " << x;
    }
  }
}

API_TEST(PeerTest, CopiesBoxesByTheContextsOfBothSides) {
  constexpr size_t kWidth = 60, kHeight = 7, kDepth = 5;
  constexpr size_t kPitchHere = 64, kRowsHere = 9, kPitchThere = 96, kRowsThere = 8;
  const DeviceBuffer here(kPitchHere * kRowsHere * kDepth);
  std::vector<unsigned char> bytes(here.bytes());
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 11);
  here.Write(bytes);
  const size_t there_bytes = kPitchThere * kRowsThere * kDepth;
  const CUdeviceptr there = AllocateOnOther(there_bytes);
  for (const bool waits : {true, false}) {
    OnOther([&] {
      EXPECT_OK(Drv().cuMemsetD8_v2(there, 0xEE, there_bytes));
      EXPECT_OK(Drv().cuCtxSynchronize());
    });
    CUDA_MEMCPY3D_PEER copy = {};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = here;
    copy.srcContext = context();
    copy.srcPitch = kPitchHere, copy.srcHeight = kRowsHere;
    copy.srcXInBytes = 2, copy.srcY = 1;
    copy.dstDevice = there;
    copy.dstContext = other();
    copy.dstPitch = kPitchThere, copy.dstHeight = kRowsThere;
    copy.dstXInBytes = 3;
    copy.WidthInBytes = kWidth, copy.Height = kHeight, copy.Depth = kDepth;
    if (waits) {
      EXPECT_OK(Drv().cuMemcpy3DPeer(&copy));
    } else {
      const Stream stream;
      EXPECT_OK(Drv().cuMemcpy3DPeerAsync(&copy, stream));
      EXPECT_OK(Drv().cuStreamSynchronize(stream));
    }
    std::vector<unsigned char> got(there_bytes), wanted(there_bytes, 0xEE);
    for (size_t z = 0; z < kDepth; ++z) {
      for (size_t y = 0; y < kHeight; ++y) {
        for (size_t x = 0; x < kWidth; ++x) {
          wanted[(z * kRowsThere + y) * kPitchThere + 3 + x] =
              bytes[(z * kRowsHere + 1 + y) * kPitchHere + 2 + x];
        }
      }
    }
    OnOther([&] { EXPECT_OK(Drv().cuMemcpyDtoH_v2(got.data(), there, there_bytes)); });
    EXPECT_TRUE(got == wanted) << waits;
  }
  OnOther([&] { EXPECT_OK(Drv().cuMemFree_v2(there)); });
}

API_TEST(PeerTest, ABatchMayBeOfBothDevices) {
  const DeviceBuffer here(kWords * sizeof(unsigned)), back(kWords * sizeof(unsigned));
  const CUdeviceptr there = AllocateOnOther(kWords * sizeof(unsigned));
  std::vector<unsigned> host = Iota(kWords, 5);
  here.Write(Iota(kWords));
  const size_t half = kWords / 2 * sizeof(unsigned);
  const Stream stream;
  const auto copy = [&](std::vector<CUdeviceptr> dsts, std::vector<CUdeviceptr> srcs) {
    std::vector<size_t> sizes(dsts.size(), half);
    CUmemcpyAttributes attributes = {};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    size_t first = 0;
    return Drv().cuMemcpyBatchAsync_v2(dsts.data(), srcs.data(), sizes.data(), sizes.size(),
                                       &attributes, &first, 1, stream);
  };
  EXPECT_OK(copy({there, there + half}, {here, reinterpret_cast<CUdeviceptr>(host.data())}));
  EXPECT_OK(copy({back, back.get() + half}, {there + half, there}));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  std::vector<unsigned> wanted = Iota(kWords / 2, 5);
  for (unsigned word : Iota(kWords / 2)) wanted.push_back(word);
  EXPECT_EQ(back.Read<unsigned>(kWords), wanted);
  OnOther([&] { EXPECT_OK(Drv().cuMemFree_v2(there)); });
}

API_TEST(PeerTest, CopiesPinnedMemoryOfTheOtherDevicesContext) {
  const PinnedBuffer pinned(kWords * sizeof(unsigned), CU_MEMHOSTALLOC_PORTABLE);
  for (size_t i = 0; i < kWords; ++i) pinned.as<unsigned>()[i] = static_cast<unsigned>(i);
  const CUdeviceptr there = AllocateOnOther(kWords * sizeof(unsigned));
  OnOther([&] {
    const Stream stream;
    EXPECT_OK(Drv().cuMemcpyHtoDAsync_v2(there, pinned.get(), kWords * sizeof(unsigned), stream));
    EXPECT_OK(Drv().cuStreamSynchronize(stream));
    for (size_t i = 0; i < kWords; ++i) pinned.as<unsigned>()[i] = 0;
    EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(pinned.get(), there, kWords * sizeof(unsigned), stream));
    EXPECT_OK(Drv().cuStreamSynchronize(stream));
    EXPECT_OK(Drv().cuMemFree_v2(there));
  });
  for (size_t i = 0; i < kWords; ++i) ASSERT_EQ(pinned.as<unsigned>()[i], i);
}

API_TEST(PeerTest, AStreamWaitsForAnEventOfTheOtherDevice) {
  const Module module(kBasicPtx);
  const DeviceBuffer here(kWords * sizeof(unsigned));
  here.Fill(0);
  const CUdeviceptr there = AllocateOnOther(kWords * sizeof(unsigned));
  const Stream stream;
  const Event filled(CU_EVENT_DISABLE_TIMING);
  ASSERT_OK(Launch(module.Function("fill_index"), (kWords + 255) / 256, 256, stream, here.get(),
                   static_cast<unsigned>(kWords)));
  EXPECT_OK(Drv().cuEventRecord(filled, stream));
  std::vector<unsigned> words(kWords);
  OnOther([&] {
    const Stream copying;
    EXPECT_OK(Drv().cuStreamWaitEvent(copying, filled, 0));
    EXPECT_OK(Drv().cuMemcpyPeerAsync(there, other(), here, context(), kWords * sizeof(unsigned),
                                      copying));
    EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(words.data(), there, kWords * sizeof(unsigned), copying));
    EXPECT_OK(Drv().cuStreamSynchronize(copying));
    EXPECT_OK(Drv().cuMemFree_v2(there));
  });
  EXPECT_EQ(words, Iota(kWords));
}

// Host memory that device 0's context has allocated, in kernels of device 1: under unified
// addressing all of it is every context's. Source: CUDA Driver API, Unified Addressing.
class PeerHostTest : public PeerTest {
 protected:
  void SetUp() override {
    PeerTest::SetUp();
    if (IsSkipped()) return;
    int possible = 0;
    Require(Drv().cuDeviceGetAttribute(&possible, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1),
            "cuDeviceGetAttribute");
    if (possible == 0) GTEST_SKIP() << "kernels do not reach host memory";
  }
  // The other device writes kWords words there.
  void FillFromOther(CUdeviceptr address) const {
    OnOther([&] {
      const Module module(kBasicPtx);
      EXPECT_OK(Launch(module.Function("fill_index"), (kWords + 255) / 256, 256, nullptr, address,
                       static_cast<unsigned>(kWords)));
      EXPECT_OK(Drv().cuCtxSynchronize());
    });
  }
  // What that makes of `words`, and what is done there beside kernels.
  void UseFromOther(unsigned* words, CUdeviceptr address) const {
    FillFromOther(address);
    EXPECT_EQ(std::vector<unsigned>(words, words + kWords), Iota(kWords));
    OnOther([&] {
      const DeviceBuffer there(kWords * sizeof(unsigned));
      const Stream stream;
      EXPECT_OK(Drv().cuMemcpyAsync(there, address, kWords * sizeof(unsigned), stream));
      EXPECT_OK(Drv().cuStreamSynchronize(stream));
      EXPECT_EQ(there.Read<unsigned>(kWords), Iota(kWords));
      EXPECT_OK(Drv().cuMemsetD32Async(there, 5, kWords, stream));
      EXPECT_OK(Drv().cuMemcpyAsync(address, there, kWords * sizeof(unsigned), stream));
      EXPECT_OK(Drv().cuStreamSynchronize(stream));
    });
    EXPECT_EQ(std::vector<unsigned>(words, words + kWords), std::vector<unsigned>(kWords, 5));
  }
};

API_TEST(PeerHostTest, PinnedMemoryIsBothDevices) {
  for (unsigned flags :
       {0u, unsigned{CU_MEMHOSTALLOC_PORTABLE}, unsigned{CU_MEMHOSTALLOC_DEVICEMAP}}) {
    SCOPED_TRACE(flags);
    const PinnedBuffer pinned(kWords * sizeof(unsigned), flags);
    UseFromOther(pinned.as<unsigned>(), reinterpret_cast<CUdeviceptr>(pinned.get()));
  }
}

API_TEST(PeerHostTest, ADevicePointerIsForTheDeviceThatIsCurrent) {
  const PinnedBuffer pinned(kWords * sizeof(unsigned), 0);
  CUdeviceptr address = 0;
  OnOther([&] { EXPECT_OK(Drv().cuMemHostGetDevicePointer_v2(&address, pinned.get(), 0)); });
  UseFromOther(pinned.as<unsigned>(), address);
}

// Its place is used again, so that it must have gone from both devices.
API_TEST(PeerHostTest, WhatIsAllocatedAfterwardsInItsPlaceIsToo) {
  for (int round = 0; round < 3; ++round) {
    const PinnedBuffer pinned(kWords * sizeof(unsigned), CU_MEMHOSTALLOC_PORTABLE);
    const PinnedBuffer beside(kWords * sizeof(unsigned), 0);
    UseFromOther(pinned.as<unsigned>(), reinterpret_cast<CUdeviceptr>(pinned.get()));
    UseFromOther(beside.as<unsigned>(), reinterpret_cast<CUdeviceptr>(beside.get()));
  }
}

API_TEST(PeerHostTest, ANodesKernelReachesIt) {
  const PinnedBuffer pinned(kWords * sizeof(unsigned), 0);
  OnOther([&] {
    const Module module(kBasicPtx);
    const Stream stream;
    EXPECT_OK(Drv().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    EXPECT_OK(Launch(module.Function("fill_index"), (kWords + 255) / 256, 256, stream,
                     reinterpret_cast<CUdeviceptr>(pinned.get()), static_cast<unsigned>(kWords)));
    CUgraph graph = nullptr;
    ASSERT_OK(Drv().cuStreamEndCapture(stream, &graph));
    CUgraphExec exec = nullptr;
    ASSERT_OK(Drv().cuGraphInstantiateWithFlags(&exec, graph, 0));
    EXPECT_OK(Drv().cuGraphLaunch(exec, stream));
    EXPECT_OK(Drv().cuStreamSynchronize(stream));
    EXPECT_OK(Drv().cuGraphExecDestroy(exec));
    EXPECT_OK(Drv().cuGraphDestroy(graph));
  });
  const unsigned* words = pinned.as<unsigned>();
  EXPECT_EQ(std::vector<unsigned>(words, words + kWords), Iota(kWords));
}

API_TEST(PeerHostTest, RegisteredMemoryIsBothDevices) {
  constexpr size_t kBytes = 4096 * ((kWords * sizeof(unsigned) + 4095) / 4096);
  void* pages = aligned_alloc(4096, kBytes);
  ASSERT_OK(Drv().cuMemHostRegister_v2(pages, kBytes, CU_MEMHOSTREGISTER_PORTABLE));
  CUdeviceptr address = 0;
  OnOther([&] { EXPECT_OK(Drv().cuMemHostGetDevicePointer_v2(&address, pages, 0)); });
  FillFromOther(address);
  auto* words = static_cast<unsigned*>(pages);
  EXPECT_EQ(std::vector<unsigned>(words, words + kWords), Iota(kWords));
  // And by the pointer that the first device has.
  memset(pages, 0, kBytes);
  EXPECT_OK(Drv().cuMemHostGetDevicePointer_v2(&address, pages, 0));
  FillFromOther(address);
  EXPECT_EQ(std::vector<unsigned>(words, words + kWords), Iota(kWords));
  EXPECT_OK(Drv().cuMemHostUnregister(pages));
  free(pages);
}

API_TEST(PeerHostTest, ManagedMemoryIsBothDevices) {
  int managed = 0;
  Require(Drv().cuDeviceGetAttribute(&managed, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0),
          "cuDeviceGetAttribute");
  if (managed == 0) GTEST_SKIP() << "no managed memory";
  for (int round = 0; round < 2; ++round) {
    CUdeviceptr address = 0;
    ASSERT_OK(Drv().cuMemAllocManaged(&address, kWords * sizeof(unsigned), CU_MEM_ATTACH_GLOBAL));
    UseFromOther(reinterpret_cast<unsigned*>(address), address);
    EXPECT_OK(Drv().cuMemFree_v2(address));
  }
}

// The thread that copies is the one that lets the stream go on.
API_TEST(PeerHostTest, LargeCopiesDoNotWaitForTheStream) {
  constexpr size_t kBytes = 64 << 20;
  for (unsigned flags : {0u, unsigned{CU_MEMHOSTALLOC_PORTABLE}}) {
    SCOPED_TRACE(flags);
    const PinnedBuffer from(kBytes, flags);
    const PinnedBuffer to(kBytes, flags);
    memset(from.get(), 7, kBytes);
    memset(to.get(), 0, kBytes);
    OnOther([&] {
      const DeviceBuffer there(kBytes);
      const DeviceBuffer flag(512);
      flag.Fill(0);
      const Stream stream;
      const Stream other_stream;
      ASSERT_OK(Drv().cuStreamWaitValue32_v2(stream, flag, 1, CU_STREAM_WAIT_VALUE_GEQ));
      EXPECT_OK(Drv().cuMemcpyHtoDAsync_v2(there, from.get(), kBytes, stream));
      EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(to.get(), there, kBytes, stream));
      EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(stream));
      EXPECT_OK(Drv().cuMemsetD32Async(flag, 1, 1, other_stream));
      EXPECT_OK(Drv().cuStreamSynchronize(stream));
    });
    EXPECT_EQ(memcmp(from.get(), to.get(), kBytes), 0);
  }
}

// Alone, so that device 1 has not been used yet.
class PeerLaterTest : public ContextTest {};

API_TEST_ALONE(PeerLaterTest, ADeviceThatIsUsedLaterReachesPortableMemory) {
  int count = 0, possible = 0;
  Require(Drv().cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (count < 2) GTEST_SKIP() << "needs two devices";
  Require(Drv().cuDeviceGetAttribute(&possible, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1),
          "cuDeviceGetAttribute");
  if (possible == 0) GTEST_SKIP() << "kernels do not reach host memory";
  const PinnedBuffer word(sizeof(unsigned), CU_MEMHOSTALLOC_PORTABLE);
  *word.as<unsigned>() = 7;
  CUcontext other = nullptr;
  Require(Drv().cuDevicePrimaryCtxRetain(&other, 1), "cuDevicePrimaryCtxRetain");
  Require(Drv().cuCtxSetCurrent(other), "cuCtxSetCurrent");
  {
    // The kernel finds its address, and that of some that is made now, in memory.
    const PinnedBuffer later(sizeof(unsigned), CU_MEMHOSTALLOC_PORTABLE);
    *later.as<unsigned>() = 9;
    Require(Drv().cuCtxSetCurrent(context()), "cuCtxSetCurrent");
    const PinnedBuffer of_first(sizeof(unsigned), CU_MEMHOSTALLOC_PORTABLE);
    *of_first.as<unsigned>() = 20;
    Require(Drv().cuCtxSetCurrent(other), "cuCtxSetCurrent");
    const DeviceBuffer table(3 * sizeof(void*));
    table.Write(std::vector<void*>{word.get(), later.get(), of_first.get()});
    const Module module(kParamsPtx);
    const DeviceBuffer sum(sizeof(unsigned));
    EXPECT_OK(Launch(module.Function("nested"), 1, 1, nullptr, table.get(), 3u, sum.get()));
    EXPECT_OK(Drv().cuCtxSynchronize());
    EXPECT_EQ(sum.ReadWord(), 36u);
  }
  Require(Drv().cuCtxSetCurrent(context()), "cuCtxSetCurrent");
  EXPECT_OK(Drv().cuDevicePrimaryCtxRelease_v2(1));
}

// A kernel's results through memory of another device, where that can be.
class PeerAccessTest : public PeerTest {
 protected:
  void SetUp() override {
    PeerTest::SetUp();
    if (IsSkipped()) return;
    int possible = 0;
    Require(Drv().cuDeviceCanAccessPeer(&possible, 0, 1), "cuDeviceCanAccessPeer");
    if (possible == 0) GTEST_SKIP() << "device 0 does not reach device 1";
  }
  std::vector<unsigned> ReadOnOther(CUdeviceptr address, size_t count) const {
    std::vector<unsigned> words(count);
    OnOther(
        [&] { EXPECT_OK(Drv().cuMemcpyDtoH_v2(words.data(), address, count * sizeof(unsigned))); });
    return words;
  }
  void FreeOnOther(CUdeviceptr address) const {
    OnOther([&] { EXPECT_OK(Drv().cuMemFree_v2(address)); });
  }
  // Device 0 writes kWords words of the other's memory, and reads them into its own.
  void UseFromHere(const Module& module, CUdeviceptr there) const {
    const DeviceBuffer here(sizeof(unsigned));
    EXPECT_OK(Launch(module.Function("fill_index"), (kWords + 255) / 256, 256, nullptr, there,
                     static_cast<unsigned>(kWords)));
    EXPECT_OK(Launch(module.Function("copy_word"), 1, 1, nullptr, here.get(),
                     there + (kWords - 1) * sizeof(unsigned)));
    EXPECT_OK(Drv().cuCtxSynchronize());
    EXPECT_EQ(here.ReadWord(), kWords - 1);
    EXPECT_EQ(ReadOnOther(there, kWords), Iota(kWords));
  }
};

API_TEST(PeerTest, PeerAccessIsEnabledWhereItIsSaidToBePossible) {
  int possible = -1, itself = -1, supported = -1;
  ASSERT_OK(Drv().cuDeviceCanAccessPeer(&possible, 0, 1));
  ASSERT_OK(Drv().cuDeviceCanAccessPeer(&itself, 0, 0));
  EXPECT_EQ(itself, 0);
  EXPECT_OK(
      Drv().cuDeviceGetP2PAttribute(&supported, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
  EXPECT_EQ(supported, possible);
  const CUresult enabled = Drv().cuCtxEnablePeerAccess(other(), 0);
  EXPECT_EQ(enabled, possible != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  EXPECT_RESULT(possible != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED,
                Drv().cuCtxDisablePeerAccess(other()));
}

API_TEST(PeerTest, MistakesAboutPeersAreErrors) {
  int value = 0;
  int count = 0;
  Require(Drv().cuDeviceGetCount(&count), "cuDeviceGetCount");
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuDeviceCanAccessPeer(nullptr, 0, 1));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, Drv().cuDeviceCanAccessPeer(&value, 0, count));
  const auto access = CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuDeviceGetP2PAttribute(nullptr, access, 0, 1));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, Drv().cuDeviceGetP2PAttribute(&value, access, 1, 1));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, Drv().cuDeviceGetP2PAttribute(&value, access, 0, count));
  EXPECT_RESULT(
      CUDA_ERROR_INVALID_VALUE,
      Drv().cuDeviceGetP2PAttribute(&value, static_cast<CUdevice_P2PAttribute>(99), 0, 1));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuCtxEnablePeerAccess(other(), 1));
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuCtxEnablePeerAccess(nullptr, 0));
  // The reference says invalid context; driver 580 says unsupported.
  EXPECT_ONE_OF(Drv().cuCtxEnablePeerAccess(context(), 0), CUDA_ERROR_INVALID_CONTEXT,
                CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  EXPECT_RESULT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, Drv().cuCtxDisablePeerAccess(other()));
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuCtxDisablePeerAccess(nullptr));
}

API_TEST(PeerAccessTest, IsEnabledOnceAndInOneDirection) {
  EXPECT_OK(Drv().cuCtxEnablePeerAccess(other(), 0));
  EXPECT_RESULT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, Drv().cuCtxEnablePeerAccess(other(), 0));
  OnOther([&] {
    EXPECT_RESULT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, Drv().cuCtxDisablePeerAccess(context()));
    EXPECT_OK(Drv().cuCtxEnablePeerAccess(context(), 0));
    EXPECT_OK(Drv().cuCtxDisablePeerAccess(context()));
  });
  EXPECT_OK(Drv().cuCtxDisablePeerAccess(other()));
  EXPECT_RESULT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, Drv().cuCtxDisablePeerAccess(other()));
}

API_TEST(PeerAccessTest, KernelsReachWhatWasAllocatedBeforeAndAfter) {
  const Module module(kBasicPtx);
  const CUdeviceptr before = AllocateOnOther(kWords * sizeof(unsigned));
  const CUdeviceptr small_before = AllocateOnOther(sizeof(unsigned));
  ASSERT_OK(Drv().cuCtxEnablePeerAccess(other(), 0));
  UseFromHere(module, before);
  EXPECT_OK(Launch(module.Function("store"), 1, 1, nullptr, small_before, 7u));
  EXPECT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(ReadOnOther(small_before, 1), std::vector<unsigned>{7});
  // Of its own, larger than what is kept of freed memory; and where others were.
  for (const size_t bytes : {kWords * sizeof(unsigned), size_t{300} << 20, size_t{300} << 20}) {
    const CUdeviceptr after = AllocateOnOther(bytes);
    UseFromHere(module, after);
    UseFromHere(module, after + bytes - kWords * sizeof(unsigned));
    FreeOnOther(after);
  }
  FreeOnOther(small_before);
  FreeOnOther(before);
  EXPECT_OK(Drv().cuCtxDisablePeerAccess(other()));
}

API_TEST(PeerAccessTest, EachDeviceWorksOnTheOthersMemory) {
  const Module module(kBasicPtx);
  const DeviceBuffer here(kWords * sizeof(unsigned));
  const CUdeviceptr there = AllocateOnOther(kWords * sizeof(unsigned));
  ASSERT_OK(Drv().cuCtxEnablePeerAccess(other(), 0));
  UseFromHere(module, there);
  OnOther([&] {
    ASSERT_OK(Drv().cuCtxEnablePeerAccess(context(), 0));
    const Module modules_there(kBasicPtx);
    EXPECT_OK(Launch(modules_there.Function("fill_index"), (kWords + 255) / 256, 256, nullptr,
                     here.get(), static_cast<unsigned>(kWords)));
    EXPECT_OK(Drv().cuCtxSynchronize());
    EXPECT_OK(Drv().cuCtxDisablePeerAccess(context()));
  });
  EXPECT_EQ(here.Read<unsigned>(kWords), Iota(kWords));
  EXPECT_OK(Drv().cuCtxDisablePeerAccess(other()));
  FreeOnOther(there);
}

API_TEST(PeerAccessTest, FillsAndCopiesOfAStreamReachIt) {
  const CUdeviceptr there = AllocateOnOther(kWords * sizeof(unsigned));
  const DeviceBuffer here(kWords * sizeof(unsigned));
  ASSERT_OK(Drv().cuCtxEnablePeerAccess(other(), 0));
  const Stream stream;
  EXPECT_OK(Drv().cuMemsetD32Async(there, 5, kWords, stream));
  EXPECT_OK(Drv().cuMemcpyDtoDAsync_v2(here, there, kWords * sizeof(unsigned), stream));
  EXPECT_OK(Drv().cuMemsetD32Async(there, 6, kWords, stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(here.Read<unsigned>(kWords), std::vector<unsigned>(kWords, 5));
  EXPECT_EQ(ReadOnOther(there, kWords), std::vector<unsigned>(kWords, 6));
  EXPECT_OK(Drv().cuCtxDisablePeerAccess(other()));
  // By copies it is still reached.
  EXPECT_OK(Drv().cuMemcpyDtoDAsync_v2(here, there, kWords * sizeof(unsigned), stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(here.Read<unsigned>(kWords), std::vector<unsigned>(kWords, 6));
  FreeOnOther(there);
}

API_TEST(PeerAccessTest, EndsWithTheContextThatEnabledIt) {
  const Module module(kBasicPtx);
  const CUdeviceptr there = AllocateOnOther(kWords * sizeof(unsigned));
  ASSERT_OK(Drv().cuCtxEnablePeerAccess(other(), 0));
  CUcontext second = nullptr;
  ASSERT_OK(Drv().cuCtxCreate_v2(&second, 0, device()));
  EXPECT_OK(Drv().cuCtxEnablePeerAccess(other(), 0));
  EXPECT_OK(Drv().cuCtxDestroy_v2(second));
  EXPECT_OK(Drv().cuCtxSetCurrent(context()));
  UseFromHere(module, there);
  EXPECT_OK(Drv().cuCtxDisablePeerAccess(other()));
  FreeOnOther(there);
}

class PeerFaultTest : public PeerAccessTest {
 protected:
  void TearDown() override {}  // the error is there to stay
};

API_TEST_ALONE(PeerFaultTest, WithoutItAnAddressOfTheOtherDeviceIsIllegal) {
  const Module module(kBasicPtx);
  const DeviceBuffer here(sizeof(unsigned));
  const CUdeviceptr there = AllocateOnOther(kWords * sizeof(unsigned));
  // Copies reach it, and kernels do not for that; nor once access was enabled and is not any more.
  EXPECT_OK(Drv().cuMemcpyDtoD_v2(here, there, sizeof(unsigned)));
  ASSERT_OK(Drv().cuCtxEnablePeerAccess(other(), 0));
  UseFromHere(module, there);
  ASSERT_OK(Drv().cuCtxDisablePeerAccess(other()));
  EXPECT_OK(Launch(module.Function("store"), 1, 1, nullptr, there, 7u));
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuCtxSynchronize());
}

API_TEST(PeerAccessTest, APoolsMemoryIsReachedWhereThePoolSaysSo) {
  const Module module(kBasicPtx);
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {1}};
  CUmemoryPool pool = nullptr;
  ASSERT_OK(Drv().cuMemPoolCreate(&pool, &properties));
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  EXPECT_OK(Drv().cuMemPoolGetAccess(&flags, pool, &access.location));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  ASSERT_OK(Drv().cuMemPoolSetAccess(pool, &access, 1));
  EXPECT_OK(Drv().cuMemPoolSetAccess(pool, &access, 1));
  EXPECT_OK(Drv().cuMemPoolGetAccess(&flags, pool, &access.location));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CUdeviceptr there = 0;
  OnOther([&] {
    const Stream stream;
    ASSERT_OK(Drv().cuMemAllocFromPoolAsync(&there, kWords * sizeof(unsigned), pool, stream));
    EXPECT_OK(Drv().cuStreamSynchronize(stream));
  });
  UseFromHere(module, there);
  OnOther([&] {
    EXPECT_OK(Drv().cuMemFreeAsync(there, nullptr));
    EXPECT_OK(Drv().cuCtxSynchronize());
  });
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  EXPECT_OK(Drv().cuMemPoolSetAccess(pool, &access, 1));
  EXPECT_OK(Drv().cuMemPoolGetAccess(&flags, pool, &access.location));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_OK(Drv().cuMemPoolDestroy(pool));
}

// What was put into a stream before a copy is copied, what comes after is not, and the call does
// not wait.
API_TEST(PeerAccessTest, ACopyBetweenDevicesIsOrderedByItsStream) {
  const Module module(kBasicPtx);
  const DeviceBuffer here(kWords * sizeof(unsigned));
  const CUdeviceptr there = AllocateOnOther(kWords * sizeof(unsigned));
  const CUdeviceptr second = AllocateOnOther(kWords * sizeof(unsigned));
  const Stream stream;
  for (unsigned round = 0; round < 20; ++round) {
    EXPECT_OK(Drv().cuMemsetD32Async(here, round, kWords, stream));
    EXPECT_OK(Drv().cuMemcpyPeerAsync(there, other(), here, context(), kWords * sizeof(unsigned),
                                      stream));
    EXPECT_OK(Drv().cuMemsetD32Async(here, 1000 + round, kWords, stream));
    // Between two places of the other device, by a stream of this one.
    EXPECT_OK(Drv().cuMemcpyDtoDAsync_v2(second, there, kWords * sizeof(unsigned), stream));
    EXPECT_OK(Drv().cuStreamSynchronize(stream));
    ASSERT_EQ(ReadOnOther(second, kWords), std::vector<unsigned>(kWords, round));
  }
  FreeOnOther(there);
  FreeOnOther(second);
}

// Memory that the program maps itself, for devices besides that whose addresses it has.
class PeerMappingTest : public PeerAccessTest {
 protected:
  void SetUp() override {
    PeerAccessTest::SetUp();
    if (IsSkipped()) return;
    const CUmemAllocationProp properties = Properties(1);
    ASSERT_OK(Drv().cuMemGetAllocationGranularity(&granule_, &properties,
                                                  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  }
  static CUmemAllocationProp Properties(int device) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    return properties;
  }
  static CUmemAccessDesc Access(int device, CUmemAccess_flags flags) {
    return {{CU_MEM_LOCATION_TYPE_DEVICE, {device}}, flags};
  }
  static constexpr CUmemAccess_flags kNone = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  static constexpr CUmemAccess_flags kRead = CU_MEM_ACCESS_FLAGS_PROT_READ;
  static constexpr CUmemAccess_flags kReadWrite = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  static unsigned long long AccessOf(int device, CUdeviceptr address) {
    unsigned long long flags = 77;
    const CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    EXPECT_OK(Drv().cuMemGetAccess(&flags, &location, address));
    return flags;
  }
  void SetAccess(CUdeviceptr address, size_t bytes,
                 const std::vector<CUmemAccessDesc>& access) const {
    Require(Drv().cuMemSetAccess(address, bytes, access.data(), access.size()), "cuMemSetAccess");
  }
  // Maps a granule of new memory of the device, which goes when it is unmapped.
  void Map(CUdeviceptr address, int device) const {
    const CUmemAllocationProp properties = Properties(device);
    CUmemGenericAllocationHandle memory = 0;
    Require(Drv().cuMemCreate(&memory, granule_, &properties, 0), "cuMemCreate");
    Require(Drv().cuMemMap(address, granule_, 0, memory, 0), "cuMemMap");
    Require(Drv().cuMemRelease(memory), "cuMemRelease");
  }
  // Addresses of the other device.
  CUdeviceptr ReserveOnOther(size_t granules) const {
    CUdeviceptr address = 0;
    OnOther([&] {
      Require(Drv().cuMemAddressReserve(&address, granules * granule_, 0, 0, 0),
              "cuMemAddressReserve");
    });
    return address;
  }
  void UnmapAndFree(CUdeviceptr address, size_t granules) const {
    EXPECT_OK(Drv().cuMemUnmap(address, granules * granule_));
    EXPECT_OK(Drv().cuMemAddressFree(address, granules * granule_));
  }

  size_t granule_ = 0;
};

API_TEST(PeerMappingTest, DevicesThatAreGivenAccessReachItAtItsAddress) {
  const Module module(kBasicPtx);
  const CUdeviceptr there = ReserveOnOther(1);
  Map(there, 1);
  SetAccess(there, granule_, {Access(1, kReadWrite), Access(0, kReadWrite)});
  EXPECT_EQ(AccessOf(0, there), unsigned{kReadWrite});
  EXPECT_EQ(AccessOf(1, there), unsigned{kReadWrite});
  UseFromHere(module, there);
  // Fills and copies of this device's streams, with its own memory, the program's and itself.
  const Stream stream;
  const DeviceBuffer here(kWords * sizeof(unsigned));
  EXPECT_OK(Drv().cuMemsetD32Async(there, 5, kWords, stream));
  EXPECT_OK(Drv().cuMemcpyDtoDAsync_v2(here, there, kWords * sizeof(unsigned), stream));
  EXPECT_OK(Drv().cuMemsetD32Async(there, 6, kWords, stream));
  EXPECT_OK(Drv().cuMemcpyDtoDAsync_v2(there + granule_ / 2, there, 4096, stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(here.Read<unsigned>(kWords), std::vector<unsigned>(kWords, 5));
  EXPECT_EQ(ReadOnOther(there + granule_ / 2, 1024), std::vector<unsigned>(1024, 6));
  const std::vector<unsigned> words = Iota(1024, 3);
  EXPECT_OK(Drv().cuMemcpyHtoD_v2(there, words.data(), 4096));
  std::vector<unsigned> got(1024);
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(got.data(), there, 4096));
  EXPECT_EQ(got, words);
  EXPECT_EQ(ReadOnOther(there, 1024), words);
  UnmapAndFree(there, 1);
}

API_TEST(PeerMappingTest, AccessChangesByDevice) {
  const Module module(kBasicPtx);
  const CUdeviceptr there = ReserveOnOther(1);
  Map(there, 1);
  EXPECT_EQ(AccessOf(0, there), unsigned{kNone});
  SetAccess(there, granule_, {Access(0, kNone)});
  SetAccess(there, granule_, {Access(1, kReadWrite)});
  EXPECT_EQ(AccessOf(0, there), unsigned{kNone});
  OnOther([&] {
    EXPECT_OK(Drv().cuMemsetD32_v2(there, 8, kWords));
    EXPECT_OK(Drv().cuCtxSynchronize());
  });
  SetAccess(there, granule_, {Access(0, kRead)});
  EXPECT_EQ(AccessOf(0, there), unsigned{kRead});
  EXPECT_EQ(AccessOf(1, there), unsigned{kReadWrite});
  const DeviceBuffer here(sizeof(unsigned));
  EXPECT_OK(Launch(module.Function("copy_word"), 1, 1, nullptr, here.get(), there));
  EXPECT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(here.ReadWord(), 8u);
  SetAccess(there, granule_, {Access(0, kReadWrite)});
  UseFromHere(module, there);
  SetAccess(there, granule_, {Access(0, kNone)});
  EXPECT_EQ(AccessOf(0, there), unsigned{kNone});
  SetAccess(there, granule_, {Access(0, kReadWrite), Access(1, kNone)});
  EXPECT_EQ(AccessOf(1, there), unsigned{kNone});
  SetAccess(there, granule_, {Access(1, kRead)});
  UseFromHere(module, there);
  UnmapAndFree(there, 1);
}

// As a program does that reserves its addresses before it has chosen a device.
API_TEST(PeerMappingTest, MemoryOfThisDeviceLiesAtAddressesOfTheOther) {
  const Module module(kBasicPtx);
  const CUdeviceptr address = ReserveOnOther(1);
  Map(address, 0);
  SetAccess(address, granule_, {Access(0, kReadWrite)});
  int ordinal = -1;
  EXPECT_OK(Drv().cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address));
  EXPECT_EQ(ordinal, 0);
  EXPECT_OK(Launch(module.Function("fill_index"), (kWords + 255) / 256, 256, nullptr, address,
                   static_cast<unsigned>(kWords)));
  std::vector<unsigned> got(kWords);
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(got.data(), address, kWords * sizeof(unsigned)));
  EXPECT_EQ(got, Iota(kWords));
  // By a stream of the device that was given none: through the program.
  EXPECT_EQ(ReadOnOther(address, kWords), Iota(kWords));
  UnmapAndFree(address, 1);
}

API_TEST(PeerMappingTest, NeighboursOfBothDevicesAreOneBufferForBoth) {
  const Module module(kBasicPtx);
  const CUdeviceptr there = ReserveOnOther(3);
  for (int i = 0; i < 3; ++i) Map(there + i * granule_, i % 2);
  SetAccess(there, 3 * granule_, {Access(0, kReadWrite), Access(1, kReadWrite)});
  const CUdeviceptr middle = there + 2 * granule_ - kWords / 2 * sizeof(unsigned);
  UseFromHere(module, middle);
  EXPECT_OK(Drv().cuMemsetD32_v2(there, 4, 3 * granule_ / sizeof(unsigned)));
  EXPECT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(ReadOnOther(middle, kWords), std::vector<unsigned>(kWords, 4));
  // One goes; the others stay.
  EXPECT_OK(Drv().cuMemUnmap(there + granule_, granule_));
  EXPECT_EQ(AccessOf(0, there), unsigned{kReadWrite});
  unsigned long long flags = 0;
  const CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemGetAccess(&flags, &location, there + granule_));
  UseFromHere(module, there + 2 * granule_);
  EXPECT_OK(Drv().cuMemUnmap(there, granule_));
  EXPECT_OK(Drv().cuMemUnmap(there + 2 * granule_, granule_));
  EXPECT_OK(Drv().cuMemAddressFree(there, 3 * granule_));
}

API_TEST(PeerMappingTest, WhatIsUnmappedIsGoneForAllAndItsMemoryFree) {
  const Module module(kBasicPtx);
  const CUdeviceptr there = ReserveOnOther(1);
  const auto map_use_unmap = [&](unsigned value) {
    Map(there, 1);
    SetAccess(there, granule_, {Access(0, kReadWrite), Access(1, kReadWrite)});
    OnOther([&] {
      EXPECT_OK(Drv().cuMemsetD32_v2(there, value, kWords));
      EXPECT_OK(Drv().cuCtxSynchronize());
    });
    const DeviceBuffer here(sizeof(unsigned));
    EXPECT_OK(Launch(module.Function("copy_word"), 1, 1, nullptr, here.get(), there));
    EXPECT_OK(Drv().cuCtxSynchronize());
    EXPECT_EQ(here.ReadWord(), value);
    EXPECT_OK(Drv().cuMemUnmap(there, granule_));
    unsigned long long flags = 0;
    const CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemGetAccess(&flags, &location, there));
  };
  // What a driver takes for itself at the first use is no mapping's.
  map_use_unmap(0);
  size_t before = 0, after = 0;
  OnOther([&] { before = SettledFreeBytes(); });
  for (unsigned round = 1; round <= 5; ++round) map_use_unmap(round);
  EXPECT_OK(Drv().cuMemAddressFree(there, granule_));
  OnOther([&] { after = SettledFreeBytes(); });
  EXPECT_GE(after, before);
}

API_TEST(PeerMappingTest, HasNothingToDoWithPeerAccessOfContexts) {
  const Module module(kBasicPtx);
  const CUdeviceptr allocated = AllocateOnOther(kWords * sizeof(unsigned));
  const CUdeviceptr there = ReserveOnOther(1);
  Map(there, 1);
  ASSERT_OK(Drv().cuCtxEnablePeerAccess(other(), 0));
  EXPECT_EQ(AccessOf(0, there), unsigned{kNone});
  SetAccess(there, granule_, {Access(0, kReadWrite), Access(1, kReadWrite)});
  UseFromHere(module, there);
  UseFromHere(module, allocated);
  ASSERT_OK(Drv().cuCtxDisablePeerAccess(other()));
  UseFromHere(module, there);
  ASSERT_OK(Drv().cuCtxEnablePeerAccess(other(), 0));
  UnmapAndFree(there, 1);
  UseFromHere(module, allocated);
  ASSERT_OK(Drv().cuCtxDisablePeerAccess(other()));
  FreeOnOther(allocated);
}

API_TEST(PeerMappingTest, MistakesAreErrors) {
  const CUdeviceptr there = ReserveOnOther(2);
  Map(there, 1);
  int count = 0;
  ASSERT_OK(Drv().cuDeviceGetCount(&count));
  const auto set = [](CUdeviceptr address, size_t bytes, const CUmemAccessDesc& access) {
    return Drv().cuMemSetAccess(address, bytes, &access, 1);
  };
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, set(there, granule_, Access(count, kReadWrite)));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, set(there, granule_, Access(-1, kReadWrite)));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                set(there, granule_, Access(0, static_cast<CUmemAccess_flags>(2))));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, set(there, granule_ / 2, Access(0, kReadWrite)));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, set(there, 2 * granule_, Access(0, kReadWrite)));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, set(there + granule_, granule_, Access(0, kReadWrite)));
  unsigned long long flags = 0;
  const CUmemLocation nowhere = {CU_MEM_LOCATION_TYPE_DEVICE, {count}};
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, Drv().cuMemGetAccess(&flags, &nowhere, there));
  EXPECT_EQ(AccessOf(0, there), unsigned{kNone});
  EXPECT_OK(Drv().cuMemUnmap(there, granule_));
  EXPECT_OK(Drv().cuMemAddressFree(there, 2 * granule_));
}

class PeerMappingFaultTest : public PeerMappingTest {
 protected:
  void TearDown() override {}  // the error is there to stay
  // Device 0 stores a word, which it must not.
  void ExpectIllegal(const Module& module, CUdeviceptr address) {
    EXPECT_OK(Launch(module.Function("store"), 1, 1, nullptr, address, 7u));
    EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuCtxSynchronize());
  }
};

API_TEST_ALONE(PeerMappingFaultTest, OtherMemoryOfThatDeviceStaysIllegal) {
  const Module module(kBasicPtx);
  const CUdeviceptr allocated = AllocateOnOther(kWords * sizeof(unsigned));
  const CUdeviceptr there = ReserveOnOther(1);
  Map(there, 1);
  SetAccess(there, granule_, {Access(0, kReadWrite), Access(1, kReadWrite)});
  UseFromHere(module, there);
  ExpectIllegal(module, allocated);
}

API_TEST_ALONE(PeerMappingFaultTest, AccessThatIsTakenAwayIsGone) {
  const Module module(kBasicPtx);
  const CUdeviceptr there = ReserveOnOther(1);
  Map(there, 1);
  SetAccess(there, granule_, {Access(0, kReadWrite), Access(1, kReadWrite)});
  UseFromHere(module, there);
  SetAccess(there, granule_, {Access(0, kNone)});
  ExpectIllegal(module, there);
}

API_TEST_ALONE(PeerMappingFaultTest, WhatMayBeReadIsNotWritten) {
  const Module module(kBasicPtx);
  const CUdeviceptr there = ReserveOnOther(1);
  Map(there, 1);
  SetAccess(there, granule_, {Access(0, kRead), Access(1, kReadWrite)});
  ExpectIllegal(module, there);
}

API_TEST_ALONE(PeerMappingFaultTest, WhatIsUnmappedIsIllegalForAll) {
  const Module module(kBasicPtx);
  const CUdeviceptr there = ReserveOnOther(2);
  Map(there, 1);
  Map(there + granule_, 1);
  SetAccess(there, 2 * granule_, {Access(0, kReadWrite), Access(1, kReadWrite)});
  UseFromHere(module, there);
  EXPECT_OK(Drv().cuMemUnmap(there, granule_));
  ExpectIllegal(module, there);
}

}  // namespace
}  // namespace consort::tests::api
