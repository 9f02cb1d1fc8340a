// SPDX-License-Identifier: Apache-2.0
#include "vmsock/conduit_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "vmsock/limits.h"
#include "vmsock/socket_io.h"
#include "vmsock/spin.h"

namespace consort {
namespace {

// In this process: control and pieces, requests twice, bulk, replies twice.
constexpr Bytes kRequestsAt = kConduitRequestsOffset;
constexpr Bytes kBulkAt = kRequestsAt + 2 * kConduitRequestBytes;
constexpr Bytes kRepliesAt = kBulkAt + kConduitBulkBytes;
constexpr Bytes kMappedBytes = kRepliesAt + 2 * kConduitReplyBytes;

// Pieces that one reservation may come to: the frames before it, which may go past the ring's end,
// and its payload; and frames after it.
constexpr uint32_t kPiecesPerReservation = 5;

constexpr uint64_t kNever = UINT64_MAX;

absl::StatusOr<UniqueFd> CreateMemory() {
  UniqueFd memory(memfd_create("consort-conduit", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid() || ftruncate(memory.get(), static_cast<off_t>(kConduitBytes)) != 0 ||
      fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("making the memory of a conduit: ", strerror(errno)));
  }
  return memory;
}

bool MapPart(std::byte* at, Bytes bytes, int memory, Bytes offset) {
  return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory,
              static_cast<off_t>(offset)) != MAP_FAILED;
}

}  // namespace

ConduitChannel::ConduitChannel(UniqueFd socket, UniqueFd memory, std::byte* base)
    : socket_(std::move(socket)),
      memory_(std::move(memory)),
      base_(base),
      control_(reinterpret_cast<ConduitControl*>(base)),
      requests_(base + kRequestsAt),
      bulk_(base + kBulkAt),
      replies_(base + kRepliesAt) {}

ConduitChannel::~ConduitChannel() {
  Close();
  munmap(base_, kMappedBytes);
}

absl::StatusOr<std::unique_ptr<ConduitChannel>> ConduitChannel::Map(UniqueFd socket,
                                                                    UniqueFd memory) {
  if (const int error = PrepareSocket(socket.get()); error != 0) {
    return absl::UnavailableError(absl::StrCat("a stream's socket: ", strerror(error)));
  }
  // Takes the addresses first, so that nothing of another thread comes between the mappings.
  void* reserved = mmap(nullptr, kMappedBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("mapping a conduit: ", strerror(errno)));
  }
  std::byte* const base = static_cast<std::byte*>(reserved);
  const int fd = memory.get();
  const bool mapped =
      MapPart(base, kConduitRequestsOffset, fd, 0) &&
      MapPart(base + kRequestsAt, kConduitRequestBytes, fd, kConduitRequestsOffset) &&
      MapPart(base + kRequestsAt + kConduitRequestBytes, kConduitRequestBytes, fd,
              kConduitRequestsOffset) &&
      MapPart(base + kBulkAt, kConduitBulkBytes, fd, kConduitBulkOffset) &&
      MapPart(base + kRepliesAt, kConduitReplyBytes, fd, kConduitRepliesOffset) &&
      MapPart(base + kRepliesAt + kConduitReplyBytes, kConduitReplyBytes, fd,
              kConduitRepliesOffset);
  if (!mapped) {
    const int error = errno;
    munmap(reserved, kMappedBytes);
    return absl::ResourceExhaustedError(absl::StrCat("mapping a conduit: ", strerror(error)));
  }
  return std::unique_ptr<ConduitChannel>(
      new ConduitChannel(std::move(socket), std::move(memory), base));
}

absl::StatusOr<std::unique_ptr<ConduitChannel>> ConduitChannel::Open(
    UniqueFd socket, std::span<const std::byte> unread, Nanos timeout) {
  const Deadline deadline(timeout);
  ASSIGN_OR_RETURN(UniqueFd memory, CreateMemory());
  ASSIGN_OR_RETURN(std::unique_ptr<ConduitChannel> channel,
                   Map(std::move(socket), std::move(memory)));
  for (ConduitAlarm* alarm :
       {&channel->control_->worker_awaits_head, &channel->control_->worker_awaits_taken,
        &channel->control_->device_awaits_pieces, &channel->control_->device_awaits_tail}) {
    alarm->Clear();
  }
  channel->control_->mark.store(ConduitControl::kMark, std::memory_order_release);
  const int descriptor = channel->memory_.get();
  const int error = SendAll(channel->socket_.get(), {&kConduitBell, 1}, {&descriptor, 1}, deadline);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("asking for a conduit: ", strerror(error)));
  }
  RETURN_IF_ERROR(channel->Join(unread, deadline));
  return channel;
}

absl::Status ConduitChannel::Join(std::span<const std::byte> unread, const Deadline& deadline) {
  std::vector<std::byte> early(kConduitBeginBytes + 1);
  if (unread.size() > kConduitBeginBytes) return absl::InvalidArgumentError("too much was unread");
  std::copy(unread.begin(), unread.end(), early.begin());
  size_t bytes = unread.size();
  while (true) {
    // The descriptor's byte may come behind as many as there may be.
    UniqueFd descriptor;
    size_t descriptors = 0;
    const ssize_t received =
        ReceiveSome(socket_.get(), std::span(early).subspan(bytes), {&descriptor, 1}, &descriptors);
    if (received == 0) return absl::UnavailableError("the vsock device has ended the stream");
    if (received < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        return absl::UnavailableError(absl::StrCat("awaiting a conduit: ", strerror(errno)));
      }
      const int wait_ms = deadline.LeftMs();
      if (wait_ms == 0) return absl::DeadlineExceededError("no answer to a conduit");
      pollfd entry = {socket_.get(), POLLIN, 0};
      poll(&entry, 1, wait_ms);
      continue;
    }
    bytes += static_cast<size_t>(received);
    // Nothing of a stream is read beyond a byte that a descriptor came with. Source: unix(7).
    if (descriptors != 0) break;
    if (bytes == early.size()) {
      return absl::InvalidArgumentError("the guest says more before a conduit than it may");
    }
  }
  --bytes;
  // Partner: the device's store before it sent the descriptor.
  const uint64_t begin = control_->requests_begin.load(std::memory_order_acquire);
  if (begin < kConduitBeginBytes || begin >= kConduitBeginBytes + 8 || bytes > begin ||
      (begin - bytes) % 8 != 0) {
    return absl::InvalidArgumentError("a conduit cannot begin where it does");
  }
  received_ = begin - bytes;
  if (bytes > 0) memcpy(RequestAt(received_), early.data(), bytes);
  held_.StartAt(received_);
  head_ = begin;
  control_->requests_tail.store(received_, std::memory_order_seq_cst);
  PublishReceiveState();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ConduitChannel>> ConduitChannel::Resume(UniqueFd socket,
                                                                       UniqueFd memory) {
  // The same checks of the memory as the device's.
  UniqueFd copy(fcntl(memory.get(), F_DUPFD_CLOEXEC, 0));
  RETURN_IF_ERROR(ConduitDeviceEnd::Create(std::move(copy)).status());
  ASSIGN_OR_RETURN(std::unique_ptr<ConduitChannel> channel,
                   Map(std::move(socket), std::move(memory)));
  const ConduitControl& control = *channel->control_;
  // Who abandoned it has released all that it received, and all that it sent was taken.
  channel->received_ = control.requests_tail.load(std::memory_order_acquire);
  channel->head_ = channel->received_;
  channel->held_.StartAt(channel->received_);
  channel->pieces_ = channel->pieces_taken_ = control.pieces_head.load(std::memory_order_acquire);
  channel->stream_end_ = channel->taken_ = control.taken.load(std::memory_order_acquire);
  if (channel->received_ % 8 != 0 || !channel->LoadHead()) {
    channel->Abandon();
    return absl::InvalidArgumentError("a conduit that is none was handed over");
  }
  channel->PublishReceiveState();
  return channel;
}

bool ConduitChannel::Describe(ChannelHandover* handover) const {
  // The tail says where it goes on.
  const uint64_t taken = control_->taken.load(std::memory_order_acquire);
  if (!held_.empty() || reserved_ != 0 || unflushed_ || replies_piece_ != replies_end_ ||
      taken != stream_end_) {
    return false;
  }
  *handover = {};
  handover->socket = socket_.get();
  handover->memory = memory_.get();
  const uint64_t head = control_->requests_head.load(std::memory_order_acquire);
  handover->unread = {RequestAt(received_), std::min(head - received_, kConduitRequestBytes)};
  return true;
}

std::span<std::byte> ConduitChannel::device_memory() const {
  return {requests_, kRepliesAt - kRequestsAt};
}

void ConduitChannel::Abandon() { state_.store(State::kClosed, std::memory_order_relaxed); }

void ConduitChannel::Close() { End(State::kClosed); }

ChannelStatus ConduitChannel::EndStatus() const {
  return state_.load(std::memory_order_relaxed) == State::kProtocol ? ChannelStatus::kProtocol
                                                                    : ChannelStatus::kClosed;
}

void ConduitChannel::End(State state) {
  State expected = State::kOpen;
  if (!state_.compare_exchange_strong(expected, state, std::memory_order_relaxed)) return;
  // Wakes every thread that polls the socket, here and the device.
  shutdown(socket_.get(), SHUT_RDWR);
}

void ConduitChannel::TakeBells() {
  std::byte bells[64];
  ssize_t count;
  do {
    count = recv(socket_.get(), bells, sizeof(bells), MSG_DONTWAIT);
  } while (count == sizeof(bells) || (count < 0 && errno == EINTR));
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) {
    peer_gone_.store(true, std::memory_order_release);
  }
}

void ConduitChannel::RingBell() {
  // A socket that is full of bells wakes the device as well.
  if (send(socket_.get(), &kConduitBell, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EPIPE) {
    peer_gone_.store(true, std::memory_order_release);
  }
}

// ---- sending ----

uint64_t ConduitChannel::taken() {
  // Partner: the device's store: it has done reading what we overwrite.
  const uint64_t taken = control_->taken.load(std::memory_order_acquire);
  if (taken < taken_ || taken > stream_end_) {
    End(State::kProtocol);
    return taken_;
  }
  taken_ = taken;
  while (pieces_taken_ != pieces_ && sent_[pieces_taken_ % kConduitPieces].end <= taken) {
    replies_free_ = sent_[pieces_taken_ % kConduitPieces].replies_end;
    ++pieces_taken_;
  }
  return taken;
}

bool ConduitChannel::HasRoom(uint32_t bytes) const {
  return bytes <= kConduitReplyBytes - (replies_end_ - replies_free_) &&
         pieces_ - pieces_taken_ <= kConduitPieces - kPiecesPerReservation;
}

std::byte* ConduitChannel::TryReserve(uint32_t bytes) {
  if (state_.load(std::memory_order_relaxed) != State::kOpen ||
      peer_gone_.load(std::memory_order_relaxed)) {
    return nullptr;
  }
  if (!HasRoom(bytes)) {
    // What is not shown is never taken.
    Flush();
    taken();
    if (!HasRoom(bytes)) {
      AwaitTaken(sent_[pieces_taken_ % kConduitPieces].end);
      return nullptr;
    }
  }
  AwaitTaken(0);
  reserved_ = bytes;
  return ReplyAt(replies_end_);
}

void ConduitChannel::Commit() {
  replies_end_ += reserved_;
  reserved_ = 0;
  unflushed_ = true;
}

void ConduitChannel::AddPiece(uint64_t offset, uint64_t bytes) {
  const ConduitPiece piece = {offset, bytes};
  memcpy(base_ + kConduitPiecesOffset + pieces_ % kConduitPieces * sizeof(piece), &piece,
         sizeof(piece));
  stream_end_ += bytes;
  sent_[pieces_ % kConduitPieces] = {stream_end_, replies_piece_};
  ++pieces_;
}

void ConduitChannel::CloseReplies() {
  while (replies_piece_ != replies_end_) {
    const uint64_t at = replies_piece_ & (kConduitReplyBytes - 1);
    const uint64_t bytes = std::min(replies_end_ - replies_piece_, kConduitReplyBytes - at);
    replies_piece_ += bytes;
    AddPiece(kConduitRepliesOffset + at, bytes);
  }
}

uint64_t ConduitChannel::CommitWith(std::span<const std::byte> payload) {
  CHECK(payload.data() >= bulk_ && !payload.empty() &&
        payload.size() <= kConduitBulkBytes - static_cast<size_t>(payload.data() - bulk_));
  Commit();
  CloseReplies();
  AddPiece(kConduitBulkOffset + static_cast<uint64_t>(payload.data() - bulk_), payload.size());
  return stream_end_;
}

ChannelStatus ConduitChannel::Flush() {
  if (state_.load(std::memory_order_relaxed) != State::kOpen) return EndStatus();
  if (unflushed_) {
    unflushed_ = false;
    CloseReplies();
    // Partner: the device's load. Sequentially consistent: before the look at its alarm.
    control_->pieces_head.store(pieces_, std::memory_order_seq_cst);
    if (control_->device_awaits_pieces.Rings(pieces_)) RingBell();
  }
  return peer_gone_.load(std::memory_order_relaxed) ? ChannelStatus::kClosed : ChannelStatus::kOk;
}

// ---- receiving ----

bool ConduitChannel::LoadHead() {
  // Partner: the device's store: bytes come first.
  const uint64_t head = control_->requests_head.load(std::memory_order_seq_cst);
  if (head < head_ || head - held_.released_end() > kConduitRequestBytes) return false;
  head_ = head;
  return true;
}

ChannelStatus ConduitChannel::Peek(wire::FrameHeader* header) const {
  const uint64_t available = head_ - received_;
  if (available < sizeof(*header)) return ChannelStatus::kAgain;
  memcpy(header, RequestAt(received_), sizeof(*header));
  if (!wire::FrameHeaderValid(*header)) return ChannelStatus::kProtocol;
  if ((header->flags & wire::kFrameTransport) != 0 && header->bytes != sizeof(*header)) {
    return ChannelStatus::kProtocol;
  }
  return header->bytes <= available ? ChannelStatus::kOk : ChannelStatus::kAgain;
}

void ConduitChannel::PublishReceiveState() {
  wire::FrameHeader header;
  uint64_t at = head_;
  if (held_.full()) {
    at = kNever;
  } else if (Peek(&header) == ChannelStatus::kAgain) {
    // No wake-up for each part of a large frame.
    at = received_ + (head_ - received_ < sizeof(header) ? sizeof(header) : header.bytes);
  }
  readable_at_.store(at, std::memory_order_relaxed);
}

ChannelStatus ConduitChannel::TryReceive(Frame* frame) {
  if (state_.load(std::memory_order_relaxed) != State::kOpen) return EndStatus();
  ChannelStatus status = ChannelStatus::kAgain;
  bool loaded = false;
  for (uint32_t skipped = 0; !held_.full() && skipped < kTransportFramesPerReceiveMax;) {
    wire::FrameHeader header;
    status = Peek(&header);
    if (status == ChannelStatus::kAgain) {
      if (loaded) break;
      loaded = true;
      if (++empty_polls_ % kPeerCheckPolls == 0) TakeBells();
      // First whether the device is gone, then what it left.
      const bool gone = peer_gone_.load(std::memory_order_acquire);
      const uint64_t before = head_;
      if (!LoadHead()) {
        status = ChannelStatus::kProtocol;
        break;
      }
      if (head_ != before) continue;
      if (gone) status = ChannelStatus::kClosed;
      break;
    }
    if (status == ChannelStatus::kProtocol) break;
    const uint64_t begin = received_;
    received_ += header.bytes;
    const uint64_t token = held_.Add(received_);
    loaded = false;
    if ((header.flags & wire::kFrameTransport) != 0) {
      Release({.header = {}, .body = {}, .token = token});
      ++skipped;
      status = ChannelStatus::kAgain;
      continue;
    }
    frame->header = header;
    frame->body = {RequestAt(begin) + sizeof(header), header.bytes - sizeof(header)};
    frame->token = token;
    break;
  }
  PublishReceiveState();
  if (status == ChannelStatus::kProtocol) End(State::kProtocol);
  return status;
}

void ConduitChannel::Release(const Frame& frame) {
  if (!held_.Release(frame.token)) return;
  const uint64_t tail = held_.released_end();
  // Partner: the device's loads: it may write again where was read. Sequentially consistent: before
  // the look at its alarm.
  control_->requests_tail.store(tail, std::memory_order_seq_cst);
  if (control_->device_awaits_tail.Rings(tail)) RingBell();
  if (readable_at_.load(std::memory_order_relaxed) == kNever) PublishReceiveState();
}

bool ConduitChannel::PutBack() {
  if (!held_.Forget()) return false;
  received_ = held_.released_end();
  PublishReceiveState();
  return true;
}

// ---- waiting ----

ChannelStatus ConduitChannel::Look(uint32_t events) const {
  if (state_.load(std::memory_order_relaxed) != State::kOpen) return EndStatus();
  // First whether the device is gone, then what it left.
  const bool gone = peer_gone_.load(std::memory_order_acquire);
  if ((events & kReadable) != 0 && control_->requests_head.load(std::memory_order_seq_cst) >=
                                       readable_at_.load(std::memory_order_relaxed)) {
    return ChannelStatus::kOk;
  }
  if (gone) {
    // With all places held, the caller must release before it can receive.
    const bool full = readable_at_.load(std::memory_order_relaxed) == kNever;
    return (events & kReadable) != 0 && full ? ChannelStatus::kAgain : ChannelStatus::kClosed;
  }
  if ((events & kWritable) != 0 && control_->taken.load(std::memory_order_seq_cst) >=
                                       writable_at_.load(std::memory_order_relaxed)) {
    return ChannelStatus::kOk;
  }
  return ChannelStatus::kAgain;
}

ChannelStatus ConduitChannel::Wait(uint32_t events, Nanos spin, Nanos timeout) {
  const ChannelStatus status = Look(events);
  if (status != ChannelStatus::kAgain || timeout == 0) {
    // Who only looks, and is never late for what comes, must see the end, too.
    if (status == ChannelStatus::kAgain && ++empty_polls_ % kPeerCheckPolls == 0) TakeBells();
    return status;
  }
  const Deadline deadline(timeout);
  if (spin <= 0) return Sleep(events, deadline);
  return SpinThenSleep(
      &spin_, spin, deadline, [&] { return Look(events); },
      [&] { return Sleep(events, deadline); });
}

ChannelStatus ConduitChannel::Sleep(uint32_t events, const Deadline& deadline) {
  ChannelStatus status = ChannelStatus::kAgain;
  while (true) {
    TakeBells();
    const uint64_t readable_at = readable_at_.load(std::memory_order_relaxed);
    if ((events & kReadable) != 0) control_->worker_awaits_head.Set(readable_at);
    if ((events & kWritable) != 0) {
      control_->worker_awaits_taken.Set(writable_at_.load(std::memory_order_relaxed));
    }
    status = Look(events);
    const Nanos left = deadline.Left();
    if (status != ChannelStatus::kAgain || left == 0) break;
    // A Release by another thread rings no bell.
    const bool full = (events & kReadable) != 0 && readable_at == kNever;
    const Nanos sleep = std::min(left, full ? kHeldCheckInterval : kPeerCheckInterval);
    const timespec limit = {static_cast<time_t>(sleep / kSecond),
                            static_cast<long>(sleep % kSecond)};
    // With its end seen, the socket would only report that again and again.
    const bool gone = peer_gone_.load(std::memory_order_relaxed);
    pollfd entry = {socket_.get(), POLLIN, 0};
    ppoll(&entry, gone ? 0 : 1, &limit, nullptr);
  }
  // No bells while awake.
  control_->worker_awaits_head.Clear();
  control_->worker_awaits_taken.Clear();
  return status;
}

}  // namespace consort
