// SPDX-License-Identifier: Apache-2.0
// vmsock/channel_test_support.h: frames with a pattern, blocking sends and receives, and peers in
// other processes, for the tests of channels and of what stands on them.
#ifndef CONSORT_VMSOCK_CHANNEL_TEST_SUPPORT_H_
#define CONSORT_VMSOCK_CHANNEL_TEST_SUPPORT_H_

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "gtest/gtest.h"
#include "vmsock/channel.h"
#include "vmsock/deadline.h"
#include "vmsock/limits.h"
#include "vmsock/ring_channel.h"
#include "vmsock/stream_channel.h"
#include "vmsock/vm_memory.h"
#include "vmsock/wire/frame.h"

namespace consort {

// A connection before it becomes channels: so that a forked child can take one end.
struct Ends {
  UniqueFd guest;
  UniqueFd host;
  UniqueFd memory;  // with rings
};

struct Transport {
  std::string name;          // of the test case
  const char* channel_name;  // as Channel::name must say
  bool rings = false;
  bool in_vm = false;  // rings in a virtual machine's memory
  bool passes_descriptors = false;
  std::function<absl::StatusOr<Ends>()> connect;
};

inline void PrintTo(const Transport& transport, std::ostream* out) { *out << transport.name; }

inline constexpr RingSizes kTestRingSizes = {kRingBytesMin, kRingBytesMin};
inline constexpr Bytes kTestVmRingsOffset = 3 * kVmMemoryUnit;
// Longer than any healthy wait here, shorter than the test's time limit.
inline constexpr Nanos kPatience = 30 * kSecond;

inline std::unique_ptr<Channel> OpenEnd(const Transport& transport, RingChannel::Side side,
                                        Ends* ends) {
  UniqueFd socket = std::move(side == RingChannel::Side::kGuest ? ends->guest : ends->host);
  if (!transport.rings) return StreamChannel::Create(std::move(socket));
  UniqueFd memory(dup(ends->memory.get()));
  return transport.in_vm
             ? RingChannel::CreateInVm(side, kTestRingSizes,
                                       {std::move(memory), kTestVmRingsOffset, true},
                                       std::move(socket))
             : RingChannel::Create(side, kTestRingSizes, std::move(memory), std::move(socket));
}

// The byte at `index` of the body of frame number `number`: differs along the frame and between
// frames.
inline uint64_t PatternWord(uint32_t number, uint64_t index) {
  return (uint64_t{number} + 1) * 0x9E3779B97F4A7C15u + index * 0xC2B2AE3D27D4EB4Fu;
}

inline void WriteFrame(std::byte* at, uint32_t number, uint32_t bytes) {
  wire::FrameHeader header;
  header.bytes = bytes;
  header.opcode = 7;
  header.call = number ^ 0x5555;
  header.value = number;
  std::memcpy(at, &header, sizeof(header));
  for (uint64_t index = 0; index < (bytes - sizeof(header)) / 8; ++index) {
    const uint64_t word = PatternWord(number, index);
    std::memcpy(at + sizeof(header) + 8 * index, &word, 8);
  }
}

inline ::testing::AssertionResult FrameIs(const Frame& frame, uint32_t number, uint32_t bytes) {
  if (frame.header.value != number || frame.header.call != (number ^ 0x5555) ||
      frame.header.opcode != 7) {
    return ::testing::AssertionFailure()
           << "header of frame " << frame.header.value << " instead of " << number;
  }
  if (frame.header.bytes != bytes || frame.body.size() != bytes - sizeof(wire::FrameHeader)) {
    return ::testing::AssertionFailure()
           << "frame " << number << " has " << frame.header.bytes << " bytes instead of " << bytes;
  }
  for (uint64_t index = 0; index < frame.body.size() / 8; ++index) {
    uint64_t word;
    std::memcpy(&word, frame.body.data() + 8 * index, 8);
    if (word != PatternWord(number, index)) {
      return ::testing::AssertionFailure() << "frame " << number << " differs at word " << index;
    }
  }
  return ::testing::AssertionSuccess();
}

// Sends one frame, waiting for room. What the peer sends meanwhile stays where it is.
inline ChannelStatus SendFrame(Channel* channel, uint32_t number, uint32_t bytes) {
  for (;;) {
    std::byte* room = channel->TryReserve(bytes);
    if (room != nullptr) {
      WriteFrame(room, number, bytes);
      channel->Commit();
      return channel->Flush();
    }
    const ChannelStatus status = channel->Wait(Channel::kWritable, 0, kPatience);
    if (status != ChannelStatus::kOk) return status;
  }
}

inline ChannelStatus FlushAll(Channel* channel) {
  ChannelStatus status;
  while ((status = channel->Flush()) == ChannelStatus::kAgain) {
    status = channel->Wait(Channel::kWritable, 0, kPatience);
    if (status != ChannelStatus::kOk) return status;
  }
  return status;
}

// Receives the next frame, waiting for it.
inline ChannelStatus ReceiveFrame(Channel* channel, Frame* frame, Nanos timeout = kPatience) {
  const Deadline deadline(timeout);
  for (;;) {
    ChannelStatus status = channel->TryReceive(frame);
    if (status != ChannelStatus::kAgain) return status;
    status = channel->Wait(Channel::kReadable, 10 * kMicrosecond, deadline.Left());
    if (status != ChannelStatus::kOk) return status;
  }
}

// Sizes that hit the ends of everything: the smallest, the largest, all small ones, and some
// between.
inline std::vector<uint32_t> InterestingSizes() {
  std::vector<uint32_t> sizes;
  for (uint32_t bytes = 16; bytes <= 1024; bytes += 8) sizes.push_back(bytes);
  for (uint32_t power = 1024; power <= wire::kBulkBytesMax; power *= 2) {
    for (uint32_t near : {power - 8, power, power + 8}) sizes.push_back(near);
  }
  sizes.push_back(wire::kFrameBytesMax - 8);
  sizes.push_back(wire::kFrameBytesMax);
  return sizes;
}

inline uint32_t TestSeed() {
  const char* text = getenv("CONSORT_TEST_SEED");
  return text != nullptr ? static_cast<uint32_t>(strtoul(text, nullptr, 10))
                         : std::random_device()();
}

// A child process that holds the guest's end; killed and reaped with the object.
class ForkedPeer {
 public:
  // Runs `body` with the guest's channel in a child, which ends when it returns. Call with no other
  // thread running.
  ForkedPeer(const Transport& transport, Ends* ends, const std::function<bool(Channel*)>& body) {
    pid_ = fork();
    if (pid_ == 0) {
      ends->host.Reset();
      std::unique_ptr<Channel> channel = OpenEnd(transport, RingChannel::Side::kGuest, ends);
      _exit(channel != nullptr && body(channel.get()) ? 0 : 1);
    }
    ends->guest.Reset();
  }
  ~ForkedPeer() {
    Kill();
    if (!reaped_) Reap();
  }
  void Kill() {
    if (!reaped_) kill(pid_, SIGKILL);
  }
  // Whether `body` returned true.
  bool Reap() {
    int status = 0;
    waitpid(pid_, &status, 0);
    reaped_ = true;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_;
  bool reaped_ = false;
};

}  // namespace consort

#endif  // CONSORT_VMSOCK_CHANNEL_TEST_SUPPORT_H_
