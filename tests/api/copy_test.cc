// SPDX-License-Identifier: Apache-2.0
// Copies: linear, unified, asynchronous, 2D and 3D in every direction. Source: CUDA Driver API
// reference 13.0, "Memory Management" (cuMemcpy*), "API synchronization behavior" (pageable host
// memory is staged before an asynchronous copy returns; copies to pageable memory return when
// done).
#include <algorithm>
#include <cstring>
#include <functional>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using CopyTest = ContextTest;

std::vector<unsigned char> Bytes(size_t count, unsigned seed = 1) {
  std::vector<unsigned char> bytes(count);
  unsigned state = seed;
  for (unsigned char& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<unsigned char>(state >> 24);
  }
  return bytes;
}

API_TEST(CopyTest, HostToDeviceAndBackKeepsEveryByte) {
  for (size_t bytes : {1, 2, 3, 5, 63, 64, 65, 4095, 4096, 4097, 65537, 1000003}) {
    DeviceBuffer buffer(bytes);
    const auto data = Bytes(bytes);
    buffer.Write(data);
    ASSERT_EQ(buffer.Read<unsigned char>(bytes), data) << bytes;
  }
}

// CUDA promises no more than that the data is staged; programs take it for written, whatever stream
// they go on with.
API_TEST(CopyTest, WorkOfAnotherStreamSeesWhatASynchronousCopyHasWritten) {
  Stream stream(CU_STREAM_NON_BLOCKING);
  for (size_t bytes : {size_t{4}, size_t{100} << 10, size_t{1100} << 10}) {
    DeviceBuffer word(bytes);
    DeviceBuffer copy(bytes);
    for (unsigned i = 0; i < 30; ++i) {
      const auto data = Bytes(bytes, i);
      ASSERT_OK(Drv().cuCtxSynchronize());
      ASSERT_OK(Drv().cuMemcpyHtoD_v2(word, data.data(), bytes));
      ASSERT_OK(Drv().cuMemcpyDtoDAsync_v2(copy, word, bytes, stream));
      ASSERT_OK(Drv().cuStreamSynchronize(stream));
      ASSERT_TRUE(copy.Read<unsigned char>(bytes) == data) << i << " of " << bytes;
    }
  }
}

API_TEST(CopyTest, UnalignedRangesKeepTheirNeighbours) {
  DeviceBuffer buffer(1024);
  buffer.Fill(0xee);
  const auto data = Bytes(301);
  EXPECT_OK(Drv().cuMemcpyHtoD_v2(buffer.get() + 7, data.data(), 301));
  const auto all = buffer.Read<unsigned char>(1024);
  EXPECT_EQ(all[6], 0xee);
  EXPECT_TRUE(std::equal(data.begin(), data.end(), all.begin() + 7));
  EXPECT_EQ(all[308], 0xee);
  std::vector<unsigned char> back(301);
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(back.data(), buffer.get() + 7, 301));
  EXPECT_EQ(back, data);
}

API_TEST(CopyTest, DeviceToDevice) {
  DeviceBuffer from(100000);
  DeviceBuffer to(100000);
  const auto data = Bytes(100000);
  from.Write(data);
  EXPECT_OK(Drv().cuMemcpyDtoD_v2(to, from, 100000));
  EXPECT_EQ(to.Read<unsigned char>(100000), data);
}

API_TEST(CopyTest, DeviceToDeviceWithinOneAllocation) {
  DeviceBuffer buffer(2048);
  const auto data = Bytes(1024);
  buffer.Write(data);
  EXPECT_OK(Drv().cuMemcpyDtoD_v2(buffer.get() + 1024, buffer, 1024));
  std::vector<unsigned char> back(1024);
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(back.data(), buffer.get() + 1024, 1024));
  EXPECT_EQ(back, data);
}

API_TEST(CopyTest, SixtyFourMebibytesBothWays) {
  constexpr size_t kBytes = size_t{64} << 20;
  DeviceBuffer buffer(kBytes);
  std::vector<unsigned> data = Iota(kBytes / 4, 12345);
  buffer.Write(data);
  std::vector<unsigned> back(kBytes / 4);
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(back.data(), buffer, kBytes));
  EXPECT_TRUE(back == data);
}

API_TEST(CopyTest, ZeroBytesCopyNothing) {
  DeviceBuffer buffer(64);
  buffer.Fill(1);
  unsigned word = 5;
  EXPECT_OK(Drv().cuMemcpyHtoD_v2(buffer, &word, 0));
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(&word, buffer, 0));
  EXPECT_OK(Drv().cuMemcpyDtoD_v2(buffer, buffer, 0));
  EXPECT_EQ(word, 5u);
  EXPECT_EQ(buffer.ReadWord(), 0x01010101u);
}

// Alone, as are the others that name memory that nobody allocated: a driver that took such an
// address for pageable host memory would crash.
API_TEST_ALONE(CopyTest, UnknownDevicePointersAreRefused) {
  unsigned word = 0;
  DeviceBuffer buffer(64);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpyHtoD_v2(0x1234567800ull, &word, 4));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpyDtoH_v2(&word, 0x1234567800ull, 4));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpyDtoD_v2(buffer, 0x1234567800ull, 4));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpyDtoD_v2(0x1234567800ull, buffer, 4));
}

API_TEST(CopyTest, NullDevicePointersAreRefused) {
  unsigned word = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpyHtoD_v2(0, &word, 4));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpyDtoH_v2(&word, 0, 4));
}

API_TEST_ALONE(CopyTest, NullHostPointersAreRefused) {
  DeviceBuffer buffer(64);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpyHtoD_v2(buffer, nullptr, 4));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpyDtoH_v2(nullptr, buffer, 4));
}

API_TEST_ALONE(CopyTest, RangePastTheAllocationIsRefused) {
  constexpr size_t kBytes = size_t{4} << 20;
  DeviceBuffer other(kBytes);
  DeviceBuffer buffer(kBytes);
  std::vector<char> host(2 * kBytes);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpyHtoD_v2(buffer, host.data(), 2 * kBytes));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpyDtoH_v2(host.data(), buffer, 2 * kBytes));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpyDtoD_v2(other, buffer, 2 * kBytes));
}

API_TEST_ALONE(CopyTest, FreedMemoryIsRefused) {
  CUdeviceptr address = 0;
  unsigned word = 0;
  ASSERT_OK(Drv().cuMemAlloc_v2(&address, 4 << 20));
  ASSERT_OK(Drv().cuMemFree_v2(address));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpyHtoD_v2(address, &word, 4));
}

// ---- unified ----

API_TEST(CopyTest, UnifiedCopyKnowsEveryDirection) {
  const auto data = Bytes(5000);
  std::vector<unsigned char> back(5000);
  std::vector<unsigned char> host(5000);
  DeviceBuffer first(5000);
  DeviceBuffer second(5000);
  EXPECT_OK(Drv().cuMemcpy(first, reinterpret_cast<CUdeviceptr>(data.data()), 5000));
  EXPECT_OK(Drv().cuMemcpy(second, first, 5000));
  EXPECT_OK(Drv().cuMemcpy(reinterpret_cast<CUdeviceptr>(back.data()), second, 5000));
  EXPECT_EQ(back, data);
  EXPECT_OK(Drv().cuMemcpy(reinterpret_cast<CUdeviceptr>(host.data()),
                           reinterpret_cast<CUdeviceptr>(data.data()), 5000));
  EXPECT_EQ(host, data) << "host to host";
}

API_TEST(CopyTest, UnifiedAsyncCopyKnowsEveryDirection) {
  Stream stream;
  PinnedBuffer pinned(5000);
  PinnedBuffer back(5000);
  const auto data = Bytes(5000);
  std::memcpy(pinned.get(), data.data(), 5000);
  DeviceBuffer first(5000);
  DeviceBuffer second(5000);
  EXPECT_OK(Drv().cuMemcpyAsync(first, reinterpret_cast<CUdeviceptr>(pinned.get()), 5000, stream));
  EXPECT_OK(Drv().cuMemcpyAsync(second, first, 5000, stream));
  EXPECT_OK(Drv().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(back.get()), second, 5000, stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(std::memcmp(back.get(), data.data(), 5000), 0);
}

// ---- asynchronous ----

API_TEST(CopyTest, AsyncCopiesRunInStreamOrder) {
  constexpr size_t kBytes = size_t{1} << 20;
  Stream stream;
  PinnedBuffer in(kBytes);
  PinnedBuffer out(kBytes);
  const auto data = Bytes(kBytes);
  std::memcpy(in.get(), data.data(), kBytes);
  DeviceBuffer first(kBytes);
  DeviceBuffer second(kBytes);
  EXPECT_OK(Drv().cuMemcpyHtoDAsync_v2(first, in.get(), kBytes, stream));
  EXPECT_OK(Drv().cuMemcpyDtoDAsync_v2(second, first, kBytes, stream));
  EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(out.get(), second, kBytes, stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(std::memcmp(out.get(), data.data(), kBytes), 0);
}

API_TEST(CopyTest, PageableSourceMayBeReusedAtReturn) {
  // Small copies are staged, large ones are complete or staged: either way the source is free at
  // return.
  for (size_t bytes :
       {size_t{4}, size_t{1000}, size_t{64} << 10, (size_t{64} << 10) + 1, size_t{8} << 20}) {
    Stream stream;
    DeviceBuffer buffer(bytes);
    std::vector<unsigned char> source = Bytes(bytes);
    const std::vector<unsigned char> expected = source;
    EXPECT_OK(Drv().cuMemcpyHtoDAsync_v2(buffer, source.data(), bytes, stream));
    std::fill(source.begin(), source.end(), static_cast<unsigned char>(0xff));
    EXPECT_OK(Drv().cuStreamSynchronize(stream));
    EXPECT_TRUE(buffer.Read<unsigned char>(bytes) == expected) << bytes;
  }
}

API_TEST(CopyTest, ManyPageableCopiesFromOneReusedBuffer) {
  Stream stream;
  constexpr unsigned kCount = 300;
  DeviceBuffer buffer(kCount * 4);
  unsigned word = 0;
  for (unsigned index = 0; index < kCount; ++index) {
    word = index * 7 + 1;
    EXPECT_OK(Drv().cuMemcpyHtoDAsync_v2(buffer.get() + index * 4, &word, 4, stream));
  }
  word = 0;
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  const auto words = buffer.Read<unsigned>(kCount);
  for (unsigned index = 0; index < kCount; ++index) ASSERT_EQ(words[index], index * 7 + 1);
}

API_TEST(CopyTest, PageableTargetIsCompleteAtReturn) {
  for (size_t bytes : {size_t{4}, size_t{64} << 10, size_t{8} << 20}) {
    Stream stream;
    DeviceBuffer buffer(bytes);
    const auto data = Bytes(bytes);
    buffer.Write(data);
    std::vector<unsigned char> target(bytes, 0);
    EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(target.data(), buffer, bytes, stream));
    EXPECT_TRUE(target == data) << bytes << ": no synchronization in between";
    EXPECT_OK(Drv().cuStreamSynchronize(stream));
  }
}

API_TEST(CopyTest, PinnedCopyWaitsForTheStream) {
  Stream stream;
  PinnedBuffer pinned(4);
  DeviceBuffer buffer(4);
  buffer.Fill(0);
  StreamGate gate(stream);
  *pinned.as<unsigned>() = 1;
  EXPECT_OK(Drv().cuMemcpyHtoDAsync_v2(buffer, pinned.get(), 4, stream));
  EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(stream));
  gate.Open();
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(buffer.ReadWord(), 1u);
  EXPECT_FALSE(gate.timed_out());
}

// "For transfers from pinned host memory to device memory, the function is synchronous with respect
// to the host": work of any stream comes after it, and its own stream has nothing left to do.
API_TEST(CopyTest, SynchronousPinnedCopyIsDoneAtReturn) {
  Stream streams[2];
  for (size_t bytes : {size_t{4}, size_t{1000}, size_t{16} << 10, (size_t{16} << 10) + 1}) {
    PinnedBuffer pinned(bytes);
    std::vector<unsigned char> registered(bytes);
    EXPECT_OK(Drv().cuMemHostRegister_v2(registered.data(), bytes, 0));
    DeviceBuffer buffer(bytes);
    DeviceBuffer other(bytes);
    EXPECT_OK(Drv().cuCtxSynchronize());
    for (unsigned round = 0; round < 60; ++round) {
      const auto data = Bytes(bytes, round);
      auto* const source = round % 2 == 0 ? pinned.as<unsigned char>() : registered.data();
      // All but the first have nothing to wait for.
      for (int left = 30; left > 0; --left) {
        EXPECT_OK(Drv().cuMemcpyHtoD_v2(buffer, source, bytes));
        if (left == 2) std::copy(data.begin(), data.end(), source);
        if (left == 1) std::fill(source, source + bytes, static_cast<unsigned char>(0xff));
      }
      if (round % 4 == 0) {
        EXPECT_OK(Drv().cuStreamQuery(nullptr));
      }
      const Stream& stream = streams[round / 2 % 2];
      EXPECT_OK(Drv().cuMemcpyDtoDAsync_v2(other, buffer, bytes, stream));
      std::vector<unsigned char> back(bytes);
      EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(back.data(), other, bytes, stream));
      ASSERT_TRUE(back == data) << bytes << " bytes, round " << round;
    }
    EXPECT_OK(Drv().cuMemHostUnregister(registered.data()));
  }
}

API_TEST(CopyTest, SynchronousCopySeesWorkOfTheLegacyStream) {
  Module module(kTimingPtx);
  DeviceBuffer buffer(4);
  buffer.Fill(0);
  EXPECT_OK(Launch(module.Function("spin"), 1, 1, nullptr, 30000000ull, buffer.get(), 42u));
  EXPECT_EQ(buffer.ReadWord(), 42u) << "cuMemcpyDtoH waits for what was launched before";
}

API_TEST_ALONE(CopyTest, AsyncRefusesUnknownPointers) {
  Stream stream;
  PinnedBuffer pinned(64);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemcpyHtoDAsync_v2(0x1234567800ull, pinned.get(), 4, stream));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemcpyDtoHAsync_v2(pinned.get(), 0x1234567800ull, 4, stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
}

// ---- 2D ----

// A rectangle inside a picture of `rows` rows of `pitch` bytes, beginning `x` bytes and `y` rows
// in.
struct Area {
  size_t pitch;
  size_t rows;
  size_t x;
  size_t y;
};

constexpr Area kFrom = {160, 12, 5, 3};
constexpr Area kTo = {256, 10, 17, 1};
constexpr size_t kWidth = 71;
constexpr size_t kHeight = 7;

// What the target should hold: `before` with the rectangle taken from `source`.
std::vector<unsigned char> Expected(const std::vector<unsigned char>& source,
                                    std::vector<unsigned char> before) {
  for (size_t row = 0; row < kHeight; ++row) {
    std::memcpy(&before[(kTo.y + row) * kTo.pitch + kTo.x],
                &source[(kFrom.y + row) * kFrom.pitch + kFrom.x], kWidth);
  }
  return before;
}

class Copy2DTest : public ContextTest {
 protected:
  using Call = std::function<CUresult(const CUDA_MEMCPY2D*)>;

  // Copies the rectangle between pictures of the given kinds and checks every byte of the target.
  void Check(CUmemorytype from_kind, CUmemorytype to_kind, const Call& call) {
    const auto source = Bytes(kFrom.pitch * kFrom.rows, 1);
    auto target = Bytes(kTo.pitch * kTo.rows, 2);
    const auto expected = Expected(source, target);
    DeviceBuffer source_device(source.size());
    DeviceBuffer target_device(target.size());
    source_device.Write(source);
    target_device.Write(target);
    CUDA_MEMCPY2D copy = {};
    copy.srcXInBytes = kFrom.x;
    copy.srcY = kFrom.y;
    copy.srcPitch = kFrom.pitch;
    copy.dstXInBytes = kTo.x;
    copy.dstY = kTo.y;
    copy.dstPitch = kTo.pitch;
    copy.WidthInBytes = kWidth;
    copy.Height = kHeight;
    copy.srcMemoryType = from_kind;
    copy.dstMemoryType = to_kind;
    copy.srcHost = from_kind == CU_MEMORYTYPE_HOST ? source.data() : nullptr;
    copy.srcDevice = from_kind == CU_MEMORYTYPE_HOST ? 0 : source_device.get();
    copy.dstHost = to_kind == CU_MEMORYTYPE_HOST ? target.data() : nullptr;
    copy.dstDevice = to_kind == CU_MEMORYTYPE_HOST ? 0 : target_device.get();
    ASSERT_OK(call(&copy));
    if (to_kind != CU_MEMORYTYPE_HOST) target = target_device.Read<unsigned char>(target.size());
    EXPECT_TRUE(target == expected);
  }
};

API_TEST(Copy2DTest, HostToDevice) {
  Check(CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE,
        [](const CUDA_MEMCPY2D* copy) { return Drv().cuMemcpy2D_v2(copy); });
}

API_TEST(Copy2DTest, DeviceToHost) {
  Check(CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST,
        [](const CUDA_MEMCPY2D* copy) { return Drv().cuMemcpy2D_v2(copy); });
}

API_TEST(Copy2DTest, DeviceToDevice) {
  Check(CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE,
        [](const CUDA_MEMCPY2D* copy) { return Drv().cuMemcpy2DUnaligned_v2(copy); });
}

API_TEST(Copy2DTest, HostToHost) {
  Check(CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_HOST,
        [](const CUDA_MEMCPY2D* copy) { return Drv().cuMemcpy2D_v2(copy); });
}

API_TEST(Copy2DTest, UnalignedHostToDevice) {
  Check(CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE,
        [](const CUDA_MEMCPY2D* copy) { return Drv().cuMemcpy2DUnaligned_v2(copy); });
}

API_TEST(Copy2DTest, UnalignedDeviceToHost) {
  Check(CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST,
        [](const CUDA_MEMCPY2D* copy) { return Drv().cuMemcpy2DUnaligned_v2(copy); });
}

API_TEST(Copy2DTest, UnifiedToUnified) {
  // CU_MEMORYTYPE_UNIFIED takes both addresses from srcDevice and dstDevice.
  Check(CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_UNIFIED,
        [](const CUDA_MEMCPY2D* copy) { return Drv().cuMemcpy2DUnaligned_v2(copy); });
}

API_TEST(Copy2DTest, AsyncHostToDevice) {
  Stream stream;
  Check(CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE, [&](const CUDA_MEMCPY2D* copy) {
    const CUresult result = Drv().cuMemcpy2DAsync_v2(copy, stream);
    return result != CUDA_SUCCESS ? result : Drv().cuStreamSynchronize(stream);
  });
}

API_TEST(Copy2DTest, AsyncDeviceToHost) {
  Stream stream;
  Check(CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, [&](const CUDA_MEMCPY2D* copy) {
    const CUresult result = Drv().cuMemcpy2DAsync_v2(copy, stream);
    return result != CUDA_SUCCESS ? result : Drv().cuStreamSynchronize(stream);
  });
}

API_TEST(Copy2DTest, PitchOfPitchedAllocationsAlwaysWorks) {
  CUdeviceptr from = 0;
  CUdeviceptr to = 0;
  size_t from_pitch = 0;
  size_t to_pitch = 0;
  ASSERT_OK(Drv().cuMemAllocPitch_v2(&from, &from_pitch, 100, 9, 4));
  ASSERT_OK(Drv().cuMemAllocPitch_v2(&to, &to_pitch, 600, 9, 4));
  const auto data = Bytes(900);
  std::vector<unsigned char> back(900);
  CUDA_MEMCPY2D copy = {};
  copy.WidthInBytes = 100;
  copy.Height = 9;
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = data.data();
  copy.srcPitch = 100;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = from;
  copy.dstPitch = from_pitch;
  EXPECT_OK(Drv().cuMemcpy2D_v2(&copy));
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = from;
  copy.srcPitch = from_pitch;
  copy.dstDevice = to;
  copy.dstPitch = to_pitch;
  EXPECT_OK(Drv().cuMemcpy2D_v2(&copy));
  copy.srcDevice = to;
  copy.srcPitch = to_pitch;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = back.data();
  copy.dstPitch = 100;
  EXPECT_OK(Drv().cuMemcpy2D_v2(&copy));
  EXPECT_EQ(back, data);
  EXPECT_OK(Drv().cuMemFree_v2(from));
  EXPECT_OK(Drv().cuMemFree_v2(to));
}

API_TEST(Copy2DTest, PitchMayBeLeftOutForOneRow) {
  // "If specified, srcPitch must be greater than or equal to WidthInBytes + srcXInBytes": 0 is not
  // specified.
  const auto data = Bytes(50);
  DeviceBuffer buffer(50);
  CUDA_MEMCPY2D copy = {};
  copy.WidthInBytes = 50;
  copy.Height = 1;
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = data.data();
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = buffer;
  EXPECT_OK(Drv().cuMemcpy2D_v2(&copy));
  EXPECT_EQ(buffer.Read<unsigned char>(50), data);
}

API_TEST(Copy2DTest, NothingIsCopiedForNoRows) {
  DeviceBuffer buffer(64);
  buffer.Fill(1);
  const auto data = Bytes(64);
  CUDA_MEMCPY2D copy = {};
  copy.WidthInBytes = 16;
  copy.Height = 0;
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = data.data();
  copy.srcPitch = 16;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = buffer;
  copy.dstPitch = 16;
  EXPECT_OK(Drv().cuMemcpy2D_v2(&copy));
  EXPECT_EQ(buffer.ReadWord(), 0x01010101u);
}

API_TEST(Copy2DTest, WidthPastThePitchIsRefused) {
  DeviceBuffer buffer(4096);
  std::vector<unsigned char> host(4096);
  CUDA_MEMCPY2D copy = {};
  copy.WidthInBytes = 100;
  copy.Height = 4;
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host.data();
  copy.srcPitch = 64;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = buffer;
  copy.dstPitch = 128;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpy2D_v2(&copy)) << "source";
  copy.srcPitch = 128;
  copy.dstPitch = 64;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpy2D_v2(&copy)) << "target";
}

API_TEST(Copy2DTest, PitchPastTheDevicesLimitIsRefused) {
  DeviceBuffer buffer(4096);
  std::vector<unsigned char> host(4096);
  CUDA_MEMCPY2D copy = {};
  copy.WidthInBytes = 16;
  copy.Height = 2;
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host.data();
  copy.srcPitch = 16;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = buffer;
  copy.dstPitch = size_t{1} << 40;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpy2D_v2(&copy));
}

API_TEST(Copy2DTest, UnknownMemoryTypeIsRefused) {
  DeviceBuffer buffer(64);
  CUDA_MEMCPY2D copy = {};
  copy.WidthInBytes = 16;
  copy.Height = 1;
  copy.srcMemoryType = static_cast<CUmemorytype>(77);
  copy.srcDevice = buffer;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = buffer;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpy2D_v2(&copy));
}

API_TEST_ALONE(Copy2DTest, NullDescriptionIsRefused) {
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpy2D_v2(nullptr));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpy3D_v2(nullptr));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpy3DPeer(nullptr));
}

// ---- 3D ----

class Copy3DTest : public ContextTest {
 protected:
  static constexpr size_t kDepth = 4;
  using Call = std::function<CUresult(const CUDA_MEMCPY3D*)>;

  // A box between two volumes with pitches, heights and offsets of their own; checks every byte of
  // the target.
  void Check(CUmemorytype from_kind, CUmemorytype to_kind, const Call& call) {
    constexpr size_t kFromZ = 1;
    constexpr size_t kToZ = 2;
    constexpr size_t kFromSlices = 6;
    constexpr size_t kToSlices = 7;
    const auto source = Bytes(kFrom.pitch * kFrom.rows * kFromSlices, 3);
    auto target = Bytes(kTo.pitch * kTo.rows * kToSlices, 4);
    auto expected = target;
    for (size_t slice = 0; slice < kDepth; ++slice) {
      for (size_t row = 0; row < kHeight; ++row) {
        std::memcpy(
            &expected[((kToZ + slice) * kTo.rows + kTo.y + row) * kTo.pitch + kTo.x],
            &source[((kFromZ + slice) * kFrom.rows + kFrom.y + row) * kFrom.pitch + kFrom.x],
            kWidth);
      }
    }
    DeviceBuffer source_device(source.size());
    DeviceBuffer target_device(target.size());
    source_device.Write(source);
    target_device.Write(target);
    CUDA_MEMCPY3D copy = {};
    copy.srcXInBytes = kFrom.x;
    copy.srcY = kFrom.y;
    copy.srcZ = kFromZ;
    copy.srcPitch = kFrom.pitch;
    copy.srcHeight = kFrom.rows;
    copy.dstXInBytes = kTo.x;
    copy.dstY = kTo.y;
    copy.dstZ = kToZ;
    copy.dstPitch = kTo.pitch;
    copy.dstHeight = kTo.rows;
    copy.WidthInBytes = kWidth;
    copy.Height = kHeight;
    copy.Depth = kDepth;
    copy.srcMemoryType = from_kind;
    copy.dstMemoryType = to_kind;
    copy.srcHost = from_kind == CU_MEMORYTYPE_HOST ? source.data() : nullptr;
    copy.srcDevice = from_kind == CU_MEMORYTYPE_HOST ? 0 : source_device.get();
    copy.dstHost = to_kind == CU_MEMORYTYPE_HOST ? target.data() : nullptr;
    copy.dstDevice = to_kind == CU_MEMORYTYPE_HOST ? 0 : target_device.get();
    ASSERT_OK(call(&copy));
    if (to_kind != CU_MEMORYTYPE_HOST) target = target_device.Read<unsigned char>(target.size());
    EXPECT_TRUE(target == expected);
  }
};

CUresult Copy3D(const CUDA_MEMCPY3D* copy) { return Drv().cuMemcpy3D_v2(copy); }

API_TEST(Copy3DTest, HostToDevice) { Check(CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE, Copy3D); }

API_TEST(Copy3DTest, DeviceToHost) { Check(CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, Copy3D); }

API_TEST(Copy3DTest, DeviceToDevice) { Check(CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE, Copy3D); }

API_TEST(Copy3DTest, HostToHost) { Check(CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_HOST, Copy3D); }

API_TEST(Copy3DTest, UnifiedToUnified) {
  Check(CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_UNIFIED, Copy3D);
}

API_TEST(Copy3DTest, AsyncHostToDevice) {
  Stream stream;
  Check(CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE, [&](const CUDA_MEMCPY3D* copy) {
    const CUresult result = Drv().cuMemcpy3DAsync_v2(copy, stream);
    return result != CUDA_SUCCESS ? result : Drv().cuStreamSynchronize(stream);
  });
}

API_TEST(Copy3DTest, AsyncDeviceToHost) {
  Stream stream;
  Check(CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, [&](const CUDA_MEMCPY3D* copy) {
    const CUresult result = Drv().cuMemcpy3DAsync_v2(copy, stream);
    return result != CUDA_SUCCESS ? result : Drv().cuStreamSynchronize(stream);
  });
}

// The same copy as one that names a context for each side.
CUDA_MEMCPY3D_PEER WithContexts(const CUDA_MEMCPY3D& copy, CUcontext dst, CUcontext src) {
  CUDA_MEMCPY3D_PEER peer = {};
  peer.srcXInBytes = copy.srcXInBytes, peer.srcY = copy.srcY, peer.srcZ = copy.srcZ;
  peer.srcMemoryType = copy.srcMemoryType;
  peer.srcHost = copy.srcHost, peer.srcDevice = copy.srcDevice;
  peer.srcPitch = copy.srcPitch, peer.srcHeight = copy.srcHeight;
  peer.srcContext = src;
  peer.dstXInBytes = copy.dstXInBytes, peer.dstY = copy.dstY, peer.dstZ = copy.dstZ;
  peer.dstMemoryType = copy.dstMemoryType;
  peer.dstHost = copy.dstHost, peer.dstDevice = copy.dstDevice;
  peer.dstPitch = copy.dstPitch, peer.dstHeight = copy.dstHeight;
  peer.dstContext = dst;
  peer.WidthInBytes = copy.WidthInBytes, peer.Height = copy.Height, peer.Depth = copy.Depth;
  return peer;
}

API_TEST(Copy3DTest, ContextsOfOneDeviceMakeNoDifference) {
  const CreatedContext second(device());
  const Stream stream;
  for (CUcontext dst : {context(), second.get()}) {
    Check(CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE, [&](const CUDA_MEMCPY3D* copy) {
      const CUDA_MEMCPY3D_PEER peer = WithContexts(*copy, dst, context());
      return Drv().cuMemcpy3DPeer(&peer);
    });
    for (CUmemorytype from : {CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE}) {
      for (CUmemorytype to : {CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE}) {
        Check(from, to, [&](const CUDA_MEMCPY3D* copy) {
          const CUDA_MEMCPY3D_PEER peer = WithContexts(*copy, dst, context());
          const CUresult result = Drv().cuMemcpy3DPeerAsync(&peer, stream);
          return result != CUDA_SUCCESS ? result : Drv().cuStreamSynchronize(stream);
        });
      }
    }
  }
}

API_TEST(Copy3DTest, ContextsOfPeerCopiesMustBeThere) {
  const DeviceBuffer from(64), to(64);
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = from, copy.dstDevice = to;
  copy.WidthInBytes = 64;
  copy.Height = copy.Depth = 1;
  for (const auto& [dst, src] :
       {std::pair<CUcontext, CUcontext>{nullptr, context()}, {context(), nullptr}}) {
    const CUDA_MEMCPY3D_PEER peer = WithContexts(copy, dst, src);
    EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuMemcpy3DPeer(&peer));
    EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuMemcpy3DPeerAsync(&peer, nullptr));
  }
}

API_TEST(Copy3DTest, HeightPastTheSliceIsRefused) {
  DeviceBuffer buffer(1 << 16);
  std::vector<unsigned char> host(1 << 16);
  CUDA_MEMCPY3D copy = {};
  copy.WidthInBytes = 16;
  copy.Height = 8;
  copy.Depth = 3;
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host.data();
  copy.srcPitch = 16;
  copy.srcHeight = 4;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = buffer;
  copy.dstPitch = 16;
  copy.dstHeight = 8;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpy3D_v2(&copy));
}

}  // namespace
}  // namespace consort::tests::api
