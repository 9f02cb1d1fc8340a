// SPDX-License-Identifier: Apache-2.0
// Libraries and kernels, which belong to no context. Source: CUDA Driver API reference 13.0,
// "Library Management"; kernel parameters: "cuKernelGetParamInfo ... If paramIndex is not within
// the range, CUDA_ERROR_INVALID_VALUE".
#include <set>
#include <string>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

class Library {
 public:
  explicit Library(const Image& image) {
    Require(
        Drv().cuLibraryLoadData(&library_, image.data, nullptr, nullptr, 0, nullptr, nullptr, 0),
        "cuLibraryLoadData");
  }
  ~Library() { Drv().cuLibraryUnload(library_); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  operator CUlibrary() const { return library_; }  // NOLINT
  CUkernel Kernel(const char* name) const {
    CUkernel kernel = nullptr;
    Require(Drv().cuLibraryGetKernel(&kernel, library_, name), "cuLibraryGetKernel");
    return kernel;
  }

 private:
  CUlibrary library_ = nullptr;
};

class LibraryWithoutContextTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    PopAllContexts();
  }
};

using LibraryTest = ContextTest;

API_TEST(LibraryWithoutContextTest, LoadsAndGivesKernels) {
  Library library(kBasicPtx);
  CUkernel kernel = nullptr;
  EXPECT_OK(Drv().cuLibraryGetKernel(&kernel, library, "store"));
  EXPECT_NE(kernel, nullptr);
  unsigned count = 0;
  EXPECT_OK(Drv().cuLibraryGetKernelCount(&count, library));
  EXPECT_EQ(count, 10u);
}

API_TEST(LibraryWithoutContextTest, ModuleAndGlobalNeedAContext) {
  Library library(kBasicPtx);
  CUmodule module = nullptr;
  CUdeviceptr address = 0;
  size_t bytes = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuLibraryGetModule(&module, library));
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT,
                Drv().cuLibraryGetGlobal(&address, &bytes, library, "counter"));
}

API_TEST(LibraryTest, KernelIsLaunchedAsAFunction) {
  Library library(kBasicPtx);
  DeviceBuffer out(4);
  const auto function = reinterpret_cast<CUfunction>(library.Kernel("store"));
  EXPECT_OK(Launch(function, 1, 1, nullptr, out.get(), 606u));
  EXPECT_EQ(out.ReadWord(), 606u);
}

API_TEST(LibraryTest, KernelGivesAFunctionOfTheCurrentContext) {
  Library library(kBasicPtx);
  DeviceBuffer out(4);
  CUfunction function = nullptr;
  ASSERT_OK(Drv().cuKernelGetFunction(&function, library.Kernel("store")));
  EXPECT_OK(Launch(function, 1, 1, nullptr, out.get(), 607u));
  EXPECT_EQ(out.ReadWord(), 607u);
}

API_TEST(LibraryTest, FatBinariesLoadInEveryCompression) {
  for (const Image* image :
       {&kBasicFatbinNone, &kBasicFatbinSize, &kBasicFatbinSpeed, &kBasicFatbinBalance}) {
    Library library(*image);
    DeviceBuffer out(4);
    EXPECT_OK(Launch(reinterpret_cast<CUfunction>(library.Kernel("store")), 1, 1, nullptr,
                     out.get(), 608u));
    EXPECT_EQ(out.ReadWord(), 608u);
  }
}

API_TEST(LibraryTest, WrappedFatBinaryLoads) {
  // What nvcc puts into .nvFatBinSegment and the runtime library passes: magic, version, fat
  // binary, nothing.
  struct {
    unsigned magic;
    unsigned version;
    const void* data;
    void* filename_or_list;
  } wrapper = {0x466243B1, 1, kBasicFatbinBalance.data, nullptr};
  CUlibrary library = nullptr;
  ASSERT_OK(Drv().cuLibraryLoadData(&library, &wrapper, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  ASSERT_OK(Drv().cuLibraryGetKernel(&kernel, library, "store"));
  DeviceBuffer out(4);
  EXPECT_OK(Launch(reinterpret_cast<CUfunction>(kernel), 1, 1, nullptr, out.get(), 609u));
  EXPECT_EQ(out.ReadWord(), 609u);
  EXPECT_OK(Drv().cuLibraryUnload(library));
}

API_TEST(LibraryTest, PreservedBinaryOptionTakesAValueOrNone) {
  CUlibraryOption option = CU_LIBRARY_BINARY_IS_PRESERVED;
  void* value = reinterpret_cast<void*>(uintptr_t{1});
  CUlibrary library = nullptr;
  ASSERT_OK(Drv().cuLibraryLoadData(&library, kBasicFatbinNone.data, nullptr, nullptr, 0, &option,
                                    &value, 1));
  EXPECT_OK(Drv().cuLibraryUnload(library));
  ASSERT_OK(Drv().cuLibraryLoadData(&library, kBasicFatbinNone.data, nullptr, nullptr, 0, &option,
                                    nullptr, 1))
      << "cuBLASLt passes the option without a value";
  EXPECT_OK(Drv().cuLibraryUnload(library));
}

API_TEST(LibraryTest, RefusesNullsAndGarbage) {
  CUlibrary library = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuLibraryLoadData(nullptr, kBasicPtx.data, nullptr,
                                                                  nullptr, 0, nullptr, nullptr, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuLibraryLoadData(&library, nullptr, nullptr,
                                                                  nullptr, 0, nullptr, nullptr, 0));
}

API_TEST(LibraryTest, MissingFileIsReported) {
  CUlibrary library = nullptr;
  EXPECT_RESULT(CUDA_ERROR_FILE_NOT_FOUND,
                Drv().cuLibraryLoadFromFile(&library, "/nonexistent/library.fatbin", nullptr,
                                            nullptr, 0, nullptr, nullptr, 0));
}

API_TEST(LibraryTest, MissingKernelIsNotFound) {
  Library library(kBasicPtx);
  CUkernel kernel = nullptr;
  EXPECT_RESULT(CUDA_ERROR_NOT_FOUND, Drv().cuLibraryGetKernel(&kernel, library, "no_such_kernel"));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuLibraryGetKernel(nullptr, library, "store"));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuLibraryGetKernel(&kernel, library, nullptr));
}

API_TEST(LibraryTest, KernelHandleIsStable) {
  Library library(kBasicPtx);
  EXPECT_EQ(library.Kernel("store"), library.Kernel("store"));
  EXPECT_NE(library.Kernel("store"), library.Kernel("bump"));
}

API_TEST(LibraryTest, KernelsCanBeEnumerated) {
  Library library(kBasicPtx);
  unsigned count = 0;
  ASSERT_OK(Drv().cuLibraryGetKernelCount(&count, library));
  std::vector<CUkernel> kernels(count);
  ASSERT_OK(Drv().cuLibraryEnumerateKernels(kernels.data(), count, library));
  std::set<std::string> names;
  for (CUkernel kernel : kernels) {
    const char* name = nullptr;
    ASSERT_OK(Drv().cuKernelGetName(&name, kernel));
    names.insert(name);
  }
  EXPECT_EQ(names.size(), count);
  EXPECT_EQ(names.count("bump"), 1u);
  EXPECT_EQ(names.count("coordinates"), 1u);
}

API_TEST(LibraryTest, KernelKnowsItsLibraryAndName) {
  Library library(kBasicPtx);
  const CUkernel kernel = library.Kernel("copy_word");
  CUlibrary owner = nullptr;
  const char* name = nullptr;
  EXPECT_OK(Drv().cuKernelGetLibrary(&owner, kernel));
  EXPECT_EQ(owner, static_cast<CUlibrary>(library));
  EXPECT_OK(Drv().cuKernelGetName(&name, kernel));
  EXPECT_STREQ(name, "copy_word");
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuKernelGetName(nullptr, kernel));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuKernelGetName(&name, nullptr));
}

API_TEST(LibraryTest, KernelParameterLayoutFollowsC) {
  Library library(kParamsPtx);
  const CUkernel kernel = library.Kernel("by_value");
  size_t offset = 99;
  size_t bytes = 99;
  // struct { char; double; short[3]; unsigned long long }: 1 + 7 + 8 + 6 + 2 + 8.
  EXPECT_OK(Drv().cuKernelGetParamInfo(kernel, 0, &offset, &bytes));
  EXPECT_EQ(offset, 0u);
  EXPECT_EQ(bytes, 32u);
  EXPECT_OK(Drv().cuKernelGetParamInfo(kernel, 1, &offset, &bytes));
  EXPECT_EQ(offset, 32u);
  EXPECT_EQ(bytes, 8u);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuKernelGetParamInfo(kernel, 2, &offset, &bytes));
}

API_TEST(LibraryTest, KernelParameterOfMoreThan4KilobytesIsKnown) {
  Library library(kParamsPtx);
  size_t offset = 99;
  size_t bytes = 99;
  EXPECT_OK(Drv().cuKernelGetParamInfo(library.Kernel("big"), 0, &offset, &bytes));
  EXPECT_EQ(bytes, 8000u);
  EXPECT_OK(Drv().cuKernelGetParamInfo(library.Kernel("big"), 1, &offset, &bytes));
  EXPECT_EQ(offset, 8000u);
}

API_TEST(LibraryTest, KernelParameterSizeIsOptional) {
  Library library(kParamsPtx);
  size_t offset = 99;
  EXPECT_OK(Drv().cuKernelGetParamInfo(library.Kernel("scalars"), 1, &offset, nullptr));
  EXPECT_EQ(offset, 2u);
}

API_TEST(LibraryTest, KernelAttributesAreAskedPerDevice) {
  Library library(kBasicPtx);
  int value = -1;
  EXPECT_OK(Drv().cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                                       library.Kernel("reverse_static"), device()));
  EXPECT_EQ(value, 1024);
  EXPECT_OK(Drv().cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                                       library.Kernel("store"), device()));
  EXPECT_EQ(value, 1024);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuKernelGetAttribute(nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS,
                                           library.Kernel("store"), device()));
}

API_TEST(LibraryTest, MaxDynamicSharedMemoryOfAKernelCanBeRaised) {
  Library library(kBasicPtx);
  const CUkernel kernel = library.Kernel("sum_dynamic");
  const int most = Attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  int value = 0;
  EXPECT_OK(Drv().cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most,
                                       kernel, device()));
  EXPECT_OK(Drv().cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                       kernel, device()));
  EXPECT_EQ(value, most);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                           most + 1024, kernel, device()));
}

API_TEST(LibraryTest, CacheConfigOfAKernelIsAccepted) {
  Library library(kBasicPtx);
  EXPECT_OK(
      Drv().cuKernelSetCacheConfig(library.Kernel("store"), CU_FUNC_CACHE_PREFER_L1, device()));
}

API_TEST(LibraryTest, GlobalIsThatOfTheCurrentContext) {
  Library library(kBasicPtx);
  CUdeviceptr address = 0;
  size_t bytes = 0;
  ASSERT_OK(Drv().cuLibraryGetGlobal(&address, &bytes, library, "initialized"));
  EXPECT_EQ(bytes, 16u);
  std::vector<unsigned> values(4);
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(values.data(), address, 16));
  EXPECT_EQ(values, (std::vector<unsigned>{11, 22, 33, 44}));
  EXPECT_RESULT(CUDA_ERROR_NOT_FOUND,
                Drv().cuLibraryGetGlobal(&address, &bytes, library, "no_such_variable"));
}

API_TEST(LibraryTest, GlobalTakesNullOutputs) {
  Library library(kBasicPtx);
  CUdeviceptr address = 0;
  size_t bytes = 0;
  EXPECT_OK(Drv().cuLibraryGetGlobal(&address, nullptr, library, "counter"));
  EXPECT_OK(Drv().cuLibraryGetGlobal(nullptr, &bytes, library, "counter"));
  EXPECT_NE(address, 0u);
  EXPECT_EQ(bytes, 4u);
}

API_TEST(LibraryTest, KernelsAndGlobalsOfOneLibraryBelongTogether) {
  Library library(kBasicPtx);
  CUdeviceptr counter = 0;
  size_t bytes = 0;
  ASSERT_OK(Drv().cuLibraryGetGlobal(&counter, &bytes, library, "counter"));
  const auto bump = reinterpret_cast<CUfunction>(library.Kernel("bump"));
  EXPECT_OK(Drv().cuLaunchKernel(bump, 4, 1, 1, 8, 1, 1, 0, nullptr, nullptr, nullptr));
  unsigned count = 0;
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(&count, counter, 4));
  EXPECT_EQ(count, 32u);
}

API_TEST(LibraryTest, ModuleHasTheSameVariables) {
  Library library(kBasicPtx);
  CUmodule module = nullptr;
  ASSERT_OK(Drv().cuLibraryGetModule(&module, library));
  CUdeviceptr by_module = 0;
  CUdeviceptr by_library = 0;
  size_t bytes = 0;
  EXPECT_OK(Drv().cuModuleGetGlobal_v2(&by_module, &bytes, module, "counter"));
  EXPECT_OK(Drv().cuLibraryGetGlobal(&by_library, &bytes, library, "counter"));
  EXPECT_EQ(by_module, by_library);
  CUfunction function = nullptr;
  EXPECT_OK(Drv().cuModuleGetFunction(&function, module, "store"));
}

API_TEST(LibraryTest, OrdinaryVariableIsNotManaged) {
  Library library(kBasicPtx);
  CUdeviceptr address = 0;
  size_t bytes = 0;
  EXPECT_RESULT(CUDA_ERROR_NOT_FOUND,
                Drv().cuLibraryGetManaged(&address, &bytes, library, "counter"));
}

API_TEST(LibraryTest, ServesSeveralContextsWithTheirOwnVariables) {
  Library library(kBasicPtx);
  CreatedContext other(device());
  CUdeviceptr here = 0;
  CUdeviceptr there = 0;
  size_t bytes = 0;
  const auto bump = reinterpret_cast<CUfunction>(library.Kernel("bump"));
  ASSERT_OK(Drv().cuLibraryGetGlobal(&here, &bytes, library, "counter"));
  EXPECT_OK(Drv().cuLaunchKernel(bump, 1, 1, 1, 3, 1, 1, 0, nullptr, nullptr, nullptr));
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(other));
  ASSERT_OK(Drv().cuLibraryGetGlobal(&there, &bytes, library, "counter"));
  EXPECT_OK(Drv().cuLaunchKernel(bump, 1, 1, 1, 4, 1, 1, 0, nullptr, nullptr, nullptr));
  unsigned count = 0;
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(&count, there, 4));
  EXPECT_EQ(count, 4u);
  ASSERT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(&count, here, 4));
  EXPECT_EQ(count, 3u);
}

// The value of `counter` in the current context, once `threads` threads have bumped it.
unsigned BumpedBy(unsigned threads, CUlibrary library, CUkernel bump) {
  CUdeviceptr address = 0;
  size_t bytes = 0;
  unsigned count = 0;
  EXPECT_OK(Drv().cuLaunchKernel(reinterpret_cast<CUfunction>(bump), 1, 1, 1, threads, 1, 1, 0,
                                 nullptr, nullptr, nullptr));
  EXPECT_OK(Drv().cuLibraryGetGlobal(&address, &bytes, library, "counter"));
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(&count, address, 4));
  return count;
}

API_TEST(LibraryTest, PreservedBinaryServesSeveralContexts) {
  CUlibraryOption option = CU_LIBRARY_BINARY_IS_PRESERVED;
  CUlibrary library = nullptr;
  CUkernel bump = nullptr;
  ASSERT_OK(
      Drv().cuLibraryLoadData(&library, kBasicPtx.data, nullptr, nullptr, 0, &option, nullptr, 1));
  ASSERT_OK(Drv().cuLibraryGetKernel(&bump, library, "bump"));
  CreatedContext other(device());
  EXPECT_EQ(BumpedBy(3, library, bump), 3u);
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(other));
  EXPECT_EQ(BumpedBy(4, library, bump), 4u);
  ASSERT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
  EXPECT_EQ(BumpedBy(1, library, bump), 4u);
  EXPECT_OK(Drv().cuLibraryUnload(library));
}

API_TEST(LibraryTest, VariablesOfAContextEndWithIt) {
  Library library(kBasicPtx);
  const CUkernel bump = library.Kernel("bump");
  for (int round = 0; round < 3; ++round) {
    CreatedContext other(device());
    ASSERT_OK(Drv().cuCtxPushCurrent_v2(other));
    EXPECT_EQ(BumpedBy(2, library, bump), 2u) << round;
    EXPECT_EQ(BumpedBy(2, library, bump), 4u) << round;
    ASSERT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
  }
  EXPECT_EQ(BumpedBy(1, library, bump), 1u);
}

API_TEST(LibraryTest, AttributeOfAKernelHoldsInEveryContextOfTheDevice) {
  const int most = Attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  if (most < 64 << 10) GTEST_SKIP() << "the device has no more than 48 KB";
  Library library(kBasicPtx);
  const CUkernel kernel = library.Kernel("sum_dynamic");
  const auto sum = [&] {
    DeviceBuffer out(8);
    CUdeviceptr address = out;
    unsigned words = (64 << 10) / 4;
    void* parameters[] = {&address, &words};
    CUresult result = Drv().cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 64, 1, 1,
                                           64 << 10, nullptr, parameters, nullptr);
    if (result == CUDA_SUCCESS) result = Drv().cuCtxSynchronize();
    return result;
  };
  CreatedContext before(device());
  CreatedContext after(device());
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, sum());
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(before));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, sum());
  EXPECT_OK(Drv().cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 64 << 10,
                                       kernel, device()));
  EXPECT_OK(sum());
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(after));
  EXPECT_OK(sum());
  ASSERT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
  ASSERT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
  EXPECT_OK(sum());
}

API_TEST(LibraryTest, UnloadRefusesNull) {
  EXPECT_ONE_OF(Drv().cuLibraryUnload(nullptr), CUDA_ERROR_INVALID_VALUE,
                CUDA_ERROR_INVALID_HANDLE);
}

API_TEST(LibraryTest, CanBeLoadedManyTimes) {
  for (int round = 0; round < 20; ++round) {
    Library library(kBasicFatbinSize);
    EXPECT_NE(library.Kernel("store"), nullptr);
  }
}

}  // namespace
}  // namespace consort::tests::api
