// SPDX-License-Identifier: Apache-2.0
// Initialization, versions, and what works before cuInit.
// Source: CUDA Driver API reference 13.0, "Initialization", "Version Management"; "Error Handling"
// for NOT_INITIALIZED ("the CUDA driver has not been initialized with cuInit() or initialization
// has failed"); CUDA C++ Programming Guide, "Environment Variables".
#include <thread>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using InitTest = UninitializedTest;

API_TEST_ALONE(InitTest, SucceedsAndMayBeRepeated) {
  EXPECT_OK(Drv().cuInit(0));
  EXPECT_OK(Drv().cuInit(0));
}

API_TEST_ALONE(InitTest, RefusesFlagsOtherThanZero) {
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuInit(1));
  EXPECT_OK(Drv().cuInit(0)) << "a refused cuInit must not spoil a right one";
}

API_TEST_ALONE(InitTest, SucceedsInEightThreadsAtOnce) {
  RunThreads(8, [](int) {
    EXPECT_OK(Drv().cuInit(0));
    int count = 0;
    EXPECT_OK(Drv().cuDeviceGetCount(&count));
    EXPECT_GE(count, 1);
  });
}

API_TEST_ALONE(InitTest, InOneThreadServesAllThreads) {
  ASSERT_OK(Drv().cuInit(0));
  std::thread([] {
    int count = 0;
    EXPECT_OK(Drv().cuDeviceGetCount(&count));
  }).join();
}

API_TEST_ALONE(InitTest, MakesNoContextCurrent) {
  ASSERT_OK(Drv().cuInit(0));
  CUcontext current = reinterpret_cast<CUcontext>(1);
  EXPECT_OK(Drv().cuCtxGetCurrent(&current));
  EXPECT_EQ(current, nullptr);
}

API_TEST_ALONE_WITH(InitTest, FindsNoDeviceWhenNoneIsVisible, {"CUDA_VISIBLE_DEVICES", ""}) {
  EXPECT_RESULT(CUDA_ERROR_NO_DEVICE, Drv().cuInit(0));
}

API_TEST_ALONE_WITH(InitTest, ShowsOnlyTheVisibleDevice, {"CUDA_VISIBLE_DEVICES", "0"}) {
  ASSERT_OK(Drv().cuInit(0));
  int count = 0;
  EXPECT_OK(Drv().cuDeviceGetCount(&count));
  EXPECT_EQ(count, 1);
}

using VersionTest = UninitializedTest;

API_TEST_ALONE(VersionTest, IsKnownBeforeInit) {
  int version = 0;
  EXPECT_OK(Drv().cuDriverGetVersion(&version));
  EXPECT_GE(version, 13000);
  EXPECT_EQ(version % 10, 0) << "1000 * major + 10 * minor";
}

API_TEST(VersionTest, RefusesNullOutput) {
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuDriverGetVersion(nullptr));
}

API_TEST_ALONE(VersionTest, IsTheSameBeforeAndAfterInit) {
  int before = 0;
  int after = 0;
  ASSERT_OK(Drv().cuDriverGetVersion(&before));
  ASSERT_OK(Drv().cuInit(0));
  ASSERT_OK(Drv().cuDriverGetVersion(&after));
  EXPECT_EQ(before, after);
}

using BeforeInitTest = UninitializedTest;

API_TEST_ALONE(BeforeInitTest, ErrorTextsAreKnown) {
  const char* text = nullptr;
  EXPECT_OK(Drv().cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
  EXPECT_STREQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_OK(Drv().cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
  EXPECT_STREQ(text, "out of memory");
}

API_TEST_ALONE(BeforeInitTest, ProcAddressesAreKnown) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  EXPECT_OK(
      Drv().cuGetProcAddress_v2("cuInit", &function, 2000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  EXPECT_NE(function, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
}

API_TEST_ALONE(BeforeInitTest, DeviceCountIsRefused) {
  int count = 0;
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuDeviceGetCount(&count));
}

API_TEST_ALONE(BeforeInitTest, DeviceGetIsRefused) {
  CUdevice device = 0;
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuDeviceGet(&device, 0));
}

API_TEST_ALONE(BeforeInitTest, DeviceQueriesAreRefused) {
  char name[64];
  int value = 0;
  size_t bytes = 0;
  CUuuid uuid;
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuDeviceGetName(name, sizeof name, 0));
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED,
                Drv().cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuDeviceTotalMem_v2(&bytes, 0));
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuDeviceGetUuid_v2(&uuid, 0));
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuDeviceGetPCIBusId(name, sizeof name, 0));
}

API_TEST_ALONE(BeforeInitTest, PrimaryContextIsRefused) {
  CUcontext context = nullptr;
  unsigned flags = 0;
  int active = 0;
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuDevicePrimaryCtxRetain(&context, 0));
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuDevicePrimaryCtxGetState(0, &flags, &active));
}

API_TEST_ALONE(BeforeInitTest, ContextCallsAreRefused) {
  CUcontext context = nullptr;
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuCtxCreate_v2(&context, 0, 0));
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuCtxGetCurrent(&context));
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuCtxPopCurrent_v2(&context));
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuCtxSynchronize());
}

API_TEST_ALONE(BeforeInitTest, MemoryCallsAreRefused) {
  CUdeviceptr address = 0;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  void* host = nullptr;
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuMemAlloc_v2(&address, 4096));
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuMemGetInfo_v2(&free_bytes, &total_bytes));
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuMemHostAlloc(&host, 4096, 0));
}

API_TEST_ALONE(BeforeInitTest, CopiesAreRefused) {
  unsigned word = 0;
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuMemcpyHtoD_v2(0x1000, &word, sizeof word));
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuMemcpyDtoH_v2(&word, 0x1000, sizeof word));
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuMemsetD8_v2(0x1000, 0, 4));
}

API_TEST_ALONE(BeforeInitTest, StreamAndEventCreationAreRefused) {
  CUstream stream = nullptr;
  CUevent event = nullptr;
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuStreamCreate(&stream, 0));
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuEventCreate(&event, 0));
}

API_TEST_ALONE(BeforeInitTest, ModuleAndLibraryLoadingAreRefused) {
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, Drv().cuModuleLoadData(&module, kBasicPtx.data));
  EXPECT_RESULT(
      CUDA_ERROR_NOT_INITIALIZED,
      Drv().cuLibraryLoadData(&library, kBasicPtx.data, nullptr, nullptr, 0, nullptr, nullptr, 0));
}

API_TEST_ALONE(BeforeInitTest, PointerQueriesAreRefused) {
  int on_stack = 0;
  unsigned type = 0;
  EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED,
                Drv().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                            reinterpret_cast<CUdeviceptr>(&on_stack)));
}

}  // namespace
}  // namespace consort::tests::api
