// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/connection.h"

#include <limits.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "vmsock/vhost_user/limits.h"

namespace consort::vhost_user {

Connection::Connection(uint64_t id, PortPair ports, UniqueFd fd, EventSet::Watch watch,
                       uint32_t window_bytes)
    : id_(id),
      ports_(ports),
      window_bytes_(window_bytes),
      fd_(std::move(fd)),
      watch_(std::move(watch)) {}

Connection::Connection(uint64_t id, const ConnectionState& state, UniqueFd fd,
                       EventSet::Watch watch)
    : response_pending(state.response_pending),
      credit_update_pending(state.credit_update_pending),
      credit_request_pending(state.credit_request_pending),
      credit_requested(state.credit_requested),
      detached(state.detached),
      read_chains(state.read_chains),
      id_(id),
      ports_{.guest_port = state.guest_port, .host_port = state.host_port},
      window_bytes_(state.window_bytes),
      fd_(std::move(fd)),
      watch_(std::move(watch)),
      backlog_(state.backlog),
      forwarded_(state.forwarded),
      forwarded_reported_(state.forwarded_reported),
      writable_(state.writable),
      write_ended_(state.write_ended),
      host_refuses_(state.host_refuses),
      peer_window_(state.peer_window),
      peer_forwarded_(state.peer_forwarded),
      sent_(state.sent),
      unread_ends_(state.unread_ends.begin(), state.unread_ends.end()),
      readable_(state.readable),
      host_ended_(state.host_ended),
      guest_shutdown_(state.guest_shutdown),
      told_shutdown_(state.told_shutdown) {}

ConnectionState Connection::Save() const {
  const auto backlog = std::span(backlog_).subspan(backlog_begin_);
  return {.guest_port = ports_.guest_port,
          .host_port = ports_.host_port,
          .window_bytes = window_bytes_,
          .host = fd_.get(),
          .backlog = {backlog.begin(), backlog.end()},
          .forwarded = forwarded_,
          .forwarded_reported = forwarded_reported_,
          .writable = writable_,
          .write_ended = write_ended_,
          .host_refuses = host_refuses_,
          .peer_window = peer_window_,
          .peer_forwarded = peer_forwarded_,
          .sent = sent_,
          .unread_ends = {unread_ends_.begin(), unread_ends_.end()},
          .readable = readable_,
          .host_ended = host_ended_,
          .guest_shutdown = guest_shutdown_,
          .told_shutdown = told_shutdown_,
          .response_pending = response_pending,
          .credit_update_pending = credit_update_pending,
          .credit_request_pending = credit_request_pending,
          .credit_requested = credit_requested,
          .stalled = stalled,
          .detached = detached,
          .read_chains = read_chains};
}

bool Connection::TakePeerCredit(const PacketHeader& header) {
  // SendableBytes keeps what is in flight within kPeerWindowBytesMax, so a larger difference is a
  // count ahead of ours.
  if (sent_ - header.fwd_cnt > kPeerWindowBytesMax) return false;
  peer_window_ = std::min(header.buf_alloc, kPeerWindowBytesMax);
  peer_forwarded_ = header.fwd_cnt;
  while (!unread_ends_.empty() &&
         static_cast<int32_t>(peer_forwarded_ - unread_ends_.front()) >= 0) {
    unread_ends_.pop_front();
  }
  credit_requested = false;
  return true;
}

uint32_t Connection::SendableBytes() const {
  const uint32_t in_flight = sent_ - peer_forwarded_;
  return in_flight >= peer_window_ ? 0 : peer_window_ - in_flight;
}

uint32_t Connection::UnreadPacketLimit() const {
  return std::clamp<uint32_t>(peer_window_ / kPeerBytesPerUnreadPacket, 1, kUnreadPacketsMax);
}

uint32_t Connection::SendablePackets() const {
  const uint32_t limit = UnreadPacketLimit();
  const uint32_t unread = static_cast<uint32_t>(unread_ends_.size());
  return unread >= limit ? 0 : limit - unread;
}

bool Connection::NearPacketLimit() const { return unread_ends_.size() * 2 > UnreadPacketLimit(); }

void Connection::NoteSent(uint32_t bytes) {
  sent_ += bytes;
  unread_ends_.push_back(sent_);
}

uint32_t Connection::ReportForwarded() {
  credit_update_pending = false;
  forwarded_reported_ = forwarded_;
  return forwarded_;
}

bool Connection::NeedsCreditUpdate() const {
  // Recent guests cap their send window at their own receive buffer (Linux c0e42fb0e0): a threshold
  // from our window alone might never be reached.
  const uint32_t guest_sends_at_most = std::min(window_bytes_, peer_window_);
  return !(guest_shutdown_ & kShutdownSend) &&
         forwarded_ - forwarded_reported_ >= std::max<uint32_t>(guest_sends_at_most / 2, 1);
}

Connection::IoResult Connection::SendPieces(std::span<const iovec> pieces, uint64_t& sent) {
  sent = 0;
  while (!pieces.empty() && writable_ && !host_refuses_) {
    const auto slice = pieces.first(std::min<size_t>(pieces.size(), IOV_MAX));
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(slice.data());  // sendmsg does not write to it
    message.msg_iovlen = slice.size();
    const ssize_t count = sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) {
        writable_ = false;
        return IoResult::kOk;
      }
      if (errno == EPIPE) {
        host_refuses_ = true;
        return IoResult::kOk;
      }
      return IoResult::kFailed;
    }
    sent += static_cast<uint64_t>(count);
    uint64_t slice_bytes = 0;
    for (const iovec& piece : slice) slice_bytes += piece.iov_len;
    if (static_cast<uint64_t>(count) < slice_bytes) {
      // A stream socket takes less only when it is full; its next edge says when it is not.
      writable_ = false;
      return IoResult::kOk;
    }
    pieces = pieces.subspan(slice.size());
  }
  return IoResult::kOk;
}

Connection::IoResult Connection::Forward(std::span<const iovec> pieces, uint64_t bytes) {
  if (guest_shutdown_ & kShutdownSend) return IoResult::kFailed;
  uint64_t sent = 0;
  if (backlog_empty() && SendPieces(pieces, sent) != IoResult::kOk) return IoResult::kFailed;
  if (host_refuses_) {
    // Nobody will read it. The guest is told by SHUTDOWN; until it knows, its bytes count as taken.
    forwarded_ += static_cast<uint32_t>(bytes);
    return IoResult::kOk;
  }
  forwarded_ += static_cast<uint32_t>(sent);
  const uint64_t rest = bytes - sent;
  if (rest == 0) return IoResult::kOk;
  const size_t held = backlog_.size() - backlog_begin_;
  if (held + rest > window_bytes_) return IoResult::kFailed;

  if (backlog_begin_ > 0) {
    backlog_.erase(backlog_.begin(), backlog_.begin() + static_cast<ptrdiff_t>(backlog_begin_));
    backlog_begin_ = 0;
  }
  uint64_t skip = sent;
  for (const iovec& piece : pieces) {
    const uint64_t begin = std::min<uint64_t>(skip, piece.iov_len);
    skip -= begin;
    const std::byte* data = static_cast<const std::byte*>(piece.iov_base);
    backlog_.insert(backlog_.end(), data + begin, data + piece.iov_len);
  }
  return IoResult::kOk;
}

Connection::IoResult Connection::Flush() {
  if (!fd_.valid()) return IoResult::kOk;
  if (!backlog_empty()) {
    const iovec rest{backlog_.data() + backlog_begin_, backlog_.size() - backlog_begin_};
    uint64_t sent = 0;
    if (SendPieces({&rest, 1}, sent) != IoResult::kOk) return IoResult::kFailed;
    if (host_refuses_) sent = rest.iov_len;
    forwarded_ += static_cast<uint32_t>(sent);
    backlog_begin_ += sent;
  }
  if (!backlog_empty()) return IoResult::kOk;
  // An idle connection holds no memory.
  backlog_ = {};
  backlog_begin_ = 0;
  if ((guest_shutdown_ & kShutdownSend) && !write_ended_) {
    write_ended_ = true;
    shutdown(fd_.get(), SHUT_WR);  // fails only where there is nothing left to end
  }
  return IoResult::kOk;
}

Connection::IoResult Connection::ReadInto(std::span<iovec> pieces, uint64_t& received) {
  received = 0;
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = std::min<size_t>(pieces.size(), IOV_MAX);
  ssize_t count = 0;
  do {
    count = recvmsg(fd_.get(), &message, MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  if (count > 0) {
    received = static_cast<uint64_t>(count);
    return IoResult::kOk;
  }
  if (count == 0) {
    host_ended_ = true;
    return IoResult::kEnd;
  }
  if (errno != EAGAIN) return IoResult::kFailed;
  readable_ = false;
  return IoResult::kOk;
}

void Connection::TakeEvents(uint32_t events) {
  if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) readable_ = true;
  if (events & EPOLLOUT) writable_ = true;
  if (events & EPOLLHUP) host_refuses_ = true;
}

void Connection::TakeGuestShutdown(uint32_t flags) {
  const uint32_t added = flags & kShutdownBoth & ~guest_shutdown_;
  guest_shutdown_ |= added;
  if ((added & kShutdownReceive) && fd_.valid()) shutdown(fd_.get(), SHUT_RD);
}

uint32_t Connection::ShutdownToTell() const {
  uint32_t flags = 0;
  if (host_ended_) flags |= kShutdownSend;
  if (host_refuses_ || (host_ended_ && write_ended_)) flags |= kShutdownReceive;
  return (flags & ~told_shutdown_) ? flags : 0;
}

uint32_t Connection::TakeShutdownToTell() {
  const uint32_t flags = ShutdownToTell();
  told_shutdown_ |= flags;
  return flags;
}

void Connection::CloseHost() {
  watch_.Reset();
  fd_.Reset();
}

}  // namespace consort::vhost_user
