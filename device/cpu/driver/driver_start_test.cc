// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/driver_start_test.cc: before cuInit, and what the environment makes of it. Each
// case runs in a process of its own, as the driver is initialised once.
#include <dlfcn.h>

#include <cstdlib>

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

TEST(DriverStartTest, OtherNamesAreNotExported) {
  // What is not supported is not there, and nothing of ours but the driver API is.
  for (const char* name : {"cuGraphCreate", "cuArrayCreate_v2", "cuMemAllocManaged",
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

TEST(DriverOptionsTest, Defaults) {
  const auto options = ParseOptions("", "");
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->device_memory, std::vector<Bytes>{4 * kGiB});
}

TEST(DriverOptionsTest, LastMemorySizeHoldsForTheRest) {
  const auto options = ParseOptions("3", "8GiB,512MiB");
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->device_memory, (std::vector<Bytes>{8 * kGiB, 512 * kMiB, 512 * kMiB}));
}

TEST(DriverOptionsTest, BoundsAndNonsense) {
  EXPECT_TRUE(ParseOptions("16", "2MiB").ok());
  EXPECT_EQ(ParseOptions("1", "3145728")->device_memory[0], 2 * kMiB);  // whole granules
  for (const char* devices : {"17", "-1", "x", "1x", "1 "}) {
    EXPECT_FALSE(ParseOptions(devices, "").ok()) << devices;
  }
  for (const char* memory :
       {"1MiB", "GiB", "4 GiB", "4GB", "99999999999999TiB", ",4GiB", "4GiB,x"}) {
    EXPECT_FALSE(ParseOptions("2", memory).ok()) << memory;
  }
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
