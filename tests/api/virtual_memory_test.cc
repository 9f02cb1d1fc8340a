// SPDX-License-Identifier: Apache-2.0
// Addresses and memory managed apart. Source: CUDA Driver API reference 13.0, "Virtual Memory
// Management".
#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

class VirtualMemoryTest : public ContextTest {
 protected:
  void SetUp() override {
    ContextTest::SetUp();
    if (Attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0) {
      GTEST_SKIP() << "the device says that it has no virtual memory management";
    }
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device()}};
    access_ = {properties_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    ASSERT_OK(Drv().cuMemGetAllocationGranularity(&granule_, &properties_,
                                                  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  }
  CUmemAllocationProp properties_ = {};
  CUmemAccessDesc access_ = {};
  size_t granule_ = 0;
};

class Reservation {
 public:
  explicit Reservation(size_t bytes) : bytes_(bytes) {
    Require(Drv().cuMemAddressReserve(&address_, bytes, 0, 0, 0), "cuMemAddressReserve");
  }
  ~Reservation() { Drv().cuMemAddressFree(address_, bytes_); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  operator CUdeviceptr() const { return address_; }  // NOLINT

 private:
  CUdeviceptr address_ = 0;
  size_t bytes_;
};

API_TEST(VirtualMemoryTest, MappedMemoryHoldsData) {
  EXPECT_GT(granule_, 0u);
  Reservation range(4 * granule_);
  CUmemGenericAllocationHandle memory = 0;
  ASSERT_OK(Drv().cuMemCreate(&memory, granule_, &properties_, 0));
  ASSERT_OK(Drv().cuMemMap(range, granule_, 0, memory, 0));
  ASSERT_OK(Drv().cuMemSetAccess(range, granule_, &access_, 1));
  const std::vector<unsigned> values = Iota(1024, 5);
  ASSERT_OK(Drv().cuMemcpyHtoD_v2(range, values.data(), 4096));
  std::vector<unsigned> seen(1024);
  ASSERT_OK(Drv().cuMemcpyDtoH_v2(seen.data(), range, 4096));
  EXPECT_EQ(seen, values);
  EXPECT_OK(Drv().cuMemUnmap(range, granule_));
  EXPECT_OK(Drv().cuMemRelease(memory));
}

API_TEST(VirtualMemoryTest, NeighbouringMappingsAreOneBuffer) {
  Reservation range(2 * granule_);
  CUmemGenericAllocationHandle memory[2] = {};
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(Drv().cuMemCreate(&memory[i], granule_, &properties_, 0));
    ASSERT_OK(Drv().cuMemMap(range + i * granule_, granule_, 0, memory[i], 0));
  }
  ASSERT_OK(Drv().cuMemSetAccess(range, 2 * granule_, &access_, 1));
  ASSERT_OK(Drv().cuMemsetD32_v2(range, 17, granule_ / 2));
  std::vector<unsigned> seen(1024);
  ASSERT_OK(Drv().cuMemcpyDtoH_v2(seen.data(), range + granule_ - 2048, 4096));
  EXPECT_EQ(seen, std::vector<unsigned>(1024, 17));
  EXPECT_OK(Drv().cuMemUnmap(range, 2 * granule_));
  for (CUmemGenericAllocationHandle each : memory) EXPECT_OK(Drv().cuMemRelease(each));
}

API_TEST(VirtualMemoryTest, MemoryKeepsItsContentsBetweenMappings) {
  Reservation first(granule_);
  Reservation second(granule_);
  CUmemGenericAllocationHandle memory = 0;
  ASSERT_OK(Drv().cuMemCreate(&memory, granule_, &properties_, 0));
  ASSERT_OK(Drv().cuMemMap(first, granule_, 0, memory, 0));
  ASSERT_OK(Drv().cuMemSetAccess(first, granule_, &access_, 1));
  ASSERT_OK(Drv().cuMemsetD32_v2(first, 99, 16));
  ASSERT_OK(Drv().cuCtxSynchronize());
  ASSERT_OK(Drv().cuMemUnmap(first, granule_));
  ASSERT_OK(Drv().cuMemMap(second, granule_, 0, memory, 0));
  ASSERT_OK(Drv().cuMemSetAccess(second, granule_, &access_, 1));
  unsigned word = 0;
  ASSERT_OK(Drv().cuMemcpyDtoH_v2(&word, second, 4));
  EXPECT_EQ(word, 99u);
  EXPECT_OK(Drv().cuMemUnmap(second, granule_));
  EXPECT_OK(Drv().cuMemRelease(memory));
}

API_TEST(VirtualMemoryTest, AMappingOutlivesItsHandleAndGivesItBack) {
  Reservation range(granule_);
  CUmemGenericAllocationHandle memory = 0;
  ASSERT_OK(Drv().cuMemCreate(&memory, granule_, &properties_, 0));
  ASSERT_OK(Drv().cuMemMap(range, granule_, 0, memory, 0));
  ASSERT_OK(Drv().cuMemSetAccess(range, granule_, &access_, 1));
  ASSERT_OK(Drv().cuMemRelease(memory));
  ASSERT_OK(Drv().cuMemsetD32_v2(range, 3, 16));
  CUmemGenericAllocationHandle again = 0;
  ASSERT_OK(Drv().cuMemRetainAllocationHandle(
      &again, reinterpret_cast<void*>(static_cast<CUdeviceptr>(range))));
  CUmemAllocationProp found = {};
  ASSERT_OK(Drv().cuMemGetAllocationPropertiesFromHandle(&found, again));
  EXPECT_EQ(found.location.id, device());
  EXPECT_OK(Drv().cuMemRelease(again));
  EXPECT_OK(Drv().cuMemUnmap(range, granule_));
}

API_TEST(VirtualMemoryTest, PointerQueriesKnowTheMapping) {
  Reservation range(2 * granule_);
  CUmemGenericAllocationHandle memory = 0;
  ASSERT_OK(Drv().cuMemCreate(&memory, granule_, &properties_, 0));
  ASSERT_OK(Drv().cuMemMap(range, granule_, 0, memory, 0));
  ASSERT_OK(Drv().cuMemSetAccess(range, granule_, &access_, 1));
  CUdeviceptr base = 0;
  size_t bytes = 0;
  ASSERT_OK(Drv().cuMemGetAddressRange_v2(&base, &bytes, range + 100));
  EXPECT_EQ(base, static_cast<CUdeviceptr>(range));
  EXPECT_EQ(bytes, granule_);
  unsigned type = 0;
  ASSERT_OK(Drv().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, range));
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_DEVICE});
  unsigned long long flags = 0;
  CUmemLocation location = properties_.location;
  ASSERT_OK(Drv().cuMemGetAccess(&flags, &location, range));
  EXPECT_EQ(flags, static_cast<unsigned long long>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  // It is not cuMemAlloc's to free.
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemFree_v2(range));
  EXPECT_OK(Drv().cuMemUnmap(range, granule_));
  EXPECT_OK(Drv().cuMemRelease(memory));
}

API_TEST(VirtualMemoryTest, AddressesHaveTheAlignmentAskedFor) {
  std::vector<std::pair<CUdeviceptr, size_t>> reserved;
  for (const size_t alignment : {size_t{0}, size_t{4096}, granule_, 2 * granule_, 32 * granule_}) {
    for (const size_t bytes : {granule_, 3 * granule_}) {
      CUdeviceptr address = 0;
      ASSERT_OK(Drv().cuMemAddressReserve(&address, bytes, alignment, 0, 0));
      EXPECT_EQ(address % std::max(alignment, granule_), 0u);
      for (const auto& [other, other_bytes] : reserved) {
        EXPECT_TRUE(address + bytes <= other || other + other_bytes <= address);
      }
      reserved.emplace_back(address, bytes);
    }
  }
  for (const auto& [address, bytes] : reserved) EXPECT_OK(Drv().cuMemAddressFree(address, bytes));
  CUdeviceptr address = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemAddressReserve(&address, granule_, 3 * granule_, 0, 0));
}

API_TEST(VirtualMemoryTest, RefusesBadArguments) {
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle memory = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemAddressReserve(&address, 100, 0, 0, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemAddressReserve(nullptr, granule_, 0, 0, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemCreate(&memory, 100, &properties_, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemCreate(nullptr, granule_, &properties_, 0));
  EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY,
                Drv().cuMemCreate(&memory, size_t{1} << 46, &properties_, 0));
  Reservation range(granule_);
  ASSERT_OK(Drv().cuMemCreate(&memory, granule_, &properties_, 0));
  // The reference: "offset currently must be zero"; driver 580 says which error.
  EXPECT_RESULT(CUDA_ERROR_NOT_SUPPORTED, Drv().cuMemMap(range, granule_, 4096, memory, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemUnmap(range, 0));
  ASSERT_OK(Drv().cuMemMap(range, granule_, 0, memory, 0));
  // Something is there already, and a reservation in use stays.
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemMap(range, granule_, 0, memory, 0));
  EXPECT_NE(Drv().cuMemAddressFree(range, granule_), CUDA_SUCCESS);
  EXPECT_OK(Drv().cuMemUnmap(range, granule_));
  EXPECT_OK(Drv().cuMemRelease(memory));
}

// Memory of the host, at addresses that device and process share.
class HostVirtualMemoryTest : public ContextTest {
 protected:
  void SetUp() override {
    ContextTest::SetUp();
    if (Attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0) {
      GTEST_SKIP() << "the device says that it does not map memory of the host";
    }
    const int node = Attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {node < 0 ? 0 : node}};
    access_[0] = {{CU_MEM_LOCATION_TYPE_DEVICE, {device()}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    access_[1] = {properties_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    ASSERT_OK(Drv().cuMemGetAllocationGranularity(&granule_, &properties_,
                                                  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  }
  CUmemAllocationProp properties_ = {};
  CUmemAccessDesc access_[2] = {};
  size_t granule_ = 0;
};

API_TEST(HostVirtualMemoryTest, DeviceAndProcessShareIt) {
  CUmemGenericAllocationHandle memory = 0;
  ASSERT_OK(Drv().cuMemCreate(&memory, 2 * granule_, &properties_, 0));
  Reservation range(2 * granule_);
  EXPECT_EQ(range % granule_, 0u);
  ASSERT_OK(Drv().cuMemMap(range, 2 * granule_, 0, memory, 0));
  ASSERT_OK(Drv().cuMemSetAccess(range, 2 * granule_, access_, 2));
  auto* words = reinterpret_cast<volatile unsigned*>(CUdeviceptr{range});
  words[0] = 17;
  words[granule_ / 2 - 1] = 18;  // its last
  unsigned seen[2] = {};
  ASSERT_OK(Drv().cuMemcpyDtoH_v2(&seen[0], range, 4));
  ASSERT_OK(Drv().cuMemcpyDtoH_v2(&seen[1], range + 2 * granule_ - 4, 4));
  EXPECT_EQ(seen[0], 17u);
  EXPECT_EQ(seen[1], 18u);
  Module module(kBasicPtx);
  ASSERT_OK(Launch(module.Function("store"), 1, 1, nullptr, CUdeviceptr{range} + 4, 31337u));
  ASSERT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(words[1], 31337u);
  unsigned long long flags = 0;
  for (const CUmemAccessDesc& access : access_) {
    EXPECT_OK(Drv().cuMemGetAccess(&flags, &access.location, range));
    EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  }
  CUmemAllocationProp properties = {};
  EXPECT_OK(Drv().cuMemGetAllocationPropertiesFromHandle(&properties, memory));
  EXPECT_EQ(properties.location.type, CU_MEM_LOCATION_TYPE_HOST_NUMA);
  EXPECT_OK(Drv().cuMemUnmap(range, 2 * granule_));
  EXPECT_OK(Drv().cuMemRelease(memory));
}

API_TEST(HostVirtualMemoryTest, AMappingHoldsTheMemory) {
  CUmemGenericAllocationHandle memory = 0;
  ASSERT_OK(Drv().cuMemCreate(&memory, granule_, &properties_, 0));
  Reservation first(granule_);
  ASSERT_OK(Drv().cuMemMap(first, granule_, 0, memory, 0));
  ASSERT_OK(Drv().cuMemSetAccess(first, granule_, access_, 2));
  EXPECT_OK(Drv().cuMemRelease(memory));
  *reinterpret_cast<volatile unsigned*>(CUdeviceptr{first}) = 23;
  CUmemGenericAllocationHandle again = 0;
  ASSERT_OK(Drv().cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(CUdeviceptr{first})));
  EXPECT_OK(Drv().cuMemUnmap(first, granule_));
  // The contents stay with the memory, wherever it is mapped next.
  ASSERT_OK(Drv().cuMemMap(first, granule_, 0, again, 0));
  ASSERT_OK(Drv().cuMemSetAccess(first, granule_, access_, 2));
  unsigned seen = 0;
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(&seen, first, 4));
  EXPECT_EQ(seen, 23u);
  EXPECT_OK(Drv().cuMemUnmap(first, granule_));
  EXPECT_OK(Drv().cuMemRelease(again));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemRelease(again));
}

API_TEST(HostVirtualMemoryTest, TwoOfOneLengthGoWhereTheProgramSays) {
  CUmemGenericAllocationHandle memory[2] = {};
  for (auto& each : memory) ASSERT_OK(Drv().cuMemCreate(&each, granule_, &properties_, 0));
  Reservation first(granule_);
  Reservation second(granule_);
  ASSERT_OK(Drv().cuMemMap(first, granule_, 0, memory[1], 0));
  ASSERT_OK(Drv().cuMemMap(second, granule_, 0, memory[0], 0));
  ASSERT_OK(Drv().cuMemSetAccess(first, granule_, access_, 2));
  ASSERT_OK(Drv().cuMemSetAccess(second, granule_, access_, 2));
  ASSERT_OK(Drv().cuMemsetD32_v2(first, 1, 1));
  ASSERT_OK(Drv().cuMemsetD32_v2(second, 2, 1));
  ASSERT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(*reinterpret_cast<volatile unsigned*>(CUdeviceptr{first}), 1u);
  EXPECT_EQ(*reinterpret_cast<volatile unsigned*>(CUdeviceptr{second}), 2u);
  EXPECT_OK(Drv().cuMemUnmap(first, granule_));
  EXPECT_OK(Drv().cuMemUnmap(second, granule_));
  for (const auto each : memory) EXPECT_OK(Drv().cuMemRelease(each));
}

API_TEST(HostVirtualMemoryTest, WhatCannotBeSharedIsRefused) {
  SKIP_ON_ORACLE("NVIDIA's driver maps memory anywhere");
  Reservation before(granule_);
  CUmemGenericAllocationHandle memory = 0;
  ASSERT_OK(Drv().cuMemCreate(&memory, granule_, &properties_, 0));
  EXPECT_RESULT(CUDA_ERROR_NOT_SUPPORTED, Drv().cuMemMap(before, granule_, 0, memory, 0));
  Reservation after(granule_);
  CUmemAllocationProp on_device = properties_;
  on_device.location = access_[0].location;
  CUmemGenericAllocationHandle other = 0;
  ASSERT_OK(Drv().cuMemCreate(&other, granule_, &on_device, 0));
  EXPECT_RESULT(CUDA_ERROR_NOT_SUPPORTED, Drv().cuMemMap(after, granule_, 0, other, 0));
  ASSERT_OK(Drv().cuMemMap(after, granule_, 0, memory, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemMap(after, granule_, 0, memory, 0));
  access_[0].flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  EXPECT_RESULT(CUDA_ERROR_NOT_SUPPORTED, Drv().cuMemSetAccess(after, granule_, access_, 2));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemAddressFree(after, granule_)) << "mapped";
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemFreeHost(reinterpret_cast<void*>(CUdeviceptr{after})));
  EXPECT_OK(Drv().cuMemUnmap(after, granule_));
  EXPECT_OK(Drv().cuMemRelease(memory));
  EXPECT_OK(Drv().cuMemRelease(other));
}

}  // namespace
}  // namespace consort::tests::api
