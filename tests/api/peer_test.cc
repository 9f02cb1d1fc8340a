// SPDX-License-Identifier: Apache-2.0
// Two devices in one process: copies between them, waits of one for the other, peer access as far
// as the devices have it.
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

API_TEST(PeerTest, PeerAccessIsEnabledWhereItIsSaidToBePossible) {
  int possible = -1;
  ASSERT_OK(Drv().cuDeviceCanAccessPeer(&possible, 0, 1));
  const CUresult enabled = Drv().cuCtxEnablePeerAccess(other(), 0);
  EXPECT_EQ(enabled, possible != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  EXPECT_RESULT(possible != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED,
                Drv().cuCtxDisablePeerAccess(other()));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuDeviceCanAccessPeer(nullptr, 0, 1));
}

}  // namespace
}  // namespace consort::tests::api
