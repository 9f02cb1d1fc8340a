// SPDX-License-Identifier: Apache-2.0
#include "host/session/redo_channel.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gen/wire/opcodes.h"
#include "gen/wire/requests.h"
#include "host/limits.h"

namespace consort::host {

std::byte* RedoChannel::TryReserve(uint32_t bytes) {
  frame_.resize(bytes);
  return frame_.data();
}

void RedoChannel::Commit() {
  wire::FrameHeader header;
  std::memcpy(&header, frame_.data(), sizeof(header));
  Take(header, std::span<const std::byte>(frame_).subspan(sizeof(header)));
}

void RedoChannel::Take(const wire::FrameHeader& header, std::span<const std::byte> body) {
  const auto is = [&header](wire::Opcode opcode) {
    return header.opcode == static_cast<uint16_t>(opcode);
  };
  if ((header.flags & wire::kFrameReply) != 0) {
    const auto asked = calls_.find(header.call);
    if (asked == calls_.end()) {
      status_ = absl::InternalError("an answer that nobody asked for");
      return;
    }
    const RedoLog::Entry entry = log_.At(asked->second);
    calls_.erase(asked);
    if (entry.answered == 0) return Keep();
    if (entry.kind == RequestRedo::kAgain && entry.print != print_) {
      status_ = absl::AbortedError(
          absl::StrCat(wire::OpcodeName(header.opcode), " has another result than it had before"));
    }
    return;
  }
  if (is(wire::TransferDataEvent::kOpcode)) {
    wire::TransferDataEvent event;
    wire::Decoder decoder(body);
    const auto asked = event.Decode(decoder) ? transfers_.find(event.transfer) : transfers_.end();
    if (asked == transfers_.end()) {
      status_ = absl::InternalError("data that nobody asked for");
    } else {
      Transfer& transfer = asked->second;
      if (log_.At(transfer.entry).answered == 0) Keep();
      transfer.left -= std::min<uint64_t>(transfer.left, event.data.size());
      if (transfer.left == 0) transfers_.erase(asked);
    }
    return;
  }
  // What kernels print was given: else the log would be loose.
  if (is(wire::DeviceOutputEvent::kOpcode)) return;
  status_ = absl::AbortedError(absl::StrCat("an event that did not come before, ", header.opcode));
}

void RedoChannel::Keep() {
  kept_bytes_ += frame_.size();
  if (kept_bytes_ > kRedoAnswerBytesMax) {
    status_ = absl::ResourceExhaustedError("its program was to be told too much");
    return;
  }
  kept_.push_back(frame_);
}

std::optional<uint64_t> RedoChannel::GivenTo(uint32_t call) const {
  const auto asked = calls_.find(call);
  if (asked == calls_.end()) return std::nullopt;
  const RedoLog::Entry entry = log_.At(asked->second);
  if (entry.answered == 0) return std::nullopt;
  return entry.print;
}

bool RedoChannel::MustWait(const Frame& frame) const {
  // The numbers of calls and transfers are used again once they are over.
  if (calls_.contains(frame.header.call)) return true;
  if (frame.header.opcode == static_cast<uint16_t>(wire::Opcode::kCopyToHost)) {
    wire::CopyToHostRequest request;
    wire::Decoder decoder(frame.body);
    return request.Decode(decoder) && transfers_.contains(request.transfer);
  }
  // The address may be one that is about to be free.
  return frame.header.opcode == static_cast<uint16_t>(wire::Opcode::kMemAlloc) &&
         (held_ != 0 || frees_());
}

bool RedoChannel::Given(size_t index) const {
  const RedoLog::Entry entry = log_.At(index);
  if (entry.kind != RequestRedo::kAsks) return false;
  if (entry.answered != 0) return true;
  const auto is = [](const Frame& frame, wire::Opcode opcode) {
    return frame.header.opcode == static_cast<uint16_t>(opcode);
  };
  if (!is(entry.frame, wire::Opcode::kCopyRows)) return false;
  // Into memory of the guest's library, which looks at it once it is signalled behind the copy, and
  // then uses it for something else.
  wire::CopyRowsRequest copy;
  wire::Decoder decoder(entry.frame.body);
  if (!copy.Decode(decoder)) return false;
  for (size_t later = index + 1; later < log_.size(); ++later) {
    const Frame frame = log_.At(later).frame;
    // Where it is not signalled it is waited for.
    wire::StreamSynchronizeRequest wait;
    wire::Decoder waits(frame.body);
    if (log_.At(later).answered != 0 && is(frame, wire::Opcode::kStreamSynchronize) &&
        frame.header.value == entry.frame.header.value && wait.Decode(waits) &&
        wait.stream == copy.stream) {
      return true;
    }
    wire::StreamSignalRequest signal;
    wire::Decoder fields(frame.body);
    if (!is(frame, wire::Opcode::kStreamSignal) || frame.header.value != entry.frame.header.value ||
        !signal.Decode(fields) || signal.stream != copy.stream || signal.of_event != 0) {
      continue;
    }
    return signalled_(signal.address, signal.number);
  }
  return false;
}

ChannelStatus RedoChannel::TryReceive(Frame* frame) {
  if (closed_.load(std::memory_order_relaxed) || !status_.ok()) return ChannelStatus::kClosed;
  while (!done() && Given(next_)) ++next_;
  if (done()) return ChannelStatus::kAgain;
  const RedoLog::Entry entry = log_.At(next_);
  if (MustWait(entry.frame)) return ChannelStatus::kAgain;
  *frame = entry.frame;
  if (frame->header.call != 0) calls_[frame->header.call] = next_;
  if (frame->header.opcode == static_cast<uint16_t>(wire::Opcode::kCopyToHost)) {
    wire::CopyToHostRequest request;
    wire::Decoder decoder(frame->body);
    if (request.Decode(decoder) && request.width != 0 && request.rows != 0) {
      transfers_[request.transfer] = {next_, request.width * request.rows};
    }
  }
  ++next_;
  ++held_;
  return ChannelStatus::kOk;
}

ChannelStatus RedoChannel::Wait(uint32_t events, Nanos, Nanos) {
  if (closed_.load(std::memory_order_relaxed)) return ChannelStatus::kClosed;
  return !done() || (events & kWritable) != 0 ? ChannelStatus::kOk : ChannelStatus::kAgain;
}

bool RedoChannel::Describe(ChannelHandover* handover) const {
  *handover = {};
  return true;
}

}  // namespace consort::host
