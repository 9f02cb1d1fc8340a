// SPDX-License-Identifier: Apache-2.0
#include "vmsock/stream_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "vmsock/deadline.h"
#include "vmsock/socket_io.h"

namespace consort {

std::unique_ptr<StreamChannel> StreamChannel::Create(UniqueFd socket) {
  const int family = SocketFamily(socket.get());
  int error = family < 0 ? errno : PrepareSocket(socket.get());
  std::unique_ptr<StreamChannel> channel;
  if (error == 0) {
    channel.reset(new StreamChannel(static_cast<UniqueFd&&>(socket), family));
    error = channel == nullptr ? ENOMEM : channel->send_.Map(kStreamSendBytes);
  }
  if (error == 0) error = channel->receive_.Map(kStreamReceiveBytes);
  if (error != 0) {
    channel.reset();
    errno = error;
  }
  return channel;
}

bool StreamChannel::Resume(std::span<const std::byte> unread) {
  if (unread.size() > receive_.bytes()) return false;
  if (!unread.empty()) std::memcpy(receive_.At(0), unread.data(), unread.size());
  fill_end_ = unread.size();
  PublishReceiveState();
  return true;
}

bool StreamChannel::Describe(ChannelHandover* handover) const {
  if (!held_.empty() || reserved_ != 0 || sent_ != send_end_ || descriptors_in_count_ != 0) {
    return false;
  }
  *handover = {};
  handover->socket = socket_.get();
  handover->unread = {receive_.At(received_), fill_end_ - received_};
  return true;
}

void StreamChannel::Abandon() { state_.store(State::kClosed, std::memory_order_relaxed); }

bool StreamChannel::Part() {
  if (!held_.empty() || reserved_ != 0 || sent_ != send_end_ || received_ != fill_end_ ||
      descriptors_in_count_ != 0 || state_.load(std::memory_order_relaxed) != State::kOpen) {
    return false;
  }
  peer_gone_.store(true, std::memory_order_relaxed);
  shutdown(socket_.get(), SHUT_RDWR);
  return true;
}

bool StreamChannel::Rejoin(UniqueFd socket) {
  // The number stays, which other threads may be about to wait for.
  if (dup3(socket.get(), socket_.get(), O_CLOEXEC) < 0) return false;
  send_blocked_.store(false, std::memory_order_relaxed);
  peer_gone_.store(false, std::memory_order_relaxed);
  PublishReceiveState();
  return true;
}

StreamChannel::StreamChannel(UniqueFd socket, int family)
    : socket_(static_cast<UniqueFd&&>(socket)), family_(family), creator_(getpid()) {}

StreamChannel::~StreamChannel() {
  if (getpid() == creator_) Close();
}

void* StreamChannel::operator new(size_t bytes) noexcept { return malloc(bytes); }
void StreamChannel::operator delete(void* memory) { free(memory); }

const char* StreamChannel::name() const {
  switch (family_) {
    case AF_UNIX:
      return "unix";
    case AF_VSOCK:
      return "vsock";
    default:
      return "tcp";
  }
}

bool StreamChannel::passes_descriptors() const { return family_ == AF_UNIX; }

ChannelStatus StreamChannel::EndStatus() const {
  return state_.load(std::memory_order_relaxed) == State::kProtocol ? ChannelStatus::kProtocol
                                                                    : ChannelStatus::kClosed;
}

void StreamChannel::End(State state) {
  State expected = State::kOpen;
  if (!state_.compare_exchange_strong(expected, state, std::memory_order_relaxed)) return;
  // Wakes every thread that polls the socket, here and at the peer.
  shutdown(socket_.get(), SHUT_RDWR);
}

void StreamChannel::Close() { End(State::kClosed); }

std::byte* StreamChannel::TryReserve(uint32_t bytes) {
  if (state_.load(std::memory_order_relaxed) != State::kOpen) return nullptr;
  if (!SendQueueHasRoom(bytes)) Flush();
  if (peer_gone_.load(std::memory_order_relaxed) || !SendQueueHasRoom(bytes)) return nullptr;
  reserved_ = bytes;
  return send_.At(send_end_);
}

void StreamChannel::Commit() {
  send_end_ += reserved_;
  reserved_ = 0;
}

ChannelStatus StreamChannel::Flush() {
  if (state_.load(std::memory_order_relaxed) != State::kOpen) return EndStatus();
  while (sent_ != send_end_) {
    if (peer_gone_.load(std::memory_order_relaxed)) return ChannelStatus::kClosed;
    int descriptors[kDescriptorsInFlightMax];
    for (uint32_t index = 0; index < descriptors_out_count_; ++index) {
      descriptors[index] = descriptors_out_[index].get();
    }
    const ssize_t sent = SendSome(socket_.get(), {send_.At(sent_), send_end_ - sent_},
                                  {descriptors, descriptors_out_count_});
    if (sent < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) {
        peer_gone_.store(true, std::memory_order_relaxed);
        return ChannelStatus::kClosed;
      }
      send_blocked_.store(true, std::memory_order_relaxed);
      return ChannelStatus::kAgain;
    }
    sent_ += static_cast<uint64_t>(sent);
    // They travel with the first byte.
    for (uint32_t index = 0; index < descriptors_out_count_; ++index) {
      descriptors_out_[index].Reset();
    }
    descriptors_out_count_ = 0;
  }
  send_blocked_.store(false, std::memory_order_relaxed);
  // Not between TryReserve and Commit: the reservation lies after send_end_.
  if (reserved_ == 0) sent_ = send_end_ = 0;
  return peer_gone_.load(std::memory_order_relaxed) ? ChannelStatus::kClosed : ChannelStatus::kOk;
}

ChannelStatus StreamChannel::Peek(wire::FrameHeader* header) const {
  const uint64_t available = fill_end_ - received_;
  if (available < sizeof(*header)) return ChannelStatus::kAgain;
  std::memcpy(header, receive_.At(received_), sizeof(*header));
  if (!wire::FrameHeaderValid(*header)) return ChannelStatus::kProtocol;
  if ((header->flags & wire::kFrameTransport) != 0 && header->bytes != sizeof(*header)) {
    return ChannelStatus::kProtocol;
  }
  return header->bytes <= available ? ChannelStatus::kOk : ChannelStatus::kAgain;
}

void StreamChannel::PublishReceiveState() {
  wire::FrameHeader header;
  const bool buffered = Peek(&header) != ChannelStatus::kAgain;
  const bool no_room = fill_end_ - held_.released_end() == receive_.bytes();
  frame_buffered_.store(buffered && !held_.full(), std::memory_order_relaxed);
  receive_blocked_.store(held_.full() || (no_room && !buffered), std::memory_order_relaxed);
}

ChannelStatus StreamChannel::Fill() {
  if (held_.empty() && received_ == fill_end_) {
    held_.StartAt(0);
    received_ = fill_end_ = 0;
  }
  const uint64_t room = receive_.bytes() - (fill_end_ - held_.released_end());
  if (room == 0) return ChannelStatus::kAgain;
  UniqueFd taken[kDescriptorsInFlightMax];
  size_t taken_count;
  const ssize_t received = ReceiveSome(
      socket_.get(), {receive_.At(fill_end_), room},
      passes_descriptors() ? std::span<UniqueFd>(taken) : std::span<UniqueFd>(), &taken_count);
  if (received == 0) {
    peer_gone_.store(true, std::memory_order_relaxed);
    return ChannelStatus::kClosed;
  }
  if (received < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return ChannelStatus::kAgain;
    if (errno == EPROTO) return ChannelStatus::kProtocol;
    peer_gone_.store(true, std::memory_order_relaxed);
    return ChannelStatus::kClosed;
  }
  fill_end_ += static_cast<uint64_t>(received);
  if (taken_count > kDescriptorsInFlightMax - descriptors_in_count_)
    return ChannelStatus::kProtocol;
  for (size_t index = 0; index < taken_count; ++index) {
    const uint32_t place =
        (descriptors_in_first_ + descriptors_in_count_++) % kDescriptorsInFlightMax;
    descriptors_in_[place] = static_cast<UniqueFd&&>(taken[index]);
  }
  return ChannelStatus::kOk;
}

ChannelStatus StreamChannel::TryReceive(Frame* frame) {
  if (state_.load(std::memory_order_relaxed) != State::kOpen) return EndStatus();
  ChannelStatus status = ChannelStatus::kAgain;
  for (uint32_t skipped = 0; !held_.full() && skipped < kTransportFramesPerReceiveMax;) {
    wire::FrameHeader header;
    status = Peek(&header);
    if (status == ChannelStatus::kAgain) {
      status = Fill();
      if (status != ChannelStatus::kOk) break;
      continue;
    }
    if (status == ChannelStatus::kProtocol) break;
    const uint64_t begin = received_;
    received_ += header.bytes;
    const uint64_t token = held_.Add(received_);
    if ((header.flags & wire::kFrameTransport) != 0) {
      held_.Release(token);
      ++skipped;
      status = ChannelStatus::kAgain;
      continue;
    }
    frame->header = header;
    frame->body = {receive_.At(begin) + sizeof(header), header.bytes - sizeof(header)};
    frame->token = token;
    break;
  }
  PublishReceiveState();
  if (status == ChannelStatus::kProtocol) End(State::kProtocol);
  return status;
}

void StreamChannel::Release(const Frame& frame) {
  if (held_.Release(frame.token)) PublishReceiveState();
}

bool StreamChannel::PutBack() {
  if (!held_.Forget()) return false;
  received_ = held_.released_end();
  PublishReceiveState();
  return true;
}

ChannelStatus StreamChannel::Wait(uint32_t events, Nanos spin, Nanos timeout) {
  if (spin <= 0 || timeout == 0) return Poll(events, 0, timeout);
  const Nanos begin = MonotonicNow();
  const Nanos allowed = spin_.Allow(spin);
  const ChannelStatus result = Poll(events, allowed, timeout);
  spin_.Learn(spin, allowed, MonotonicNow() - begin);
  return result;
}

ChannelStatus StreamChannel::Poll(uint32_t events, Nanos spin, Nanos timeout) {
  const Deadline deadline(timeout);
  const Deadline spin_deadline(spin);
  bool spinning = spin > 0;
  for (;;) {
    if (state_.load(std::memory_order_relaxed) != State::kOpen) return EndStatus();
    if ((events & kReadable) != 0 && frame_buffered_.load(std::memory_order_relaxed)) {
      return ChannelStatus::kOk;
    }
    if ((events & kWritable) != 0) {
      if (peer_gone_.load(std::memory_order_relaxed)) return ChannelStatus::kClosed;
      if (!send_blocked_.load(std::memory_order_relaxed)) return ChannelStatus::kOk;
    }
    const bool receive_blocked =
        (events & kReadable) != 0 && receive_blocked_.load(std::memory_order_relaxed);
    pollfd entry = {socket_.get(), 0, 0};
    if ((events & kReadable) != 0 && !receive_blocked) entry.events |= POLLIN;
    if ((events & kWritable) != 0) entry.events |= POLLOUT;
    const Nanos left = deadline.Left();
    Nanos sleep = left;
    if (receive_blocked && sleep > kHeldCheckInterval) sleep = kHeldCheckInterval;
    if (spinning) {
      spinning = spin_deadline.Left() > 0;
      sleep = 0;
    }
    // With nothing to ask for, the socket would only report a hang-up again and again.
    const int count = poll(&entry, entry.events != 0 ? 1 : 0, Deadline::ToPollMs(sleep));
    // A hang-up too: the caller's next call says what it is.
    if (count > 0) return ChannelStatus::kOk;
    if (left == 0) return ChannelStatus::kAgain;
  }
}

bool StreamChannel::SendDescriptor(int fd) {
  if (!passes_descriptors() || descriptors_out_count_ == kDescriptorsInFlightMax) return false;
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return false;
  std::byte* carrier = TryReserve(sizeof(wire::FrameHeader));
  if (carrier == nullptr) return false;
  wire::FrameHeader header;
  header.bytes = sizeof(header);
  header.flags = wire::kFrameTransport;
  std::memcpy(carrier, &header, sizeof(header));
  Commit();
  descriptors_out_[descriptors_out_count_++] = static_cast<UniqueFd&&>(copy);
  return Flush() != ChannelStatus::kClosed;
}

int StreamChannel::ReceiveDescriptor(Nanos timeout) {
  const Deadline deadline(timeout);
  while (passes_descriptors() && state_.load(std::memory_order_relaxed) == State::kOpen) {
    if (descriptors_in_count_ != 0) {
      const int fd = descriptors_in_[descriptors_in_first_].Release();
      descriptors_in_first_ = (descriptors_in_first_ + 1) % kDescriptorsInFlightMax;
      --descriptors_in_count_;
      return fd;
    }
    const bool full = fill_end_ - held_.released_end() == receive_.bytes();
    const ChannelStatus status = Fill();
    PublishReceiveState();
    if (status == ChannelStatus::kOk) continue;
    if (status == ChannelStatus::kProtocol) End(State::kProtocol);
    // With a full buffer no wait helps: the caller has to receive frames first.
    if (status != ChannelStatus::kAgain || full) return -1;
    const int wait_ms = deadline.LeftMs();
    if (wait_ms == 0) return -1;
    pollfd entry = {socket_.get(), POLLIN, 0};
    poll(&entry, 1, wait_ms);
  }
  return -1;
}

}  // namespace consort
