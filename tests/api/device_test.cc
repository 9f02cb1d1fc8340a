// SPDX-License-Identifier: Apache-2.0
// Devices: enumeration, names, identity, attributes. Source: CUDA Driver API reference 13.0,
// "Device Management" and CUdevice_attribute; CUDA C++ Programming Guide, "Compute Capabilities"
// for the limits that every device shares.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using DeviceTest = DriverTest;

int Count() {
  int count = 0;
  Require(Drv().cuDeviceGetCount(&count), "cuDeviceGetCount");
  return count;
}

API_TEST(DeviceTest, CountIsAtLeastOneAndStable) {
  EXPECT_GE(Count(), 1);
  EXPECT_EQ(Count(), Count());
}

API_TEST(DeviceTest, CountRefusesNullOutput) {
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuDeviceGetCount(nullptr));
}

API_TEST(DeviceTest, EveryOrdinalHasADevice) {
  std::set<CUdevice> devices;
  for (int ordinal = 0; ordinal < Count(); ++ordinal) {
    CUdevice device = -1;
    ASSERT_OK(Drv().cuDeviceGet(&device, ordinal));
    EXPECT_TRUE(devices.insert(device).second) << "two ordinals, one device";
  }
}

API_TEST(DeviceTest, OrdinalPastTheLastIsRefused) {
  CUdevice device = -1;
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, Drv().cuDeviceGet(&device, Count()));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, Drv().cuDeviceGet(&device, 1 << 20));
}

API_TEST(DeviceTest, NegativeOrdinalIsRefused) {
  CUdevice device = -1;
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, Drv().cuDeviceGet(&device, -1));
}

API_TEST(DeviceTest, GetRefusesNullOutput) {
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuDeviceGet(nullptr, 0));
}

API_TEST(DeviceTest, NameIsText) {
  char name[256];
  std::memset(name, 0x7f, sizeof name);
  ASSERT_OK(Drv().cuDeviceGetName(name, sizeof name, device()));
  ASSERT_NE(std::memchr(name, '\0', sizeof name), nullptr);
  EXPECT_GT(std::strlen(name), 0u);
  for (const char* at = name; *at != '\0'; ++at)
    EXPECT_TRUE(*at >= 0x20 && *at < 0x7f) << "not printable";
}

API_TEST(DeviceTest, NameNeverExceedsTheBuffer) {
  char name[16];
  std::memset(name, 0x55, sizeof name);
  EXPECT_ONE_OF(Drv().cuDeviceGetName(name, 4, device()), CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE);
  for (size_t at = 4; at < sizeof name; ++at) EXPECT_EQ(name[at], 0x55) << at;
}

API_TEST(DeviceTest, NameRefusesNullBufferAndUnknownDevice) {
  char name[64];
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuDeviceGetName(nullptr, 64, device()));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, Drv().cuDeviceGetName(name, sizeof name, Count()));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, Drv().cuDeviceGetName(name, sizeof name, -1));
}

API_TEST(DeviceTest, UuidIsTheSameThroughBothVersions) {
  CUuuid old_uuid = {};
  CUuuid new_uuid = {};
  ASSERT_OK(Drv().cuDeviceGetUuid(&old_uuid, device()));
  ASSERT_OK(Drv().cuDeviceGetUuid_v2(&new_uuid, device()));
  // _v2 differs only for a MIG instance, which has a UUID of its own.
  EXPECT_EQ(std::memcmp(&old_uuid, &new_uuid, sizeof old_uuid), 0);
  const CUuuid zero = {};
  EXPECT_NE(std::memcmp(&new_uuid, &zero, sizeof zero), 0);
}

API_TEST(DeviceTest, UuidsDiffer) {
  std::set<std::string> seen;
  for (int ordinal = 0; ordinal < Count(); ++ordinal) {
    CUuuid uuid = {};
    ASSERT_OK(Drv().cuDeviceGetUuid_v2(&uuid, ordinal));
    EXPECT_TRUE(seen.insert(std::string(uuid.bytes, sizeof uuid.bytes)).second);
  }
}

API_TEST(DeviceTest, UuidRefusesNullOutputAndUnknownDevice) {
  CUuuid uuid = {};
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuDeviceGetUuid_v2(nullptr, device()));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, Drv().cuDeviceGetUuid_v2(&uuid, Count()));
}

API_TEST(DeviceTest, TotalMemoryIsPlausible) {
  size_t bytes = 0;
  ASSERT_OK(Drv().cuDeviceTotalMem_v2(&bytes, device()));
  EXPECT_GE(bytes, size_t{64} << 20);
  EXPECT_LT(bytes, size_t{1} << 48);
}

API_TEST(DeviceTest, TotalMemoryRefusesNullOutputAndUnknownDevice) {
  size_t bytes = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuDeviceTotalMem_v2(nullptr, device()));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, Drv().cuDeviceTotalMem_v2(&bytes, Count()));
}

// Rules that hold for every device of compute capability 7.5 and up (Programming Guide, "Technical
// Specifications per Compute Capability"); 0 as the upper bound means none.
API_TEST(DeviceTest, AttributesArePlausible) {
  const struct {
    CUdevice_attribute attribute;
    int least;
    int most;
  } rules[] = {
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64, 64},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647, 2147483647},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535, 65535},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535, 65535},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10, 48 << 10},
      {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 64 << 10, 64 << 10},
      {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32, 32},
      {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 1 << 20, 0},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 32 << 10, 64 << 10},
      {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1, 0},
      {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 1, 4096},
      {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 0, 1},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1, 1024},
      {CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT, 0, 1},
      {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0, 1},
      {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 0, 1},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0, 3},
      {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 1, 4096},
      {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 0, 1},
      {CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 0, 1},
      {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0, 255},
      {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0, 31},
      {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0, 0},
      {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1, 0},
      {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 1, 16384},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 1, 0},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 1024, 2048},
      {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 0, 16},
      {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1, 1},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 7, 99},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0, 9},
      {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 0, 1},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 48 << 10, 1 << 20},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 32 << 10, 64 << 10},
      {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0, 1},
      {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0, 1},
      {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0, 1},
      {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 0, 1},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 48 << 10, 1 << 20},
      {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 0, 1},
      {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0, 1},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 1, 64},
      {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 0, 4096},
      {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0, 1},
      {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 0, 1},
      {CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, 0, 1},
      {CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 0, 1},
      {CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0, 1},
  };
  for (const auto& rule : rules) {
    int value = -1;
    EXPECT_OK(Drv().cuDeviceGetAttribute(&value, rule.attribute, device()))
        << "attribute " << rule.attribute;
    EXPECT_GE(value, rule.least) << "attribute " << rule.attribute;
    if (rule.most != 0) {
      EXPECT_LE(value, rule.most) << "attribute " << rule.attribute;
    }
  }
}

API_TEST(DeviceTest, AttributesAgreeWithEachOther) {
  EXPECT_LE(Attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
            Attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
  EXPECT_LE(Attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
            Attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR));
  EXPECT_LE(Attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
            Attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR));
  EXPECT_EQ(Attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) %
                Attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE),
            0);
  if (Attribute(CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED) == 1 ||
      Attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) == 1) {
    EXPECT_GE(Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 9)
        << "features of compute capability 9.0";
  }
}

API_TEST(DeviceTest, EveryAttributeNumberHasADefinedAnswer) {
  for (int attribute = 1; attribute < CU_DEVICE_ATTRIBUTE_MAX; ++attribute) {
    int value = 0;
    EXPECT_OK(
        Drv().cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(attribute), device()))
        << attribute;
  }
}

API_TEST(DeviceTest, AttributeRefusesUnknownNumber) {
  int value = 0;
  EXPECT_RESULT(
      CUDA_ERROR_INVALID_VALUE,
      Drv().cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(100000), device()));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(0), device()));
}

API_TEST(DeviceTest, AttributeRefusesNullOutputAndUnknownDevice) {
  int value = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuDeviceGetAttribute(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device()));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE,
                Drv().cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, Count()));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE,
                Drv().cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, -1));
}

API_TEST(DeviceTest, ComputeCapabilityAgreesWithAttributes) {
  int major = 0;
  int minor = 0;
  ASSERT_OK(Drv().cuDeviceComputeCapability(&major, &minor, device()));
  EXPECT_EQ(major, Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  EXPECT_EQ(minor, Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
}

API_TEST(DeviceTest, PropertiesAgreeWithAttributes) {
  CUdevprop properties = {};
  ASSERT_OK(Drv().cuDeviceGetProperties(&properties, device()));
  EXPECT_EQ(properties.maxThreadsPerBlock, Attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
  EXPECT_EQ(properties.maxThreadsDim[2], Attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z));
  EXPECT_EQ(properties.maxGridSize[0], Attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X));
  EXPECT_EQ(properties.sharedMemPerBlock,
            Attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK));
  EXPECT_EQ(properties.totalConstantMemory, Attribute(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY));
  EXPECT_EQ(properties.SIMDWidth, Attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE));
  EXPECT_EQ(properties.regsPerBlock, Attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK));
  EXPECT_EQ(properties.clockRate, Attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE));
}

API_TEST(DeviceTest, PciBusIdLeadsBackToTheDevice) {
  for (int ordinal = 0; ordinal < Count(); ++ordinal) {
    char id[32] = {};
    ASSERT_OK(Drv().cuDeviceGetPCIBusId(id, sizeof id, ordinal));
    CUdevice device = -1;
    EXPECT_OK(Drv().cuDeviceGetByPCIBusId(&device, id)) << id;
    EXPECT_EQ(device, ordinal) << id;
  }
}

API_TEST(DeviceTest, PciBusIdAgreesWithAttributes) {
  char id[32] = {};
  char expected[32] = {};
  ASSERT_OK(Drv().cuDeviceGetPCIBusId(id, sizeof id, device()));
  std::snprintf(
      expected, sizeof expected, "%04X:%02X:%02X.0", Attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
      Attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID), Attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID));
  EXPECT_STRCASEEQ(id, expected);
}

API_TEST(DeviceTest, PciBusIdNeverExceedsTheBuffer) {
  char id[32];
  std::memset(id, 0x55, sizeof id);
  EXPECT_ONE_OF(Drv().cuDeviceGetPCIBusId(id, 6, device()), CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE);
  for (size_t at = 6; at < sizeof id; ++at) EXPECT_EQ(id[at], 0x55) << at;
}

API_TEST(DeviceTest, PciBusIdRefusesNullBufferAndUnknownDevice) {
  char id[32];
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuDeviceGetPCIBusId(nullptr, 32, device()));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, Drv().cuDeviceGetPCIBusId(id, sizeof id, Count()));
}

API_TEST(DeviceTest, PeerAccessIsYesOrNo) {
  for (int peer = 0; peer < Count(); ++peer) {
    if (peer == device()) continue;
    int can_access = -1;
    EXPECT_OK(Drv().cuDeviceCanAccessPeer(&can_access, device(), peer));
    EXPECT_TRUE(can_access == 0 || can_access == 1) << can_access;
  }
  int can_access = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE,
                Drv().cuDeviceCanAccessPeer(&can_access, device(), Count()));
}

API_TEST(DeviceTest, ByPciBusIdRefusesWhatIsNoDevice) {
  CUdevice device = -1;
  EXPECT_ONE_OF(Drv().cuDeviceGetByPCIBusId(&device, "fffe:fe:1f.0"), CUDA_ERROR_INVALID_VALUE,
                CUDA_ERROR_INVALID_DEVICE);
  EXPECT_ONE_OF(Drv().cuDeviceGetByPCIBusId(&device, "not a bus id"), CUDA_ERROR_INVALID_VALUE,
                CUDA_ERROR_INVALID_DEVICE);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuDeviceGetByPCIBusId(nullptr, "0000:00:00.0"));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuDeviceGetByPCIBusId(&device, nullptr));
}

}  // namespace
}  // namespace consort::tests::api
