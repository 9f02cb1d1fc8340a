// SPDX-License-Identifier: Apache-2.0
// A device that another image of the process goes on with, while its guest and its host ends stay.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/inherited_fds.h"
#include "base/log.h"
#include "base/units.h"
#include "gtest/gtest.h"
#include "vmsock/vhost_user/device_state.h"
#include "vmsock/vhost_user/vsock_device_test_support.h"

namespace consort::vhost_user {
namespace {

class VsockDeviceRestore : public VsockDeviceTest {
 protected:
  // Sends until nobody takes any more, and all that is on the way has arrived where it waits.
  size_t Fill(GuestStream& stream, std::span<const std::byte> data) {
    size_t sent = 0;
    while (stream.credit() > 0 || guest_->Step(200)) {
      if (stream.credit() > 0) sent += stream.SendSome(data.subspan(sent));
    }
    return sent;
  }
};

TEST_F(VsockDeviceRestore, LosesDoublesAndSwapsNoByteOfManyStreams) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  ASSERT_NO_FATAL_FAILURE(StartAll());
  struct Stream {
    std::unique_ptr<GuestStream> guest;
    UniqueFd host;
    std::vector<std::byte> data;
    size_t sent = 0;
    std::vector<std::byte> got;
  };
  std::vector<Stream> streams(8);
  std::vector<std::thread> echoes;
  for (uint32_t i = 0; i < streams.size(); ++i) {
    Stream& stream = streams[i];
    std::tie(stream.guest, stream.host) = Connect(2000 + i);
    stream.data = Pattern(random() % 600000 + 100000, i);
    echoes.emplace_back([fd = stream.host.get(), left = stream.data.size()]() mutable {
      std::vector<std::byte> buffer(30000);
      while (left > 0) {
        const ssize_t count = read(fd, buffer.data(), buffer.size());
        if (count <= 0) return;
        if (!WriteAll(fd, std::span(buffer).first(static_cast<size_t>(count)))) return;
        left -= static_cast<size_t>(count);
      }
    });
  }
  int exchanges = 0;
  for (bool open = true; open && !HasFailure();) {
    open = false;
    bool moved = false;
    for (Stream& stream : streams) {
      if (stream.sent < stream.data.size() && stream.guest->credit() > 0) {
        const size_t limit =
            std::min<size_t>(stream.data.size() - stream.sent, random() % 70000 + 1);
        stream.sent += stream.guest->SendSome(std::span(stream.data).subspan(stream.sent, limit));
        moved = true;
      }
      if (random() % 5 == 0) {
        Exchange();
        ++exchanges;
      }
      if (stream.guest->unread_bytes() > 0) {
        const auto some = stream.guest->ReceiveSome();
        stream.got.insert(stream.got.end(), some.begin(), some.end());
        moved = true;
      }
      open |= stream.got.size() < stream.data.size();
    }
    if (open && !moved && !guest_->Step(FakeGuest::kTimeoutMs)) {
      ADD_FAILURE() << "nothing moves any more";
    }
  }
  for (Stream& stream : streams) {
    EXPECT_TRUE(stream.got == stream.data) << stream.got.size() << " of " << stream.data.size();
    shutdown(stream.host.get(), SHUT_RDWR);  // or an echo would wait where something was lost
  }
  for (std::thread& echo : echoes) echo.join();
  EXPECT_GT(exchanges, 5);
  ExpectWorks(1000);
}

TEST_F(VsockDeviceRestore, KeepsWhatTheHostHasNotTaken) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000, /*buf_alloc=*/kMiB);
  const auto data = Pattern(3 * kMiB, 3);
  const size_t sent = Fill(*stream, data);
  Halt();
  const VsockDeviceState state = device_->Save();
  EXPECT_GT(state.frontends.at(0).muxer.connections.at(0).backlog.size(), 100000u);
  Run(std::move(device_));  // as after an exec that failed
  Exchange();
  for (uint32_t port = 2000; port < 2005; ++port) ExpectWorks(port);
  std::vector<std::byte> got;
  std::thread reader([&, fd = host.get()] { got = ReadUpTo(fd, data.size()); });
  EXPECT_TRUE(stream->SendAll(std::span(data).subspan(sent)));
  reader.join();
  EXPECT_TRUE(got == data);
}

TEST_F(VsockDeviceRestore, DeliversWhatAClosedGuestSocketHadSent) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000, kMiB);
  const auto data = Pattern(stream->window(), 5);
  ASSERT_TRUE(stream->SendAll(data));
  stream->Shutdown(kShutdownBoth);
  ASSERT_TRUE(stream->WaitReset());
  stream.reset();
  Exchange();
  ExpectWorks(1000);  // the same port, beside it
  EXPECT_TRUE(ReadUpTo(host.get(), data.size() + 1) == data);
  ExpectWorks(1001);
  EXPECT_EQ(device_->stats().connections_now, 0u);
}

TEST_F(VsockDeviceRestore, KeepsDirectionsThatHaveEnded) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  const auto question = Pattern(100000, 1);
  const auto answer = Pattern(700000, 2);
  // The guest has ended its direction.
  auto [asking, service] = Connect(1000);
  ASSERT_TRUE(asking->SendAll(question));
  asking->Shutdown(kShutdownSend);
  // The host has, and the guest knows it.
  auto [listening, quiet] = Connect(1001);
  ASSERT_EQ(shutdown(quiet.get(), SHUT_WR), 0);
  ASSERT_TRUE(listening->WaitEnd());
  // Both have, as far as the host goes, and the guest has not answered.
  auto [silent, gone] = Connect(1002);
  gone.Reset();
  ASSERT_TRUE(silent->WaitEnd());
  Exchange();
  std::thread writer([&, fd = std::move(service)]() mutable {
    EXPECT_EQ(ReadUpTo(fd.get(), question.size() + 1), question);
    WriteAll(fd.get(), answer);
    fd.Reset();
  });
  EXPECT_TRUE(ReceiveToEnd(*asking) == answer);
  writer.join();
  ASSERT_TRUE(listening->SendAll(question));
  EXPECT_EQ(ReadUpTo(quiet.get(), question.size()), question);
  EXPECT_FALSE(listening->reset());
  EXPECT_EQ(device_->stats().connections_now, 3u);
  for (GuestStream* stream : {asking.get(), silent.get()}) {
    guest_->Send(stream->Header(kOpReset), {});
  }
  ExpectWorks(1003);
  EXPECT_EQ(device_->stats().connections_now, 1u);
}

TEST_F(VsockDeviceRestore, KeepsAnswersThatWaitForBuffers) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(999, 4 * kMiB);
  guest_->HoldRxBuffers(true);
  const auto data = Pattern(2 * kMiB, 1);
  std::thread writer([&, fd = std::move(host)] { WriteAll(fd.get(), data); });
  const uint32_t count = FakeGuest::kRxBuffers + 40;
  for (uint32_t i = 0; i < count; ++i) {
    ASSERT_TRUE(guest_->Send(guest_->Header(10000 + i, kServicePort, kOpCreditUpdate), {}));
  }
  while (guest_->Step(100)) {
  }
  Exchange();
  guest_->HoldRxBuffers(false);
  for (uint32_t i = 0; i < count; ++i) {
    const auto reset = guest_->Receive();
    ASSERT_TRUE(reset.has_value()) << i;
    EXPECT_EQ(reset->header.op, kOpReset);
    EXPECT_EQ(reset->header.dst_port, 10000 + i);
  }
  EXPECT_TRUE(ReceiveToEnd(*stream) == data);
  writer.join();
}

// The device waits for a while and then asks how many packets were read: it still does.
TEST_F(VsockDeviceRestore, GoesOnAskingAGuestThatReportsLate) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  constexpr uint32_t kBuffer = 32 * kKiB;
  constexpr size_t kLimit = kBuffer / kPeerBytesPerUnreadPacket;
  auto [stream, host] = Connect(1000, kBuffer);
  const auto data = Pattern(5 * kLimit, 1);
  ASSERT_NO_FATAL_FAILURE(SendUnreadPackets(*stream, host.get(), data, kLimit));
  Exchange();
  EXPECT_EQ(stream->unread_bytes(), kLimit);
  EXPECT_EQ(Receive(*stream, data.size()), data);
  EXPECT_LE(stream->unread_packets_max(), kLimit);
}

TEST_F(VsockDeviceRestore, ReadsTheRestOfAMessage) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  const UniqueFd call(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const int number = call.get();
  const uint64_t queue = kRxQueue;
  const auto payload = std::as_bytes(std::span(&queue, 1));
  // SET_VRING_CALL up to the middle of its payload, and its descriptor.
  frontend_->SendCut(Request::kSetVringCall, payload, {&number, 1}, payload.size() / 2);
  const auto has_part = [this] {
    Halt();
    const ControlState control = device_->Save().frontends.at(0).control;
    const bool has = control.bytes.size() == kMessageHeaderBytes + sizeof(queue) / 2;
    EXPECT_EQ(control.descriptors.size(), has ? 1u : 0u);
    Run(std::move(device_));
    return has;
  };
  while (!has_part()) {
  }
  Exchange();
  frontend_->SendRaw(payload.subspan(payload.size() / 2));
  // Interrupts of the rx queue go there now.
  guest_->Send(guest_->Header(1000, kServicePort, kOpCreditUpdate), {});
  pollfd wait{call.get(), POLLIN, 0};
  EXPECT_EQ(poll(&wait, 1, FakeGuest::kTimeoutMs), 1);
}

TEST_F(VsockDeviceRestore, ConnectionsSurviveAVmThatIsPaused) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000);
  const auto data = Pattern(100000, 1);
  const auto bases = frontend_->StopQueues();
  Exchange();
  ASSERT_TRUE(WriteAll(host.get(), data));
  ASSERT_TRUE(stream->SendAll(std::span(data).first(50000)));
  Exchange();
  frontend_->StartQueues(bases);
  ASSERT_TRUE(stream->SendAll(std::span(data).subspan(50000)));
  EXPECT_EQ(ReadUpTo(host.get(), data.size()), data);
  EXPECT_EQ(Receive(*stream, data.size()), data);
}

TEST_F(VsockDeviceRestore, ABrokenRingStaysBrokenUntilAReset) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000);
  guest_->tx().JumpIndex(0xffff);
  ASSERT_TRUE(frontend_->TakeError(kTxQueue, FakeGuest::kTimeoutMs));
  Exchange();
  EXPECT_TRUE(AtEnd(host.get()));
  stream.reset();
  frontend_->StopQueues();
  guest_->Start();
  frontend_->StartQueues();
  ExpectWorks(1000);
}

TEST_F(VsockDeviceRestore, ServesWhoComesFirstAfterwards) {
  ASSERT_NO_FATAL_FAILURE(StartDevice());
  Exchange();
  ASSERT_NO_FATAL_FAILURE(StartAll());
  Exchange();
  // A machine that starts meanwhile waits in the socket's queue.
  Halt();
  guest_.reset();
  frontend_.reset();
  frontend_ = std::make_unique<FakeFrontend>(options_.socket_path, kFeaturesOffered);
  Run(std::move(device_));
  Exchange();
  ASSERT_EQ(frontend_->Initialise(), kCid);
  guest_ = std::make_unique<FakeGuest>(frontend_.get(), kCid);
  frontend_->StartQueues();
  ExpectWorks(1000);
}

// ---- states that no device has: refused, and everybody sees the end ----

struct WrongCase {
  std::string name;
  std::function<void(VsockDeviceState&)> spoil;
};
void PrintTo(const WrongCase& wrong, std::ostream* out) { *out << wrong.name; }

class VsockDeviceWrongState : public VsockDeviceRestore,
                              public testing::WithParamInterface<WrongCase> {};

TEST_P(VsockDeviceWrongState, IsRefusedAndLeavesNothingOpen) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  auto [stream, host] = Connect(1000);
  Halt();
  VsockDeviceState state = device_->Save();
  {
    InheritedFds fds = PassThroughExec(state);
    GetParam().spoil(state);
    const auto restored = VsockDevice::Restore(options_, Handler(), state, &fds);
    EXPECT_FALSE(restored.ok());
  }
  EXPECT_TRUE(AtEnd(host.get()));
  EXPECT_TRUE(frontend_->Closed(FakeGuest::kTimeoutMs));
  stream.reset();
  guest_.reset();
  frontend_.reset();
  ASSERT_NO_FATAL_FAILURE(StartDevice());
  ASSERT_NO_FATAL_FAILURE(StartAll());
  ExpectWorks(1000);
}

BackendState& BackendOf(VsockDeviceState& state) { return state.frontends.at(0).backend; }
ConnectionState& ConnectionOf(VsockDeviceState& state) {
  return state.frontends.at(0).muxer.connections.at(0);
}

INSTANTIATE_TEST_SUITE_P(
    States, VsockDeviceWrongState,
    testing::Values(
        WrongCase{"two_frontends",
                  [](VsockDeviceState& s) { s.frontends.push_back(s.frontends.front()); }},
        WrongCase{"unknown_feature", [](VsockDeviceState& s) { BackendOf(s).features |= 1; }},
        WrongCase{"one_queue", [](VsockDeviceState& s) { BackendOf(s).queues.pop_back(); }},
        WrongCase{"nine_regions",
                  [](VsockDeviceState& s) { BackendOf(s).regions.resize(kMemoryRegionsMax + 1); }},
        WrongCase{"memory_beyond_the_file",
                  [](VsockDeviceState& s) { BackendOf(s).regions.at(1).spec.bytes += 4096; }},
        WrongCase{"memory_that_is_no_file",
                  [](VsockDeviceState& s) {
                    std::swap(BackendOf(s).regions.at(0).file, BackendOf(s).queues.at(0).call);
                  }},
        WrongCase{
            "ring_outside_memory",
            [](VsockDeviceState& s) { BackendOf(s).queues.at(0).layout.used_user_addr += kGiB; }},
        WrongCase{"ring_of_odd_size",
                  [](VsockDeviceState& s) { BackendOf(s).queues.at(1).layout.entries = 100; }},
        WrongCase{"kick_that_is_not_there",
                  [](VsockDeviceState& s) { BackendOf(s).queues.at(0).kick = 1 << 20; }},
        WrongCase{"listener_elsewhere", [](VsockDeviceState& s) { s.listener = 1 << 20; }},
        WrongCase{"whole_message",
                  [](VsockDeviceState& s) {
                    s.frontends.at(0).control.bytes = {
                        std::byte{1}, {}, {}, {}, std::byte{1}, {}, {}, {}, {}, {}, {}, {}, {}};
                  }},
        WrongCase{"message_of_another_version",
                  [](VsockDeviceState& s) {
                    s.frontends.at(0).control.bytes.resize(kMessageHeaderBytes);
                  }},
        WrongCase{"host_that_is_no_socket",
                  [](VsockDeviceState& s) {
                    std::swap(ConnectionOf(s).host, BackendOf(s).queues.at(0).err);
                  }},
        WrongCase{"small_window", [](VsockDeviceState& s) { ConnectionOf(s).window_bytes = 1; }},
        WrongCase{"windows_beyond_the_budget",
                  [](VsockDeviceState& s) {
                    ConnectionOf(s).window_bytes = static_cast<uint32_t>(kReceiveBudgetBytes);
                  }},
        WrongCase{"backlog_beyond_the_window",
                  [](VsockDeviceState& s) {
                    ConnectionOf(s).backlog.resize(ConnectionOf(s).window_bytes + 1);
                  }},
        WrongCase{"more_read_than_sent",
                  [](VsockDeviceState& s) { ConnectionOf(s).peer_forwarded += 1; }},
        WrongCase{"no_buffers", [](VsockDeviceState& s) { ConnectionOf(s).read_chains = 0; }},
        WrongCase{"two_of_one_port",
                  [](VsockDeviceState& s) {
                    s.frontends.at(0).muxer.connections.push_back(ConnectionOf(s));
                    s.frontends.at(0).muxer.connections.back().host = kNoDescriptor;
                  }},
        WrongCase{"too_many_connections",
                  [](VsockDeviceState& s) {
                    ConnectionState other = ConnectionOf(s);
                    other.host = kNoDescriptor;
                    other.window_bytes = kReceiveWindowBytesMin;
                    for (uint32_t i = 0; i < kConnectionsPerVmMax; ++i) {
                      other.guest_port = 5000 + i;
                      s.frontends.at(0).muxer.connections.push_back(other);
                    }
                  }},
        WrongCase{"too_many_resets",
                  [](VsockDeviceState& s) {
                    s.frontends.at(0).muxer.resets.resize(kPendingResetsMax + kConnectionsPerVmMax +
                                                          1);
                  }}),
    [](const testing::TestParamInfo<WrongCase>& info) { return info.param.name; });

}  // namespace
}  // namespace consort::vhost_user
