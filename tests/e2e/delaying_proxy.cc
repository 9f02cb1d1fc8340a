// SPDX-License-Identifier: Apache-2.0
// tests/e2e/delaying_proxy.cc: a network's distance where there is none: carries TCP connections,
// each byte so late, each way, and no fewer bytes a second.
//
//   delaying_proxy ADDRESS:PORT TO_ADDRESS:PORT MICROSECONDS
//
// Numeric IPv4 addresses. Prints "ready" when it listens. A direction of a connection is two
// threads: one reads and notes when, the other waits until that is long enough ago and writes.
// What is on its way is held in memory, at most kHeldBytesMax a direction.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// At 10 GB/s so much is on its way in 25 ms.
constexpr size_t kHeldBytesMax = size_t{256} << 20;
constexpr size_t kReadBytes = size_t{256} << 10;

bool Parse(const char* text, sockaddr_in* address) {
  char host[64];
  unsigned port;
  if (sscanf(text, "%63[0-9.]:%u", host, &port) != 2 || port == 0 || port > 65535) return false;
  *address = {};
  address->sin_family = AF_INET;
  address->sin_port = htons(static_cast<uint16_t>(port));
  return inet_pton(AF_INET, host, &address->sin_addr) == 1;
}

// An open socket; closed with the last direction that uses it.
struct Socket {
  explicit Socket(int of) : fd(of) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  ~Socket() { close(fd); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  const int fd;
};

class Direction {
 public:
  Direction(std::shared_ptr<Socket> from, std::shared_ptr<Socket> to, Clock::duration late)
      : from_(std::move(from)), to_(std::move(to)), late_(late) {}

  void Read() {
    std::vector<char> buffer(kReadBytes);
    for (bool more = true; more;) {
      const ssize_t count = recv(from_->fd, buffer.data(), buffer.size(), 0);
      more = count > 0;
      std::vector<char> bytes(buffer.begin(), buffer.begin() + (more ? count : 0));
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return held_bytes_ < kHeldBytesMax; });
      held_bytes_ += bytes.size();
      held_.push_back({Clock::now() + late_, std::move(bytes)});
      lock.unlock();
      changed_.notify_all();
    }
  }

  void Write() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !held_.empty(); });
      const Held held = std::move(held_.front());
      held_.pop_front();
      held_bytes_ -= held.bytes.size();
      lock.unlock();
      changed_.notify_all();
      WaitUntil(held.due);
      if (held.bytes.empty()) break;
      for (size_t sent = 0; sent < held.bytes.size();) {
        const ssize_t count =
            send(to_->fd, held.bytes.data() + sent, held.bytes.size() - sent, MSG_NOSIGNAL);
        if (count <= 0) {
          // Whoever sends to it should know.
          shutdown(from_->fd, SHUT_RDWR);
          break;
        }
        sent += static_cast<size_t>(count);
      }
    }
    shutdown(to_->fd, SHUT_WR);
  }

 private:
  struct Held {
    Clock::time_point due;
    std::vector<char> bytes;  // none: the end
  };

  static void WaitUntil(Clock::time_point due) {
    const auto left = std::chrono::nanoseconds(due - Clock::now()).count();
    if (left <= 0) return;
    const timespec time = {left / 1'000'000'000, left % 1'000'000'000};
    ppoll(nullptr, 0, &time, nullptr);
  }

  const std::shared_ptr<Socket> from_;
  const std::shared_ptr<Socket> to_;
  const Clock::duration late_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Held> held_;
  size_t held_bytes_ = 0;
};

void Carry(const std::shared_ptr<Socket>& from, const std::shared_ptr<Socket>& to,
           Clock::duration late) {
  const auto direction = std::make_shared<Direction>(from, to, late);
  std::thread([direction] { direction->Read(); }).detach();
  std::thread([direction] {
    prctl(PR_SET_TIMERSLACK, 1);
    direction->Write();
  }).detach();
}

}  // namespace

int main(int argc, char** argv) {
  sockaddr_in listen_on;
  sockaddr_in to;
  if (argc != 4 || !Parse(argv[1], &listen_on) || !Parse(argv[2], &to) || atol(argv[3]) < 0) {
    fprintf(stderr, "usage: delaying_proxy ADDRESS:PORT TO_ADDRESS:PORT MICROSECONDS\n");
    return 2;
  }
  const auto late = std::chrono::microseconds(atol(argv[3]));
  const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(listening, reinterpret_cast<sockaddr*>(&listen_on), sizeof(listen_on)) != 0 ||
      listen(listening, SOMAXCONN) != 0) {
    perror(argv[1]);
    return 1;
  }
  puts("ready");
  fflush(stdout);
  while (true) {
    const int accepted = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    if (accepted < 0) continue;
    const auto near = std::make_shared<Socket>(accepted);
    const auto far = std::make_shared<Socket>(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(far->fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) continue;
    Carry(near, far, late);
    Carry(far, near, late);
  }
}
