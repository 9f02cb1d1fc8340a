// SPDX-License-Identifier: Apache-2.0
#include "gpool/relay.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gpool/limits.h"

namespace consort::gpool {
namespace {

using Result = TlsStream::Result;

// Relays that spin now, all of this process. Relaxed: a guess is enough.
std::atomic<unsigned> spinning{0};

unsigned Processors() {
  static const unsigned count = std::thread::hardware_concurrency();
  return count;
}

// Bytes on their way, in the order of their coming. Whole when empty: it starts again then.
class Buffer {
 public:
  std::span<std::byte> Room() { return std::span(bytes_).subspan(end_); }
  std::span<const std::byte> Held() const {
    return std::span(bytes_).subspan(begin_, end_ - begin_);
  }
  void Add(size_t count) { end_ += count; }
  void Take(size_t count) {
    begin_ += count;
    if (begin_ == end_) begin_ = end_ = 0;
  }
  void Clear() { begin_ = end_ = 0; }
  // Moves what is held to the front where that makes room.
  void Pack() {
    if (begin_ == 0) return;
    memmove(bytes_.data(), bytes_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  bool empty() const { return begin_ == end_; }
  size_t held() const { return end_ - begin_; }

 private:
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kRelayBufferBytes);
  size_t begin_ = 0;
  size_t end_ = 0;
};

class Pump {
 public:
  Pump(int plain_fd, TlsStream* link, const RelayOptions& options)
      : plain_(plain_fd), link_(link), options_(options), head_done_(options.head_bytes == 0) {}

  void Run() {
    while (Turn()) {
    }
    if (!head_done_) options_.on_head(to_plain_.Held());
    shutdown(plain_, SHUT_RDWR);
  }

 private:
  // False: it is over.
  bool Turn() {
    ReadPlain();
    WriteLink();
    ReadLink();
    WritePlain();
    if (link_ended_ && to_plain_.empty()) return false;
    if (broken_) return false;
    if (plain_ended_ && to_link_.empty() && !link_holds_ && !told_end_) {
      // The peer ends its side when it has taken everything; until then the connection must stay,
      // since closing it with bytes unread would throw away what the peer has not taken.
      link_->EndWriting();
      told_end_ = true;
      linger_until_ = MonotonicNow() + kRelayLinger;
    }
    return Wait();
  }

  void ReadPlain() {
    while (!plain_ended_ && !to_link_.Room().empty()) {
      const std::span<std::byte> room = to_link_.Room();
      const ssize_t count = recv(plain_, room.data(), room.size(), MSG_DONTWAIT);
      if (count > 0) {
        passed_ = MonotonicNow();
        to_link_.Add(static_cast<size_t>(count));
        if (static_cast<size_t>(count) < room.size()) return;
        continue;
      }
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      plain_ended_ = true;
    }
  }

  void WriteLink() {
    write_wants_ = 0;
    while (!to_link_.empty()) {
      size_t count = 0;
      const Result result = link_->Write(to_link_.Held(), &count);
      if (result == Result::kDone) {
        to_link_.Take(count);
        link_holds_ = true;
        continue;
      }
      NoteWriteWants(result);
      break;
    }
    to_link_.Pack();
    if (!link_holds_ || write_wants_ != 0) return;
    const Result result = link_->Flush();
    link_holds_ = result != Result::kDone;
    if (link_holds_) NoteWriteWants(result);
  }

  void NoteWriteWants(Result result) {
    if (result == Result::kEnded) broken_ = true;
    write_wants_ = result == Result::kWantsRead ? POLLIN : POLLOUT;
  }

  void ReadLink() {
    read_wants_ = 0;
    while (!link_ended_ && !to_plain_.Room().empty()) {
      size_t count = 0;
      const Result result = link_->Read(to_plain_.Room(), &count);
      if (result == Result::kDone) {
        passed_ = MonotonicNow();
        to_plain_.Add(count);
        if (plain_ended_) to_plain_.Clear();  // nobody is there to take it
        continue;
      }
      if (result == Result::kEnded) {
        link_ended_ = true;
      } else {
        read_wants_ = result == Result::kWantsRead ? POLLIN : POLLOUT;
      }
      break;
    }
    if (!head_done_ && (to_plain_.held() >= options_.head_bytes || link_ended_)) {
      options_.on_head(to_plain_.Held().first(std::min(to_plain_.held(), options_.head_bytes)));
      head_done_ = true;
    }
  }

  void WritePlain() {
    plain_full_ = false;
    if (!head_done_) return;
    while (!to_plain_.empty()) {
      const std::span<const std::byte> held = to_plain_.Held();
      const ssize_t count = send(plain_, held.data(), held.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count > 0) {
        to_plain_.Take(static_cast<size_t>(count));
        continue;
      }
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        plain_full_ = true;
        break;
      }
      plain_ended_ = true;
      to_plain_.Clear();
    }
    to_plain_.Pack();
  }

  // False: to end.
  bool Wait() {
    pollfd polled[3] = {{link_->fd(), static_cast<short>(write_wants_ | read_wants_), 0},
                        {plain_ended_ ? -1 : plain_, 0, 0},
                        {options_.stop_fd, POLLIN, 0}};
    if (!to_link_.Room().empty()) polled[1].events |= POLLIN;
    if (plain_full_) polled[1].events |= POLLOUT;
    if (polled[1].events == 0) polled[1].fd = -1;  // its end is seen when it can be acted on
    if (polled[0].events == 0) polled[0].fd = -1;
    int timeout_ms = -1;
    if (told_end_) {
      const Nanos left = linger_until_ - MonotonicNow();
      if (left <= 0) return false;
      timeout_ms = static_cast<int>(left / kMillisecond) + 1;
    }
    // Reading stopped for want of room, and there is room now. What the library holds makes no
    // socket readable, so it is asked again at once.
    if (read_wants_ == 0 && !link_ended_ && !to_plain_.Room().empty()) timeout_ms = 0;
    if (timeout_ms != 0 && SpinUntilReady(polled)) timeout_ms = 0;
    if (poll(polled, 3, timeout_ms) < 0 && errno != EINTR) return false;
    return polled[2].revents == 0;
  }

  // For a while after bytes have come: a program that asks something waits for each of the four
  // relayings on its way, and waking up takes longer than all that they do. Not where that would
  // take the processors from those that work.
  bool SpinUntilReady(std::span<pollfd> polled) {
    const Nanos until = passed_ + kRelaySpin;
    if (MonotonicNow() >= until) return false;
    const bool allowed = spinning.fetch_add(1, std::memory_order_relaxed) < Processors() / 4;
    bool ready = false;
    while (allowed && !ready && MonotonicNow() < until) {
      ready = poll(polled.data(), polled.size(), 0) != 0;
    }
    spinning.fetch_sub(1, std::memory_order_relaxed);
    return ready;
  }

  const int plain_;
  TlsStream* const link_;
  const RelayOptions& options_;
  Buffer to_link_;
  Buffer to_plain_;
  bool head_done_;
  bool plain_ended_ = false;
  bool link_ended_ = false;
  bool broken_ = false;  // nothing can be written to the link any more
  bool told_end_ = false;
  bool link_holds_ = false;  // written, and not at its socket yet
  bool plain_full_ = false;
  int read_wants_ = 0;
  int write_wants_ = 0;
  Nanos passed_ = 0;  // when bytes came last
  Nanos linger_until_ = 0;
};

}  // namespace

void Relay(int plain_fd, TlsStream* link, const RelayOptions& options) {
  Pump(plain_fd, link, options).Run();
}

}  // namespace consort::gpool
