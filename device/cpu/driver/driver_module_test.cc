// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/driver_module_test.cc: loading images made by nvcc, and launching what is in
// them.
#include <atomic>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/units.h"
#include "device/cpu/driver/driver_test.h"
#include "device/cpu/driver/limits.h"
#include "gmock/gmock.h"

namespace consort::cpu {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kFillPtx = R"(
.version 8.0
.target sm_75
.address_size 64
.visible .entry Fill(.param .u64 out, .param .u32 value)
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [value];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %rd3, %r2, 4;
  add.s64 %rd4, %rd2, %rd3;
  st.global.u32 [%rd4], %r1;
  ret;
}
)";

class ModuleTest : public DriverTest {
 protected:
  CUmodule Load(const std::string& name = "kernels_default.fatbin") {
    const std::vector<char> image = ReadTestData(name);
    CUmodule module = nullptr;
    EXPECT_CU(CU(cuModuleLoadData)(&module, image.data()));
    return module;
  }
  static CUfunction Function(CUmodule module, const char* name) {
    CUfunction function = nullptr;
    EXPECT_CU(CU(cuModuleGetFunction)(&function, module, name));
    return function;
  }
  static CUresult Launch(CUfunction function, unsigned int grid, unsigned int block, void** params,
                         CUstream stream = nullptr, unsigned int shared_bytes = 0) {
    return CU(cuLaunchKernel)(function, grid, 1, 1, block, 1, 1, shared_bytes, stream, params,
                              nullptr);
  }
  template <typename T>
  std::vector<T> Download(CUdeviceptr address, size_t count) {
    std::vector<T> data(count);
    EXPECT_CU(CU(cuMemcpyDtoH_v2)(data.data(), address, count * sizeof(T)));
    return data;
  }
  // Loads `image` and says what became of it, with the error log.
  static CUresult LoadWithLog(const void* image, std::string* log) {
    char error[512] = "unset";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                              CU_JIT_OPTIMIZATION_LEVEL};
    void* values[] = {error, reinterpret_cast<void*>(sizeof(error)), reinterpret_cast<void*>(3)};
    CUmodule module = nullptr;
    const CUresult result = CU(cuModuleLoadDataEx)(&module, image, 3, options, values);
    *log = error;
    EXPECT_EQ(reinterpret_cast<size_t>(values[1]), std::strlen(error));
    return result;
  }
};

class ModuleOfMode : public ModuleTest, public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Compression, ModuleOfMode,
                         ::testing::Values("none", "size", "speed", "balance"));

TEST_P(ModuleOfMode, VectorAdd) {
  const CUmodule module = Load("kernels_" + std::string(GetParam()) + ".fatbin");
  const CUfunction add = Function(module, "VectorAdd");
  int count = 10'000;
  std::vector<float> a(count), b(count);
  for (int i = 0; i < count; ++i) {
    a[i] = static_cast<float>(i) * 0.5f;
    b[i] = static_cast<float>(count - i);
  }
  const size_t bytes = count * sizeof(float);
  CUdeviceptr x = Allocate(bytes), y = Allocate(bytes), z = Allocate(bytes);
  ASSERT_CU(CU(cuMemcpyHtoD_v2)(x, a.data(), bytes));
  ASSERT_CU(CU(cuMemcpyHtoD_v2)(y, b.data(), bytes));
  void* params[] = {&x, &y, &z, &count};
  ASSERT_CU(Launch(add, (count + 255) / 256, 256, params));
  const auto sum = Download<float>(z, count);
  for (int i = 0; i < count; ++i) ASSERT_EQ(sum[i], a[i] + b[i]) << i;
  EXPECT_CU(CU(cuModuleUnload)(module));
  EXPECT_EQ(CU(cuModuleUnload)(module), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(Launch(add, 1, 1, params), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(ModuleTest, FunctionsAndVariablesAreFound) {
  const CUmodule module = Load();
  unsigned int count = 0;
  EXPECT_CU(CU(cuModuleGetFunctionCount)(&count, module));
  EXPECT_EQ(count, 9u);
  std::vector<CUfunction> functions(count);
  EXPECT_CU(CU(cuModuleEnumerateFunctions)(functions.data(), count, module));
  const CUfunction add = Function(module, "VectorAdd");
  EXPECT_THAT(functions, ::testing::Contains(add));
  EXPECT_EQ(Function(module, "VectorAdd"), add);
  const char* name = nullptr;
  EXPECT_CU(CU(cuFuncGetName)(&name, add));
  EXPECT_STREQ(name, "VectorAdd");
  CUmodule of_function = nullptr;
  EXPECT_CU(CU(cuFuncGetModule)(&of_function, add));
  EXPECT_EQ(of_function, module);
  CUfunction missing = nullptr;
  EXPECT_EQ(CU(cuModuleGetFunction)(&missing, module, "vectoradd"), CUDA_ERROR_NOT_FOUND);

  CUdeviceptr table = 0;
  size_t bytes = 0;
  ASSERT_CU(CU(cuModuleGetGlobal_v2)(&table, &bytes, module, "table"));
  EXPECT_EQ(bytes, 32u);
  EXPECT_EQ(Download<int>(table, 8), (std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8}));
  unsigned int type = 0;
  EXPECT_CU(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, table));
  EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
  EXPECT_CU(CU(cuModuleGetGlobal_v2)(nullptr, &bytes, module, "scale"));
  EXPECT_EQ(bytes, 16u);
  EXPECT_EQ(CU(cuModuleGetGlobal_v2)(&table, &bytes, module, "none"), CUDA_ERROR_NOT_FOUND);
  EXPECT_CU(CU(cuModuleUnload)(module));
  EXPECT_EQ(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, table),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(ModuleTest, ConstantAndGlobalVariablesWork) {
  const CUmodule module = Load();
  CUdeviceptr scale = 0, counter = 0;
  ASSERT_CU(CU(cuModuleGetGlobal_v2)(&scale, nullptr, module, "scale"));
  ASSERT_CU(CU(cuModuleGetGlobal_v2)(&counter, nullptr, module, "counter"));
  const float factors[] = {0, 3, 0, 0};
  ASSERT_CU(CU(cuMemcpyHtoD_v2)(scale, factors, sizeof(factors)));
  CUdeviceptr data = Allocate(16);
  const float values[] = {1, 2, 3, 4};
  ASSERT_CU(CU(cuMemcpyHtoD_v2)(data, values, sizeof(values)));
  int count = 4;
  void* params[] = {&data, &count};
  EXPECT_CU(Launch(Function(module, "ScaleBy"), 1, 32, params));
  EXPECT_EQ(Download<float>(data, 4), (std::vector<float>{3, 6, 9, 12}));
  EXPECT_CU(Launch(Function(module, "Count"), 10, 33, nullptr));
  EXPECT_EQ(Download<int>(counter, 1)[0], 330);
}

TEST_F(ModuleTest, ParametersArePackedByTheirLayout) {
  const CUfunction mixed = Function(Load(), "Mixed");
  const size_t expected[][2] = {{0, 1}, {8, 8}, {16, 2}, {24, 8}};
  for (size_t i = 0; i < 4; ++i) {
    size_t offset = 0, bytes = 0;
    EXPECT_CU(CU(cuFuncGetParamInfo)(mixed, i, &offset, &bytes));
    EXPECT_EQ(offset, expected[i][0]);
    EXPECT_EQ(bytes, expected[i][1]);
  }
  size_t offset = 0;
  EXPECT_EQ(CU(cuFuncGetParamInfo)(mixed, 4, &offset, nullptr), CUDA_ERROR_INVALID_VALUE);

  CUdeviceptr out = Allocate(12);
  char a = -5;
  double b = 1234.5;
  short c = -300;
  void* params[] = {&a, &b, &c, &out};
  EXPECT_CU(Launch(mixed, 1, 1, params));
  EXPECT_EQ(Download<int>(out, 3), (std::vector<int>{-5, 1234, -300}));

  // The same in one packed buffer.
  char packed[32] = {};
  b = 99;
  std::memcpy(packed, &a, 1);
  std::memcpy(packed + 8, &b, 8);
  std::memcpy(packed + 16, &c, 2);
  std::memcpy(packed + 24, &out, 8);
  size_t packed_bytes = sizeof(packed);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, packed, CU_LAUNCH_PARAM_BUFFER_SIZE,
                   &packed_bytes, CU_LAUNCH_PARAM_END};
  EXPECT_CU(CU(cuLaunchKernel)(mixed, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  EXPECT_EQ(Download<int>(out, 3), (std::vector<int>{-5, 99, -300}));
  EXPECT_EQ(CU(cuLaunchKernel)(mixed, 1, 1, 1, 1, 1, 1, 0, nullptr, params, extra),
            CUDA_ERROR_INVALID_VALUE);
  packed_bytes = 16;
  EXPECT_EQ(CU(cuLaunchKernel)(mixed, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Launch(mixed, 1, 1, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(ModuleTest, LaunchShapeIsChecked) {
  const CUmodule module = Load();
  const CUfunction count = Function(module, "Count");
  const unsigned int bad[][6] = {{0, 1, 1, 1, 1, 1},          {1, 1, 1, 0, 1, 1},
                                 {1, 1, 1, 1025, 1, 1},       {1, 1, 1, 1, 1, 65},
                                 {1, 1, 1, 64, 32, 1},        {1, 65536, 1, 1, 1, 1},
                                 {0x80000000u, 1, 1, 1, 1, 1}};
  for (const auto& shape : bad) {
    EXPECT_EQ(CU(cuLaunchKernel)(count, shape[0], shape[1], shape[2], shape[3], shape[4], shape[5],
                                 0, nullptr, nullptr, nullptr),
              CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_CU(CU(cuLaunchKernel)(count, 1, 1, 1, 16, 16, 4, 0, nullptr, nullptr, nullptr));
  // Bounds of the kernel itself.
  const CUfunction small = Function(module, "SmallBlocks");
  int threads_max = 0;
  EXPECT_CU(CU(cuFuncGetAttribute)(&threads_max, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, small));
  EXPECT_EQ(threads_max, 64);
  CUdeviceptr out = Allocate(256 * 4);
  void* params[] = {&out};
  EXPECT_EQ(Launch(small, 1, 65, params), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(Launch(small, 1, 64, params));
  EXPECT_CU(CU(cuCtxSynchronize)());
}

TEST_F(ModuleTest, DynamicSharedMemoryNeedsOptingIn) {
  const CUfunction reverse = Function(Load(), "Reverse");
  int count = 256;
  std::vector<int> values(count);
  for (int i = 0; i < count; ++i) values[i] = i;
  CUdeviceptr data = Allocate(count * 4);
  ASSERT_CU(CU(cuMemcpyHtoD_v2)(data, values.data(), count * 4));
  void* params[] = {&data, &count};
  EXPECT_CU(Launch(reverse, 1, 256, params, nullptr, 1024));
  const auto reversed = Download<int>(data, count);
  for (int i = 0; i < count; ++i) ASSERT_EQ(reversed[i], count - 1 - i);

  int bytes_max = 0;
  EXPECT_CU(
      CU(cuFuncGetAttribute)(&bytes_max, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, reverse));
  EXPECT_EQ(bytes_max, 48 * 1024);
  EXPECT_EQ(Launch(reverse, 1, 256, params, nullptr, 48 * 1024 + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(
      CU(cuFuncSetAttribute)(reverse, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232449),
      CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(
      CU(cuFuncSetAttribute)(reverse, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232448));
  EXPECT_CU(Launch(reverse, 1, 256, params, nullptr, 232448));
  EXPECT_CU(CU(cuCtxSynchronize)());
}

TEST_F(ModuleTest, AttributesOfAKernel) {
  const CUfunction add = Function(Load(), "VectorAdd");
  const auto attribute = [&](CUfunction_attribute name) {
    int value = -1;
    EXPECT_CU(CU(cuFuncGetAttribute)(&value, name, add));
    return value;
  };
  EXPECT_GT(attribute(CU_FUNC_ATTRIBUTE_NUM_REGS), 0);
  EXPECT_EQ(attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), 0);
  EXPECT_EQ(attribute(CU_FUNC_ATTRIBUTE_BINARY_VERSION), 90);
  EXPECT_EQ(attribute(CU_FUNC_ATTRIBUTE_PTX_VERSION), 80);
  int value = 0;
  EXPECT_EQ(CU(cuFuncGetAttribute)(&value, CU_FUNC_ATTRIBUTE_MAX, add), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuFuncSetAttribute)(add, CU_FUNC_ATTRIBUTE_NUM_REGS, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuFuncSetAttribute)(add, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 2),
            CUDA_ERROR_NOT_SUPPORTED);
  CUfunctionLoadingState state = CU_FUNCTION_LOADING_STATE_UNLOADED;
  EXPECT_CU(CU(cuFuncLoad)(add));
  EXPECT_CU(CU(cuFuncIsLoaded)(&state, add));
  EXPECT_EQ(state, CU_FUNCTION_LOADING_STATE_LOADED);
  EXPECT_CU(CU(cuFuncSetCacheConfig)(add, CU_FUNC_CACHE_PREFER_SHARED));
}

TEST_F(ModuleTest, Occupancy) {
  const CUfunction add = Function(Load(), "VectorAdd");
  int blocks = 0;
  EXPECT_CU(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, add, 1024, 0));
  EXPECT_GE(blocks, 1);
  EXPECT_LE(blocks, 2);
  EXPECT_CU(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, add, 32, 100 * 1024));
  EXPECT_EQ(blocks, 2);  // 228 KiB hold two blocks of 101 KiB
  EXPECT_CU(
      CU(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(&blocks, add, 32, 228 * 1024, 0));
  EXPECT_EQ(blocks, 0);
  int grid = 0, block = 0;
  EXPECT_CU(CU(cuOccupancyMaxPotentialBlockSize)(&grid, &block, add, nullptr, 0, 0));
  EXPECT_GT(grid, 0);
  EXPECT_GE(block, 32);
  EXPECT_CU(CU(cuOccupancyMaxPotentialBlockSizeWithFlags)(
      &grid, &block, add, [](int threads) -> size_t { return threads * 1024; }, 0, 100, 0));
  EXPECT_GT(block, 0);
  EXPECT_LE(block, 100);
  size_t bytes = 0;
  EXPECT_CU(CU(cuOccupancyAvailableDynamicSMemPerBlock)(&bytes, add, 2, 128));
  EXPECT_EQ(bytes, 113u * 1024);
}

TEST_F(ModuleTest, PtxTextIsCompiled) {
  CUmodule module = nullptr;
  const std::string ptx(kFillPtx);
  ASSERT_CU(CU(cuModuleLoadData)(&module, ptx.c_str()));
  CUdeviceptr out = Allocate(64 * 4);
  unsigned int value = 77;
  void* params[] = {&out, &value};
  EXPECT_CU(Launch(Function(module, "Fill"), 1, 64, params));
  EXPECT_EQ(Download<unsigned int>(out, 64), std::vector<unsigned int>(64, 77));
  EXPECT_CU(CU(cuModuleLoad)(&module, CONSORT_CPU_TESTDATA "/kernels_size.fatbin"));
  EXPECT_EQ(CU(cuModuleLoad)(&module, "/nowhere"), CUDA_ERROR_FILE_NOT_FOUND);
}

TEST_F(ModuleTest, ErrorsOfImagesAreExplained) {
  std::string log;
  EXPECT_EQ(LoadWithLog(ReadTestData("only_sm_90.fatbin").data(), &log),
            CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(log, "image holds only sm_90 machine code and no PTX");
  EXPECT_EQ(LoadWithLog("garbage", &log), CUDA_ERROR_INVALID_IMAGE);
  std::vector<char> damaged = ReadTestData("kernels_size.fatbin");
  std::memset(damaged.data() + damaged.size() - 64, 0xFF, 64);  // the PTX is the last entry
  EXPECT_EQ(LoadWithLog(damaged.data(), &log), CUDA_ERROR_INVALID_IMAGE);

  EXPECT_EQ(LoadWithLog(".version 99.0\n.target sm_75\n.address_size 64\n", &log),
            CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
  EXPECT_EQ(LoadWithLog(".version 9.0\n.target sm_100\n.address_size 64\n", &log),
            CUDA_ERROR_INVALID_PTX);
  EXPECT_EQ(LoadWithLog(".version 8.0\n.target sm_75\n.address_size 64\n.entry {", &log),
            CUDA_ERROR_INVALID_PTX);
  EXPECT_THAT(log, HasSubstr("line 4"));
  const std::string unknown =
      ".version 8.0\n.target sm_75\n.address_size 64\n"
      ".visible .entry F()\n{\n  frobnicate.u32 %r1, %r2;\n  ret;\n}\n";
  EXPECT_EQ(LoadWithLog(unknown.c_str(), &log), CUDA_ERROR_INVALID_PTX);
  EXPECT_THAT(log, HasSubstr("line 6"));
  EXPECT_THAT(log, HasSubstr("frobnicate"));
  EXPECT_CU(LoadWithLog(std::string(kFillPtx).c_str(), &log));
  EXPECT_EQ(log, "");
}

TEST_F(ModuleTest, WrapperLeadsToItsFatBinary) {
  struct {
    uint32_t magic = 0x466243B1;
    uint32_t version = 1;
    const void* data = nullptr;
    const void* list = nullptr;
  } wrapper;
  const std::vector<char> image = ReadTestData("kernels_size.fatbin");
  const std::vector<char> linked = ReadTestData("only_sm_90.fatbin");
  wrapper.data = image.data();
  CUmodule module = nullptr;
  EXPECT_CU(CU(cuModuleLoadFatBinary)(&module, &wrapper));
  Function(module, "Count");
  // Version 2: nothing usable in the linked part, PTX in what it was linked from.
  const void* parts[] = {image.data(), nullptr};
  wrapper = {.version = 2, .data = linked.data(), .list = parts};
  EXPECT_CU(CU(cuModuleLoadFatBinary)(&module, &wrapper));
  Function(module, "Count");
}

TEST_F(ModuleTest, LibraryNeedsNoContext) {
  EXPECT_CU(CU(cuCtxSetCurrent)(nullptr));
  const std::vector<char> image = ReadTestData("kernels_size.fatbin");
  CUlibrary library = nullptr;
  ASSERT_CU(
      CU(cuLibraryLoadData)(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  unsigned int count = 0;
  EXPECT_CU(CU(cuLibraryGetKernelCount)(&count, library));
  EXPECT_EQ(count, 9u);
  CUkernel kernel = nullptr;
  ASSERT_CU(CU(cuLibraryGetKernel)(&kernel, library, "Count"));
  CUdeviceptr counter = 0;
  EXPECT_EQ(CU(cuLibraryGetGlobal)(&counter, nullptr, library, "counter"),
            CUDA_ERROR_INVALID_CONTEXT);
  CUlibrary of_kernel = nullptr;
  EXPECT_CU(CU(cuKernelGetLibrary)(&of_kernel, kernel));
  EXPECT_EQ(of_kernel, library);
  std::vector<CUkernel> kernels(count);
  EXPECT_CU(CU(cuLibraryEnumerateKernels)(kernels.data(), count, library));
  EXPECT_THAT(kernels, ::testing::Contains(kernel));
  const char* name = nullptr;
  EXPECT_CU(CU(cuKernelGetName)(&name, kernel));
  EXPECT_STREQ(name, "Count");

  // A kernel is launched as it is; each context has its own variables.
  EXPECT_CU(CU(cuCtxSetCurrent)(context_));
  EXPECT_CU(Launch(reinterpret_cast<CUfunction>(kernel), 1, 5, nullptr));
  ASSERT_CU(CU(cuLibraryGetGlobal)(&counter, nullptr, library, "counter"));
  EXPECT_EQ(Download<int>(counter, 1)[0], 5);
  CUcontext other = nullptr;
  ASSERT_CU(CU(cuCtxCreate_v2)(&other, 0, 1));
  CUdeviceptr other_counter = 0;
  ASSERT_CU(CU(cuLibraryGetGlobal)(&other_counter, nullptr, library, "counter"));
  EXPECT_NE(other_counter, counter);
  EXPECT_CU(Launch(reinterpret_cast<CUfunction>(kernel), 1, 7, nullptr));
  EXPECT_EQ(Download<int>(other_counter, 1)[0], 7);
  EXPECT_EQ(Download<int>(counter, 1)[0], 5);
  EXPECT_CU(CU(cuCtxDestroy_v2)(other));

  // What is set on the function of a kernel holds for launches of the kernel.
  CUfunction function = nullptr;
  ASSERT_CU(CU(cuKernelGetFunction)(&function, kernel));
  EXPECT_CU(
      CU(cuFuncSetAttribute)(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000));
  int value = 0;
  EXPECT_CU(
      CU(cuKernelGetAttribute)(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel, 0));
  EXPECT_EQ(value, 100000);
  EXPECT_CU(
      CU(cuKernelGetAttribute)(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel, 1));
  EXPECT_EQ(value, 48 * 1024);
  EXPECT_CU(Launch(reinterpret_cast<CUfunction>(kernel), 1, 1, nullptr, nullptr, 100000));
  CUmodule module = nullptr;
  EXPECT_CU(CU(cuLibraryGetModule)(&module, library));
  EXPECT_EQ(Function(module, "Count"), function);
  EXPECT_EQ(CU(cuModuleUnload)(module), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(CU(cuLibraryGetManaged)(&counter, nullptr, library, "counter"), CUDA_ERROR_NOT_FOUND);
  EXPECT_CU(CU(cuLibraryUnload)(library));
  EXPECT_EQ(Launch(reinterpret_cast<CUfunction>(kernel), 1, 1, nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(CU(cuModuleGetFunction)(&function, module, "Count"), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(ModuleTest, KernelsOfTwoStreamsRunAtOnce) {
  const CUmodule module = Load();
  const CUfunction meet = Function(module, "Meet");
  CUdeviceptr first = Allocate(4), second = Allocate(4);
  void* one[] = {&first, &second};
  void* other[] = {&second, &first};
  EXPECT_CU(Launch(meet, 1, 1, one, NewStream()));
  EXPECT_CU(Launch(meet, 1, 1, other, NewStream()));
  EXPECT_CU(CU(cuCtxSynchronize)());
}

TEST_F(ModuleTest, ExtendedLaunchTakesAttributes) {
  const CUmodule module = Load();
  const CUfunction count = Function(module, "Count");
  CUlaunchAttribute attributes[2] = {};
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  attributes[0].value.priority = -1;
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attributes[1].value.clusterDim = {1, 1, 1};
  CUlaunchConfig config = {};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 8;
  config.blockDimY = config.blockDimZ = 1;
  config.attrs = attributes;
  config.numAttrs = 2;
  EXPECT_CU(CU(cuLaunchKernelEx)(&config, count, nullptr, nullptr));
  attributes[1].value.clusterDim = {2, 1, 1};
  EXPECT_EQ(CU(cuLaunchKernelEx)(&config, count, nullptr, nullptr), CUDA_ERROR_NOT_SUPPORTED);
  attributes[1].id = static_cast<CUlaunchAttributeID>(99);
  EXPECT_EQ(CU(cuLaunchKernelEx)(&config, count, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(CU(cuLaunchCooperativeKernel)(count, 2, 1, 1, 4, 1, 1, 0, nullptr, nullptr));
  CUdeviceptr counter = 0;
  ASSERT_CU(CU(cuModuleGetGlobal_v2)(&counter, nullptr, module, "counter"));
  EXPECT_EQ(Download<int>(counter, 1)[0], 16);
}

// PTX has as many registers as its compiler likes; a block of the size that the kernel says it
// takes fits all the same.
TEST_F(ModuleTest, AnyBlockThatMayBeLaunchedFitsAMultiprocessor) {
  for (const auto& [bound, threads] : {std::pair{"", 1024}, {".maxntid 512, 1, 1\n", 512}}) {
    const std::string ptx =
        std::string(".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry many()\n") +
        bound + "{ .reg .b32 %r<5000>; ret; }\n";
    CUmodule module = nullptr;
    ASSERT_CU(CU(cuModuleLoadData)(&module, ptx.c_str()));
    const CUfunction many = Function(module, "many");
    int largest = 0, blocks = 0;
    ASSERT_CU(CU(cuFuncGetAttribute)(&largest, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, many));
    EXPECT_EQ(largest, threads);
    ASSERT_CU(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, many, threads, 0));
    EXPECT_GE(blocks, 1) << bound;
  }
}

// A cooperative grid must fit the device at once, as the occupancy calls count.
TEST_F(ModuleTest, CooperativeGridsAreAsLargeAsOccupancySays) {
  const CUmodule module = Load();
  const CUfunction count = Function(module, "Count");
  int blocks = 0, multiprocessors = 0;
  ASSERT_CU(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, count, 1024, 0));
  ASSERT_CU(
      CU(cuDeviceGetAttribute)(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  const auto most = static_cast<unsigned int>(blocks * multiprocessors);
  EXPECT_CU(CU(cuLaunchCooperativeKernel)(count, most, 1, 1, 1024, 1, 1, 0, nullptr, nullptr));
  EXPECT_EQ(CU(cuLaunchCooperativeKernel)(count, most + 1, 1, 1, 1024, 1, 1, 0, nullptr, nullptr),
            CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attribute.value.cooperative = 1;
  CUlaunchConfig config = {};
  config.gridDimX = most + 1;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 1024;
  config.blockDimY = config.blockDimZ = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  EXPECT_EQ(CU(cuLaunchKernelEx)(&config, count, nullptr, nullptr),
            CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  attribute.value.cooperative = 0;
  EXPECT_CU(CU(cuLaunchKernelEx)(&config, count, nullptr, nullptr));
  CUdeviceptr counter = 0;
  ASSERT_CU(CU(cuModuleGetGlobal_v2)(&counter, nullptr, module, "counter"));
  EXPECT_EQ(Download<unsigned int>(counter, 1)[0], (2 * most + 1) * 1024);
}

// A fault is not known when the launch returns; afterwards every call gives it until the reset.
class FaultTest : public ModuleTest {
 protected:
  // The fault may be known by then or not.
  void RecordBehindFault(CUresult error, CUstream stream, CUevent event) {
    const CUresult recorded = CU(cuEventRecord)(event, stream);
    EXPECT_TRUE(recorded == CUDA_SUCCESS || recorded == error) << recorded;
  }
  void ExpectSticky(CUresult error, CUstream stream, CUevent event) {
    EXPECT_EQ(CU(cuStreamSynchronize)(stream), error);
    EXPECT_EQ(CU(cuCtxSynchronize)(), error);
    CUdeviceptr address = 0;
    EXPECT_EQ(CU(cuMemAlloc_v2)(&address, 4), error);
    EXPECT_EQ(CU(cuStreamQuery)(stream), error);
    EXPECT_EQ(CU(cuEventQuery)(event), error);
    EXPECT_EQ(CU(cuMemsetD8Async)(memory_, 1, 1, stream), error);
    ASSERT_CU(CU(cuDevicePrimaryCtxReset_v2)(0));
    EXPECT_CU(CU(cuMemAlloc_v2)(&address, 4));
    EXPECT_CU(CU(cuCtxSynchronize)());
  }
  CUdeviceptr memory_ = 0;
};

TEST_F(FaultTest, StoreToUnmappedMemory) {
  const CUfunction store = Function(Load(), "StoreAt");
  const CUstream stream = NewStream();
  CUevent event = nullptr;
  ASSERT_CU(CU(cuEventCreate)(&event, 0));
  memory_ = Allocate(4096);
  CUdeviceptr beyond = memory_ + 4096;  // the page behind every allocation is inaccessible
  int value = 1;
  void* params[] = {&beyond, &value};
  EXPECT_CU(Launch(store, 1, 1, params, stream));
  RecordBehindFault(CUDA_ERROR_ILLEGAL_ADDRESS, stream, event);
  ExpectSticky(CUDA_ERROR_ILLEGAL_ADDRESS, stream, event);
}

// Whoever sees that an event behind the fault is reached sees the fault, too, at whatever moment it
// asks.
TEST_F(FaultTest, NoQueryMissesTheFaultBeforeItsEvent) {
  for (int round = 0; round < 50; ++round) {
    const CUfunction store = Function(Load(), "StoreAt");
    const CUstream stream = NewStream();
    CUevent event = nullptr;
    ASSERT_CU(CU(cuEventCreate)(&event, 0));
    CUdeviceptr beyond = Allocate(4096) + 4096;
    int value = 1;
    void* params[] = {&beyond, &value};
    EXPECT_CU(Launch(store, 1, 1, params, stream));
    RecordBehindFault(CUDA_ERROR_ILLEGAL_ADDRESS, stream, event);
    CUresult state = CUDA_ERROR_NOT_READY;
    while (state == CUDA_ERROR_NOT_READY) state = CU(cuEventQuery)(event);
    ASSERT_EQ(state, CUDA_ERROR_ILLEGAL_ADDRESS) << "in round " << round;
    ASSERT_CU(CU(cuDevicePrimaryCtxReset_v2)(0));
  }
}

TEST_F(FaultTest, TrapInstruction) {
  const CUfunction trap = Function(Load(), "Trap");
  const CUstream stream = NewStream();
  CUevent event = nullptr;
  ASSERT_CU(CU(cuEventCreate)(&event, 0));
  memory_ = Allocate(4);
  EXPECT_CU(Launch(trap, 1, 32, nullptr, stream));
  RecordBehindFault(CUDA_ERROR_LAUNCH_FAILED, stream, event);
  ExpectSticky(CUDA_ERROR_LAUNCH_FAILED, stream, event);
}

TEST_F(FaultTest, WorkBehindAFaultIsSkippedAndCallbacksAreTold) {
  const CUfunction trap = Function(Load(), "Trap");
  void* pinned = nullptr;
  ASSERT_CU(CU(cuMemHostAlloc)(&pinned, 4096, 0));
  auto* word = static_cast<uint32_t*>(pinned);
  *word = 5;
  const CUstream stream = NewStream();
  struct Seen {
    bool host_function = false;
    std::atomic<CUresult> status = CUDA_SUCCESS;
  } seen;
  // Held up, so that all of it is submitted before the fault is known.
  const CUdeviceptr gate = Allocate(4);
  EXPECT_CU(CU(cuStreamWaitValue32_v2)(stream, gate, 1, CU_STREAM_WAIT_VALUE_EQ));
  EXPECT_CU(Launch(trap, 1, 1, nullptr, stream));
  EXPECT_CU(CU(cuMemsetD32Async)(reinterpret_cast<CUdeviceptr>(pinned), 6, 1, stream));
  EXPECT_CU(CU(cuLaunchHostFunc)(
      stream, [](void* data) { static_cast<Seen*>(data)->host_function = true; }, &seen));
  EXPECT_CU(CU(cuStreamAddCallback)(
      stream,
      [](CUstream, CUresult status, void* data) { static_cast<Seen*>(data)->status = status; },
      &seen, 0));
  EXPECT_CU(CU(cuStreamWriteValue32_v2)(NewStream(), gate, 1, 0));
  while (CU(cuStreamQuery)(stream) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
  EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(*word, 5u);
  // The error is known before what is behind it has been told; of a reset it would hear, too.
  while (seen.status == CUDA_SUCCESS) std::this_thread::yield();
  ASSERT_CU(CU(cuDevicePrimaryCtxReset_v2)(0));
  EXPECT_FALSE(seen.host_function);
  EXPECT_EQ(seen.status, CUDA_ERROR_LAUNCH_FAILED);
}

TEST_F(FaultTest, OtherContextsGoOn) {
  CUcontext other = nullptr;
  ASSERT_CU(CU(cuCtxCreate_v2)(&other, 0, 1));
  EXPECT_CU(Launch(Function(Load(), "Trap"), 1, 1, nullptr));
  EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_CU(CU(cuCtxDestroy_v2)(other));
  EXPECT_CU(CU(cuCtxSynchronize)());
  Allocate(4096);
}

}  // namespace
}  // namespace consort::cpu
