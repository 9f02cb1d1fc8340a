// SPDX-License-Identifier: Apache-2.0
// Processes that fork. The driver is not usable in the child of a process that has initialized it,
// and says so (CUDA_ERROR_NOT_INITIALIZED; the runtime's documentation and every framework's fork
// checks rely on it); a fork before cuInit is ordinary. Nothing may hang, and the parent must not
// notice. Every case has a process of its own, whose driver is untouched.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using ForkTest = UninitializedTest;

constexpr int kChildSeconds = 60;

// Prints and counts each call that did not return `expected`.
int CountOthers(CUresult expected, std::initializer_list<std::pair<const char*, CUresult>> calls) {
  int others = 0;
  for (const auto& [name, result] : calls) {
    if (result == expected) continue;
    std::fprintf(stderr, "%s returned %s\n", name, ResultName(result));
    ++others;
  }
  return others;
}

void InitializeWithContext() {
  Require(Drv().cuInit(0), "cuInit");
  Require(Drv().cuCtxSetCurrent(PrimaryContext()), "cuCtxSetCurrent");
}

// Initializes, runs a kernel and checks what it computed. 0 if all is well.
int UseDriver() {
  InitializeWithContext();
  Module module(kBasicPtx);
  DeviceBuffer out(4096);
  Require(Launch(module.Function("fill_index"), 4, 256, nullptr, out.get(), 1024u),
          "cuLaunchKernel");
  return out.Read<unsigned>(1024) == Iota(1024) ? 0 : 1;
}

void ExpectGood(const ChildOutcome& outcome) {
  EXPECT_TRUE(!outcome.timed_out && outcome.exited && outcome.status == 0) << outcome;
}

API_TEST_ALONE(ForkTest, ChildOfAnInitializedProcessIsToldSo) {
  InitializeWithContext();
  DeviceBuffer buffer(64);
  ExpectGood(RunForked(
      [&] {
        CUdeviceptr address = 0;
        unsigned word = 0;
        CUstream stream = nullptr;
        return CountOthers(CUDA_ERROR_NOT_INITIALIZED,
                           {{"cuMemAlloc", Drv().cuMemAlloc_v2(&address, 64)},
                            {"cuMemcpyDtoH", Drv().cuMemcpyDtoH_v2(&word, buffer, 4)},
                            {"cuStreamCreate", Drv().cuStreamCreate(&stream, 0)},
                            {"cuCtxSynchronize", Drv().cuCtxSynchronize()}});
      },
      kChildSeconds));
}

API_TEST_ALONE(ForkTest, ChildOfAnInitializedProcessCannotInitialize) {
  InitializeWithContext();
  ExpectGood(RunForked(
      [] {
        return CountOthers(CUDA_ERROR_NOT_INITIALIZED, {{"cuInit", Drv().cuInit(0)}});
      },
      kChildSeconds));
}

API_TEST_ALONE(ForkTest, ChildOfAnInitializedProcessLearnsNothingOfDevices) {
  InitializeWithContext();
  ExpectGood(RunForked(
      [] {
        int count = 0;
        CUcontext context = nullptr;
        return CountOthers(
            CUDA_ERROR_NOT_INITIALIZED,
            {{"cuDeviceGetCount", Drv().cuDeviceGetCount(&count)},
             {"cuDevicePrimaryCtxRetain", Drv().cuDevicePrimaryCtxRetain(&context, 0)}});
      },
      kChildSeconds));
}

API_TEST_ALONE(ForkTest, ParentGoesOn) {
  InitializeWithContext();
  DeviceBuffer buffer(64);
  buffer.Write<unsigned>({123});
  for (int round = 0; round < 3; ++round) {
    const ChildOutcome outcome = RunForked(
        [&] {
          unsigned word = 0;
          Drv().cuMemcpyDtoH_v2(&word, buffer, 4);
          Drv().cuMemFree_v2(buffer);
          return 0;
        },
        kChildSeconds);
    ExpectGood(outcome);
    EXPECT_EQ(buffer.ReadWord(), 123u);
  }
  EXPECT_EQ(UseDriver(), 0);
}

API_TEST_ALONE(ForkTest, ParentGoesOnWithWorkInFlight) {
  InitializeWithContext();
  DeviceBuffer out(4);
  out.Fill(0);
  Stream stream;
  StreamGate gate(stream);
  EXPECT_OK(Drv().cuMemsetD32Async(out, 9, 1, stream));
  ExpectGood(RunForked([] { return 0; }, kChildSeconds));
  gate.Open();
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(out.ReadWord(), 9u);
}

API_TEST_ALONE(ForkTest, ChildThatExitsOrdinarilyDisturbsNobody) {
  // exit() runs the exit handlers and destructors that the parent's driver registered.
  InitializeWithContext();
  DeviceBuffer buffer(64);
  buffer.Write<unsigned>({321});
  const ChildOutcome outcome = RunForked([]() -> int { std::exit(0); }, kChildSeconds);
  EXPECT_FALSE(outcome.timed_out) << outcome;
  EXPECT_EQ(buffer.ReadWord(), 321u);
  EXPECT_EQ(UseDriver(), 0);
}

API_TEST_ALONE(ForkTest, ForkBeforeInitGivesAUsableChild) {
  ExpectGood(RunForked(UseDriver, kChildSeconds));
}

API_TEST_ALONE(ForkTest, ForkBeforeInitGivesTwoUsableProcesses) {
  ExpectGood(RunForked(UseDriver, kChildSeconds));
  EXPECT_EQ(UseDriver(), 0);
}

API_TEST_ALONE(ForkTest, AskingTheVersionIsNoInitialization) {
  int version = 0;
  EXPECT_OK(Drv().cuDriverGetVersion(&version));
  ExpectGood(RunForked(UseDriver, kChildSeconds));
}

API_TEST_ALONE(ForkTest, SeveralChildrenWorkAtOnce) {
  // A tree of processes: every one of them initializes for itself.
  ExpectGood(RunForked(
      [] {
        int failures = 0;
        RunThreads(3, [&failures](int) {
          const ChildOutcome outcome = RunForked(UseDriver, kChildSeconds);
          if (!outcome.exited || outcome.status != 0) {
            std::fprintf(stderr, "%s", outcome.output.c_str());
            __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
          }
        });
        return failures;
      },
      kChildSeconds * 3));
}

}  // namespace
}  // namespace consort::tests::api
