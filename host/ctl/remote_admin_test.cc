// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/remote_admin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "gpool/certificates.h"
#include "gpool/link.h"
#include "host/ctl/admin_client.h"
#include "host/daemon/event_loop.h"
#include "host/daemon/http_server.h"

namespace consort::host {
namespace {

using ::testing::HasSubstr;

// Node a listens and serves operators as consortd does: an HTTP server on a loop, to which links of
// operators are joined.
class RemoteAdminTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/remote-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    ASSERT_TRUE(gpool::MakeAuthority(folder_).ok());
    ASSERT_TRUE(gpool::MakeNodeCertificate(folder_, "a").ok());
    ASSERT_TRUE(gpool::MakeOperatorCertificate(folder_, "alice", gpool::Role::kAdmin).ok());
    ASSERT_TRUE(gpool::MakeOperatorCertificate(folder_, "bob", gpool::Role::kViewer).ok());
    auto loop = EventLoop::Create();
    ASSERT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
    auto listening = ListenTcp("127.0.0.1:0");
    ASSERT_TRUE(listening.ok()) << listening.status();
    auto http = HttpServer::Start(
        loop_.get(), *std::move(listening), HttpServer::Access::kReadAndWrite,
        [](const HttpRequest& request, const HttpServer::Later&) {
          const HttpUser& user = request.user.value();
          if (request.put && !user.may_change) {
            return HttpResponse{403, "text/plain", "only looks\n"};
          }
          return HttpResponse{200, "text/plain", user.name + request.path + request.body};
        });
    ASSERT_TRUE(http.ok()) << http.status();
    http_ = *std::move(http);
    thread_ = std::thread([this] { loop_->Run(); });
    auto tls = gpool::TlsContext::Load(gpool::NodeFiles(folder_, "a"));
    ASSERT_TRUE(tls.ok()) << tls.status();
    tls_ = *std::move(tls);
    auto links = gpool::LinkServer::Listen(
        tls_.get(), "127.0.0.1:0",
        [this](const gpool::Identity& peer, const gpool::LinkHello&) -> absl::StatusOr<UniqueFd> {
          int ends[2];
          if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
            return absl::ResourceExhaustedError("socketpair");
          }
          auto theirs = std::make_shared<UniqueFd>(ends[1]);
          loop_->Post([this, theirs, peer] {
            const absl::Status adopted =
                http_->Adopt(std::move(*theirs), {peer.name, peer.role == gpool::Role::kAdmin});
            EXPECT_TRUE(adopted.ok()) << adopted;
          });
          return UniqueFd(ends[0]);
        });
    ASSERT_TRUE(links.ok()) << links.status();
    links_ = *std::move(links);
  }
  void TearDown() override {
    links_.reset();
    loop_->Post([this] {
      http_.reset();
      loop_->Stop();
    });
    thread_.join();
    std::filesystem::remove_all(folder_);
  }

  absl::StatusOr<std::unique_ptr<RemoteAdmin>> Start(const std::string& name) {
    return RemoteAdmin::Start(links_->address(),
                              OperatorFiles(folder_ + "/" + name + ".crt", "", ""));
  }

  std::string folder_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<gpool::TlsContext> tls_;
  std::unique_ptr<gpool::LinkServer> links_;
  std::thread thread_;
};

TEST_F(RemoteAdminTest, ReadsAndChangesAsTheCertificateSays) {
  std::string path;
  {
    const auto alice = Start("alice");
    ASSERT_TRUE(alice.ok()) << alice.status();
    path = (*alice)->socket_path();
    EXPECT_EQ(AdminGet(path, "/status").value(), "alice/status");
    EXPECT_TRUE(AdminPut(path, "/set", {{"x", 1}}).ok());
    EXPECT_EQ(AdminGet(path, "/again").value(), "alice/again");
    const auto bob = Start("bob");
    ASSERT_TRUE(bob.ok()) << bob.status();
    EXPECT_EQ(AdminGet((*bob)->socket_path(), "/status").value(), "bob/status");
    const absl::Status denied = AdminPut((*bob)->socket_path(), "/set", {{"x", 1}});
    EXPECT_TRUE(absl::IsPermissionDenied(denied)) << denied;
    EXPECT_EQ(denied.message(), "only looks");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(RemoteAdminTest, SaysWhatIsWrongWithTheCertificateOrTheAddress) {
  const auto node = Start("a");
  EXPECT_TRUE(absl::IsInvalidArgument(node.status()));
  EXPECT_THAT(std::string(node.status().message()), HasSubstr("is a host's certificate"));
  EXPECT_TRUE(absl::IsInvalidArgument(Start("nobody").status()));
  const auto none =
      RemoteAdmin::Start("127.0.0.1:1", OperatorFiles(folder_ + "/alice.crt", "", ""));
  EXPECT_TRUE(absl::IsUnavailable(none.status())) << none.status();
  const std::string other = folder_ + "/other";
  ASSERT_TRUE(gpool::MakeAuthority(other).ok());
  ASSERT_TRUE(gpool::MakeOperatorCertificate(other, "mallory", gpool::Role::kAdmin).ok());
  const auto stranger =
      RemoteAdmin::Start(links_->address(), OperatorFiles(other + "/mallory.crt", "", ""));
  EXPECT_TRUE(absl::IsPermissionDenied(stranger.status())) << stranger.status();
  const auto believer = RemoteAdmin::Start(
      links_->address(), OperatorFiles(other + "/mallory.crt", "", folder_ + "/authority.crt"));
  EXPECT_TRUE(absl::IsPermissionDenied(believer.status())) << believer.status();
  EXPECT_THAT(std::string(believer.status().message()), HasSubstr("does not take"));
}

}  // namespace
}  // namespace consort::host
