// SPDX-License-Identifier: Apache-2.0
// What the driver says of a pointer. Source: CUDA Driver API reference 13.0, "Unified Addressing":
// cuPointerGetAttribute fails with INVALID_VALUE on memory that it does not know,
// cuPointerGetAttributes succeeds and writes NULL values.
#include <vector>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using PointerTest = ContextTest;

template <typename T>
T Ask(CUpointer_attribute attribute, CUdeviceptr pointer) {
  T value = {};
  Require(Drv().cuPointerGetAttribute(&value, attribute, pointer), "cuPointerGetAttribute");
  return value;
}

CUdeviceptr Unified(const void* host) { return reinterpret_cast<CUdeviceptr>(host); }

API_TEST(PointerTest, DeviceMemoryIsDeviceMemory) {
  DeviceBuffer buffer(4096);
  EXPECT_EQ(Ask<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, buffer),
            static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  EXPECT_EQ(Ask<int>(CU_POINTER_ATTRIBUTE_IS_MANAGED, buffer) & 0xff, 0);
}

API_TEST(PointerTest, DeviceMemoryBelongsToTheCurrentContext) {
  DeviceBuffer buffer(4096);
  EXPECT_EQ(Ask<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, buffer), context());
  EXPECT_EQ(Ask<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, buffer), device());
}

API_TEST(PointerTest, DevicePointerOfADevicePointerIsItself) {
  DeviceBuffer buffer(4096);
  EXPECT_EQ(Ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, buffer), buffer.get());
  EXPECT_EQ(Ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, buffer.get() + 17),
            buffer.get() + 17);
}

API_TEST(PointerTest, DeviceMemoryHasNoHostPointer) {
  DeviceBuffer buffer(4096);
  void* host = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, buffer));
}

API_TEST(PointerTest, RangeIsTheAllocation) {
  DeviceBuffer buffer(4 << 20);
  EXPECT_EQ(Ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, buffer.get() + 1000),
            buffer.get());
  EXPECT_EQ(Ask<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, buffer.get() + 1000), size_t{4} << 20);
}

API_TEST(PointerTest, BufferIdsAreUniqueAndNotReused) {
  unsigned long long last = 0;
  for (int round = 0; round < 4; ++round) {
    DeviceBuffer buffer(4096);
    const auto id = Ask<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, buffer);
    EXPECT_NE(id, last);
    EXPECT_EQ(id, Ask<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, buffer.get() + 8));
    last = id;
  }
}

API_TEST(PointerTest, SyncMemopsCanBeSet) {
  DeviceBuffer buffer(4096);
  unsigned on = 1;
  EXPECT_OK(Drv().cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, buffer));
  EXPECT_EQ(Ask<int>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, buffer) & 0xff, 1);
}

API_TEST(PointerTest, PinnedMemoryIsHostMemory) {
  PinnedBuffer pinned(4096);
  const CUdeviceptr pointer = Unified(pinned.get());
  EXPECT_EQ(Ask<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer),
            static_cast<unsigned>(CU_MEMORYTYPE_HOST));
  EXPECT_EQ(Ask<void*>(CU_POINTER_ATTRIBUTE_HOST_POINTER, pointer), pinned.get());
  EXPECT_EQ(Ask<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, pointer), context());
  EXPECT_EQ(Ask<int>(CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer) & 0xff, 0);
}

API_TEST(PointerTest, PinnedMemoryHasADevicePointer) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY) == 0)
    GTEST_SKIP() << "the device does not map host memory";
  PinnedBuffer pinned(4096);
  CUdeviceptr address = 0;
  ASSERT_OK(Drv().cuMemHostGetDevicePointer_v2(&address, pinned.get(), 0));
  EXPECT_EQ(Ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, Unified(pinned.get())), address);
}

API_TEST(PointerTest, RegisteredMemoryIsHostMemory) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED) == 0)
    GTEST_SKIP() << "host memory cannot be registered";
  std::vector<char> ordinary(64 << 10);
  ASSERT_OK(Drv().cuMemHostRegister_v2(ordinary.data(), ordinary.size(), 0));
  const CUdeviceptr pointer = Unified(ordinary.data() + 5000);
  EXPECT_EQ(Ask<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer),
            static_cast<unsigned>(CU_MEMORYTYPE_HOST));
  EXPECT_EQ(Ask<void*>(CU_POINTER_ATTRIBUTE_HOST_POINTER, pointer), ordinary.data() + 5000);
  EXPECT_OK(Drv().cuMemHostUnregister(ordinary.data()));
  unsigned type = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer));
}

API_TEST(PointerTest, OrdinaryHostMemoryIsUnknown) {
  std::vector<char> ordinary(4096);
  unsigned type = 0;
  CUcontext owner = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                            Unified(ordinary.data())));
  EXPECT_RESULT(
      CUDA_ERROR_INVALID_VALUE,
      Drv().cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, Unified(ordinary.data())));
}

API_TEST(PointerTest, FreedMemoryIsUnknown) {
  CUdeviceptr address = 0;
  ASSERT_OK(Drv().cuMemAlloc_v2(&address, 4 << 20));
  ASSERT_OK(Drv().cuMemFree_v2(address));
  unsigned type = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
}

API_TEST(PointerTest, SeveralAttributesAtOnceAgreeWithSingleOnes) {
  DeviceBuffer buffer(4 << 20);
  CUcontext owner = nullptr;
  unsigned type = 0;
  CUdeviceptr pointer = 0;
  CUdeviceptr start = 0;
  size_t bytes = 0;
  int ordinal = -1;
  CUpointer_attribute attributes[] = {
      CU_POINTER_ATTRIBUTE_CONTEXT,        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
      CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
      CU_POINTER_ATTRIBUTE_RANGE_SIZE,     CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* values[] = {&owner, &type, &pointer, &start, &bytes, &ordinal};
  EXPECT_OK(Drv().cuPointerGetAttributes(6, attributes, values, buffer.get() + 64));
  EXPECT_EQ(owner, context());
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  EXPECT_EQ(pointer, buffer.get() + 64);
  EXPECT_EQ(start, buffer.get());
  EXPECT_EQ(bytes, size_t{4} << 20);
  EXPECT_EQ(ordinal, device());
}

API_TEST(PointerTest, SeveralAttributesOfOrdinaryMemoryAreNull) {
  std::vector<char> ordinary(4096);
  CUcontext owner = reinterpret_cast<CUcontext>(1);
  unsigned type = 77;
  CUdeviceptr pointer = 77;
  void* host = ordinary.data();
  CUpointer_attribute attributes[] = {
      CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
      CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER};
  void* values[] = {&owner, &type, &pointer, &host};
  EXPECT_OK(Drv().cuPointerGetAttributes(4, attributes, values, Unified(ordinary.data())));
  EXPECT_EQ(owner, nullptr);
  EXPECT_EQ(type, 0u);
  if (Attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS) == 0) {
    EXPECT_EQ(pointer, 0u);
  }
}

API_TEST(PointerTest, RefusesNullOutputsAndUnknownAttributes) {
  DeviceBuffer buffer(64);
  int value = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, buffer));
  EXPECT_RESULT(
      CUDA_ERROR_INVALID_VALUE,
      Drv().cuPointerGetAttribute(&value, static_cast<CUpointer_attribute>(4711), buffer));
}

API_TEST(PointerTest, PointersOfAnotherContextNameThatContext) {
  CreatedContext other(device());
  CUdeviceptr address = 0;
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(other));
  ASSERT_OK(Drv().cuMemAlloc_v2(&address, 4096));
  ASSERT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
  EXPECT_EQ(Ask<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, address), other.get());
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(other));
  EXPECT_OK(Drv().cuMemFree_v2(address));
  ASSERT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
}

}  // namespace
}  // namespace consort::tests::api
