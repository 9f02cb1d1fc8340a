// SPDX-License-Identifier: Apache-2.0
// vmsock/ring_fuzz.cc: the consumer's side of a ring whose memory and head are the input.
//
//   bytes 0..511   the ring's data (zero where the input ends)
//   then steps of two bytes: how far the head moves (signed, times 4, so that it may go back or be
//   misaligned), and which of the frames held is released (0: none)
//
// Checks that frames lie within the ring, are as long as their header says, never overlap one that
// is held, and that a protocol error is for good.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "vmsock/ring.h"

namespace {

constexpr uint64_t kCapacity = 512;

void Require(bool condition) {
  if (!condition) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  using consort::ChannelStatus;
  using consort::Frame;
  std::atomic<uint64_t> head{0};
  std::atomic<uint64_t> tail{0};
  // On the heap, so that the address sanitizer sees every step outside.
  std::vector<uint64_t> words(kCapacity / 8);
  std::byte* const data = reinterpret_cast<std::byte*>(words.data());
  const size_t image = size < kCapacity ? size : kCapacity;
  if (image != 0) std::memcpy(data, input, image);
  consort::RingConsumer consumer({&head, &tail, data, kCapacity});
  std::vector<Frame> held;
  for (size_t at = image; at + 2 <= size; at += 2) {
    head += static_cast<uint64_t>(static_cast<int64_t>(static_cast<int8_t>(input[at])) * 4);
    Frame frame;
    const ChannelStatus status = consumer.TryReceive(&frame);
    if (status == ChannelStatus::kProtocol) {
      head = tail.load();
      Require(consumer.TryReceive(&frame) == ChannelStatus::kProtocol);
      break;
    }
    if (status == ChannelStatus::kOk) {
      const std::byte* begin = frame.body.data() - sizeof(frame.header);
      const std::byte* end = frame.body.data() + frame.body.size();
      Require(begin >= data && end <= data + kCapacity);
      Require(static_cast<size_t>(end - begin) == frame.header.bytes);
      for (const Frame& other : held) {
        Require(end <= other.body.data() - sizeof(other.header) ||
                begin >= other.body.data() + other.body.size());
      }
      held.push_back(frame);
    }
    if (input[at + 1] != 0 && !held.empty()) {
      const size_t index = input[at + 1] % held.size();
      const uint64_t before = tail;
      consumer.Release(held[index].token);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(index));
      Require(tail >= before && tail - before <= kCapacity);
    }
  }
  return 0;
}
