// SPDX-License-Identifier: Apache-2.0
// Stream-ordered allocation and memory pools. Source: CUDA Driver API reference 13.0, "Stream
// Ordered Memory Allocator"; CUDA C++ Programming Guide, chapter of the same name.
#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

constexpr size_t kBytes = 1 << 20;
// No GPU has so much memory.
constexpr size_t kTooMuch = size_t{1} << 46;

class PoolTest : public ContextTest {
 protected:
  void SetUp() override {
    ContextTest::SetUp();
    if (Attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) == 0) {
      GTEST_SKIP() << "the device says that it has no memory pools";
    }
  }
  CUmemPoolProps Properties() const {
    CUmemPoolProps properties = {};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device();
    return properties;
  }
};

class Pool {
 public:
  explicit Pool(const CUmemPoolProps& properties) {
    Require(Drv().cuMemPoolCreate(&pool_, &properties), "cuMemPoolCreate");
  }
  ~Pool() { Drv().cuMemPoolDestroy(pool_); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  operator CUmemoryPool() const { return pool_; }  // NOLINT
  cuuint64_t Get(CUmemPool_attribute attribute) const {
    cuuint64_t value = 0;
    Require(Drv().cuMemPoolGetAttribute(pool_, attribute, &value), "cuMemPoolGetAttribute");
    return value;
  }

 private:
  CUmemoryPool pool_ = nullptr;
};

API_TEST(PoolTest, AllocatedMemoryIsUsableInItsStream) {
  Stream stream;
  CUdeviceptr memory = 0;
  ASSERT_OK(Drv().cuMemAllocAsync(&memory, kBytes, stream));
  ASSERT_NE(memory, 0u);
  ASSERT_OK(Drv().cuMemsetD32Async(memory, 0x1234, kBytes / 4, stream));
  std::vector<unsigned> seen(kBytes / 4);
  ASSERT_OK(Drv().cuMemcpyDtoHAsync_v2(seen.data(), memory, kBytes, stream));
  ASSERT_OK(Drv().cuMemFreeAsync(memory, stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(seen, std::vector<unsigned>(kBytes / 4, 0x1234));
}

API_TEST(PoolTest, MemoryFreedInAStreamIsReusedInItsOrder) {
  Stream stream;
  // Each step writes what the one before may still read: only the order of the stream keeps them
  // apart.
  DeviceBuffer results(16 * 4);
  for (unsigned i = 0; i < 16; ++i) {
    CUdeviceptr memory = 0;
    ASSERT_OK(Drv().cuMemAllocAsync(&memory, kBytes, stream));
    ASSERT_OK(Drv().cuMemsetD32Async(memory, i, kBytes / 4, stream));
    ASSERT_OK(Drv().cuMemcpyDtoDAsync_v2(results + 4 * i, memory + kBytes - 4, 4, stream));
    ASSERT_OK(Drv().cuMemFreeAsync(memory, stream));
  }
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(results.Read<unsigned>(16), Iota(16));
}

API_TEST(PoolTest, TwoLiveAllocationsDoNotOverlap) {
  Stream stream;
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  ASSERT_OK(Drv().cuMemAllocAsync(&first, kBytes, stream));
  ASSERT_OK(Drv().cuMemAllocAsync(&second, kBytes, stream));
  EXPECT_TRUE(first + kBytes <= second || second + kBytes <= first);
  EXPECT_OK(Drv().cuMemFreeAsync(first, stream));
  EXPECT_OK(Drv().cuMemFreeAsync(second, stream));
}

API_TEST(PoolTest, FreeWithTheSynchronousCall) {
  Stream stream;
  CUdeviceptr memory = 0;
  ASSERT_OK(Drv().cuMemAllocAsync(&memory, kBytes, stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_OK(Drv().cuMemFree_v2(memory));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemFree_v2(memory));
}

API_TEST(PoolTest, RefusesBadArguments) {
  Stream stream;
  CUdeviceptr memory = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemAllocAsync(nullptr, kBytes, stream));
  EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, Drv().cuMemAllocAsync(&memory, kTooMuch, stream));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemFreeAsync(0x10, stream));
  EXPECT_OK(Drv().cuMemFreeAsync(0, stream));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemPoolCreate(nullptr, nullptr));
  CUmemoryPool pool = nullptr;
  CUmemPoolProps properties = Properties();
  properties.location.id = 1 << 20;
  EXPECT_NE(Drv().cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
  EXPECT_RESULT(
      CUDA_ERROR_INVALID_VALUE,
      Drv().cuMemPoolGetAttribute(Pool(Properties()), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, nullptr));
}

API_TEST(PoolTest, AfterARefusalTheNextAllocationSucceeds) {
  Stream stream;
  CUdeviceptr memory = 0;
  EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, Drv().cuMemAllocAsync(&memory, kTooMuch, stream));
  ASSERT_OK(Drv().cuMemAllocAsync(&memory, kBytes, stream));
  EXPECT_OK(Drv().cuMemFreeAsync(memory, stream));
}

API_TEST(PoolTest, TheDefaultPoolServesUntilAnotherIsSet) {
  CUmemoryPool standard = nullptr;
  CUmemoryPool current = nullptr;
  ASSERT_OK(Drv().cuDeviceGetDefaultMemPool(&standard, device()));
  ASSERT_OK(Drv().cuDeviceGetMemPool(&current, device()));
  EXPECT_EQ(current, standard);
  Pool own(Properties());
  ASSERT_OK(Drv().cuDeviceSetMemPool(device(), own));
  ASSERT_OK(Drv().cuDeviceGetMemPool(&current, device()));
  EXPECT_EQ(current, static_cast<CUmemoryPool>(own));
  Stream stream;
  CUdeviceptr memory = 0;
  ASSERT_OK(Drv().cuMemAllocAsync(&memory, kBytes, stream));
  EXPECT_GE(own.Get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), kBytes);
  CUmemoryPool of_pointer = nullptr;
  ASSERT_OK(Drv().cuPointerGetAttribute(&of_pointer, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory));
  EXPECT_EQ(of_pointer, static_cast<CUmemoryPool>(own));
  EXPECT_OK(Drv().cuMemFreeAsync(memory, stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_OK(Drv().cuDeviceSetMemPool(device(), standard));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemPoolDestroy(standard));
}

// Pools by location and type of memory: of a device's own memory they are the device's.
API_TEST(PoolTest, LocationsNameTheDevicesPools) {
  CUmemLocation location = Properties().location;
  CUmemoryPool by_device = nullptr, by_location = nullptr;
  ASSERT_OK(Drv().cuDeviceGetDefaultMemPool(&by_device, device()));
  EXPECT_OK(Drv().cuMemGetDefaultMemPool(&by_location, &location, CU_MEM_ALLOCATION_TYPE_PINNED));
  EXPECT_EQ(by_location, by_device);
  {
    const Pool pool(Properties());
    EXPECT_OK(Drv().cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
    EXPECT_OK(Drv().cuDeviceGetMemPool(&by_device, device()));
    EXPECT_EQ(by_device, pool);
    EXPECT_OK(Drv().cuMemGetMemPool(&by_location, &location, CU_MEM_ALLOCATION_TYPE_PINNED));
    EXPECT_EQ(by_location, pool);
    CUmemLocation host = {};
    host.type = CU_MEM_LOCATION_TYPE_HOST;
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                  Drv().cuMemSetMemPool(&host, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                  Drv().cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_MANAGED, pool));
    ASSERT_OK(Drv().cuMemGetDefaultMemPool(&by_device, &location, CU_MEM_ALLOCATION_TYPE_PINNED));
    ASSERT_OK(Drv().cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_PINNED, by_device));
  }
  EXPECT_RESULT(
      CUDA_ERROR_INVALID_VALUE,
      Drv().cuMemGetDefaultMemPool(&by_location, &location, CU_MEM_ALLOCATION_TYPE_INVALID));
  CUmemLocation nowhere = {};
  nowhere.type = CU_MEM_LOCATION_TYPE_NONE;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemGetMemPool(&by_location, &nowhere, CU_MEM_ALLOCATION_TYPE_PINNED));
  int count = 0;
  EXPECT_OK(Drv().cuDeviceGetCount(&count));
  location.id = count;
  EXPECT_RESULT(
      CUDA_ERROR_INVALID_DEVICE,
      Drv().cuMemGetDefaultMemPool(&by_location, &location, CU_MEM_ALLOCATION_TYPE_PINNED));
}

API_TEST(PoolTest, CountersFollowUse) {
  Pool pool(Properties());
  cuuint64_t keep_all = UINT64_MAX;
  ASSERT_OK(Drv().cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_all));
  EXPECT_EQ(pool.Get(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), keep_all);
  EXPECT_EQ(pool.Get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0u);
  Stream stream;
  CUdeviceptr memory = 0;
  ASSERT_OK(Drv().cuMemAllocFromPoolAsync(&memory, kBytes, pool, stream));
  EXPECT_EQ(pool.Get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), kBytes);
  EXPECT_GE(pool.Get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), kBytes);
  ASSERT_OK(Drv().cuMemFreeAsync(memory, stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(pool.Get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0u);
  EXPECT_GE(pool.Get(CU_MEMPOOL_ATTR_USED_MEM_HIGH), kBytes);
  // The threshold lets it keep what was freed; trimming does not.
  EXPECT_GE(pool.Get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), kBytes);
  ASSERT_OK(Drv().cuMemPoolTrimTo(pool, 0));
  EXPECT_EQ(pool.Get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0u);
  cuuint64_t reset = 0;
  ASSERT_OK(Drv().cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &reset));
  EXPECT_EQ(pool.Get(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 0u);
  cuuint64_t not_zero = 5;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &not_zero));
}

API_TEST(PoolTest, WithoutAThresholdSynchronisingGivesMemoryBack) {
  Pool pool(Properties());
  Stream stream;
  CUdeviceptr memory = 0;
  ASSERT_OK(Drv().cuMemAllocFromPoolAsync(&memory, kBytes, pool, stream));
  ASSERT_OK(Drv().cuMemFreeAsync(memory, stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(pool.Get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0u);
}

API_TEST(PoolTest, ADestroyedPoolsMemoryLivesUntilItIsFreed) {
  Stream stream;
  CUdeviceptr memory = 0;
  {
    Pool pool(Properties());
    ASSERT_OK(Drv().cuMemAllocFromPoolAsync(&memory, kBytes, pool, stream));
  }
  ASSERT_OK(Drv().cuMemsetD8Async(memory, 1, kBytes, stream));
  EXPECT_OK(Drv().cuMemFreeAsync(memory, stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
}

API_TEST(PoolTest, AnotherStreamMayFree) {
  Stream one;
  Stream other;
  Event allocated;
  CUdeviceptr memory = 0;
  ASSERT_OK(Drv().cuMemAllocAsync(&memory, kBytes, one));
  ASSERT_OK(Drv().cuEventRecord(allocated, one));
  ASSERT_OK(Drv().cuStreamWaitEvent(other, allocated, 0));
  ASSERT_OK(Drv().cuMemsetD8Async(memory, 7, kBytes, other));
  ASSERT_OK(Drv().cuMemFreeAsync(memory, other));
  EXPECT_OK(Drv().cuStreamSynchronize(other));
}

API_TEST(PoolTest, TheOwnDeviceHasAccess) {
  Pool pool(Properties());
  CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, {device()}};
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  ASSERT_OK(Drv().cuMemPoolGetAccess(&flags, pool, &location));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  const CUmemAccessDesc access = {location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  EXPECT_OK(Drv().cuMemPoolSetAccess(pool, &access, 1));
}

}  // namespace
}  // namespace consort::tests::api
