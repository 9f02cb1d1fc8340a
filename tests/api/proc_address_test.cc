// SPDX-License-Identifier: Apache-2.0
// Symbols: every exported name, and cuGetProcAddress in both versions. Source: CUDA Driver API
// reference 13.0, "Driver Entry Point Access" (versions, flags, symbolStatus); cudaTypedefs.h for
// the version in which each signature appeared; exports.txt is the dynamic symbol table of driver
// 580.
#include <cstring>
#include <set>
#include <string>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using ProcAddressTest = UninitializedTest;

struct Found {
  CUresult result;
  void* function;
  CUdriverProcAddressQueryResult status;
};

Found Find(const char* name, int version, cuuint64_t flags = CU_GET_PROC_ADDRESS_DEFAULT) {
  Found found = {CUDA_ERROR_UNKNOWN, reinterpret_cast<void*>(1),
                 static_cast<CUdriverProcAddressQueryResult>(-1)};
  found.result = Drv().cuGetProcAddress_v2(name, &found.function, version, flags, &found.status);
  return found;
}

int DriverVersion() {
  int version = 0;
  Require(Drv().cuDriverGetVersion(&version), "cuDriverGetVersion");
  return version;
}

API_TEST(ProcAddressTest, EveryNameOfTheDriverIsExported) {
  if (IsSubset()) GTEST_SKIP() << "the library is said to export only some";
  const std::string names(reinterpret_cast<const char*>(kExports.data), kExports.bytes);
  int checked = 0;
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = std::min(names.find('\n', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    begin = end + 1;
    if (name.empty()) continue;
    EXPECT_NE(DriverSymbol(name.c_str()), nullptr) << name;
    ++checked;
  }
  EXPECT_EQ(checked, 707);
}

API_TEST(ProcAddressTest, FindsCoreFunctions) {
  const struct {
    const char* name;
    int version;
  } wanted[] = {
      {"cuInit", 2000},
      {"cuDriverGetVersion", 2020},
      {"cuGetErrorName", 6000},
      {"cuGetErrorString", 6000},
      {"cuGetProcAddress", 12000},
      {"cuDeviceGet", 2000},
      {"cuDeviceGetCount", 2000},
      {"cuDeviceGetName", 2000},
      {"cuDeviceGetUuid", 11040},
      {"cuDeviceTotalMem", 3020},
      {"cuDeviceGetAttribute", 2000},
      {"cuDevicePrimaryCtxRetain", 7000},
      {"cuDevicePrimaryCtxRelease", 11000},
      {"cuDevicePrimaryCtxGetState", 7000},
      {"cuCtxCreate", 3020},
      {"cuCtxDestroy", 4000},
      {"cuCtxPushCurrent", 4000},
      {"cuCtxPopCurrent", 4000},
      {"cuCtxSetCurrent", 4000},
      {"cuCtxGetCurrent", 4000},
      {"cuCtxGetDevice", 2000},
      {"cuCtxSynchronize", 2000},
      {"cuCtxGetStreamPriorityRange", 5050},
      {"cuModuleLoadData", 2000},
      {"cuModuleLoadDataEx", 2010},
      {"cuModuleLoadFatBinary", 2000},
      {"cuModuleUnload", 2000},
      {"cuModuleGetFunction", 2000},
      {"cuModuleGetGlobal", 3020},
      {"cuModuleGetLoadingMode", 11070},
      {"cuLibraryLoadData", 12000},
      {"cuLibraryUnload", 12000},
      {"cuLibraryGetKernel", 12000},
      {"cuKernelGetFunction", 12000},
      {"cuKernelGetParamInfo", 12040},
      {"cuFuncGetAttribute", 2020},
      {"cuFuncSetAttribute", 9000},
      {"cuLaunchKernel", 4000},
      {"cuLaunchKernelEx", 11060},
      {"cuLaunchCooperativeKernel", 9000},
      {"cuLaunchHostFunc", 10000},
      {"cuMemAlloc", 3020},
      {"cuMemFree", 3020},
      {"cuMemGetInfo", 3020},
      {"cuMemAllocPitch", 3020},
      {"cuMemGetAddressRange", 3020},
      {"cuMemHostAlloc", 2020},
      {"cuMemHostRegister", 6050},
      {"cuMemHostGetDevicePointer", 3020},
      {"cuMemcpy", 4000},
      {"cuMemcpyAsync", 4000},
      {"cuMemcpyHtoD", 3020},
      {"cuMemcpyDtoH", 3020},
      {"cuMemcpyDtoD", 3020},
      {"cuMemcpy2D", 3020},
      {"cuMemcpy3D", 3020},
      {"cuMemsetD8", 3020},
      {"cuMemsetD32Async", 3020},
      {"cuPointerGetAttribute", 4000},
      {"cuPointerGetAttributes", 7000},
      {"cuStreamCreate", 2000},
      {"cuStreamCreateWithPriority", 5050},
      {"cuStreamDestroy", 4000},
      {"cuStreamSynchronize", 2000},
      {"cuStreamQuery", 2000},
      {"cuStreamWaitEvent", 3020},
      {"cuStreamAddCallback", 5000},
      {"cuEventCreate", 2000},
      {"cuEventRecord", 2000},
      {"cuEventElapsedTime", 2000},
      {"cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050},
      {"cuGetExportTable", 3000},
  };
  for (const auto& one : wanted) {
    const Found found = Find(one.name, one.version);
    EXPECT_RESULT(CUDA_SUCCESS, found.result) << one.name;
    EXPECT_NE(found.function, nullptr) << one.name;
    EXPECT_EQ(found.status, CU_GET_PROC_ADDRESS_SUCCESS) << one.name;
  }
}

API_TEST(ProcAddressTest, FoundFunctionWorks) {
  const Found found = Find("cuDriverGetVersion", 2020);
  ASSERT_NE(found.function, nullptr);
  int version = 0;
  EXPECT_OK(reinterpret_cast<PFN_cuDriverGetVersion_v2020>(found.function)(&version));
  EXPECT_EQ(version, DriverVersion());
}

API_TEST(ProcAddressTest, AnswerIsStable) {
  EXPECT_EQ(Find("cuLaunchKernel", 7000).function, Find("cuLaunchKernel", 7000).function);
  EXPECT_EQ(Find("cuLaunchKernel", 7000).function, Find("cuLaunchKernel", DriverVersion()).function)
      << "the function has had one version only";
}

API_TEST(ProcAddressTest, VersionPicksTheSignature) {
  // Versions of cuCtxCreate in cudaTypedefs.h: 2000, 3020 (_v2), 11040 (_v3), 12050 (_v4).
  void* const first = Find("cuCtxCreate", 2000).function;
  void* const second = Find("cuCtxCreate", 3020).function;
  void* const third = Find("cuCtxCreate", 11040).function;
  void* const fourth = Find("cuCtxCreate", 12050).function;
  EXPECT_EQ(std::set<void*>({first, second, third, fourth}).size(), 4u);
  EXPECT_EQ(Find("cuCtxCreate", 11030).function, second) << "11.3 has _v2 only";
  EXPECT_EQ(Find("cuCtxCreate", 12040).function, third) << "12.4 has _v3";
  EXPECT_EQ(Find("cuCtxCreate", 13000).function, fourth);
}

API_TEST(ProcAddressTest, OldMemoryFunctionsDifferFromTheirSuccessors) {
  for (const char* name :
       {"cuMemAlloc", "cuMemFree", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemGetInfo"}) {
    EXPECT_NE(Find(name, 2000).function, Find(name, 3020).function)
        << name << ": 32-bit sizes before 3.2";
  }
}

API_TEST(ProcAddressTest, CtxSynchronizeOf13TakesAContext) {
  EXPECT_NE(Find("cuCtxSynchronize", 2000).function, Find("cuCtxSynchronize", 13000).function);
  EXPECT_NE(Find("cuCtxGetDevice", 2000).function, Find("cuCtxGetDevice", 13000).function);
}

API_TEST(ProcAddressTest, VersionBeforeTheFunctionIsNotSufficient) {
  const Found found = Find("cuLibraryLoadData", 11000);
  EXPECT_OK(found.result);
  EXPECT_EQ(found.function, nullptr);
  EXPECT_EQ(found.status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

API_TEST(ProcAddressTest, UnknownNameIsNotFound) {
  const Found found = Find("cuNoSuchFunction", 13000);
  EXPECT_OK(found.result);
  EXPECT_EQ(found.function, nullptr);
  EXPECT_EQ(found.status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

API_TEST(ProcAddressTest, SuffixedNameIsNoName) {
  const Found found = Find("cuMemAlloc_v2", 13000);
  EXPECT_OK(found.result);
  EXPECT_EQ(found.function, nullptr);
  EXPECT_EQ(found.status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

API_TEST(ProcAddressTest, StatusIsOptional) {
  void* function = nullptr;
  EXPECT_OK(Drv().cuGetProcAddress_v2("cuInit", &function, 2000, 0, nullptr));
  EXPECT_NE(function, nullptr);
  EXPECT_OK(Drv().cuGetProcAddress_v2("cuNoSuchFunction", &function, 2000, 0, nullptr));
  EXPECT_EQ(function, nullptr);
}

API_TEST(ProcAddressTest, VersionPastTheDriverIsRefused) {
  void* function = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuGetProcAddress_v2("cuInit", &function, DriverVersion() + 1000, 0, nullptr));
}

API_TEST(ProcAddressTest, NullNameOrOutputIsRefused) {
  SKIP_ON_ORACLE("driver 580 follows null names and outputs");
  void* function = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuGetProcAddress_v2(nullptr, &function, 12000, 0, nullptr));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuGetProcAddress_v2("cuInit", nullptr, 12000, 0, nullptr));
}

API_TEST(ProcAddressTest, EmptyNameIsHarmless) {
  // The runtime library asks this first, with version 0; any answer will do that is not a crash.
  void* function = nullptr;
  const CUresult result = Drv().cuGetProcAddress_v2("", &function, 0, 0, nullptr);
  EXPECT_TRUE(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE ||
              result == CUDA_ERROR_NOT_FOUND)
      << ResultName(result);
}

API_TEST(ProcAddressTest, UnknownFlagsAreRefused) {
  void* function = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuGetProcAddress_v2("cuInit", &function, 12000, 0x80, nullptr));
}

API_TEST(ProcAddressTest, LegacyFlagEqualsDefault) {
  for (const char* name :
       {"cuMemcpyHtoD", "cuStreamSynchronize", "cuLaunchKernel", "cuEventRecord", "cuMemAlloc"}) {
    EXPECT_EQ(Find(name, 13000).function,
              Find(name, 13000, CU_GET_PROC_ADDRESS_LEGACY_STREAM).function)
        << name;
  }
}

API_TEST(ProcAddressTest, PerThreadFlagFindsThePerThreadVersion) {
  for (const char* name :
       {"cuMemcpyHtoD", "cuMemcpyDtoHAsync", "cuStreamSynchronize", "cuLaunchKernel",
        "cuEventRecord", "cuMemsetD32", "cuLaunchHostFunc", "cuStreamWaitEvent"}) {
    const Found found = Find(name, 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    EXPECT_NE(found.function, nullptr) << name;
    EXPECT_NE(found.function, Find(name, 13000).function) << name;
  }
}

API_TEST(ProcAddressTest, PerThreadFlagFallsBackWhereStreamsPlayNoPart) {
  for (const char* name : {"cuInit", "cuMemAlloc", "cuDeviceGetCount", "cuModuleLoadData"}) {
    EXPECT_EQ(Find(name, 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM).function,
              Find(name, 13000).function)
        << name;
  }
}

API_TEST(ProcAddressTest, OldVersionFindsFunctions) {
  void* function = nullptr;
  EXPECT_OK(Drv().cuGetProcAddress("cuMemAlloc", &function, 11030, CU_GET_PROC_ADDRESS_DEFAULT));
  EXPECT_EQ(function, Find("cuMemAlloc", 11030).function);
}

API_TEST(ProcAddressTest, OldVersionReportsUnknownNamesAsError) {
  void* function = nullptr;
  EXPECT_RESULT(CUDA_ERROR_NOT_FOUND,
                Drv().cuGetProcAddress("cuNoSuchFunction", &function, 11030, 0));
  EXPECT_RESULT(CUDA_ERROR_NOT_FOUND,
                Drv().cuGetProcAddress("cuLibraryLoadData", &function, 11000, 0));
}

API_TEST(ProcAddressTest, OldVersionRefusesNulls) {
  SKIP_ON_ORACLE("driver 580 follows null names and outputs");
  void* function = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuGetProcAddress(nullptr, &function, 11030, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuGetProcAddress("cuInit", nullptr, 11030, 0));
}

API_TEST(ProcAddressTest, ProcAddressItselfDependsOnTheVersion) {
  EXPECT_NE(Find("cuGetProcAddress", 11030).function, Find("cuGetProcAddress", 12000).function);
}

using ProcAddressContextTest = ContextTest;

API_TEST(ProcAddressContextTest, WholeLaunchWorksThroughFoundFunctions) {
  const auto alloc = reinterpret_cast<PFN_cuMemAlloc_v3020>(Find("cuMemAlloc", 13000).function);
  const auto release = reinterpret_cast<PFN_cuMemFree_v3020>(Find("cuMemFree", 13000).function);
  const auto load =
      reinterpret_cast<PFN_cuModuleLoadData_v2000>(Find("cuModuleLoadData", 13000).function);
  const auto unload =
      reinterpret_cast<PFN_cuModuleUnload_v2000>(Find("cuModuleUnload", 13000).function);
  const auto get =
      reinterpret_cast<PFN_cuModuleGetFunction_v2000>(Find("cuModuleGetFunction", 13000).function);
  const auto launch =
      reinterpret_cast<PFN_cuLaunchKernel_v4000>(Find("cuLaunchKernel", 13000).function);
  const auto to_host =
      reinterpret_cast<PFN_cuMemcpyDtoH_v3020>(Find("cuMemcpyDtoH", 13000).function);
  ASSERT_TRUE(alloc && release && load && unload && get && launch && to_host);
  CUdeviceptr out = 0;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  unsigned value = 4711;
  unsigned result = 0;
  void* params[] = {&out, &value};
  ASSERT_OK(alloc(&out, sizeof value));
  ASSERT_OK(load(&module, kBasicPtx.data));
  ASSERT_OK(get(&function, module, "store"));
  EXPECT_OK(launch(function, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
  EXPECT_OK(to_host(&result, out, sizeof result));
  EXPECT_EQ(result, 4711u);
  EXPECT_OK(unload(module));
  EXPECT_OK(release(out));
}

API_TEST(ProcAddressContextTest, PerThreadFunctionsUseAStreamOfTheThread) {
  // What per-thread functions enqueue on "stream 0" is on CU_STREAM_PER_THREAD.
  const auto set = reinterpret_cast<PFN_cuMemsetD32Async_v7000_ptsz>(
      Find("cuMemsetD32Async", 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM).function);
  ASSERT_NE(set, nullptr);
  DeviceBuffer buffer(64);
  buffer.Fill(0);
  StreamGate gate(CU_STREAM_PER_THREAD);
  EXPECT_OK(set(buffer, 7, 16, nullptr));
  EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(CU_STREAM_PER_THREAD));
  gate.Open();
  EXPECT_OK(Drv().cuStreamSynchronize(CU_STREAM_PER_THREAD));
  EXPECT_EQ(buffer.ReadWord(), 7u);
  EXPECT_FALSE(gate.timed_out());
}

}  // namespace
}  // namespace consort::tests::api
