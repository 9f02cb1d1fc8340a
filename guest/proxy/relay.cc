// SPDX-License-Identifier: Apache-2.0
#include "guest/proxy/relay.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

namespace consort::guest {
namespace {

// Bytes on their way from one socket to the other.
//
//   open ── end of the sender's bytes, all handed on ──▶ done
//     └──── receiver gone, or an error ─────────────────▶ done
class Direction {
 public:
  Direction(int from, int to, char* buffer) : from_(from), to_(to), buffer_(buffer) {}

  bool done() const { return done_; }
  bool wants_to_read() const { return !done_ && !ended_ && begin_ == end_; }
  bool wants_to_write() const { return !done_ && begin_ != end_; }
  // Nobody takes the bytes any more.
  void Abandon() { done_ = true; }

  void Read() {
    const ssize_t got = recv(from_, buffer_, kRelayBufferBytes, MSG_DONTWAIT);
    if (got > 0) {
      begin_ = 0;
      end_ = static_cast<size_t>(got);
    } else if (got == 0 || !Again(errno)) {
      ended_ = true;
      Finish();
    }
  }

  void Write() {
    const ssize_t sent = send(to_, buffer_ + begin_, end_ - begin_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      begin_ += static_cast<size_t>(sent);
    } else if (!Again(errno)) {
      done_ = true;
    }
  }

 private:
  static bool Again(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

  // Called with an empty buffer.
  void Finish() {
    shutdown(to_, SHUT_WR);
    done_ = true;
  }

  const int from_;
  const int to_;
  char* const buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool ended_ = false;  // from_ has said everything
  bool done_ = false;
};

}  // namespace

bool RelayStreams(UniqueFd one, UniqueFd other) {
  char* const buffers = static_cast<char*>(malloc(2 * kRelayBufferBytes));
  if (buffers == nullptr) return false;
  const int sockets[2] = {one.get(), other.get()};
  // Direction i carries what sockets[i] says.
  Direction directions[2] = {{sockets[0], sockets[1], buffers},
                             {sockets[1], sockets[0], buffers + kRelayBufferBytes}};
  while (!directions[0].done() || !directions[1].done()) {
    pollfd entries[2];
    for (int i = 0; i < 2; ++i) {
      const Direction& to_it = directions[1 - i];
      entries[i] = {sockets[i], 0, 0};
      if (directions[i].wants_to_read()) entries[i].events |= POLLIN;
      if (to_it.wants_to_write()) entries[i].events |= POLLOUT;
      // A socket that has hung up says so at every call: it is left out once that is known, until
      // there is room for what it said before.
      if (entries[i].events == 0 && to_it.done()) entries[i].fd = -1;
    }
    if (poll(entries, 2, -1) < 0 && errno != EINTR) break;
    for (int i = 0; i < 2; ++i) {
      Direction& from_it = directions[i];
      Direction& to_it = directions[1 - i];
      if ((entries[i].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) to_it.Abandon();
      if (entries[i].revents != 0 && from_it.wants_to_read()) from_it.Read();
      if ((entries[i].revents & POLLOUT) != 0 && to_it.wants_to_write()) to_it.Write();
    }
  }
  free(buffers);
  return true;
}

}  // namespace consort::guest
