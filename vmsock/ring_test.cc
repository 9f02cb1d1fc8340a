// SPDX-License-Identifier: Apache-2.0
// The ring by itself: its bounds, and a peer that writes anything anywhere.
#include "vmsock/ring.h"

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "vmsock/channel_test_support.h"
#include "vmsock/limits.h"

namespace consort {
namespace {

// A ring in private memory, as both sides map it, with its indexes open to abuse.
struct TestRing {
  explicit TestRing(uint64_t capacity_bytes) : data(capacity_bytes / 8), capacity(capacity_bytes) {}
  RingView view() { return {&head, &tail, reinterpret_cast<std::byte*>(data.data()), capacity}; }
  void PutHeader(uint64_t offset, uint32_t bytes) {
    wire::FrameHeader header;
    header.bytes = bytes;
    std::memcpy(reinterpret_cast<std::byte*>(data.data()) + offset, &header, sizeof(header));
  }
  alignas(64) std::atomic<uint64_t> head{0};
  alignas(64) std::atomic<uint64_t> tail{0};
  std::vector<uint64_t> data;
  uint64_t capacity;
};

void Put(RingProducer* producer, uint32_t number, uint32_t bytes) {
  std::byte* room = producer->TryReserve(bytes);
  ASSERT_NE(room, nullptr);
  WriteFrame(room, number, bytes);
  producer->Commit();
}

// Sends and receives it, and releases it at once; where it lay goes to `frame`.
void Pass(RingProducer* producer, RingConsumer* consumer, uint32_t number, uint32_t bytes,
          Frame* frame) {
  Put(producer, number, bytes);
  ASSERT_EQ(consumer->TryReceive(frame), ChannelStatus::kOk);
  ASSERT_TRUE(FrameIs(*frame, number, bytes));
  consumer->Release(frame->token);
}

TEST(Ring, TakesFramesUpToExactlyItsCapacity) {
  TestRing ring(1024);
  RingProducer producer(ring.view());
  RingConsumer consumer(ring.view());
  for (uint32_t number = 0; number < 16; ++number) {
    EXPECT_TRUE(producer.Writable(64));
    Put(&producer, number, 64);
  }
  EXPECT_FALSE(producer.Writable(16));
  EXPECT_EQ(producer.TryReserve(16), nullptr);
  EXPECT_FALSE(producer.corrupt());
  Frame frame;
  ASSERT_EQ(consumer.TryReceive(&frame), ChannelStatus::kOk);
  EXPECT_TRUE(FrameIs(frame, 0, 64));
  EXPECT_EQ(producer.TryReserve(16), nullptr) << "not released yet";
  EXPECT_TRUE(consumer.Release(frame.token));
  EXPECT_EQ(producer.TryReserve(72), nullptr);
  EXPECT_NE(producer.TryReserve(64), nullptr);
}

TEST(Ring, AConsumerThatGoesOnGivesBackWhatAnotherHadNotTold) {
  TestRing ring(4096);
  RingProducer producer(ring.view());
  for (uint32_t number = 0; number < 128; ++number) Put(&producer, number, 32);
  RingConsumer ended(ring.view());
  Frame frame;
  ASSERT_EQ(ended.TryReceive(&frame), ChannelStatus::kOk);
  ASSERT_FALSE(ended.Release(frame.token)) << "told at once";
  ASSERT_EQ(producer.TryReserve(32), nullptr);
  RingConsumer next(ring.view());
  ASSERT_TRUE(next.StartAt(ended.position()));
  EXPECT_NE(producer.TryReserve(32), nullptr);
  ASSERT_EQ(next.TryReceive(&frame), ChannelStatus::kOk);
  EXPECT_TRUE(FrameIs(frame, 1, 32));
}

TEST(Ring, ShowsNothingBeforeCommit) {
  TestRing ring(1024);
  RingProducer producer(ring.view());
  RingConsumer consumer(ring.view());
  ASSERT_NE(producer.TryReserve(64), nullptr);
  EXPECT_FALSE(consumer.Readable());
  Frame frame;
  EXPECT_EQ(consumer.TryReceive(&frame), ChannelStatus::kAgain);
}

// Every distance from the end at which a frame may begin, including 8 bytes, where a marker fits
// but no header would.
TEST(Ring, WrapsAtEveryDistanceFromTheEnd) {
  for (uint32_t first = 16; first <= 504; first += 8) {
    TestRing ring(512);
    RingProducer producer(ring.view());
    RingConsumer consumer(ring.view());
    Frame frame;
    Put(&producer, 0, first);
    ASSERT_EQ(consumer.TryReceive(&frame), ChannelStatus::kOk);
    consumer.Release(frame.token);
    for (uint32_t bytes : {16u, 24u, 256u}) {
      SCOPED_TRACE(std::to_string(first) + " then " + std::to_string(bytes));
      std::byte* room = producer.TryReserve(bytes);
      if (room == nullptr) {
        // An unused rest and the frame are more than all.
        EXPECT_GT(RingBytesTaken(ring.head, 512, bytes), 512 - (ring.head - ring.tail));
        continue;
      }
      WriteFrame(room, bytes, bytes);
      producer.Commit();
      ASSERT_EQ(consumer.TryReceive(&frame), ChannelStatus::kOk);
      ASSERT_TRUE(FrameIs(frame, bytes, bytes));
      EXPECT_EQ(consumer.TryReceive(&frame), ChannelStatus::kAgain);
      consumer.Release(frame.token);
      EXPECT_EQ(ring.tail, ring.head);
    }
  }
}

// One frame at a time, each released before the next: a consumer that keeps up.
TEST(Ring, GoesBackToItsBeginningWhereAllIsReleased) {
  TestRing ring(2 * kRingLapBytes);
  RingProducer producer(ring.view());
  RingConsumer consumer(ring.view());
  constexpr uint32_t kFrame = 4096;
  const std::byte* const data = ring.view().data;
  for (uint32_t number = 0; number < 3 * kRingLapBytes / kFrame; ++number) {
    Frame frame;
    ASSERT_NO_FATAL_FAILURE(Pass(&producer, &consumer, number, kFrame, &frame));
    const Bytes offset = Bytes{number} * kFrame % kRingLapBytes;
    ASSERT_EQ(frame.body.data(), data + offset + sizeof(wire::FrameHeader)) << number;
    ASSERT_EQ(frame.end, producer.position());
    ASSERT_EQ(ring.tail, producer.position());
  }
  EXPECT_EQ(consumer.position(), 2 * ring.capacity + kRingLapBytes);
}

// Of any size that there is, wherever a lap could end.
TEST(Ring, HasRoomForAnyFrameWhereAllIsReleased) {
  constexpr uint64_t kCapacity = kRingBytesMin;
  for (const uint64_t offset : {kRingLapBytes - 8, kRingLapBytes, kRingLapBytes + 8,
                                Bytes{wire::kFrameBytesMax}, kCapacity / 2, kCapacity - 8}) {
    for (const uint64_t bytes :
         {uint64_t{16}, offset - 8, offset, offset + 8, uint64_t{wire::kFrameBytesMax}}) {
      if (bytes > wire::kFrameBytesMax) continue;
      SCOPED_TRACE(std::to_string(bytes) + " at " + std::to_string(offset));
      TestRing ring(kCapacity);
      ring.head = ring.tail = offset;
      RingProducer producer(ring.view());
      RingConsumer consumer(ring.view());
      ASSERT_TRUE(producer.StartAt(offset));
      ASSERT_TRUE(consumer.StartAt(offset));
      EXPECT_TRUE(producer.Writable(wire::kFrameBytesMax));
      Frame frame;
      ASSERT_NO_FATAL_FAILURE(Pass(&producer, &consumer, 7, static_cast<uint32_t>(bytes), &frame));
      EXPECT_EQ(ring.tail, producer.position());
    }
  }
}

TEST(Ring, UsesAllOfItselfWhereSomethingIsHeld) {
  TestRing ring(2 * kRingLapBytes);
  RingProducer producer(ring.view());
  RingConsumer consumer(ring.view());
  constexpr uint32_t kFrame = 4096;
  Put(&producer, 0, kFrame);
  Frame held;
  ASSERT_EQ(consumer.TryReceive(&held), ChannelStatus::kOk);
  for (uint32_t number = 1; number < ring.capacity / kFrame; ++number) {
    Frame frame;
    ASSERT_NO_FATAL_FAILURE(Pass(&producer, &consumer, number, kFrame, &frame));
  }
  EXPECT_EQ(producer.position(), ring.capacity);
  EXPECT_EQ(producer.TryReserve(16), nullptr);
  ASSERT_TRUE(FrameIs(held, 0, kFrame)) << "written over";
  EXPECT_TRUE(consumer.Release(held.token));
  EXPECT_NE(producer.TryReserve(16), nullptr);
}

TEST(Ring, LooksForNoEarlyEndThroughMemoryThatIsNotCached) {
  TestRing ring(2 * kRingLapBytes);
  RingView view = ring.view();
  view.write_combining = true;
  RingProducer producer(view);
  RingConsumer consumer(ring.view());
  constexpr uint32_t kFrame = 4096;
  for (uint32_t number = 0; number < ring.capacity / kFrame; ++number) {
    Frame frame;
    ASSERT_NO_FATAL_FAILURE(Pass(&producer, &consumer, number, kFrame, &frame));
  }
  EXPECT_EQ(producer.position(), ring.capacity);
}

TEST(Ring, GivesRoomBackInOrderOfReceipt) {
  TestRing ring(1024);
  RingProducer producer(ring.view());
  RingConsumer consumer(ring.view());
  Frame frames[4];
  for (uint32_t number = 0; number < 4; ++number) {
    Put(&producer, number, 64);
    ASSERT_EQ(consumer.TryReceive(&frames[number]), ChannelStatus::kOk);
  }
  EXPECT_FALSE(consumer.Release(frames[2].token));
  EXPECT_FALSE(consumer.Release(frames[1].token));
  EXPECT_EQ(ring.tail, 0u);
  EXPECT_TRUE(consumer.Release(frames[0].token));
  EXPECT_EQ(ring.tail, 192u);
  EXPECT_TRUE(consumer.Release(frames[3].token));
  EXPECT_EQ(ring.tail, 256u);
}

// The producer is told in steps, and at the latest with the last frame that the consumer knows of.
TEST(Ring, TellsOfRoomInStepsAndAtTheEnd) {
  TestRing ring(1 << 18);
  RingProducer producer(ring.view());
  RingConsumer consumer(ring.view());
  constexpr uint32_t kFrame = 1024;  // a quarter of a step
  for (uint32_t number = 0; number < 6; ++number) Put(&producer, number, kFrame);
  for (uint32_t number = 1; number <= 6; ++number) {
    Frame frame;
    ASSERT_EQ(consumer.TryReceive(&frame), ChannelStatus::kOk);
    const bool told = number == 4 || number == 6;
    EXPECT_EQ(consumer.Release(frame.token), told) << number;
    EXPECT_EQ(ring.tail, told ? number * kFrame : number / 4 * 4 * kFrame) << number;
  }
  EXPECT_TRUE(consumer.idle());
}

// A consumer that knows of one more frame than it has received, and goes on when that was, too.
TEST(Ring, TellsOfRoomOnceWhatIsHeldIsReleased) {
  TestRing ring(1 << 18);
  RingProducer producer(ring.view());
  RingConsumer consumer(ring.view());
  Frame frames[3];
  for (uint32_t number = 0; number < 3; ++number) Put(&producer, number, 64);
  ASSERT_EQ(consumer.TryReceive(&frames[0]), ChannelStatus::kOk);
  ASSERT_EQ(consumer.TryReceive(&frames[1]), ChannelStatus::kOk);
  EXPECT_FALSE(consumer.Release(frames[0].token));
  ASSERT_EQ(consumer.TryReceive(&frames[2]), ChannelStatus::kOk);
  EXPECT_FALSE(consumer.Release(frames[2].token));
  EXPECT_EQ(ring.tail, 0u);
  EXPECT_TRUE(consumer.Release(frames[1].token));
  EXPECT_EQ(ring.tail, 192u);
}

TEST(RingDeathTest, ReleasingTwiceIsABugOfOurs) {
  TestRing ring(1024);
  RingProducer producer(ring.view());
  RingConsumer consumer(ring.view());
  Put(&producer, 0, 64);
  Frame frame;
  ASSERT_EQ(consumer.TryReceive(&frame), ChannelStatus::kOk);
  consumer.Release(frame.token);
  EXPECT_DEATH(consumer.Release(frame.token), "");
}

// Both sides on one mapping, so that the thread sanitizer sees the same addresses.
TEST(Ring, CarriesFramesBetweenThreads) {
  TestRing ring(4096);
  RingProducer producer(ring.view());
  RingConsumer consumer(ring.view());
  constexpr uint32_t kCount = 20000;
  std::thread sender([&] {
    for (uint32_t number = 0; number < kCount;) {
      const uint32_t bytes = 16 + number % 100 * 8;
      std::byte* room = producer.TryReserve(bytes);
      if (room == nullptr) {
        std::this_thread::yield();
        continue;
      }
      WriteFrame(room, number++, bytes);
      producer.Commit();
    }
  });
  for (uint32_t number = 0; number < kCount;) {
    Frame frame;
    if (consumer.TryReceive(&frame) != ChannelStatus::kOk) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_TRUE(FrameIs(frame, number, 16 + number % 100 * 8));
    ++number;
    consumer.Release(frame.token);
  }
  sender.join();
}

class HostileProducer : public ::testing::Test {
 protected:
  void ExpectCorrupt() {
    EXPECT_TRUE(consumer_.Readable()) << "a sleeper must wake to find out";
    Frame frame;
    EXPECT_EQ(consumer_.TryReceive(&frame), ChannelStatus::kProtocol);
    // For good, whatever is put right afterwards.
    ring_.head = 16;
    ring_.PutHeader(0, 16);
    EXPECT_EQ(consumer_.TryReceive(&frame), ChannelStatus::kProtocol);
  }
  // Moves the consumer to position `at` by honest frames.
  void Advance(uint64_t at) {
    for (uint64_t position = 0; position < at; position += 16) {
      ring_.PutHeader(position % ring_.capacity, 16);
      ring_.head = position + 16;
      Frame frame;
      ASSERT_EQ(consumer_.TryReceive(&frame), ChannelStatus::kOk);
      consumer_.Release(frame.token);
    }
  }

  TestRing ring_{1024};
  RingConsumer consumer_{ring_.view()};
};

TEST_F(HostileProducer, HeadBeyondTheRing) {
  ring_.PutHeader(0, 16);
  ring_.head = 1024 + 8;
  ExpectCorrupt();
}

TEST_F(HostileProducer, HeadAtTheRingsEndIsFine) {
  ring_.PutHeader(0, 1024);
  ring_.head = 1024;
  Frame frame;
  ASSERT_EQ(consumer_.TryReceive(&frame), ChannelStatus::kOk);
  EXPECT_EQ(frame.body.size(), 1024 - sizeof(wire::FrameHeader));
}

TEST_F(HostileProducer, HeadBeyondWhatIsReleased) {
  ring_.PutHeader(0, 512);
  ring_.head = 512;
  Frame frame;
  ASSERT_EQ(consumer_.TryReceive(&frame), ChannelStatus::kOk);
  // The first half is still held.
  ring_.PutHeader(512, 512);
  ring_.head = 1024 + 512;
  ExpectCorrupt();
}

TEST_F(HostileProducer, HeadBackwards) {
  Advance(64);
  ring_.head = 48;
  ExpectCorrupt();
}

TEST_F(HostileProducer, HeadNearTheLargestNumber) {
  ring_.head = UINT64_MAX & ~uint64_t{7};
  ExpectCorrupt();
}

TEST_F(HostileProducer, HeadNotAligned) {
  ring_.PutHeader(0, 16);
  ring_.head = 20;
  ExpectCorrupt();
}

TEST_F(HostileProducer, HeadInTheMiddleOfAHeader) {
  ring_.PutHeader(0, 16);
  ring_.head = 8;
  ExpectCorrupt();
}

TEST_F(HostileProducer, FrameBeyondTheHead) {
  ring_.PutHeader(0, 72);
  ring_.head = 64;
  ExpectCorrupt();
}

TEST_F(HostileProducer, FrameBeyondTheEndOfTheRing) {
  Advance(960);
  ring_.PutHeader(960, 72);
  ring_.head = 960 + 72;
  ExpectCorrupt();
}

TEST_F(HostileProducer, SizesThatNoFrameHas) {
  for (uint32_t bytes :
       {1u, 8u, 15u, 17u, 20u, wire::kFrameBytesMax + 8, 0xFFFFFFF8u, 0xFFFFFFFFu}) {
    SCOPED_TRACE(bytes);
    TestRing ring(2 * kMiB);
    RingConsumer consumer(ring.view());
    ring.PutHeader(0, bytes);
    ring.head = 2 * kMiB;
    Frame frame;
    EXPECT_EQ(consumer.TryReceive(&frame), ChannelStatus::kProtocol);
  }
}

TEST_F(HostileProducer, WrapMarkerAtTheBeginning) {
  ring_.head = 1024;
  ExpectCorrupt();
}

TEST_F(HostileProducer, WrapMarkerWithNothingBehindIt) {
  Advance(512);
  ring_.PutHeader(512, 0);
  ring_.head = 1024;
  ExpectCorrupt();
}

TEST_F(HostileProducer, WrapMarkerBeyondTheHead) {
  Advance(512);
  ring_.PutHeader(512, 0);
  ring_.head = 768;
  ExpectCorrupt();
}

TEST_F(HostileProducer, WrapMarkerAfterAWrapMarker) {
  Advance(512);
  ring_.PutHeader(512, 0);
  ring_.PutHeader(0, 0);
  ring_.head = 1024 + 256;
  ExpectCorrupt();
}

TEST_F(HostileProducer, WrapMarkerBeforeHalfAHeader) {
  Advance(512);
  ring_.PutHeader(512, 0);
  ring_.PutHeader(0, 16);
  ring_.head = 1024 + 8;
  ExpectCorrupt();
}

TEST_F(HostileProducer, FrameAfterAWrapOverWhatIsHeld) {
  Advance(512);
  ring_.PutHeader(512, 16);
  ring_.head = 528;
  Frame frame;
  ASSERT_EQ(consumer_.TryReceive(&frame), ChannelStatus::kOk);
  // Position 512 is held, so the next lap may go up to 512.
  ring_.PutHeader(528, 0);
  ring_.PutHeader(0, 520);
  ring_.head = 1024 + 520;
  ExpectCorrupt();
}

TEST(HostileConsumer, TailThatIsImpossibleStopsTheProducer) {
  // Beyond what was sent, and backwards.
  for (uint64_t tail : {uint64_t{1032}, uint64_t{8}, UINT64_MAX - 7}) {
    SCOPED_TRACE(tail);
    TestRing ring(1024);
    RingProducer producer(ring.view());
    Put(&producer, 0, 512);
    Put(&producer, 1, 512);
    ring.tail = 16;
    EXPECT_EQ(producer.TryReserve(512), nullptr);
    EXPECT_FALSE(producer.corrupt());
    ring.tail = tail;
    EXPECT_EQ(producer.TryReserve(512), nullptr);
    EXPECT_TRUE(producer.corrupt());
  }
}

// All that the consumer hands up of random bytes lies within the ring, and it always comes to an
// end.
TEST(HostileProducerRandom, NeverLeadsOutOfBounds) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("CONSORT_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  int frames = 0;
  for (int round = 0; round < 3000; ++round) {
    TestRing ring(512);
    for (uint64_t& word : ring.data) {
      // Mostly sizes that could be, some markers, some nonsense.
      const uint64_t kind = random() % 16;
      word = kind == 0 ? random() : kind == 1 ? 0 : 16 + random() % 8 * 8;
    }
    RingConsumer consumer(ring.view());
    const std::byte* begin = ring.view().data;
    Frame frame;
    ChannelStatus status = ChannelStatus::kOk;
    for (int step = 0; step < 200 && status != ChannelStatus::kProtocol; ++step) {
      if (status == ChannelStatus::kAgain) ring.head += random() % 24 * 8;
      status = consumer.TryReceive(&frame);
      if (status != ChannelStatus::kOk) continue;
      ++frames;
      ASSERT_GE(frame.body.data(), begin);
      ASSERT_LE(frame.body.data() + frame.body.size(), begin + 512);
      consumer.Release(frame.token);
    }
  }
  EXPECT_GT(frames, 1000) << "the bytes are too random to test anything";
}

}  // namespace
}  // namespace consort
