// SPDX-License-Identifier: Apache-2.0
// A session whose device is chosen when it is first used (consortd --bind first-launch).
//
//   deferred: memory is promised and away, copies and fills go to the swap store
//      │ a request that needs the device
//      ▼
//   BindWanted ─▶ consortd ──MoveOut──▶ gone: the other worker receives that request, or it stays
//                    └──Bound, or no answer for kBindAnswerMax──▶ as any session that swaps
//
// The request that needs the device waits meanwhile, with all behind it; of a session that goes
// they are put back into its channel. All before it is done: copies were carried out by the
// processor, and nothing of the window was ever on the device. See docs/ARCHITECTURE.md, binding.
#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/saturating.h"
#include "gen/wire/opcodes.h"
#include "host/control/control_socket.h"
#include "host/limits.h"
#include "host/session/session.h"
#include "vmsock/deadline.h"

namespace consort::host {
namespace {

using Range = memmgr::AddressWindow::Range;
using Rows = HostWork::Rows;

// Filled at once.
constexpr Bytes kPatternBytes = 64 * kKiB;

template <class Request>
std::optional<Request> Decode(const Frame& frame) {
  Request request;
  wire::Decoder decoder(frame.body);
  if (!request.Decode(decoder)) return std::nullopt;
  return request;
}

// Of a request that copies rows.
template <class Request>
HostWork RowsOf(const Request& request) {
  HostWork work;
  work.stream = request.stream;
  work.width = request.width;
  work.rows = request.rows;
  if constexpr (requires { request.src; }) work.from = Rows{request.src, request.src_pitch};
  if constexpr (requires { request.dst; }) work.to = {request.dst, request.dst_pitch};
  return work;
}

template <class Request>
std::optional<HostWork> FillOf(const Frame& frame, uint32_t element) {
  const std::optional<Request> request = Decode<Request>(frame);
  if (!request.has_value()) return std::nullopt;
  HostWork work;
  work.stream = request->hStream;
  work.element = element;
  work.to.address = request->dstDevice;
  if constexpr (requires { request->Height; }) {
    work.width = (Saturating(request->Width) * element).value();
    work.rows = request->Height;
    work.to.pitch = request->dstPitch;
  } else {
    work.width = (Saturating(request->N) * element).value();
    work.rows = 1;
  }
  if constexpr (requires { request->uc; }) {
    work.value = request->uc;
  } else if constexpr (requires { request->us; }) {
    work.value = request->us;
  } else {
    work.value = request->ui;
  }
  // Drivers refuse others.
  if (work.to.address % element != 0 || work.to.pitch % element != 0) return std::nullopt;
  return work;
}

// Nothing: it is another request, or one that only its handler has an answer to.
std::optional<HostWork> HostWorkOf(const Frame& frame) {
  using wire::Opcode;
  switch (static_cast<Opcode>(frame.header.opcode)) {
    case Opcode::kCopyToDevice: {
      const auto request = Decode<wire::CopyToDeviceRequest>(frame);
      if (!request.has_value() ||
          (Saturating(request->width) * request->rows).value() != request->data.size()) {
        return std::nullopt;
      }
      HostWork work = RowsOf(*request);
      work.data = request->data;
      return work;
    }
    case Opcode::kCopyToHost: {
      const auto request = Decode<wire::CopyToHostRequest>(frame);
      if (!request.has_value()) return std::nullopt;
      HostWork work = RowsOf(*request);
      work.to_guest = true;
      return work;
    }
    case Opcode::kCopyRows: {
      const auto request = Decode<wire::CopyRowsRequest>(frame);
      if (!request.has_value()) return std::nullopt;
      return RowsOf(*request);
    }
    case Opcode::kcuMemsetD8Async:
      return FillOf<wire::cuMemsetD8AsyncRequest>(frame, 1);
    case Opcode::kcuMemsetD16Async:
      return FillOf<wire::cuMemsetD16AsyncRequest>(frame, 2);
    case Opcode::kcuMemsetD32Async:
      return FillOf<wire::cuMemsetD32AsyncRequest>(frame, 4);
    case Opcode::kcuMemsetD2D8Async:
      return FillOf<wire::cuMemsetD2D8AsyncRequest>(frame, 1);
    case Opcode::kcuMemsetD2D16Async:
      return FillOf<wire::cuMemsetD2D16AsyncRequest>(frame, 2);
    case Opcode::kcuMemsetD2D32Async:
      return FillOf<wire::cuMemsetD2D32AsyncRequest>(frame, 4);
    default:
      return std::nullopt;
  }
}

// From the first row's beginning to the last one's end. Nothing: there are no bytes, or rows that
// overlap.
std::optional<Range> RangeOf(const HostWork& work, const Rows& side) {
  if (work.width == 0 || work.rows == 0 || (work.rows > 1 && side.pitch < work.width)) {
    return std::nullopt;
  }
  return Range{side.address,
               (Saturating(side.pitch) * (Saturating(work.rows) - 1) + work.width).value()};
}

}  // namespace

bool Session::DeferMemory(const Frame& frame) {
  const Nanos now = MonotonicNow();
  if (awaits_device()) {
    // One that goes is told of its end by TurnDeparture.
    const bool goes = departs_.load(std::memory_order_relaxed);
    const bool stays = bound_here_.load(std::memory_order_relaxed);
    const bool silent = now - bind_asked_at_ > kBindAnswerMax;
    memory_waiting_ = goes || (!stays && !silent);
    if (memory_waiting_) return false;
    LOG_IF(WARNING, !stays) << "session " << open_.session
                            << " stays on its device: consortd does not say which it is to have";
    StayHere();
    return MemoryReady(frame);
  }
  MemoryNeed need;
  const Touches touches = TouchesOf(frame, &need);
  if (!BelongsToDevice(frame)) {
    if (touches == Touches::kNothing) return true;
    if (residency_->CheckTable(now) != Residency::Verdict::kGo) {
      memory_waiting_ = true;
      return false;
    }
    if (touches == Touches::kTable) return true;
    if (CanServeAway(frame)) {
      // A copy to the guest is sent piece by piece, by its handler.
      const bool handled = frame.header.opcode == static_cast<uint16_t>(wire::Opcode::kCopyToHost);
      if (!handled) fate_ = Fate::kAway;
      return true;
    }
  }
  if (!AskForDevice()) {
    StayHere();
    return MemoryReady(frame);
  }
  memory_waiting_ = true;
  return false;
}

bool Session::BelongsToDevice(const Frame& frame) {
  using wire::Opcode;
  const auto timed = [this](uint64_t id) {
    const auto event = user_events_.find(id);
    return event != user_events_.end() && event->second->timed;
  };
  switch (static_cast<Opcode>(frame.header.opcode)) {
    // Nobody knows the time between an event of before a move and one after it.
    case Opcode::kcuEventRecord: {
      const auto request = Decode<wire::cuEventRecordRequest>(frame);
      return request.has_value() && timed(request->hEvent);
    }
    case Opcode::kcuEventRecordWithFlags: {
      const auto request = Decode<wire::cuEventRecordWithFlagsRequest>(frame);
      return request.has_value() && timed(request->hEvent);
    }
    // A variable's own address is the device's, that of its copy is not.
    case Opcode::kGlobalGet: {
      const auto request = Decode<wire::GlobalGetRequest>(frame);
      Modules::Variable variable;
      return request.has_value() && modules_.GetGlobal(*request, &variable) == CUDA_SUCCESS &&
             copies_.Find(variable.library, variable.name) == 0 &&
             (variable.told || !modules_.MayBeCopied(variable));
    }
    // A session that has these does not move.
    case Opcode::kArrayCreate:
    case Opcode::kEventShare:
    case Opcode::kGraphHandleCreate:
    case Opcode::kGraphRecord:
    case Opcode::kMemoryCreate:
    case Opcode::kSharedEventOpen:
    case Opcode::kSharedMemoryImport:
    case Opcode::kVirtualReserve:
      return true;
    default:
      return false;
  }
}

bool Session::MeetsCopy(const Range& range) {
  copies_.NoteWrite(range.address, range.bytes);
  return !copies_.TakeWritten().empty();
}

bool Session::CanServeAway(const Frame& frame) {
  host_work_ = HostWorkOf(frame);
  const std::optional<HostWork>& work = host_work_;
  Stream* stream = nullptr;
  if (!work.has_value() ||
      streams_.Observe(frame.header.value, work->stream, &stream) != CUDA_SUCCESS ||
      stream->recording) {
    return false;
  }
  const auto is_hosts = [&](const Range& range) {
    return shared_host_ != nullptr && shared_host_->Keeps(range.address, range.bytes);
  };
  if (work->from.has_value()) {
    const std::optional<Range> from = RangeOf(*work, *work->from);
    if (!from.has_value()) return false;
    const bool away = window_->IsAway(*from);
    if (work->to_guest) return away;
    const std::optional<Range> to = RangeOf(*work, work->to);
    if (!to.has_value()) return false;
    if (away) return is_hosts(*to);
    return is_hosts(*from) && window_->IsAway(*to) && !MeetsCopy(*to) &&
           window_->MakeSlots(*to, memory_client_->store());
  }
  const std::optional<Range> to = RangeOf(*work, work->to);
  if (!to.has_value() || !window_->IsAway(*to) || MeetsCopy(*to)) return false;
  // What was never written is 0 already.
  return work->value == 0u || window_->MakeSlots(*to, memory_client_->store());
}

void Session::ServeAway() {
  const HostWork work = *std::exchange(host_work_, std::nullopt);
  const Bytes bytes = work.width * work.rows;
  std::vector<std::byte> pattern;
  if (work.value.has_value() && *work.value != 0) {
    pattern.resize(std::min(work.width, AlignUp(kPatternBytes, work.element)));
    for (size_t at = 0; at < pattern.size(); at += work.element) {
      std::memcpy(&pattern[at], &*work.value, work.element);
    }
  }
  const auto host = [](uint64_t address) { return reinterpret_cast<std::byte*>(address); };
  for (uint64_t row = 0; row < work.rows; ++row) {
    const uint64_t to = work.to.address + row * work.to.pitch;
    if (work.from.has_value()) {
      const uint64_t from = work.from->address + row * work.from->pitch;
      if (window_->Contains(from, work.width)) {
        window_->ReadAway(from, {host(to), work.width});
      } else {
        window_->WriteAway(to, {host(from), work.width});
      }
    } else if (!work.value.has_value()) {
      window_->WriteAway(to, work.data.subspan(row * work.width, work.width));
    } else if (*work.value == 0) {
      window_->ClearAway({to, work.width});
    } else {
      for (uint64_t at = 0; at < work.width; at += pattern.size()) {
        const size_t length = std::min<uint64_t>(pattern.size(), work.width - at);
        window_->WriteAway(to + at, std::span(pattern).first(length));
      }
    }
  }
  if (work.value.has_value()) return;
  copied_bytes_ += bytes;
  const bool to_host = work.from.has_value() && window_->Contains(work.from->address, 1);
  (to_host ? account_.bytes_to_host : account_.bytes_to_device) += bytes;
}

bool Session::AskForDevice() {
  PublishUsage();
  BindWanted wanted;
  wanted.usage = Usage();
  absl::Status goes = CheckMovable();
  // What is kept behind a host function would have to be done first.
  if (goes.ok() && (held_.active() || held_.size() != 0 || held_next_.has_value())) {
    goes = absl::FailedPreconditionError("its first work is behind a host function");
  }
  SetText(wanted.stays, std::string(goes.message()));
  const absl::Status sent = binds_by_->Send(wanted);
  LOG_IF(ERROR, !sent.ok()) << "session " << open_.session << " stays on its device: " << sent;
  if (goes.ok() && sent.ok()) bind_asked_at_ = MonotonicNow();
  return awaits_device();
}

void Session::StayHere() {
  bind_asked_at_ = 0;
  residency_->Settle();
  window_->MakeAway(false);
}

}  // namespace consort::host
