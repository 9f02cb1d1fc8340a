// SPDX-License-Identifier: Apache-2.0
// Device and page-locked host memory: allocation, release, ranges, registration.
// Source: CUDA Driver API reference 13.0, "Memory Management"; alignment: CUDA C++ Programming
// Guide, "Device Memory Accesses"
// ("any address of a variable residing in global memory or returned by one of the memory allocation
// routines from the driver or runtime API is always aligned to at least 256 bytes").
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

using MemoryTest = ContextTest;

API_TEST(MemoryTest, AllocatedMemoryHoldsData) {
  DeviceBuffer buffer(1000);
  const std::vector<unsigned> data = Iota(250);
  buffer.Write(data);
  EXPECT_EQ(buffer.Read<unsigned>(250), data);
}

API_TEST(MemoryTest, AddressesAreAligned) {
  for (size_t bytes : {1, 3, 100, 255, 257, 4097, 70000}) {
    DeviceBuffer buffer(bytes);
    EXPECT_EQ(buffer.get() % 256, 0u) << bytes;
    EXPECT_NE(buffer.get(), 0u);
  }
}

API_TEST(MemoryTest, AllocationsDoNotOverlap) {
  constexpr int kCount = 64;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers;
  for (int index = 0; index < kCount; ++index) {
    buffers.push_back(std::make_unique<DeviceBuffer>(static_cast<size_t>(100 + index * 37)));
    buffers.back()->Fill(static_cast<unsigned char>(index + 1));
  }
  for (int index = 0; index < kCount; ++index) {
    for (unsigned char byte : buffers[static_cast<size_t>(index)]->Read<unsigned char>(
             static_cast<size_t>(100 + index * 37))) {
      ASSERT_EQ(byte, index + 1);
    }
  }
}

API_TEST(MemoryTest, ZeroBytesAreRefused) {
  CUdeviceptr address = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemAlloc_v2(&address, 0));
}

API_TEST(MemoryTest, NullOutputIsRefused) {
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemAlloc_v2(nullptr, 64));
}

API_TEST(MemoryTest, MoreThanTheDeviceHasIsOutOfMemory) {
  size_t total = 0;
  ASSERT_OK(Drv().cuDeviceTotalMem_v2(&total, device()));
  CUdeviceptr address = 0;
  EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, Drv().cuMemAlloc_v2(&address, total + (size_t{1} << 30)));
  EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, Drv().cuMemAlloc_v2(&address, size_t{1} << 46));
}

API_TEST(MemoryTest, OutOfMemoryIsNotSticky) {
  CUdeviceptr address = 0;
  EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, Drv().cuMemAlloc_v2(&address, size_t{1} << 46));
  DeviceBuffer buffer(64);
  buffer.Fill(3);
  EXPECT_EQ(buffer.ReadWord(), 0x03030303u);
  EXPECT_OK(Drv().cuCtxSynchronize());
}

API_TEST(MemoryTest, FreedMemoryCanBeAllocatedAgain) {
  for (int round = 0; round < 50; ++round) {
    DeviceBuffer buffer(8 * kMiB);
    EXPECT_NE(buffer.get(), 0u);
  }
}

// A block that comes again after its free belongs to its new owner alone.
API_TEST(MemoryTest, MemoryThatComesAgainIsWholeAndApart) {
  constexpr size_t kBytes = 4096;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<DeviceBuffer>> buffers;
    for (int index = 0; index < 6; ++index) {
      buffers.push_back(std::make_unique<DeviceBuffer>(kBytes));
      buffers.back()->Fill(static_cast<unsigned char>(16 * round + index));
    }
    ASSERT_OK(Drv().cuCtxSynchronize());
    for (int index = 0; index < 6; ++index) {
      for (unsigned char byte : buffers[static_cast<size_t>(index)]->Read<unsigned char>(kBytes))
        ASSERT_EQ(byte, (16 * round + index) % 256);
    }
  }
}

// What was freed behind a kernel that still runs is nobody else's until that has ended.
API_TEST(MemoryTest, MemoryFreedBehindAKernelComesAfterIt) {
  Module module(kTimingPtx);
  const CUfunction spin = module.Function("spin");
  constexpr size_t kBytes = 1024;
  Stream busy;
  Stream other;
  for (unsigned round = 0; round < 8; ++round) {
    CUdeviceptr first = 0;
    ASSERT_OK(Drv().cuMemAlloc_v2(&first, kBytes));
    ASSERT_OK(Launch(spin, 1, 1, busy, 2000000ull, first, ~0u));
    ASSERT_OK(Drv().cuMemFree_v2(first));
    CUdeviceptr second = 0;
    ASSERT_OK(Drv().cuMemAlloc_v2(&second, kBytes));
    ASSERT_OK(Drv().cuMemsetD32Async(second, round, kBytes / 4, other));
    ASSERT_OK(Drv().cuCtxSynchronize());
    unsigned words[kBytes / 4] = {};
    ASSERT_OK(Drv().cuMemcpyDtoH_v2(words, second, kBytes));
    for (unsigned word : words) ASSERT_EQ(word, round);
    ASSERT_OK(Drv().cuMemFree_v2(second));
  }
}

API_TEST(MemoryTest, FreeOfWhatWasNeverAllocatedIsRefused) {
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemFree_v2(0x1234567800ull));
}

API_TEST(MemoryTest, FreeTwiceIsRefused) {
  CUdeviceptr address = 0;
  ASSERT_OK(Drv().cuMemAlloc_v2(&address, 4 * kMiB));
  EXPECT_OK(Drv().cuMemFree_v2(address));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemFree_v2(address));
}

API_TEST(MemoryTest, FreeInsideAnAllocationIsRefused) {
  DeviceBuffer buffer(4 * kMiB);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemFree_v2(buffer.get() + 256));
  buffer.Fill(1);
  EXPECT_EQ(buffer.ReadWord(), 0x01010101u) << "the allocation is still there";
}

API_TEST(MemoryTest, FreeOfNullIsDefined) {
  EXPECT_ONE_OF(Drv().cuMemFree_v2(0), CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE);
}

API_TEST(MemoryTest, InfoFollowsAllocation) {
  constexpr size_t kBytes = 64 * kMiB;
  size_t during = 0;
  size_t after = 0;
  size_t total = 0;
  const size_t before = SettledFreeBytes();
  {
    DeviceBuffer buffer(kBytes);
    ASSERT_OK(Drv().cuMemGetInfo_v2(&during, &total));
    EXPECT_LE(before, total);
    EXPECT_LE(during + kBytes / 2, before) << "64 MiB were taken";
  }
  ASSERT_OK(Drv().cuMemGetInfo_v2(&after, &total));
  EXPECT_GE(after, during + kBytes / 2) << "and given back";
}

API_TEST(MemoryTest, InfoTotalIsTheDevicesMemory) {
  size_t free_bytes = 0;
  size_t total = 0;
  size_t device_total = 0;
  ASSERT_OK(Drv().cuMemGetInfo_v2(&free_bytes, &total));
  ASSERT_OK(Drv().cuDeviceTotalMem_v2(&device_total, device()));
  EXPECT_EQ(total, device_total);
  EXPECT_GT(free_bytes, 0u);
}

// ---- pitched memory ----

API_TEST(MemoryTest, PitchIsAtLeastTheWidth) {
  for (size_t width : {1, 100, 512, 513, 4000}) {
    CUdeviceptr address = 0;
    size_t pitch = 0;
    ASSERT_OK(Drv().cuMemAllocPitch_v2(&address, &pitch, width, 16, 4));
    EXPECT_GE(pitch, width);
    EXPECT_EQ(pitch % static_cast<size_t>(Attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT)),
              0u)
        << "meets the alignment for texture binding";
    EXPECT_OK(Drv().cuMemsetD8_v2(address, 1, pitch * 16)) << "all rows are there";
    EXPECT_OK(Drv().cuMemFree_v2(address));
  }
}

API_TEST(MemoryTest, PitchedAllocationRefusesBadArguments) {
  CUdeviceptr address = 0;
  size_t pitch = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemAllocPitch_v2(nullptr, &pitch, 64, 4, 4));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemAllocPitch_v2(&address, nullptr, 64, 4, 4));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemAllocPitch_v2(&address, &pitch, 64, 4, 3))
      << "elements have 4, 8 or 16 bytes";
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemAllocPitch_v2(&address, &pitch, 0, 4, 4));
}

// ---- ranges ----

API_TEST(MemoryTest, AddressRangeIsTheAllocation) {
  DeviceBuffer buffer(4 * kMiB);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_OK(Drv().cuMemGetAddressRange_v2(&base, &bytes, buffer));
  EXPECT_EQ(base, buffer.get());
  EXPECT_EQ(bytes, 4 * kMiB);
}

API_TEST(MemoryTest, AddressRangeOfAnInteriorPointerIsTheSame) {
  DeviceBuffer buffer(4 * kMiB);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  for (size_t offset : {size_t{1}, kMiB, 4 * kMiB - 1}) {
    EXPECT_OK(Drv().cuMemGetAddressRange_v2(&base, &bytes, buffer.get() + offset));
    EXPECT_EQ(base, buffer.get());
    EXPECT_EQ(bytes, 4 * kMiB);
  }
}

API_TEST(MemoryTest, AddressRangeOfASmallAllocationIsExact) {
  DeviceBuffer first(1000);
  DeviceBuffer second(1000);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_OK(Drv().cuMemGetAddressRange_v2(&base, &bytes, second.get() + 500));
  EXPECT_EQ(base, second.get());
  EXPECT_GE(bytes, 1000u);
  EXPECT_LE(bytes, 1024u) << "not the block that several small allocations may share";
}

API_TEST(MemoryTest, AddressRangeTakesNullOutputs) {
  DeviceBuffer buffer(4 * kMiB);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_OK(Drv().cuMemGetAddressRange_v2(&base, nullptr, buffer));
  EXPECT_OK(Drv().cuMemGetAddressRange_v2(nullptr, &bytes, buffer));
  EXPECT_EQ(base, buffer.get());
  EXPECT_EQ(bytes, 4 * kMiB);
}

API_TEST(MemoryTest, AddressRangeOfAnUnknownPointerIsAnError) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_ONE_OF(Drv().cuMemGetAddressRange_v2(&base, &bytes, 0x1234567800ull), CUDA_ERROR_NOT_FOUND,
                CUDA_ERROR_INVALID_VALUE);
}

API_TEST(MemoryTest, AddressRangeOfAFreedPointerIsAnError) {
  CUdeviceptr address = 0;
  ASSERT_OK(Drv().cuMemAlloc_v2(&address, 4 * kMiB));
  ASSERT_OK(Drv().cuMemFree_v2(address));
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_ONE_OF(Drv().cuMemGetAddressRange_v2(&base, &bytes, address), CUDA_ERROR_NOT_FOUND,
                CUDA_ERROR_INVALID_VALUE);
}

// ---- page-locked memory ----

using HostMemoryTest = ContextTest;

API_TEST(HostMemoryTest, AllocatedMemoryIsOrdinaryForTheHost) {
  PinnedBuffer pinned(kMiB);
  std::memset(pinned.get(), 0x5a, kMiB);
  EXPECT_EQ(pinned.as<unsigned char>()[kMiB - 1], 0x5a);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(pinned.get()) % 256, 0u);
}

API_TEST(HostMemoryTest, OldAllocationIsFreedTheSameWay) {
  void* host = nullptr;
  ASSERT_OK(Drv().cuMemAllocHost_v2(&host, 4096));
  ASSERT_NE(host, nullptr);
  std::memset(host, 1, 4096);
  EXPECT_OK(Drv().cuMemFreeHost(host));
}

API_TEST(HostMemoryTest, CopiesBothWays) {
  PinnedBuffer source(4096);
  PinnedBuffer target(4096);
  for (unsigned index = 0; index < 1024; ++index) source.as<unsigned>()[index] = index * 3;
  std::memset(target.get(), 0, 4096);
  DeviceBuffer buffer(4096);
  EXPECT_OK(Drv().cuMemcpyHtoD_v2(buffer, source.get(), 4096));
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(target.get(), buffer, 4096));
  EXPECT_EQ(std::memcmp(source.get(), target.get(), 4096), 0);
}

API_TEST(HostMemoryTest, FlagsAreThoseGiven) {
  for (unsigned flags : {CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP,
                         CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP,
                         CU_MEMHOSTALLOC_WRITECOMBINED | CU_MEMHOSTALLOC_PORTABLE}) {
    PinnedBuffer pinned(4096, flags);
    unsigned found = 0;
    EXPECT_OK(Drv().cuMemHostGetFlags(&found, pinned.get()));
    // With unified addressing every allocation is mapped, whatever was asked.
    EXPECT_EQ(found & flags, flags);
  }
}

API_TEST(HostMemoryTest, FlagsOfOrdinaryMemoryAreRefused) {
  unsigned flags = 0;
  std::vector<char> ordinary(4096);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemHostGetFlags(&flags, ordinary.data()));
}

API_TEST(HostMemoryTest, AllocationRefusesBadArguments) {
  void* host = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemHostAlloc(nullptr, 64, 0));
  EXPECT_ONE_OF(Drv().cuMemHostAlloc(&host, 0, 0), CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS);
  if (host != nullptr) {
    EXPECT_OK(Drv().cuMemFreeHost(host));
  }
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemHostAlloc(&host, 64, 0x8000));
}

API_TEST(HostMemoryTest, FreeOfOrdinaryMemoryIsRefused) {
  std::vector<char> ordinary(4096);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemFreeHost(ordinary.data()));
}

API_TEST(HostMemoryTest, FreeTwiceIsRefused) {
  void* host = nullptr;
  ASSERT_OK(Drv().cuMemHostAlloc(&host, 4096, 0));
  EXPECT_OK(Drv().cuMemFreeHost(host));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemFreeHost(host));
}

API_TEST(HostMemoryTest, DevicePointerOfMappedMemoryIsKnown) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY) == 0)
    GTEST_SKIP() << "the device does not map host memory";
  PinnedBuffer pinned(4096, CU_MEMHOSTALLOC_DEVICEMAP);
  CUdeviceptr address = 0;
  EXPECT_OK(Drv().cuMemHostGetDevicePointer_v2(&address, pinned.get(), 0));
  EXPECT_NE(address, 0u);
  CUdeviceptr interior = 0;
  EXPECT_OK(Drv().cuMemHostGetDevicePointer_v2(&interior, pinned.as<char>() + 100, 0));
  EXPECT_EQ(interior, address + 100);
}

API_TEST(HostMemoryTest, DevicePointerEqualsHostPointerUnderUnifiedAddressing) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) == 0 ||
      Attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY) == 0) {
    GTEST_SKIP() << "the device does not say that addresses are unified";
  }
  PinnedBuffer pinned(4096, CU_MEMHOSTALLOC_PORTABLE);
  CUdeviceptr address = 0;
  EXPECT_OK(Drv().cuMemHostGetDevicePointer_v2(&address, pinned.get(), 0));
  EXPECT_EQ(address, reinterpret_cast<CUdeviceptr>(pinned.get()));
}

API_TEST(HostMemoryTest, DevicePointerRefusesBadArguments) {
  PinnedBuffer pinned(4096, CU_MEMHOSTALLOC_DEVICEMAP);
  std::vector<char> ordinary(4096);
  CUdeviceptr address = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemHostGetDevicePointer_v2(nullptr, pinned.get(), 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemHostGetDevicePointer_v2(&address, pinned.get(), 1));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemHostGetDevicePointer_v2(&address, ordinary.data(), 0));
}

API_TEST(HostMemoryTest, KernelWritesMappedMemory) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY) == 0)
    GTEST_SKIP() << "the device does not map host memory";
  Module module(kBasicPtx);
  PinnedBuffer pinned(4096, CU_MEMHOSTALLOC_DEVICEMAP);
  std::memset(pinned.get(), 0, 4096);
  CUdeviceptr address = 0;
  ASSERT_OK(Drv().cuMemHostGetDevicePointer_v2(&address, pinned.get(), 0));
  EXPECT_OK(Launch(module.Function("fill_index"), 4, 256, nullptr, address, 1024u));
  EXPECT_OK(Drv().cuCtxSynchronize());
  for (unsigned index = 0; index < 1024; ++index) ASSERT_EQ(pinned.as<unsigned>()[index], index);
}

API_TEST(HostMemoryTest, KernelReadsMappedMemory) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY) == 0)
    GTEST_SKIP() << "the device does not map host memory";
  Module module(kBasicPtx);
  PinnedBuffer pinned(4096, CU_MEMHOSTALLOC_DEVICEMAP);
  DeviceBuffer out(4);
  CUdeviceptr address = 0;
  ASSERT_OK(Drv().cuMemHostGetDevicePointer_v2(&address, pinned.get(), 0));
  for (unsigned round = 1; round <= 3; ++round) {
    pinned.as<unsigned>()[0] = round * 1000;
    EXPECT_OK(Launch(module.Function("copy_word"), 1, 1, nullptr, out.get(), address));
    EXPECT_EQ(out.ReadWord(), round * 1000) << "what the host wrote before the launch";
  }
}

// Page-aligned memory of the process, unmapped at the end.
class Pages {
 public:
  explicit Pages(size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED) throw UnexpectedResult{"mmap failed"};
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  void* get() const { return data_; }

 private:
  size_t bytes_;
  void* data_;
};

class RegisteredMemoryTest : public ContextTest {
 protected:
  void SetUp() override {
    ContextTest::SetUp();
    if (Attribute(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED) == 0) {
      GTEST_SKIP() << "the device does not say that host memory can be registered";
    }
  }
};

API_TEST(RegisteredMemoryTest, CopiesBothWays) {
  Pages pages(64 << 10);
  ASSERT_OK(Drv().cuMemHostRegister_v2(pages.get(), 64 << 10, 0));
  std::memset(pages.get(), 0x42, 64 << 10);
  DeviceBuffer buffer(64 << 10);
  EXPECT_OK(Drv().cuMemcpyHtoD_v2(buffer, pages.get(), 64 << 10));
  std::memset(pages.get(), 0, 64 << 10);
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(pages.get(), buffer, 64 << 10));
  EXPECT_EQ(static_cast<unsigned char*>(pages.get())[65535], 0x42);
  EXPECT_OK(Drv().cuMemHostUnregister(pages.get()));
}

API_TEST(RegisteredMemoryTest, KernelWritesItThroughItsDevicePointer) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY) == 0)
    GTEST_SKIP() << "the device does not map host memory";
  Pages pages(4096);
  ASSERT_OK(Drv().cuMemHostRegister_v2(pages.get(), 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
  std::memset(pages.get(), 0, 4096);
  CUdeviceptr address = 0;
  EXPECT_OK(Drv().cuMemHostGetDevicePointer_v2(&address, pages.get(), 0));
  {
    Module module(kBasicPtx);
    EXPECT_OK(Launch(module.Function("store"), 1, 1, nullptr, address, 99u));
    EXPECT_OK(Drv().cuCtxSynchronize());
  }
  EXPECT_EQ(*static_cast<unsigned*>(pages.get()), 99u);
  EXPECT_OK(Drv().cuMemHostUnregister(pages.get()));
}

API_TEST(RegisteredMemoryTest, DevicePointerKeepsContentsAndOffsets) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY) == 0)
    GTEST_SKIP() << "the device does not map host memory";
  constexpr size_t kWords = (1 << 20) / 4;
  Pages pages(kWords * 4);
  auto* words = static_cast<unsigned*>(pages.get());
  for (size_t index = 0; index < kWords; ++index) words[index] = static_cast<unsigned>(index);
  ASSERT_OK(Drv().cuMemHostRegister_v2(words, kWords * 4, CU_MEMHOSTREGISTER_DEVICEMAP));
  CUdeviceptr address = 0;
  CUdeviceptr interior = 0;
  ASSERT_OK(Drv().cuMemHostGetDevicePointer_v2(&address, words, 0));
  EXPECT_OK(Drv().cuMemHostGetDevicePointer_v2(&interior, words + 1000, 0));
  EXPECT_EQ(interior, address + 4000);
  for (size_t index = 0; index < kWords; ++index) ASSERT_EQ(words[index], index);
  {
    Module module(kBasicPtx);
    DeviceBuffer out(4);
    for (unsigned round = 1; round <= 3; ++round) {
      words[1000] = round;
      EXPECT_OK(Launch(module.Function("copy_word"), 1, 1, nullptr, out.get(), interior));
      EXPECT_EQ(out.ReadWord(), round) << "what the host wrote before the launch";
    }
    EXPECT_OK(Launch(module.Function("store"), 1, 1, nullptr, address, 99u));
    EXPECT_OK(Drv().cuCtxSynchronize());
  }
  EXPECT_OK(Drv().cuMemHostUnregister(words));
  EXPECT_EQ(words[0], 99u);
  EXPECT_EQ(words[1000], 3u);
  for (size_t index = 1001; index < kWords; ++index) ASSERT_EQ(words[index], index);
}

API_TEST(RegisteredMemoryTest, CopiesByHostAndDevicePointerMeanTheSameMemory) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY) == 0)
    GTEST_SKIP() << "the device does not map host memory";
  Pages pages(8192);
  auto* words = static_cast<unsigned*>(pages.get());
  ASSERT_OK(Drv().cuMemHostRegister_v2(words, 8192, 0));
  CUdeviceptr address = 0;
  ASSERT_OK(Drv().cuMemHostGetDevicePointer_v2(&address, words, 0));
  const CUdeviceptr host = reinterpret_cast<CUdeviceptr>(words);
  EXPECT_OK(Drv().cuMemsetD32_v2(address, 5, 2048));
  EXPECT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(words[2047], 5u);
  DeviceBuffer buffer(8192);
  buffer.Fill(7);
  Stream stream;
  EXPECT_OK(Drv().cuMemcpyAsync(host + 4, buffer, 4, stream));
  EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(words + 2, buffer, 4, stream));
  EXPECT_OK(Drv().cuMemcpyDtoDAsync_v2(address + 12, buffer, 4, stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(words[0], 5u);
  for (int index = 1; index <= 3; ++index) EXPECT_EQ(words[index], 0x07070707u) << index;
  CUDA_MEMCPY2D rows = {};  // a column of the host's words
  rows.srcMemoryType = CU_MEMORYTYPE_HOST;
  rows.srcHost = words;
  rows.srcPitch = 16;
  rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.dstDevice = buffer;
  rows.dstPitch = 4;
  rows.WidthInBytes = 4;
  rows.Height = 3;
  words[4] = 40;
  words[8] = 80;
  EXPECT_OK(Drv().cuMemcpy2D_v2(&rows));
  EXPECT_EQ(buffer.Read<unsigned>(3), (std::vector<unsigned>{5, 40, 80}));
  EXPECT_OK(Drv().cuMemHostUnregister(words));
}

API_TEST(RegisteredMemoryTest, AFileStaysSharedWithItsOtherMappings) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY) == 0)
    GTEST_SKIP() << "the device does not map host memory";
  // What processes that compute together have: two mappings of a file, gone from its folder later.
  char name[] = "/dev/shm/consort_api_test_XXXXXX";
  const int file = mkstemp(name);
  ASSERT_GE(file, 0);
  constexpr size_t kBytes = 64 << 10;
  constexpr size_t kOffset = 8192;
  ASSERT_EQ(ftruncate(file, kOffset + kBytes), 0);
  const auto map = [&] {
    return static_cast<unsigned*>(
        mmap(nullptr, kOffset + kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  };
  unsigned* const one = map();
  unsigned* const other = map();
  close(file);
  ASSERT_NE(one, MAP_FAILED);
  ASSERT_NE(other, MAP_FAILED);
  unsigned* const registered = one + kOffset / 4;
  ASSERT_OK(Drv().cuMemHostRegister_v2(registered, kBytes, CU_MEMHOSTREGISTER_DEVICEMAP));
  CUdeviceptr address = 0;
  EXPECT_OK(Drv().cuMemHostGetDevicePointer_v2(&address, registered, 0));
  unlink(name);
  {
    Module module(kBasicPtx);
    DeviceBuffer out(4);
    for (unsigned round = 1; round <= 3; ++round) {
      other[kOffset / 4 + 1000] = round;
      EXPECT_OK(Launch(module.Function("copy_word"), 1, 1, nullptr, out.get(), address + 4000));
      EXPECT_EQ(out.ReadWord(), round);
      EXPECT_OK(Launch(module.Function("store"), 1, 1, nullptr, address + 8, 98u + round));
      EXPECT_OK(Drv().cuCtxSynchronize());
      EXPECT_EQ(other[kOffset / 4 + 2], 98u + round);
    }
  }
  EXPECT_OK(Drv().cuMemHostUnregister(registered));
  EXPECT_EQ(one[kOffset / 4 + 2], 101u);
  munmap(one, kOffset + kBytes);
  munmap(other, kOffset + kBytes);
}

API_TEST_ALONE(RegisteredMemoryTest, AForkedChildHasItsOwnCopy) {
  SKIP_ON_ORACLE("the reference does not say what a child finds there");
  Pages pages(8192);
  auto* words = static_cast<unsigned*>(pages.get());
  words[0] = 1;
  words[1500] = 2;
  ASSERT_OK(Drv().cuMemHostRegister_v2(words, 8192, 0));
  CUdeviceptr address = 0;
  // Where the device cannot map it, it is the program's own all the while.
  EXPECT_ONE_OF(Drv().cuMemHostGetDevicePointer_v2(&address, words, 0), CUDA_SUCCESS,
                CUDA_ERROR_NOT_SUPPORTED);
  const ChildOutcome outcome = RunForked(
      [&] {
        if (words[0] != 1 || words[1500] != 2) return 1;
        words[0] = 3;
        return 0;
      },
      20);
  EXPECT_TRUE(outcome.exited && outcome.status == 0) << outcome;
  EXPECT_EQ(words[0], 1u);
  EXPECT_OK(Drv().cuMemHostUnregister(words));
}

API_TEST(RegisteredMemoryTest, TwiceIsRefused) {
  Pages pages(8192);
  ASSERT_OK(Drv().cuMemHostRegister_v2(pages.get(), 8192, 0));
  EXPECT_RESULT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                Drv().cuMemHostRegister_v2(pages.get(), 8192, 0));
  EXPECT_OK(Drv().cuMemHostUnregister(pages.get()));
}

API_TEST(RegisteredMemoryTest, CanBeRegisteredAgainOnceUnregistered) {
  Pages pages(8192);
  for (int round = 0; round < 3; ++round) {
    EXPECT_OK(Drv().cuMemHostRegister_v2(pages.get(), 8192, CU_MEMHOSTREGISTER_PORTABLE));
    EXPECT_OK(Drv().cuMemHostUnregister(pages.get()));
  }
}

API_TEST(RegisteredMemoryTest, UnregisterOfUnregisteredIsRefused) {
  Pages pages(8192);
  EXPECT_RESULT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, Drv().cuMemHostUnregister(pages.get()));
}

API_TEST(RegisteredMemoryTest, RefusesBadArguments) {
  Pages pages(8192);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemHostRegister_v2(nullptr, 8192, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemHostRegister_v2(pages.get(), 0, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemHostRegister_v2(pages.get(), 8192, 0x8000));
  EXPECT_ONE_OF(Drv().cuMemHostUnregister(nullptr), CUDA_ERROR_INVALID_VALUE,
                CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

}  // namespace
}  // namespace consort::tests::api
