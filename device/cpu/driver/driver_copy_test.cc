// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/driver_copy_test.cc: copies and fills, plain and pitched, checked byte by byte.
#include <numeric>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/units.h"
#include "device/cpu/driver/driver_test.h"
#include "device/cpu/driver/limits.h"

namespace consort::cpu {
namespace {

class CopyTest : public DriverTest {
 protected:
  static std::vector<unsigned char> Pattern(size_t bytes) {
    std::vector<unsigned char> pattern(bytes);
    for (size_t i = 0; i < bytes; ++i) pattern[i] = static_cast<unsigned char>(i * 7 + i / 251);
    return pattern;
  }
  std::vector<unsigned char> Download(CUdeviceptr address, size_t bytes) {
    std::vector<unsigned char> data(bytes);
    EXPECT_CU(CU(cuMemcpyDtoH_v2)(data.data(), address, bytes));
    return data;
  }
  template <typename T>
  std::vector<T> DownloadAs(CUdeviceptr address, size_t count) {
    std::vector<T> data(count);
    EXPECT_CU(CU(cuMemcpyDtoH_v2)(data.data(), address, count * sizeof(T)));
    return data;
  }
};

TEST_F(CopyTest, RoundTripAtOddSizes) {
  // Below, at and above the staging bound and the piece size.
  for (const size_t bytes : {size_t{1}, size_t{4097}, size_t{kStagedCopyBytesMax},
                             size_t{kStagedCopyBytesMax + 1}, size_t{kCopyChunkBytes + 3}}) {
    const CUstream stream = NewStream();
    const auto pattern = Pattern(bytes);
    const CUdeviceptr first = Allocate(bytes), second = Allocate(bytes);
    auto source = pattern;
    EXPECT_CU(CU(cuMemcpyHtoDAsync_v2)(first, source.data(), bytes, stream));
    // Pageable: ours again as soon as the call returns.
    std::fill(source.begin(), source.end(), 0xEE);
    EXPECT_CU(CU(cuMemcpyDtoDAsync_v2)(second, first, bytes, stream));
    std::vector<unsigned char> back(bytes);
    EXPECT_CU(CU(cuMemcpyDtoHAsync_v2)(back.data(), second, bytes, stream));
    EXPECT_EQ(back, pattern) << bytes;  // and there as soon as the call returns
    EXPECT_CU(
        CU(cuMemcpyAsync)(first, reinterpret_cast<CUdeviceptr>(source.data()), bytes, stream));
    EXPECT_CU(CU(cuStreamSynchronize)(stream));
    EXPECT_EQ(Download(first, bytes), source);
    EXPECT_CU(CU(cuMemcpyHtoD_v2)(second, pattern.data(), bytes));
    EXPECT_CU(CU(cuMemcpyDtoD_v2)(first, second, bytes));
    EXPECT_CU(CU(cuMemcpy)(reinterpret_cast<CUdeviceptr>(back.data()), first, bytes));
    EXPECT_EQ(back, pattern);
    EXPECT_CU(CU(cuMemFree_v2)(first));
    EXPECT_CU(CU(cuMemFree_v2)(second));
  }
}

TEST_F(CopyTest, PinnedCopyDoesNotWaitAndReadsTheSourceLate) {
  void* pinned = nullptr;
  ASSERT_CU(CU(cuMemHostAlloc)(&pinned, 4096, 0));
  auto* words = static_cast<uint32_t*>(pinned);
  const CUdeviceptr memory = Allocate(4096);
  const CUstream stream = NewStream();
  absl::Notification open;
  EXPECT_CU(CU(cuLaunchHostFunc)(
      stream, [](void* data) { static_cast<absl::Notification*>(data)->WaitForNotification(); },
      &open));
  words[0] = 1;
  EXPECT_CU(CU(cuMemcpyHtoDAsync_v2)(memory, pinned, 4096, stream));
  EXPECT_EQ(CU(cuStreamQuery)(stream), CUDA_ERROR_NOT_READY);
  words[0] = 2;
  open.Notify();
  EXPECT_CU(CU(cuStreamSynchronize)(stream));
  EXPECT_EQ(DownloadAs<uint32_t>(memory, 1)[0], 2u);
  EXPECT_CU(CU(cuMemFreeHost)(pinned));
}

TEST_F(CopyTest, DeviceRangesAreChecked) {
  const CUdeviceptr memory = Allocate(4096);
  std::vector<unsigned char> host(8192);
  EXPECT_EQ(CU(cuMemcpyHtoD_v2)(memory, host.data(), 4097), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemcpyHtoD_v2)(memory + 4096, host.data(), 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemcpyDtoH_v2)(host.data(), memory - 1, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemcpyDtoHAsync_v2)(host.data(), memory, ~size_t{0}, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemcpyDtoD_v2)(memory, reinterpret_cast<CUdeviceptr>(host.data()), 16),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemsetD8Async)(memory + 1, 0, 4096, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemsetD32_v2)(memory + 2, 0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(CU(cuMemcpyHtoD_v2)(0, nullptr, 0));
  // None of it failed the context.
  EXPECT_CU(CU(cuCtxSynchronize)());
}

TEST_F(CopyTest, PitchedBoxHitsItsRowsOnly) {
  constexpr size_t kHostPitch = 50, kDevicePitch = 64, kWidth = 17, kHeight = 5;
  const auto host = Pattern(kHostPitch * 12);
  const CUdeviceptr memory = Allocate(kDevicePitch * 10);
  ASSERT_CU(CU(cuMemsetD8_v2)(memory, 0xFF, kDevicePitch * 10));
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host.data();
  copy.srcPitch = kHostPitch;
  copy.srcXInBytes = 3;
  copy.srcY = 2;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = memory;
  copy.dstPitch = kDevicePitch;
  copy.dstXInBytes = 10;
  copy.dstY = 4;
  copy.WidthInBytes = kWidth;
  copy.Height = kHeight;
  ASSERT_CU(CU(cuMemcpy2D_v2)(&copy));
  const auto check = [&] {
    const auto device = Download(memory, kDevicePitch * 10);
    for (size_t y = 0; y < 10; ++y) {
      for (size_t x = 0; x < kDevicePitch; ++x) {
        const bool inside = y >= 4 && y < 4 + kHeight && x >= 10 && x < 10 + kWidth;
        const int expected = inside ? host[(y - 4 + 2) * kHostPitch + (x - 10 + 3)] : 0xFF;
        ASSERT_EQ(device[y * kDevicePitch + x], expected) << x << " " << y;
      }
    }
  };
  check();
  const CUstream stream = NewStream();
  ASSERT_CU(CU(cuMemsetD8_v2)(memory, 0xFF, kDevicePitch * 10));
  ASSERT_CU(CU(cuMemcpy2DAsync_v2)(&copy, stream));
  ASSERT_CU(CU(cuStreamSynchronize)(stream));
  check();
  ASSERT_CU(CU(cuMemcpy2DUnaligned_v2)(&copy));
  check();

  CUDA_MEMCPY2D bad = copy;
  bad.srcPitch = 19;  // less than x + width
  EXPECT_EQ(CU(cuMemcpy2D_v2)(&bad), CUDA_ERROR_INVALID_VALUE);
  bad = copy;
  bad.dstY = 6;  // one row past the end
  EXPECT_EQ(CU(cuMemcpy2D_v2)(&bad), CUDA_ERROR_INVALID_VALUE);
  bad = copy;
  bad.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  EXPECT_EQ(CU(cuMemcpy2D_v2)(&bad), CUDA_ERROR_INVALID_HANDLE);
  bad.dstMemoryType = static_cast<CUmemorytype>(99);
  EXPECT_EQ(CU(cuMemcpy2D_v2)(&bad), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemcpy2D_v2)(nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(CopyTest, Box3D) {
  constexpr size_t kPitch = 32, kRows = 6, kSlices = 4;
  const auto host = Pattern(kPitch * kRows * kSlices);
  const CUdeviceptr from = Allocate(host.size()), to = Allocate(host.size());
  ASSERT_CU(CU(cuMemcpyHtoD_v2)(from, host.data(), host.size()));
  ASSERT_CU(CU(cuMemsetD8_v2)(to, 0, host.size()));
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = from;
  copy.srcPitch = kPitch;
  copy.srcHeight = kRows;
  copy.srcXInBytes = 4;
  copy.srcY = 1;
  copy.srcZ = 1;
  copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.dstDevice = to;
  copy.dstPitch = kPitch;
  copy.dstHeight = kRows;
  copy.dstZ = 2;
  copy.WidthInBytes = 9;
  copy.Height = 3;
  copy.Depth = 2;
  const CUstream stream = NewStream();
  ASSERT_CU(CU(cuMemcpy3DAsync_v2)(&copy, stream));
  ASSERT_CU(CU(cuStreamSynchronize)(stream));
  const auto check = [&] {
    const auto device = Download(to, host.size());
    for (size_t z = 0; z < kSlices; ++z) {
      for (size_t y = 0; y < kRows; ++y) {
        for (size_t x = 0; x < kPitch; ++x) {
          const bool inside = x < 9 && y < 3 && z >= 2;
          const int expected = inside ? host[((z - 2 + 1) * kRows + y + 1) * kPitch + x + 4] : 0;
          ASSERT_EQ(device[(z * kRows + y) * kPitch + x], expected) << x << " " << y << " " << z;
        }
      }
    }
  };
  check();
  ASSERT_CU(CU(cuMemsetD8_v2)(to, 0, host.size()));
  ASSERT_CU(CU(cuMemcpy3D_v2)(&copy));
  check();
  CUDA_MEMCPY3D bad = copy;
  bad.srcHeight = 3;  // less than y + height
  EXPECT_EQ(CU(cuMemcpy3D_v2)(&bad), CUDA_ERROR_INVALID_VALUE);
  bad = copy;
  bad.dstZ = 3;
  EXPECT_EQ(CU(cuMemcpy3D_v2)(&bad), CUDA_ERROR_INVALID_VALUE);
  bad = copy;
  bad.srcLOD = 1;
  EXPECT_EQ(CU(cuMemcpy3D_v2)(&bad), CUDA_ERROR_INVALID_VALUE);
  bad = copy;
  bad.srcZ = ~size_t{0};
  EXPECT_EQ(CU(cuMemcpy3D_v2)(&bad), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(CopyTest, FillsOfEveryWidth) {
  const CUdeviceptr memory = Allocate(4096);
  const CUstream stream = NewStream();
  ASSERT_CU(CU(cuMemsetD8_v2)(memory, 0, 4096));
  EXPECT_CU(CU(cuMemsetD8_v2)(memory + 1, 0xAB, 3));
  EXPECT_CU(CU(cuMemsetD16_v2)(memory + 8, 0x1234, 2));
  EXPECT_CU(CU(cuMemsetD32_v2)(memory + 16, 0xDEADBEEF, 2));
  EXPECT_EQ(DownloadAs<uint32_t>(memory, 7),
            (std::vector<uint32_t>{0xABABAB00, 0, 0x12341234, 0, 0xDEADBEEF, 0xDEADBEEF, 0}));
  EXPECT_CU(CU(cuMemsetD8Async)(memory, 1, 4, stream));
  EXPECT_CU(CU(cuMemsetD16Async)(memory + 4, 2, 2, stream));
  EXPECT_CU(CU(cuMemsetD32Async)(memory + 8, 3, 1, stream));
  EXPECT_CU(CU(cuStreamSynchronize)(stream));
  EXPECT_EQ(DownloadAs<uint32_t>(memory, 3), (std::vector<uint32_t>{0x01010101, 0x00020002, 3}));
}

TEST_F(CopyTest, PitchedFillsOfEveryWidth) {
  const CUstream stream = NewStream();
  for (const bool async : {false, true}) {
    const CUdeviceptr memory = Allocate(4 * 32);
    ASSERT_CU(CU(cuMemsetD8_v2)(memory, 0, 4 * 32));
    if (async) {
      EXPECT_CU(CU(cuMemsetD2D8Async)(memory, 32, 0x11, 4, 4, stream));
      EXPECT_CU(CU(cuMemsetD2D16Async)(memory + 4, 32, 0x2222, 2, 4, stream));
      EXPECT_CU(CU(cuMemsetD2D32Async)(memory + 8, 32, 0x33333333, 1, 4, stream));
      EXPECT_CU(CU(cuStreamSynchronize)(stream));
    } else {
      EXPECT_CU(CU(cuMemsetD2D8_v2)(memory, 32, 0x11, 4, 4));
      EXPECT_CU(CU(cuMemsetD2D16_v2)(memory + 4, 32, 0x2222, 2, 4));
      EXPECT_CU(CU(cuMemsetD2D32_v2)(memory + 8, 32, 0x33333333, 1, 4));
    }
    const auto words = DownloadAs<uint32_t>(memory, 32);
    for (size_t y = 0; y < 4; ++y) {
      EXPECT_EQ(words[y * 8 + 0], 0x11111111u);
      EXPECT_EQ(words[y * 8 + 1], 0x22222222u);
      EXPECT_EQ(words[y * 8 + 2], 0x33333333u);
      EXPECT_EQ(words[y * 8 + 3], 0u);
    }
    EXPECT_EQ(CU(cuMemsetD2D8_v2)(memory, 32, 0, 33, 4), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuMemsetD2D32_v2)(memory, 32, 0, 8, 5), CUDA_ERROR_INVALID_VALUE);
    EXPECT_CU(CU(cuMemFree_v2)(memory));
  }
}

TEST_F(CopyTest, BetweenDevices) {
  CUcontext other = nullptr;
  const CUdeviceptr here = Allocate(4096);
  ASSERT_CU(CU(cuCtxCreate_v2)(&other, 0, 1));
  const CUdeviceptr there = Allocate(4096);
  EXPECT_CU(CU(cuMemsetD32_v2)(there, 99, 1024));
  EXPECT_CU(CU(cuMemcpy)(here, there, 4096));
  EXPECT_CU(CU(cuCtxDestroy_v2)(other));
  EXPECT_EQ(DownloadAs<uint32_t>(here, 1024), std::vector<uint32_t>(1024, 99));
}

// Memory that goes away between a copy's submission and its turn is not touched.
TEST_F(CopyTest, MemoryThatWentAwayFailsTheContext) {
  CUdeviceptr window = 0;
  ASSERT_CU(CU(cuMemAddressReserve)(&window, kGranularity, 0, 0, 0));
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle memory = 0;
  ASSERT_CU(CU(cuMemCreate)(&memory, kGranularity, &properties, 0));
  ASSERT_CU(CU(cuMemMap)(window, kGranularity, 0, memory, 0));
  const CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  ASSERT_CU(CU(cuMemSetAccess)(window, kGranularity, &access, 1));
  const CUstream stream = NewStream();
  absl::Notification open;
  EXPECT_CU(CU(cuLaunchHostFunc)(
      stream, [](void* data) { static_cast<absl::Notification*>(data)->WaitForNotification(); },
      &open));
  EXPECT_CU(CU(cuMemsetD32Async)(window, 1, 16, stream));
  EXPECT_CU(CU(cuMemUnmap)(window, kGranularity));
  open.Notify();
  EXPECT_EQ(CU(cuStreamSynchronize)(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_CU(CU(cuMemRelease)(memory));
  EXPECT_CU(CU(cuMemAddressFree)(window, kGranularity));
}

}  // namespace
}  // namespace consort::cpu
