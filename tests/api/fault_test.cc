// SPDX-License-Identifier: Apache-2.0
// Kernels that fail: the error appears at the next synchronization, stays, and ends nothing but the
// context. Every case has a process of its own. Source: CUresult in the CUDA Driver API
// reference 13.0: ILLEGAL_ADDRESS, MISALIGNED_ADDRESS, LAUNCH_FAILED, ILLEGAL_INSTRUCTION, ASSERT
// ("this leaves the process in an inconsistent state and any further CUDA work will return the same
// error").
#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

class FaultTest : public ContextTest {
 protected:
  void TearDown() override {}  // the error is there to stay
};

constexpr unsigned long long kNobodysAddress = 0x10;

CUresult LaunchFault(const Module& module, CUstream stream = nullptr) {
  return Launch(module.Function("store_at"), 1, 1, stream, kNobodysAddress);
}

API_TEST_ALONE(FaultTest, IllegalAddressAppearsAtContextSynchronize) {
  Module module(kFaultsPtx);
  EXPECT_OK(LaunchFault(module)) << "the launch itself is in order";
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuCtxSynchronize());
}

API_TEST_ALONE(FaultTest, IllegalAddressAppearsAtStreamSynchronize) {
  Module module(kFaultsPtx);
  Stream stream;
  EXPECT_OK(LaunchFault(module, stream));
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuStreamSynchronize(stream));
}

API_TEST_ALONE(FaultTest, IllegalAddressAppearsAtEventSynchronize) {
  Module module(kFaultsPtx);
  Stream stream;
  Event event;
  EXPECT_OK(LaunchFault(module, stream));
  const CUresult recorded = Drv().cuEventRecord(event, stream);
  EXPECT_TRUE(recorded == CUDA_SUCCESS || recorded == CUDA_ERROR_ILLEGAL_ADDRESS)
      << ResultName(recorded);
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuEventSynchronize(event));
}

API_TEST_ALONE(FaultTest, IllegalAddressAppearsAtASynchronousCopy) {
  Module module(kFaultsPtx);
  DeviceBuffer buffer(4);
  unsigned word = 0;
  EXPECT_OK(LaunchFault(module));
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuMemcpyDtoH_v2(&word, buffer, 4));
}

API_TEST_ALONE(FaultTest, IllegalAddressIsSticky) {
  Module module(kFaultsPtx);
  Module basic(kBasicPtx);
  const CUfunction bump = basic.Function("bump");
  EXPECT_OK(LaunchFault(module));
  ASSERT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuCtxSynchronize());
  CUdeviceptr address = 0;
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuCtxSynchronize());
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuMemAlloc_v2(&address, 64));
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuStreamSynchronize(nullptr));
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuStreamQuery(nullptr));
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS,
                Drv().cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
}

API_TEST_ALONE(FaultTest, CallsThatMakeSomethingReturnTheErrorToo) {
  Module module(kFaultsPtx);
  EXPECT_OK(LaunchFault(module));
  ASSERT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuCtxSynchronize());
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUmodule other = nullptr;
  void* pinned = nullptr;
  std::vector<char> own(1 << 16);
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuStreamCreate(&stream, 0));
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuEventCreate(&event, 0));
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuMemHostAlloc(&pinned, 4096, 0));
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuMemHostRegister_v2(own.data(), own.size(), 0));
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuModuleLoadData(&other, kBasicPtx.data));
}

API_TEST_ALONE(FaultTest, QueriesThatNeedNoDeviceStillWork) {
  Module module(kFaultsPtx);
  EXPECT_OK(LaunchFault(module));
  ASSERT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuCtxSynchronize());
  int count = 0;
  int version = 0;
  CUcontext current = nullptr;
  const char* text = nullptr;
  EXPECT_OK(Drv().cuDriverGetVersion(&version));
  EXPECT_OK(Drv().cuDeviceGetCount(&count));
  EXPECT_OK(Drv().cuCtxGetCurrent(&current));
  EXPECT_EQ(current, context());
  EXPECT_OK(Drv().cuGetErrorString(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
}

API_TEST_ALONE(FaultTest, AddressFarFromAnyAllocationIsIllegal) {
  Module module(kFaultsPtx);
  DeviceBuffer buffer(64);
  EXPECT_OK(Launch(module.Function("store_at"), 1, 1, nullptr,
                   static_cast<unsigned long long>(buffer.get()) - (1ull << 40)));
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuCtxSynchronize());
}

API_TEST_ALONE(FaultTest, TrapFailsTheLaunch) {
  Module module(kFaultsPtx);
  EXPECT_OK(Drv().cuLaunchKernel(module.Function("trap_now"), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr,
                                 nullptr));
  EXPECT_ONE_OF(Drv().cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_ILLEGAL_INSTRUCTION);
}

API_TEST_ALONE(FaultTest, MisalignedAddressIsReported) {
  Module module(kFaultsPtx);
  DeviceBuffer buffer(64);
  EXPECT_OK(Launch(module.Function("misaligned"), 1, 1, nullptr, buffer.get()));
  EXPECT_RESULT(CUDA_ERROR_MISALIGNED_ADDRESS, Drv().cuCtxSynchronize());
}

// The reference has STACK_ERROR for "exceeding the stack size limit", and the other two for
// accesses outside of memory, which a stack that grows out of its own becomes.
API_TEST_ALONE(FaultTest, RecursionBeyondTheStackIsReported) {
  Module module(kFaultsPtx);
  DeviceBuffer buffer(4);
  EXPECT_OK(Launch(module.Function("recurse"), 1, 1, nullptr, buffer.get(), 1u << 30));
  const CUresult result = Drv().cuCtxSynchronize();
  EXPECT_ONE_OF(result, CUDA_ERROR_HARDWARE_STACK_ERROR, CUDA_ERROR_ILLEGAL_ADDRESS,
                CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_RESULT(result, Drv().cuCtxSynchronize());
}

API_TEST_ALONE(FaultTest, AssertThatHoldsIsSilent) {
  Module module(kAssertPtx);
  EXPECT_OK(Launch(module.Function("assert_equal"), 1, 1, nullptr, 1u, 1u));
  EXPECT_OK(Drv().cuCtxSynchronize());
}

API_TEST_ALONE(FaultTest, AssertThatFailsIsReported) {
  Module module(kAssertPtx);
  EXPECT_OK(Launch(module.Function("assert_equal"), 1, 1, nullptr, 1u, 2u));
  EXPECT_RESULT(CUDA_ERROR_ASSERT, Drv().cuCtxSynchronize());
}

API_TEST_ALONE(FaultTest, WorkBeforeTheFaultWasDone) {
  Module module(kFaultsPtx);
  Module basic(kBasicPtx);
  PinnedBuffer pinned(4);
  *pinned.as<unsigned>() = 0;
  DeviceBuffer buffer(4);
  Stream stream;
  EXPECT_OK(Launch(basic.Function("store"), 1, 1, stream, buffer.get(), 17u));
  EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(pinned.get(), buffer, 4, stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_OK(LaunchFault(module, stream));
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(*pinned.as<unsigned>(), 17u);
}

API_TEST_ALONE(FaultTest, CallbackAfterAFaultLearnsOfIt) {
  Module module(kFaultsPtx);
  Stream stream;
  const CUfunction store_at = module.Function("store_at");
  struct Seen {
    Signal called;
    CUresult status = CUDA_SUCCESS;
  } seen;
  // The gate keeps the fault from happening before the callback is enqueued; the launch before it
  // loads the kernel, which may wait for the device.
  DeviceBuffer valid(4);
  ASSERT_OK(Launch(store_at, 1, 1, stream, static_cast<unsigned long long>(valid.get())));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  StreamGate gate(stream);
  EXPECT_OK(Launch(store_at, 1, 1, stream, kNobodysAddress));
  EXPECT_OK(Drv().cuStreamAddCallback(
      stream,
      [](CUstream, CUresult status, void* data) {
        static_cast<Seen*>(data)->status = status;
        static_cast<Seen*>(data)->called.Set();
      },
      &seen, 0));
  gate.Open();
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuStreamSynchronize(stream));
  ASSERT_TRUE(seen.called.Wait());
  EXPECT_NE(seen.status, CUDA_SUCCESS) << "an appropriate error";
}

API_TEST_ALONE(FaultTest, HostFunctionAfterAFaultIsNotCalled) {
  Module module(kFaultsPtx);
  Stream stream;
  const CUfunction store_at = module.Function("store_at");
  struct Seen {
    bool function_called = false;
    Signal callback_called;
  } seen;
  DeviceBuffer valid(4);
  ASSERT_OK(Launch(store_at, 1, 1, stream, static_cast<unsigned long long>(valid.get())));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  StreamGate gate(stream);
  EXPECT_OK(Launch(store_at, 1, 1, stream, kNobodysAddress));
  EXPECT_OK(Drv().cuLaunchHostFunc(
      stream, [](void* data) { static_cast<Seen*>(data)->function_called = true; }, &seen));
  // Behind it in the stream, and called in any case: when this has been, that would have been.
  EXPECT_OK(Drv().cuStreamAddCallback(
      stream,
      [](CUstream, CUresult, void* data) { static_cast<Seen*>(data)->callback_called.Set(); },
      &seen, 0));
  gate.Open();
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, Drv().cuStreamSynchronize(stream));
  ASSERT_TRUE(seen.callback_called.Wait());
  EXPECT_FALSE(seen.function_called);
}

}  // namespace
}  // namespace consort::tests::api
