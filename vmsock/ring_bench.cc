// SPDX-License-Identifier: Apache-2.0
// vmsock/ring_bench.cc: what a channel costs: a round trip, and frames and bytes one way, over
// rings and over a UNIX stream. The host's end runs in a thread of its own.
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "benchmark/benchmark.h"
#include "vmsock/channel.h"
#include "vmsock/ring_channel.h"
#include "vmsock/stream_channel.h"
#include "vmsock/wire/frame.h"

namespace consort {
namespace {

struct Pair {
  std::unique_ptr<Channel> guest;
  std::unique_ptr<Channel> host;
};

Pair MakePair(bool rings) {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) abort();
  Pair pair;
  if (rings) {
    const RingSizes sizes;
    UniqueFd memory = CreateRingMemory(sizes);
    pair.guest = RingChannel::Create(RingChannel::Side::kGuest, sizes, UniqueFd(dup(memory.get())),
                                     UniqueFd(fds[0]));
    pair.host =
        RingChannel::Create(RingChannel::Side::kHost, sizes, std::move(memory), UniqueFd(fds[1]));
  } else {
    pair.guest = StreamChannel::Create(UniqueFd(fds[0]));
    pair.host = StreamChannel::Create(UniqueFd(fds[1]));
  }
  if (pair.guest == nullptr || pair.host == nullptr) abort();
  return pair;
}

// What bodies are copied from and to; the threads of a pair use one each.
struct Scratch {
  std::byte bytes[wire::kFrameBytesMax] = {};
};

bool Send(Channel* channel, const Scratch& from, uint32_t bytes, Nanos spin, bool flush) {
  std::byte* room;
  while ((room = channel->TryReserve(bytes)) == nullptr) {
    if (channel->Wait(Channel::kWritable, spin, -1) != ChannelStatus::kOk) return false;
  }
  wire::FrameHeader header;
  header.bytes = bytes;
  std::memcpy(room, &header, sizeof(header));
  std::memcpy(room + sizeof(header), from.bytes, bytes - sizeof(header));
  channel->Commit();
  if (flush) {
    while (channel->Flush() == ChannelStatus::kAgain) channel->Wait(Channel::kWritable, spin, -1);
  }
  return true;
}

bool Receive(Channel* channel, Scratch* to, Nanos spin) {
  Frame frame;
  for (;;) {
    const ChannelStatus status = channel->TryReceive(&frame);
    if (status == ChannelStatus::kOk) break;
    if (status != ChannelStatus::kAgain ||
        channel->Wait(Channel::kReadable, spin, -1) != ChannelStatus::kOk) {
      return false;
    }
  }
  std::memcpy(to->bytes, frame.body.data(), frame.body.size());
  benchmark::DoNotOptimize(to->bytes);
  channel->Release(frame);
  return true;
}

// One frame there and one back. Arguments: bytes, microseconds of spinning.
void RoundTrip(benchmark::State& state, bool rings) {
  const uint32_t bytes = static_cast<uint32_t>(state.range(0));
  const Nanos spin = state.range(1) * kMicrosecond;
  Pair pair = MakePair(rings);
  const auto scratch = std::make_unique<Scratch>();
  const auto host_scratch = std::make_unique<Scratch>();
  std::thread host([&] {
    while (Receive(pair.host.get(), host_scratch.get(), spin) &&
           Send(pair.host.get(), *host_scratch, bytes, spin, true)) {
    }
  });
  for (auto _ : state) {
    Send(pair.guest.get(), *scratch, bytes, spin, true);
    Receive(pair.guest.get(), scratch.get(), spin);
  }
  pair.guest->Close();
  host.join();
}

// One way; a flush every `range(1)` frames. The peer only releases.
void OneWay(benchmark::State& state, bool rings) {
  const uint32_t bytes = static_cast<uint32_t>(state.range(0));
  const int64_t batch = state.range(1);
  constexpr Nanos kSpin = 20 * kMicrosecond;
  Pair pair = MakePair(rings);
  const auto scratch = std::make_unique<Scratch>();
  const auto host_scratch = std::make_unique<Scratch>();
  std::thread host([&] {
    while (Receive(pair.host.get(), host_scratch.get(), kSpin)) {
    }
  });
  int64_t sent = 0;
  for (auto _ : state) {
    Send(pair.guest.get(), *scratch, bytes, kSpin, ++sent % batch == 0);
  }
  state.SetItemsProcessed(state.iterations());
  state.SetBytesProcessed(state.iterations() * bytes);
  pair.guest->Close();
  host.join();
}

BENCHMARK_CAPTURE(RoundTrip, rings, true)
    ->ArgNames({"bytes", "spin_us"})
    ->ArgsProduct({{64}, {0, 50}})
    ->UseRealTime();
BENCHMARK_CAPTURE(RoundTrip, unix, false)
    ->ArgNames({"bytes", "spin_us"})
    ->ArgsProduct({{64}, {0, 50}})
    ->UseRealTime();
BENCHMARK_CAPTURE(OneWay, rings, true)
    ->ArgNames({"bytes", "batch"})
    ->ArgsProduct({{64, 512, wire::kBulkBytesMax}, {1, 16}})
    ->UseRealTime();
BENCHMARK_CAPTURE(OneWay, unix, false)
    ->ArgNames({"bytes", "batch"})
    ->ArgsProduct({{64, 512, wire::kBulkBytesMax}, {1, 16}})
    ->UseRealTime();

}  // namespace
}  // namespace consort

BENCHMARK_MAIN();
