// SPDX-License-Identifier: Apache-2.0
// Managed memory, on devices that have it; the host uses it when their work is done.
// Source: CUDA Driver API reference 13.0, "Memory Management" (cuMemAllocManaged, cuMemFree),
// "Unified Addressing" (cuMemPrefetchAsync, cuMemAdvise), "Stream Management"
// (cuStreamAttachMemAsync), "Library Management" (cuLibraryGetManaged).
#include <algorithm>
#include <numeric>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

class ManagedTest : public ContextTest {
 protected:
  void SetUp() override {
    ContextTest::SetUp();
    if (Attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) == 0)
      GTEST_SKIP() << "the device does not say that it has managed memory";
  }
};

// `count` values in managed memory.
template <typename T>
class ManagedArray {
 public:
  explicit ManagedArray(size_t count, unsigned flags = CU_MEM_ATTACH_GLOBAL) : count_(count) {
    Require(Drv().cuMemAllocManaged(&address_, count * sizeof(T), flags), "cuMemAllocManaged");
  }
  ~ManagedArray() { Drv().cuMemFree_v2(address_); }
  ManagedArray(const ManagedArray&) = delete;
  ManagedArray& operator=(const ManagedArray&) = delete;
  CUdeviceptr address() const { return address_; }
  T* begin() const { return reinterpret_cast<T*>(address_); }
  T* end() const { return begin() + count_; }
  T& operator[](size_t index) const { return begin()[index]; }

 private:
  size_t count_;
  CUdeviceptr address_ = 0;
};

class ManagedVariableTest : public ManagedTest {
 protected:
  static unsigned* Values(CUdeviceptr address) { return reinterpret_cast<unsigned*>(address); }
};

API_TEST(ManagedTest, HostAndKernelsUseTheSameAddress) {
  Module module(kBasicPtx);
  constexpr unsigned kCount = 100000;
  ManagedArray<float> a(kCount), b(kCount, CU_MEM_ATTACH_HOST), sum(kCount);
  for (int round = 1; round <= 3; ++round) {
    std::iota(a.begin(), a.end(), static_cast<float>(round));
    std::fill(b.begin(), b.end(), 0.5f);
    ASSERT_OK(Launch(module.Function("vector_add"), (kCount + 255) / 256, 256, nullptr, a.address(),
                     b.address(), sum.address(), kCount));
    ASSERT_OK(Drv().cuCtxSynchronize());
    for (unsigned index = 0; index < kCount; ++index) {
      ASSERT_EQ(sum[index], static_cast<float>(index) + static_cast<float>(round) + 0.5f) << index;
    }
  }
}

API_TEST(ManagedTest, CopiesAndFillsTakeIt) {
  ManagedArray<unsigned> managed(1000);
  DeviceBuffer buffer(4000);
  buffer.Write(Iota(1000));
  EXPECT_OK(Drv().cuMemcpyDtoD_v2(managed.address(), buffer, 4000));
  EXPECT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(std::vector<unsigned>(managed.begin(), managed.end()), Iota(1000));
  EXPECT_OK(Drv().cuMemsetD32_v2(managed.address() + 40, 7, 990));
  EXPECT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(managed[9], 9u);
  EXPECT_EQ(managed[10], 7u);
  EXPECT_EQ(managed[999], 7u);
  managed[0] = 12345;
  unsigned back[2] = {};
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(back, managed.address(), 8));
  EXPECT_EQ(back[0], 12345u);
  const unsigned there[2] = {3, 4};
  EXPECT_OK(Drv().cuMemcpyHtoD_v2(managed.address() + 8, there, 8));
  EXPECT_OK(Drv().cuCtxSynchronize());  // the copy may still be on its way
  EXPECT_EQ(managed[3], 4u);
}

API_TEST(ManagedTest, PointerIsManaged) {
  ManagedArray<unsigned> managed(100);
  const auto ask = [&](CUpointer_attribute attribute, auto value) {
    EXPECT_OK(Drv().cuPointerGetAttribute(&value, attribute, managed.address() + 4));
    return value;
  };
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_IS_MANAGED, 0u), 1u);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CUdeviceptr{0}), managed.address() + 4);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_HOST_POINTER, static_cast<unsigned*>(nullptr)), &managed[1]);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_OK(Drv().cuMemGetAddressRange_v2(&base, &bytes, managed.address() + 4));
  EXPECT_EQ(base, managed.address());
  EXPECT_EQ(bytes, 400u);
}

API_TEST(ManagedTest, AllocationChecksItsArguments) {
  CUdeviceptr address = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemAllocManaged(nullptr, 4, CU_MEM_ATTACH_GLOBAL));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemAllocManaged(&address, 0, CU_MEM_ATTACH_GLOBAL));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemAllocManaged(&address, 4, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemAllocManaged(&address, 4, CU_MEM_ATTACH_SINGLE));
}

API_TEST(ManagedTest, IsFreedOnce) {
  CUdeviceptr address = 0;
  ASSERT_OK(Drv().cuMemAllocManaged(&address, 4096, CU_MEM_ATTACH_GLOBAL));
  EXPECT_OK(Drv().cuMemFree_v2(address));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemFree_v2(address));
}

API_TEST(ManagedTest, PrefetchAndAdviceAreAboutManagedMemoryOnly) {
  ManagedArray<unsigned> managed(1024);
  DeviceBuffer buffer(4096);
  CUmemLocation there = {};
  there.type = CU_MEM_LOCATION_TYPE_DEVICE;
  there.id = device();
  CUmemLocation host = {};
  host.type = CU_MEM_LOCATION_TYPE_HOST;
  managed[5] = 55;
  EXPECT_OK(Drv().cuMemPrefetchAsync_v2(managed.address(), 4096, there, 0, nullptr));
  EXPECT_OK(Drv().cuMemPrefetchAsync_v2(managed.address(), 4096, host, 0, nullptr));
  EXPECT_OK(Drv().cuMemAdvise_v2(managed.address(), 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, there));
  EXPECT_OK(
      Drv().cuMemAdvise_v2(managed.address(), 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
  EXPECT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(managed[5], 55u);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemPrefetchAsync_v2(buffer, 4096, there, 0, nullptr));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemAdvise_v2(buffer, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, there));
}

API_TEST(ManagedTest, AttachesToAStream) {
  ManagedArray<unsigned> managed(1024);
  DeviceBuffer buffer(4096);
  Stream stream;
  EXPECT_OK(Drv().cuStreamAttachMemAsync(stream.get(), managed.address(), 0, CU_MEM_ATTACH_SINGLE));
  EXPECT_OK(Drv().cuStreamAttachMemAsync(stream.get(), managed.address(), 0, CU_MEM_ATTACH_GLOBAL));
  EXPECT_OK(Drv().cuStreamSynchronize(stream.get()));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuStreamAttachMemAsync(stream.get(), buffer, 0, CU_MEM_ATTACH_SINGLE));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuStreamAttachMemAsync(stream.get(), managed.address(), 0, 8));
}

API_TEST(ManagedVariableTest, HostAndKernelsUseTheSameVariables) {
  Module module(kManagedPtx);
  unsigned* const total = Values(module.Global("total"));
  unsigned* const values = Values(module.Global("values"));
  EXPECT_EQ(*total, 40u);
  EXPECT_EQ(values[299], 0u);
  for (unsigned round = 1; round <= 3; ++round) {
    std::iota(values, values + 300, 1u);
    *total += 1000;
    ASSERT_OK(Launch(module.Function("accumulate"), 1, 256, nullptr));
    ASSERT_OK(Drv().cuCtxSynchronize());
    EXPECT_EQ(*total, 40 + round * (1000 + 256 * 257 / 2 + 2));
    EXPECT_EQ(values[255], 0u);
    EXPECT_EQ(values[256], 257u);
  }
  EXPECT_OK(Drv().cuMemsetD32_v2(module.Global("values"), 9, 300));
  const unsigned two[2] = {20, 30};
  EXPECT_OK(Drv().cuMemcpyHtoD_v2(module.Global("values") + 4, two, sizeof(two)));
  EXPECT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(values[0], 9u);
  EXPECT_EQ(values[2], 30u);
  EXPECT_EQ(values[299], 9u);
}

API_TEST(ManagedVariableTest, LibrariesTellManagedFromOthers) {
  CUlibrary library = nullptr;
  ASSERT_OK(Drv().cuLibraryLoadData(&library, kManagedPtx.data, nullptr, nullptr, 0, nullptr,
                                    nullptr, 0));
  CUdeviceptr managed = 0;
  CUdeviceptr global = 0;
  size_t bytes = 0;
  EXPECT_OK(Drv().cuLibraryGetManaged(&managed, &bytes, library, "values"));
  EXPECT_EQ(bytes, 1200u);
  Values(managed)[7] = 70;
  EXPECT_OK(Drv().cuLibraryGetGlobal(&global, &bytes, library, "values"));
  EXPECT_EQ(global, managed);
  EXPECT_RESULT(CUDA_ERROR_NOT_FOUND,
                Drv().cuLibraryGetManaged(&global, &bytes, library, "ordinary"));
  EXPECT_OK(Drv().cuLibraryGetGlobal(&global, &bytes, library, "ordinary"));
  EXPECT_RESULT(CUDA_ERROR_NOT_FOUND,
                Drv().cuLibraryGetManaged(&global, &bytes, library, "ordinary"));
  EXPECT_RESULT(CUDA_ERROR_NOT_FOUND,
                Drv().cuLibraryGetManaged(&global, &bytes, library, "missing"));
  EXPECT_OK(Drv().cuLibraryUnload(library));
}

API_TEST(ManagedVariableTest, BelongsToItsModule) {
  Module module(kManagedPtx);
  const CUdeviceptr address = module.Global("values");
  CUdeviceptr other_address = 0;
  {
    Module other(kManagedPtx);
    other_address = other.Global("values");
    EXPECT_NE(other_address, address);
    Values(address)[1] = 5;
    Values(other_address)[1] = 6;
    unsigned is_managed = 0;
    EXPECT_OK(Drv().cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                          other_address + 8));
    EXPECT_EQ(is_managed, 1u);
  }
  unsigned is_managed = 0;
  EXPECT_RESULT(
      CUDA_ERROR_INVALID_VALUE,
      Drv().cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, other_address + 8));
  EXPECT_EQ(Values(address)[1], 5u);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemFree_v2(address));
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_OK(Drv().cuMemGetAddressRange_v2(&base, &bytes, address + 100));
  EXPECT_EQ(base, address);
  EXPECT_EQ(bytes, 1200u);
  ASSERT_OK(Launch(module.Function("accumulate"), 1, 300, nullptr));
  ASSERT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(Values(address)[1], 0u);
  EXPECT_EQ(*Values(module.Global("total")), 47u);
}

}  // namespace
}  // namespace consort::tests::api
