// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/driver_start_test.cc: before cuInit, and what the environment makes of it. Each
// case runs in a process of its own, as the driver is initialised once.
#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "device/cpu/driver/cuda_api.h"
#include "device/cpu/driver/limits.h"
#include "device/cpu/driver/options.h"
#include "gtest/gtest.h"

namespace consort::cpu {
namespace {

void* Symbol(const char* name) {
  static void* const library = dlopen(CONSORT_CPU_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : dlsym(library, name);
}

#define CU(name) (reinterpret_cast<decltype(&::name)>(Symbol(#name)))

// Exits with 0 if `condition` holds, else with the line.
#define REQUIRE(condition) \
  if (!(condition)) std::_Exit(__LINE__ % 256)

TEST(DriverStartTest, CallsBeforeInitAreRefused) {
  EXPECT_EXIT(
      {
        int value = 0;
        const char* text = nullptr;
        CUcontext context = nullptr;
        CUdeviceptr address = 0;
        REQUIRE(CU(cuDriverGetVersion)(&value) == CUDA_SUCCESS && value == 13000);
        REQUIRE(CU(cuGetErrorName)(CUDA_ERROR_NOT_INITIALIZED, &text) == CUDA_SUCCESS);
        REQUIRE(CU(cuDeviceGetCount)(&value) == CUDA_ERROR_NOT_INITIALIZED);
        REQUIRE(CU(cuCtxGetCurrent)(&context) == CUDA_ERROR_NOT_INITIALIZED);
        REQUIRE(CU(cuMemAlloc_v2)(&address, 4) == CUDA_ERROR_NOT_INITIALIZED);
        REQUIRE(CU(cuStreamSynchronize)(nullptr) == CUDA_ERROR_NOT_INITIALIZED);
        REQUIRE(CU(cuInit)(1) == CUDA_ERROR_INVALID_VALUE);
        REQUIRE(CU(cuInit)(0) == CUDA_SUCCESS);
        REQUIRE(CU(cuInit)(0) == CUDA_SUCCESS);
        REQUIRE(CU(cuMemAlloc_v2)(&address, 4) == CUDA_ERROR_INVALID_CONTEXT);
        REQUIRE(CU(cuDeviceGetCount)(&value) == CUDA_SUCCESS && value == 1);
        size_t bytes = 0;
        REQUIRE(CU(cuDeviceTotalMem_v2)(&bytes, 0) == CUDA_SUCCESS && bytes == 4 * kGiB);
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(DriverStartTest, NoDevicesIsAnError) {
  EXPECT_EXIT(
      {
        setenv("CONSORT_CPU_DEVICES", "0", 1);
        REQUIRE(CU(cuInit)(0) == CUDA_ERROR_NO_DEVICE);
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(DriverStartTest, BadEnvironmentIsAnError) {
  EXPECT_EXIT(
      {
        setenv("CONSORT_CPU_MEMORY", "lots", 1);
        REQUIRE(CU(cuInit)(0) == CUDA_ERROR_INVALID_VALUE);
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0), "CONSORT_CPU_MEMORY");
}

[[noreturn]] void RequireDevicesOf(const char* path) {
  setenv("CONSORT_CPU_DEVICES", path, 1);
  REQUIRE(CU(cuInit)(0) == CUDA_SUCCESS);
  int count = 0, clock[2] = {}, multiprocessors = 0;
  REQUIRE(CU(cuDeviceGetCount)(&count) == CUDA_SUCCESS && count == 2);
  char name[64] = {};
  REQUIRE(CU(cuDeviceGetName)(name, sizeof(name), 0) == CUDA_SUCCESS);
  REQUIRE(std::string_view(name) == "Fast one");
  size_t bytes = 0;
  REQUIRE(CU(cuDeviceTotalMem_v2)(&bytes, 1) == CUDA_SUCCESS && bytes == 32 * kMiB);
  CUuuid uuid = {};
  REQUIRE(CU(cuDeviceGetUuid_v2)(&uuid, 1) == CUDA_SUCCESS);
  REQUIRE(static_cast<unsigned char>(uuid.bytes[0]) == 0xff && uuid.bytes[15] == 0);
  for (const int i : {0, 1}) {
    REQUIRE(CU(cuDeviceGetAttribute)(&clock[i], CU_DEVICE_ATTRIBUTE_CLOCK_RATE, i) == CUDA_SUCCESS);
  }
  REQUIRE(clock[1] == clock[0] / 4);
  REQUIRE(CU(cuDeviceGetAttribute)(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1) ==
              CUDA_SUCCESS &&
          multiprocessors == 1);
  // The memory is the device's own bound, and a copy takes no less than its engine does.
  CUcontext context = nullptr;
  CUdeviceptr address = 0;
  REQUIRE(CU(cuDevicePrimaryCtxRetain)(&context, 1) == CUDA_SUCCESS);
  REQUIRE(CU(cuCtxSetCurrent)(context) == CUDA_SUCCESS);
  REQUIRE(CU(cuMemAlloc_v2)(&address, 33 * kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(CU(cuMemAlloc_v2)(&address, 16 * kMiB) == CUDA_SUCCESS);
  const std::vector<char> data(16 * kMiB);
  const Nanos begin = MonotonicNow();
  REQUIRE(CU(cuMemcpyHtoD_v2)(address, data.data(), data.size()) == CUDA_SUCCESS);
  REQUIRE(MonotonicNow() - begin >= 62 * kMillisecond);
  // A kernel begins late, and events see that.
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUevent events[2] = {};
  REQUIRE(CU(cuModuleLoad)(&module, CONSORT_CPU_TESTDATA "/kernels_default.fatbin") ==
          CUDA_SUCCESS);
  REQUIRE(CU(cuModuleGetFunction)(&function, module, "Count") == CUDA_SUCCESS);
  for (CUevent& event : events) REQUIRE(CU(cuEventCreate)(&event, 0) == CUDA_SUCCESS);
  REQUIRE(CU(cuEventRecord)(events[0], nullptr) == CUDA_SUCCESS);
  REQUIRE(CU(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) ==
          CUDA_SUCCESS);
  REQUIRE(CU(cuEventRecord)(events[1], nullptr) == CUDA_SUCCESS);
  REQUIRE(CU(cuEventSynchronize)(events[1]) == CUDA_SUCCESS);
  float milliseconds = 0;
  REQUIRE(CU(cuEventElapsedTime)(&milliseconds, events[0], events[1]) == CUDA_SUCCESS &&
          milliseconds >= 20);
  std::_Exit(0);
}

TEST(DriverStartTest, DevicesAreAsTheFileSays) {
  const std::string path = ::testing::TempDir() + "/devices";
  std::ofstream(path) << "name=\"Fast one\" memory=64MiB\n"
                         "name=Slow memory=32MiB speed=0.25 cores=1 launch=20ms copy=256MiB "
                         "uuid=ffeeddccbbaa99887766554433221100\n";
  EXPECT_EXIT(RequireDevicesOf(path.c_str()), ::testing::ExitedWithCode(0), "");
}

TEST(DriverStartTest, OtherNamesAreNotExported) {
  // What is not supported is not there, and nothing of ours but the driver API is.
  for (const char* name : {"cuImportExternalMemory", "cuMipmappedArrayCreate", "cuMemAllocManaged",
                           "LZ4_decompress_safe", "LLVMContextCreate"}) {
    void* const library = dlopen(CONSORT_CPU_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    void* const symbol = dlsym(library, name);
    Dl_info info = {};
    // dlsym also looks into what the library depends on.
    if (symbol != nullptr && dladdr(symbol, &info) != 0) {
      EXPECT_STRNE(info.dli_fname, CONSORT_CPU_LIBRARY) << name;
    }
  }
}

std::vector<Bytes> MemoryOf(std::string_view devices, std::string_view memory) {
  std::vector<Bytes> sizes;
  const auto options = ParseOptions(devices, memory);
  EXPECT_TRUE(options.ok()) << options.status();
  if (!options.ok()) return sizes;
  for (const DeviceOptions& device : options->devices) sizes.push_back(device.memory);
  return sizes;
}

TEST(DriverOptionsTest, Defaults) { EXPECT_EQ(MemoryOf("", ""), std::vector<Bytes>{4 * kGiB}); }

TEST(DriverOptionsTest, LastMemorySizeHoldsForTheRest) {
  EXPECT_EQ(MemoryOf("3", "8GiB,512MiB"), (std::vector<Bytes>{8 * kGiB, 512 * kMiB, 512 * kMiB}));
}

TEST(DriverOptionsTest, BoundsAndNonsense) {
  EXPECT_TRUE(ParseOptions("64", "2MiB").ok());
  EXPECT_EQ(MemoryOf("1", "3145728"), std::vector<Bytes>{2 * kMiB});  // whole granules
  for (const char* devices : {"65", "-1", "x", "1x", "1 "}) {
    EXPECT_FALSE(ParseOptions(devices, "").ok()) << devices;
  }
  for (const char* memory :
       {"1MiB", "GiB", "4 GiB", "4GB", "99999999999999TiB", ",4GiB", "4GiB,x"}) {
    EXPECT_FALSE(ParseOptions("2", memory).ok()) << memory;
  }
}

TEST(DriverOptionsTest, AListDescribesEachDevice) {
  const auto options = ParseOptions(R"(
      # two kinds
      name="Big; one" links=18 memory=8GiB uuid=00112233-4455-6677-8899-aabbccddeeff
      speed=0.5 launch=5us copy=2GiB cores=2 host_atomics=no count=2 # like each other
      name=Plain; memory=2MiB)",
                                    "64MiB,32MiB");
  ASSERT_TRUE(options.ok()) << options.status();
  ASSERT_EQ(options->devices.size(), 5u);
  EXPECT_EQ(options->devices[0].name, "Big; one");
  EXPECT_EQ(options->devices[0].memory, 8 * kGiB);
  ASSERT_TRUE(options->devices[0].uuid.has_value());
  EXPECT_EQ(options->devices[0].uuid->at(1), 0x11);
  EXPECT_EQ(options->devices[0].pace.speed, 1);
  EXPECT_TRUE(options->devices[0].host_atomics);
  EXPECT_EQ(options->devices[0].links, 18u);
  for (const int i : {1, 2}) {
    EXPECT_EQ(options->devices[i].name, "Consort CPU device");
    EXPECT_EQ(options->devices[i].memory, 32 * kMiB) << "CONSORT_CPU_MEMORY holds where none is";
    EXPECT_EQ(options->devices[i].pace.speed, 0.5);
    EXPECT_EQ(options->devices[i].pace.launch, 5 * kMicrosecond);
    EXPECT_EQ(options->devices[i].pace.copy_bytes_per_second, 2 * kGiB);
    EXPECT_EQ(options->devices[i].cores, 2u);
    EXPECT_FALSE(options->devices[i].host_atomics);
    EXPECT_EQ(options->devices[i].links, 0u);
    EXPECT_FALSE(options->devices[i].uuid.has_value());
  }
  EXPECT_EQ(options->devices[3].name, "Plain");
  EXPECT_EQ(options->devices[4].memory, 2 * kMiB);
}

TEST(DriverOptionsTest, WhatAListMayNotSay) {
  for (const char* devices :
       {"speed=0",
        "speed=1.5",
        "speed=-1",
        "speed=nan",
        "speed=0.5x",
        "memory=1MiB",
        "memory=",
        "cores=0",
        "cores=1025",
        "host_atomics=maybe",
        "links=19",
        "copy=0",
        "copy=1GB",
        "launch=5",
        "launch=11s",
        "launch=-1us",
        "count=0",
        "count=65",
        "count=33;count=32",
        "colour=red",
        "name=\"\"",
        "name=\"open",
        "name=a stray",
        "uuid=00",
        "uuid=zz112233445566778899aabbccddeeff",
        "uuid=00112233445566778899aabbccddeeff;uuid=00112233445566778899aabbccddeeff"}) {
    EXPECT_FALSE(ParseOptions(devices, "").ok()) << devices;
  }
  EXPECT_TRUE(ParseOptions("count=64", "").ok());
  EXPECT_FALSE(ParseOptions(std::string("name=") + std::string(128, 'x'), "").ok());
  EXPECT_TRUE(ParseOptions(std::string("name=") + std::string(127, 'x'), "").ok());
}

TEST(DriverOptionsTest, TheCacheLiesWhereUsersExpectIt) {
  EXPECT_EQ(CacheDirectory({"/here", "/xdg", "/h"}), "/here");
  EXPECT_EQ(CacheDirectory({"", "/xdg", "/h"}), "");
  EXPECT_EQ(CacheDirectory({nullptr, "/xdg", "/h"}), "/xdg/consort");
  EXPECT_EQ(CacheDirectory({nullptr, "relative", "/h"}), "/h/.cache/consort");
  EXPECT_EQ(CacheDirectory({nullptr, nullptr, "/h"}), "/h/.cache/consort");
  EXPECT_EQ(CacheDirectory({}), "");
}

}  // namespace
}  // namespace consort::cpu
