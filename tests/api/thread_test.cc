// SPDX-License-Identifier: Apache-2.0
// Many threads in one process. Source: CUDA Driver API reference 13.0, introduction ("all functions
// are thread safe"), "Context Management" (a context may be current to several threads; each thread
// has its own stack).
#include <memory>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using ThreadTest = ContextTest;
constexpr int kThreads = 8;

API_TEST(ThreadTest, LaunchOnTheirOwnStreams) {
  Module module(kBasicPtx);
  const CUfunction add = module.Function("add_to");
  const CUcontext current = context();
  DeviceBuffer out(kThreads * 4);
  out.Fill(0);
  RunThreads(kThreads, [&](int index) {
    Require(Drv().cuCtxSetCurrent(current), "cuCtxSetCurrent");
    Stream stream;
    const CUdeviceptr mine = out.get() + static_cast<CUdeviceptr>(index) * 4;
    for (unsigned round = 0; round < 200; ++round) ASSERT_OK(Launch(add, 1, 1, stream, mine, 1u));
    EXPECT_OK(Drv().cuStreamSynchronize(stream));
  });
  EXPECT_EQ(out.Read<unsigned>(kThreads), std::vector<unsigned>(kThreads, 200));
}

API_TEST(ThreadTest, LaunchOnOneSharedStream) {
  Module module(kBasicPtx);
  const CUfunction bump = module.Function("bump");
  const CUcontext current = context();
  Stream stream;
  RunThreads(kThreads, [&](int) {
    Require(Drv().cuCtxSetCurrent(current), "cuCtxSetCurrent");
    for (int round = 0; round < 100; ++round) {
      ASSERT_OK(Drv().cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr));
    }
  });
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  unsigned count = 0;
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(&count, module.Global("counter"), 4));
  EXPECT_EQ(count, kThreads * 100u);
}

API_TEST(ThreadTest, AllocateAndFreeAtOnce) {
  const CUcontext current = context();
  RunThreads(kThreads, [&](int index) {
    Require(Drv().cuCtxSetCurrent(current), "cuCtxSetCurrent");
    for (unsigned round = 0; round < 40; ++round) {
      const size_t bytes = 64 + round * 4096 + static_cast<size_t>(index) * 64;
      DeviceBuffer buffer(bytes);
      buffer.Fill(static_cast<unsigned char>(index + 1));
      const auto data = buffer.Read<unsigned char>(bytes);
      size_t right = 0;
      for (unsigned char byte : data) right += byte == index + 1;
      ASSERT_EQ(right, bytes);
    }
  });
}

API_TEST(ThreadTest, CopyAtOnce) {
  const CUcontext current = context();
  RunThreads(kThreads, [&](int index) {
    Require(Drv().cuCtxSetCurrent(current), "cuCtxSetCurrent");
    Stream stream;
    constexpr size_t kWords = 100000;
    DeviceBuffer buffer(kWords * 4);
    PinnedBuffer in(kWords * 4);
    PinnedBuffer out(kWords * 4);
    for (int round = 0; round < 5; ++round) {
      const unsigned seed = static_cast<unsigned>(index * 1000000 + round);
      for (size_t at = 0; at < kWords; ++at)
        in.as<unsigned>()[at] = seed + static_cast<unsigned>(at);
      EXPECT_OK(Drv().cuMemcpyHtoDAsync_v2(buffer, in.get(), kWords * 4, stream));
      EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(out.get(), buffer, kWords * 4, stream));
      EXPECT_OK(Drv().cuStreamSynchronize(stream));
      size_t right = 0;
      for (size_t at = 0; at < kWords; ++at) right += out.as<unsigned>()[at] == seed + at;
      ASSERT_EQ(right, kWords);
    }
  });
}

API_TEST(ThreadTest, LoadModulesAtOnce) {
  const CUcontext current = context();
  RunThreads(kThreads, [&](int index) {
    Require(Drv().cuCtxSetCurrent(current), "cuCtxSetCurrent");
    for (int round = 0; round < 3; ++round) {
      Module module(index % 2 == 0 ? kBasicPtx : kBasicFatbinSize);
      DeviceBuffer out(4);
      Stream stream;
      EXPECT_OK(
          Launch(module.Function("store"), 1, 1, stream, out.get(), static_cast<unsigned>(index)));
      EXPECT_OK(Drv().cuStreamSynchronize(stream));
      EXPECT_EQ(out.ReadWord(), static_cast<unsigned>(index));
    }
  });
}

API_TEST(ThreadTest, HaveTheirOwnCurrentContexts) {
  constexpr int kContexts = 3;
  std::vector<std::unique_ptr<CreatedContext>> contexts;
  for (int index = 0; index < kContexts; ++index)
    contexts.push_back(std::make_unique<CreatedContext>(device()));
  RunThreads(kContexts, [&](int index) {
    const CUcontext mine = contexts[static_cast<size_t>(index)]->get();
    Require(Drv().cuCtxPushCurrent_v2(mine), "cuCtxPushCurrent");
    for (int round = 0; round < 100; ++round) {
      CUcontext current = nullptr;
      ASSERT_OK(Drv().cuCtxGetCurrent(&current));
      ASSERT_EQ(current, mine);
      DeviceBuffer buffer(64);
      CUcontext owner = nullptr;
      ASSERT_OK(Drv().cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, buffer));
      ASSERT_EQ(owner, mine);
    }
    EXPECT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
  });
}

API_TEST(ThreadTest, OneRecordsAnotherWaits) {
  const CUcontext current = context();
  Stream stream;
  Event event(CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
  StreamGate gate(stream);
  ASSERT_OK(Drv().cuEventRecord(event, stream));
  RunThreads(2, [&](int index) {
    Require(Drv().cuCtxSetCurrent(current), "cuCtxSetCurrent");
    if (index == 0) {
      EXPECT_OK(Drv().cuEventSynchronize(event));
    } else {
      EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuEventQuery(event));
      gate.Open();
    }
  });
  EXPECT_OK(Drv().cuEventQuery(event));
  EXPECT_FALSE(gate.timed_out());
}

API_TEST(ThreadTest, ABlockedThreadDoesNotHoldUpOthers) {
  const CUcontext current = context();
  Stream closed;
  StreamGate gate(closed);
  Signal done;
  RunThreads(2, [&](int index) {
    Require(Drv().cuCtxSetCurrent(current), "cuCtxSetCurrent");
    if (index == 0) {
      EXPECT_OK(Drv().cuStreamSynchronize(closed));
      return;
    }
    Stream stream;
    Event event(CU_EVENT_DISABLE_TIMING);
    for (int round = 0; round < 50; ++round) {
      EXPECT_OK(Drv().cuEventRecord(event, stream));
      EXPECT_OK(Drv().cuEventSynchronize(event));
    }
    done.Set();
    gate.Open();
  });
  EXPECT_TRUE(done.Wait());
  EXPECT_FALSE(gate.timed_out());
}

API_TEST(ThreadTest, ComeAndGo) {
  const CUcontext current = context();
  Module module(kBasicPtx);
  const CUfunction bump = module.Function("bump");
  for (int round = 0; round < 20; ++round) {
    RunThreads(4, [&](int) {
      Require(Drv().cuCtxSetCurrent(current), "cuCtxSetCurrent");
      EXPECT_OK(
          Drv().cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, CU_STREAM_PER_THREAD, nullptr, nullptr));
      EXPECT_OK(Drv().cuStreamSynchronize(CU_STREAM_PER_THREAD));
    });
  }
  unsigned count = 0;
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(&count, module.Global("counter"), 4));
  EXPECT_EQ(count, 80u);
}

}  // namespace
}  // namespace consort::tests::api
