// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "host/limits.h"

namespace consort::host {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A server on a thread of its own, with one page.
class HttpServerTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(HttpServer::Access::kRead); }
  void Start(HttpServer::Access access) {
    auto listening = ListenTcp("127.0.0.1:0");
    ASSERT_TRUE(listening.ok()) << listening.status();
    bound_ = AddressText(listening->get());
    auto loop = EventLoop::Create();
    ASSERT_TRUE(loop.ok());
    loop_ = *std::move(loop);
    auto server =
        HttpServer::Start(loop_.get(), *std::move(listening), access,
                          [this](const HttpRequest& request,
                                 const HttpServer::Later& later) -> std::optional<HttpResponse> {
                            if (request.path == "/later") {
                              later_ = later;
                              asked_later_.Notify();
                              return std::nullopt;
                            }
                            if (request.path == "/called") {
                              later({200, "text/plain", "at once\n"});
                              return std::nullopt;
                            }
                            HttpResponse response;
                            if (request.put) {
                              response.body = "put " + std::to_string(request.body.size()) + " " +
                                              request.body.substr(0, 9);
                            } else if (request.path == "/big") {
                              response.body = std::string(kBigBytes, 'x');
                            } else if (request.path == "/page") {
                              response.body = "hello\n";
                            } else {
                              response.status = 404;
                            }
                            return response;
                          });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    thread_ = std::thread([this] { loop_->Run(); });
  }
  void TearDown() override { Stop(); }
  void Stop() {
    if (!thread_.joinable()) return;
    loop_->Stop();
    thread_.join();
    server_.reset();
  }

  UniqueFd Connect() const {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int port = std::atoi(bound_.c_str() + bound_.rfind(':') + 1);
    address.sin_port = htons(static_cast<uint16_t>(port));
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      fd.Reset();
    }
    return fd;
  }

  static void Send(int fd, const std::string& text) {
    EXPECT_EQ(send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  static std::string ReadToEnd(int fd) {
    std::string text;
    char bytes[65536];
    ssize_t got;
    while ((got = recv(fd, bytes, sizeof(bytes), 0)) > 0) {
      text.append(bytes, static_cast<size_t>(got));
    }
    return text;
  }
  std::string Ask(const std::string& method, const std::string& path) const {
    const UniqueFd fd = Connect();
    if (!fd.valid()) return "";
    Send(fd.get(), method + " " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    return ReadToEnd(fd.get());
  }

  // More than socket buffers hold.
  static constexpr size_t kBigBytes = 16 << 20;

  std::string bound_;
  HttpServer::Later later_;  // the loop's
  absl::Notification asked_later_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

TEST_F(HttpServerTest, AnswersGetAndHead) {
  const std::string page = Ask("GET", "/page");
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(page, HasSubstr("Content-Type: text/plain; charset=utf-8\r\n"));
  EXPECT_THAT(page, EndsWith("\r\n\r\nhello\n"));
  const std::string head = Ask("HEAD", "/page");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(head, EndsWith("\r\n\r\n"));
  EXPECT_THAT(Ask("GET", "/nothing"), StartsWith("HTTP/1.1 404 "));
}

TEST_F(HttpServerTest, ServesTheSameConnectionAgain) {
  const UniqueFd fd = Connect();
  Send(fd.get(), "GET /page HTTP/1.1\r\nHost: x\r\n\r\n");
  std::string first;
  char byte;
  while (!first.ends_with("hello\n") && recv(fd.get(), &byte, 1, 0) == 1) first += byte;
  EXPECT_THAT(first, EndsWith("\r\n\r\nhello\n"));
  Send(fd.get(), "GET /page HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(ReadToEnd(fd.get()), EndsWith("\r\n\r\nhello\n"));
}

TEST_F(HttpServerTest, OtherMethodsAreRefusedWithoutAskingTheHandler) {
  EXPECT_THAT(Ask("POST", "/page"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Ask("DELETE", "/page"), HasSubstr("Allow: GET, HEAD"));
}

TEST_F(HttpServerTest, AnAnswerMayComeLaterAndHoldsUpNobody) {
  const UniqueFd fd = Connect();
  Send(fd.get(), "GET /later HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  asked_later_.WaitForNotification();
  EXPECT_THAT(Ask("GET", "/page"), HasSubstr("hello"));
  loop_->Post([this] { later_({200, "text/plain", "after all\n"}); });
  EXPECT_THAT(ReadToEnd(fd.get()), EndsWith("\r\n\r\nafter all\n"));
  EXPECT_THAT(Ask("GET", "/called"), EndsWith("\r\n\r\nat once\n"));
}

TEST_F(HttpServerTest, AnAnswerForOneWhoHasGoneIsDropped) {
  UniqueFd fd = Connect();
  Send(fd.get(), "GET /later HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  asked_later_.WaitForNotification();
  fd.Reset();
  loop_->Post([this] { later_({200, "text/plain", std::string(kBigBytes, 'x')}); });
  EXPECT_THAT(Ask("GET", "/page"), HasSubstr("hello"));
}

TEST_F(HttpServerTest, AServerThatGoesClosesWhoWaits) {
  const UniqueFd fd = Connect();
  Send(fd.get(), "GET /later HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  asked_later_.WaitForNotification();
  Stop();
  EXPECT_EQ(ReadToEnd(fd.get()), "");
  later_({200, "text/plain", "nobody hears it"});
}

TEST_F(HttpServerTest, PutIsServedWhereItIsWanted) {
  const auto put = [&](size_t bytes) {
    const UniqueFd fd = Connect();
    Send(fd.get(), "PUT /page HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
                       std::to_string(bytes) + "\r\n\r\n" + std::string(bytes, 'y'));
    return ReadToEnd(fd.get());
  };
  EXPECT_THAT(put(3), StartsWith("HTTP/1.1 405 "));
  Stop();
  Start(HttpServer::Access::kReadAndWrite);
  EXPECT_THAT(put(0), EndsWith("\r\n\r\nput 0 "));
  EXPECT_THAT(put(3), EndsWith("\r\n\r\nput 3 yyy"));
  EXPECT_THAT(put(kHttpBodyBytesMax), HasSubstr("put 65536 yyyyyyyyy"));
  EXPECT_THAT(put(kHttpBodyBytesMax + 1), StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(Ask("GET", "/page"), EndsWith("hello\n"));
  EXPECT_THAT(Ask("DELETE", "/page"), HasSubstr("Allow: GET, HEAD, PUT"));
}

TEST_F(HttpServerTest, GarbageHoldsUpNobody) {
  const UniqueFd garbage = Connect();
  Send(garbage.get(), std::string(1000, '\0') + "\r\n\r\n");
  EXPECT_THAT(Ask("GET", "/page"), HasSubstr("hello"));
}

TEST_F(HttpServerTest, AClientThatDoesNotReadHoldsUpNobody) {
  const UniqueFd stuck = Connect();
  Send(stuck.get(), "GET /big HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  for (int i = 0; i < 10; ++i) EXPECT_THAT(Ask("GET", "/page"), HasSubstr("hello"));
  EXPECT_GT(ReadToEnd(stuck.get()).size(), kBigBytes);
}

TEST_F(HttpServerTest, BeyondTheBoundClientsWaitTheirTurn) {
  std::vector<UniqueFd> silent;
  for (uint32_t i = 0; i < kHttpConnectionsMax; ++i) {
    silent.push_back(Connect());
    // A whole request, so that the server has surely taken the connection.
    Send(silent.back().get(), "HEAD /page HTTP/1.1\r\nHost: x\r\n\r\n");
    char byte;
    ASSERT_EQ(recv(silent.back().get(), &byte, 1, 0), 1);
  }
  const UniqueFd one_more = Connect();
  Send(one_more.get(), "GET /page HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  silent.pop_back();
  EXPECT_THAT(ReadToEnd(one_more.get()), HasSubstr("hello"));
}

TEST_F(HttpServerTest, ATakenPortIsToldApart) {
  EXPECT_TRUE(absl::IsAlreadyExists(ListenTcp(bound_).status()));
}

TEST(ListenTcp, SaysWhatIsNoAddress) {
  for (const char* address : {"", "9825", ":9825", "host.example:9825", "127.0.0.1:", "1.2.3:x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ListenTcp(address).status())) << address;
  }
}

}  // namespace
}  // namespace consort::host
