// SPDX-License-Identifier: Apache-2.0
// A session that is saved from time to time, and computed again from there when device memory is
// lost. See redo_log.h, docs/ARCHITECTURE.md, "When a worker dies".
//
//   at work ── nothing goes on ──▶ at rest ── its work has taken long ──▶ SaveWanted
//      ▲                             │                                      │
//      └── a request, in the log ────┘                    MoveOut, stays: AnnounceSave, BeginRedo
//
//   another worker: Arrive, of the checkpoint ─▶ PrepareRedo ─▶ Redo: the log's requests, to their
//                   end ─▶ what the program was not told ─▶ Loop
#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "gen/wire/opcodes.h"
#include "host/limits.h"
#include "host/session/session.h"
#include "vmsock/ring.h"
#include "vmsock/ring_channel.h"

namespace consort::host {
namespace {

template <class Request>
bool DecodeBody(const Frame& frame, Request* request) {
  wire::Decoder decoder(frame.body);
  return request->Decode(decoder);
}

}  // namespace

bool Session::ReachesHostMemory(const wire::LaunchRequest& request, const Kernel& kernel) const {
  if (shared_host_ == nullptr) return false;
  // What it finds in device memory may be any address that the program has.
  if (!kernel.direct && host_allocations_.size() > own_host_.size()) return true;
  // At any byte: arguments may be packed.
  for (size_t at = 0; at + sizeof(uint64_t) <= request.params.size(); ++at) {
    uint64_t word;
    std::memcpy(&word, request.params.data() + at, sizeof(word));
    if (shared_host_->Contains(word, 1)) return true;
  }
  return false;
}

bool Session::IsOwnHostMemory(uint64_t address, Bytes bytes) const {
  const auto after = own_host_.upper_bound(address);
  if (after == own_host_.begin()) return false;
  const auto share = shared_host_->Find(*std::prev(after));
  return share.has_value() && address + bytes <= share->address + share->bytes;
}

RequestRedo Session::RedoKindOf(const Frame& frame, std::string* why) {
  using wire::Opcode;
  const RequestRedo kind = RedoOf(frame.header.opcode);
  const auto spoils = [why](std::string because) {
    *why = std::move(because);
    return RequestRedo::kSpoils;
  };
  if (kind == RequestRedo::kSpoils) {
    const char* const name = wire::OpcodeName(frame.header.opcode);
    return spoils(absl::StrCat("it did what cannot be done again: ", name ? name : "unknown"));
  }
  const auto opcode = static_cast<Opcode>(frame.header.opcode);
  if (opcode == Opcode::kLaunch) {
    wire::LaunchRequest request;
    if (!DecodeBody(frame, &request)) return kind;
    const Kernel* const kernel = modules_.FindKernel(request.kernel);
    if (kernel == nullptr) return kind;
    if (ReachesHostMemory(request, *kernel)) {
      return spoils("a kernel of it may have reached its host memory");
    }
    if (kernel->prints) redo_->Loosen("a kernel of it that prints was at work");
    return kind;
  }
  if (opcode == Opcode::kStreamSignal || opcode == Opcode::kContextSignal) {
    wire::StreamSignalRequest stream;
    wire::ContextSignalRequest context;
    uint64_t address = 0;
    if (opcode == Opcode::kStreamSignal && DecodeBody(frame, &stream)) address = stream.address;
    if (opcode == Opcode::kContextSignal && DecodeBody(frame, &context)) address = context.address;
    if (shared_host_ != nullptr && shared_host_->Keeps(address, sizeof(uint64_t))) return kind;
    return spoils("it is told of its work in memory that it can take away");
  }
  if (CostOf(frame.header.opcode) == RequestCost::kNone) return kind;
  // Fills and copies name what they touch.
  MemoryNeed need;
  if (TouchesOf(frame, &need) != Touches::kContents || need.everything) return kind;
  bool outside = false;
  for (const auto& range : need.ranges) {
    outside |= range.bytes != 0 && !window_->Contains(range.address, range.bytes);
  }
  if (!outside) return kind;
  if (opcode == Opcode::kCopyRows && need.ranges.size() == 2 && shared_host_ != nullptr &&
      window_->Contains(need.ranges[0].address, need.ranges[0].bytes) &&
      shared_host_->Contains(need.ranges[1].address, need.ranges[1].bytes)) {
    if (IsOwnHostMemory(need.ranges[1].address, need.ranges[1].bytes)) return RequestRedo::kAsks;
    // The program may have gone on with what it got: done again it would be doubled.
    redo_->Loosen("a copy into its host memory was at work");
    why->clear();
    return RequestRedo::kSpoils;
  }
  return spoils("it copied or filled what is not in its device memory alone");
}

void Session::NoteRequest(const Frame& frame) {
  if (redo_channel_ != nullptr) return;
  if (!at_work_) work_began_ = 0;
  at_work_ = true;
  if (work_began_ == 0 && CostOf(frame.header.opcode) != RequestCost::kNone) {
    work_began_ = MonotonicNow();
  }
  if (redo_->spoiled()) return;
  redo_position_ = frame.end;
  std::string why;
  const RequestRedo kind = RedoKindOf(frame, &why);
  if (kind != RequestRedo::kSpoils) {
    redo_->Append(frame, kind, redo_position_);
  } else if (why.empty()) {
    redo_->Pass(redo_position_);
  } else {
    redo_->Spoil(why);
  }
}

void Session::EndAnswer() {
  uint64_t print = PrintOf(answer_.result, answer_.body);
  wire::MemAllocReply memory;
  wire::Decoder decoder(answer_.body);
  if (answer_.opcode == static_cast<uint16_t>(wire::Opcode::kMemAlloc) &&
      answer_.result == CUDA_SUCCESS && memory.Decode(decoder)) {
    print = memory.address;
  }
  if (redo_channel_ != nullptr) {
    redo_channel_->set_print(print);
    outbox_->End();
    return;
  }
  if (answer_.next) {
    redo_->Answer(answer_.call, print, RepliesUntil(rings_memory_));
  } else {
    redo_->Loosen("it had not taken all its answers");
  }
  outbox_->End();
  if (outbox_->in_channel()) redo_->DropAnswered();
}

void Session::NoteData(const PendingItem& item) {
  if (redo_channel_ != nullptr) return;
  if (outbox_->empty()) {
    redo_->AnswerTransfer(item.value, item.offset, item.bytes, RepliesUntil(rings_memory_));
  } else {
    redo_->Loosen("it had not taken all its answers");
  }
}

void Session::RestRedo(const ChannelHandover& channel) {
  at_work_ = false;
  if (!redo_->spoiled() && channel.received != redo_position_) {
    LOG(ERROR) << "session " << open_.session << ": its log is at " << redo_position_
               << ", its channel at " << channel.received;
    redo_->Spoil("its log does not fit its channel");
  }
  redo_->Rest();
  if (work_began_ == 0) return;
  work_since_save_ += MonotonicNow() - work_began_;
  if (work_since_save_ >= save_after_ && !save_asked_) save_asked_ = line_->TellWantsSave();
}

absl::Status Session::AnnounceSave(const SessionState& state) {
  if (redo_ == nullptr || !state.rings) {
    return absl::FailedPreconditionError("its channel has no shared memory");
  }
  if (deferred_error_ != CUDA_SUCCESS) {
    return absl::UnavailableError("it has still to be told that a request of it has failed");
  }
  ChannelHandover channel;
  if (!channel_->Describe(&channel)) return absl::UnavailableError("its channel is not at rest");
  AnnounceChannel(channel);
  KeepSharedHost(state);
  if (!line_->Flush()) return absl::UnavailableError("consortd is busy");
  redo_position_ = channel.received;
  redo_->Rest();
  redo_->Pass(redo_position_);
  redo_->Announce(departure_->saved_as);
  return absl::OkStatus();
}

void Session::BeginRedo() {
  redo_->Begin(departure_->saved_as, redo_position_);
  at_work_ = false;
}

void Session::PrepareRedo(HostChannel opened, const ChannelHandover& handover) {
  set_aside_ = std::move(opened);
  redo_position_ = handover.received;
  redo_->ForgetAnswersFrom(handover.sent);
  announced_ = true;
  HostChannel again;
  auto channel = std::make_unique<RedoChannel>(
      redo_.get(),
      [this](uint64_t address, uint64_t number) { return HasSignalled(address, number); },
      [this] { return frees_pending_ != 0; });
  redo_channel_ = channel.get();
  again.channel = std::move(channel);
  UseChannel(std::move(again));
}

absl::Status Session::RedoAll() {
  last_progress_ = MonotonicNow();
  while (true) {
    if (!redo_channel_->status().ok()) return redo_channel_->status();
    if (failed()) return absl::CancelledError(end_reason_);
    if (device_result() != CUDA_SUCCESS) {
      return absl::UnavailableError(device::ResultName(driver_, device_result()));
    }
    if (deferred_error_ != CUDA_SUCCESS) {
      return absl::AbortedError(absl::StrCat("a request fails that did not: ",
                                             device::ResultName(driver_, deferred_error_)));
    }
    if (Turn()) continue;
    if (redo_channel_->done()) {
      const absl::Status quiet = CheckQuiet();
      if (!absl::IsUnavailable(quiet)) return quiet;
    }
    RestBeforeLook(MonotonicNow() - last_progress_);
  }
}

bool Session::Redo() {
  const size_t requests = redo_->size();
  const Nanos begun = MonotonicNow();
  const absl::Status redone = RedoAll();
  if (!redone.ok()) {
    end_reason_ = absl::StrCat("computing it again: ", std::string(redone.message()));
    LOG(ERROR) << "session " << open_.session << " of " << GetText(open_.tenant)
               << " ended: " << end_reason_;
    redo_->Spoil(end_reason_);
    return false;
  }
  const std::vector<std::vector<std::byte>> kept = redo_channel_->TakeKept();
  redo_channel_ = nullptr;
  UseChannel(std::move(set_aside_));
  for (const std::vector<std::byte>& frame : kept) {
    wire::FrameHeader header;
    std::memcpy(&header, frame.data(), sizeof(header));
    const auto body = std::span(frame).subspan(sizeof(header));
    answer_ = {};
    answer_.next = outbox_->empty();
    std::byte* const at = outbox_->Begin(header, static_cast<uint32_t>(body.size()));
    std::memcpy(at, body.data(), body.size());
    if ((header.flags & wire::kFrameReply) != 0) {
      answer_.opcode = header.opcode;
      answer_.call = header.call;
      answer_.result = header.value;
      answer_.body = body;
      EndAnswer();
      continue;
    }
    wire::TransferDataEvent event;
    wire::Decoder decoder(body);
    if (event.Decode(decoder)) {
      redo_->AnswerTransfer(event.transfer, event.offset, event.data.size(),
                            RepliesUntil(rings_memory_));
    }
    outbox_->End();
  }
  outbox_->Pump();
  // What was computed again is still to be saved.
  at_work_ = true;
  work_began_ = begun;
  last_progress_ = MonotonicNow();
  LOG(INFO) << "session " << open_.session << ": " << requests
            << " requests since its checkpoint carried out again in "
            << (MonotonicNow() - begun) / kMillisecond << " ms; " << kept.size()
            << " answers given";
  line_->Flush();
  line_->TellGoesOn();
  return true;
}

}  // namespace consort::host
