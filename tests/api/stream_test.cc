// SPDX-License-Identifier: Apache-2.0
// Streams: creation, queries, ordering. That a stream is busy or that one waits for another is
// proved by a host function that does not return (StreamGate) and by data, never by time. Source:
// CUDA Driver API reference 13.0, "Stream Management", "Stream synchronization behavior" (legacy
// and per-thread default stream): work in a blocking stream and in the legacy stream wait for each
// other; non-blocking streams do not.
#include <memory>
#include <set>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using StreamTest = ContextTest;

API_TEST(StreamTest, FlagsAreThoseGiven) {
  for (unsigned given : {CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING}) {
    Stream stream(given);
    unsigned flags = 77;
    EXPECT_OK(Drv().cuStreamGetFlags(stream, &flags));
    EXPECT_EQ(flags, given);
  }
}

API_TEST(StreamTest, CreationRefusesBadArguments) {
  CUstream stream = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuStreamCreate(nullptr, CU_STREAM_DEFAULT));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuStreamCreate(&stream, 0x80));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuStreamCreateWithPriority(nullptr, CU_STREAM_DEFAULT, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuStreamCreateWithPriority(&stream, 0x80, 0));
}

API_TEST(StreamTest, PriorityWithinTheRangeIsKept) {
  int least = 0;
  int greatest = 0;
  ASSERT_OK(Drv().cuCtxGetStreamPriorityRange(&least, &greatest));
  for (int priority = greatest; priority <= least; ++priority) {
    CUstream stream = nullptr;
    ASSERT_OK(Drv().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, priority));
    int found = 99;
    EXPECT_OK(Drv().cuStreamGetPriority(stream, &found));
    EXPECT_EQ(found, priority);
    EXPECT_OK(Drv().cuStreamDestroy_v2(stream));
  }
}

API_TEST(StreamTest, PriorityOutsideTheRangeIsClamped) {
  int least = 0;
  int greatest = 0;
  ASSERT_OK(Drv().cuCtxGetStreamPriorityRange(&least, &greatest));
  for (const auto& [asked, expected] : {std::pair(1000, least), std::pair(-1000, greatest)}) {
    CUstream stream = nullptr;
    ASSERT_OK(Drv().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, asked));
    int found = 99;
    EXPECT_OK(Drv().cuStreamGetPriority(stream, &found));
    EXPECT_EQ(found, expected);
    EXPECT_OK(Drv().cuStreamDestroy_v2(stream));
  }
}

API_TEST(StreamTest, DefaultPriorityIsZero) {
  Stream stream;
  int priority = 99;
  EXPECT_OK(Drv().cuStreamGetPriority(stream, &priority));
  EXPECT_EQ(priority, 0);
}

API_TEST(StreamTest, ContextIsThatOfItsCreation) {
  Stream stream;
  CUcontext found = nullptr;
  EXPECT_OK(Drv().cuStreamGetCtx(stream, &found));
  EXPECT_EQ(found, context());
  found = nullptr;
  EXPECT_OK(Drv().cuStreamGetCtx(nullptr, &found))
      << "the NULL stream is that of the current context";
  EXPECT_EQ(found, context());
}

API_TEST(StreamTest, DeviceIsThatOfItsContext) {
  Stream stream;
  CUdevice found = -1;
  EXPECT_OK(Drv().cuStreamGetDevice(stream, &found));
  EXPECT_EQ(found, device());
}

API_TEST(StreamTest, IdsAreUniqueAndNotReused) {
  std::set<unsigned long long> ids;
  for (int round = 0; round < 5; ++round) {
    Stream first;
    Stream second;
    for (CUstream stream : {first.get(), second.get()}) {
      unsigned long long id = 0;
      unsigned long long again = 1;
      ASSERT_OK(Drv().cuStreamGetId(stream, &id));
      ASSERT_OK(Drv().cuStreamGetId(stream, &again));
      EXPECT_EQ(id, again);
      EXPECT_TRUE(ids.insert(id).second);
    }
  }
}

API_TEST(StreamTest, NullAndLegacyAreOneStream) {
  unsigned long long by_null = 0;
  unsigned long long by_handle = 1;
  unsigned long long per_thread = 0;
  EXPECT_OK(Drv().cuStreamGetId(nullptr, &by_null));
  EXPECT_OK(Drv().cuStreamGetId(CU_STREAM_LEGACY, &by_handle));
  EXPECT_OK(Drv().cuStreamGetId(CU_STREAM_PER_THREAD, &per_thread));
  EXPECT_EQ(by_null, by_handle);
  EXPECT_NE(by_null, per_thread);
}

API_TEST(StreamTest, QueriesRefuseNullOutputs) {
  Stream stream;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuStreamGetFlags(stream, nullptr));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuStreamGetPriority(stream, nullptr));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuStreamGetCtx(stream, nullptr));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuStreamGetId(stream, nullptr));
}

API_TEST(StreamTest, IdleStreamIsComplete) {
  Stream stream;
  EXPECT_OK(Drv().cuStreamQuery(stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_OK(Drv().cuStreamQuery(nullptr));
  EXPECT_OK(Drv().cuStreamQuery(CU_STREAM_LEGACY));
  EXPECT_OK(Drv().cuStreamQuery(CU_STREAM_PER_THREAD));
}

API_TEST(StreamTest, BusyStreamIsNotReady) {
  Stream stream;
  StreamGate gate(stream);
  EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(stream));
  EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(stream)) << "asking changes nothing";
  gate.Open();
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_OK(Drv().cuStreamQuery(stream));
  EXPECT_FALSE(gate.timed_out());
}

API_TEST(StreamTest, RunningKernelIsNotReady) {
  Module module(kTimingPtx);
  const CUfunction spin = module.Function("spin");
  DeviceBuffer out(4);
  Stream stream;
  ASSERT_OK(Launch(spin, 1, 1, stream, 0ull, out.get(), 1u));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  constexpr unsigned long long kHalfASecond = 500'000'000;
  EXPECT_OK(Launch(spin, 1, 1, stream, kHalfASecond, out.get(), 2u));
  EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_OK(Drv().cuStreamQuery(stream));
  EXPECT_EQ(out.ReadWord(), 2u);
}

API_TEST(StreamTest, NotReadyIsNoStickyError) {
  Stream stream;
  Stream other;
  StreamGate gate(stream);
  EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(stream));
  EXPECT_OK(Drv().cuStreamQuery(other));
  gate.Open();
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
}

API_TEST(StreamTest, SynchronizeWaitsForAllOfTheStream) {
  Module module(kBasicPtx);
  const CUfunction add = module.Function("add_to");
  DeviceBuffer out(4);
  out.Fill(0);
  PinnedBuffer back(4);
  Stream stream;
  for (unsigned round = 0; round < 100; ++round)
    ASSERT_OK(Launch(add, 1, 1, stream, out.get(), 1u));
  EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(back.get(), out, 4, stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(*back.as<unsigned>(), 100u);
}

API_TEST(StreamTest, HundredStreamsWorkAtOnce) {
  Module module(kBasicPtx);
  const CUfunction store = module.Function("store");
  constexpr unsigned kCount = 100;
  DeviceBuffer out(kCount * 4);
  std::vector<std::unique_ptr<Stream>> streams;
  for (unsigned index = 0; index < kCount; ++index) {
    streams.push_back(
        std::make_unique<Stream>(index % 2 == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
    EXPECT_OK(Launch(store, 1, 1, *streams.back(), out.get() + index * 4, index));
  }
  for (const auto& stream : streams) EXPECT_OK(Drv().cuStreamSynchronize(*stream));
  EXPECT_EQ(out.Read<unsigned>(kCount), Iota(kCount));
}

API_TEST(StreamTest, NonBlockingStreamsDoNotWaitForEachOther) {
  Stream closed;
  Stream free_stream;
  DeviceBuffer out(4);
  StreamGate gate(closed);
  EXPECT_OK(Drv().cuMemsetD32Async(out, 5, 1, free_stream));
  EXPECT_OK(Drv().cuStreamSynchronize(free_stream)) << "returns while the other is still waiting";
  EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(closed));
  gate.Open();
  EXPECT_OK(Drv().cuStreamSynchronize(closed));
  EXPECT_FALSE(gate.timed_out());
  EXPECT_EQ(out.ReadWord(), 5u);
}

// ---- the default streams ----

API_TEST(StreamTest, LegacyStreamWaitsForBlockingStreams) {
  Stream blocking(CU_STREAM_DEFAULT);
  DeviceBuffer first(4);
  DeviceBuffer second(4);
  first.Fill(0);
  second.Fill(0);
  StreamGate gate(blocking);
  EXPECT_OK(Drv().cuMemsetD32Async(first, 11, 1, blocking));
  EXPECT_OK(Drv().cuMemcpyDtoDAsync_v2(second, first, 4, nullptr));
  EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(nullptr))
      << "it waits behind the blocking stream";
  gate.Open();
  EXPECT_OK(Drv().cuStreamSynchronize(nullptr));
  EXPECT_EQ(second.ReadWord(), 11u);
  EXPECT_FALSE(gate.timed_out());
}

API_TEST(StreamTest, BlockingStreamsWaitForTheLegacyStream) {
  Stream blocking(CU_STREAM_DEFAULT);
  DeviceBuffer first(4);
  DeviceBuffer second(4);
  first.Fill(0);
  second.Fill(0);
  StreamGate gate(CU_STREAM_LEGACY);
  EXPECT_OK(Drv().cuMemsetD32Async(first, 12, 1, CU_STREAM_LEGACY));
  EXPECT_OK(Drv().cuMemcpyDtoDAsync_v2(second, first, 4, blocking));
  EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(blocking));
  gate.Open();
  EXPECT_OK(Drv().cuStreamSynchronize(blocking));
  EXPECT_EQ(second.ReadWord(), 12u);
  EXPECT_FALSE(gate.timed_out());
}

API_TEST(StreamTest, LegacyStreamDoesNotWaitForNonBlockingStreams) {
  Stream non_blocking(CU_STREAM_NON_BLOCKING);
  DeviceBuffer out(4);
  StreamGate gate(non_blocking);
  EXPECT_OK(Drv().cuMemsetD32Async(out, 13, 1, nullptr));
  EXPECT_OK(Drv().cuStreamSynchronize(nullptr));
  EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(non_blocking));
  gate.Open();
  EXPECT_OK(Drv().cuStreamSynchronize(non_blocking));
  EXPECT_FALSE(gate.timed_out()) << "the legacy stream waited for a non-blocking one";
}

API_TEST(StreamTest, NonBlockingStreamsDoNotWaitForTheLegacyStream) {
  Stream non_blocking(CU_STREAM_NON_BLOCKING);
  DeviceBuffer out(4);
  StreamGate gate(nullptr);
  EXPECT_OK(Drv().cuMemsetD32Async(out, 14, 1, non_blocking));
  EXPECT_OK(Drv().cuStreamSynchronize(non_blocking));
  EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(nullptr));
  gate.Open();
  EXPECT_OK(Drv().cuStreamSynchronize(nullptr));
  EXPECT_FALSE(gate.timed_out()) << "a non-blocking stream waited for the legacy one";
}

API_TEST(StreamTest, LegacyStreamWaitsForThePerThreadStream) {
  DeviceBuffer first(4);
  DeviceBuffer second(4);
  first.Fill(0);
  second.Fill(0);
  StreamGate gate(CU_STREAM_PER_THREAD);
  EXPECT_OK(Drv().cuMemsetD32Async(first, 15, 1, CU_STREAM_PER_THREAD));
  EXPECT_OK(Drv().cuMemcpyDtoDAsync_v2(second, first, 4, nullptr));
  gate.Open();
  EXPECT_OK(Drv().cuStreamSynchronize(nullptr));
  EXPECT_EQ(second.ReadWord(), 15u);
  EXPECT_FALSE(gate.timed_out());
}

API_TEST(StreamTest, PerThreadStreamsOfTwoThreadsAreTwo) {
  DeviceBuffer out(4);
  const CUcontext current = context();
  unsigned long long mine = 0;
  unsigned long long other = 0;
  ASSERT_OK(Drv().cuStreamGetId(CU_STREAM_PER_THREAD, &mine));
  StreamGate gate(CU_STREAM_PER_THREAD);
  RunThreads(1, [&](int) {
    Require(Drv().cuCtxSetCurrent(current), "cuCtxSetCurrent");
    EXPECT_OK(Drv().cuStreamGetId(CU_STREAM_PER_THREAD, &other));
    EXPECT_OK(Drv().cuMemsetD32Async(out, 16, 1, CU_STREAM_PER_THREAD));
    EXPECT_OK(Drv().cuStreamSynchronize(CU_STREAM_PER_THREAD))
        << "not held up by the other thread's stream";
  });
  EXPECT_NE(mine, other);
  EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(CU_STREAM_PER_THREAD));
  gate.Open();
  EXPECT_OK(Drv().cuStreamSynchronize(CU_STREAM_PER_THREAD));
  EXPECT_FALSE(gate.timed_out());
}

API_TEST(StreamTest, DefaultStreamHandlesRunKernels) {
  Module module(kBasicPtx);
  const CUfunction store = module.Function("store");
  DeviceBuffer out(4);
  unsigned value = 20;
  for (CUstream stream : {static_cast<CUstream>(nullptr), CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    EXPECT_OK(Launch(store, 1, 1, stream, out.get(), ++value));
    EXPECT_OK(Drv().cuStreamSynchronize(stream));
    EXPECT_EQ(out.ReadWord(), value);
  }
}

// ---- waiting for events ----

API_TEST(StreamTest, WaitsForAnEventOfAnotherStream) {
  Stream producer;
  Stream consumer;
  Event event(CU_EVENT_DISABLE_TIMING);
  DeviceBuffer first(4);
  DeviceBuffer second(4);
  first.Fill(0);
  second.Fill(0);
  StreamGate gate(producer);
  EXPECT_OK(Drv().cuMemsetD32Async(first, 31, 1, producer));
  EXPECT_OK(Drv().cuEventRecord(event, producer));
  EXPECT_OK(Drv().cuStreamWaitEvent(consumer, event, 0));
  EXPECT_OK(Drv().cuMemcpyDtoDAsync_v2(second, first, 4, consumer));
  EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(consumer));
  gate.Open();
  EXPECT_OK(Drv().cuStreamSynchronize(consumer));
  EXPECT_EQ(second.ReadWord(), 31u);
  EXPECT_FALSE(gate.timed_out());
}

API_TEST(StreamTest, WaitForAnEventNeverRecordedIsNoWait) {
  Stream stream;
  Event event;
  EXPECT_OK(Drv().cuStreamWaitEvent(stream, event, 0));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
}

API_TEST(StreamTest, WaitUsesTheStateAtTheCall) {
  // A later record of the same event does not change what an earlier wait waits for.
  Stream recorded;
  Stream closed;
  Stream waiting;
  Event event(CU_EVENT_DISABLE_TIMING);
  EXPECT_OK(Drv().cuEventRecord(event, recorded));
  EXPECT_OK(Drv().cuStreamWaitEvent(waiting, event, 0));
  StreamGate gate(closed);
  EXPECT_OK(Drv().cuEventRecord(event, closed));
  EXPECT_OK(Drv().cuStreamSynchronize(waiting));
  gate.Open();
  EXPECT_OK(Drv().cuStreamSynchronize(closed));
  EXPECT_FALSE(gate.timed_out());
}

API_TEST(StreamTest, ChainOfStreamsKeepsOrder) {
  Module module(kBasicPtx);
  const CUfunction add = module.Function("add_to");
  const CUfunction copy = module.Function("copy_word");
  constexpr unsigned kLinks = 16;
  DeviceBuffer words((kLinks + 1) * 4);
  words.Fill(0);
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Event>> events;
  for (unsigned link = 0; link < kLinks; ++link) {
    streams.push_back(std::make_unique<Stream>());
    events.push_back(std::make_unique<Event>(CU_EVENT_DISABLE_TIMING));
    if (link > 0) {
      EXPECT_OK(Drv().cuStreamWaitEvent(*streams[link], *events[link - 1], 0));
    }
    EXPECT_OK(Launch(add, 1, 1, *streams[link], words.get() + link * 4, link + 1));
    EXPECT_OK(
        Launch(copy, 1, 1, *streams[link], words.get() + link * 4 + 4, words.get() + link * 4));
    EXPECT_OK(Drv().cuEventRecord(*events[link], *streams[link]));
  }
  EXPECT_OK(Drv().cuEventSynchronize(*events.back()));
  EXPECT_EQ(words.Read<unsigned>(kLinks + 1)[kLinks], kLinks * (kLinks + 1) / 2);
}

API_TEST(StreamTest, WaitsForAnEventOfAnotherContext) {
  Stream consumer;
  DeviceBuffer out(4);
  out.Fill(0);
  CreatedContext other(device());
  ASSERT_OK(Drv().cuCtxPushCurrent_v2(other));
  {
    Stream producer;
    Event event(CU_EVENT_DISABLE_TIMING);
    StreamGate gate(producer);
    EXPECT_OK(Drv().cuEventRecord(event, producer));
    ASSERT_OK(Drv().cuCtxPushCurrent_v2(context()));
    EXPECT_OK(Drv().cuStreamWaitEvent(consumer, event, 0));
    EXPECT_OK(Drv().cuMemsetD32Async(out, 32, 1, consumer));
    EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(consumer));
    gate.Open();
    EXPECT_OK(Drv().cuStreamSynchronize(consumer));
    EXPECT_EQ(out.ReadWord(), 32u);
    EXPECT_FALSE(gate.timed_out());
    ASSERT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
  }
  ASSERT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
}

API_TEST(StreamTest, WaitRefusesBadArguments) {
  Stream stream;
  Event event;
  EXPECT_ONE_OF(Drv().cuStreamWaitEvent(stream, nullptr, 0), CUDA_ERROR_INVALID_HANDLE,
                CUDA_ERROR_INVALID_VALUE);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuStreamWaitEvent(stream, event, 0x80));
}

// ---- the end of a stream ----

API_TEST(StreamTest, DestroyedWhileBusyFinishesItsWork) {
  CUstream stream = nullptr;
  ASSERT_OK(Drv().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  Event event(CU_EVENT_DISABLE_TIMING);
  DeviceBuffer out(4);
  out.Fill(0);
  StreamGate gate(stream);
  EXPECT_OK(Drv().cuMemsetD32Async(out, 41, 1, stream));
  EXPECT_OK(Drv().cuEventRecord(event, stream));
  EXPECT_OK(Drv().cuStreamDestroy_v2(stream)) << "returns at once";
  EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuEventQuery(event));
  gate.Open();
  EXPECT_OK(Drv().cuEventSynchronize(event));
  EXPECT_EQ(out.ReadWord(), 41u);
  EXPECT_FALSE(gate.timed_out());
}

API_TEST_ALONE(StreamTest, DefaultStreamsCannotBeDestroyed) {
  EXPECT_ONE_OF(Drv().cuStreamDestroy_v2(nullptr), CUDA_ERROR_INVALID_HANDLE,
                CUDA_ERROR_INVALID_VALUE);
  EXPECT_ONE_OF(Drv().cuStreamDestroy_v2(CU_STREAM_LEGACY), CUDA_ERROR_INVALID_HANDLE,
                CUDA_ERROR_INVALID_VALUE);
  EXPECT_ONE_OF(Drv().cuStreamDestroy_v2(CU_STREAM_PER_THREAD), CUDA_ERROR_INVALID_HANDLE,
                CUDA_ERROR_INVALID_VALUE);
}

API_TEST(StreamTest, DestroyedStreamIsRefused) {
  SKIP_ON_ORACLE("the reference leaves use of a destroyed stream undefined");
  CUstream stream = nullptr;
  ASSERT_OK(Drv().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  ASSERT_OK(Drv().cuStreamDestroy_v2(stream));
  EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE, Drv().cuStreamQuery(stream));
  EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE, Drv().cuStreamSynchronize(stream));
  EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE, Drv().cuStreamDestroy_v2(stream));
}

API_TEST(StreamTest, CanBeCreatedAndDestroyedAThousandTimes) {
  for (int round = 0; round < 1000; ++round) {
    CUstream stream = nullptr;
    ASSERT_OK(Drv().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ASSERT_OK(Drv().cuStreamDestroy_v2(stream));
  }
}

API_TEST(StreamTest, IsNotCapturingByItself) {
  Stream stream;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  EXPECT_OK(Drv().cuStreamIsCapturing(stream, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
}

API_TEST(StreamTest, CaptureModeOfTheThreadIsExchanged) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  EXPECT_OK(Drv().cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL) << "the default of a thread";
  EXPECT_OK(Drv().cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
}

}  // namespace
}  // namespace consort::tests::api
