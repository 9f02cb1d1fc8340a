// SPDX-License-Identifier: Apache-2.0
// Launches: forms of parameters, dimensions, shared memory, attributes, and what is refused.
// Source: CUDA Driver API reference 13.0, "Execution Control"; parameters beyond 4 KB: PTX ISA 8.1,
// kernel function parameters (limit 32,764 bytes from sm_70).
#include <algorithm>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using LaunchTest = ContextTest;

API_TEST(LaunchTest, ComputesWhatTheKernelSays) {
  Module module(kBasicPtx);
  constexpr unsigned kCount = 100000;
  std::vector<float> a(kCount);
  std::vector<float> b(kCount);
  for (unsigned index = 0; index < kCount; ++index) {
    a[index] = static_cast<float>(index);
    b[index] = static_cast<float>(2 * index + 1);
  }
  DeviceBuffer da(kCount * 4);
  DeviceBuffer db(kCount * 4);
  DeviceBuffer dc(kCount * 4);
  da.Write(a);
  db.Write(b);
  EXPECT_OK(Launch(module.Function("vector_add"), (kCount + 255) / 256, 256, nullptr, da.get(),
                   db.get(), dc.get(), kCount));
  const auto c = dc.Read<float>(kCount);
  for (unsigned index = 0; index < kCount; ++index)
    ASSERT_EQ(c[index], static_cast<float>(3 * index + 1));
}

API_TEST(LaunchTest, NoParametersNeedNoArray) {
  Module module(kBasicPtx);
  EXPECT_OK(Drv().cuLaunchKernel(module.Function("bump"), 3, 1, 1, 33, 1, 1, 0, nullptr, nullptr,
                                 nullptr));
  unsigned count = 0;
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(&count, module.Global("counter"), 4));
  EXPECT_EQ(count, 99u);
}

API_TEST(LaunchTest, ScalarsOfEverySizeArrive) {
  Module module(kParamsPtx);
  DeviceBuffer out(32);
  EXPECT_OK(Launch(module.Function("scalars"), 1, 1, nullptr, static_cast<signed char>(-5),
                   static_cast<short>(-3000), 70000, -(1ll << 40), out.get()));
  EXPECT_EQ(out.Read<double>(4), (std::vector<double>{-5, -3000, 70000, -1099511627776.0}));
}

struct Mixed {
  char tag;
  double weight;
  short pair[3];
  unsigned long long address;
};

API_TEST(LaunchTest, StructsArriveByValue) {
  Module module(kParamsPtx);
  DeviceBuffer out(48);
  Mixed mixed = {};
  mixed.tag = 7;
  mixed.weight = 0.25;
  mixed.pair[0] = -1;
  mixed.pair[1] = 2;
  mixed.pair[2] = -3;
  mixed.address = 1ull << 50;
  EXPECT_OK(Launch(module.Function("by_value"), 1, 1, nullptr, mixed, out.get()));
  EXPECT_EQ(out.Read<double>(6), (std::vector<double>{7, 0.25, -1, 2, -3, 1125899906842624.0}));
}

API_TEST(LaunchTest, PackedParametersArrive) {
  Module module(kParamsPtx);
  DeviceBuffer out(48);
  struct {
    Mixed mixed;
    CUdeviceptr out;
  } packed = {};
  packed.mixed.tag = 9;
  packed.mixed.weight = 1.5;
  packed.out = out;
  size_t bytes = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  EXPECT_OK(Drv().cuLaunchKernel(module.Function("by_value"), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr,
                                 extra));
  EXPECT_EQ(out.Read<double>(2), (std::vector<double>{9, 1.5}));
}

API_TEST(LaunchTest, SixteenIntegersArriveInOrder) {
  Module module(kParamsPtx);
  DeviceBuffer out(4);
  EXPECT_OK(Launch(module.Function("many"), 1, 1, nullptr, out.get(), 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                   1, 1, 1, 1, 1, 2));
  EXPECT_EQ(out.ReadWord(), 136u + 16u);
}

struct Big {
  unsigned words[2000];
};

API_TEST(LaunchTest, ParametersOfMoreThan4KilobytesArrive) {
  Module module(kParamsPtx);
  DeviceBuffer out(4);
  Big big;
  unsigned expected = 0;
  for (unsigned index = 0; index < 2000; ++index) {
    big.words[index] = index * 2654435761u;
    expected += big.words[index] * (index + 1);
  }
  EXPECT_OK(Launch(module.Function("big"), 1, 1, nullptr, big, out.get()));
  EXPECT_EQ(out.ReadWord(), expected);
}

API_TEST(LaunchTest, PackedParametersOfMoreThan4KilobytesArrive) {
  Module module(kParamsPtx);
  DeviceBuffer out(4);
  struct {
    Big big;
    CUdeviceptr out;
  } packed = {};
  for (unsigned& word : packed.big.words) word = 1;
  packed.out = out;
  size_t bytes = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  EXPECT_OK(
      Drv().cuLaunchKernel(module.Function("big"), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  EXPECT_EQ(out.ReadWord(), 2001000u);
}

// NCCL passes as much of a parameter of 4 KiB as it uses.
API_TEST(LaunchTest, PackedParametersMayEndBeforeWhatTheKernelReads) {
  Module module(kParamsPtx);
  DeviceBuffer out(4);
  struct {
    CUdeviceptr out;
    unsigned value;
    unsigned more;
  } packed = {out, 31, 0};
  size_t bytes = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  EXPECT_OK(Drv().cuLaunchKernel(module.Function("sparse"), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr,
                                 extra));
  EXPECT_EQ(out.ReadWord(), 31u);
}

API_TEST(LaunchTest, ParametersAreReadBeforeReturn) {
  Module module(kBasicPtx);
  const CUfunction store = module.Function("store");
  DeviceBuffer out(4);
  Stream stream;
  ASSERT_OK(Launch(store, 1, 1, stream, out.get(), 0u));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  StreamGate gate(stream);
  CUdeviceptr address = out;
  unsigned value = 1;
  void* params[] = {&address, &value};
  EXPECT_OK(Drv().cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr));
  value = 2;
  address = 0;
  params[0] = params[1] = nullptr;
  gate.Open();
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(out.ReadWord(), 1u);
}

API_TEST(LaunchTest, NestedPointersAreDeviceAddresses) {
  Module module(kParamsPtx);
  DeviceBuffer first(4);
  DeviceBuffer second(4);
  DeviceBuffer table(16);
  DeviceBuffer out(4);
  first.Write<unsigned>({40});
  second.Write<unsigned>({2});
  table.Write<CUdeviceptr>({first, second});
  EXPECT_OK(Launch(module.Function("nested"), 1, 1, nullptr, table.get(), 2u, out.get()));
  EXPECT_EQ(out.ReadWord(), 42u);
}

API_TEST(LaunchTest, EveryThreadOfAThreeDimensionalGridRuns) {
  Module module(kBasicPtx);
  constexpr unsigned kGrid[] = {3, 4, 5};
  constexpr unsigned kBlock[] = {7, 3, 2};
  constexpr unsigned kThreads = 42;
  constexpr unsigned kBlocks = 60;
  DeviceBuffer out(kThreads * kBlocks * 4);
  CUdeviceptr address = out;
  void* params[] = {&address};
  EXPECT_OK(Drv().cuLaunchKernel(module.Function("coordinates"), kGrid[0], kGrid[1], kGrid[2],
                                 kBlock[0], kBlock[1], kBlock[2], 0, nullptr, params, nullptr));
  const auto words = out.Read<unsigned>(kThreads * kBlocks);
  for (unsigned block = 0; block < kBlocks; ++block) {
    for (unsigned thread = 0; thread < kThreads; ++thread) {
      const unsigned expected = block % 3 | block / 3 % 4 << 5 | block / 12 << 10 |
                                thread % 7 << 15 | thread / 7 % 3 << 20 | thread / 21 << 25;
      ASSERT_EQ(words[block * kThreads + thread], expected) << block << " " << thread;
    }
  }
}

API_TEST(LaunchTest, LargestBlockRuns) {
  Module module(kBasicPtx);
  DeviceBuffer out(4096);
  EXPECT_OK(Launch(module.Function("fill_index"), 1, 1024, nullptr, out.get(), 1024u));
  EXPECT_EQ(out.Read<unsigned>(1024), Iota(1024));
}

API_TEST(LaunchTest, ManyBlocksRun) {
  Module module(kBasicPtx);
  EXPECT_OK(Drv().cuLaunchKernel(module.Function("bump"), 70000, 1, 1, 1, 1, 1, 0, nullptr, nullptr,
                                 nullptr));
  unsigned count = 0;
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(&count, module.Global("counter"), 4));
  EXPECT_EQ(count, 70000u);
}

API_TEST(LaunchTest, LaunchesOfOneStreamRunInOrder) {
  Module module(kBasicPtx);
  Stream stream;
  DeviceBuffer out(4);
  out.Fill(0);
  for (unsigned index = 1; index <= 1000; ++index) {
    ASSERT_OK(Launch(module.Function("add_to"), 1, 1, stream, out.get(), index));
  }
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(out.ReadWord(), 500500u);
}

API_TEST(LaunchTest, BarrierAndStaticSharedMemoryWork) {
  Module module(kBasicPtx);
  DeviceBuffer in(1024);
  DeviceBuffer out(1024);
  in.Write(Iota(256));
  EXPECT_OK(Launch(module.Function("reverse_static"), 1, 256, nullptr, out.get(), in.get()));
  const auto words = out.Read<unsigned>(256);
  for (unsigned index = 0; index < 256; ++index) ASSERT_EQ(words[index], 255 - index);
}

// ---- dynamic shared memory ----

CUresult SumDynamic(CUfunction function, const DeviceBuffer& out, unsigned shared_bytes,
                    CUstream stream = nullptr) {
  CUdeviceptr address = out;
  unsigned words = shared_bytes / 4;
  void* params[] = {&address, &words};
  return Drv().cuLaunchKernel(function, 2, 1, 1, 64, 1, 1, shared_bytes, stream, params, nullptr);
}

API_TEST(LaunchTest, DynamicSharedMemoryHasTheSizeAskedFor) {
  Module module(kBasicPtx);
  DeviceBuffer out(8);
  for (unsigned bytes : {4u, 1024u, 48u << 10}) {
    EXPECT_OK(SumDynamic(module.Function("sum_dynamic"), out, bytes));
    const unsigned words = bytes / 4;
    EXPECT_EQ(out.Read<unsigned>(2), (std::vector<unsigned>(2, words * (words - 1) / 2)));
  }
}

API_TEST(LaunchTest, MoreThan48KilobytesNeedAnOptIn) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) < 64 << 10) {
    GTEST_SKIP() << "the device has no more than 48 KB";
  }
  Module module(kBasicPtx);
  const CUfunction function = module.Function("sum_dynamic");
  DeviceBuffer out(8);
  constexpr unsigned kBytes = 64 << 10;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, SumDynamic(function, out, kBytes));
  EXPECT_OK(
      Drv().cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kBytes));
  EXPECT_OK(SumDynamic(function, out, kBytes));
  EXPECT_EQ(out.ReadWord(), kBytes / 4 * (kBytes / 4 - 1) / 2);
}

API_TEST(LaunchTest, MoreSharedMemoryThanTheDeviceHasIsRefused) {
  Module module(kBasicPtx);
  DeviceBuffer out(8);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, SumDynamic(module.Function("sum_dynamic"), out, 1 << 20));
}

// ---- what is refused ----

API_TEST(LaunchTest, ZeroDimensionsAreRefused) {
  Module module(kBasicPtx);
  const CUfunction bump = module.Function("bump");
  for (int zero = 0; zero < 6; ++zero) {
    unsigned size[6] = {1, 1, 1, 1, 1, 1};
    size[zero] = 0;
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                  Drv().cuLaunchKernel(bump, size[0], size[1], size[2], size[3], size[4], size[5],
                                       0, nullptr, nullptr, nullptr))
        << zero;
  }
}

API_TEST(LaunchTest, DimensionsPastTheLimitsAreRefused) {
  Module module(kBasicPtx);
  const CUfunction bump = module.Function("bump");
  const unsigned sizes[][6] = {{1, 1, 1, 1025, 1, 1},       {1, 1, 1, 1, 1025, 1},
                               {1, 1, 1, 1, 1, 65},         {1, 1, 1, 64, 32, 1},
                               {1, 65536, 1, 1, 1, 1},      {1, 1, 65536, 1, 1, 1},
                               {0x80000000u, 1, 1, 1, 1, 1}};
  for (const auto& size : sizes) {
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                  Drv().cuLaunchKernel(bump, size[0], size[1], size[2], size[3], size[4], size[5],
                                       0, nullptr, nullptr, nullptr))
        << size[0] << " " << size[1] << " " << size[2] << " " << size[3] << " " << size[4] << " "
        << size[5];
  }
  EXPECT_OK(Drv().cuCtxSynchronize());
}

API_TEST(LaunchTest, NullFunctionIsRefused) {
  EXPECT_ONE_OF(Drv().cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
                CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE);
}

API_TEST(LaunchTest, BothFormsOfParametersAtOnceAreRefused) {
  Module module(kBasicPtx);
  DeviceBuffer out(16);
  CUdeviceptr address = out;
  unsigned value = 1;
  void* params[] = {&address, &value};
  struct {
    CUdeviceptr out;
    unsigned value;
  } packed = {address, 1};
  size_t bytes = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuLaunchKernel(module.Function("store"), 1, 1, 1, 1,
                                                               1, 1, 0, nullptr, params, extra));
}

API_TEST(LaunchTest, StreamOfAnotherContextIsRefused) {
  Module module(kBasicPtx);
  const CUfunction bump = module.Function("bump");
  CreatedContext other(device());
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(other));
  {
    Stream foreign;
    ASSERT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
    EXPECT_ONE_OF(Drv().cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, foreign, nullptr, nullptr),
                  CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_OK(Drv().cuCtxPushCurrent_v2(other));
  }
  ASSERT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
}

API_TEST(LaunchTest, DestroyedStreamIsRefused) {
  SKIP_ON_ORACLE("the reference leaves use of a destroyed stream undefined");
  Module module(kBasicPtx);
  CUstream stream = nullptr;
  ASSERT_OK(Drv().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  ASSERT_OK(Drv().cuStreamDestroy_v2(stream));
  EXPECT_ONE_OF(
      Drv().cuLaunchKernel(module.Function("bump"), 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr),
      CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

API_TEST(LaunchTest, WildFunctionIsRefused) {
  SKIP_ON_ORACLE("the driver dereferences handles");
  EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE,
                Drv().cuLaunchKernel(reinterpret_cast<CUfunction>(uintptr_t{0x123456}), 1, 1, 1, 1,
                                     1, 1, 0, nullptr, nullptr, nullptr));
}

API_TEST(LaunchTest, ARefusedLaunchLeavesTheContextWell) {
  Module module(kBasicPtx);
  DeviceBuffer out(4);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Launch(module.Function("store"), 1, 2048, nullptr, out.get(), 1u));
  EXPECT_OK(Launch(module.Function("store"), 1, 1, nullptr, out.get(), 2u));
  EXPECT_EQ(out.ReadWord(), 2u);
}

API_TEST_ALONE_WITH(LaunchTest, IsSynchronousOnRequest, {"CUDA_LAUNCH_BLOCKING", "1"}) {
  Module module(kTimingPtx);
  DeviceBuffer out(4);
  Stream stream;
  EXPECT_OK(Launch(module.Function("spin"), 1, 1, stream, 50000000ull, out.get(), 1u));
  EXPECT_OK(Drv().cuStreamQuery(stream)) << "the launch returned when the kernel had ended";
}

// ---- cuLaunchKernelEx ----

CUlaunchConfig Config(unsigned grid, unsigned block, CUstream stream, CUlaunchAttribute* attributes,
                      unsigned count) {
  CUlaunchConfig config = {};
  config.gridDimX = grid;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = block;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return config;
}

API_TEST(LaunchTest, ExtendedLaunchTakesNoAttributes) {
  Module module(kBasicPtx);
  DeviceBuffer out(4096);
  const CUlaunchConfig config = Config(4, 256, nullptr, nullptr, 0);
  CUdeviceptr address = out;
  unsigned count = 1024;
  void* params[] = {&address, &count};
  EXPECT_OK(Drv().cuLaunchKernelEx(&config, module.Function("fill_index"), params, nullptr));
  EXPECT_EQ(out.Read<unsigned>(1024), Iota(1024));
}

API_TEST(LaunchTest, ExtendedLaunchTakesPackedParameters) {
  Module module(kBasicPtx);
  DeviceBuffer out(4);
  const CUlaunchConfig config = Config(1, 1, nullptr, nullptr, 0);
  struct {
    CUdeviceptr out;
    unsigned value;
  } packed = {out, 77};
  size_t bytes = 12;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  EXPECT_OK(Drv().cuLaunchKernelEx(&config, module.Function("store"), nullptr, extra));
  EXPECT_EQ(out.ReadWord(), 77u);
}

API_TEST(LaunchTest, ExtendedLaunchTakesAPriority) {
  Module module(kBasicPtx);
  int least = 0;
  int greatest = 0;
  ASSERT_OK(Drv().cuCtxGetStreamPriorityRange(&least, &greatest));
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  attribute.value.priority = greatest;
  Stream stream;
  const CUlaunchConfig config = Config(2, 32, stream, &attribute, 1);
  EXPECT_OK(Drv().cuLaunchKernelEx(&config, module.Function("bump"), nullptr, nullptr));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  unsigned count = 0;
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(&count, module.Global("counter"), 4));
  EXPECT_EQ(count, 64u);
}

API_TEST(LaunchTest, ExtendedLaunchIgnoresTheIgnoredAttribute) {
  Module module(kBasicPtx);
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_IGNORE;
  const CUlaunchConfig config = Config(1, 8, nullptr, &attribute, 1);
  EXPECT_OK(Drv().cuLaunchKernelEx(&config, module.Function("bump"), nullptr, nullptr));
  unsigned count = 0;
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(&count, module.Global("counter"), 4));
  EXPECT_EQ(count, 8u);
}

API_TEST(LaunchTest, ExtendedLaunchTakesAClusterWhereSupported) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) == 0)
    GTEST_SKIP() << "the device has no clusters";
  Module module(kBasicPtx);
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim.x = 2;
  attribute.value.clusterDim.y = 1;
  attribute.value.clusterDim.z = 1;
  const CUlaunchConfig config = Config(8, 32, nullptr, &attribute, 1);
  EXPECT_OK(Drv().cuLaunchKernelEx(&config, module.Function("bump"), nullptr, nullptr));
  unsigned count = 0;
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(&count, module.Global("counter"), 4));
  EXPECT_EQ(count, 256u);
}

API_TEST(LaunchTest, ExtendedLaunchRefusesZeroDimensions) {
  Module module(kBasicPtx);
  CUlaunchConfig config = Config(1, 1, nullptr, nullptr, 0);
  config.gridDimY = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuLaunchKernelEx(&config, module.Function("bump"), nullptr, nullptr));
}

// ---- cooperative ----

class CooperativeTest : public ContextTest {
 protected:
  void SetUp() override {
    ContextTest::SetUp();
    if (Attribute(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH) == 0) {
      GTEST_SKIP() << "the device does not say that it launches cooperatively";
    }
  }
  // At least 1, at most 8: all resident at once.
  unsigned Blocks() const {
    return static_cast<unsigned>(std::min(8, Attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)));
  }
};

API_TEST(CooperativeTest, BlocksMeetAtABarrier) {
  Module module(kCooperativePtx);
  DeviceBuffer state(12);
  state.Fill(0);
  CUdeviceptr address = state;
  void* params[] = {&address};
  const unsigned blocks = Blocks();
  EXPECT_OK(Drv().cuLaunchCooperativeKernel(module.Function("grid_barrier"), blocks, 1, 1, 32, 1, 1,
                                            0, nullptr, params));
  EXPECT_EQ(state.Read<unsigned>(3), (std::vector<unsigned>{blocks, blocks * blocks, 0}));
}

API_TEST(CooperativeTest, AttributeMeansTheSame) {
  Module module(kCooperativePtx);
  DeviceBuffer state(12);
  state.Fill(0);
  CUdeviceptr address = state;
  void* params[] = {&address};
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attribute.value.cooperative = 1;
  const unsigned blocks = Blocks();
  const CUlaunchConfig config = Config(blocks, 32, nullptr, &attribute, 1);
  EXPECT_OK(Drv().cuLaunchKernelEx(&config, module.Function("grid_barrier"), params, nullptr));
  EXPECT_EQ(state.Read<unsigned>(3), (std::vector<unsigned>{blocks, blocks * blocks, 0}));
}

API_TEST(CooperativeTest, MoreBlocksThanFitAreRefused) {
  Module module(kBasicPtx);
  const CUfunction function = module.Function("bump");
  int per_multiprocessor = 0;
  ASSERT_OK(
      Drv().cuOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, function, 1024, 0));
  const auto most = static_cast<unsigned>(per_multiprocessor *
                                          Attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  EXPECT_RESULT(
      CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
      Drv().cuLaunchCooperativeKernel(function, most + 1, 1, 1, 1024, 1, 1, 0, nullptr, nullptr));
}

}  // namespace
}  // namespace consort::tests::api
