// SPDX-License-Identifier: Apache-2.0
// Host functions and stream callbacks. Source: CUDA Driver API reference 13.0, cuLaunchHostFunc,
// cuStreamAddCallback: called after the work before, before the work after, exactly once; a
// callback gets the stream, the status and the user's pointer, and may not call the API
// (NOT_PERMITTED).
#include <atomic>
#include <cstring>
#include <memory>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using HostFunctionTest = ContextTest;

API_TEST(HostFunctionTest, RunsOnceWithItsPointer) {
  Stream stream;
  std::atomic<int> calls{0};
  EXPECT_OK(Drv().cuLaunchHostFunc(
      stream, [](void* data) { ++*static_cast<std::atomic<int>*>(data); }, &calls));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(calls, 1);
}

API_TEST(HostFunctionTest, TakesANullPointer) {
  Stream stream;
  static std::atomic<int> calls;
  calls = 0;
  EXPECT_OK(Drv().cuLaunchHostFunc(
      stream, [](void* data) { calls += data == nullptr ? 1 : 100; }, nullptr));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(calls, 1);
}

struct Log {
  std::mutex mutex;
  std::vector<int> entries;
};
struct LogEntry {
  Log* log;
  int value;
  static void CUDA_CB Append(void* data) {
    const LogEntry* entry = static_cast<LogEntry*>(data);
    std::lock_guard lock(entry->log->mutex);
    entry->log->entries.push_back(entry->value);
  }
};

API_TEST(HostFunctionTest, RunInStreamOrder) {
  constexpr int kCount = 500;
  Stream stream;
  Log log;
  std::vector<LogEntry> entries;
  std::vector<int> expected;
  for (int index = 0; index < kCount; ++index) {
    entries.push_back({&log, index});
    expected.push_back(index);
  }
  for (LogEntry& entry : entries)
    ASSERT_OK(Drv().cuLaunchHostFunc(stream, LogEntry::Append, &entry));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(log.entries, expected);
}

API_TEST(HostFunctionTest, RunsOnTheDefaultStreams) {
  Log log;
  LogEntry entries[] = {{&log, 1}, {&log, 2}, {&log, 3}};
  EXPECT_OK(Drv().cuLaunchHostFunc(nullptr, LogEntry::Append, &entries[0]));
  EXPECT_OK(Drv().cuLaunchHostFunc(CU_STREAM_LEGACY, LogEntry::Append, &entries[1]));
  EXPECT_OK(Drv().cuStreamSynchronize(nullptr));
  EXPECT_OK(Drv().cuLaunchHostFunc(CU_STREAM_PER_THREAD, LogEntry::Append, &entries[2]));
  EXPECT_OK(Drv().cuStreamSynchronize(CU_STREAM_PER_THREAD));
  EXPECT_EQ(log.entries, (std::vector<int>{1, 2, 3}));
}

API_TEST(HostFunctionTest, SeesWhatACopyBeforeItBrought) {
  Stream stream;
  DeviceBuffer buffer(4);
  PinnedBuffer pinned(4);
  struct Seen {
    unsigned* source;
    unsigned value;
  };
  for (unsigned round = 1; round <= 20; ++round) {
    *pinned.as<unsigned>() = 0;
    Seen seen = {pinned.as<unsigned>(), 0};
    EXPECT_OK(Drv().cuMemsetD32Async(buffer, round * 11, 1, stream));
    EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(pinned.get(), buffer, 4, stream));
    EXPECT_OK(Drv().cuLaunchHostFunc(
        stream,
        [](void* data) { static_cast<Seen*>(data)->value = *static_cast<Seen*>(data)->source; },
        &seen));
    EXPECT_OK(Drv().cuStreamSynchronize(stream));
    EXPECT_EQ(seen.value, round * 11);
  }
}

API_TEST(HostFunctionTest, SeesALargeCopyWhole) {
  constexpr size_t kBytes = size_t{8} << 20;
  Stream stream;
  DeviceBuffer buffer(kBytes);
  PinnedBuffer pinned(kBytes);
  std::memset(pinned.get(), 0, kBytes);
  struct Seen {
    const unsigned char* data;
    size_t right;
  } seen = {pinned.as<unsigned char>(), 0};
  EXPECT_OK(Drv().cuMemsetD8Async(buffer, 0x6b, kBytes, stream));
  EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(pinned.get(), buffer, kBytes, stream));
  EXPECT_OK(Drv().cuLaunchHostFunc(
      stream,
      [](void* data) {
        Seen* all = static_cast<Seen*>(data);
        for (size_t at = 0; at < kBytes; ++at) all->right += all->data[at] == 0x6b;
      },
      &seen));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(seen.right, kBytes);
}

API_TEST(HostFunctionTest, WorkAfterItSeesWhatItWrote) {
  Stream stream;
  DeviceBuffer buffer(4);
  PinnedBuffer pinned(4);
  *pinned.as<unsigned>() = 1;
  EXPECT_OK(Drv().cuLaunchHostFunc(
      stream, [](void* data) { *static_cast<unsigned*>(data) = 808; }, pinned.get()));
  EXPECT_OK(Drv().cuMemcpyHtoDAsync_v2(buffer, pinned.get(), 4, stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(buffer.ReadWord(), 808u);
}

API_TEST(HostFunctionTest, BlocksTheWorkAfterIt) {
  Stream stream;
  DeviceBuffer buffer(4);
  buffer.Fill(0);
  Event event(CU_EVENT_DISABLE_TIMING);
  StreamGate gate(stream);
  EXPECT_OK(Drv().cuMemsetD32Async(buffer, 1, 1, stream));
  EXPECT_OK(Drv().cuEventRecord(event, stream));
  EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuEventQuery(event));
  gate.Open();
  EXPECT_OK(Drv().cuEventSynchronize(event));
  EXPECT_EQ(buffer.ReadWord(), 1u);
  EXPECT_FALSE(gate.timed_out());
}

API_TEST(HostFunctionTest, WaitsForTheWorkBeforeIt) {
  Module module(kTimingPtx);
  const CUfunction spin = module.Function("spin");
  Stream stream;
  PinnedBuffer pinned(4);
  DeviceBuffer buffer(4);
  buffer.Fill(0);
  *pinned.as<unsigned>() = 0;
  struct Seen {
    unsigned* source;
    unsigned value;
  } seen = {pinned.as<unsigned>(), 0};
  EXPECT_OK(Launch(spin, 1, 1, stream, 20000000ull, buffer.get(), 55u));
  EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(pinned.get(), buffer, 4, stream));
  EXPECT_OK(Drv().cuLaunchHostFunc(
      stream,
      [](void* data) { static_cast<Seen*>(data)->value = *static_cast<Seen*>(data)->source; },
      &seen));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(seen.value, 55u);
}

// The record that comes behind the host function is replaced while it is to be made.
API_TEST(HostFunctionTest, AStreamIsNotDoneBecauseAnotherHasRecordedItsEvent) {
  Module module(kTimingPtx);
  const CUfunction spin = module.Function("spin");
  Stream stream, other;
  Event event(CU_EVENT_DISABLE_TIMING);
  EXPECT_OK(Drv().cuEventQuery(event));
  PinnedBuffer pinned(4);
  DeviceBuffer buffer(4);
  buffer.Fill(0);
  StreamGate gate(stream);
  EXPECT_OK(Launch(spin, 1, 1, stream, 100000000ull, buffer.get(), 55u));
  EXPECT_OK(Drv().cuEventRecord(event, stream));
  EXPECT_OK(Drv().cuEventRecord(event, other));
  EXPECT_OK(Drv().cuEventSynchronize(event));
  gate.Open();
  CUresult state = CUDA_ERROR_NOT_READY;
  while (state == CUDA_ERROR_NOT_READY) state = Drv().cuStreamQuery(stream);
  EXPECT_OK(state);
  EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(pinned.get(), buffer, 4, other));
  EXPECT_OK(Drv().cuStreamSynchronize(other));
  EXPECT_EQ(*pinned.as<unsigned>(), 55u);
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_FALSE(gate.timed_out());
}

API_TEST(HostFunctionTest, RunForManyStreams) {
  constexpr size_t kStreams = 16;
  constexpr int kEach = 50;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::atomic<int>> counts(kStreams);
  for (size_t index = 0; index < kStreams; ++index) streams.push_back(std::make_unique<Stream>());
  for (int round = 0; round < kEach; ++round) {
    for (size_t index = 0; index < kStreams; ++index) {
      ASSERT_OK(Drv().cuLaunchHostFunc(
          *streams[index], [](void* data) { ++*static_cast<std::atomic<int>*>(data); },
          &counts[index]));
    }
  }
  EXPECT_OK(Drv().cuCtxSynchronize());
  for (const auto& count : counts) EXPECT_EQ(count, kEach);
}

API_TEST(HostFunctionTest, RunForManyThreads) {
  const CUcontext current = context();
  std::atomic<int> calls{0};
  RunThreads(8, [&](int) {
    Require(Drv().cuCtxSetCurrent(current), "cuCtxSetCurrent");
    Stream stream;
    for (int round = 0; round < 25; ++round) {
      EXPECT_OK(Drv().cuLaunchHostFunc(
          stream, [](void* data) { ++*static_cast<std::atomic<int>*>(data); }, &calls));
    }
    EXPECT_OK(Drv().cuStreamSynchronize(stream));
  });
  EXPECT_EQ(calls, 200);
}

API_TEST(HostFunctionTest, MayWakeAThreadThatWaits) {
  Stream stream;
  Signal signal;
  EXPECT_OK(Drv().cuLaunchHostFunc(
      stream, [](void* data) { static_cast<Signal*>(data)->Set(); }, &signal));
  EXPECT_TRUE(signal.Wait()) << "must run without anybody calling into the driver";
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
}

API_TEST(HostFunctionTest, ContextSynchronizeWaitsForIt) {
  Stream stream;
  std::atomic<int> calls{0};
  EXPECT_OK(Drv().cuLaunchHostFunc(
      stream, [](void* data) { ++*static_cast<std::atomic<int>*>(data); }, &calls));
  EXPECT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(calls, 1);
}

API_TEST(HostFunctionTest, NullFunctionIsRefused) {
  Stream stream;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuLaunchHostFunc(stream, nullptr, nullptr));
}

// ---- cuStreamAddCallback ----

struct CallbackRecord {
  CUstream stream = nullptr;
  CUresult status = CUDA_ERROR_UNKNOWN;
  int calls = 0;
  CUresult inner = CUDA_SUCCESS;
  static void CUDA_CB Write(CUstream stream, CUresult status, void* data) {
    CallbackRecord* record = static_cast<CallbackRecord*>(data);
    record->stream = stream;
    record->status = status;
    ++record->calls;
  }
};

API_TEST(HostFunctionTest, CallbackGetsStreamStatusAndPointer) {
  Stream stream;
  CallbackRecord record;
  EXPECT_OK(Drv().cuStreamAddCallback(stream, CallbackRecord::Write, &record, 0));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(record.calls, 1);
  EXPECT_EQ(record.stream, stream.get());
  EXPECT_RESULT(CUDA_SUCCESS, record.status);
}

API_TEST(HostFunctionTest, CallbackRefusesBadArguments) {
  Stream stream;
  CallbackRecord record;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuStreamAddCallback(stream, nullptr, &record, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuStreamAddCallback(stream, CallbackRecord::Write, &record, 1));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(record.calls, 0);
}

API_TEST(HostFunctionTest, CallbackMayNotCallTheDriver) {
  Stream stream;
  CallbackRecord record;
  EXPECT_OK(Drv().cuStreamAddCallback(
      stream,
      [](CUstream, CUresult, void* data) {
        CUdeviceptr address = 0;
        static_cast<CallbackRecord*>(data)->inner = Drv().cuMemAlloc_v2(&address, 64);
      },
      &record, 0));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_RESULT(CUDA_ERROR_NOT_PERMITTED, record.inner);
}

API_TEST(HostFunctionTest, CallbacksAndHostFunctionsShareTheOrder) {
  Stream stream;
  Log log;
  std::vector<LogEntry> entries;
  for (int index = 0; index < 40; ++index) entries.push_back({&log, index});
  for (int index = 0; index < 40; ++index) {
    if (index % 2 == 0) {
      ASSERT_OK(
          Drv().cuLaunchHostFunc(stream, LogEntry::Append, &entries[static_cast<size_t>(index)]));
    } else {
      ASSERT_OK(Drv().cuStreamAddCallback(
          stream, [](CUstream, CUresult, void* data) { LogEntry::Append(data); },
          &entries[static_cast<size_t>(index)], 0));
    }
  }
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  ASSERT_EQ(log.entries.size(), 40u);
  for (int index = 0; index < 40; ++index)
    EXPECT_EQ(log.entries[static_cast<size_t>(index)], index);
}

// A wait refers to the record before it, whatever becomes of the event while a host function runs.
API_TEST(HostFunctionTest, EventsBehindOneMayBeRecordedAnewAndDestroyed) {
  Stream held;
  Stream free;
  DeviceBuffer buffer(64);
  buffer.Fill(0);
  Event again(CU_EVENT_DISABLE_TIMING);
  CUevent gone = nullptr;
  EXPECT_OK(Drv().cuEventCreate(&gone, CU_EVENT_DISABLE_TIMING));
  {
    StreamGate gate(held);
    EXPECT_OK(Drv().cuEventRecord(again, free));
    EXPECT_OK(Drv().cuEventRecord(gone, free));
    EXPECT_OK(Drv().cuStreamWaitEvent(held, again, 0));
    EXPECT_OK(Drv().cuStreamWaitEvent(held, gone, 0));
    EXPECT_OK(Drv().cuEventDestroy_v2(gone));
    EXPECT_OK(Drv().cuEventRecord(again, free));
    EXPECT_OK(Drv().cuMemsetD8Async(buffer, 7, 64, held));
    gate.Open();
    EXPECT_OK(Drv().cuStreamSynchronize(held));
    EXPECT_OK(Drv().cuStreamSynchronize(free));
    EXPECT_FALSE(gate.timed_out());
  }
  EXPECT_EQ(buffer.ReadWord(), 0x07070707u);
}

}  // namespace
}  // namespace consort::tests::api
