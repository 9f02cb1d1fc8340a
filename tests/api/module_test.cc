// SPDX-License-Identifier: Apache-2.0
// Modules and functions. Source: CUDA Driver API reference 13.0, "Module Management", "Execution
// Control" (function attributes), CUjit_option; both outputs of cuModuleGetGlobal are optional.
#include <cstring>
#include <set>
#include <string>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using ModuleTest = ContextTest;

constexpr unsigned kBasicKernels = 10;  // of kernels/basic.cu

constexpr char kBrokenPtx[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry broken()\n{\n  this_is_no_instruction;\n  ret;\n}\n";

// Loads, runs `store` and checks what it wrote.
void ExpectRuns(CUmodule module) {
  CUfunction function = nullptr;
  ASSERT_OK(Drv().cuModuleGetFunction(&function, module, "store"));
  DeviceBuffer out(4);
  out.Fill(0);
  EXPECT_OK(Launch(function, 1, 1, nullptr, out.get(), 31337u));
  EXPECT_EQ(out.ReadWord(), 31337u);
}

API_TEST(ModuleTest, PtxRuns) {
  Module module(kBasicPtx);
  ExpectRuns(module);
}

void ExpectFatbinRuns(const Image& image) {
  {
    Module module(image);
    ExpectRuns(module);
  }
  CUmodule module = nullptr;
  ASSERT_OK(Drv().cuModuleLoadFatBinary(&module, image.data));
  ExpectRuns(module);
  EXPECT_OK(Drv().cuModuleUnload(module));
}

API_TEST(ModuleTest, FatBinaryRunsUncompressed) { ExpectFatbinRuns(kBasicFatbinNone); }
API_TEST(ModuleTest, FatBinaryRunsCompressedForSize) { ExpectFatbinRuns(kBasicFatbinSize); }
API_TEST(ModuleTest, FatBinaryRunsCompressedForSpeed) { ExpectFatbinRuns(kBasicFatbinSpeed); }
API_TEST(ModuleTest, FatBinaryRunsCompressedInBalance) { ExpectFatbinRuns(kBasicFatbinBalance); }

API_TEST(ModuleTest, CubinRunsOnItsArchitectureOnly) {
  CUmodule module = nullptr;
  const CUresult result = Drv().cuModuleLoadData(&module, kBasicCubinSm90.data);
  if (Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) == 9 && result == CUDA_SUCCESS) {
    ExpectRuns(module);
    EXPECT_OK(Drv().cuModuleUnload(module));
    return;
  }
  EXPECT_RESULT(CUDA_ERROR_NO_BINARY_FOR_GPU, result);
  if (IsOracle()) {
    EXPECT_NE(Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 9);
  }
}

API_TEST(ModuleTest, FatBinaryWithNothingUsableIsRefused) {
  // Only code for compute capability 7.5, and no PTX.
  CUmodule module = nullptr;
  const CUresult result = Drv().cuModuleLoadData(&module, kBasicFatbinSm75.data);
  if (Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) == 7 && result == CUDA_SUCCESS) {
    ExpectRuns(module);
    EXPECT_OK(Drv().cuModuleUnload(module));
    return;
  }
  EXPECT_RESULT(CUDA_ERROR_NO_BINARY_FOR_GPU, result);
}

API_TEST(ModuleTest, FileIsLoaded) {
  TemporaryFile file(kBasicPtx);
  CUmodule module = nullptr;
  ASSERT_OK(Drv().cuModuleLoad(&module, file.path()));
  ExpectRuns(module);
  EXPECT_OK(Drv().cuModuleUnload(module));
}

API_TEST_ALONE(ModuleTest, MissingFileIsReported) {
  CUmodule module = nullptr;
  EXPECT_RESULT(CUDA_ERROR_FILE_NOT_FOUND, Drv().cuModuleLoad(&module, "/nonexistent/module.ptx"));
  EXPECT_ONE_OF(Drv().cuModuleLoad(&module, nullptr), CUDA_ERROR_INVALID_VALUE,
                CUDA_ERROR_FILE_NOT_FOUND);
}

API_TEST(ModuleTest, NullImageOrOutputIsRefused) {
  CUmodule module = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuModuleLoadData(&module, nullptr));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuModuleLoadData(nullptr, kBasicPtx.data));
}

API_TEST(ModuleTest, TextThatIsNoPtxIsRefused) {
  CUmodule module = nullptr;
  EXPECT_ONE_OF(Drv().cuModuleLoadData(&module, "this is not a module"), CUDA_ERROR_INVALID_IMAGE,
                CUDA_ERROR_INVALID_PTX, CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
                CUDA_ERROR_NO_BINARY_FOR_GPU);
}

API_TEST(ModuleTest, BrokenPtxIsRefused) {
  CUmodule module = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_PTX, Drv().cuModuleLoadData(&module, kBrokenPtx));
}

API_TEST(ModuleTest, PtxOfALaterVersionIsRefused) {
  CUmodule module = nullptr;
  EXPECT_RESULT(
      CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
      Drv().cuModuleLoadData(&module, ".version 99.0\n.target sm_75\n.address_size 64\n"));
}

API_TEST(ModuleTest, ErrorLogIsWrittenOnFailure) {
  char log[4096];
  std::memset(log, 0, sizeof log);
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  CUmodule module = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_PTX,
                Drv().cuModuleLoadDataEx(&module, kBrokenPtx, 2, options, values));
  EXPECT_NE(std::memchr(log, '\0', sizeof log), nullptr);
  EXPECT_GT(std::strlen(log), 0u);
  const auto filled = static_cast<unsigned>(reinterpret_cast<uintptr_t>(values[1]));
  EXPECT_GT(filled, 0u) << "the size option returns the amount of log";
  EXPECT_LE(filled, sizeof log);
}

API_TEST(ModuleTest, ErrorLogNeverExceedsItsBuffer) {
  char log[64];
  std::memset(log, 0x55, sizeof log);
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(uintptr_t{16})};
  CUmodule module = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_PTX,
                Drv().cuModuleLoadDataEx(&module, kBrokenPtx, 2, options, values));
  for (size_t at = 16; at < sizeof log; ++at) EXPECT_EQ(log[at], 0x55) << at;
}

API_TEST(ModuleTest, OptionsAreAcceptedOnSuccess) {
  char info[1024] = {};
  char error[1024] = {};
  CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER,  CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_LOG_VERBOSE,      CU_JIT_OPTIMIZATION_LEVEL};
  void* values[] = {info,
                    reinterpret_cast<void*>(sizeof info),
                    error,
                    reinterpret_cast<void*>(sizeof error),
                    reinterpret_cast<void*>(uintptr_t{1}),
                    reinterpret_cast<void*>(uintptr_t{2})};
  CUmodule module = nullptr;
  ASSERT_OK(Drv().cuModuleLoadDataEx(&module, kBasicPtx.data, 6, options, values));
  EXPECT_LT(std::strlen(info), sizeof info);
  ExpectRuns(module);
  EXPECT_OK(Drv().cuModuleUnload(module));
}

API_TEST(ModuleTest, TheTimeThatCompilingTookIsTold) {
  CUjit_option option = CU_JIT_WALL_TIME;
  void* value = nullptr;
  CUmodule module = nullptr;
  ASSERT_OK(Drv().cuModuleLoadDataEx(&module, kBasicPtx.data, 1, &option, &value));
  float milliseconds = -1;
  std::memcpy(&milliseconds, &value, sizeof milliseconds);
  if (IsOracle()) {
    EXPECT_GE(milliseconds, 0.0f);
  } else {
    EXPECT_GT(milliseconds, 0.0f);
  }
  EXPECT_OK(Drv().cuModuleUnload(module));
}

API_TEST(ModuleTest, NoOptionsAreAccepted) {
  CUmodule module = nullptr;
  ASSERT_OK(Drv().cuModuleLoadDataEx(&module, kBasicPtx.data, 0, nullptr, nullptr));
  ExpectRuns(module);
  EXPECT_OK(Drv().cuModuleUnload(module));
}

API_TEST(ModuleTest, MissingFunctionIsNotFound) {
  Module module(kBasicPtx);
  CUfunction function = nullptr;
  EXPECT_RESULT(CUDA_ERROR_NOT_FOUND,
                Drv().cuModuleGetFunction(&function, module, "no_such_kernel"));
  EXPECT_RESULT(CUDA_ERROR_NOT_FOUND, Drv().cuModuleGetFunction(&function, module, "counter"))
      << "a variable";
}

API_TEST(ModuleTest, FunctionRefusesNulls) {
  Module module(kBasicPtx);
  CUfunction function = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuModuleGetFunction(nullptr, module, "store"));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuModuleGetFunction(&function, module, nullptr));
}

API_TEST(ModuleTest, FunctionHandleIsStable) {
  Module module(kBasicPtx);
  EXPECT_EQ(module.Function("store"), module.Function("store"));
  EXPECT_NE(module.Function("store"), module.Function("bump"));
}

API_TEST(ModuleTest, GlobalHasAddressAndSize) {
  Module module(kBasicPtx);
  CUdeviceptr address = 0;
  size_t bytes = 0;
  EXPECT_OK(Drv().cuModuleGetGlobal_v2(&address, &bytes, module, "initialized"));
  EXPECT_NE(address, 0u);
  EXPECT_EQ(bytes, 16u);
  EXPECT_OK(Drv().cuModuleGetGlobal_v2(&address, &bytes, module, "factor"));
  EXPECT_EQ(bytes, 4u);
}

API_TEST(ModuleTest, GlobalTakesNullOutputs) {
  Module module(kBasicPtx);
  CUdeviceptr address = 0;
  size_t bytes = 0;
  EXPECT_OK(Drv().cuModuleGetGlobal_v2(&address, nullptr, module, "counter"));
  EXPECT_OK(Drv().cuModuleGetGlobal_v2(nullptr, &bytes, module, "counter"));
  EXPECT_NE(address, 0u);
  EXPECT_EQ(bytes, 4u);
}

API_TEST(ModuleTest, MissingGlobalIsNotFound) {
  Module module(kBasicPtx);
  CUdeviceptr address = 0;
  size_t bytes = 0;
  EXPECT_RESULT(CUDA_ERROR_NOT_FOUND,
                Drv().cuModuleGetGlobal_v2(&address, &bytes, module, "no_such_variable"));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuModuleGetGlobal_v2(&address, &bytes, module, nullptr));
}

API_TEST(ModuleTest, GlobalsAreInitialized) {
  Module module(kBasicPtx);
  std::vector<unsigned> values(4);
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(values.data(), module.Global("initialized"), 16));
  EXPECT_EQ(values, (std::vector<unsigned>{11, 22, 33, 44}));
  unsigned zero = 1;
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(&zero, module.Global("counter"), 4));
  EXPECT_EQ(zero, 0u);
}

API_TEST(ModuleTest, ConstantsCanBeWrittenBeforeALaunch) {
  Module module(kBasicPtx);
  DeviceBuffer out(64);
  const CUfunction times = module.Function("times_factor");
  EXPECT_OK(Launch(times, 1, 16, nullptr, out.get(), 16u));
  EXPECT_EQ(out.Read<unsigned>(16)[5], 15u);
  const unsigned factor = 100;
  EXPECT_OK(Drv().cuMemcpyHtoD_v2(module.Global("factor"), &factor, sizeof factor));
  EXPECT_OK(Launch(times, 1, 16, nullptr, out.get(), 16u));
  EXPECT_EQ(out.Read<unsigned>(16)[5], 500u);
}

// Whoever writes a constant through its address, and in whatever way: who reads it by its name, and
// who follows the address, sees it.
API_TEST(ModuleTest, ConstantIsTheSameByItsNameAndThroughItsAddress) {
  Module module(kBasicPtx);
  const CUdeviceptr factor = module.Global("factor");
  EXPECT_EQ(module.Global("factor"), factor);
  DeviceBuffer out(8);
  DeviceBuffer other(4);
  Stream stream;
  const auto expect = [&](unsigned value, const char* how) {
    EXPECT_OK(Launch(module.Function("times_factor"), 1, 2, stream, out.get(), 2u)) << how;
    EXPECT_OK(Drv().cuStreamSynchronize(stream)) << how;
    EXPECT_EQ(out.Read<unsigned>(2)[1], value) << how;
    EXPECT_OK(Launch(module.Function("copy_word"), 1, 1, stream, out.get(), factor)) << how;
    EXPECT_OK(Drv().cuStreamSynchronize(stream)) << how;
    EXPECT_EQ(out.ReadWord(), value) << how;
    unsigned read = 0;
    EXPECT_OK(Drv().cuMemcpyDtoH_v2(&read, factor, sizeof read)) << how;
    EXPECT_EQ(read, value) << how;
  };
  expect(3, "as initialised");
  const unsigned thousand = 1000;
  EXPECT_OK(Drv().cuMemcpyHtoDAsync_v2(factor, &thousand, sizeof thousand, stream));
  expect(1000, "copied from the host");
  EXPECT_OK(Drv().cuMemsetD32Async(factor, 77, 1, stream));
  expect(77, "filled");
  EXPECT_OK(Drv().cuMemsetD8Async(factor + 1, 1, 1, stream));
  expect(77 + 256, "filled in part");
  other.Write<unsigned>({9});
  EXPECT_OK(Drv().cuMemcpyDtoDAsync_v2(factor, other.get(), 4, stream));
  expect(9, "copied on the device");
  PinnedBuffer pinned(4);
  *pinned.as<unsigned>() = 10;
  EXPECT_OK(Drv().cuMemcpyAsync(factor, reinterpret_cast<CUdeviceptr>(pinned.get()), 4, stream));
  expect(10, "copied from pinned memory");
}

API_TEST(ModuleTest, TwoModulesOfOneImageHaveTheirOwnGlobals) {
  Module first(kBasicPtx);
  Module second(kBasicPtx);
  ASSERT_NE(first.Global("counter"), second.Global("counter"));
  EXPECT_OK(Drv().cuLaunchKernel(first.Function("bump"), 2, 1, 1, 32, 1, 1, 0, nullptr, nullptr,
                                 nullptr));
  EXPECT_OK(Drv().cuLaunchKernel(second.Function("bump"), 1, 1, 1, 5, 1, 1, 0, nullptr, nullptr,
                                 nullptr));
  unsigned counts[2] = {};
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(&counts[0], first.Global("counter"), 4));
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(&counts[1], second.Global("counter"), 4));
  EXPECT_EQ(counts[0], 64u);
  EXPECT_EQ(counts[1], 5u);
}

API_TEST(ModuleTest, ReloadedModuleStartsAfresh) {
  for (int round = 0; round < 3; ++round) {
    Module module(kBasicPtx);
    EXPECT_OK(Drv().cuLaunchKernel(module.Function("bump"), 1, 1, 1, 7, 1, 1, 0, nullptr, nullptr,
                                   nullptr));
    unsigned count = 0;
    EXPECT_OK(Drv().cuMemcpyDtoH_v2(&count, module.Global("counter"), 4));
    EXPECT_EQ(count, 7u);
  }
}

API_TEST(ModuleTest, UnloadRefusesNull) {
  EXPECT_ONE_OF(Drv().cuModuleUnload(nullptr), CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE);
}

API_TEST(ModuleTest, UnloadedModuleIsRefused) {
  SKIP_ON_ORACLE("the reference leaves use of an unloaded module undefined");
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_OK(Drv().cuModuleLoadData(&module, kBasicPtx.data));
  ASSERT_OK(Drv().cuModuleGetFunction(&function, module, "bump"));
  ASSERT_OK(Drv().cuModuleUnload(module));
  CUfunction other = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE, Drv().cuModuleGetFunction(&other, module, "bump"));
  EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE,
                Drv().cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE, Drv().cuModuleUnload(module));
}

API_TEST(ModuleTest, WildHandlesAreRefused) {
  SKIP_ON_ORACLE("the driver dereferences handles");
  const auto module = reinterpret_cast<CUmodule>(uintptr_t{0x123456});
  const auto function = reinterpret_cast<CUfunction>(uintptr_t{0x123456});
  CUfunction found = nullptr;
  int value = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE, Drv().cuModuleGetFunction(&found, module, "bump"));
  EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE,
                Drv().cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
}

API_TEST(ModuleTest, FunctionsCanBeEnumerated) {
  Module module(kBasicPtx);
  unsigned count = 0;
  ASSERT_OK(Drv().cuModuleGetFunctionCount(&count, module));
  ASSERT_EQ(count, kBasicKernels);
  std::vector<CUfunction> functions(count);
  ASSERT_OK(Drv().cuModuleEnumerateFunctions(functions.data(), count, module));
  std::set<std::string> names;
  for (CUfunction function : functions) {
    const char* name = nullptr;
    ASSERT_OK(Drv().cuFuncGetName(&name, function));
    names.insert(name);
  }
  EXPECT_EQ(names.size(), kBasicKernels);
  EXPECT_EQ(names.count("vector_add"), 1u);
  EXPECT_EQ(names.count("sum_dynamic"), 1u);
}

API_TEST(ModuleTest, EnumerationRefusesNulls) {
  Module module(kBasicPtx);
  CUfunction function = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuModuleGetFunctionCount(nullptr, module));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuModuleEnumerateFunctions(nullptr, 1, module));
  EXPECT_OK(Drv().cuModuleEnumerateFunctions(&function, 1, module)) << "fewer than there are";
  EXPECT_NE(function, nullptr);
}

API_TEST(ModuleTest, LoadingModeIsLazyOrEager) {
  CUmoduleLoadingMode mode = static_cast<CUmoduleLoadingMode>(0);
  EXPECT_OK(Drv().cuModuleGetLoadingMode(&mode));
  EXPECT_TRUE(mode == CU_MODULE_LAZY_LOADING || mode == CU_MODULE_EAGER_LOADING) << mode;
}

API_TEST(ModuleTest, LoadingModeRefusesNullOutput) {
  SKIP_ON_ORACLE("driver 580 writes through a null output");
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuModuleGetLoadingMode(nullptr));
}

API_TEST_ALONE_WITH(ModuleTest, LoadingModeFollowsTheEnvironmentWhenEager,
                    {"CUDA_MODULE_LOADING", "EAGER"}) {
  CUmoduleLoadingMode mode = CU_MODULE_LAZY_LOADING;
  EXPECT_OK(Drv().cuModuleGetLoadingMode(&mode));
  EXPECT_EQ(mode, CU_MODULE_EAGER_LOADING);
  Module module(kBasicPtx);
  ExpectRuns(module);
}

API_TEST_ALONE_WITH(ModuleTest, LoadingModeFollowsTheEnvironmentWhenLazy,
                    {"CUDA_MODULE_LOADING", "LAZY"}) {
  CUmoduleLoadingMode mode = CU_MODULE_EAGER_LOADING;
  EXPECT_OK(Drv().cuModuleGetLoadingMode(&mode));
  EXPECT_EQ(mode, CU_MODULE_LAZY_LOADING);
}

// ---- functions ----

using FunctionTest = ContextTest;

int FunctionAttribute(CUfunction function, CUfunction_attribute attribute) {
  int value = -1;
  Require(Drv().cuFuncGetAttribute(&value, attribute, function), "cuFuncGetAttribute");
  return value;
}

API_TEST(FunctionTest, KnowsItsModuleAndName) {
  Module module(kBasicPtx);
  const CUfunction function = module.Function("vector_add");
  CUmodule owner = nullptr;
  const char* name = nullptr;
  EXPECT_OK(Drv().cuFuncGetModule(&owner, function));
  EXPECT_EQ(owner, module.get());
  EXPECT_OK(Drv().cuFuncGetName(&name, function));
  EXPECT_STREQ(name, "vector_add");
}

API_TEST(FunctionTest, AttributesArePlausible) {
  Module module(kBasicPtx);
  const CUfunction function = module.Function("vector_add");
  EXPECT_EQ(FunctionAttribute(function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), 0);
  EXPECT_GT(FunctionAttribute(function, CU_FUNC_ATTRIBUTE_NUM_REGS), 0);
  EXPECT_LE(FunctionAttribute(function, CU_FUNC_ATTRIBUTE_NUM_REGS), 255);
  EXPECT_EQ(FunctionAttribute(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 1024);
  EXPECT_EQ(FunctionAttribute(function, CU_FUNC_ATTRIBUTE_PTX_VERSION), 75);
  EXPECT_GE(FunctionAttribute(function, CU_FUNC_ATTRIBUTE_BINARY_VERSION), 70);
  EXPECT_GE(FunctionAttribute(function, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES), 0);
  EXPECT_EQ(FunctionAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES), 48 << 10);
}

API_TEST(FunctionTest, StaticSharedMemoryIsKnown) {
  Module module(kBasicPtx);
  EXPECT_EQ(
      FunctionAttribute(module.Function("reverse_static"), CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
      1024);
}

API_TEST(FunctionTest, MaxDynamicSharedMemoryCanBeRaised) {
  Module module(kBasicPtx);
  const CUfunction function = module.Function("sum_dynamic");
  const int most = Attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  EXPECT_OK(
      Drv().cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most));
  EXPECT_EQ(FunctionAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES), most);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                         most + 1024));
}

API_TEST(FunctionTest, CarveoutIsAPreferenceInPercent) {
  Module module(kBasicPtx);
  const CUfunction function = module.Function("sum_dynamic");
  EXPECT_OK(
      Drv().cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50));
  EXPECT_OK(
      Drv().cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, -1));
  EXPECT_RESULT(
      CUDA_ERROR_INVALID_VALUE,
      Drv().cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 101));
}

API_TEST(FunctionTest, ReadOnlyAttributesCannotBeSet) {
  Module module(kBasicPtx);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuFuncSetAttribute(module.Function("store"), CU_FUNC_ATTRIBUTE_NUM_REGS, 8));
}

API_TEST(FunctionTest, AttributeRefusesBadArguments) {
  Module module(kBasicPtx);
  const CUfunction function = module.Function("store");
  int value = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuFuncGetAttribute(nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
  EXPECT_RESULT(
      CUDA_ERROR_INVALID_VALUE,
      Drv().cuFuncGetAttribute(&value, static_cast<CUfunction_attribute>(4711), function));
}

API_TEST(FunctionTest, ParameterLayoutFollowsC) {
  Module module(kParamsPtx);
  const CUfunction function = module.Function("scalars");
  const struct {
    size_t offset;
    size_t bytes;
  } expected[] = {{0, 1}, {2, 2}, {4, 4}, {8, 8}, {16, 8}};
  for (size_t index = 0; index < 5; ++index) {
    size_t offset = 99;
    size_t bytes = 99;
    EXPECT_OK(Drv().cuFuncGetParamInfo(function, index, &offset, &bytes));
    EXPECT_EQ(offset, expected[index].offset) << index;
    EXPECT_EQ(bytes, expected[index].bytes) << index;
  }
}

API_TEST(FunctionTest, ParameterPastTheLastIsRefused) {
  Module module(kParamsPtx);
  size_t offset = 0;
  size_t bytes = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuFuncGetParamInfo(module.Function("scalars"), 5, &offset, &bytes));
  Module basic(kBasicPtx);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuFuncGetParamInfo(basic.Function("bump"), 0, &offset, &bytes))
      << "it takes none";
}

API_TEST(FunctionTest, CanBeLoadedExplicitly) {
  Module module(kBasicPtx);
  const CUfunction function = module.Function("store");
  EXPECT_OK(Drv().cuFuncLoad(function));
  CUfunctionLoadingState state = CU_FUNCTION_LOADING_STATE_UNLOADED;
  EXPECT_OK(Drv().cuFuncIsLoaded(&state, function));
  EXPECT_EQ(state, CU_FUNCTION_LOADING_STATE_LOADED);
}

API_TEST(FunctionTest, CacheConfigIsAccepted) {
  Module module(kBasicPtx);
  EXPECT_OK(Drv().cuFuncSetCacheConfig(module.Function("store"), CU_FUNC_CACHE_PREFER_L1));
  EXPECT_OK(Drv().cuFuncSetCacheConfig(module.Function("store"), CU_FUNC_CACHE_PREFER_SHARED));
}

}  // namespace
}  // namespace consort::tests::api
