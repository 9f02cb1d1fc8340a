// SPDX-License-Identifier: Apache-2.0
#include "host/session/streams.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>

#include "host/limits.h"
#include "host/session/session_test_support.h"

namespace consort::host {
namespace {

constexpr uint64_t kStream = 7;
constexpr int kSlow = -2, kQuick = -3;  // of the normal level
constexpr uint64_t kShort = 30 * kMicrosecond, kLong = 2 * kMillisecond;

class StreamsTest : public ::testing::Test {
 protected:
  StreamsTest() {
    EXPECT_EQ(driver_.cuCtxSetCurrent(CpuDevice().context()), CUDA_SUCCESS);
    EXPECT_EQ(driver_.cuMemHostAlloc(reinterpret_cast<void**>(&words_), 3 * sizeof *words_, 0),
              CUDA_SUCCESS);
    words_[0] = words_[1] = words_[2] = 0;
  }
  ~StreamsTest() override {
    for (int word = 0; word < 3; ++word) std::atomic_ref(words_[word]).store(1);
    EXPECT_EQ(driver_.cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(driver_.cuMemFreeHost(words_), CUDA_SUCCESS);
  }

  Stream* Make(uint64_t id, int priority = 0) {
    EXPECT_EQ(streams_.Create(1, id, {.flags = CU_STREAM_NON_BLOCKING, .priority = priority}),
              CUDA_SUCCESS);
    Stream* made = nullptr;
    EXPECT_EQ(streams_.Observe(1, id, &made), CUDA_SUCCESS);
    return made;
  }
  // What is submitted to the stream next waits until the word is not 0.
  void Hold(const Stream* stream, int word) {
    EXPECT_EQ(
        driver_.cuStreamWaitValue32_v2(stream->driver, reinterpret_cast<CUdeviceptr>(words_ + word),
                                       1, CU_STREAM_WAIT_VALUE_GEQ),
        CUDA_SUCCESS);
  }
  void Use(uint64_t id, Stream** stream) { EXPECT_EQ(streams_.Use(1, id, stream), CUDA_SUCCESS); }
  // Behind what has been submitted to it so far. Reached before anything that waits for a later
  // point; that the stream is done the driver may say a moment later.
  CUevent Mark(const Stream* stream) {
    CUevent event = nullptr;
    EXPECT_EQ(events_.Take(&event), CUDA_SUCCESS);
    EXPECT_EQ(driver_.cuEventRecord(event, stream->driver), CUDA_SUCCESS);
    return event;
  }
  bool IsReached(CUevent mark) {
    const bool reached = driver_.cuEventQuery(mark) == CUDA_SUCCESS;
    events_.Return(mark);
    return reached;
  }
  bool IsDone(const Stream* stream) const {
    return driver_.cuStreamQuery(stream->driver) == CUDA_SUCCESS;
  }
  void Note(Stream* stream, uint64_t nanos, bool favours = true) {
    for (uint64_t i = 0; i < kReconsiderEvery; ++i) streams_.NoteKernel(stream, nanos, favours);
  }
  // As the driver has it.
  static int PriorityOf(const Stream* stream) {
    EXPECT_EQ(made().at(stream->driver), stream->priority);
    return stream->priority;
  }
  // What the driver was asked for.
  static std::map<CUstream, int>& made() {
    static std::map<CUstream, int> priorities;
    return priorities;
  }

  static inline bool refuses_ = false;
  const device::DriverTable driver_ = [] {
    refuses_ = false;
    device::DriverTable table = CpuDevice().driver();
    table.cuStreamCreateWithPriority = [](CUstream* stream, unsigned int flags, int priority) {
      if (refuses_) return CUDA_ERROR_OUT_OF_MEMORY;
      const CUresult result =
          CpuDevice().driver().cuStreamCreateWithPriority(stream, flags, priority);
      made()[*stream] = priority;
      return result;
    };
    return table;
  }();
  EventPool events_{driver_, CU_EVENT_DISABLE_TIMING};
  Streams streams_{driver_, &events_, PriorityLevel::kNormal, 0, -5};
  uint32_t* words_ = nullptr;  // pinned
};

TEST_F(StreamsTest, AStreamOfShortKernelsComesFirstAsLongAsTheyAre) {
  Stream* stream = Make(kStream);
  EXPECT_EQ(PriorityOf(stream), kSlow);
  Note(stream, 0);  // nothing is known
  EXPECT_EQ(PriorityOf(stream), kSlow);
  Note(stream, kShort);
  EXPECT_EQ(PriorityOf(stream), kQuick);
  // A launch that is not known says nothing, and short ones that come with long ones do not count.
  Note(stream, 0);
  EXPECT_EQ(PriorityOf(stream), kQuick);
  streams_.NoteKernel(stream, kLong, true);
  Note(stream, kShort);
  EXPECT_EQ(PriorityOf(stream), kSlow);
}

TEST_F(StreamsTest, AFenceOverAllIsReachedAtOnceByStreamsThatAreDone) {
  Stream* first = Make(kStream);
  Stream* second = Make(kStream + 1);
  const auto wait_for_word = [&](uint64_t id, int word) {
    Stream* used = nullptr;
    Use(id, &used);
    Hold(used, word);
  };
  wait_for_word(kStream, 0);
  wait_for_word(kStream + 1, 1);
  std::shared_ptr<Fence> fence;
  ASSERT_EQ(streams_.FenceAll(&fence), CUDA_SUCCESS);
  EXPECT_FALSE(fence->Reached());
  std::atomic_ref(words_[1]).store(1);
  ASSERT_EQ(driver_.cuStreamSynchronize(second->driver), CUDA_SUCCESS);
  wait_for_word(kStream, 0);  // so that it is another fence
  ASSERT_EQ(streams_.FenceAll(&fence), CUDA_SUCCESS);
  EXPECT_FALSE(second->busy());
  EXPECT_FALSE(fence->Reached());
  std::atomic_ref(words_[0]).store(1);
  ASSERT_EQ(driver_.cuStreamSynchronize(first->driver), CUDA_SUCCESS);
  wait_for_word(kStream, 0);
  ASSERT_EQ(driver_.cuStreamSynchronize(first->driver), CUDA_SUCCESS);
  ASSERT_EQ(streams_.FenceAll(&fence), CUDA_SUCCESS);
  EXPECT_TRUE(fence->reached()) << "no event is waited for";
}

TEST_F(StreamsTest, AFenceOverAllCoversWhatAnEarlierUseGoesOnWith) {
  Stream* stream = Make(kStream);
  Use(kStream, &stream);
  std::shared_ptr<Fence> fence;
  ASSERT_EQ(streams_.FenceAll(&fence), CUDA_SUCCESS);
  EXPECT_TRUE(fence->Reached());
  Hold(stream, 0);
  streams_.NoteMoreWork(stream);
  ASSERT_EQ(streams_.FenceAll(&fence), CUDA_SUCCESS);
  EXPECT_FALSE(fence->Reached());
}

TEST_F(StreamsTest, WhatPrecedesIsWaitedForByEveryStream) {
  Stream* first = Make(kStream);
  Stream* others[2] = {Make(kStream + 1), Make(kStream + 2)};
  ASSERT_EQ(streams_.UseToPrecede(1, kStream, &first), CUDA_SUCCESS);
  Hold(first, 0);
  Use(kStream + 1, &others[0]);
  // What its own stream gets afterwards is waited for by nobody.
  Use(kStream, &first);
  Hold(first, 1);
  Use(kStream + 2, &others[1]);
  for (const Stream* other : others) EXPECT_FALSE(IsDone(other));
  std::atomic_ref(words_[0]).store(1);
  for (const Stream* other : others) {
    EXPECT_EQ(driver_.cuStreamSynchronize(other->driver), CUDA_SUCCESS);
  }
  EXPECT_FALSE(IsDone(first));
  // It is over, and is forgotten.
  Use(kStream + 1, &others[0]);
  EXPECT_TRUE(IsDone(others[0]));
}

TEST_F(StreamsTest, OfTwoThatPrecedeOneComesBehindTheOther) {
  Stream* first = Make(kStream);
  Stream* second = Make(kStream + 1);
  Stream* last = Make(kStream + 2);
  ASSERT_EQ(streams_.UseToPrecede(1, kStream, &first), CUDA_SUCCESS);
  Hold(first, 0);
  const CUevent first_over = Mark(first);
  ASSERT_EQ(streams_.UseToPrecede(1, kStream + 1, &second), CUDA_SUCCESS);
  Hold(second, 1);
  // A third one, which goes where that is.
  ASSERT_EQ(streams_.UseToPrecede(1, kStream + 1, &second), CUDA_SUCCESS);
  Hold(second, 2);
  const CUevent second_over = Mark(second);
  Use(kStream + 2, &last);
  for (int word : {1, 2, 0}) {
    EXPECT_FALSE(IsDone(second));
    EXPECT_FALSE(IsDone(last));
    std::atomic_ref(words_[word]).store(1);
  }
  EXPECT_EQ(driver_.cuStreamSynchronize(last->driver), CUDA_SUCCESS);
  EXPECT_TRUE(IsReached(first_over));
  EXPECT_TRUE(IsReached(second_over));
}

TEST_F(StreamsTest, WhatPrecedesIsWaitedForWhileItsStreamIsRecorded) {
  Stream* first = Make(kStream);
  Stream* other = Make(kStream + 1);
  ASSERT_EQ(streams_.UseToPrecede(1, kStream, &first), CUDA_SUCCESS);
  Hold(first, 0);
  const CUevent over = Mark(first);
  ASSERT_EQ(streams_.MarkPreceding(), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(driver_.cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver_.cuStreamBeginCaptureToGraph(first->driver, graph, nullptr, nullptr, 0,
                                                CU_STREAM_CAPTURE_MODE_RELAXED),
            CUDA_SUCCESS);
  first->recording = true;
  Use(kStream + 1, &other);
  EXPECT_FALSE(IsDone(other));
  EXPECT_EQ(driver_.cuStreamEndCapture(first->driver, &graph), CUDA_SUCCESS);
  first->recording = false;
  EXPECT_EQ(driver_.cuGraphDestroy(graph), CUDA_SUCCESS);
  std::atomic_ref(words_[0]).store(1);
  EXPECT_EQ(driver_.cuStreamSynchronize(other->driver), CUDA_SUCCESS);
  EXPECT_TRUE(IsReached(over));
}

TEST_F(StreamsTest, NoneComesFirstWhereNobodyHoldsItBack) {
  Stream* stream = Make(kStream);
  Note(stream, kShort, /*favours=*/false);
  EXPECT_EQ(PriorityOf(stream), kSlow);
  Note(stream, kShort, /*favours=*/true);
  EXPECT_EQ(PriorityOf(stream), kQuick);
  Note(stream, kShort, /*favours=*/false);
  EXPECT_EQ(PriorityOf(stream), kSlow);
}

TEST_F(StreamsTest, WhoHasManyAtWorkAtOnceNeedsItLess) {
  Stream* streams[8];
  for (uint64_t i = 0; i < 8; ++i) streams[i] = Make(kStream + i);
  Note(streams[0], 2 * kShort);
  EXPECT_EQ(PriorityOf(streams[0]), kQuick);
  const auto in_turn = [&](int count) {
    for (uint64_t i = 0; i < 2 * kReconsiderOver; ++i) {
      streams_.NoteKernel(streams[i % static_cast<uint64_t>(count)], 2 * kShort, true);
    }
  };
  in_turn(8);
  EXPECT_EQ(PriorityOf(streams[0]), kSlow);
  in_turn(2);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(PriorityOf(streams[i]), i < 2 ? kQuick : kSlow);
}

TEST_F(StreamsTest, AProgramThatTellsItsStreamsApartKeepsTheirOrder) {
  Stream* one = Make(kStream);
  Note(one, kShort);
  EXPECT_EQ(PriorityOf(one), kQuick);
  Stream* urgent = Make(kStream + 1, -5);
  EXPECT_EQ(PriorityOf(one), kSlow);
  EXPECT_EQ(PriorityOf(urgent), kQuick);
  Note(one, kShort);
  EXPECT_EQ(PriorityOf(one), kSlow);
}

TEST_F(StreamsTest, WorkStaysInOrderAcrossTheChange) {
  Stream* stream = Make(kStream);
  ASSERT_EQ(streams_.Use(1, kStream, &stream), CUDA_SUCCESS);
  ASSERT_EQ(driver_.cuStreamWaitValue32_v2(stream->driver, reinterpret_cast<CUdeviceptr>(words_), 1,
                                           CU_STREAM_WAIT_VALUE_GEQ),
            CUDA_SUCCESS);
  const CUstream before = stream->driver;
  Note(stream, kShort);
  ASSERT_NE(stream->driver, before);
  ASSERT_EQ(streams_.Use(1, kStream, &stream), CUDA_SUCCESS);
  ASSERT_EQ(driver_.cuStreamWriteValue32_v2(stream->driver,
                                            reinterpret_cast<CUdeviceptr>(words_ + 1), 1, 0),
            CUDA_SUCCESS);
  std::shared_ptr<Fence> fence;
  ASSERT_EQ(streams_.FenceOn(stream, &fence), CUDA_SUCCESS);
  streams_.CollectDestroyed();
  EXPECT_FALSE(fence->Reached());
  EXPECT_EQ(driver_.cuStreamQuery(stream->driver), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(std::atomic_ref(words_[1]).load(), 0u);
  std::atomic_ref(words_[0]).store(1);
  ASSERT_EQ(driver_.cuStreamSynchronize(stream->driver), CUDA_SUCCESS);
  EXPECT_EQ(std::atomic_ref(words_[1]).load(), 1u);
  EXPECT_TRUE(fence->Reached());
}

// A recording is the driver stream's.
TEST_F(StreamsTest, OneThatIsRecordedStaysWhatItIs) {
  Stream* stream = Make(kStream);
  stream->recording = true;
  Note(stream, kShort);
  EXPECT_EQ(PriorityOf(stream), kSlow);
  stream->recording = false;
  Note(stream, kShort);
  EXPECT_EQ(PriorityOf(stream), kQuick);
}

TEST_F(StreamsTest, WhereTheDriverRefusesTheStreamGoesOn) {
  Stream* stream = Make(kStream);
  const CUstream before = stream->driver;
  refuses_ = true;
  Note(stream, kShort);
  EXPECT_EQ(stream->driver, before);
  EXPECT_EQ(PriorityOf(stream), kSlow);
  ASSERT_EQ(streams_.Use(1, kStream, &stream), CUDA_SUCCESS);
  EXPECT_EQ(driver_.cuStreamSynchronize(stream->driver), CUDA_SUCCESS);
}

}  // namespace
}  // namespace consort::host
