// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/vsock_device.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "vmsock/deadline.h"
#include "vmsock/vhost_user/fake_frontend.h"
#include "vmsock/vhost_user/fake_guest.h"
#include "vmsock/vhost_user/vsock_device_test_support.h"

namespace consort::vhost_user {
namespace {

// ---- data, over every shape of chain ----

struct DataCase {
  std::string name;
  uint64_t features = kFeaturesOffered;
  Shape tx;
  Shape rx;
};
void PrintTo(const DataCase& data_case, std::ostream* out) { *out << data_case.name; }

class VsockDeviceData : public VsockDeviceTest, public testing::WithParamInterface<DataCase> {};

// The host echoes while the guest sends and receives in turn, far beyond either side's credit.
TEST_P(VsockDeviceData, EchoesMegabytesUnchanged) {
  ASSERT_NO_FATAL_FAILURE(StartAll(GetParam().features, {GetParam().rx}));
  auto [stream, host] = Connect(1000);
  const auto data = Pattern(3 * kMiB + 12345, 7);
  std::thread echo([fd = host.get(), bytes = data.size()] {
    std::vector<std::byte> buffer(100000);
    for (size_t done = 0; done < bytes;) {
      const ssize_t count = read(fd, buffer.data(), buffer.size());
      if (count <= 0) return;
      if (!WriteAll(fd, std::span(buffer).first(static_cast<size_t>(count)))) return;
      done += static_cast<size_t>(count);
    }
  });
  std::vector<std::byte> got;
  size_t sent = 0;
  while (got.size() < data.size()) {
    if (sent < data.size() && stream->credit() > 0) {
      const size_t count = stream->SendSome(std::span(data).subspan(sent), GetParam().tx);
      if (count == 0) break;
      sent += count;
      if (stream->unread_bytes() == 0) continue;
    }
    if (stream->unread_bytes() == 0) {
      if (!guest_->Step(FakeGuest::kTimeoutMs)) break;
      continue;
    }
    const auto some = stream->ReceiveSome();
    got.insert(got.end(), some.begin(), some.end());
  }
  EXPECT_TRUE(got == data) << got.size() << " of " << data.size() << " bytes";
  if (got.size() < data.size()) shutdown(host.get(), SHUT_RDWR);  // or the echo would wait
  echo.join();
  host.Reset();
  EXPECT_TRUE(stream->WaitEnd());
  EXPECT_EQ(device_->stats().bytes_from_guest, data.size());
  EXPECT_EQ(device_->stats().bytes_to_guest, data.size());
  EXPECT_EQ(device_->stats().protocol_errors, 0u);
}

const Shape kPlainRx{.lengths = {3776}, .indirect = true};
constexpr uint64_t kNoEventIdx = kFeaturesOffered & ~kFeatureEventIdx;
constexpr uint64_t kNoIndirect = kFeaturesOffered & ~kFeatureIndirect;

std::vector<DataCase> DataCases() {
  std::vector<DataCase> cases;
  const auto add = [&cases](const char* name, uint64_t features, Shape tx, Shape rx) {
    cases.push_back({name, features, std::move(tx), std::move(rx)});
  };
  add("linux_6_1", kFeaturesOffered, {{44, 65536}}, kPlainRx);
  add("linux_6_12", kFeaturesOffered, {{44, 32768}}, kPlainRx);
  add("zero_copy_pages", kFeaturesOffered, {{44, 4096}}, kPlainRx);
  add("one_piece", kFeaturesOffered, {{65580}}, kPlainRx);
  add("header_with_some_payload", kFeaturesOffered, {{100, 1000, 65536}}, kPlainRx);
  add("header_split", kFeaturesOffered, {{1, 20, 22, 3, 65536}}, {{7, 30, 100, 3776}});
  add("tiny_descriptors", kFeaturesOffered, {{5, 70}}, {{3, 11}});
  add("rx_header_apart", kFeaturesOffered, {{44, 65536}}, {{44, 3732}});
  add("direct", kNoIndirect, {{44, 4096}, false}, {{44, 3732}, false});
  add("direct_in_one_piece", kNoIndirect, {{65580}, false}, {{3776}, false});
  add("no_event_idx", kNoEventIdx, {{44, 32768}}, kPlainRx);
  add("neither", kNoIndirect & kNoEventIdx, {{44, 32768}, false}, {{3776}, false});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Shapes, VsockDeviceData, testing::ValuesIn(DataCases()),
                         [](const testing::TestParamInfo<DataCase>& info) {
                           return info.param.name;
                         });

TEST_F(VsockDeviceTest, MovesRandomPiecesOfManyStreamsAtOnce) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  ASSERT_NO_FATAL_FAILURE(StartAll());
  struct Stream {
    std::unique_ptr<GuestStream> guest;
    UniqueFd host;
    std::vector<std::byte> data;
    size_t sent = 0;
  };
  std::vector<Stream> streams;
  std::vector<std::thread> hosts;
  std::vector<std::vector<std::byte>> arrived(20);
  for (uint32_t i = 0; i < arrived.size(); ++i) {
    auto [guest, host] = Connect(2000 + i);
    streams.push_back({std::move(guest), std::move(host), Pattern(random() % 400000 + 1, i), 0});
    hosts.emplace_back([fd = streams.back().host.get(), bytes = streams.back().data.size(),
                        out = &arrived[i]] { *out = ReadUpTo(fd, bytes); });
  }
  for (bool any = true; any;) {
    any = false;
    for (Stream& stream : streams) {
      if (stream.sent == stream.data.size()) continue;
      any = true;
      Shape shape{.lengths = {}, .indirect = random() % 2 == 0};
      for (int pieces = static_cast<int>(random() % 5); pieces >= 0; --pieces) {
        shape.lengths.push_back(static_cast<uint32_t>(random() % 5000 + 1));
      }
      shape.lengths.push_back(65536);
      const size_t limit = std::min<size_t>(stream.data.size() - stream.sent, random() % 70000 + 1);
      const size_t count =
          stream.guest->SendSome(std::span(stream.data).subspan(stream.sent, limit), shape);
      ASSERT_GT(count, 0u);
      stream.sent += count;
    }
  }
  for (std::thread& host : hosts) host.join();
  for (size_t i = 0; i < streams.size(); ++i) {
    EXPECT_TRUE(arrived[i] == streams[i].data) << "stream " << i;
  }
}

// ---- connections ----

TEST_F(VsockDeviceTest, ResetsConnectionThatTheHandlerRefuses) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  GuestStream refused(guest_.get(), 1000, kRefusedPort);
  EXPECT_FALSE(refused.Connect());
  EXPECT_TRUE(refused.reset());
  GuestStream not_a_socket(guest_.get(), 1001, kNotASocketPort);
  EXPECT_FALSE(not_a_socket.Connect());
  EXPECT_EQ(device_->stats().connections_refused, 2u);
  ExpectWorks(1002);
}

TEST_F(VsockDeviceTest, KeepsOtherStreamsGoingWhileOneHostDoesNotRead) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [slow, slow_host] = Connect(1000, /*buf_alloc=*/kMiB);
  const auto data = Pattern(2 * kMiB, 3);
  size_t sent = 0;
  // Until there is no credit and what is in flight has been taken.
  while (slow->credit() > 0 || guest_->Step(200)) {
    if (slow->credit() > 0) sent += slow->SendSome(std::span(data).subspan(sent));
  }
  EXPECT_GE(sent, slow->window());
  EXPECT_LT(sent, data.size()) << "nothing holds the guest back";
  for (uint32_t port = 2000; port < 2010; ++port) ExpectWorks(port);
  std::vector<std::byte> got;
  std::thread reader([&, fd = slow_host.get()] { got = ReadUpTo(fd, data.size()); });
  EXPECT_TRUE(slow->SendAll(std::span(data).subspan(sent)));
  reader.join();
  EXPECT_TRUE(got == data);
}

TEST_F(VsockDeviceTest, HalfClosesEachWay) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000);
  const auto question = Pattern(100000, 1);
  const auto answer = Pattern(700000, 2);
  std::vector<std::byte> got;
  std::thread service([&, fd = std::move(host)]() mutable {
    got = ReadUpTo(fd.get(), question.size() + 1);  // to the end of stream
    WriteAll(fd.get(), answer);
    fd.Reset();
  });
  EXPECT_TRUE(stream->SendAll(question));
  stream->Shutdown(kShutdownSend);
  EXPECT_TRUE(ReceiveToEnd(*stream) == answer);
  service.join();
  EXPECT_TRUE(got == question);
  EXPECT_FALSE(stream->reset());
  EXPECT_EQ(stream->host_shutdown(), kShutdownBoth);
  // Linux answers SHUTDOWN of both directions with RST.
  guest_->Send(stream->Header(kOpReset), {});
  ExpectWorks(1001);
  EXPECT_EQ(device_->stats().connections_now, 0u);
}

TEST_F(VsockDeviceTest, GuestThatStopsReadingStillSends) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000);
  stream->Shutdown(kShutdownReceive);
  const auto data = Pattern(50000, 1);
  EXPECT_TRUE(stream->SendAll(data));
  EXPECT_EQ(ReadUpTo(host.get(), data.size()), data);
  // The host cannot send any more.
  EXPECT_FALSE(WriteAll(host.get(), data));
  EXPECT_FALSE(stream->reset());
}

TEST_F(VsockDeviceTest, DeliversWhatAClosedGuestSocketHadSent) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000, kMiB);
  const auto data = Pattern(stream->window(), 5);
  ASSERT_TRUE(stream->SendAll(data));
  stream->Shutdown(kShutdownBoth);
  // The answer does not wait for the host.
  ASSERT_TRUE(stream->WaitReset());
  stream.reset();
  // Nor does a new connection from the same port.
  ExpectWorks(1000);
  EXPECT_TRUE(ReadUpTo(host.get(), data.size() + 1) == data);
  // Then nothing is left of it.
  ExpectWorks(1001);
  EXPECT_EQ(device_->stats().connections_now, 0u);
}

TEST_F(VsockDeviceTest, GuestResetEndsTheHostStream) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000);
  guest_->Send(stream->Header(kOpReset), {});
  EXPECT_TRUE(AtEnd(host.get()));
}

// Each packet is sent when the one before has been at the host for a while, so that a device which
// rests as soon as there is nothing would have to be kicked for each.
TEST_F(VsockDeviceTest, LooksOnForWhatAGuestSendsSoon) {
  constexpr auto kPause = std::chrono::microseconds(30);
  constexpr uint32_t kPackets = 20;
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000);
  const auto byte = Pattern(1, 1);
  // Where the device's thread has to wait for a core its time passes in vain: try again.
  const Deadline deadline(FakeGuest::kTimeoutMs * kMillisecond);
  uint64_t kicks = kPackets;
  while (kicks > kPackets / 2 && deadline.Left() > 0) {
    const uint64_t before = device_->stats().kicks;
    for (uint32_t i = 0; i < kPackets; ++i) {
      ASSERT_TRUE(stream->SendAll(byte));
      ASSERT_EQ(ReadUpTo(host.get(), 1), byte);
      std::this_thread::sleep_for(kPause);
    }
    kicks = device_->stats().kicks - before;
  }
  EXPECT_LE(kicks, kPackets / 2);
}

TEST_F(VsockDeviceTest, HostThatStopsReadingTellsTheGuestAndStillSends) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000);
  ASSERT_EQ(shutdown(host.get(), SHUT_RD), 0);
  ASSERT_TRUE(stream->SendAll(Pattern(1000, 1)));
  while (!(stream->host_shutdown() & kShutdownReceive)) {
    ASSERT_TRUE(guest_->Step(FakeGuest::kTimeoutMs));
  }
  EXPECT_FALSE(stream->ended());
  const auto data = Pattern(1000, 2);
  ASSERT_TRUE(WriteAll(host.get(), data));
  host.Reset();
  EXPECT_EQ(ReceiveToEnd(*stream), data);
  EXPECT_FALSE(stream->reset());
}

TEST_F(VsockDeviceTest, HostThatClosesUnreadResetsNobodyElse) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000);
  auto [other, other_host] = Connect(1001);
  ASSERT_TRUE(stream->SendAll(Pattern(1000, 1)));
  pollfd arrived{host.get(), POLLIN, 0};
  ASSERT_EQ(poll(&arrived, 1, FakeGuest::kTimeoutMs), 1);
  host.Reset();  // with unread bytes: the device's end reports ECONNRESET
  EXPECT_TRUE(stream->WaitReset());
  ASSERT_TRUE(other->SendAll(Pattern(1000, 2)));
  EXPECT_EQ(ReadUpTo(other_host.get(), 1000), Pattern(1000, 2));
}

TEST_F(VsockDeviceTest, ServesManyConnectionsInTurn) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  std::vector<std::pair<std::unique_ptr<GuestStream>, UniqueFd>> streams;
  for (uint32_t i = 0; i < 200; ++i) streams.push_back(Connect(3000 + i));
  EXPECT_EQ(device_->stats().connections_now, 200u);
  for (size_t i = 0; i < streams.size(); ++i) {
    ASSERT_TRUE(WriteAll(streams[i].second.get(), Pattern(5000, i)));
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    std::vector<std::byte> got;
    while (got.size() < 5000) {
      const auto some = streams[i].first->ReceiveSome();
      ASSERT_FALSE(some.empty());
      got.insert(got.end(), some.begin(), some.end());
    }
    EXPECT_EQ(got, Pattern(5000, i)) << "stream " << i;
  }
}

TEST_F(VsockDeviceTest, RefusesConnectionsPastTheBoundOnly) {
  constexpr rlim_t kDescriptorsNeeded = 2 * kConnectionsPerVmMax + 100;
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_cur < kDescriptorsNeeded) {
    const rlimit raised{.rlim_cur = kDescriptorsNeeded, .rlim_max = limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) != 0) {
      GTEST_SKIP() << "needs " << kDescriptorsNeeded << " descriptors, the limit is "
                   << limit.rlim_max;
    }
  }
  ASSERT_NO_FATAL_FAILURE(StartAll());
  std::vector<std::pair<std::unique_ptr<GuestStream>, UniqueFd>> streams;
  uint64_t windows = 0;
  for (uint32_t i = 0; i < kConnectionsPerVmMax; ++i) {
    streams.push_back(Connect(3000 + i));
    windows += streams.back().first->window();
    ASSERT_GE(streams.back().first->window(), kReceiveWindowBytesMin);
  }
  EXPECT_LE(windows, kReceiveBudgetBytes);
  EXPECT_EQ(streams.front().first->window(), kReceiveWindowBytesDefault);
  GuestStream one_more(guest_.get(), 2000, kServicePort);
  EXPECT_FALSE(one_more.Connect());
  streams.back().first->Shutdown(kShutdownBoth);
  ASSERT_TRUE(streams.back().first->WaitReset());
  ExpectWorks(2001);
}

// Guests from 6.12.92 on reset a connection with too many unread packets, however small, and 6.1
// does not report small reads of its own accord.
TEST_F(VsockDeviceTest, LimitsUnreadPacketsAndAsksWhetherTheyWereRead) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  constexpr uint32_t kBuffer = 32 * kKiB;
  constexpr size_t kLimit = kBuffer / kPeerBytesPerUnreadPacket;
  auto [stream, host] = Connect(1000, kBuffer);
  const auto data = Pattern(5 * kLimit, 1);
  ASSERT_NO_FATAL_FAILURE(SendUnreadPackets(*stream, host.get(), data, kLimit));
  std::vector<std::byte> got;
  while (got.size() < data.size()) {
    const auto some = stream->ReceiveSome();
    ASSERT_FALSE(some.empty());
    got.insert(got.end(), some.begin(), some.end());
  }
  EXPECT_EQ(got, data);
  EXPECT_LE(stream->unread_packets_max(), kLimit);
}

TEST_F(VsockDeviceTest, RespectsAGuestWithATinyBuffer) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000, 128);
  const auto data = Pattern(5000, 1);
  ASSERT_TRUE(WriteAll(host.get(), data));
  host.Reset();
  EXPECT_EQ(ReceiveToEnd(*stream), data);
  auto [sender, sink] = Connect(1001, 128);
  ASSERT_TRUE(sender->SendAll(data));
  EXPECT_EQ(ReadUpTo(sink.get(), data.size()), data);
}

// ---- life of the device ----

TEST_F(VsockDeviceTest, ConnectionsSurviveStopAndContinue) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000);
  for (int round = 0; round < 5; ++round) {
    const auto data = Pattern(100000, static_cast<uint64_t>(round));
    const auto bases = frontend_->StopQueues();
    // Both sides go on while the VM is stopped; nothing is lost and nothing is sent twice.
    ASSERT_TRUE(WriteAll(host.get(), data));
    ASSERT_TRUE(stream->SendAll(std::span(data).first(50000)));
    frontend_->StartQueues(bases);
    ASSERT_TRUE(stream->SendAll(std::span(data).subspan(50000)));
    EXPECT_EQ(ReadUpTo(host.get(), data.size()), data);
    std::vector<std::byte> got;
    while (got.size() < data.size()) {
      const auto some = stream->ReceiveSome();
      ASSERT_FALSE(some.empty());
      got.insert(got.end(), some.begin(), some.end());
    }
    EXPECT_EQ(got, data);
  }
}

TEST_F(VsockDeviceTest, GuestResetDropsAllConnections) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  for (int round = 0; round < 3; ++round) {
    auto [stream, host] = Connect(1000);
    ASSERT_TRUE(stream->SendAll(Pattern(1000, 1)));
    ASSERT_EQ(ReadUpTo(host.get(), 1000).size(), 1000u);
    frontend_->StopQueues();
    guest_->Start();
    frontend_->StartQueues({0, 0});
    EXPECT_TRUE(AtEnd(host.get()));
    EXPECT_EQ(device_->stats().connections_now, 0u);
    stream.reset();
    ExpectWorks(1000);
  }
}

TEST_F(VsockDeviceTest, PausedQueuesMoveNothing) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000);
  frontend_->SendState(Request::kSetVringEnable, kRxQueue, 0);
  frontend_->GetU64(Request::kGetFeatures);  // the device has seen both
  ASSERT_TRUE(WriteAll(host.get(), Pattern(100, 1)));
  EXPECT_FALSE(guest_->Step(100));
  frontend_->SendState(Request::kSetVringEnable, kRxQueue, 1);
  EXPECT_EQ(stream->ReceiveSome(), Pattern(100, 1));
}

TEST_F(VsockDeviceTest, ServesTheNextFrontendAfterOneDies) {
  for (int round = 0; round < 4; ++round) {
    ASSERT_NO_FATAL_FAILURE(StartAll());
    auto [stream, host] = Connect(1000);
    ASSERT_TRUE(stream->SendAll(Pattern(1000, 1)));
    stream.reset();
    guest_.reset();
    frontend_.reset();
    EXPECT_EQ(ReadUpTo(host.get(), 1000).size(), 1000u);
    EXPECT_TRUE(AtEnd(host.get()));
  }
  EXPECT_EQ(device_->stats().frontends, 4u);
}

TEST_F(VsockDeviceTest, SecondFrontendWaitsForTheFirst) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  FakeFrontend second(options_.socket_path, kFeaturesOffered);
  ExpectWorks(1000);
  guest_.reset();
  frontend_.reset();
  EXPECT_EQ(second.Initialise(), kCid);
}

TEST_F(VsockDeviceTest, StopsInTheMiddleOfAMessage) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  const std::byte half[] = {std::byte{1}, std::byte{0}, std::byte{0}};
  frontend_->SendRaw(half);
  StopDevice();
  EXPECT_TRUE(frontend_->Closed(FakeGuest::kTimeoutMs));
}

TEST_F(VsockDeviceTest, StopBeforeRunIsNotLost) {
  auto device = VsockDevice::Create(
      options_, [](uint32_t, uint32_t) -> absl::StatusOr<UniqueFd> { return UniqueFd(); });
  ASSERT_TRUE(device.ok());
  (*device)->Stop();
  EXPECT_TRUE((*device)->Run().ok());
}

// ---- the socket file ----

TEST_F(VsockDeviceTest, SocketHasTheModeAskedForAndReplacesAStaleOne) {
  options_.socket_mode = 0660;
  options_.socket_group = getgid();
  {  // a socket whose owner has died
    UniqueFd stale(socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, options_.socket_path.c_str());
    ASSERT_EQ(bind(stale.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ASSERT_NO_FATAL_FAILURE(StartDevice());
  struct stat file {};
  ASSERT_EQ(stat(options_.socket_path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode, static_cast<mode_t>(S_IFSOCK | 0660));
  const auto second = VsockDevice::Create(
      options_, [](uint32_t, uint32_t) -> absl::StatusOr<UniqueFd> { return UniqueFd(); });
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  ASSERT_NO_FATAL_FAILURE(StartAll());
  ExpectWorks(1000);
}

TEST_F(VsockDeviceTest, RefusesOptionsOutOfRange) {
  const auto create = [](const VsockDeviceOptions& options) {
    return VsockDevice::Create(
               options, [](uint32_t, uint32_t) -> absl::StatusOr<UniqueFd> { return UniqueFd(); })
        .status()
        .code();
  };
  VsockDeviceOptions options = options_;
  options.guest_cid = 2;
  EXPECT_EQ(create(options), absl::StatusCode::kInvalidArgument);
  options = options_;
  options.receive_window_bytes_max = kReceiveWindowBytesMin - 1;
  EXPECT_EQ(create(options), absl::StatusCode::kInvalidArgument);
  options = options_;
  options.socket_path = std::string(200, 'x');
  EXPECT_EQ(create(options), absl::StatusCode::kInvalidArgument);
  options = options_;
  options.socket_path = directory_;  // not a socket
  EXPECT_EQ(create(options), absl::StatusCode::kAlreadyExists);
}

// ---- guests that break the packet protocol: their connection ends, nothing else ----

struct PacketCase {
  std::string name;
  // Changes a correct RW packet of 100 bytes on an open connection.
  std::function<void(PacketHeader&, std::vector<std::byte>&)> change;
  bool reset_expected = true;  // of the connection
  bool answered = false;       // by a RST for somebody else
};
void PrintTo(const PacketCase& packet_case, std::ostream* out) { *out << packet_case.name; }

class VsockDevicePacket : public VsockDeviceTest, public testing::WithParamInterface<PacketCase> {};

TEST_P(VsockDevicePacket, EndsOnlyTheConnectionOfABrokenPacket) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000);
  auto [other, other_host] = Connect(1001);
  PacketHeader header = stream->Header(kOpReadWrite);
  std::vector<std::byte> payload = Pattern(100, 1);
  header.len = 100;
  GetParam().change(header, payload);
  ASSERT_TRUE(guest_->Send(header, payload));
  if (GetParam().reset_expected) {
    EXPECT_TRUE(stream->WaitReset());
    EXPECT_TRUE(AtEnd(host.get()));
  } else if (GetParam().answered) {
    const auto reset = guest_->Receive();
    ASSERT_TRUE(reset.has_value());
    EXPECT_EQ(reset->header.op, kOpReset);
    EXPECT_EQ(reset->header.src_cid, header.dst_cid);
    EXPECT_EQ(reset->header.src_port, header.dst_port);
    EXPECT_EQ(reset->header.dst_port, header.src_port);
  }
  const auto data = Pattern(1000, 2);
  ASSERT_TRUE(other->SendAll(data));
  EXPECT_EQ(ReadUpTo(other_host.get(), data.size()), data);
  if (!GetParam().reset_expected) {
    ASSERT_TRUE(stream->SendAll(data));
    EXPECT_EQ(ReadUpTo(host.get(), data.size()), data);
  }
  EXPECT_EQ(device_->stats().broken_rings, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Packets, VsockDevicePacket,
    testing::Values(
        PacketCase{"length_beyond_chain", [](auto& header, auto&) { header.len = 101; }},
        PacketCase{"length_beyond_limit",
                   [](auto& header, auto& payload) {
                     payload.resize(70000);
                     header.len = 70000;
                   }},
        PacketCase{"length_huge", [](auto& header, auto&) { header.len = 0xffffffff; }},
        PacketCase{"unknown_operation", [](auto& header, auto&) { header.op = 99; }},
        PacketCase{"invalid_operation", [](auto& header, auto&) { header.op = kOpInvalid; }},
        PacketCase{"response",
                   [](auto& header, auto&) {
                     header.op = kOpResponse;
                     header.len = 0;
                   }},
        PacketCase{"request_again",
                   [](auto& header, auto&) {
                     header.op = kOpRequest;
                     header.len = 0;
                   }},
        PacketCase{"control_with_payload",
                   [](auto& header, auto&) { header.op = kOpCreditUpdate; }},
        PacketCase{"read_more_than_sent", [](auto& header, auto&) { header.fwd_cnt = 1; }},
        PacketCase{"read_count_wraps", [](auto& header, auto&) { header.fwd_cnt = 0x80000000; }},
        PacketCase{"other_source", [](auto& header, auto&) { header.src_cid = 7; }, false, false},
        PacketCase{"other_destination", [](auto& header, auto&) { header.dst_cid = 9; }, false,
                   true},
        PacketCase{"other_type", [](auto& header, auto&) { header.type = 2; }, false, true},
        PacketCase{"no_connection", [](auto& header, auto&) { header.src_port = 9999; }, false,
                   true},
        PacketCase{"reset_of_no_connection",
                   [](auto& header, auto&) {
                     header.src_port = 9999;
                     header.op = kOpReset;
                     header.len = 0;
                   },
                   false, false}),
    [](const testing::TestParamInfo<PacketCase>& info) { return info.param.name; });

TEST_F(VsockDeviceTest, ResetsAConnectionThatSendsPastItsWindow) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000);
  const auto data = Pattern(kPacketPayloadBytesMax, 1);
  // Nobody reads at the host: sooner or later the window is full.
  for (uint64_t sent = 0; !stream->reset() && sent < 8 * kMiB; sent += data.size()) {
    PacketHeader header = stream->Header(kOpReadWrite);
    header.len = static_cast<uint32_t>(data.size());
    ASSERT_TRUE(guest_->Send(header, data));
  }
  EXPECT_TRUE(stream->WaitReset());
  ExpectWorks(1001);
}

TEST_F(VsockDeviceTest, ResetsAConnectionThatSendsAfterItsEnd) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000);
  stream->Shutdown(kShutdownSend);
  stream->SendSome(Pattern(10, 1));
  EXPECT_TRUE(stream->WaitReset());
}

TEST_F(VsockDeviceTest, IgnoresPacketsWithoutAHeader) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  // The last descriptors: the driver takes the first ones.
  const uint64_t addr = FakeFrontend::GuestAddr(FakeGuest::kFreeOffset);
  guest_->tx().SetDescriptor(125, {.addr = addr, .len = 43});
  guest_->tx().Offer(125);
  guest_->tx().SetDescriptor(126, {.addr = addr, .len = 100, .flags = kFlagWrite});
  guest_->tx().Offer(126);
  guest_->tx().SetDescriptor(127, {.addr = addr, .len = 0});
  guest_->tx().Offer(127);
  ExpectWorks(1000);
  EXPECT_EQ(device_->stats().protocol_errors, 3u);
  EXPECT_EQ(device_->stats().broken_rings, 0u);
}

TEST_F(VsockDeviceTest, SurvivesRandomPackets) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  ASSERT_NO_FATAL_FAILURE(StartAll());
  const auto pick = [&random](std::initializer_list<uint64_t> values) {
    return *(values.begin() + random() % values.size());
  };
  const auto payload = Pattern(3000, 1);
  for (int i = 0; i < 5000; ++i) {
    // Mostly right, so that connections open and come far.
    PacketHeader header = guest_->Header(static_cast<uint32_t>(100 + random() % 4), kServicePort,
                                         static_cast<uint16_t>(random() % 9));
    const size_t bytes = random() % payload.size();
    header.len = static_cast<uint32_t>(
        header.op == kOpReadWrite ? pick({bytes, bytes, bytes, bytes + 1, 0, 0xffffffff}) : 0);
    header.flags = static_cast<uint32_t>(random() % 4);
    header.buf_alloc = static_cast<uint32_t>(pick({0, 1, 4096, 262144, 0xffffffff}));
    header.fwd_cnt = static_cast<uint32_t>(pick({0, 0, 0, 0, 1, random()}));
    if (random() % 50 == 0) header.src_cid = random();
    if (random() % 50 == 0) header.dst_cid = random();
    if (random() % 50 == 0) header.type = static_cast<uint16_t>(random());
    ASSERT_TRUE(guest_->Send(header, std::span(payload).first(bytes)));
    if (i % 100 == 0) CloseHostEnds();
    while (guest_->Step(0)) {
    }
  }
  while (guest_->Step(50)) {
  }
  CloseHostEnds();
  ExpectWorks(1000);
  EXPECT_EQ(device_->stats().broken_rings, 0u);
}

// Whatever the guest writes into its transmit ring, it can reset its device and go on.
TEST_F(VsockDeviceTest, SurvivesRandomRings) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  ASSERT_NO_FATAL_FAILURE(StartAll());
  for (int round = 0; round < 200; ++round) {
    for (uint32_t i = 0; i < FakeFrontend::kRingEntries; ++i) {
      // Addresses in and around RAM, tables that are made of the ring itself.
      const uint64_t addr = random() % 3 == 0 ? guest_->tx().offset() + 16 * (random() % 128)
                                              : random() % (FakeFrontend::kHalfBytes + 4096);
      guest_->tx().SetDescriptor(i, {.addr = addr,
                                     .len = static_cast<uint32_t>(16 * (random() % 300)),
                                     .flags = static_cast<uint16_t>(random() % 8),
                                     .next = static_cast<uint16_t>(random() % 130)});
    }
    // That all of them are sound by chance will not happen.
    for (int i = 0; i < 40; ++i) guest_->tx().Offer(static_cast<uint16_t>(random() % 130));
    ASSERT_TRUE(frontend_->TakeError(kTxQueue, FakeGuest::kTimeoutMs));
    frontend_->StopQueues();
    guest_->Start();
    frontend_->StartQueues();
    if (round % 20 == 0) ExpectWorks(1000);
  }
}

// A guest that asks for resets and gives no buffers for them must wait, and gets them all in the
// end.
TEST_F(VsockDeviceTest, ResetsThatNobodyTakesStopTheTransmitQueue) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  guest_->HoldRxBuffers(true);
  const uint32_t count = FakeGuest::kRxBuffers + static_cast<uint32_t>(kPendingResetsMax) + 40;
  for (uint32_t i = 0; i < count; ++i) {
    ASSERT_TRUE(guest_->Send(guest_->Header(10000 + i, kServicePort, kOpCreditUpdate), {}));
  }
  while (guest_->Step(100)) {
  }
  EXPECT_EQ(device_->stats().packets_from_guest, FakeGuest::kRxBuffers + kPendingResetsMax);
  guest_->HoldRxBuffers(false);
  for (uint32_t i = 0; i < count; ++i) {
    const auto reset = guest_->Receive();
    ASSERT_TRUE(reset.has_value()) << i;
    EXPECT_EQ(reset->header.op, kOpReset);
    EXPECT_EQ(reset->header.dst_port, 10000 + i);
  }
  ExpectWorks(1000);
}

TEST_F(VsockDeviceTest, WaitsForReceiveBuffersWithoutLosingBytes) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000, 4 * kMiB);
  guest_->HoldRxBuffers(true);
  const auto data = Pattern(2 * kMiB, 1);
  std::thread writer([&, fd = std::move(host)] { WriteAll(fd.get(), data); });
  while (guest_->Step(100)) {
  }
  EXPECT_LE(stream->unread_bytes(), FakeGuest::kRxBuffers * 3732);
  guest_->HoldRxBuffers(false);
  EXPECT_TRUE(ReceiveToEnd(*stream) == data);
  writer.join();
}

// ---- guests that break a ring: the queues stop until the driver starts them anew ----

struct RingCase {
  std::string name;
  // Writes to the ring whose free RAM begins at FakeGuest::kFreeOffset.
  std::function<void(FakeGuest&)> spoil;
};
void PrintTo(const RingCase& ring_case, std::ostream* out) { *out << ring_case.name; }

class VsockDeviceRing : public VsockDeviceTest, public testing::WithParamInterface<RingCase> {};

TEST_P(VsockDeviceRing, StopsAtABrokenRingAndStartsAfterAReset) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000);
  GetParam().spoil(*guest_);
  EXPECT_TRUE(AtEnd(host.get()));
  EXPECT_TRUE(frontend_->TakeError(kTxQueue, FakeGuest::kTimeoutMs));
  EXPECT_EQ(device_->stats().broken_rings, 1u);
  EXPECT_EQ(device_->stats().connections_now, 0u);
  stream.reset();
  frontend_->StopQueues();
  guest_->Start();
  frontend_->StartQueues();
  ExpectWorks(1000);
}

constexpr uint64_t kFree = FakeGuest::kFreeOffset;

// An indirect table at kFree with these entries, offered on the tx ring.
void OfferTable(FakeGuest& guest, std::vector<RawDescriptor> entries, uint16_t extra_flags = 0,
                uint32_t length_change = 0) {
  if (!entries.empty()) {
    std::memcpy(guest.frontend().At(kFree), entries.data(), entries.size() * sizeof(RawDescriptor));
  }
  guest.tx().SetDescriptor(
      0, {.addr = FakeFrontend::GuestAddr(kFree),
          .len = static_cast<uint32_t>(entries.size() * sizeof(RawDescriptor)) + length_change,
          .flags = static_cast<uint16_t>(kFlagIndirect | extra_flags),
          .next = 1});
  guest.tx().Offer(0);
}
void OfferOne(FakeGuest& guest, const RawDescriptor& descriptor) {
  guest.tx().SetDescriptor(0, descriptor);
  guest.tx().Offer(0);
}
const uint64_t kGoodAddr = FakeFrontend::GuestAddr(kFree + 4096);
// Behind the last byte of the low region, and of all RAM.
constexpr uint64_t kLowEnd = FakeFrontend::kHalfBytes;
const uint64_t kHighEnd = FakeFrontend::GuestAddr(FakeFrontend::kRamBytes - 1) + 1;

INSTANTIATE_TEST_SUITE_P(
    Rings, VsockDeviceRing,
    testing::Values(
        RingCase{"outside_memory",
                 [](FakeGuest& g) { OfferOne(g, {.addr = kHighEnd, .len = 44}); }},
        RingCase{"in_the_hole", [](FakeGuest& g) { OfferOne(g, {.addr = kLowEnd, .len = 1}); }},
        RingCase{"across_the_end",
                 [](FakeGuest& g) { OfferOne(g, {.addr = kHighEnd - 100, .len = 101}); }},
        RingCase{"huge_length",
                 [](FakeGuest& g) { OfferOne(g, {.addr = kGoodAddr, .len = 0xffffffff}); }},
        RingCase{"address_wraps",
                 [](FakeGuest& g) { OfferOne(g, {.addr = ~uint64_t{0} - 9, .len = 44}); }},
        RingCase{"head_out_of_range", [](FakeGuest& g) { g.tx().Offer(128); }},
        RingCase{"next_out_of_range",
                 [](FakeGuest& g) {
                   OfferOne(g, {.addr = kGoodAddr, .len = 44, .flags = kFlagNext, .next = 128});
                 }},
        RingCase{"loop_to_itself",
                 [](FakeGuest& g) {
                   OfferOne(g, {.addr = kGoodAddr, .len = 44, .flags = kFlagNext, .next = 0});
                 }},
        RingCase{"loop_of_two",
                 [](FakeGuest& g) {
                   g.tx().SetDescriptor(
                       1, {.addr = kGoodAddr, .len = 1, .flags = kFlagNext, .next = 0});
                   OfferOne(g, {.addr = kGoodAddr, .len = 44, .flags = kFlagNext, .next = 1});
                 }},
        RingCase{"loop_of_empty_descriptors",
                 [](FakeGuest& g) {
                   OfferOne(g, {.addr = kGoodAddr, .len = 0, .flags = kFlagNext, .next = 0});
                 }},
        RingCase{"indirect_loop",
                 [](FakeGuest& g) {
                   OfferTable(g, {{kGoodAddr, 44, kFlagNext, 1}, {kGoodAddr, 1, kFlagNext, 0}});
                 }},
        RingCase{"indirect_next_out_of_range",
                 [](FakeGuest& g) {
                   OfferTable(g, {{kGoodAddr, 44, kFlagNext, 1}});
                 }},
        RingCase{"indirect_in_indirect",
                 [](FakeGuest& g) {
                   OfferTable(g, {{FakeFrontend::GuestAddr(kFree), 16, kFlagIndirect, 0}});
                 }},
        RingCase{"indirect_and_next",
                 [](FakeGuest& g) {
                   OfferTable(g, {{kGoodAddr, 44, 0, 0}}, kFlagNext);
                 }},
        RingCase{"indirect_of_odd_size",
                 [](FakeGuest& g) {
                   OfferTable(g, {{kGoodAddr, 44, 0, 0}}, 0, 8);
                 }},
        RingCase{"indirect_empty", [](FakeGuest& g) { OfferTable(g, {}); }},
        RingCase{"indirect_too_large",
                 [](FakeGuest& g) {
                   OfferTable(g, {{kGoodAddr, 44, 0, 0}}, 0, kIndirectEntriesMax * 16);
                 }},
        RingCase{"indirect_outside_memory",
                 [](FakeGuest& g) {
                   OfferOne(g, {.addr = kHighEnd - 15, .len = 16, .flags = kFlagIndirect});
                 }},
        RingCase{
            "readable_after_writable",
            [](FakeGuest& g) {
              OfferTable(g, {{kGoodAddr, 44, kFlagNext | kFlagWrite, 1}, {kGoodAddr, 44, 0, 0}});
            }},
        RingCase{"index_jumps", [](FakeGuest& g) { g.tx().JumpIndex(129); }},
        RingCase{"index_goes_back", [](FakeGuest& g) { g.tx().JumpIndex(0xffff); }}),
    [](const testing::TestParamInfo<RingCase>& info) { return info.param.name; });

// Receive buffers that cannot take what the device must write.
TEST_F(VsockDeviceTest, StopsAtReceiveBuffersThatCannotBeWritten) {
  for (const RawDescriptor descriptor :
       {RawDescriptor{.addr = kGoodAddr, .len = 4096, .flags = 0},
        RawDescriptor{.addr = kGoodAddr, .len = kPacketHeaderBytes, .flags = kFlagWrite},
        RawDescriptor{.addr = kHighEnd - 50, .len = 4096, .flags = kFlagWrite}}) {
    ASSERT_NO_FATAL_FAILURE(StartAll());
    frontend_->StopQueues();
    const uint64_t broken = device_->stats().broken_rings;
    guest_->rx().Reset();
    guest_->rx().SetDescriptor(0, descriptor);
    frontend_->StartQueues();
    guest_->rx().Offer(0);
    // The answer needs a buffer.
    guest_->Send(guest_->Header(1000, kServicePort, kOpCreditUpdate), {});
    EXPECT_TRUE(frontend_->TakeError(kRxQueue, FakeGuest::kTimeoutMs));
    EXPECT_EQ(device_->stats().broken_rings, broken + 1);
    frontend_->StopQueues();
    guest_->Start();
    frontend_->StartQueues();
    ExpectWorks(1001);
    guest_.reset();
    frontend_.reset();
  }
}

// ---- frontends that break the message protocol: they are dropped, the next one is served ----

TEST_F(VsockDeviceTest, DropsFrontendsThatSendNoMessages) {
  ASSERT_NO_FATAL_FAILURE(StartDevice());
  const auto expect_dropped = [this](const std::function<void(FakeFrontend&)>& act) {
    FakeFrontend frontend(options_.socket_path, kFeaturesOffered);
    act(frontend);
    EXPECT_TRUE(frontend.Closed(FakeGuest::kTimeoutMs));
  };
  const auto raw = [](uint32_t request, uint32_t flags, uint32_t size) {
    return [=](FakeFrontend& frontend) {
      const MessageHeader header{.request = request, .flags = flags, .size = size};
      frontend.SendRaw(std::as_bytes(std::span(&header, 1)));
    };
  };
  expect_dropped(raw(1, 2, 0));  // another version
  expect_dropped(raw(1, kMessageVersion | kMessageReply, 0));
  expect_dropped(raw(1, kMessageVersion, kMessagePayloadBytesMax + 1));
  expect_dropped(raw(1, kMessageVersion, 0xffffffff));
  expect_dropped(raw(77, kMessageVersion, 0));  // unknown, and nobody to tell
  expect_dropped([](FakeFrontend& frontend) {   // a payload of another size
    frontend.Send(Request::kSetFeatures, std::as_bytes(std::span("abc")));
  });
  expect_dropped([](FakeFrontend& frontend) { frontend.SendState(Request::kGetVringBase, 2, 0); });
  expect_dropped([](FakeFrontend& frontend) { frontend.SendU64(Request::kSetFeatures, 1); });
  expect_dropped([](FakeFrontend& frontend) {
    const std::vector<int> fds(kMemoryRegionsMax + 1, 0);
    frontend.Send(Request::kSetOwner, {}, fds);
  });
  expect_dropped([](FakeFrontend& frontend) {  // no descriptor for a kick
    const uint64_t index = 0;
    frontend.Send(Request::kSetVringKick, std::as_bytes(std::span(&index, 1)));
  });
  expect_dropped([](FakeFrontend& frontend) {  // a kick that nothing can wait for
    const uint64_t index = 0;
    UniqueFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    const int fd = file.get();
    frontend.Send(Request::kSetVringKick, std::as_bytes(std::span(&index, 1)), {&fd, 1});
  });
  EXPECT_EQ(device_->stats().protocol_errors, 11u);
  ASSERT_NO_FATAL_FAILURE(StartAll());
  ExpectWorks(1000);
}

TEST_F(VsockDeviceTest, RefusesWithAReplyWhereTheFrontendAsksForOne) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  const auto ask = [this](Request request, std::span<const std::byte> payload) {
    frontend_->Send(request, payload, {}, /*need_reply=*/true);
    const auto reply = frontend_->Receive();
    uint64_t value = 99;
    if (reply.has_value() && reply->size() == sizeof(value)) {
      std::memcpy(&value, reply->data(), sizeof(value));
    }
    return value;
  };
  EXPECT_EQ(ask(static_cast<Request>(33), {}), 1u);  // not offered
  EXPECT_EQ(ask(Request::kSetOwner, {}), 0u);
  const VringState state{.index = kRxQueue, .value = 64};
  EXPECT_EQ(ask(Request::kSetVringNum, std::as_bytes(std::span(&state, 1))), 1u);  // it runs
  // Memory that the file does not have; the table in use stays.
  auto regions = FakeFrontend::DefaultRegions();
  regions[1].bytes += 4096;
  EXPECT_EQ(frontend_->SendMemTable(regions), 1u);
  ExpectWorks(1000);
  // Rings that are no longer in memory break the queues, not the device.
  regions = FakeFrontend::DefaultRegions();
  regions[0].user_addr += kGiB;
  EXPECT_EQ(frontend_->SendMemTable(regions), 0u);
  EXPECT_TRUE(frontend_->TakeError(kRxQueue, FakeGuest::kTimeoutMs));
  frontend_->StopQueues();
  guest_->Start();
  frontend_->StartQueues();
  ExpectWorks(1001);
}

TEST_F(VsockDeviceTest, TwoDevicesShareNothing) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  VsockDeviceOptions options = options_;
  options.socket_path = directory_ + "/other.sock";
  options.guest_cid = kCid;  // CIDs need not differ
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  UniqueFd host(ends[1]);
  auto other = VsockDevice::Create(
      options, [&](uint32_t, uint32_t) -> absl::StatusOr<UniqueFd> { return UniqueFd(ends[0]); });
  ASSERT_TRUE(other.ok());
  std::thread thread([&] { EXPECT_TRUE((*other)->Run().ok()); });
  {
    FakeFrontend frontend(options.socket_path, kFeaturesOffered);
    EXPECT_EQ(frontend.Initialise(), kCid);
    FakeGuest guest(&frontend, kCid);
    frontend.StartQueues();
    GuestStream stream(&guest, 1000, kServicePort);
    ASSERT_TRUE(stream.Connect());
    auto [here, here_host] = Connect(1000);
    ASSERT_TRUE(stream.SendAll(Pattern(1000, 1)));
    ASSERT_TRUE(here->SendAll(Pattern(1000, 2)));
    EXPECT_EQ(ReadUpTo(host.get(), 1000), Pattern(1000, 1));
    EXPECT_EQ(ReadUpTo(here_host.get(), 1000), Pattern(1000, 2));
  }
  (*other)->Stop();
  thread.join();
}

}  // namespace
}  // namespace consort::vhost_user
