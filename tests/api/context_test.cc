// SPDX-License-Identifier: Apache-2.0
// Created contexts, the context stack of each thread, queries and limits of the current context.
// Source: CUDA Driver API reference 13.0, "Context Management" and "Context Management
// [DEPRECATED]"; NULL outputs of cuCtxGetStreamPriorityRange are legal by its text.
#include <set>
#include <thread>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

CUcontext Current() {
  CUcontext current = reinterpret_cast<CUcontext>(1);
  Require(Drv().cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  return current;
}

// Starts with an empty stack.
class CreatedContextTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    PopAllContexts();
  }
  void TearDown() override { PopAllContexts(); }
};

API_TEST(CreatedContextTest, IsCurrentOnceCreated) {
  CUcontext context = nullptr;
  ASSERT_OK(Drv().cuCtxCreate_v2(&context, 0, device()));
  EXPECT_NE(context, nullptr);
  EXPECT_EQ(Current(), context);
  EXPECT_OK(Drv().cuCtxDestroy_v2(context));
  EXPECT_EQ(Current(), nullptr) << "destroying the current context pops it";
}

API_TEST(CreatedContextTest, ThirdVersionTakesNoAffinity) {
  CUcontext context = nullptr;
  ASSERT_OK(Drv().cuCtxCreate_v3(&context, nullptr, 0, 0, device()));
  EXPECT_EQ(Current(), context);
  EXPECT_OK(Drv().cuCtxDestroy_v2(context));
}

API_TEST(CreatedContextTest, FourthVersionTakesNullParameters) {
  CUcontext context = nullptr;
  ASSERT_OK(Drv().cuCtxCreate_v4(&context, nullptr, CU_CTX_SCHED_SPIN, device()));
  EXPECT_EQ(Current(), context);
  unsigned flags = 0;
  EXPECT_OK(Drv().cuCtxGetFlags(&flags));
  EXPECT_EQ(flags & CU_CTX_SCHED_MASK, static_cast<unsigned>(CU_CTX_SCHED_SPIN));
  EXPECT_OK(Drv().cuCtxDestroy_v2(context));
}

API_TEST(CreatedContextTest, OldDestroyDestroys) {
  CUcontext context = nullptr;
  ASSERT_OK(Drv().cuCtxCreate_v2(&context, 0, device()));
  EXPECT_OK(Drv().cuCtxDestroy(context));
  EXPECT_EQ(Current(), nullptr);
}

API_TEST(CreatedContextTest, RefusesBadArguments) {
  CUcontext context = nullptr;
  int count = 0;
  ASSERT_OK(Drv().cuDeviceGetCount(&count));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuCtxCreate_v2(nullptr, 0, device()));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, Drv().cuCtxCreate_v2(&context, 0, count));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, Drv().cuCtxCreate_v2(&context, 0, -1));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuCtxCreate_v2(&context, 0x10000000, device()));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuCtxCreate_v2(&context, CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD, device()));
  EXPECT_EQ(Current(), nullptr) << "a refused creation pushes nothing";
}

API_TEST(CreatedContextTest, DestroyRefusesNull) {
  EXPECT_ONE_OF(Drv().cuCtxDestroy_v2(nullptr), CUDA_ERROR_INVALID_CONTEXT,
                CUDA_ERROR_INVALID_VALUE);
}

API_TEST(CreatedContextTest, TwoContextsAreTwo) {
  CreatedContext first(device());
  CreatedContext second(device());
  EXPECT_NE(first.get(), second.get());
  EXPECT_NE(first.get(), PrimaryContext());
}

API_TEST(CreatedContextTest, DestroyOfAnotherThanTheCurrentKeepsTheCurrent) {
  CreatedContext first(device());
  CreatedContext second(device());
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(first));
  EXPECT_OK(second.Destroy());
  EXPECT_EQ(Current(), first.get());
}

API_TEST(CreatedContextTest, DestroyPopsOnlyTheTop) {
  CreatedContext below(device());
  CreatedContext top(device());
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(below));
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(top));
  EXPECT_OK(top.Destroy());
  EXPECT_EQ(Current(), below.get());
}

API_TEST_ALONE(CreatedContextTest, DestroyedElsewhereStaysCurrentAndSaysSo) {
  CreatedContext context(device());
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(context));
  const CUcontext handle = context.get();
  RunThreads(1, [&](int) { EXPECT_OK(context.Destroy()); });
  EXPECT_EQ(Current(), handle);
  CUdeviceptr address = 0;
  EXPECT_RESULT(CUDA_ERROR_CONTEXT_IS_DESTROYED, Drv().cuMemAlloc_v2(&address, 64));
  EXPECT_RESULT(CUDA_ERROR_CONTEXT_IS_DESTROYED, Drv().cuCtxSynchronize());
}

API_TEST_ALONE(CreatedContextTest, DestroyedContextCannotBePushed) {
  SKIP_ON_ORACLE("the reference leaves use of a destroyed handle undefined");
  CreatedContext context(device());
  const CUcontext handle = context.get();
  ASSERT_OK(context.Destroy());
  EXPECT_ONE_OF(Drv().cuCtxPushCurrent_v2(handle), CUDA_ERROR_INVALID_CONTEXT,
                CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_ONE_OF(Drv().cuCtxSetCurrent(handle), CUDA_ERROR_INVALID_CONTEXT,
                CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_ONE_OF(Drv().cuCtxDestroy_v2(handle), CUDA_ERROR_INVALID_CONTEXT,
                CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

API_TEST(CreatedContextTest, WildContextIsRefused) {
  SKIP_ON_ORACLE("the driver dereferences handles");
  const CUcontext wild = reinterpret_cast<CUcontext>(uintptr_t{0x123456});
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuCtxPushCurrent_v2(wild));
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuCtxSetCurrent(wild));
}

API_TEST(CreatedContextTest, OwnsItsModulesAndGlobals) {
  // The same image in two contexts: two copies of every variable.
  CreatedContext first(device());
  CreatedContext second(device());
  CUdeviceptr addresses[2] = {};
  unsigned value = 1;
  unsigned read = 0;
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(first));
  {
    Module one(kBasicPtx);
    addresses[0] = one.Global("counter");
    ASSERT_OK(Drv().cuMemcpyHtoD_v2(addresses[0], &value, sizeof value));
    ASSERT_OK(Drv().cuCtxPushCurrent_v2(second));
    {
      Module other(kBasicPtx);
      addresses[1] = other.Global("counter");
      EXPECT_OK(Drv().cuMemcpyDtoH_v2(&read, addresses[1], sizeof read));
      EXPECT_EQ(read, 0u);
    }
    ASSERT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
  }
  EXPECT_NE(addresses[0], addresses[1]);
}

API_TEST(CreatedContextTest, MayBeUsedByAllThreads) {
  CreatedContext context(device());
  RunThreads(4, [&](int index) {
    Require(Drv().cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
    {
      DeviceBuffer buffer(4);
      buffer.Write<unsigned>({static_cast<unsigned>(index)});
      EXPECT_EQ(buffer.ReadWord(), static_cast<unsigned>(index));
    }
    EXPECT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
  });
}

API_TEST(CreatedContextTest, ApiVersionIsThatOfItsCreation) {
  CreatedContext context(device());
  unsigned version = 0;
  EXPECT_OK(Drv().cuCtxGetApiVersion(context, &version));
  EXPECT_GE(version, 3010u);
}

API_TEST(CreatedContextTest, IdsAreUniqueAndNotReused) {
  std::set<unsigned long long> ids;
  for (int round = 0; round < 3; ++round) {
    CreatedContext first(device());
    CreatedContext second(device());
    for (CUcontext context : {first.get(), second.get()}) {
      unsigned long long id = 0;
      ASSERT_OK(Drv().cuCtxGetId(context, &id));
      EXPECT_TRUE(ids.insert(id).second) << "an id is unique for the life of the program";
    }
  }
}

API_TEST(CreatedContextTest, WithoutOneCurrentQueriesAreRefused) {
  CUdevice device = 0;
  unsigned flags = 0;
  unsigned version = 0;
  unsigned long long id = 0;
  size_t limit = 0;
  CUfunc_cache config;
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuCtxGetDevice(&device));
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuCtxGetFlags(&flags));
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuCtxGetApiVersion(nullptr, &version));
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuCtxGetId(nullptr, &id));
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuCtxGetCacheConfig(&config));
}

API_TEST(CreatedContextTest, WithoutOneCurrentSynchronizeIsRefused) {
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuCtxSynchronize());
}

API_TEST(CreatedContextTest, WithoutOneCurrentWorkIsRefused) {
  CUdeviceptr address = 0;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  void* host = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUmodule module = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuMemAlloc_v2(&address, 64));
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuMemGetInfo_v2(&free_bytes, &total_bytes));
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuMemHostAlloc(&host, 64, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuStreamCreate(&stream, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuEventCreate(&event, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuModuleLoadData(&module, kBasicPtx.data));
}

API_TEST(CreatedContextTest, WithoutOneCurrentPopIsRefused) {
  CUcontext popped = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuCtxPopCurrent_v2(&popped));
}

// ---- the stack ----

API_TEST(CreatedContextTest, StackGivesBackInReverseOrder) {
  CreatedContext first(device());
  CreatedContext second(device());
  CUcontext popped = nullptr;
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(first));
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(second));
  EXPECT_OK(Drv().cuCtxPopCurrent_v2(&popped));
  EXPECT_EQ(popped, second.get());
  EXPECT_EQ(Current(), first.get());
  EXPECT_OK(Drv().cuCtxPopCurrent_v2(&popped));
  EXPECT_EQ(popped, first.get());
  EXPECT_EQ(Current(), nullptr);
}

API_TEST(CreatedContextTest, StackTakesOneContextManyTimes) {
  const CUcontext context = PrimaryContext();
  constexpr int kDepth = 100;
  for (int depth = 0; depth < kDepth; ++depth) ASSERT_OK(Drv().cuCtxPushCurrent_v2(context));
  for (int depth = 0; depth < kDepth; ++depth) {
    CUcontext popped = nullptr;
    ASSERT_OK(Drv().cuCtxPopCurrent_v2(&popped));
    ASSERT_EQ(popped, context);
  }
  EXPECT_EQ(Current(), nullptr);
}

API_TEST(CreatedContextTest, OldPushAndPopUseTheSameStack) {
  const CUcontext context = PrimaryContext();
  CUcontext popped = nullptr;
  ASSERT_OK(Drv().cuCtxPushCurrent(context));
  EXPECT_EQ(Current(), context);
  EXPECT_OK(Drv().cuCtxPopCurrent(&popped));
  EXPECT_EQ(popped, context);
  EXPECT_EQ(Current(), nullptr);
}

API_TEST(CreatedContextTest, PopTakesNullOutput) {
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(PrimaryContext()));
  EXPECT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
  EXPECT_EQ(Current(), nullptr);
}

API_TEST(CreatedContextTest, PushRefusesNull) {
  EXPECT_ONE_OF(Drv().cuCtxPushCurrent_v2(nullptr), CUDA_ERROR_INVALID_CONTEXT,
                CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Current(), nullptr);
}

API_TEST(CreatedContextTest, SetReplacesTheTop) {
  CreatedContext below(device());
  CreatedContext top(device());
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(below));
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(top));
  EXPECT_OK(Drv().cuCtxSetCurrent(PrimaryContext()));
  EXPECT_EQ(Current(), PrimaryContext());
  CUcontext popped = nullptr;
  EXPECT_OK(Drv().cuCtxPopCurrent_v2(&popped));
  EXPECT_EQ(popped, PrimaryContext());
  EXPECT_EQ(Current(), below.get());
}

API_TEST(CreatedContextTest, SetNullPopsTheTop) {
  CreatedContext below(device());
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(below));
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(PrimaryContext()));
  EXPECT_OK(Drv().cuCtxSetCurrent(nullptr));
  EXPECT_EQ(Current(), below.get());
  EXPECT_OK(Drv().cuCtxSetCurrent(nullptr));
  EXPECT_EQ(Current(), nullptr);
  EXPECT_OK(Drv().cuCtxSetCurrent(nullptr)) << "a no-op on an empty stack";
}

API_TEST(CreatedContextTest, SetOnAnEmptyStackPushes) {
  EXPECT_OK(Drv().cuCtxSetCurrent(PrimaryContext()));
  CUcontext popped = nullptr;
  EXPECT_OK(Drv().cuCtxPopCurrent_v2(&popped));
  EXPECT_EQ(popped, PrimaryContext());
  EXPECT_EQ(Current(), nullptr);
}

API_TEST(CreatedContextTest, EveryThreadHasItsOwnStack) {
  CreatedContext mine(device());
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(mine));
  RunThreads(4, [&](int) {
    EXPECT_EQ(Current(), nullptr) << "a new thread starts with none";
    CUcontext popped = nullptr;
    EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuCtxPopCurrent_v2(&popped));
    EXPECT_OK(Drv().cuCtxSetCurrent(PrimaryContext()));
    EXPECT_EQ(Current(), PrimaryContext());
  });
  EXPECT_EQ(Current(), mine.get());
}

API_TEST(CreatedContextTest, GetCurrentRefusesNullOutput) {
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuCtxGetCurrent(nullptr));
}

// ---- queries of the current context ----

using CurrentContextTest = ContextTest;

API_TEST(CurrentContextTest, DeviceIsTheOneItWasMadeFor) {
  CUdevice found = -1;
  EXPECT_OK(Drv().cuCtxGetDevice(&found));
  EXPECT_EQ(found, device());
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuCtxGetDevice(nullptr));
}

API_TEST(CurrentContextTest, DeviceOfAnyContextCanBeAsked) {
  CreatedContext other(device());
  CUdevice found = -1;
  EXPECT_OK(Drv().cuCtxGetDevice_v2(&found, other));
  EXPECT_EQ(found, device());
  found = -1;
  EXPECT_OK(Drv().cuCtxGetDevice_v2(&found, nullptr)) << "NULL is the current one";
  EXPECT_EQ(found, device());
}

API_TEST(CurrentContextTest, IdOfNullIsThatOfTheCurrent) {
  unsigned long long by_handle = 0;
  unsigned long long by_null = 1;
  EXPECT_OK(Drv().cuCtxGetId(context(), &by_handle));
  EXPECT_OK(Drv().cuCtxGetId(nullptr, &by_null));
  EXPECT_EQ(by_handle, by_null);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuCtxGetId(context(), nullptr));
}

API_TEST(CurrentContextTest, ApiVersionOfNullIsThatOfTheCurrent) {
  unsigned by_handle = 0;
  unsigned by_null = 1;
  EXPECT_OK(Drv().cuCtxGetApiVersion(context(), &by_handle));
  EXPECT_OK(Drv().cuCtxGetApiVersion(nullptr, &by_null));
  EXPECT_EQ(by_handle, by_null);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuCtxGetApiVersion(context(), nullptr));
}

API_TEST(CurrentContextTest, FlagsCanBeRead) {
  unsigned flags = 0xffffffff;
  EXPECT_OK(Drv().cuCtxGetFlags(&flags));
  EXPECT_EQ(flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK), 0u);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuCtxGetFlags(nullptr));
}

API_TEST(CurrentContextTest, FlagsOfACreatedOneAreThoseGiven) {
  for (unsigned given : {CU_CTX_SCHED_SPIN, CU_CTX_SCHED_YIELD, CU_CTX_SCHED_BLOCKING_SYNC}) {
    CreatedContext created(device(), given);
    ASSERT_OK(Drv().cuCtxPushCurrent_v2(created));
    unsigned flags = 0;
    EXPECT_OK(Drv().cuCtxGetFlags(&flags));
    EXPECT_EQ(flags & CU_CTX_SCHED_MASK, given);
    EXPECT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
  }
}

API_TEST(CurrentContextTest, FlagsCanBeSetLater) {
  CreatedContext created(device(), CU_CTX_SCHED_SPIN);
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(created));
  EXPECT_OK(Drv().cuCtxSetFlags(CU_CTX_SCHED_YIELD));
  unsigned flags = 0;
  EXPECT_OK(Drv().cuCtxGetFlags(&flags));
  EXPECT_EQ(flags & CU_CTX_SCHED_MASK, static_cast<unsigned>(CU_CTX_SCHED_YIELD));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuCtxSetFlags(0x10000000));
  EXPECT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
}

API_TEST(CurrentContextTest, SynchronizeSucceedsWhenIdle) {
  EXPECT_OK(Drv().cuCtxSynchronize());
  EXPECT_OK(Drv().cuCtxSynchronize_v2(context()));
  EXPECT_OK(Drv().cuCtxSynchronize_v2(nullptr)) << "NULL is the current one";
}

API_TEST(CurrentContextTest, SynchronizeWaitsForEveryStream) {
  Module module(kTimingPtx);
  const CUfunction spin = module.Function("spin");
  DeviceBuffer out(8);
  out.Fill(0);
  Stream first;
  Stream second;
  EXPECT_OK(Launch(spin, 1, 1, first, 20000000ull, out.get(), 1u));
  EXPECT_OK(Launch(spin, 1, 1, second, 20000000ull, out.get() + 4, 2u));
  EXPECT_OK(Drv().cuCtxSynchronize());
  EXPECT_OK(Drv().cuStreamQuery(first));
  EXPECT_OK(Drv().cuStreamQuery(second));
  EXPECT_EQ(out.Read<unsigned>(2), (std::vector<unsigned>{1, 2}));
}

API_TEST(CurrentContextTest, LimitsCanBeRead) {
  for (CUlimit limit :
       {CU_LIMIT_STACK_SIZE, CU_LIMIT_PRINTF_FIFO_SIZE, CU_LIMIT_MALLOC_HEAP_SIZE}) {
    size_t value = 0;
    EXPECT_OK(Drv().cuCtxGetLimit(&value, limit)) << limit;
    EXPECT_GT(value, 0u) << limit;
  }
}

API_TEST(CurrentContextTest, StackSizeCanBeSet) {
  size_t before = 0;
  size_t after = 0;
  ASSERT_OK(Drv().cuCtxGetLimit(&before, CU_LIMIT_STACK_SIZE));
  EXPECT_OK(Drv().cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
  EXPECT_OK(Drv().cuCtxGetLimit(&after, CU_LIMIT_STACK_SIZE));
  EXPECT_GE(after, 4096u) << "the driver may round up";
  EXPECT_OK(Drv().cuCtxSetLimit(CU_LIMIT_STACK_SIZE, before));
}

API_TEST(CurrentContextTest, UnknownLimitIsRefused) {
  size_t value = 0;
  EXPECT_ONE_OF(Drv().cuCtxGetLimit(&value, static_cast<CUlimit>(4711)),
                CUDA_ERROR_UNSUPPORTED_LIMIT, CUDA_ERROR_INVALID_VALUE);
  EXPECT_ONE_OF(Drv().cuCtxSetLimit(static_cast<CUlimit>(4711), 1), CUDA_ERROR_UNSUPPORTED_LIMIT,
                CUDA_ERROR_INVALID_VALUE);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuCtxGetLimit(nullptr, CU_LIMIT_STACK_SIZE));
}

API_TEST(CurrentContextTest, CacheConfigIsTakenAsAPreference) {
  CUfunc_cache config = static_cast<CUfunc_cache>(-1);
  for (CUfunc_cache wanted : {CU_FUNC_CACHE_PREFER_SHARED, CU_FUNC_CACHE_PREFER_L1,
                              CU_FUNC_CACHE_PREFER_EQUAL, CU_FUNC_CACHE_PREFER_NONE}) {
    EXPECT_OK(Drv().cuCtxSetCacheConfig(wanted));
    EXPECT_OK(Drv().cuCtxGetCacheConfig(&config));
    // "Returns CU_FUNC_CACHE_PREFER_NONE on devices where the size of the L1 cache and shared
    // memory are fixed".
    EXPECT_TRUE(config == wanted || config == CU_FUNC_CACHE_PREFER_NONE) << config;
  }
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuCtxGetCacheConfig(nullptr));
}

API_TEST(CurrentContextTest, PriorityRangeIsOrdered) {
  int least = -100;
  int greatest = 100;
  EXPECT_OK(Drv().cuCtxGetStreamPriorityRange(&least, &greatest));
  EXPECT_LE(greatest, least) << "lower numbers are greater priorities";
  if (Attribute(CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED) == 0) {
    EXPECT_EQ(least, 0);
    EXPECT_EQ(greatest, 0);
  }
}

API_TEST(CurrentContextTest, HasNoAffinityWithoutMps) {
  CUexecAffinityParam affinity = {};
  EXPECT_RESULT(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY,
                Drv().cuCtxGetExecAffinity(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuCtxGetExecAffinity(nullptr, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
}

API_TEST(CurrentContextTest, PriorityRangeTakesNullOutputs) {
  int least = -100;
  int greatest = 100;
  int both_least = 0;
  int both_greatest = 0;
  ASSERT_OK(Drv().cuCtxGetStreamPriorityRange(&both_least, &both_greatest));
  EXPECT_OK(Drv().cuCtxGetStreamPriorityRange(&least, nullptr));
  EXPECT_OK(Drv().cuCtxGetStreamPriorityRange(nullptr, &greatest));
  EXPECT_OK(Drv().cuCtxGetStreamPriorityRange(nullptr, nullptr));
  EXPECT_EQ(least, both_least);
  EXPECT_EQ(greatest, both_greatest);
}

}  // namespace
}  // namespace consort::tests::api
