// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/driver_test.cc: loading the library; devices, contexts and errors.
#include "device/cpu/driver/driver_test.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include "base/log.h"
#include "device/cpu/driver/limits.h"

namespace consort::cpu {

void* DriverSymbol(const char* name) {
  static void* const library = dlopen(CONSORT_CPU_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  CHECK(library != nullptr) << dlerror();
  void* const symbol = dlsym(library, name);
  CHECK(symbol != nullptr) << name << " is not exported";
  return symbol;
}

std::vector<char> ReadTestData(const std::string& name) {
  std::ifstream file(std::string(CONSORT_CPU_TESTDATA) + "/" + name, std::ios::binary);
  CHECK(file.good()) << name;
  return std::vector<char>((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
}

void DriverTest::SetUp() {
  setenv("CONSORT_CPU_DEVICES", "3", 1);
  setenv("CONSORT_CPU_MEMORY", "256MiB,64MiB", 1);
  setenv("CONSORT_CPU_CACHE", "", 1);  // tests compile what they run
  ASSERT_CU(CU(cuInit)(0));
  ASSERT_CU(CU(cuDevicePrimaryCtxRetain)(&context_, 0));
  ASSERT_CU(CU(cuCtxSetCurrent)(context_));
}

void DriverTest::TearDown() {
  EXPECT_CU(CU(cuCtxSetCurrent)(nullptr));
  EXPECT_CU(CU(cuDevicePrimaryCtxRelease_v2)(0));
}

CUdeviceptr DriverTest::Allocate(size_t bytes) {
  CUdeviceptr address = 0;
  EXPECT_CU(CU(cuMemAlloc_v2)(&address, bytes));
  return address;
}

CUstream DriverTest::NewStream(unsigned int flags) {
  CUstream stream = nullptr;
  EXPECT_CU(CU(cuStreamCreate)(&stream, flags));
  return stream;
}

namespace {

class DeviceTest : public DriverTest {};
class ContextTest : public DriverTest {};

TEST_F(DeviceTest, DevicesAreAsTheEnvironmentSays) {
  int count = 0;
  ASSERT_CU(CU(cuDeviceGetCount)(&count));
  ASSERT_EQ(count, 3);
  const size_t expected_bytes[] = {256 * kMiB, 64 * kMiB, 64 * kMiB};
  std::set<std::string> bus_ids, uuids;
  for (int i = 0; i < count; ++i) {
    CUdevice device = -1;
    ASSERT_CU(CU(cuDeviceGet)(&device, i));
    size_t bytes = 0;
    EXPECT_CU(CU(cuDeviceTotalMem_v2)(&bytes, device));
    EXPECT_EQ(bytes, expected_bytes[i]);
    char name[64];
    EXPECT_CU(CU(cuDeviceGetName)(name, sizeof(name), device));
    EXPECT_STREQ(name, "Consort CPU device");
    char short_name[8];
    EXPECT_CU(CU(cuDeviceGetName)(short_name, sizeof(short_name), device));
    EXPECT_STREQ(short_name, "Consort");
    char bus_id[16];
    EXPECT_CU(CU(cuDeviceGetPCIBusId)(bus_id, sizeof(bus_id), device));
    int bus = 0;
    EXPECT_CU(CU(cuDeviceGetAttribute)(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device));
    EXPECT_EQ(std::stoi(std::string(bus_id).substr(5, 2), nullptr, 16), bus);
    bus_ids.insert(bus_id);
    CUuuid uuid, uuid_v2;
    EXPECT_CU(CU(cuDeviceGetUuid)(&uuid, device));
    EXPECT_CU(CU(cuDeviceGetUuid_v2)(&uuid_v2, device));
    EXPECT_EQ(std::memcmp(&uuid, &uuid_v2, sizeof(uuid)), 0);
    uuids.insert(std::string(uuid.bytes, sizeof(uuid.bytes)));
  }
  EXPECT_EQ(bus_ids.size(), 3u);
  EXPECT_EQ(uuids.size(), 3u);
  CUdevice device;
  EXPECT_EQ(CU(cuDeviceGet)(&device, 3), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(CU(cuDeviceGet)(&device, -1), CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(DeviceTest, EveryAttributeIsAnswered) {
  for (int attribute = 1; attribute < CU_DEVICE_ATTRIBUTE_MAX; ++attribute) {
    int value = -12345;
    EXPECT_CU(CU(cuDeviceGetAttribute)(&value, static_cast<CUdevice_attribute>(attribute), 0));
    EXPECT_NE(value, -12345) << attribute;
  }
  int value = 0;
  EXPECT_EQ(CU(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_MAX, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuDeviceGetAttribute)(&value, static_cast<CUdevice_attribute>(0), 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(DeviceTest, AttributesAreThoseOfCapability90) {
  const auto attribute = [](CUdevice_attribute name) {
    int value = -1;
    EXPECT_CU(CU(cuDeviceGetAttribute)(&value, name, 0));
    return value;
  };
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 9);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR), 0);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE), 32);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN), 232448);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
            static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY), 0);
}

TEST_F(DeviceTest, OtherDevicesArePeers) {
  int can = -1;
  EXPECT_CU(CU(cuDeviceCanAccessPeer)(&can, 0, 1));
  EXPECT_EQ(can, 1);
  EXPECT_CU(CU(cuDeviceCanAccessPeer)(&can, 1, 1));
  EXPECT_EQ(can, 0);
  const auto attribute = [&](CUdevice_P2PAttribute which, CUdevice to) {
    return CU(cuDeviceGetP2PAttribute)(&can, which, 0, to);
  };
  EXPECT_CU(attribute(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 1));
  EXPECT_EQ(can, 1);
  EXPECT_CU(attribute(CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED, 1));
  EXPECT_EQ(can, 0);
  EXPECT_EQ(attribute(CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(attribute(static_cast<CUdevice_P2PAttribute>(99), 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(DeviceTest, ResultsHaveNamesAndTexts) {
  const char* text = nullptr;
  EXPECT_CU(CU(cuGetErrorName)(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
  EXPECT_STREQ(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_CU(CU(cuGetErrorString)(CUDA_ERROR_OUT_OF_MEMORY, &text));
  EXPECT_STREQ(text, "out of memory");
  EXPECT_CU(CU(cuGetErrorName)(CUDA_ERROR_UNKNOWN, &text));
  EXPECT_STREQ(text, "CUDA_ERROR_UNKNOWN");
  EXPECT_EQ(CU(cuGetErrorName)(static_cast<CUresult>(12345), &text), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(text, nullptr);
}

TEST_F(ContextTest, StackIsPerThread) {
  CUcontext current = nullptr;
  std::thread([&] {
    CUcontext other = context_;
    EXPECT_CU(CU(cuCtxGetCurrent)(&other));
    EXPECT_EQ(other, nullptr);
    CUdeviceptr address;
    EXPECT_EQ(CU(cuMemAlloc_v2)(&address, 1), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(CU(cuCtxPopCurrent_v2)(&other), CUDA_ERROR_INVALID_CONTEXT);
  }).join();
  CUcontext made = nullptr;
  ASSERT_CU(CU(cuCtxCreate_v2)(&made, 0, 1));
  EXPECT_CU(CU(cuCtxGetCurrent)(&current));
  EXPECT_EQ(current, made);
  CUdevice device = -1;
  EXPECT_CU(CU(cuCtxGetDevice)(&device));
  EXPECT_EQ(device, 1);
  EXPECT_CU(CU(cuCtxPopCurrent_v2)(&current));
  EXPECT_EQ(current, made);
  EXPECT_CU(CU(cuCtxGetCurrent)(&current));
  EXPECT_EQ(current, context_);
  EXPECT_CU(CU(cuCtxPushCurrent_v2)(made));
  EXPECT_CU(CU(cuCtxDestroy_v2)(made));
  EXPECT_CU(CU(cuCtxGetCurrent)(&current));
  EXPECT_EQ(current, context_);
  EXPECT_EQ(CU(cuCtxDestroy_v2)(made), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(CU(cuCtxSetCurrent)(made), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(ContextTest, PrimaryHandleExistsBeforeAndAfterItIsRetained) {
  unsigned int flags = 1;
  int active = 1;
  EXPECT_CU(CU(cuDevicePrimaryCtxGetState)(1, &flags, &active));
  EXPECT_EQ(active, 0);
  EXPECT_EQ(flags, 0u);
  CUcontext first = nullptr, second = nullptr;
  ASSERT_CU(CU(cuDevicePrimaryCtxRetain)(&first, 1));
  EXPECT_CU(CU(cuDevicePrimaryCtxGetState)(1, &flags, &active));
  EXPECT_EQ(active, 1);
  ASSERT_CU(CU(cuDevicePrimaryCtxRelease_v2)(1));
  // Current before it is retained, as cudart does it.
  EXPECT_CU(CU(cuCtxSetCurrent)(first));
  CUdeviceptr address;
  EXPECT_EQ(CU(cuMemAlloc_v2)(&address, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  ASSERT_CU(CU(cuDevicePrimaryCtxRetain)(&second, 1));
  EXPECT_EQ(first, second);
  EXPECT_CU(CU(cuMemAlloc_v2)(&address, 1));
  EXPECT_CU(CU(cuDevicePrimaryCtxRelease_v2)(1));
  EXPECT_EQ(CU(cuDevicePrimaryCtxRelease_v2)(1), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_CU(CU(cuCtxSetCurrent)(context_));
}

TEST_F(ContextTest, ResetTakesEverythingInIt) {
  size_t free_before = 0, free_after = 0, total = 0;
  ASSERT_CU(CU(cuMemGetInfo_v2)(&free_before, &total));
  Allocate(kMiB);
  const CUstream stream = NewStream();
  CUevent event = nullptr;
  ASSERT_CU(CU(cuEventCreate)(&event, 0));
  ASSERT_CU(CU(cuEventRecord)(event, stream));
  ASSERT_CU(CU(cuDevicePrimaryCtxReset_v2)(0));
  ASSERT_CU(CU(cuMemGetInfo_v2)(&free_after, &total));
  EXPECT_EQ(free_after, free_before);
  EXPECT_EQ(CU(cuStreamQuery)(stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(CU(cuEventQuery)(event), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(ContextTest, LimitsAreKept) {
  size_t value = 0;
  EXPECT_CU(CU(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, 4096));
  EXPECT_CU(CU(cuCtxGetLimit)(&value, CU_LIMIT_STACK_SIZE));
  EXPECT_EQ(value, 4096u);
  EXPECT_EQ(CU(cuCtxGetLimit)(&value, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH),
            CUDA_ERROR_UNSUPPORTED_LIMIT);
  EXPECT_EQ(CU(cuCtxGetLimit)(&value, CU_LIMIT_MAX), CUDA_ERROR_INVALID_VALUE);
  int least = 1, greatest = 1;
  EXPECT_CU(CU(cuCtxGetStreamPriorityRange)(&least, &greatest));
  EXPECT_EQ(least, 0);
  EXPECT_EQ(greatest, -5);
  EXPECT_CU(CU(cuCtxGetStreamPriorityRange)(nullptr, nullptr));
  CUfunc_cache config;
  EXPECT_CU(CU(cuCtxSetCacheConfig)(CU_FUNC_CACHE_PREFER_L1));
  EXPECT_CU(CU(cuCtxGetCacheConfig)(&config));
  EXPECT_EQ(config, CU_FUNC_CACHE_PREFER_L1);
  unsigned int version = 0;
  EXPECT_CU(CU(cuCtxGetApiVersion)(context_, &version));
  EXPECT_EQ(version, 3020u);
}

TEST_F(ContextTest, MadeUpHandlesAreRefused) {
  const uint64_t values[] = {3, 0x1234, ~uint64_t{0}, reinterpret_cast<uint64_t>(&values)};
  for (const uint64_t value : values) {
    EXPECT_EQ(CU(cuStreamSynchronize)(reinterpret_cast<CUstream>(value)),
              CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(CU(cuEventQuery)(reinterpret_cast<CUevent>(value)), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(CU(cuModuleUnload)(reinterpret_cast<CUmodule>(value)), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(CU(cuLibraryUnload)(reinterpret_cast<CUlibrary>(value)), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(CU(cuCtxPushCurrent_v2)(reinterpret_cast<CUcontext>(value)),
              CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(CU(cuMemRelease)(value), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuLaunchKernel)(reinterpret_cast<CUfunction>(value), 1, 1, 1, 1, 1, 1, 0, nullptr,
                                 nullptr, nullptr),
              CUDA_ERROR_INVALID_HANDLE);
  }
  // A handle of one kind is not one of another.
  const CUstream stream = NewStream();
  EXPECT_EQ(CU(cuEventQuery)(reinterpret_cast<CUevent>(stream)), CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace
}  // namespace consort::cpu
