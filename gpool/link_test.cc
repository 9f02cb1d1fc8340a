// SPDX-License-Identifier: Apache-2.0
// Links between nodes: certificates, greetings, relays.
#include "gpool/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <numeric>
#include <optional>
#include <span>

#include "absl/strings/numbers.h"
#include "absl/synchronization/notification.h"
#include "gpool/certificates.h"
#include "gpool/relay.h"

namespace consort::gpool {
namespace {

using ::testing::HasSubstr;

// What takes so long has failed.
constexpr absl::Duration kPatience = absl::Seconds(30);

UniqueFd ConnectTcp(const std::string& address) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return fd;
}

std::pair<UniqueFd, UniqueFd> Pair() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

class LinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/link-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    ASSERT_TRUE(MakeAuthority(folder_).ok());
    a_ = Context(folder_, "a");
    b_ = Context(folder_, "b");
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  static std::unique_ptr<TlsContext> Context(const std::string& folder, const std::string& node) {
    EXPECT_TRUE(MakeNodeCertificate(folder, node).ok());
    auto context = TlsContext::Load(NodeFiles(folder, node));
    EXPECT_TRUE(context.ok()) << context.status();
    return context.ok() ? *std::move(context) : nullptr;
  }

  // Node b listens; each link is joined to one end of a pair, whose other end `far_end_` gets.
  void Listen() {
    auto server = LinkServer::Listen(
        b_.get(), "127.0.0.1:0",
        [this](const Identity& peer, const LinkHello& hello) -> absl::StatusOr<UniqueFd> {
          absl::MutexLock lock(&mutex_);
          peer_ = peer.name;
          role_ = peer.role;
          hello_ = hello;
          if (refuse_) return absl::ResourceExhaustedError("enough");
          auto [near, far] = Pair();
          far_end_ = std::move(far);
          return std::move(near);
        });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  UniqueFd FarEnd() {
    absl::MutexLock lock(&mutex_);
    const auto there = [this] { return far_end_.valid(); };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), kPatience));
    return std::move(far_end_);
  }

  std::string folder_;
  std::unique_ptr<TlsContext> a_;
  std::unique_ptr<TlsContext> b_;
  absl::Mutex mutex_;
  bool refuse_ = false;
  std::string peer_;
  Role role_ = Role::kNode;
  LinkHello hello_;
  UniqueFd far_end_;
  std::unique_ptr<LinkServer> server_;
};

// Whether nothing comes but the end.
bool Ends(TlsStream* link) {
  std::byte byte;
  size_t count = 0;
  while (true) {
    const TlsStream::Result result = link->Read(std::span(&byte, 1), &count);
    if (result != TlsStream::Result::kWantsRead) return result == TlsStream::Result::kEnded;
    pollfd polled = {link->fd(), POLLIN, 0};
    poll(&polled, 1, -1);
  }
}

// All that can be read until the end.
std::string ReadAll(int fd) {
  std::string all;
  char bytes[65536];
  ssize_t count;
  while ((count = read(fd, bytes, sizeof(bytes))) > 0) all.append(bytes, count);
  return all;
}

std::string Pattern(size_t bytes) {
  std::string text(bytes, '\0');
  uint32_t state = 1;
  for (char& c : text) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return text;
}

TEST_F(LinkTest, OperatorsAndNodesHaveLinksOfTheirOwnKind) {
  Listen();
  for (const Role role : {Role::kAdmin, Role::kViewer}) {
    const std::string name = std::string("the-") + RoleName(role);
    ASSERT_TRUE(MakeOperatorCertificate(folder_, name, role).ok());
    const auto person = TlsContext::Load(NodeFiles(folder_, name));
    ASSERT_TRUE(person.ok()) << person.status();
    EXPECT_EQ((*person)->own().name, name);
    EXPECT_EQ((*person)->own().role, role);
    EXPECT_FALSE((*person)->Names(name));
    LinkHello hello;
    hello.kind = LinkKind::kAdmin;
    const auto link = DialLink(**person, server_->address(), kAnyNode, hello);
    ASSERT_TRUE(link.ok()) << link.status();
    EXPECT_EQ((*link)->peer().name, "b");
    EXPECT_TRUE(FarEnd().valid());
    EXPECT_EQ(peer_, name);
    EXPECT_EQ(role_, role);
    for (const LinkKind kind : {LinkKind::kSession, LinkKind::kPool}) {
      hello.kind = kind;
      const auto refused = DialLink(**person, server_->address(), "b", hello);
      ASSERT_TRUE(refused.ok()) << refused.status();
      EXPECT_TRUE(Ends(refused->get()));
    }
  }
  LinkHello hello;
  hello.kind = LinkKind::kAdmin;
  const auto node = DialLink(*a_, server_->address(), "b", hello);
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_TRUE(Ends(node->get()));
  absl::MutexLock lock(&mutex_);
  EXPECT_FALSE(far_end_.valid());
}

TEST_F(LinkTest, AnOperatorIsNoNode) {
  ASSERT_TRUE(MakeOperatorCertificate(folder_, "alice", Role::kAdmin).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(MakeOperatorCertificate(folder_, "a", Role::kAdmin)));
  EXPECT_TRUE(absl::IsInvalidArgument(MakeOperatorCertificate(folder_, "a/b", Role::kAdmin)));
  auto alice = TlsContext::Load(NodeFiles(folder_, "alice"));
  ASSERT_TRUE(alice.ok()) << alice.status();
  b_ = *std::move(alice);
  Listen();
  // She listens: neither by her name nor by any is she a node.
  for (const char* node : {"alice", kAnyNode}) {
    EXPECT_TRUE(
        absl::IsUnauthenticated(DialLink(*a_, server_->address(), node, LinkHello()).status()));
  }
}

TEST_F(LinkTest, CarriesManyBytesBothWaysAtOnceAndTheEndAfterThem) {
  Listen();
  LinkHello hello;
  hello.payload[0] = std::byte{42};
  auto link = DialLink(*a_, server_->address(), "b", hello);
  ASSERT_TRUE(link.ok()) << link.status();
  auto [near, application] = Pair();
  std::string head;
  std::thread relay([&, plain = near.get(), stream = link->get()] {
    Relay(plain, stream,
          {4096,
           [&](std::span<const std::byte> bytes) {
             head.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
           },
           -1});
  });
  const UniqueFd far = FarEnd();
  const std::string there = Pattern(32 << 20);
  const std::string back = Pattern(24 << 20);
  // Nobody reads before everything is written in one direction: the other must not stand still.
  std::thread writer([&, &application = application] {
    EXPECT_EQ(write(application.get(), there.data(), there.size()),
              static_cast<ssize_t>(there.size()));
    shutdown(application.get(), SHUT_WR);
  });
  std::string got(back.size(), '\0');
  std::thread answerer([&] {
    EXPECT_EQ(write(far.get(), back.data(), back.size()), static_cast<ssize_t>(back.size()));
  });
  size_t read_back = 0;
  while (read_back < got.size()) {
    const ssize_t count = read(application.get(), got.data() + read_back, got.size() - read_back);
    ASSERT_GT(count, 0);
    read_back += static_cast<size_t>(count);
  }
  answerer.join();
  EXPECT_EQ(got, back);
  EXPECT_EQ(ReadAll(far.get()), there);
  writer.join();
  shutdown(far.get(), SHUT_RDWR);
  relay.join();
  EXPECT_EQ(head, back.substr(0, 4096));
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(peer_, "a");
  EXPECT_EQ(hello_.payload[0], std::byte{42});
}

TEST_F(LinkTest, TheEndOfTheFarSideIsTheEndOfTheNearOne) {
  Listen();
  auto link = DialLink(*a_, server_->address(), "b", LinkHello());
  ASSERT_TRUE(link.ok()) << link.status();
  auto [near, application] = Pair();
  std::optional<size_t> head;
  std::thread relay([&, plain = near.get(), stream = link->get()] {
    Relay(plain, stream,
          {4096, [&](std::span<const std::byte> bytes) { head = bytes.size(); }, -1});
  });
  {
    const UniqueFd far = FarEnd();
    ASSERT_EQ(write(far.get(), "last", 4), 4);
  }
  EXPECT_EQ(ReadAll(application.get()), "last");
  relay.join();
  EXPECT_EQ(head, 4u);
}

TEST_F(LinkTest, AServerThatGoesEndsItsLinks) {
  Listen();
  auto link = DialLink(*a_, server_->address(), "b", LinkHello());
  ASSERT_TRUE(link.ok()) << link.status();
  auto [near, application] = Pair();
  std::thread relay([plain = near.get(), stream = link->get()] { Relay(plain, stream, {}); });
  const UniqueFd far = FarEnd();
  server_.reset();
  EXPECT_EQ(ReadAll(application.get()), "");
  EXPECT_EQ(ReadAll(far.get()), "");
  relay.join();
}

TEST_F(LinkTest, OnlyNodesOfThePoolAreLetIn) {
  Listen();
  const std::string other = folder_ + "/other";
  ASSERT_TRUE(MakeAuthority(other).ok());
  const auto stranger = Context(other, "a");
  const auto refused = DialLink(*stranger, server_->address(), "b", LinkHello());
  EXPECT_TRUE(absl::IsUnauthenticated(refused.status())) << refused.status();
  // A stranger that does not look at our certificate is not let in either: the server says no more
  // than that, and asks nobody.
  const UniqueFd plain = ConnectTcp(server_->address());
  ASSERT_EQ(write(plain.get(), "GET / HTTP/1.0\r\n\r\n", 18), 18);
  ReadAll(plain.get());
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(peer_, "");
}

TEST_F(LinkTest, ANodeIsWhoItsCertificateSays) {
  Listen();
  const auto wrong = DialLink(*a_, server_->address(), "c", LinkHello());
  EXPECT_TRUE(absl::IsUnauthenticated(wrong.status())) << wrong.status();
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("node c at"));
  EXPECT_TRUE(b_->Names("b"));
  EXPECT_FALSE(b_->Names("a"));
}

TEST_F(LinkTest, ARefusedLinkEnds) {
  refuse_ = true;
  Listen();
  auto link = DialLink(*a_, server_->address(), "b", LinkHello());
  ASSERT_TRUE(link.ok()) << link.status();
  auto [near, application] = Pair();
  std::thread relay([plain = near.get(), stream = link->get()] { Relay(plain, stream, {}); });
  EXPECT_EQ(ReadAll(application.get()), "");
  relay.join();
}

TEST_F(LinkTest, SaysWhatIsWrong) {
  EXPECT_TRUE(absl::IsInvalidArgument(DialLink(*a_, "somewhere", "b", LinkHello()).status()));
  EXPECT_TRUE(absl::IsUnavailable(DialLink(*a_, "127.0.0.1:1", "b", LinkHello()).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(LinkServer::Listen(b_.get(), "localhost:0", nullptr).status()));
  Listen();
  EXPECT_TRUE(
      absl::IsAlreadyExists(LinkServer::Listen(b_.get(), server_->address(), nullptr).status()));
  TlsFiles files = NodeFiles(folder_, "a");
  files.key = NodeFiles(folder_, "b").key;
  EXPECT_THAT(std::string(TlsContext::Load(files).status().message()), HasSubstr("b.key"));
  files.key = folder_ + "/none";
  EXPECT_TRUE(absl::IsInvalidArgument(TlsContext::Load(files).status()));
}

TEST_F(LinkTest, CertificatesAreMadeOnceAndForNodesOnly) {
  EXPECT_TRUE(absl::IsAlreadyExists(MakeAuthority(folder_)));
  EXPECT_TRUE(absl::IsNotFound(MakeNodeCertificate(folder_ + "/none", "a")));
  for (const char* name : {"", "-a", "a/b", "a b", ".", "a,DNS:b"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(MakeNodeCertificate(folder_, name))) << name;
  }
  EXPECT_EQ(std::filesystem::status(NodeFiles(folder_, "a").key).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

}  // namespace
}  // namespace consort::gpool
