// SPDX-License-Identifier: Apache-2.0
// The primary context: reference count, state, flags, reset. Every case has a process of its own,
// so that nobody else retains. Source: CUDA Driver API reference 13.0, "Primary Context
// Management".
#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using PrimaryContextTest = DriverTest;

struct State {
  unsigned flags = 0xdead;
  int active = -1;
};

State GetState() {
  State state;
  Require(Drv().cuDevicePrimaryCtxGetState(0, &state.flags, &state.active),
          "cuDevicePrimaryCtxGetState");
  return state;
}

CUcontext Retain() {
  CUcontext context = nullptr;
  Require(Drv().cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  return context;
}

API_TEST_ALONE(PrimaryContextTest, IsInactiveBeforeItIsRetained) {
  EXPECT_EQ(GetState().active, 0);
  EXPECT_EQ(GetState().flags, 0u);
}

API_TEST_ALONE(PrimaryContextTest, IsActiveWhileRetained) {
  ASSERT_NE(Retain(), nullptr);
  EXPECT_EQ(GetState().active, 1);
  EXPECT_OK(Drv().cuDevicePrimaryCtxRelease_v2(0));
  EXPECT_EQ(GetState().active, 0);
}

API_TEST_ALONE(PrimaryContextTest, CountsItsReferences) {
  Retain();
  Retain();
  Retain();
  EXPECT_OK(Drv().cuDevicePrimaryCtxRelease_v2(0));
  EXPECT_OK(Drv().cuDevicePrimaryCtxRelease_v2(0));
  EXPECT_EQ(GetState().active, 1);
  EXPECT_OK(Drv().cuDevicePrimaryCtxRelease_v2(0));
  EXPECT_EQ(GetState().active, 0);
}

API_TEST_ALONE(PrimaryContextTest, HasOneHandle) {
  CUcontext first = Retain();
  EXPECT_EQ(Retain(), first);
  CUcontext in_thread = nullptr;
  RunThreads(1, [&](int) { in_thread = Retain(); });
  EXPECT_EQ(in_thread, first);
}

API_TEST_ALONE(PrimaryContextTest, RetainMakesNothingCurrent) {
  Retain();
  CUcontext current = nullptr;
  EXPECT_OK(Drv().cuCtxGetCurrent(&current));
  EXPECT_EQ(current, nullptr);
}

API_TEST_ALONE(PrimaryContextTest, ReleaseWithoutRetainIsRefused) {
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuDevicePrimaryCtxRelease_v2(0));
}

API_TEST_ALONE(PrimaryContextTest, ReleaseOnceTooOftenIsRefused) {
  Retain();
  EXPECT_OK(Drv().cuDevicePrimaryCtxRelease_v2(0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuDevicePrimaryCtxRelease_v2(0));
}

API_TEST_ALONE(PrimaryContextTest, ReleaseDoesNotPopIt) {
  CUcontext context = Retain();
  ASSERT_OK(Drv().cuCtxSetCurrent(context));
  Retain();
  EXPECT_OK(Drv().cuDevicePrimaryCtxRelease_v2(0));
  CUcontext current = nullptr;
  EXPECT_OK(Drv().cuCtxGetCurrent(&current));
  EXPECT_EQ(current, context);
}

API_TEST_ALONE(PrimaryContextTest, OldReleaseCountsTheSameReferences) {
  Retain();
  Retain();
  EXPECT_OK(Drv().cuDevicePrimaryCtxRelease(0));
  EXPECT_EQ(GetState().active, 1);
  EXPECT_OK(Drv().cuDevicePrimaryCtxRelease_v2(0));
  EXPECT_EQ(GetState().active, 0);
}

API_TEST_ALONE(PrimaryContextTest, WorksAgainAfterItsLastRelease) {
  for (int round = 0; round < 3; ++round) {
    ASSERT_OK(Drv().cuCtxSetCurrent(Retain()));
    {
      DeviceBuffer buffer(4096);
      buffer.Fill(9);
      EXPECT_EQ(buffer.ReadWord(), 0x09090909u);
    }
    EXPECT_OK(Drv().cuCtxSetCurrent(nullptr));
    EXPECT_OK(Drv().cuDevicePrimaryCtxRelease_v2(0));
  }
}

API_TEST_ALONE(PrimaryContextTest, FlagsSetBeforeRetainAreKept) {
  EXPECT_OK(Drv().cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_BLOCKING_SYNC));
  EXPECT_EQ(GetState().flags & CU_CTX_SCHED_MASK,
            static_cast<unsigned>(CU_CTX_SCHED_BLOCKING_SYNC));
  EXPECT_EQ(GetState().active, 0);
  ASSERT_OK(Drv().cuCtxSetCurrent(Retain()));
  EXPECT_EQ(GetState().flags & CU_CTX_SCHED_MASK,
            static_cast<unsigned>(CU_CTX_SCHED_BLOCKING_SYNC));
  unsigned flags = 0;
  EXPECT_OK(Drv().cuCtxGetFlags(&flags));
  EXPECT_EQ(flags & CU_CTX_SCHED_MASK, static_cast<unsigned>(CU_CTX_SCHED_BLOCKING_SYNC));
}

API_TEST_ALONE(PrimaryContextTest, FlagsMayChangeWhileItIsActive) {
  // Since CUDA 11 (the _v2 symbol) an active primary context no longer refuses.
  Retain();
  EXPECT_OK(Drv().cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_YIELD));
  EXPECT_EQ(GetState().flags & CU_CTX_SCHED_MASK, static_cast<unsigned>(CU_CTX_SCHED_YIELD));
}

API_TEST_ALONE(PrimaryContextTest, UnknownFlagsAreRefused) {
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuDevicePrimaryCtxSetFlags_v2(0, 0x10000000));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD))
      << "only one of the scheduling flags can be set";
}

API_TEST_ALONE(PrimaryContextTest, ResetFreesItsMemory) {
  // What is free before and after is no measure: contexts take and give back memory of their own.
  // But of more than half of it there is room for one piece only.
  ASSERT_OK(Drv().cuCtxSetCurrent(Retain()));
  size_t free = 0;
  size_t total = 0;
  ASSERT_OK(Drv().cuMemGetInfo_v2(&free, &total));
  const size_t bytes = free / 5 * 3;
  CUdeviceptr address = 0;
  ASSERT_OK(Drv().cuMemAlloc_v2(&address, bytes));
  EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, Drv().cuMemAlloc_v2(&address, bytes));
  EXPECT_OK(Drv().cuDevicePrimaryCtxReset_v2(0));
  ASSERT_OK(Drv().cuCtxSetCurrent(Retain()));
  EXPECT_OK(Drv().cuMemAlloc_v2(&address, bytes)) << "the memory was not given back";
}

API_TEST_ALONE(PrimaryContextTest, ResetLeavesItUsableOnceRetainedAgain) {
  ASSERT_OK(Drv().cuCtxSetCurrent(Retain()));
  EXPECT_OK(Drv().cuDevicePrimaryCtxReset_v2(0));
  ASSERT_OK(Drv().cuCtxSetCurrent(Retain()));
  Module module(kBasicPtx);
  DeviceBuffer out(4);
  EXPECT_OK(Launch(module.Function("store"), 1, 1, nullptr, out.get(), 5u));
  EXPECT_EQ(out.ReadWord(), 5u);
}

API_TEST_ALONE(PrimaryContextTest, ResetGivesALibrarysVariablesTheirFirstValues) {
  ASSERT_OK(Drv().cuCtxSetCurrent(Retain()));
  CUlibrary library = nullptr;
  CUkernel bump = nullptr;
  ASSERT_OK(
      Drv().cuLibraryLoadData(&library, kBasicPtx.data, nullptr, nullptr, 0, nullptr, nullptr, 0));
  ASSERT_OK(Drv().cuLibraryGetKernel(&bump, library, "bump"));
  for (int round = 0; round < 3; ++round) {
    EXPECT_OK(Drv().cuLaunchKernel(reinterpret_cast<CUfunction>(bump), 1, 1, 1, 5, 1, 1, 0, nullptr,
                                   nullptr, nullptr));
    CUdeviceptr address = 0;
    size_t bytes = 0;
    unsigned count = 0;
    EXPECT_OK(Drv().cuLibraryGetGlobal(&address, &bytes, library, "counter"));
    EXPECT_OK(Drv().cuMemcpyDtoH_v2(&count, address, 4));
    EXPECT_EQ(count, 5u) << round;
    EXPECT_OK(Drv().cuDevicePrimaryCtxReset_v2(0));
    ASSERT_OK(Drv().cuCtxSetCurrent(Retain()));
  }
  EXPECT_OK(Drv().cuLibraryUnload(library));
}

API_TEST_ALONE(PrimaryContextTest, OldResetDoesTheSame) {
  ASSERT_OK(Drv().cuCtxSetCurrent(Retain()));
  EXPECT_OK(Drv().cuDevicePrimaryCtxReset(0));
  ASSERT_OK(Drv().cuCtxSetCurrent(Retain()));
  DeviceBuffer buffer(64);
  buffer.Fill(4);
  EXPECT_EQ(buffer.ReadWord(), 0x04040404u);
}

API_TEST_ALONE(PrimaryContextTest, ResetOfAnInactiveOneIsHarmless) {
  EXPECT_OK(Drv().cuDevicePrimaryCtxReset_v2(0));
  EXPECT_EQ(GetState().active, 0);
}

API_TEST_ALONE(PrimaryContextTest, UnknownDeviceIsRefused) {
  int count = 0;
  ASSERT_OK(Drv().cuDeviceGetCount(&count));
  CUcontext context = nullptr;
  State state;
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, Drv().cuDevicePrimaryCtxRetain(&context, count));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, Drv().cuDevicePrimaryCtxRelease_v2(count));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, Drv().cuDevicePrimaryCtxSetFlags_v2(count, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE,
                Drv().cuDevicePrimaryCtxGetState(count, &state.flags, &state.active));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, Drv().cuDevicePrimaryCtxReset_v2(-1));
}

API_TEST_ALONE(PrimaryContextTest, RetainRefusesNullOutput) {
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuDevicePrimaryCtxRetain(nullptr, 0));
  EXPECT_EQ(GetState().active, 0);
}

API_TEST_ALONE(PrimaryContextTest, MemoryIsSharedByAllWhoRetainIt) {
  CUcontext context = Retain();
  ASSERT_OK(Drv().cuCtxSetCurrent(context));
  DeviceBuffer buffer(4);
  buffer.Write<unsigned>({77});
  RunThreads(2, [&](int) {
    CUcontext own = nullptr;
    EXPECT_OK(Drv().cuDevicePrimaryCtxRetain(&own, 0));
    EXPECT_OK(Drv().cuCtxSetCurrent(own));
    EXPECT_EQ(buffer.ReadWord(), 77u);
    EXPECT_OK(Drv().cuDevicePrimaryCtxRelease_v2(0));
  });
  EXPECT_EQ(GetState().active, 1);
}

}  // namespace
}  // namespace consort::tests::api
