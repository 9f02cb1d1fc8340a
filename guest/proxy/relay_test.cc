// SPDX-License-Identifier: Apache-2.0
#include "guest/proxy/relay.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace consort::guest {
namespace {

// Program and host, with a relay between them in a thread of its own.
class RelayTest : public testing::Test {
 protected:
  void SetUp() override {
    int program_side[2];
    int host_side[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, program_side), 0);
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, host_side), 0);
    program_.Reset(program_side[0]);
    host_.Reset(host_side[0]);
    relay_ =
        std::thread([one = UniqueFd(program_side[1]), other = UniqueFd(host_side[1])]() mutable {
          EXPECT_TRUE(RelayStreams(std::move(one), std::move(other)));
        });
  }
  // The relay ends when both ends are gone, whatever a test did before.
  void TearDown() override {
    program_.Reset();
    host_.Reset();
    relay_.join();
  }

  static std::vector<uint8_t> RandomBytes(uint32_t seed, size_t count) {
    std::mt19937 generator(seed);
    std::vector<uint8_t> bytes(count);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(generator());
    return bytes;
  }

  // In pieces of uneven lengths.
  static void SendPieces(int fd, const std::vector<uint8_t>& bytes) {
    size_t piece = 1;
    for (size_t at = 0; at < bytes.size();) {
      const size_t count = std::min(piece, bytes.size() - at);
      const ssize_t sent = send(fd, bytes.data() + at, count, MSG_NOSIGNAL);
      ASSERT_GT(sent, 0);
      at += static_cast<size_t>(sent);
      piece = piece * 3 % 700001 + 1;
    }
  }

  static std::vector<uint8_t> ReceiveToEnd(int fd) {
    std::vector<uint8_t> all;
    std::vector<uint8_t> piece(100003);
    for (ssize_t got; (got = recv(fd, piece.data(), piece.size(), 0)) > 0;) {
      all.insert(all.end(), piece.begin(), piece.begin() + got);
    }
    return all;
  }

  UniqueFd program_;
  UniqueFd host_;
  std::thread relay_;
};

TEST_F(RelayTest, CarriesBothWaysAtOnceAndPassesEndsOn) {
  constexpr size_t kBytes = 9'000'001;
  const std::vector<uint8_t> to_host = RandomBytes(1, kBytes);
  const std::vector<uint8_t> to_program = RandomBytes(2, kBytes + 77);
  const auto talk = [](int fd, const std::vector<uint8_t>& say, std::vector<uint8_t>* heard) {
    std::thread speaker([&] {
      SendPieces(fd, say);
      shutdown(fd, SHUT_WR);
    });
    *heard = ReceiveToEnd(fd);
    speaker.join();
  };
  std::vector<uint8_t> at_program;
  std::vector<uint8_t> at_host;
  std::thread program([&] { talk(program_.get(), to_host, &at_program); });
  talk(host_.get(), to_program, &at_host);
  program.join();
  EXPECT_TRUE(at_host == to_host);
  EXPECT_TRUE(at_program == to_program);
}

TEST_F(RelayTest, AnswersComeAfterTheEndOfTheQuestion) {
  SendPieces(program_.get(), {1, 2, 3});
  shutdown(program_.get(), SHUT_WR);
  EXPECT_EQ(ReceiveToEnd(host_.get()), (std::vector<uint8_t>{1, 2, 3}));
  SendPieces(host_.get(), {4, 5});
  host_.Reset();
  EXPECT_EQ(ReceiveToEnd(program_.get()), (std::vector<uint8_t>{4, 5}));
}

TEST_F(RelayTest, WhatWasSaidBeforeHangingUpArrives) {
  // More than sockets and buffers hold, so that much of it is on its way when the program goes.
  const std::vector<uint8_t> all = RandomBytes(3, 5'000'000);
  std::thread program([&] {
    SendPieces(program_.get(), all);
    program_.Reset();
  });
  EXPECT_TRUE(ReceiveToEnd(host_.get()) == all);
  program.join();
}

TEST_F(RelayTest, ATalkerWhoseListenerHasGoneLearnsIt) {
  host_.Reset();
  const std::vector<uint8_t> some(100'000, 7);
  // The first ones may still go into buffers; without an end this would not end.
  while (send(program_.get(), some.data(), some.size(), MSG_NOSIGNAL) > 0) {
  }
  EXPECT_EQ(errno, EPIPE);
}

TEST_F(RelayTest, HoldsNoMoreThanItsBuffers) {
  // Nobody reads at the host: the program can send what fits into two sockets and the relay.
  const std::vector<uint8_t> some(64 * 1024, 7);
  int socket_bytes = 0;
  socklen_t length = sizeof(socket_bytes);
  ASSERT_EQ(getsockopt(program_.get(), SOL_SOCKET, SO_SNDBUF, &socket_bytes, &length), 0);
  size_t sent = 0;
  for (pollfd entry = {program_.get(), POLLOUT, 0}; poll(&entry, 1, 200) == 1;) {
    const ssize_t count = send(program_.get(), some.data(), some.size(), MSG_DONTWAIT);
    if (count > 0) sent += static_cast<size_t>(count);
  }
  EXPECT_GT(sent, 0u);
  EXPECT_LE(sent, kRelayBufferBytes + 2 * static_cast<size_t>(socket_bytes));
}

}  // namespace
}  // namespace consort::guest
