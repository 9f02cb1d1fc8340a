// SPDX-License-Identifier: Apache-2.0
// tests/e2e/delaying_proxy.cc: a network's distance where there is none: carries TCP connections,
// each byte so late, each way, and no fewer bytes a second.
//
//   delaying_proxy ADDRESS:PORT TO_ADDRESS:PORT MICROSECONDS
//
// Numeric IPv4 addresses. Prints "ready" when it listens, and takes another number of microseconds,
// for all that comes from then on, from each line of standard input: it answers "late" and the
// number. A direction of a connection is a thread:
// it reads, notes when the kernel got the bytes, and writes them when that is long enough ago. So
// what waking the thread takes is part of the delay, and not added to it; the last microseconds it
// spins. What is on its way is held in memory, at most kHeldBytesMax a direction.
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

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

std::atomic<int64_t> g_late_micros;

Clock::duration Late() { return std::chrono::microseconds(g_late_micros.load()); }

// At 10 GB/s so much is on its way in 25 ms.
constexpr size_t kHeldBytesMax = size_t{256} << 20;
// What a sleep may be too long by.
constexpr std::chrono::microseconds kSpin(60);
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
  Direction(std::shared_ptr<Socket> from, std::shared_ptr<Socket> to)
      : from_(std::move(from)), to_(std::move(to)), buffer_(kReadBytes) {
    const int on = 1;
    setsockopt(from_->fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof(on));
  }

  void Run() {
    while (!ended_ || !held_.empty()) {
      if (!held_.empty() && Clock::now() >= held_.front().due) {
        Write(held_.front().bytes);
        held_bytes_ -= held_.front().bytes.size();
        held_.pop_front();
      } else if (AwaitBytes()) {
        Read();
      }
    }
    shutdown(to_->fd, SHUT_WR);
  }

 private:
  struct Held {
    Clock::time_point due;
    std::vector<char> bytes;
  };

  // Until there are some to read (true), or until shortly before the first that are held are due.
  bool AwaitBytes() {
    pollfd polled = {ended_ || held_bytes_ >= kHeldBytesMax ? -1 : from_->fd, POLLIN, 0};
    timespec wait = {};
    if (!held_.empty()) {
      const auto left = held_.front().due - Clock::now() - kSpin;
      const auto nanos = std::max<int64_t>(std::chrono::nanoseconds(left).count(), 0);
      wait = {nanos / 1'000'000'000, nanos % 1'000'000'000};
    }
    return ppoll(&polled, 1, held_.empty() ? nullptr : &wait, nullptr) > 0;
  }

  void Read() {
    iovec into = {buffer_.data(), buffer_.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(timespec))];
    msghdr message = {};
    message.msg_iov = &into;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t count = recvmsg(from_->fd, &message, 0);
    if (count <= 0) {
      ended_ = true;
      return;
    }
    held_bytes_ += static_cast<size_t>(count);
    held_.push_back({Clock::now() + Late() - Age(&message),
                     std::vector<char>(buffer_.begin(), buffer_.begin() + count)});
  }

  // How long ago the kernel got the last of what was read; at most the delay, as a clock that was
  // set may say anything. 0: it does not say.
  Clock::duration Age(msghdr* message) const {
    for (cmsghdr* head = CMSG_FIRSTHDR(message); head != nullptr;
         head = CMSG_NXTHDR(message, head)) {
      if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_TIMESTAMPNS) continue;
      timespec then;
      timespec now;
      memcpy(&then, CMSG_DATA(head), sizeof(then));
      clock_gettime(CLOCK_REALTIME, &now);
      const auto age = std::chrono::seconds(now.tv_sec - then.tv_sec) +
                       std::chrono::nanoseconds(now.tv_nsec - then.tv_nsec);
      return std::clamp<Clock::duration>(age, Clock::duration::zero(), Late());
    }
    return Clock::duration::zero();
  }

  void Write(const std::vector<char>& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t count = send(to_->fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) {
        // Whoever sends to it should know.
        shutdown(from_->fd, SHUT_RDWR);
        return;
      }
      sent += static_cast<size_t>(count);
    }
  }

  const std::shared_ptr<Socket> from_;
  const std::shared_ptr<Socket> to_;
  std::vector<char> buffer_;
  std::deque<Held> held_;
  size_t held_bytes_ = 0;
  bool ended_ = false;
};

void Carry(const std::shared_ptr<Socket>& from, const std::shared_ptr<Socket>& to) {
  std::thread([direction = std::make_unique<Direction>(from, to)] {
    prctl(PR_SET_TIMERSLACK, 1);
    direction->Run();
  }).detach();
}

void TakeOrders() {
  char line[32];
  while (fgets(line, sizeof(line), stdin) != nullptr) {
    g_late_micros = atoll(line);
    printf("late %lld\n", static_cast<long long>(g_late_micros));
    fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  sockaddr_in listen_on;
  sockaddr_in to;
  if (argc != 4 || !Parse(argv[1], &listen_on) || !Parse(argv[2], &to) || atol(argv[3]) < 0) {
    fprintf(stderr, "usage: delaying_proxy ADDRESS:PORT TO_ADDRESS:PORT MICROSECONDS\n");
    return 2;
  }
  g_late_micros = atol(argv[3]);
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
  std::thread(TakeOrders).detach();
  while (true) {
    const int accepted = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    if (accepted < 0) continue;
    const auto near = std::make_shared<Socket>(accepted);
    const auto far = std::make_shared<Socket>(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(far->fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) continue;
    Carry(near, far);
    Carry(far, near);
  }
}
