// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/connection.h"

#include <limits.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "base/log.h"
#include "vmsock/deadline.h"
#include "vmsock/vhost_user/limits.h"

namespace consort::vhost_user {
namespace {

// Descriptors that are looked at in one message of the host; a conduit comes alone.
constexpr size_t kDescriptorsPerMessage = 4;

// The first descriptor of a message; the others are closed.
UniqueFd TakeDescriptor(msghdr& message) {
  UniqueFd first;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      UniqueFd owned(descriptor);
      if (!first.valid()) first = std::move(owned);
    }
  }
  return first;
}

}  // namespace

Connection::Connection(uint64_t id, PortPair ports, UniqueFd fd, EventSet::Watch watch,
                       uint32_t window_bytes)
    : id_(id),
      ports_(ports),
      window_bytes_(window_bytes),
      fd_(std::move(fd)),
      watch_(std::move(watch)) {}

Connection::Connection(uint64_t id, const ConnectionState& state, UniqueFd fd,
                       EventSet::Watch watch, std::unique_ptr<ConduitDeviceEnd> conduit)
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
      conduit_(std::move(conduit)),
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
  std::vector<ConduitDeviceEnd::State> conduit;
  if (conduit_ != nullptr) conduit.push_back(conduit_->Save());
  return {.guest_port = ports_.guest_port,
          .host_port = ports_.host_port,
          .window_bytes = window_bytes_,
          .host = fd_.get(),
          .conduit = std::move(conduit),
          .backlog = {backlog.begin(), backlog.end()},
          .forwarded = forwarded_,
          .forwarded_reported = forwarded_reported_,
          .writable = writable_,
          .write_ended = write_ended_,
          .host_refuses = host_refuses_,
          .peer_window = peer_window_,
          .peer_forwarded = peer_forwarded_,
          .sent = sent_,
          .unread_ends = {unread_ends_.begin() + static_cast<ptrdiff_t>(read_), unread_ends_.end()},
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
          .read_chains = std::min(read_chains, kReadChainsSavedMax)};
}

bool Connection::TakePeerCredit(const PacketHeader& header) {
  // SendableBytes keeps what is in flight within kPeerWindowBytesMax, so a larger difference is a
  // count ahead of ours.
  if (sent_ - header.fwd_cnt > kPeerWindowBytesMax) return false;
  peer_window_ = std::min(header.buf_alloc, kPeerWindowBytesMax);
  peer_forwarded_ = header.fwd_cnt;
  while (read_ < unread_ends_.size() &&
         static_cast<int32_t>(peer_forwarded_ - unread_ends_[read_]) >= 0) {
    ++read_;
  }
  if (read_ > unread_packets()) {
    unread_ends_.erase(unread_ends_.begin(),
                       unread_ends_.begin() + static_cast<ptrdiff_t>(std::exchange(read_, 0)));
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
  const auto unread = static_cast<uint32_t>(unread_packets());
  return unread >= limit ? 0 : limit - unread;
}

bool Connection::NearPacketLimit() const { return unread_packets() * 2 > UnreadPacketLimit(); }

uint32_t Connection::ReportForwarded() {
  if (writes_memory()) forwarded_ += static_cast<uint32_t>(conduit_->TakeCredit(window_bytes_));
  credit_update_pending = false;
  forwarded_reported_ = forwarded_;
  return forwarded_;
}

bool Connection::NeedsCreditUpdate() {
  if (guest_shutdown_ & kShutdownSend) return false;
  if (writes_memory()) forwarded_ += static_cast<uint32_t>(conduit_->TakeCredit(window_bytes_));
  // Recent guests cap their send window at their own receive buffer (Linux c0e42fb0e0): a threshold
  // from our window alone might never be reached.
  const uint32_t guest_sends_at_most = std::min(window_bytes_, peer_window_);
  const uint32_t worth_telling = std::max<uint32_t>(guest_sends_at_most / 2, 1);
  const uint32_t untold = forwarded_ - forwarded_reported_;
  return untold >= worth_telling ||
         (writes_memory() && conduit_->AwaitCredit(worth_telling - untold, window_bytes_));
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

Connection::IoResult Connection::Forward(std::span<const iovec> pieces, uint64_t bytes,
                                         std::vector<CopyPart>* copies) {
  if (guest_shutdown_ & kShutdownSend) return IoResult::kFailed;
  uint64_t sent = 0;
  if (!writes_memory() && backlog_empty() && SendPieces(pieces, sent) != IoResult::kOk) {
    return IoResult::kFailed;
  }
  if (host_refuses_) {
    // Nobody will read it. The guest is told by SHUTDOWN; until it knows, its bytes count as taken.
    forwarded_ += static_cast<uint32_t>(bytes);
    return IoResult::kOk;
  }
  if (writes_memory()) {
    // No room is left only where the guest sends more than its window.
    return conduit_->Write(pieces, bytes, copies) ? IoResult::kOk : IoResult::kFailed;
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

void Connection::Forwarded(uint64_t bytes) {
  if (conduit_->Show(bytes)) RingBell();
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
  if (BeginConduit() != IoResult::kOk) return IoResult::kFailed;
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
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsPerMessage * sizeof(int))];
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t count = 0;
  do {
    count = recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (count < 0 && errno == EINTR);
  if (count > 0) {
    received = static_cast<uint64_t>(count);
    if (message.msg_controllen == 0) return IoResult::kOk;
    return TakeConduit(TakeDescriptor(message), received);
  }
  if (count == 0) {
    host_ended_ = true;
    return IoResult::kEnd;
  }
  if (errno != EAGAIN) return IoResult::kFailed;
  readable_ = false;
  return IoResult::kOk;
}

Connection::IoResult Connection::FindBytes(bool& any) {
  any = conduit_->HasPieces();
  if (conduit_->corrupt()) return IoResult::kFailed;
  if (any) return IoResult::kOk;
  if (host_left_) {
    host_ended_ = true;
    return IoResult::kEnd;
  }
  readable_ = conduit_->AwaitPieces();
  return IoResult::kOk;
}

std::span<const std::byte> Connection::Read() { return conduit_->Read(); }

void Connection::Unread(uint64_t bytes) { conduit_->Unread(bytes); }

void Connection::Received(uint64_t bytes, bool now) {
  received_ += bytes;
  if (!now && received_ < kBytesReturnedAtOnce) return;
  pace_.Took(received_, MonotonicNow());
  if (conduit_->Return(std::exchange(received_, 0))) RingBell();
}

Connection::IoResult Connection::TakeConduit(UniqueFd memory, uint64_t& received) {
  if (!memory.valid()) return IoResult::kOk;
  absl::StatusOr<std::unique_ptr<ConduitDeviceEnd>> conduit =
      ConduitDeviceEnd::Create(std::move(memory));
  // Another service's own business, and its byte is data.
  if (absl::IsInvalidArgument(conduit.status())) return IoResult::kOk;
  static_assert(kReceiveWindowBytesDefault <= kConduitWindowBytesMax);
  if (!conduit.ok() || window_bytes_ > kConduitWindowBytesMax) {
    LOG(ERROR) << "vsock: guest port " << ports_.guest_port << " gets no conduit: "
               << (conduit.ok() ? "its window is too large" : conduit.status().ToString());
    return IoResult::kFailed;
  }
  conduit_ = *std::move(conduit);
  // The byte that it came with is the last that was read, and none of the guest's. Source: unix(7).
  --received;
  return backlog_empty() ? BeginConduit() : IoResult::kOk;
}

Connection::IoResult Connection::BeginConduit() {
  if (!reads_memory() || writes_memory() || host_refuses_) return IoResult::kOk;
  conduit_->PrepareBegin(forwarded_);
  iovec byte{const_cast<std::byte*>(&kConduitBell), 1};  // sendmsg does not write to it
  msghdr message{};
  message.msg_iov = &byte;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int descriptor = conduit_->memory();
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(descriptor));
  if (sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) {
    conduit_->Begun();
    return IoResult::kOk;
  }
  // A later edge tries again.
  if (errno == EAGAIN || errno == EINTR) return IoResult::kOk;
  if (errno != EPIPE) return IoResult::kFailed;
  host_refuses_ = true;
  return IoResult::kOk;
}

void Connection::RingBell() {
  // A socket that is full of bells wakes as well; who has gone is heard of by its end.
  [[maybe_unused]] const ssize_t sent =
      send(fd_.get(), &kConduitBell, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void Connection::TakeEvents(uint32_t events) {
  if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) host_left_ = true;
  if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) readable_ = true;
  if (events & EPOLLOUT) writable_ = true;
  if (events & EPOLLHUP) host_refuses_ = true;
  if (reads_memory() && (events & EPOLLIN)) {
    std::byte bells[64];
    while (recv(fd_.get(), bells, sizeof(bells), MSG_DONTWAIT) ==
           static_cast<ssize_t>(sizeof(bells))) {
    }
  }
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
  conduit_.reset();
  watch_.Reset();
  fd_.Reset();
}

}  // namespace consort::vhost_user
