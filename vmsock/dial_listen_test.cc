// SPDX-License-Identifier: Apache-2.0
// The two sides of the greeting against each other, and each against a peer that misbehaves.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "vmsock/channel_test_support.h"
#include "vmsock/deadline.h"
#include "vmsock/dial.h"
#include "vmsock/endpoint.h"
#include "vmsock/listen.h"
#include "vmsock/socket_io.h"

namespace consort {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kHash = 0x1234;

// A directory of its own for sockets, removed with what is in it.
class SocketDirectory {
 public:
  SocketDirectory() {
    char name[] = "/tmp/consort-dial-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~SocketDirectory() {
    for (const char* file : {"/socket", "/socket.lock"}) unlink((path_ + file).c_str());
    rmdir(path_.c_str());
  }
  std::string socket() const { return path_ + "/socket"; }

 private:
  std::string path_;
};

class DialListen : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Listener>> listener =
        Listener::ListenUnix({directory_.socket(), 0600});
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }
  DialOptions Options() const {
    DialOptions options;
    options.endpoint = listener_->endpoint().c_str();
    options.description_hash = kHash;
    options.application = "dial_listen_test";
    options.device = 3;
    return options;
  }
  // Accepts one client in another thread and hands its socket to `serve`; joined with the test.
  void Serve(std::function<void(Accepted)> serve) {
    server_ = std::thread([this, serve = std::move(serve)] {
      absl::StatusOr<Accepted> accepted = listener_->Accept(kPatience);
      ASSERT_TRUE(accepted.ok()) << accepted.status();
      serve(*std::move(accepted));
    });
  }
  void TearDown() override {
    if (server_.joinable()) server_.join();
  }

  SocketDirectory directory_;
  std::unique_ptr<Listener> listener_;
  std::thread server_;
};

// One frame each way through a channel that OpenSession made.
void Exchange(Channel* guest, Channel* host) {
  for (auto [from, to] : {std::pair(guest, host), {host, guest}}) {
    ASSERT_EQ(SendFrame(from, 9, 128), ChannelStatus::kOk);
    Frame frame;
    ASSERT_EQ(ReceiveFrame(to, &frame), ChannelStatus::kOk);
    EXPECT_TRUE(FrameIs(frame, 9, 128));
    to->Release(frame);
  }
}

TEST_F(DialListen, OpensASessionOverRingsOrWithout) {
  for (const auto& [guest_rings, host_rings] : {std::pair(RingsWish::kWherePossible, true),
                                                {RingsWish::kWherePossible, false},
                                                {RingsWish::kNever, true},
                                                {RingsWish::kOnly, true}}) {
    HostChannel host;
    Serve([&, host_rings = host_rings](Accepted accepted) {
      EXPECT_EQ(accepted.peer.kind, Peer::Kind::kUnix);
      EXPECT_EQ(accepted.peer.uid, getuid());
      EXPECT_EQ(accepted.peer.pid, getpid());
      absl::StatusOr<wire::Hello> hello = ReadHello(accepted.socket.get(), kPatience);
      ASSERT_TRUE(hello.ok()) << hello.status();
      EXPECT_TRUE(CheckHello(*hello, kHash).ok());
      EXPECT_EQ(hello->purpose, wire::kPurposeSession);
      EXPECT_EQ(hello->device, 3u);
      EXPECT_EQ(hello->pid, static_cast<uint32_t>(getpid()));
      EXPECT_STREQ(hello->application, "dial_listen_test");
      wire::Welcome welcome;
      welcome.driver_version = 13000;
      welcome.window_base = 0x400000000000;
      HostChannelOptions options;
      options.allow_rings = host_rings;
      absl::StatusOr<HostChannel> opened =
          OpenHostChannel(std::move(accepted.socket), *hello, welcome, options);
      ASSERT_TRUE(opened.ok()) << opened.status();
      host = *std::move(opened);
    });
    DialOptions options = Options();
    options.rings = guest_rings;
    DialResult result;
    std::unique_ptr<Channel> guest;
    OpenSession(options, &result, &guest);
    server_.join();
    ASSERT_EQ(result.error, DialError::kNone) << result.text;
    EXPECT_STREQ(result.text, "");
    ASSERT_NE(guest, nullptr);
    const bool rings = guest_rings != RingsWish::kNever && host_rings;
    EXPECT_STREQ(guest->name(), rings ? "unix+rings" : "unix");
    EXPECT_STREQ(host.channel->name(), guest->name());
    EXPECT_EQ(host.shared_memory.size() > kRequestRingBytes + kReplyRingBytes, rings);
    EXPECT_EQ(result.welcome.driver_version, 13000u);
    EXPECT_EQ(result.welcome.window_base, 0x400000000000u);
    Exchange(guest.get(), host.channel.get());
  }
}

// The first session has what the daemon lends it, the second is not lent anything, the third wants
// none, and the fourth is lent what the guest cannot see.
TEST_F(DialListen, OpensASessionWithRingsInTheMachinesMemory) {
  constexpr RingSizes kSizes = {kRingBytesMin, kRingBytesMin};
  const Bytes bytes = kVmMemoryUnit + VmRingBytes(kSizes);
  VmMemory memory;
  memory.file.Reset(memfd_create("vm-memory", MFD_CLOEXEC));
  memory.bytes = bytes;
  memory.token.bytes[3] = 7;
  ASSERT_EQ(ftruncate(memory.file.get(), static_cast<off_t>(bytes)), 0);
  const UniqueFd larger(memfd_create("vm-memory", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(larger.get(), static_cast<off_t>(2 * bytes)), 0);
  // What another session has left there.
  const std::vector<char> dirt(4096, 'x');
  ASSERT_EQ(pwrite(memory.file.get(), dirt.data(), dirt.size(), kVmMemoryUnit), 4096);
  for (const auto& [wish, lent, offset, name] :
       {std::tuple(RingsWish::kWherePossible, memory.file.get(), kVmMemoryUnit, "vsock+rings"),
        {RingsWish::kWherePossible, -1, 0, "unix"},
        {RingsWish::kNever, memory.file.get(), kVmMemoryUnit, "unix"},
        {RingsWish::kWherePossible, larger.get(), bytes, ""}}) {
    HostChannel host;
    Serve([&, lent = lent, offset = offset](Accepted accepted) {
      absl::StatusOr<wire::Hello> hello = ReadHello(accepted.socket.get(), kPatience);
      ASSERT_TRUE(hello.ok()) << hello.status();
      EXPECT_EQ(wire::SameToken(hello->vm_memory, memory.token),
                (hello->features & wire::kFeatureVmMemory) != 0);
      HostChannelOptions options;
      options.allow_rings = false;
      options.ring_sizes = kSizes;
      options.vm_memory = lent;
      options.vm_rings_offset = offset;
      absl::StatusOr<HostChannel> opened =
          OpenHostChannel(std::move(accepted.socket), *hello, wire::Welcome(), options);
      ASSERT_TRUE(opened.ok()) << opened.status();
      host = *std::move(opened);
    });
    DialOptions options = Options();
    options.rings = wish;
    options.vm_memory = &memory;
    DialResult result;
    std::unique_ptr<Channel> guest;
    OpenSession(options, &result, &guest);
    server_.join();
    if (*name == '\0') {
      EXPECT_EQ(result.error, DialError::kProtocol);
      EXPECT_EQ(guest, nullptr);
      continue;
    }
    ASSERT_EQ(result.error, DialError::kNone) << result.text;
    ASSERT_NE(guest, nullptr);
    EXPECT_STREQ(guest->name(), name);
    EXPECT_STREQ(host.channel->name(), name);
    Exchange(guest.get(), host.channel.get());
  }
}

TEST_F(DialListen, OpensNoSessionWithoutRingsWhereOnlyTheyWillDo) {
  Serve([&](Accepted accepted) {
    absl::StatusOr<wire::Hello> hello = ReadHello(accepted.socket.get(), kPatience);
    ASSERT_TRUE(hello.ok()) << hello.status();
    HostChannelOptions options;
    options.allow_rings = false;
    EXPECT_TRUE(OpenHostChannel(std::move(accepted.socket), *hello, wire::Welcome(), options).ok());
  });
  DialOptions options = Options();
  options.rings = RingsWish::kOnly;
  DialResult result;
  std::unique_ptr<Channel> guest;
  OpenSession(options, &result, &guest);
  server_.join();
  EXPECT_EQ(result.error, DialError::kRefused);
  EXPECT_THAT(result.text, HasSubstr("has no rings"));
  EXPECT_EQ(guest, nullptr);
}

TEST(DialListenTcp, OpensASession) {
  absl::StatusOr<std::unique_ptr<Listener>> listener = Listener::ListenTcpLoopback(0);
  ASSERT_TRUE(listener.ok()) << listener.status();
  HostChannel host;
  std::thread server([&] {
    absl::StatusOr<Accepted> accepted = (*listener)->Accept(kPatience);
    ASSERT_TRUE(accepted.ok()) << accepted.status();
    EXPECT_EQ(accepted->peer.kind, Peer::Kind::kTcp);
    EXPECT_THAT(accepted->peer.text, HasSubstr("tcp 127.0.0.1:"));
    absl::StatusOr<wire::Hello> hello = ReadHello(accepted->socket.get(), kPatience);
    ASSERT_TRUE(hello.ok()) << hello.status();
    EXPECT_EQ(hello->features, wire::kFeatureResume);
    absl::StatusOr<HostChannel> opened =
        OpenHostChannel(std::move(accepted->socket), *hello, wire::Welcome(), {});
    ASSERT_TRUE(opened.ok()) << opened.status();
    host = *std::move(opened);
  });
  DialOptions options;
  options.endpoint = (*listener)->endpoint().c_str();
  DialResult result;
  std::unique_ptr<Channel> guest;
  OpenSession(options, &result, &guest);
  server.join();
  ASSERT_EQ(result.error, DialError::kNone) << result.text;
  Exchange(guest.get(), host.channel.get());
}

TEST_F(DialListen, QueriesDevices) {
  for (const uint32_t count : {0u, 1u, 3u, kDeviceSnapshotsMax}) {
    Serve([count](Accepted accepted) {
      absl::StatusOr<wire::Hello> hello = ReadHello(accepted.socket.get(), kPatience);
      ASSERT_TRUE(hello.ok()) << hello.status();
      EXPECT_EQ(hello->purpose, wire::kPurposeQuery);
      std::vector<wire::DeviceSnapshot> devices(count);
      for (uint32_t index = 0; index < count; ++index) {
        devices[index].total_bytes = 1000 + index;
        // Not terminated: the reader must see to that.
        memset(devices[index].name, 'x', sizeof(devices[index].name));
      }
      wire::Welcome welcome;
      welcome.device_count = count;
      EXPECT_TRUE(SendWelcome(accepted.socket.get(), welcome, -1, devices, kPatience).ok());
    });
    std::vector<wire::DeviceSnapshot> devices(2);
    DialResult result;
    QueryDevices(Options(), &result, devices);
    server_.join();
    ASSERT_EQ(result.error, DialError::kNone) << result.text;
    EXPECT_EQ(result.welcome.device_count, count);
    for (uint32_t index = 0; index < std::min(count, 2u); ++index) {
      EXPECT_EQ(devices[index].total_bytes, 1000 + index);
      EXPECT_EQ(strlen(devices[index].name), sizeof(devices[index].name) - 1);
    }
  }
}

TEST_F(DialListen, QueriesWhatIsInUse) {
  for (const uint32_t count : {0u, 2u, 5u}) {
    Serve([count](Accepted accepted) {
      absl::StatusOr<wire::Hello> hello = ReadHello(accepted.socket.get(), kPatience);
      ASSERT_TRUE(hello.ok()) << hello.status();
      EXPECT_EQ(hello->purpose, wire::kPurposeStatus);
      wire::Welcome welcome;
      welcome.device_count = 1;
      welcome.process_count = count;
      memset(welcome.driver_release, 'r', sizeof(welcome.driver_release));
      wire::DeviceUse use;
      use.used_bytes = 77;
      std::vector<wire::ProcessUse> processes(count);
      for (uint32_t index = 0; index < count; ++index) {
        processes[index].pid = 100 + index;
        memset(processes[index].application, 'a', sizeof(processes[index].application));
      }
      const std::vector<wire::DeviceSnapshot> devices(1);
      const Deadline deadline(kPatience);
      const int fd = accepted.socket.get();
      EXPECT_TRUE(SendWelcome(fd, welcome, -1, devices, kPatience).ok());
      EXPECT_EQ(SendAll(fd, std::as_bytes(std::span(&use, 1)), {}, deadline), 0);
      EXPECT_EQ(SendAll(fd, std::as_bytes(std::span(processes)), {}, deadline), 0);
    });
    std::vector<wire::DeviceSnapshot> devices(2);
    std::vector<wire::DeviceUse> uses(2);
    std::vector<wire::ProcessUse> processes(3);
    StatusAnswer answer = {devices, uses, processes};
    DialResult result;
    QueryStatus(Options(), &result, &answer);
    server_.join();
    ASSERT_EQ(result.error, DialError::kNone) << result.text;
    EXPECT_EQ(uses[0].used_bytes, 77u);
    EXPECT_EQ(strlen(result.welcome.driver_release), sizeof(result.welcome.driver_release) - 1);
    ASSERT_EQ(answer.process_count, std::min(count, 3u));
    for (uint32_t index = 0; index < answer.process_count; ++index) {
      EXPECT_EQ(processes[index].pid, 100 + index);
      EXPECT_EQ(strlen(processes[index].application), sizeof(processes[index].application) - 1);
    }
  }
}

TEST_F(DialListen, RefusesMoreProcessesThanAHostCanHave) {
  Serve([](Accepted accepted) {
    ASSERT_TRUE(ReadHello(accepted.socket.get(), kPatience).ok());
    wire::Welcome welcome;
    welcome.process_count = kProcessUsesMax + 1;
    EXPECT_TRUE(SendWelcome(accepted.socket.get(), welcome, -1, {}, kPatience).ok());
  });
  StatusAnswer answer;
  DialResult result;
  QueryStatus(Options(), &result, &answer);
  EXPECT_EQ(result.error, DialError::kProtocol);
}

TEST_F(DialListen, TellsWhyItWasRefused) {
  const struct {
    uint32_t status;
    DialError error;
  } cases[] = {{wire::kWelcomeVersionMismatch, DialError::kVersionMismatch},
               {wire::kWelcomeNoDevice, DialError::kNoDevice},
               {wire::kWelcomeRefused, DialError::kRefused}};
  for (const auto& refusal : cases) {
    Serve([&](Accepted accepted) {
      ASSERT_TRUE(ReadHello(accepted.socket.get(), kPatience).ok());
      EXPECT_TRUE(RefuseClient(accepted.socket.get(), refusal.status,
                               "ask your operator for more" + std::string(300, '!'), kPatience)
                      .ok());
    });
    DialResult result;
    std::unique_ptr<Channel> channel;
    OpenSession(Options(), &result, &channel);
    server_.join();
    EXPECT_EQ(result.error, refusal.error);
    EXPECT_EQ(channel, nullptr);
    EXPECT_THAT(result.text, HasSubstr("ask your operator for more"));
  }
}

TEST_F(DialListen, TellsThatNothingListens) {
  listener_.reset();
  SocketDirectory other;
  const std::string endpoint = "unix:" + other.socket();
  DialOptions options;
  options.endpoint = endpoint.c_str();
  DialResult result;
  std::unique_ptr<Channel> channel;
  const Nanos begin = MonotonicNow();
  OpenSession(options, &result, &channel);
  EXPECT_LT(MonotonicNow() - begin, kSecond);
  EXPECT_EQ(result.error, DialError::kUnreachable);
  EXPECT_EQ(std::string(result.text),
            "cannot reach " + endpoint + ": No such file or directory; is consortd running?");
  // A port that was free a moment ago.
  std::string port;
  {
    absl::StatusOr<std::unique_ptr<Listener>> tcp = Listener::ListenTcpLoopback(0);
    ASSERT_TRUE(tcp.ok());
    port = (*tcp)->endpoint();
  }
  options.endpoint = port.c_str();
  OpenSession(options, &result, &channel);
  EXPECT_EQ(result.error, DialError::kUnreachable);
  EXPECT_THAT(result.text, HasSubstr("Connection refused"));
}

TEST_F(DialListen, GivesUpOnADaemonThatDoesNotAnswer) {
  DialOptions options = Options();
  options.handshake_timeout = 50 * kMillisecond;
  DialResult result;
  std::unique_ptr<Channel> channel;
  // Nobody accepts; the kernel has queued the connection.
  OpenSession(options, &result, &channel);
  EXPECT_EQ(result.error, DialError::kTimeout);
  EXPECT_THAT(result.text, HasSubstr("did not answer"));
  EXPECT_EQ(channel, nullptr);
}

TEST_F(DialListen, GivesUpOnAFullListener) {
  // The listener's queue takes kBacklog + 1 connections; nobody accepts.
  Endpoint endpoint;
  ASSERT_EQ(ParseEndpoint(listener_->endpoint().c_str(), &endpoint), nullptr);
  std::vector<UniqueFd> waiting;
  for (;;) {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
    ASSERT_TRUE(fd.valid());
    if (connect(fd.get(), &endpoint.address.any, endpoint.address_bytes) != 0) break;
    waiting.push_back(std::move(fd));
  }
  ASSERT_EQ(errno, EAGAIN);
  DialOptions options = Options();
  options.connect_timeout = 50 * kMillisecond;
  DialResult result;
  std::unique_ptr<Channel> channel;
  OpenSession(options, &result, &channel);
  EXPECT_EQ(result.error, DialError::kTimeout) << result.text;
}

// What a hostile or confused daemon may answer.
TEST_F(DialListen, RefusesAnImpossibleWelcome) {
  wire::Welcome rings;
  rings.features = wire::kFeatureRings;
  rings.request_ring_bytes = rings.reply_ring_bytes = kRingBytesMin;
  wire::Welcome no_magic;
  no_magic.magic = 0;
  wire::Welcome version;
  version.version = wire::kWireVersion + 1;
  wire::Welcome features;
  features.features = 0x80;
  wire::Welcome small = rings;
  small.request_ring_bytes = kRingBytesMin / 2;
  wire::Welcome odd = rings;
  odd.reply_ring_bytes = kRingBytesMin + 4096;
  wire::Welcome huge = rings;
  huge.reply_ring_bytes = 2 * kRingBytesMax;
  wire::Welcome beyond = rings;
  beyond.request_ring_bytes = 2 * kRingBytesMin;
  wire::Welcome devices;
  devices.device_count = kDeviceSnapshotsMax + 1;
  const UniqueFd memory = CreateRingMemory({kRingBytesMin, kRingBytesMin});
  // As large, but its maker could still cut it off under our feet.
  const UniqueFd unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096 + 2 * kRingBytesMin), 0);
  const struct {
    const char* name;
    wire::Welcome welcome;
    int memory;
    DialError error;
  } cases[] = {
      {"no magic", no_magic, -1, DialError::kProtocol},
      {"version", version, -1, DialError::kVersionMismatch},
      {"unknown feature", features, -1, DialError::kProtocol},
      {"too many devices", devices, -1, DialError::kProtocol},
      {"no memory", rings, -1, DialError::kProtocol},
      {"unsealed memory", rings, unsealed.get(), DialError::kProtocol},
      {"small ring", small, memory.get(), DialError::kProtocol},
      {"odd ring", odd, memory.get(), DialError::kProtocol},
      {"huge ring", huge, memory.get(), DialError::kProtocol},
      {"rings beyond the memory", beyond, memory.get(), DialError::kProtocol},
      {"rings", rings, memory.get(), DialError::kNone},
  };
  for (const auto& answer : cases) {
    SCOPED_TRACE(answer.name);
    Serve([&](Accepted accepted) {
      ASSERT_TRUE(ReadHello(accepted.socket.get(), kPatience).ok());
      EXPECT_TRUE(
          SendWelcome(accepted.socket.get(), answer.welcome, answer.memory, {}, kPatience).ok());
    });
    DialResult result;
    std::unique_ptr<Channel> channel;
    OpenSession(Options(), &result, &channel);
    server_.join();
    EXPECT_EQ(result.error, answer.error) << result.text;
    EXPECT_EQ(channel == nullptr, answer.error != DialError::kNone);
    EXPECT_EQ(result.text[0] == '\0', answer.error == DialError::kNone);
  }
}

TEST_F(DialListen, NoticesADaemonThatHangsUp) {
  Serve([](Accepted accepted) {
    const std::vector<std::byte> half(2000);
    EXPECT_EQ(SendAll(accepted.socket.get(), half, {}, Deadline(kPatience)), 0);
  });
  DialResult result;
  std::unique_ptr<Channel> channel;
  OpenSession(Options(), &result, &channel);
  EXPECT_EQ(result.error, DialError::kProtocol) << result.text;
}

TEST(Dial, RefusesBadEndpoints) {
  const std::string long_path = "unix:/" + std::string(107, 'x');
  for (const char* endpoint : {static_cast<const char*>(nullptr),
                               "",
                               "unix",
                               "unix:",
                               "unix:relative",
                               long_path.c_str(),
                               "vsock:",
                               "vsock:2",
                               "vsock:2:",
                               "vsock::7000",
                               "vsock:2:7000x",
                               "vsock:4294967295:1",
                               "vsock:2:4294967296",
                               "vsock:-1:7000",
                               "tcp:",
                               "tcp:localhost:80",
                               "tcp:127.0.0.1",
                               "tcp:127.0.0.1:65536",
                               "tcp:1.2.3.4.5:1",
                               "http://x",
                               "TCP:127.0.0.1:1"}) {
    DialOptions options;
    options.endpoint = endpoint;
    DialResult result;
    std::unique_ptr<Channel> channel;
    OpenSession(options, &result, &channel);
    EXPECT_EQ(result.error, DialError::kBadEndpoint) << endpoint << ": " << result.text;
    EXPECT_THAT(result.text, HasSubstr("bad endpoint"));
  }
  Endpoint endpoint;
  EXPECT_EQ(ParseEndpoint(("unix:/" + std::string(106, 'x')).c_str(), &endpoint), nullptr);
  EXPECT_EQ(ParseEndpoint("vsock:4294967294:4294967294", &endpoint), nullptr);
  EXPECT_EQ(endpoint.address.vsock.svm_cid, 4294967294u);
  EXPECT_EQ(ParseEndpoint("tcp:255.255.255.255:65535", &endpoint), nullptr);
}

// A vsock without a peer must fail in bounded time, with or without the transport.
TEST(Dial, TellsAboutVsock) {
  DialOptions options;
  // CID 2^32-3 is no VM's.
  options.endpoint = "vsock:4294967293:7000";
  options.connect_timeout = 200 * kMillisecond;
  DialResult result;
  std::unique_ptr<Channel> channel;
  const Nanos begin = MonotonicNow();
  OpenSession(options, &result, &channel);
  EXPECT_LT(MonotonicNow() - begin, 2 * kSecond);
  EXPECT_TRUE(result.error == DialError::kUnreachable || result.error == DialError::kTimeout)
      << static_cast<int>(result.error);
  EXPECT_THAT(result.text, HasSubstr("cannot reach vsock:4294967293:7000"));
}

TEST_F(DialListen, SilentAndGarbageClientsAreDropped) {
  Endpoint endpoint;
  ASSERT_EQ(ParseEndpoint(listener_->endpoint().c_str(), &endpoint), nullptr);
  const auto greet = [&](const std::function<void(int)>& talk) {
    UniqueFd client(socket(AF_UNIX, SOCK_STREAM, 0));
    EXPECT_EQ(connect(client.get(), &endpoint.address.any, endpoint.address_bytes), 0);
    absl::StatusOr<Accepted> accepted = listener_->Accept(kPatience);
    EXPECT_TRUE(accepted.ok()) << accepted.status();
    talk(client.get());
    if (client.get() >= 0) shutdown(client.get(), SHUT_WR);
    return ReadHello(accepted->socket.get(), kPatience).status();
  };
  const auto send_hello = [](const wire::Hello& hello, size_t bytes) {
    return [=](int fd) { EXPECT_EQ(write(fd, &hello, bytes), static_cast<ssize_t>(bytes)); };
  };
  wire::Hello hello;
  hello.purpose = wire::kPurposeQuery;
  EXPECT_TRUE(greet(send_hello(hello, sizeof(hello))).ok());
  EXPECT_TRUE(absl::IsUnavailable(greet([](int) {})));
  EXPECT_TRUE(absl::IsUnavailable(greet(send_hello(hello, sizeof(hello) - 1))));
  hello.purpose = 5;
  EXPECT_TRUE(absl::IsInvalidArgument(greet(send_hello(hello, sizeof(hello)))));
  // Of another version, so it gets an answer: the refusal.
  hello.version = wire::kWireVersion + 1;
  EXPECT_TRUE(greet(send_hello(hello, sizeof(hello))).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckHello(hello, 0)));
  EXPECT_THAT(std::string(CheckHello(hello, 0).message()), HasSubstr("wire version 2"));
  hello.magic ^= 1;
  EXPECT_TRUE(absl::IsInvalidArgument(greet(send_hello(hello, sizeof(hello)))));

  UniqueFd silent(socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(connect(silent.get(), &endpoint.address.any, endpoint.address_bytes), 0);
  absl::StatusOr<Accepted> accepted = listener_->Accept(kPatience);
  ASSERT_TRUE(accepted.ok());
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(ReadHello(accepted->socket.get(), 20 * kMillisecond).status()));
}

// Descriptors that a client sends along with its Hello must not pile up in the daemon.
TEST_F(DialListen, ClientsCannotLeaveDescriptorsBehind) {
  Endpoint endpoint;
  ASSERT_EQ(ParseEndpoint(listener_->endpoint().c_str(), &endpoint), nullptr);
  UniqueFd client(socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(connect(client.get(), &endpoint.address.any, endpoint.address_bytes), 0);
  absl::StatusOr<Accepted> accepted = listener_->Accept(kPatience);
  ASSERT_TRUE(accepted.ok());
  wire::Hello hello;
  hello.purpose = wire::kPurposeQuery;
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  ASSERT_EQ(SendAll(client.get(), std::as_bytes(std::span(&hello, 1)), {&pipe_fds[1], 1},
                    Deadline(kPatience)),
            0);
  EXPECT_TRUE(ReadHello(accepted->socket.get(), kPatience).ok());
  // The passed writing end is gone, so closing ours ends the pipe.
  close(pipe_fds[1]);
  char byte;
  EXPECT_EQ(read(pipe_fds[0], &byte, 1), 0);
  close(pipe_fds[0]);
}

TEST_F(DialListen, AcceptTimesOut) {
  EXPECT_TRUE(absl::IsDeadlineExceeded(listener_->Accept(0).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(listener_->Accept(10 * kMillisecond).status()));
}

TEST(ListenUnix, HasTheModeAskedForWhateverTheUmask) {
  SocketDirectory directory;
  const mode_t before = umask(0077);
  absl::StatusOr<std::unique_ptr<Listener>> listener =
      Listener::ListenUnix({directory.socket(), 0666});
  umask(before);
  ASSERT_TRUE(listener.ok()) << listener.status();
  struct stat info;
  ASSERT_EQ(stat(directory.socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0666u);
}

TEST(ListenUnix, ReplacesADeadSocketButNotALiveOne) {
  SocketDirectory directory;
  const UnixListenOptions options = {directory.socket(), 0600};
  {
    // As a killed daemon leaves it: bound, and nobody listens.
    Endpoint endpoint;
    ASSERT_EQ(ParseEndpoint(("unix:" + directory.socket()).c_str(), &endpoint), nullptr);
    const UniqueFd dead(socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(bind(dead.get(), &endpoint.address.any, endpoint.address_bytes), 0);
  }
  absl::StatusOr<std::unique_ptr<Listener>> first = Listener::ListenUnix(options);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = Listener::ListenUnix(options).status();
  EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
  // Also one that knows nothing of our lock file.
  ASSERT_EQ(unlink((directory.socket() + ".lock").c_str()), 0);
  const absl::Status third = Listener::ListenUnix(options).status();
  EXPECT_TRUE(absl::IsAlreadyExists(third)) << third;
  EXPECT_THAT(std::string(third.message()), HasSubstr("another daemon answers"));
  first->reset();
  EXPECT_EQ(access(directory.socket().c_str(), F_OK), -1);
  EXPECT_TRUE(Listener::ListenUnix(options).ok());
}

TEST(ListenUnix, LeavesWhatIsNoSocketAlone) {
  SocketDirectory directory;
  const UniqueFd file(open(directory.socket().c_str(), O_CREAT | O_WRONLY, 0600));
  const absl::Status status = Listener::ListenUnix({directory.socket(), 0600}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(access(directory.socket().c_str(), F_OK), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(Listener::ListenUnix({"relative", 0600}).status()));
  EXPECT_TRUE(absl::IsNotFound(Listener::ListenUnix({"/nonexistent/socket", 0600}).status()));
}

// What goes through exec: the descriptors, while nobody takes the file away.
TEST(AdoptUnix, GoesOnWhereAnotherListenerWas) {
  const SocketDirectory directory;
  const auto copy = [](int fd) { return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); };
  auto first = Listener::ListenUnix({directory.socket(), 0600});
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string elsewhere = directory.socket() + "2";
  EXPECT_TRUE(absl::IsInvalidArgument(
      Listener::AdoptUnix(elsewhere, copy((*first)->fd()), UniqueFd()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      Listener::AdoptUnix(directory.socket(), copy(STDIN_FILENO), UniqueFd()).status()));
  {
    const auto second =
        Listener::AdoptUnix(directory.socket(), copy((*first)->fd()), copy((*first)->lock_fd()));
    ASSERT_TRUE(second.ok()) << second.status();
    const UniqueFd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    Endpoint endpoint;
    ASSERT_EQ(ParseEndpoint(("unix:" + directory.socket()).c_str(), &endpoint), nullptr);
    ASSERT_EQ(connect(client.get(), &endpoint.address.any, endpoint.address_bytes), 0);
    EXPECT_TRUE((*second)->Accept(kSecond).ok());
    EXPECT_TRUE(absl::IsAlreadyExists(Listener::ListenUnix({directory.socket(), 0600}).status()));
  }
  // It took the file with it.
  EXPECT_NE(access(directory.socket().c_str(), F_OK), 0);
}

TEST(ListenVsock, ListensOrSaysThatTheKernelHasNone) {
  const uint32_t port = 0x40000000u + static_cast<uint32_t>(getpid());
  absl::StatusOr<std::unique_ptr<Listener>> first = Listener::ListenVsock(port);
  if (!first.ok()) {
    EXPECT_TRUE(absl::IsUnavailable(first.status())) << first.status();
    GTEST_SKIP() << "this kernel has no vsock: " << first.status().message();
  }
  EXPECT_EQ((*first)->endpoint(), "vsock:2:" + std::to_string(port));
  EXPECT_TRUE(absl::IsAlreadyExists(Listener::ListenVsock(port).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded((*first)->Accept(0).status()));
}

}  // namespace
}  // namespace consort
