// SPDX-License-Identifier: Apache-2.0
// Copies of many MiB between pageable memory and the device, which drivers carry out in pieces.
// Source: CUDA Driver API reference 13.0, "API synchronization behavior".
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using LargeCopyTest = ContextTest;

constexpr size_t kMiB = size_t{1} << 20;

std::vector<unsigned char> Pattern(size_t bytes, unsigned seed) {
  std::vector<unsigned char> data(bytes);
  unsigned state = seed;
  for (unsigned char& byte : data) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<unsigned char>(state >> 24);
  }
  return data;
}

API_TEST(LargeCopyTest, AnySizeAtAnyAddress) {
  constexpr size_t kOffset = 13;
  for (const size_t bytes :
       {2 * kMiB - 1, 2 * kMiB, 2 * kMiB + 1, 4 * kMiB + 7, 30 * kMiB, 57 * kMiB + 4097}) {
    DeviceBuffer buffer(bytes + 2 * kOffset);
    buffer.Fill(0xee);
    const auto data = Pattern(bytes + kOffset, 7);
    EXPECT_OK(Drv().cuMemcpyHtoD_v2(buffer.get() + kOffset, data.data() + kOffset, bytes));
    std::vector<unsigned char> back(bytes + 2 * kOffset);
    EXPECT_OK(Drv().cuMemcpyDtoH_v2(back.data(), buffer, back.size()));
    EXPECT_EQ(memcmp(&back[kOffset], &data[kOffset], bytes), 0) << bytes;
    for (size_t i = 0; i < kOffset; ++i) {
      EXPECT_EQ(back[i], 0xee) << bytes;
      EXPECT_EQ(back[kOffset + bytes + i], 0xee) << bytes;
    }
  }
}

API_TEST(LargeCopyTest, InOrderWithTheStreamsOtherWork) {
  constexpr size_t kBytes = 40 * kMiB;
  Stream stream;
  DeviceBuffer first(kBytes);
  DeviceBuffer second(kBytes);
  auto data = Pattern(kBytes, 3);
  const auto kept = data;
  std::vector<unsigned char> back(kBytes);
  for (int round = 0; round < 3; ++round) {
    EXPECT_OK(Drv().cuMemcpyHtoDAsync_v2(first, data.data(), kBytes, stream));
    // The source was read before the call returned.
    std::memset(data.data(), 0, kBytes);
    EXPECT_OK(Drv().cuMemcpyDtoDAsync_v2(second, first, kBytes, stream));
    EXPECT_OK(Drv().cuMemsetD8Async(first, 0x55, kBytes, stream));
    EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(back.data(), second, kBytes, stream));
    // Pageable, so it is there.
    ASSERT_TRUE(back == kept) << round;
    EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(data.data(), first, kBytes, stream));
    ASSERT_TRUE(data == std::vector<unsigned char>(kBytes, 0x55)) << round;
    data = kept;
  }
}

API_TEST(LargeCopyTest, OfSeveralThreadsAtOnce) {
  constexpr size_t kBytes = 24 * kMiB;
  constexpr int kThreads = 4;
  CUcontext context = nullptr;
  ASSERT_EQ(Drv().cuCtxGetCurrent(&context), CUDA_SUCCESS);
  RunThreads(kThreads, [&](int index) {
    EXPECT_OK(Drv().cuCtxSetCurrent(context));
    Stream stream;
    DeviceBuffer buffer(kBytes);
    const auto data = Pattern(kBytes, static_cast<unsigned>(index));
    std::vector<unsigned char> back(kBytes);
    for (int round = 0; round < 3; ++round) {
      EXPECT_OK(Drv().cuMemcpyHtoDAsync_v2(buffer, data.data(), kBytes, stream));
      std::memset(back.data(), 0, kBytes);
      EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(back.data(), buffer, kBytes, stream));
      EXPECT_TRUE(back == data) << index;
    }
  });
}

// What waits for a held stream must hold up nobody else.
API_TEST(LargeCopyTest, BesideOneThatWaitsForItsStream) {
  if (IsOracle()) GTEST_SKIP() << "driver 580 lets the other copy wait in some runs";
  constexpr size_t kBytes = 64 * kMiB;
  CUcontext context = nullptr;
  ASSERT_EQ(Drv().cuCtxGetCurrent(&context), CUDA_SUCCESS);
  Stream held_stream;
  Stream free_stream;
  DeviceBuffer held(kBytes);
  DeviceBuffer free(kBytes);
  const auto held_data = Pattern(kBytes, 1);
  const auto free_data = Pattern(kBytes, 2);
  std::vector<unsigned char> back(kBytes);
  {
    StreamGate gate(held_stream);
    RunThreads(2, [&](int index) {
      EXPECT_OK(Drv().cuCtxSetCurrent(context));
      if (index == 0) {
        EXPECT_OK(Drv().cuMemcpyHtoDAsync_v2(held, held_data.data(), kBytes, held_stream));
        return;
      }
      EXPECT_OK(Drv().cuMemcpyHtoDAsync_v2(free, free_data.data(), kBytes, free_stream));
      EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(back.data(), free, kBytes, free_stream));
      gate.Open();
    });
    EXPECT_FALSE(gate.timed_out());
  }
  EXPECT_TRUE(back == free_data);
  EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(back.data(), held, kBytes, held_stream));
  EXPECT_TRUE(back == held_data);
}

// "A stream sync is performed before the copy is initiated": also when all was quiet before.
API_TEST(LargeCopyTest, SynchronousOnesWaitForEarlierWorkOfAnySize) {
  for (const size_t bytes : {size_t{64}, 4 * kMiB}) {
    DeviceBuffer buffer(bytes);
    const auto data = Pattern(bytes, 5);
    buffer.Write(data);  // nothing is left to do for the stream
    EXPECT_OK(Drv().cuMemcpyHtoD_v2(buffer, data.data(), bytes));
    std::atomic<bool> ran{false};
    EXPECT_OK(Drv().cuLaunchHostFunc(
        nullptr,
        [](void* flag) {
          usleep(30'000);
          *static_cast<std::atomic<bool>*>(flag) = true;
        },
        &ran));
    EXPECT_OK(Drv().cuMemcpyHtoD_v2(buffer, data.data(), bytes));
    EXPECT_TRUE(ran) << bytes;
    EXPECT_EQ(buffer.Read<unsigned char>(bytes), data);
  }
}

}  // namespace
}  // namespace consort::tests::api
