// SPDX-License-Identifier: Apache-2.0
#include "host/session/redo_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gen/wire/requests.h"
#include "host/limits.h"
#include "host/session/redo_channel.h"

namespace consort::host {
namespace {

constexpr RedoBase kFirst = {1};
constexpr RedoBase kSecond = {2};

// A request as a channel hands it up.
class Sent {
 public:
  template <class Request>
  Sent(const Request& request, uint32_t call) {
    frame_.header.opcode = static_cast<uint16_t>(Request::kOpcode);
    frame_.header.call = call;
    frame_.header.bytes = wire::FrameBytes(request.BodyBytes());
    body_.resize(frame_.header.bytes - sizeof(wire::FrameHeader));
    wire::Encoder encoder(body_.data(), request.BodyBytes());
    request.Encode(encoder);
    frame_.body = body_;
  }
  const Frame& frame() const { return frame_; }

 private:
  std::vector<std::byte> body_;
  Frame frame_;
};

wire::StreamSynchronizeRequest Wait() {
  wire::StreamSynchronizeRequest request;
  request.stream = 3;
  return request;
}

wire::MemFreeRequest Free(uint64_t address) {
  wire::MemFreeRequest request;
  request.address = address;
  return request;
}

class RedoLogTest : public ::testing::Test {
 protected:
  RedoLogTest() : log_(*RedoLog::Create()) { BeginAt(kFirst, 64); }

  void BeginAt(const RedoBase& base, uint64_t received) {
    log_->Announce(base);
    log_->Begin(base, received);
  }
  void Append(const Frame& frame, RequestRedo kind) {
    position_ += frame.header.bytes;
    log_->Append(frame, kind, position_);
  }
  // As another process finds it.
  std::unique_ptr<RedoLog> Taken() {
    auto taken = RedoLog::TakeUp(UniqueFd(dup(log_->fd())));
    EXPECT_TRUE(taken.ok()) << taken.status();
    return *std::move(taken);
  }

  std::unique_ptr<RedoLog> log_;
  uint64_t position_ = 64;
};

TEST_F(RedoLogTest, WhoeverTakesItUpFindsWhatWasAppendedInOrder) {
  Append(Sent(Free(512), 0).frame(), RequestRedo::kAgain);
  Append(Sent(Wait(), 7).frame(), RequestRedo::kAsks);
  Append(Sent(Free(1024), 0).frame(), RequestRedo::kAgain);
  const auto taken = Taken();
  ASSERT_EQ(taken->size(), 3u);
  EXPECT_EQ(taken->At(1).frame.header.call, 7u);
  wire::MemFreeRequest last;
  const Frame frame = taken->At(2).frame;
  wire::Decoder decoder(frame.body);
  ASSERT_TRUE(last.Decode(decoder));
  EXPECT_EQ(last.address, 1024u);
  EXPECT_EQ(taken->received(), position_);
  EXPECT_EQ(taken->base(), kFirst);
}

TEST_F(RedoLogTest, WhatOnlyAskedGoesOnceItIsAnsweredAndThePositionStays) {
  Append(Sent(Free(512), 0).frame(), RequestRedo::kAgain);
  for (uint32_t call = 1; call <= 1000; ++call) {
    Append(Sent(Wait(), call).frame(), RequestRedo::kAsks);
    log_->Answer(call, 0, call * 16);
    log_->DropAnswered();
  }
  const auto taken = Taken();
  EXPECT_EQ(taken->size(), 1u);
  EXPECT_EQ(taken->received(), position_);
}

TEST_F(RedoLogTest, WhatDidSomethingStaysWhenItIsAnswered) {
  Append(Sent(wire::MemAllocRequest(), 7).frame(), RequestRedo::kAgain);
  log_->Answer(7, 4096, 16);
  log_->DropAnswered();
  log_->Rest();
  const auto taken = Taken();
  ASSERT_EQ(taken->size(), 1u);
  EXPECT_EQ(taken->At(0).print, 4096u);
}

TEST_F(RedoLogTest, AnAnswerCountsIfTheRingHasIt) {
  Append(Sent(Wait(), 1).frame(), RequestRedo::kAsks);
  log_->Answer(1, 0, 160);
  auto not_given = Taken();
  not_given->ForgetAnswersFrom(160);
  EXPECT_EQ(not_given->At(0).answered, 0u);
  log_->Announce(kSecond);
  log_->Begin(kSecond, 64);
  Append(Sent(Wait(), 1).frame(), RequestRedo::kAsks);
  log_->Answer(1, 0, 160);
  auto given = Taken();
  given->ForgetAnswersFrom(176);
  EXPECT_NE(given->At(0).answered, 0u);
}

TEST_F(RedoLogTest, ARestMeansThatAllThatWasAskedIsThere) {
  Append(Sent(Wait(), 1).frame(), RequestRedo::kAsks);
  Append(Sent(Free(512), 0).frame(), RequestRedo::kAgain);
  log_->Loosen("of a test");
  EXPECT_FALSE(CheckRedo(log_->fd()).ok());
  log_->Rest();
  auto taken = Taken();
  taken->ForgetAnswersFrom(0);
  ASSERT_EQ(taken->size(), 2u);
  EXPECT_NE(taken->At(0).answered, 0u);
}

TEST_F(RedoLogTest, APartOfATransferLoosensIt) {
  wire::CopyToHostRequest copy;
  copy.width = 100;
  copy.rows = 2;
  copy.transfer = 5;
  Append(Sent(copy, 0).frame(), RequestRedo::kAsks);
  log_->AnswerTransfer(5, 0, 200, 160);
  EXPECT_FALSE(log_->loose());
  Append(Sent(copy, 0).frame(), RequestRedo::kAsks);
  log_->AnswerTransfer(5, 0, 100, 160);
  EXPECT_TRUE(log_->loose());
}

TEST_F(RedoLogTest, SpoiltItStaysUntilTheNextCheckpoint) {
  log_->Spoil("for a reason");
  log_->Rest();
  EXPECT_EQ(CheckRedo(log_->fd()).message(), "for a reason");
  Append(Sent(Free(512), 0).frame(), RequestRedo::kAgain);
  BeginAt(kSecond, 800);
  EXPECT_TRUE(CheckRedo(log_->fd()).ok());
  EXPECT_EQ(Taken()->size(), 0u);
  EXPECT_EQ(Taken()->received(), 800u);
}

TEST_F(RedoLogTest, IsSpoiltByTheFirstRequestBeyondItsBound) {
  wire::CopyToDeviceRequest copy;
  const std::vector<std::byte> data(512 * kKiB);
  copy.data = data;
  const Sent sent(copy, 0);
  const Bytes entry = 32 + sent.frame().header.bytes;
  for (Bytes bytes = entry; bytes <= kRedoBytesMax; bytes += entry) {
    Append(sent.frame(), RequestRedo::kAgain);
    ASSERT_FALSE(log_->spoiled());
  }
  Append(sent.frame(), RequestRedo::kAgain);
  EXPECT_TRUE(log_->spoiled());
  EXPECT_FALSE(RedoLog::TakeUp(UniqueFd(dup(log_->fd()))).ok());
}

TEST_F(RedoLogTest, GoesOnFromItsBaseOrFromWhatWasBeingWritten) {
  Append(Sent(Free(512), 0).frame(), RequestRedo::kAgain);
  EXPECT_TRUE(absl::IsFailedPrecondition(SettleRedo(log_->fd(), kSecond)));
  EXPECT_TRUE(SettleRedo(log_->fd(), kFirst).ok());
  EXPECT_EQ(Taken()->size(), 1u);
  log_->Pass(position_);
  log_->Announce(kSecond);
  EXPECT_TRUE(SettleRedo(log_->fd(), kSecond).ok());
  const auto taken = Taken();
  EXPECT_EQ(taken->size(), 0u);
  EXPECT_EQ(taken->received(), position_);
  EXPECT_EQ(taken->base(), kSecond);
}

TEST_F(RedoLogTest, WhatIsCutOffOrNoneIsRefused) {
  Append(Sent(Free(512), 0).frame(), RequestRedo::kAgain);
  // In the entry's own fields, between those and its frame, in the frame.
  for (const uint64_t bytes : {33u, 48u, 55u}) {
    ASSERT_EQ(pwrite(log_->fd(), &bytes, sizeof(bytes), 0x28), static_cast<ssize_t>(sizeof(bytes)));
    EXPECT_TRUE(absl::IsInvalidArgument(RedoLog::TakeUp(UniqueFd(dup(log_->fd()))).status()))
        << bytes;
  }
  ASSERT_EQ(ftruncate(log_->fd(), 100), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRedo(log_->fd())));
}

// --- The channel

class RedoChannelTest : public RedoLogTest {
 protected:
  RedoChannel Channel() {
    return RedoChannel(
        log_.get(), [this](uint64_t, uint64_t number) { return number <= signalled_; },
        [this] { return frees_; });
  }
  static void Reply(RedoChannel* channel, const Frame& request, uint64_t print) {
    wire::FrameHeader header;
    header.bytes = sizeof(header);
    header.opcode = request.header.opcode;
    header.flags = wire::kFrameReply;
    header.call = request.header.call;
    std::memcpy(channel->TryReserve(sizeof(header)), &header, sizeof(header));
    channel->set_print(print);
    channel->Commit();
  }

  uint64_t signalled_ = 0;
  bool frees_ = false;
};

TEST_F(RedoChannelTest, KeepsTheAnswersThatWereNotGiven) {
  wire::MemAllocRequest allocation;
  allocation.bytes = 100;
  Append(Sent(allocation, 1).frame(), RequestRedo::kAgain);
  log_->Answer(1, 4096, 160);
  Append(Sent(allocation, 2).frame(), RequestRedo::kAgain);
  RedoChannel channel = Channel();
  Frame frame;
  ASSERT_EQ(channel.TryReceive(&frame), ChannelStatus::kOk);
  EXPECT_EQ(channel.GivenTo(1), 4096u);
  Reply(&channel, frame, 4096);
  channel.Release(frame);
  ASSERT_EQ(channel.TryReceive(&frame), ChannelStatus::kOk);
  EXPECT_EQ(channel.GivenTo(2), std::nullopt);
  Reply(&channel, frame, 8192);
  EXPECT_TRUE(channel.done());
  EXPECT_TRUE(channel.status().ok());
  EXPECT_EQ(channel.TakeKept().size(), 1u);
}

TEST_F(RedoChannelTest, RefusesAnotherAnswerThanWasGiven) {
  wire::KernelGetRequest kernel;
  Append(Sent(kernel, 1).frame(), RequestRedo::kAgain);
  log_->Answer(1, 11, 160);
  RedoChannel channel = Channel();
  Frame frame;
  ASSERT_EQ(channel.TryReceive(&frame), ChannelStatus::kOk);
  Reply(&channel, frame, 12);
  EXPECT_TRUE(absl::IsAborted(channel.status()));
  EXPECT_EQ(channel.TryReceive(&frame), ChannelStatus::kClosed);
}

TEST_F(RedoChannelTest, AnAllocationWaitsForFreesAndACallForItsNumber) {
  wire::MemAllocRequest allocation;
  Append(Sent(Free(512), 0).frame(), RequestRedo::kAgain);
  Append(Sent(allocation, 1).frame(), RequestRedo::kAgain);
  Append(Sent(Wait(), 1).frame(), RequestRedo::kAsks);
  RedoChannel channel = Channel();
  Frame free;
  Frame frame;
  ASSERT_EQ(channel.TryReceive(&free), ChannelStatus::kOk);
  EXPECT_EQ(channel.TryReceive(&frame), ChannelStatus::kAgain);
  channel.Release(free);
  frees_ = true;
  EXPECT_EQ(channel.TryReceive(&frame), ChannelStatus::kAgain);
  frees_ = false;
  ASSERT_EQ(channel.TryReceive(&frame), ChannelStatus::kOk);
  Frame wait;
  EXPECT_EQ(channel.TryReceive(&wait), ChannelStatus::kAgain);
  Reply(&channel, frame, 0);
  EXPECT_EQ(channel.TryReceive(&wait), ChannelStatus::kOk);
}

TEST_F(RedoChannelTest, ACopyIntoTheLibrarysMemoryIsDoneAgainUntilItWasSignalled) {
  wire::CopyRowsRequest copy;
  copy.stream = 3;
  wire::StreamSignalRequest signal;
  signal.stream = 3;
  signal.number = 9;
  wire::StreamSignalRequest event_signal;
  event_signal.stream = 3;
  event_signal.number = 1;
  event_signal.of_event = 1;
  for (const uint64_t signalled : {8u, 9u}) {
    BeginAt(kSecond, 64);
    Append(Sent(copy, 0).frame(), RequestRedo::kAsks);
    // An event's word tells nothing: another stream may have written it.
    Append(Sent(event_signal, 0).frame(), RequestRedo::kAsks);
    Append(Sent(signal, 0).frame(), RequestRedo::kAsks);
    signalled_ = signalled;
    RedoChannel channel = Channel();
    Frame frame;
    ASSERT_EQ(channel.TryReceive(&frame), ChannelStatus::kOk);
    EXPECT_EQ(frame.header.opcode,
              static_cast<uint16_t>(signalled < 9 ? wire::Opcode::kCopyRows
                                                  : wire::Opcode::kStreamSignal));
  }
}

}  // namespace
}  // namespace consort::host
