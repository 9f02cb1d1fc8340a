// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/driver_stream_test.cc: streams, events, host functions, waiting for values.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "device/cpu/driver/driver_test.h"
#include "device/cpu/driver/limits.h"

namespace consort::cpu {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);

// A host function that holds its stream up until it is opened.
class Gate {
 public:
  static void CUDA_CB Wait(void* gate) {
    auto* self = static_cast<Gate*>(gate);
    self->reached.Notify();
    EXPECT_TRUE(self->open.WaitForNotificationWithTimeout(kLong));
  }
  void Close(CUstream stream) { EXPECT_CU(CU(cuLaunchHostFunc)(stream, &Gate::Wait, this)); }

  absl::Notification reached;
  absl::Notification open;
};

void CUDA_CB NotifyFunction(void* notification) {
  static_cast<absl::Notification*>(notification)->Notify();
}

class StreamTest : public DriverTest {
 protected:
  uint32_t ReadWord(CUdeviceptr address) {
    return __atomic_load_n(reinterpret_cast<const uint32_t*>(address), __ATOMIC_ACQUIRE);
  }
};

TEST_F(StreamTest, WorkOfOneStreamRunsInOrder) {
  const CUstream stream = NewStream();
  struct Log {
    absl::Mutex mutex;
    std::vector<int> entries;
  } log;
  struct Step {
    Log* log;
    int number;
  };
  std::vector<Step> steps;
  for (int i = 0; i < 1000; ++i) steps.push_back({&log, i});
  for (Step& step : steps) {
    EXPECT_CU(CU(cuLaunchHostFunc)(
        stream,
        [](void* data) {
          auto* self = static_cast<Step*>(data);
          absl::MutexLock lock(&self->log->mutex);
          self->log->entries.push_back(self->number);
        },
        &step));
  }
  ASSERT_CU(CU(cuStreamSynchronize)(stream));
  absl::MutexLock lock(&log.mutex);
  ASSERT_EQ(log.entries.size(), steps.size());
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(log.entries[i], i);
}

TEST_F(StreamTest, TwoStreamsRunAtOnce) {
  Gate first, second;
  const CUstream a = NewStream(), b = NewStream();
  first.Close(a);
  second.Close(b);
  // Both are inside their host functions at the same time.
  EXPECT_TRUE(first.reached.WaitForNotificationWithTimeout(kLong));
  EXPECT_TRUE(second.reached.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(CU(cuStreamQuery)(a), CUDA_ERROR_NOT_READY);
  first.open.Notify();
  second.open.Notify();
  EXPECT_CU(CU(cuCtxSynchronize)());
  EXPECT_CU(CU(cuStreamQuery)(a));
  EXPECT_CU(CU(cuStreamQuery)(b));
}

TEST_F(StreamTest, LegacyStreamWaitsForBlockingStreamsAndTheyForIt) {
  Gate gate;
  absl::Notification in_legacy, in_other, in_unordered;
  const CUstream blocking = NewStream(CU_STREAM_DEFAULT);
  const CUstream other = NewStream(CU_STREAM_DEFAULT);
  const CUstream unordered = NewStream(CU_STREAM_NON_BLOCKING);
  gate.Close(blocking);
  ASSERT_TRUE(gate.reached.WaitForNotificationWithTimeout(kLong));
  EXPECT_CU(CU(cuLaunchHostFunc)(nullptr, NotifyFunction, &in_legacy));
  EXPECT_CU(CU(cuLaunchHostFunc)(other, NotifyFunction, &in_other));
  EXPECT_CU(CU(cuLaunchHostFunc)(unordered, NotifyFunction, &in_unordered));
  // The stream that is not ordered with the legacy one gets through, and then the others still
  // wait.
  EXPECT_CU(CU(cuStreamSynchronize)(unordered));
  EXPECT_TRUE(in_unordered.HasBeenNotified());
  EXPECT_FALSE(in_legacy.HasBeenNotified());
  EXPECT_FALSE(in_other.HasBeenNotified());
  EXPECT_EQ(CU(cuStreamQuery)(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
  gate.open.Notify();
  EXPECT_CU(CU(cuStreamSynchronize)(other));
  EXPECT_TRUE(in_legacy.HasBeenNotified());
  EXPECT_TRUE(in_other.HasBeenNotified());
}

TEST_F(StreamTest, SynchronousCopyWaitsForBlockingStreams) {
  Gate gate;
  const CUstream blocking = NewStream(CU_STREAM_DEFAULT);
  const CUdeviceptr word = Allocate(4);
  gate.Close(blocking);
  EXPECT_CU(CU(cuMemsetD32Async)(word, 7, 1, blocking));
  ASSERT_TRUE(gate.reached.WaitForNotificationWithTimeout(kLong));
  std::thread opener([&] { gate.open.Notify(); });
  uint32_t value = 0;
  EXPECT_CU(CU(cuMemcpyDtoH_v2)(&value, word, 4));
  EXPECT_EQ(value, 7u);
  opener.join();
}

TEST_F(StreamTest, PerThreadStreamBelongsToTheThread) {
  unsigned long long mine = 0, theirs = 0, again = 0;
  EXPECT_CU(CU(cuStreamGetId)(CU_STREAM_PER_THREAD, &mine));
  std::thread([&] {
    EXPECT_CU(CU(cuCtxSetCurrent)(context_));
    EXPECT_CU(CU(cuStreamGetId)(CU_STREAM_PER_THREAD, &theirs));
    EXPECT_CU(CU(cuStreamSynchronize)(CU_STREAM_PER_THREAD));
  }).join();
  EXPECT_CU(CU(cuStreamGetId)(CU_STREAM_PER_THREAD, &again));
  EXPECT_NE(mine, theirs);
  EXPECT_EQ(mine, again);
}

TEST_F(StreamTest, PropertiesAreReadBack) {
  CUstream stream = nullptr;
  ASSERT_CU(CU(cuStreamCreateWithPriority)(&stream, CU_STREAM_NON_BLOCKING, -99));
  int priority = 0;
  unsigned int flags = 0;
  CUcontext context = nullptr;
  EXPECT_CU(CU(cuStreamGetPriority)(stream, &priority));
  EXPECT_EQ(priority, -5);
  EXPECT_CU(CU(cuStreamGetFlags)(stream, &flags));
  EXPECT_EQ(flags, CU_STREAM_NON_BLOCKING);
  EXPECT_CU(CU(cuStreamGetCtx)(stream, &context));
  EXPECT_EQ(context, context_);
  EXPECT_CU(CU(cuStreamDestroy_v2)(stream));
  EXPECT_EQ(CU(cuStreamDestroy_v2)(stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(CU(cuStreamDestroy_v2)(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(CU(cuStreamCreate)(&stream, 2), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(StreamTest, DestroyedStreamFinishesItsWork) {
  Gate gate;
  absl::Notification ran;
  const CUstream stream = NewStream();
  gate.Close(stream);
  EXPECT_CU(CU(cuLaunchHostFunc)(stream, NotifyFunction, &ran));
  EXPECT_CU(CU(cuStreamDestroy_v2)(stream));
  EXPECT_FALSE(ran.HasBeenNotified());
  gate.open.Notify();
  EXPECT_TRUE(ran.WaitForNotificationWithTimeout(kLong));
}

TEST_F(StreamTest, EventsOrderStreams) {
  Gate gate;
  const CUstream a = NewStream(), b = NewStream();
  const CUdeviceptr words = Allocate(8);
  CUevent event = nullptr;
  ASSERT_CU(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
  gate.Close(a);
  EXPECT_CU(CU(cuMemsetD32Async)(words, 5, 1, a));
  EXPECT_CU(CU(cuEventRecord)(event, a));
  EXPECT_CU(CU(cuStreamWaitEvent)(b, event, 0));
  EXPECT_CU(CU(cuMemcpyDtoDAsync_v2)(words + 4, words, 4, b));
  ASSERT_TRUE(gate.reached.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(CU(cuEventQuery)(event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(CU(cuStreamQuery)(b), CUDA_ERROR_NOT_READY);
  gate.open.Notify();
  EXPECT_CU(CU(cuStreamSynchronize)(b));
  EXPECT_CU(CU(cuEventQuery)(event));
  EXPECT_EQ(ReadWord(words + 4), 5u);
}

TEST_F(StreamTest, EventsMeasureTime) {
  const CUstream stream = NewStream();
  CUevent start = nullptr, end = nullptr;
  ASSERT_CU(CU(cuEventCreate)(&start, CU_EVENT_DEFAULT));
  ASSERT_CU(CU(cuEventCreate)(&end, CU_EVENT_BLOCKING_SYNC));
  float milliseconds = -1;
  EXPECT_EQ(CU(cuEventElapsedTime)(&milliseconds, start, end), CUDA_ERROR_INVALID_HANDLE);
  // Never recorded: nothing to wait for.
  EXPECT_CU(CU(cuEventQuery)(start));
  EXPECT_CU(CU(cuEventSynchronize)(start));
  Gate gate;
  EXPECT_CU(CU(cuEventRecord)(start, stream));
  gate.Close(stream);
  EXPECT_CU(CU(cuEventRecordWithFlags)(end, stream, 0));
  ASSERT_TRUE(gate.reached.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(CU(cuEventElapsedTime_v2)(&milliseconds, start, end), CUDA_ERROR_NOT_READY);
  const absl::Time before = absl::Now();
  while (absl::Now() - before < absl::Milliseconds(20)) {
  }
  gate.open.Notify();
  EXPECT_CU(CU(cuEventSynchronize)(end));
  EXPECT_CU(CU(cuEventElapsedTime_v2)(&milliseconds, start, end));
  EXPECT_GE(milliseconds, 20.0f);
  EXPECT_LT(milliseconds, 30000.0f);
}

TEST_F(StreamTest, EventErrors) {
  CUevent timed = nullptr, untimed = nullptr, event = nullptr;
  ASSERT_CU(CU(cuEventCreate)(&timed, 0));
  ASSERT_CU(CU(cuEventCreate)(&untimed, CU_EVENT_DISABLE_TIMING));
  ASSERT_CU(CU(cuEventRecord)(timed, nullptr));
  ASSERT_CU(CU(cuEventRecord)(untimed, nullptr));
  EXPECT_CU(CU(cuCtxSynchronize)());
  float milliseconds;
  EXPECT_EQ(CU(cuEventElapsedTime)(&milliseconds, timed, untimed), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(CU(cuEventCreate)(&event, 0x80), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuEventCreate)(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_CU(CU(cuEventDestroy_v2)(timed));
  EXPECT_EQ(CU(cuEventDestroy_v2)(timed), CUDA_ERROR_INVALID_HANDLE);
  // An event and a stream of different contexts.
  CUcontext other = nullptr;
  ASSERT_CU(CU(cuCtxCreate_v2)(&other, 0, 1));
  EXPECT_EQ(CU(cuEventRecord)(untimed, nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_CU(CU(cuCtxDestroy_v2)(other));
}

TEST_F(StreamTest, HostFunctionMayNotCallIn) {
  const CUstream stream = NewStream();
  CUresult inside = CUDA_SUCCESS;
  EXPECT_CU(CU(cuLaunchHostFunc)(
      stream,
      [](void* result) {
        CUdeviceptr address;
        *static_cast<CUresult*>(result) = CU(cuMemAlloc_v2)(&address, 4);
      },
      &inside));
  EXPECT_CU(CU(cuStreamSynchronize)(stream));
  EXPECT_EQ(inside, CUDA_ERROR_NOT_PERMITTED);
}

TEST_F(StreamTest, CallbackGetsItsStreamAndStatus) {
  const CUstream stream = NewStream();
  struct Seen {
    CUstream stream = nullptr;
    CUresult status = CUDA_ERROR_UNKNOWN;
  } seen;
  EXPECT_CU(CU(cuStreamAddCallback)(
      stream,
      [](CUstream stream, CUresult status, void* data) {
        *static_cast<Seen*>(data) = {stream, status};
      },
      &seen, 0));
  EXPECT_CU(CU(cuStreamSynchronize)(stream));
  EXPECT_EQ(seen.stream, stream);
  EXPECT_EQ(seen.status, CUDA_SUCCESS);
}

struct WaitCase {
  unsigned int condition;
  uint32_t wanted;
  uint32_t not_yet;
  uint32_t enough;
};

class WaitValueTest : public StreamTest, public ::testing::WithParamInterface<WaitCase> {};

INSTANTIATE_TEST_SUITE_P(
    Conditions, WaitValueTest,
    ::testing::Values(WaitCase{CU_STREAM_WAIT_VALUE_GEQ, 10, 9, 11},
                      // Cyclic: 3 is 5 after 0xFFFFFFFE.
                      WaitCase{CU_STREAM_WAIT_VALUE_GEQ, 0xFFFFFFFE, 0xFFFFFFF0, 3},
                      WaitCase{CU_STREAM_WAIT_VALUE_EQ, 10, 11, 10},
                      WaitCase{CU_STREAM_WAIT_VALUE_AND, 6, 9, 2},
                      WaitCase{CU_STREAM_WAIT_VALUE_NOR, 0xFFFF0000, 0x0000FFFF, 0}));

TEST_P(WaitValueTest, HoldsTheStreamUntilTheWordIsRight) {
  const WaitCase& wait = GetParam();
  const CUstream stream = NewStream(), writer = NewStream();
  const CUdeviceptr words = Allocate(16);
  ASSERT_CU(CU(cuMemsetD32_v2)(words, wait.not_yet, 1));
  EXPECT_CU(CU(cuStreamWaitValue32_v2)(stream, words, wait.wanted, wait.condition));
  EXPECT_CU(CU(cuMemsetD32Async)(words + 8, 1, 1, stream));
  absl::SleepFor(absl::Milliseconds(20));  // long enough for a wrong condition to let it through
  EXPECT_EQ(CU(cuStreamQuery)(stream), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(ReadWord(words + 8), 0u);
  EXPECT_CU(CU(cuStreamWriteValue32_v2)(writer, words, wait.enough, 0));
  EXPECT_CU(CU(cuStreamSynchronize)(stream));
  EXPECT_EQ(ReadWord(words + 8), 1u);
}

TEST_F(StreamTest, WaitsFor64BitValues) {
  const CUstream stream = NewStream();
  const CUdeviceptr word = Allocate(8);
  EXPECT_CU(CU(cuStreamWaitValue64_v2)(stream, word, uint64_t{1} << 40, CU_STREAM_WAIT_VALUE_GEQ));
  EXPECT_EQ(CU(cuStreamQuery)(stream), CUDA_ERROR_NOT_READY);
  EXPECT_CU(CU(cuStreamWriteValue64_v2)(NewStream(), word, (uint64_t{1} << 40) + 1, 0));
  EXPECT_CU(CU(cuStreamSynchronize)(stream));
}

TEST_F(StreamTest, WaitedWordMayBeWrittenByAnotherProcess) {
  void* shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  ASSERT_CU(CU(cuMemHostRegister_v2)(shared, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
  CUdeviceptr word = 0;
  ASSERT_CU(CU(cuMemHostGetDevicePointer_v2)(&word, shared, 0));
  const CUstream stream = NewStream();
  EXPECT_CU(CU(cuStreamWaitValue32_v2)(stream, word, 1, CU_STREAM_WAIT_VALUE_EQ));
  EXPECT_EQ(CU(cuStreamQuery)(stream), CUDA_ERROR_NOT_READY);
  const pid_t child = fork();
  if (child == 0) {
    __atomic_store_n(static_cast<uint32_t*>(shared), 1, __ATOMIC_RELEASE);
    _exit(0);
  }
  EXPECT_CU(CU(cuStreamSynchronize)(stream));
  waitpid(child, nullptr, 0);
  EXPECT_CU(CU(cuMemHostUnregister)(shared));
  munmap(shared, 4096);
}

TEST_F(StreamTest, WaitValueErrors) {
  const CUstream stream = NewStream();
  const CUdeviceptr words = Allocate(16);
  uint32_t unknown = 0;
  EXPECT_EQ(CU(cuStreamWaitValue32_v2)(stream, words + 1, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuStreamWaitValue64_v2)(stream, words + 4, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuStreamWaitValue32_v2)(stream, reinterpret_cast<CUdeviceptr>(&unknown), 0, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuStreamWriteValue32_v2)(stream, words + 16, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuStreamWriteValue32_v2)(stream, words, 0, 8), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(StreamTest, ResetReleasesAStreamThatWaitsForever) {
  const CUstream stream = NewStream();
  const CUdeviceptr word = Allocate(4);
  EXPECT_CU(CU(cuStreamWaitValue32_v2)(stream, word, 1, CU_STREAM_WAIT_VALUE_EQ));
  CUevent event = nullptr;
  ASSERT_CU(CU(cuEventCreate)(&event, 0));
  EXPECT_CU(CU(cuEventRecord)(event, stream));
  // Another context waits for it too, and is destroyed while it does.
  CUcontext other = nullptr;
  ASSERT_CU(CU(cuCtxCreate_v2)(&other, 0, 1));
  const CUstream waiter = NewStream();
  EXPECT_CU(CU(cuStreamWaitEvent)(waiter, event, 0));
  EXPECT_CU(CU(cuCtxDestroy_v2)(other));
  EXPECT_CU(CU(cuDevicePrimaryCtxReset_v2)(0));
}

TEST_F(StreamTest, FullQueueMakesTheCallerWait) {
  Gate gate;
  const CUstream stream = NewStream();
  const CUdeviceptr word = Allocate(4);
  gate.Close(stream);
  ASSERT_TRUE(gate.reached.WaitForNotificationWithTimeout(kLong));
  std::atomic<size_t> submitted{0};
  constexpr size_t kCount = kStreamOperationsMax + 100;
  std::thread caller([&] {
    EXPECT_CU(CU(cuCtxSetCurrent)(context_));
    for (size_t i = 0; i < kCount; ++i) {
      EXPECT_CU(CU(cuMemsetD32Async)(word, static_cast<unsigned>(i), 1, stream));
      ++submitted;
    }
  });
  while (submitted < kStreamOperationsMax) std::this_thread::yield();
  absl::SleepFor(absl::Milliseconds(20));  // long enough to go on past the bound, if it could
  EXPECT_EQ(submitted, kStreamOperationsMax);
  gate.open.Notify();
  caller.join();
  EXPECT_CU(CU(cuStreamSynchronize)(stream));
  EXPECT_EQ(ReadWord(word), kCount - 1);
}

TEST_F(StreamTest, ManyThreadsManyStreams) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([this, t] {
      EXPECT_CU(CU(cuCtxSetCurrent)(context_));
      for (int round = 0; round < 50; ++round) {
        const CUstream stream = NewStream(round % 2 == 0 ? CU_STREAM_NON_BLOCKING : 0);
        const CUdeviceptr memory = Allocate(4096);
        const uint32_t value = static_cast<uint32_t>(t * 1000 + round);
        std::vector<uint32_t> host(1024);
        EXPECT_CU(CU(cuMemsetD32Async)(memory, value, 1024, stream));
        EXPECT_CU(CU(cuMemcpyDtoHAsync_v2)(host.data(), memory, 4096, stream));
        EXPECT_CU(CU(cuStreamSynchronize)(stream));
        EXPECT_EQ(host[0], value);
        EXPECT_EQ(host[1023], value);
        if (round % 10 == 0) {
          EXPECT_CU(CU(cuMemsetD32Async)(memory, 0, 1024, nullptr));
        }
        EXPECT_CU(CU(cuMemFree_v2)(memory));
        EXPECT_CU(CU(cuStreamDestroy_v2)(stream));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace consort::cpu
