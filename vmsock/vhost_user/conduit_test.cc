// SPDX-License-Identifier: Apache-2.0
// Streams of which the worker takes the bytes where the device has put them (vmsock/conduit.h): the
// whole device, its guest and the worker's channel.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "vmsock/channel_test_support.h"
#include "vmsock/conduit_channel.h"
#include "vmsock/copy_crew.h"
#include "vmsock/listen.h"
#include "vmsock/socket_io.h"
#include "vmsock/vhost_user/vsock_device_test_support.h"

namespace consort::vhost_user {
namespace {

constexpr Nanos kPatience = 20 * kSecond;
// As the guest library asks for (kVsockBufferBytes).
constexpr uint32_t kGuestBufferBytes = 4 * kMiB;

// A frame of `body_bytes`, a multiple of 8, whose contents follow from `call`.
std::vector<std::byte> MakeFrame(uint32_t call, uint32_t body_bytes) {
  wire::FrameHeader header;
  header.bytes = wire::FrameBytes(body_bytes);
  header.opcode = 77;
  header.call = call;
  std::vector<std::byte> frame(sizeof(header));
  std::memcpy(frame.data(), &header, sizeof(header));
  const auto body = Pattern(body_bytes, call);
  frame.insert(frame.end(), body.begin(), body.end());
  return frame;
}

struct CrewCase {
  std::string name;
  CopyCrewOptions options;
};

// With the device's thread alone, with a crew that has a part in every copy, and with one whose
// thread nothing wakes: then the device's thread copies some bytes a time, when it has nothing else
// to do, and nearly everything happens while copies are on their way.
class VsockDeviceConduit : public VsockDeviceTest, public testing::WithParamInterface<CrewCase> {
 protected:
  VsockDeviceConduit() { options_.copy_crew = &crew_; }

  struct Ends {
    std::unique_ptr<GuestStream> guest;
    std::unique_ptr<ConduitChannel> worker;
  };

  std::unique_ptr<ConduitChannel> Open(UniqueFd host, std::span<const std::byte> unread = {}) {
    auto channel = ConduitChannel::Open(std::move(host), unread, kPatience);
    EXPECT_TRUE(channel.ok()) << channel.status();
    return channel.ok() ? *std::move(channel) : nullptr;
  }

  Ends ConnectWorker(uint32_t guest_port) {
    Ends ends;
    UniqueFd host;
    std::tie(ends.guest, host) = Connect(guest_port, kGuestBufferBytes);
    ends.worker = Open(std::move(host));
    return ends;
  }

  // The next frame, or one with no bytes.
  Frame Next(ConduitChannel& worker) {
    Frame frame;
    ChannelStatus status;
    while ((status = worker.TryReceive(&frame)) == ChannelStatus::kAgain) {
      if (worker.Wait(Channel::kReadable, 0, kPatience) == ChannelStatus::kAgain) break;
    }
    EXPECT_EQ(status, ChannelStatus::kOk);
    return status == ChannelStatus::kOk ? frame : Frame{};
  }

  void ExpectFrame(const Frame& frame, uint32_t call, uint32_t body_bytes) {
    EXPECT_EQ(frame.header.call, call);
    ASSERT_EQ(frame.body.size(), body_bytes);
    const auto body = Pattern(body_bytes, call);
    EXPECT_TRUE(std::equal(body.begin(), body.end(), frame.body.begin())) << "frame " << call;
  }

  static bool SendFrame(ConduitChannel& worker, std::span<const std::byte> frame) {
    std::byte* at = worker.TryReserve(static_cast<uint32_t>(frame.size()));
    if (at == nullptr) return false;
    std::memcpy(at, frame.data(), frame.size());
    worker.Commit();
    return worker.Flush() == ChannelStatus::kOk;
  }

  // Every chain that the device has taken is back with the guest.
  void ExpectAllReturned(const std::array<uint16_t, kQueueCount>& bases) {
    for (uint32_t i = 0; i < kQueueCount; ++i) {
      uint16_t used = 0;
      std::memcpy(&used,
                  frontend_->At(FakeFrontend::kRingsOffset + i * FakeFrontend::kRingStride +
                                FakeFrontend::kUsedOffset + 2),
                  sizeof(used));
      EXPECT_EQ(used, bases[i]) << "queue " << i;
    }
  }

  // The worker's end goes to another one.
  void ChangeWorkers(Ends* ends) {
    ChannelHandover handover;
    while (!ends->worker->Describe(&handover)) ASSERT_TRUE(guest_->Step(FakeGuest::kTimeoutMs));
    EXPECT_EQ(handover.request_ring_bytes, 0u);
    auto next = ResumeHostChannel(UniqueFd(fcntl(handover.socket, F_DUPFD_CLOEXEC, 0)),
                                  UniqueFd(fcntl(handover.memory, F_DUPFD_CLOEXEC, 0)), handover);
    ASSERT_TRUE(next.ok()) << next.status();
    ASSERT_NE(next->conduit, nullptr);
    ends->worker->Abandon();
    ends->worker.reset(next->conduit);
    next->channel.release();
  }

  CopyCrew crew_{GetParam().options};

  // The worker's memory, mapped once more, to write nonsense.
  static ConduitControl* MapControl(const ConduitChannel& worker) {
    ChannelHandover handover;
    CHECK(worker.Describe(&handover));
    void* mapped =
        mmap(nullptr, kConduitBytes, PROT_READ | PROT_WRITE, MAP_SHARED, handover.memory, 0);
    PCHECK(mapped != MAP_FAILED);
    return static_cast<ConduitControl*>(mapped);
  }
};

TEST_P(VsockDeviceConduit, CarriesFramesBothWaysCopiedOnce) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  Ends ends = ConnectWorker(1000);
  const uint32_t sizes[] = {0, 8, 104, 4000, 65536, 131072, wire::kBulkBytesMax, 24};
  uint64_t bytes = 0;
  uint32_t call = 1;
  // More than either ring holds.
  for (int round = 0; round < 20; ++round) {
    for (const uint32_t size : sizes) {
      const auto frame = MakeFrame(call, size);
      bytes += frame.size();
      ASSERT_TRUE(ends.guest->SendAll(frame));
      const Frame received = Next(*ends.worker);
      ASSERT_NO_FATAL_FAILURE(ExpectFrame(received, call, size));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(received.body.data()) % 8, 0u);
      ends.worker->Release(received);
      ASSERT_TRUE(SendFrame(*ends.worker, frame));
      EXPECT_TRUE(Receive(*ends.guest, frame.size()) == frame);
      ++call;
    }
  }
  const VsockDeviceStats stats = device_->stats();
  EXPECT_EQ(stats.bytes_from_guest, bytes);
  EXPECT_EQ(stats.bytes_to_guest, bytes);
  EXPECT_EQ(stats.socket_bytes_from_guest, 0u);
  // The byte that the descriptor comes with is none of the guest's.
  EXPECT_EQ(stats.socket_bytes_to_guest, 0u);
}

TEST_P(VsockDeviceConduit, SendsPayloadsFromWhereTheyAre) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  Ends ends = ConnectWorker(1000);
  constexpr uint32_t kBytes = wire::kBulkBytesMax;
  uint64_t until = 0;
  for (uint32_t call = 1; call <= 40; ++call) {
    const auto frame = MakeFrame(call, kBytes);
    const auto before = MakeFrame(1000 + call, 8 * call);
    ASSERT_TRUE(SendFrame(*ends.worker, before));
    std::byte* const place = ends.worker->bulk_memory().data() + call % 20 * kBytes;
    std::memcpy(place, frame.data() + sizeof(wire::FrameHeader), kBytes);
    std::byte* const at = ends.worker->TryReserve(sizeof(wire::FrameHeader));
    ASSERT_NE(at, nullptr);
    std::memcpy(at, frame.data(), sizeof(wire::FrameHeader));
    until = ends.worker->CommitWith({place, kBytes});
    ASSERT_EQ(ends.worker->Flush(), ChannelStatus::kOk);
    auto expected = before;
    expected.insert(expected.end(), frame.begin(), frame.end());
    EXPECT_TRUE(Receive(*ends.guest, expected.size()) == expected) << "frame " << call;
    // The guest has it, so it was taken.
    ends.worker->AwaitTaken(until);
    EXPECT_EQ(ends.worker->Wait(Channel::kWritable, 0, kPatience), ChannelStatus::kOk);
    EXPECT_EQ(ends.worker->taken(), until);
  }
}

// Linux's buffers are one descriptor each. Here others stand between those, and some lie in two
// regions of memory that meet in a packet's header or payload.
TEST_P(VsockDeviceConduit, FillsBuffersOfAnyShapeInTheirOrder) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(absl::StrCat("CONSORT_TEST_SEED=", seed));
  std::mt19937 random(seed);
  const Shape plain = {.lengths = {3776}, .indirect = false};
  ASSERT_NO_FATAL_FAILURE(StartAll(
      kFeaturesOffered, {plain,
                         {.lengths = {44, 3732}, .indirect = false},
                         plain,
                         {.lengths = {3776}, .indirect = true},
                         plain,
                         plain,
                         plain,
                         {.lengths = {43, 2, 1000, 7}, .indirect = true},
                         {.lengths = std::vector<uint32_t>(kPiecesPerCopy, 5), .indirect = true},
                         {.lengths = {10, 3766}, .indirect = false}}));
  const auto whole = FakeFrontend::DefaultRegions();
  std::vector<MemoryRegionSpec> parts = {whole[1]};
  uint64_t begin = 0;
  for (const uint64_t end :
       {FakeGuest::RxBufferOffset(2) + 20, FakeGuest::RxBufferOffset(4) + kPacketHeaderBytes,
        FakeGuest::RxBufferOffset(6) + 1000, whole[0].bytes}) {
    MemoryRegionSpec part = whole[0];
    part.bytes = end - begin;
    part.guest_addr += begin;
    part.user_addr += begin;
    part.mmap_offset += begin;
    parts.push_back(part);
    begin = end;
  }
  ASSERT_EQ(frontend_->SendMemTable(parts), 0u);
  Ends ends = ConnectWorker(1000);
  const uint32_t window = ends.guest->window();
  uint64_t bytes = 0;
  const uint64_t packets_before = guest_->packets_received();
  for (uint32_t call = 1; call <= 60; ++call) {
    // Several frames that lie apart, so that a packet has bytes of more than one place.
    std::vector<std::byte> expected;
    for (uint32_t i = random() % 4; i < 4; ++i) {
      const uint32_t size = 8 * (random() % (random() % 3 == 0 ? 30000 : 200));
      const auto frame = MakeFrame(call, size);
      if (size > 0 && random() % 2 == 0) {
        std::byte* const place = ends.worker->bulk_memory().data() + i * wire::kBulkBytesMax;
        std::memcpy(place, frame.data() + sizeof(wire::FrameHeader), size);
        std::byte* const at = ends.worker->TryReserve(sizeof(wire::FrameHeader));
        ASSERT_NE(at, nullptr);
        std::memcpy(at, frame.data(), sizeof(wire::FrameHeader));
        ends.worker->CommitWith({place, size});
        ASSERT_EQ(ends.worker->Flush(), ChannelStatus::kOk);
      } else {
        ASSERT_TRUE(SendFrame(*ends.worker, frame));
      }
      expected.insert(expected.end(), frame.begin(), frame.end());
    }
    EXPECT_TRUE(Receive(*ends.guest, expected.size()) == expected) << "call " << call;
    bytes += expected.size();
  }
  EXPECT_EQ(ends.guest->window(), window);
  EXPECT_EQ(device_->stats().bytes_to_guest, bytes);
  // All shapes had their turn, often.
  EXPECT_GT(guest_->packets_received() - packets_before, 5 * FakeGuest::kRxBuffers);
}

TEST_P(VsockDeviceConduit, BeginsInTheMiddleOfAFrame) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  uint32_t port = 1000;
  // What a worker has read of the stream, and what waits in the socket and the device.
  for (const size_t unread : {size_t{0}, size_t{5}, size_t{3000}}) {
    for (const size_t early : {size_t{0}, size_t{3}, size_t{4096}, size_t{700001}}) {
      SCOPED_TRACE(absl::StrCat(unread, " bytes unread, ", early, " early"));
      auto [guest, host] = Connect(port++, kGuestBufferBytes);
      std::vector<std::byte> stream;
      std::vector<uint32_t> sizes;
      while (stream.size() < unread + early + 1000) {
        sizes.push_back(static_cast<uint32_t>(8 * (sizes.size() * 997 % 9000)));
        const auto frame = MakeFrame(static_cast<uint32_t>(sizes.size()), sizes.back());
        stream.insert(stream.end(), frame.begin(), frame.end());
      }
      const auto all = std::span(stream);
      ASSERT_TRUE(guest->SendAll(all.first(unread)));
      ASSERT_EQ(ReadUpTo(host.get(), unread).size(), unread);
      ASSERT_TRUE(guest->SendAll(all.subspan(unread, early)));
      const auto worker = Open(std::move(host), all.first(unread));
      ASSERT_NE(worker, nullptr);
      ASSERT_TRUE(guest->SendAll(all.subspan(unread + early)));
      for (uint32_t i = 0; i < sizes.size(); ++i) {
        const Frame frame = Next(*worker);
        ASSERT_NO_FATAL_FAILURE(ExpectFrame(frame, i + 1, sizes[i]));
        EXPECT_EQ(reinterpret_cast<uintptr_t>(frame.body.data()) % 8, 0u);
        worker->Release(frame);
      }
    }
  }
}

TEST_P(VsockDeviceConduit, BytesOfTheHostBeforeItComeFirst) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [guest, host] = Connect(1000, kGuestBufferBytes);
  const auto welcome = Pattern(4096, 1);
  ASSERT_TRUE(WriteAll(host.get(), welcome));
  const auto worker = Open(std::move(host));
  ASSERT_NE(worker, nullptr);
  const auto frame = MakeFrame(1, 800);
  ASSERT_TRUE(SendFrame(*worker, frame));
  auto expected = welcome;
  expected.insert(expected.end(), frame.begin(), frame.end());
  EXPECT_TRUE(Receive(*guest, expected.size()) == expected);
}

TEST_P(VsockDeviceConduit, HeldFramesStopTheGuestAndReleasedOnesLetItGoOn) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  Ends ends = ConnectWorker(1000);
  constexpr uint32_t kBody = 256 * kKiB - sizeof(wire::FrameHeader);
  std::vector<Frame> held;
  uint32_t call = 0;
  std::vector<std::byte> frame;
  size_t sent = 0;
  const auto send = [&] {
    if (sent == frame.size()) {
      frame = MakeFrame(++call, kBody);
      sent = 0;
    }
    sent += ends.guest->SendSome(std::span(frame).subspan(sent));
  };
  const auto receive = [&] {
    Frame next;
    while (ends.worker->TryReceive(&next) == ChannelStatus::kOk) {
      ASSERT_NO_FATAL_FAILURE(ExpectFrame(next, static_cast<uint32_t>(held.size()) + 1, kBody));
      held.push_back(next);
    }
  };
  while (ends.guest->credit() > 0 || guest_->Step(300)) {
    if (ends.guest->credit() > 0) send();
    ASSERT_NO_FATAL_FAILURE(receive());
  }
  const uint64_t ring_bytes = device_->stats().bytes_from_guest;
  EXPECT_GT(ring_bytes, 4 * kMiB);
  EXPECT_LE(ring_bytes, kConduitRequestBytes);
  EXPECT_FALSE(ends.guest->reset());
  for (const Frame& one : held) ends.worker->Release(one);
  // The worker wakes the device, and the device the guest.
  const size_t before = held.size();
  while (held.size() < before + 60) {
    while (ends.guest->credit() == 0) ASSERT_TRUE(guest_->Step(FakeGuest::kTimeoutMs));
    send();
    ASSERT_NO_FATAL_FAILURE(receive());
    for (size_t i = before; i < held.size(); ++i) {
      if (held[i].body.empty()) continue;
      ends.worker->Release(held[i]);
      held[i].body = {};
    }
  }
}

TEST_P(VsockDeviceConduit, WakesWhoeverSleeps) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  Ends ends = ConnectWorker(1000);
  // An echo that sleeps whenever there is nothing to do, whatever the guest does meanwhile.
  std::thread echo([&worker = *ends.worker] {
    Frame frame;
    while (true) {
      const ChannelStatus status = worker.TryReceive(&frame);
      if (status == ChannelStatus::kAgain) {
        if (worker.Wait(Channel::kReadable, 0, kPatience) == ChannelStatus::kAgain) return;
        continue;
      }
      if (status != ChannelStatus::kOk) return;
      std::byte* at;
      while ((at = worker.TryReserve(frame.header.bytes)) == nullptr) {
        if (worker.Wait(Channel::kWritable, 0, kPatience) != ChannelStatus::kOk) return;
      }
      std::memcpy(at, &frame.header, sizeof(frame.header));
      std::copy(frame.body.begin(), frame.body.end(), at + sizeof(frame.header));
      worker.Commit();
      worker.Release(frame);
      worker.Flush();
    }
  });
  std::mt19937 random(1);
  std::vector<std::byte> sent;
  std::vector<std::byte> got;
  for (uint32_t call = 1; call <= 300; ++call) {
    const auto frame = MakeFrame(call, 8 * (random() % (call % 10 == 0 ? 60000 : 40)));
    sent.insert(sent.end(), frame.begin(), frame.end());
    ASSERT_TRUE(ends.guest->SendAll(frame));
    while (got.size() < sent.size() && random() % 3 != 0) {
      const auto some = ends.guest->ReceiveSome();
      ASSERT_FALSE(some.empty());
      got.insert(got.end(), some.begin(), some.end());
    }
  }
  const auto rest = Receive(*ends.guest, sent.size() - got.size());
  got.insert(got.end(), rest.begin(), rest.end());
  EXPECT_TRUE(got == sent);
  ends.guest->Shutdown(kShutdownBoth);
  echo.join();
}

TEST_P(VsockDeviceConduit, EndsComeBehindWhatIsInMemory) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  {
    Ends ends = ConnectWorker(1000);
    const auto frame = MakeFrame(1, 400000);
    ASSERT_TRUE(SendFrame(*ends.worker, frame));
    ends.worker.reset();
    EXPECT_TRUE(ReceiveToEnd(*ends.guest) == frame);
    EXPECT_TRUE(ends.guest->ended());
  }
  Ends ends = ConnectWorker(1001);
  ASSERT_TRUE(ends.guest->SendAll(MakeFrame(2, 400000)));
  ends.guest->Shutdown(kShutdownBoth);
  EXPECT_TRUE(ends.guest->WaitReset());
  const Frame frame = Next(*ends.worker);
  ASSERT_NO_FATAL_FAILURE(ExpectFrame(frame, 2, 400000));
  ends.worker->Release(frame);
  Frame none;
  while (ends.worker->TryReceive(&none) == ChannelStatus::kAgain) {
    ASSERT_NE(ends.worker->Wait(Channel::kReadable, 0, kPatience), ChannelStatus::kAgain);
  }
  EXPECT_EQ(ends.worker->TryReceive(&none), ChannelStatus::kClosed);
}

TEST_P(VsockDeviceConduit, NonsenseOfAWorkerEndsItsStreamAlone) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  const auto pieces = [](ConduitControl* control) {
    return reinterpret_cast<ConduitPiece*>(reinterpret_cast<std::byte*>(control) +
                                           kConduitPiecesOffset);
  };
  const std::vector<std::pair<std::string, std::function<void(ConduitControl*)>>> lies = {
      {"a piece of the control fields",
       [&](ConduitControl* control) {
         pieces(control)[0] = {0, 64};
         control->pieces_head = 1;
       }},
      {"a piece past the end",
       [&](ConduitControl* control) {
         pieces(control)[0] = {kConduitBytes - 8, 16};
         control->pieces_head = 1;
       }},
      {"a piece whose end wraps",
       [&](ConduitControl* control) {
         pieces(control)[0] = {kConduitBulkOffset, UINT64_MAX - 8};
         control->pieces_head = 1;
       }},
      {"a piece of nothing",
       [&](ConduitControl* control) {
         pieces(control)[0] = {kConduitBulkOffset, 0};
         control->pieces_head = 1;
       }},
      {"one that is good, and one past the end",
       [&](ConduitControl* control) {
         pieces(control)[0] = {kConduitBulkOffset, 64};
         pieces(control)[1] = {kConduitBytes - 8, 16};
         control->pieces_head = 2;
       }},
      {"more pieces than there are",
       [&](ConduitControl* control) { control->pieces_head = kConduitPieces + 1; }},
  };
  uint32_t port = 1000;
  for (const auto& [what, lie] : lies) {
    SCOPED_TRACE(what);
    auto [guest, host] = Connect(port++, kGuestBufferBytes);
    const UniqueFd bell(fcntl(host.get(), F_DUPFD_CLOEXEC, 0));
    const auto worker = Open(std::move(host));
    ConduitControl* const control = MapControl(*worker);
    lie(control);
    ASSERT_EQ(send(bell.get(), "", 1, MSG_NOSIGNAL), 1);
    EXPECT_TRUE(guest->WaitReset());
    munmap(control, kConduitBytes);
    ASSERT_NO_FATAL_FAILURE(ExpectWorks(port++));
  }
  // The tail counts only where the ring is short of room.
  Ends ends = ConnectWorker(port);
  ConduitControl* const control = MapControl(*ends.worker);
  control->requests_tail = UINT64_MAX / 2;
  const auto data = Pattern(kConduitRequestBytes + kMiB, 1);
  EXPECT_FALSE(ends.guest->SendAll(data));
  EXPECT_TRUE(ends.guest->reset());
  munmap(control, kConduitBytes);
}

// Random frames both ways on several streams, one of which goes through a socket, without waiting
// for any before the window is full.
TEST_P(VsockDeviceConduit, KeepsTheOrderOfEachStream) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(absl::StrCat("CONSORT_TEST_SEED=", seed));
  std::mt19937 random(seed);
  ASSERT_NO_FATAL_FAILURE(StartAll());
  constexpr uint32_t kStreams = 3;
  std::vector<Ends> ends;
  for (uint32_t i = 0; i < kStreams; ++i) ends.push_back(ConnectWorker(1000 + i));
  auto [plain, plain_host] = Connect(2000, kGuestBufferBytes);
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    std::vector<std::vector<uint32_t>> to_host(kStreams);
    std::vector<std::vector<std::byte>> to_guest(kStreams);
    std::vector<std::byte> plain_bytes;
    for (int i = 0; i < 20; ++i) {
      const uint32_t stream = random() % kStreams;
      const uint32_t size = 8 * (random() % (random() % 3 == 0 ? 10000 : 100));
      if (random() % 2 == 0) {
        to_host[stream].push_back(size);
        const auto call = static_cast<uint32_t>(to_host[stream].size());
        ASSERT_TRUE(ends[stream].guest->SendAll(MakeFrame(call, size)));
      } else {
        const auto frame = MakeFrame(i, size);
        ASSERT_TRUE(SendFrame(*ends[stream].worker, frame));
        to_guest[stream].insert(to_guest[stream].end(), frame.begin(), frame.end());
      }
      const auto some = Pattern(random() % 1000, i);
      ASSERT_TRUE(plain->SendAll(some));
      plain_bytes.insert(plain_bytes.end(), some.begin(), some.end());
    }
    for (uint32_t i = 0; i < kStreams; ++i) {
      for (uint32_t k = 0; k < to_host[i].size(); ++k) {
        const Frame frame = Next(*ends[i].worker);
        ASSERT_NO_FATAL_FAILURE(ExpectFrame(frame, k + 1, to_host[i][k]));
        ends[i].worker->Release(frame);
      }
      ASSERT_TRUE(Receive(*ends[i].guest, to_guest[i].size()) == to_guest[i]) << "stream " << i;
    }
    ASSERT_TRUE(ReadUpTo(plain_host.get(), plain_bytes.size()) == plain_bytes);
  }
}

TEST_P(VsockDeviceConduit, QueuesStopWithAllThatWasTakenReturned) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  Ends ends = ConnectWorker(1000);
  for (uint32_t call = 1; call <= 20; ++call) {
    const auto frame = MakeFrame(call, 300000 + 8 * call);
    ASSERT_TRUE(ends.guest->SendAll(frame));
    ASSERT_TRUE(SendFrame(*ends.worker, frame));
    const auto bases = frontend_->StopQueues();
    ExpectAllReturned(bases);
    frontend_->StartQueues(bases);
    const Frame received = Next(*ends.worker);
    ASSERT_NO_FATAL_FAILURE(ExpectFrame(received, call, 300000 + 8 * call));
    ends.worker->Release(received);
    EXPECT_TRUE(Receive(*ends.guest, frame.size()) == frame);
  }
  EXPECT_EQ(device_->stats().device_resets, 2u) << "one a queue, at its first start";
}

TEST_P(VsockDeviceConduit, MemoryIsMappedAnewWhileMuchIsOnItsWay) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  Ends ends = ConnectWorker(1000);
  const auto whole = FakeFrontend::DefaultRegions();
  // The same memory in other pieces: no mapping stays.
  std::vector<MemoryRegionSpec> halves;
  for (MemoryRegionSpec half : whole) {
    half.bytes /= 2;
    halves.push_back(half);
    half.guest_addr += half.bytes;
    half.user_addr += half.bytes;
    half.mmap_offset += half.bytes;
    halves.push_back(half);
  }
  for (uint32_t call = 1; call <= 20; ++call) {
    const auto frame = MakeFrame(call, 300000 + 8 * call);
    ASSERT_TRUE(ends.guest->SendAll(frame));
    ASSERT_TRUE(SendFrame(*ends.worker, frame));
    ASSERT_EQ(call % 2 == 1 ? frontend_->SendMemTable(halves) : frontend_->SendMemTable(whole), 0u);
    const Frame received = Next(*ends.worker);
    ASSERT_NO_FATAL_FAILURE(ExpectFrame(received, call, 300000 + 8 * call));
    ends.worker->Release(received);
    EXPECT_TRUE(Receive(*ends.guest, frame.size()) == frame);
  }
}

TEST_P(VsockDeviceConduit, WhatAGuestSentBeforeItsResetOrEndArrives) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  for (uint32_t call = 1; call <= 6; ++call) {
    Ends ends = ConnectWorker(1000 + call);
    const auto frame = MakeFrame(call, 500000);
    ASSERT_TRUE(SendFrame(*ends.worker, frame));
    ASSERT_TRUE(ends.guest->SendAll(frame));
    if (call % 3 == 1) {
      ASSERT_TRUE(guest_->Send(ends.guest->Header(kOpReset), {}));
    } else if (call % 3 == 2) {
      ends.guest->Shutdown(kShutdownSend);
    } else {
      // The whole machine, all at once.
      ends.guest.reset();
      guest_.reset();
      frontend_.reset();
    }
    const Frame received = Next(*ends.worker);
    ASSERT_NO_FATAL_FAILURE(ExpectFrame(received, call, 500000));
    ends.worker->Release(received);
    Frame none;
    ChannelStatus status;
    while ((status = ends.worker->TryReceive(&none)) == ChannelStatus::kAgain) {
      ASSERT_NE(ends.worker->Wait(Channel::kReadable, 0, kPatience), ChannelStatus::kAgain);
    }
    EXPECT_EQ(status, ChannelStatus::kClosed);
    if (frontend_ == nullptr) {
      ASSERT_NO_FATAL_FAILURE(StartAll());
    }
    ASSERT_NO_FATAL_FAILURE(ExpectWorks(2000 + call));
  }
}

TEST_P(VsockDeviceConduit, ABrokenRingForgetsPacketsOfTheSamePass) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  Ends ends = ConnectWorker(1000);
  Halt();
  // Taken in one pass when the device goes on.
  ASSERT_TRUE(ends.guest->SendAll(MakeFrame(1, 1000)));
  guest_->tx().Offer(FakeFrontend::kRingEntries);
  Run(std::move(device_));
  EXPECT_TRUE(frontend_->TakeError(kTxQueue, FakeGuest::kTimeoutMs));
  frontend_->StopQueues();
  guest_->Start();
  frontend_->StartQueues();
  ASSERT_NO_FATAL_FAILURE(ExpectWorks(1001));
  ExpectAllReturned(frontend_->StopQueues());
}

TEST_P(VsockDeviceConduit, DescriptorsOfOtherServicesStayWithoutEffect) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [guest, host] = Connect(1000);
  const UniqueFd other(memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int descriptor = other.get();
  const auto data = Pattern(100, 1);
  ASSERT_EQ(SendSome(host.get(), data, {&descriptor, 1}), 100);
  EXPECT_EQ(Receive(*guest, data.size()), data);
  ASSERT_TRUE(guest->SendAll(data));
  EXPECT_EQ(ReadUpTo(host.get(), data.size()), data);
}

TEST_P(VsockDeviceConduit, GoesOnInAnotherImageOfTheDevice) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  ASSERT_NO_FATAL_FAILURE(StartAll());
  Ends ends = ConnectWorker(1000);
  std::vector<Frame> held;
  uint32_t received = 0;
  for (uint32_t call = 1; call <= 60 && !HasFailure(); ++call) {
    const uint32_t size = static_cast<uint32_t>(8 * (random() % 30000));
    const auto frame = MakeFrame(call, size);
    const size_t cut = random() % frame.size();
    ASSERT_TRUE(ends.guest->SendAll(std::span(frame).first(cut)));
    if (random() % 3 == 0) Exchange();
    ASSERT_TRUE(ends.guest->SendAll(std::span(frame).subspan(cut)));
    const Frame next = Next(*ends.worker);
    ASSERT_NO_FATAL_FAILURE(ExpectFrame(next, ++received, size));
    held.push_back(next);
    if (held.size() > 4) {
      ends.worker->Release(held.front());
      held.erase(held.begin());
    }
    // Half of it is taken before the exchange, or none, or all.
    ASSERT_TRUE(SendFrame(*ends.worker, frame));
    if (random() % 2 == 0) guest_->Step(1);
    if (random() % 3 == 0) Exchange();
    EXPECT_TRUE(Receive(*ends.guest, frame.size()) == frame);
  }
}

TEST_P(VsockDeviceConduit, GoesOnInAnotherWorker) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  Ends ends = ConnectWorker(1000);
  for (uint32_t call = 1; call <= 20; ++call) {
    const auto frame = MakeFrame(call, 80 * call);
    // Part of it is there when the workers change.
    ASSERT_TRUE(ends.guest->SendAll(std::span(frame).first(frame.size() / 2)));
    ASSERT_NO_FATAL_FAILURE(ChangeWorkers(&ends));
    ASSERT_TRUE(ends.guest->SendAll(std::span(frame).subspan(frame.size() / 2)));
    Frame received = Next(*ends.worker);
    ASSERT_NO_FATAL_FAILURE(ExpectFrame(received, call, 80 * call));
    ChannelHandover handover;
    EXPECT_FALSE(ends.worker->Describe(&handover)) << "while a frame is held";
    // What is put back comes again, in this worker or the next.
    ASSERT_TRUE(ends.worker->PutBack());
    if (call % 2 == 0) {
      ASSERT_NO_FATAL_FAILURE(ChangeWorkers(&ends));
    }
    received = Next(*ends.worker);
    ASSERT_NO_FATAL_FAILURE(ExpectFrame(received, call, 80 * call));
    ends.worker->Release(received);
    ASSERT_TRUE(SendFrame(*ends.worker, frame));
    EXPECT_TRUE(Receive(*ends.guest, frame.size()) == frame);
  }
}

TEST(ConduitChannel, DoesNotBelieveTheDevice) {
  for (const uint64_t head : {uint64_t{0}, kConduitBeginBytes + kConduitRequestBytes + 8}) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const UniqueFd device(ends[1]);
    std::unique_ptr<ConduitDeviceEnd> end;
    std::thread answer([&] {
      std::byte byte;
      UniqueFd memory;
      ASSERT_EQ(ReceiveAll(device.get(), {&byte, 1}, &memory, Deadline(kPatience)), 0);
      auto made = ConduitDeviceEnd::Create(std::move(memory));
      ASSERT_TRUE(made.ok()) << made.status();
      end = *std::move(made);
      end->PrepareBegin(0);
      const int descriptor = end->memory();
      ASSERT_EQ(SendSome(device.get(), {&byte, 1}, {&descriptor, 1}), 1);
    });
    auto worker = ConduitChannel::Open(UniqueFd(ends[0]), {}, kPatience);
    answer.join();
    ASSERT_TRUE(worker.ok()) << worker.status();
    void* mapped =
        mmap(nullptr, kConduitBytes, PROT_READ | PROT_WRITE, MAP_SHARED, end->memory(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
    static_cast<ConduitControl*>(mapped)->requests_head = head;
    Frame frame;
    EXPECT_EQ((*worker)->TryReceive(&frame), ChannelStatus::kProtocol);
    munmap(mapped, kConduitBytes);
  }
}

INSTANTIATE_TEST_SUITE_P(
    CrewOf, VsockDeviceConduit,
    testing::Values(
        CrewCase{"nobody", {}},
        CrewCase{"one", {.threads = 1, .shared_from = 1, .share = 4000, .wakes_from = 1}},
        CrewCase{"three", {.threads = 3, .shared_from = 1, .share = 4000, .wakes_from = 1}},
        CrewCase{"one_asleep",
                 {.threads = 1, .shared_from = 1, .share = 512, .wakes_from = UINT64_MAX}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace consort::vhost_user
