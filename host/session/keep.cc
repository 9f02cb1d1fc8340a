// SPDX-License-Identifier: Apache-2.0
// A session that outlives its worker: what it leaves behind while it serves, and how it goes on in
// another worker. See session_record.h, docs/ARCHITECTURE.md, "When a worker dies".
//
//   at work ── nothing goes on: what has changed is written ──▶ at rest ── a request ──▶ at work
//      │ the worker dies                                          │ the worker dies
//      ▼                                                          ▼
//   the guest's channel ends                     another worker: GoOn, which changes nothing that
//   was
//                                                kept, so that it may die, too
#include <fcntl.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "gen/wire/opcodes.h"
#include "host/limits.h"
#include "host/session/session.h"

namespace consort::host {
namespace {

// Whether what the record says of the session may be another after this request.
bool ChangesObjects(uint16_t opcode) {
  switch (static_cast<wire::Opcode>(opcode)) {
    case wire::Opcode::kContextDestroy:
    case wire::Opcode::kContextSetLimit:
    case wire::Opcode::kMemAlloc:
    case wire::Opcode::kMemFree:
    case wire::Opcode::kHostAlloc:
    case wire::Opcode::kHostAdopt:
    case wire::Opcode::kHostFree:
    case wire::Opcode::kLibraryLoad:
    case wire::Opcode::kLibraryUnload:
    case wire::Opcode::kKernelGet:
    case wire::Opcode::kGlobalGet:
    case wire::Opcode::kFunctionSetAttribute:
    case wire::Opcode::kStreamCreate:
    case wire::Opcode::kStreamDestroy:
    case wire::Opcode::kGreenContextCreate:
    case wire::Opcode::kGreenContextDestroy:
    case wire::Opcode::kEventCreate:
    case wire::Opcode::kEventDestroy:
    case wire::Opcode::kMemoryReserve:
      return true;
    default:
      return false;
  }
}

bool ChangesVariables(uint16_t opcode) {
  switch (static_cast<wire::Opcode>(opcode)) {
    case wire::Opcode::kContextDestroy:
    case wire::Opcode::kLibraryLoad:
    case wire::Opcode::kLibraryUnload:
    case wire::Opcode::kGlobalGet:
      return true;
    default:
      return false;
  }
}

}  // namespace

void Session::BeginKeptWork(const Frame& frame) {
  const uint16_t opcode = frame.header.opcode;
  rest_hopeless_ = false;
  if (redo_ != nullptr) NoteRequest(frame);
  if (record_ == nullptr) return;
  record_->BeginWork();
  objects_changed_ |= ChangesObjects(opcode);
  variables_known_ &= !ChangesVariables(opcode);
  device_used_ |= CostOf(opcode) != RequestCost::kNone;
}

ChannelStatus Session::TakeFromStream(Frame* frame) {
  if (record_->at_rest()) {
    if (channel_->Wait(Channel::kReadable, 0, 0) == ChannelStatus::kAgain) {
      return ChannelStatus::kAgain;
    }
    record_->BeginWork();
  }
  return channel_->TryReceive(frame);
}

void Session::TendRecord() {
  if (!AwaitsRest()) return;
  absl::Status rests = CheckQuiet();
  ChannelHandover channel;
  if (rests.ok() &&
      (!channel_->Describe(&channel) || (channel.memory < 0 && !channel.unread.empty()))) {
    rests = absl::UnavailableError("its channel is not at rest");
  }
  if (absl::IsUnavailable(rests)) return;
  if (at_work_) {
    if (rests.ok()) {
      RestRedo(channel);
    } else {
      redo_->Spoil(std::string(rests.message()));
      at_work_ = false;
    }
  }
  if (record_ == nullptr || record_->at_rest()) return;
  if (rests.ok() && !line_->why_not().empty()) {
    rests = absl::FailedPreconditionError(line_->why_not());
  }
  if (rests.ok()) rests = WriteRecord(channel);
  if (absl::IsUnavailable(rests)) return;
  rest_hopeless_ = !rests.ok();
  record_->Explain(std::string(rests.message()));
  if (!rests.ok()) return;
  RecordedPosition position;
  position.received = channel.received;
  position.sent = channel.sent;
  position.deferred_error = deferred_error_;
  record_->Rest(position);
}

// kUnavailable: consortd does not take all of it now.
absl::Status Session::WriteRecord(const ChannelHandover& channel) {
  if (!variables_known_) {
    ASSIGN_OR_RETURN(variables_, modules_.Variables());
    variables_known_ = true;
  }
  if (objects_changed_ || (device_used_ && !variables_.empty())) {
    SessionState state;
    state.rings = channel.memory >= 0;
    state.rings_in_vm = channel.in_vm;
    state.rings_offset = channel.memory_offset;
    state.request_ring_bytes = channel.request_ring_bytes;
    state.reply_ring_bytes = channel.reply_ring_bytes;
    RETURN_IF_ERROR(DescribeObjects(variables_, &state));
    RETURN_IF_ERROR(ReadVariables(&state));
    RETURN_IF_ERROR(record_->Write(Encode(state)));
    KeepSharedHost(state);
    objects_changed_ = false;
  }
  device_used_ = false;
  AnnounceChannel(channel);
  if (images_.fd() >= 0 && !std::exchange(images_told_, true)) {
    line_->Keep(KeptRole::kImages, 0, images_.fd());
  }
  return line_->Flush() ? absl::OkStatus() : absl::UnavailableError("consortd is busy");
}

void Session::AnnounceChannel(const ChannelHandover& channel) {
  if (std::exchange(announced_, true)) return;
  line_->Keep(KeptRole::kSocket, 0, channel.socket);
  if (channel.memory >= 0) line_->Keep(KeptRole::kRings, 0, channel.memory);
  // Who has these may go on with the session: they come last.
  if (record_ != nullptr) line_->Keep(KeptRole::kRecord, 0, record_->fd());
  if (redo_ != nullptr) line_->Keep(KeptRole::kRedo, 0, redo_->fd());
}

absl::Status Session::ReadVariables(SessionState* state) {
  Bytes bytes = 0;
  for (const SessionState::Variable& variable : state->variables) bytes += variable.contents.size();
  if (bytes > kKeptVariableBytesMax) {
    return absl::FailedPreconditionError("its module variables are too large to be kept");
  }
  for (SessionState::Variable& variable : state->variables) {
    RETURN_IF_ERROR(CopyVariable([&](CUstream stream) {
      return driver_.cuMemcpyDtoHAsync_v2(variable.contents.data(), variable.address,
                                          variable.contents.size(), stream);
    }));
  }
  return absl::OkStatus();
}

// Pieces so small that the session waits for them.
absl::Status Session::CopyVariable(const std::function<CUresult(CUstream)>& copy) {
  CUstream stream = nullptr;
  CUresult result = driver_.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0);
  if (result == CUDA_SUCCESS) {
    result = copy(stream);
    const CUresult ended = driver_.cuStreamSynchronize(stream);
    if (result == CUDA_SUCCESS) result = ended;
    driver_.cuStreamDestroy_v2(stream);
  }
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  NoteResult(result, "a module variable");
  return absl::FailedPreconditionError(
      absl::StrCat("copying a module variable: ", device::ResultName(driver_, result)));
}

void Session::KeepSharedHost(const SessionState& state) {
  std::set<uint64_t> present;
  for (const SessionState::SharedHostMemory& memory : state.shared_host) {
    present.insert(memory.number);
  }
  for (auto it = shared_host_told_.begin(); it != shared_host_told_.end();) {
    if (present.contains(*it)) {
      ++it;
    } else {
      line_->LetGo(KeptRole::kSharedHost, *it);
      it = shared_host_told_.erase(it);
    }
  }
  if (shared_host_ == nullptr) return;
  for (const SharedHost::Share& share : shared_host_->Shares()) {
    if (!shared_host_told_.insert(share.number).second) continue;
    line_->Keep(KeptRole::kSharedHost, share.number, share.memory);
  }
}

// Another worker gets the session: nobody else may go on with it.
absl::Status Session::EndKeeping() {
  if (line_ == nullptr) return absl::OkStatus();
  if (record_ != nullptr) record_->BeginWork();
  if (redo_ != nullptr) redo_->Spoil("it went to another worker");
  if (std::exchange(announced_, false)) {
    line_->LetGo(KeptRole::kRecord, 0);
    line_->LetGo(KeptRole::kRedo, 0);
    line_->LetGo(KeptRole::kSocket, 0);
  }
  return line_->Flush() ? absl::OkStatus() : absl::UnavailableError("consortd does not answer");
}

absl::Status Session::BeginKeeping() {
  if (line_ == nullptr) return absl::OkStatus();
  if (save_after_ != 0 && rings_ && redo_ == nullptr) {
    ASSIGN_OR_RETURN(redo_, RedoLog::Create());
    // As below.
    line_->Keep(KeptRole::kRedo, 0, redo_->fd());
    line_->Flush();
  }
  if (!keeps_memory_ || record_ != nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(record_, SessionRecord::Create());
  objects_changed_ = true;
  // Should the worker die before it is ever at rest, it says why.
  line_->Keep(KeptRole::kRecord, 0, record_->fd());
  line_->Flush();
  return absl::OkStatus();
}

absl::Status Session::ReceiveKept(MoveLink* link, UniqueFd* record, SessionDescriptors* descriptors,
                                  std::map<uint64_t, UniqueFd>* shared_host) {
  while (true) {
    ControlPacket packet;
    RETURN_IF_ERROR(link->Receive(&packet));
    KeptEnd end;
    if (packet.As(&end)) return absl::OkStatus();
    Keep kept;
    if (!packet.As(&kept)) return absl::InternalError("consortd says something else");
    UniqueFd descriptor = std::move(packet.descriptor());
    if (!descriptor.valid()) return absl::ResourceExhaustedError("descriptors");
    switch (kept.role) {
      case KeptRole::kRecord:
        *record = std::move(descriptor);
        break;
      case KeptRole::kSocket:
        descriptors->socket = std::move(descriptor);
        break;
      case KeptRole::kRings:
        descriptors->rings = std::move(descriptor);
        break;
      case KeptRole::kImages:
        descriptors->images = std::move(descriptor);
        break;
      case KeptRole::kSharedHost:
        (*shared_host)[kept.key] = std::move(descriptor);
        break;
      case KeptRole::kRedo:
        descriptors->redo = std::move(descriptor);
        break;
      case KeptRole::kMemory:
        line_->Bring(kept.key, std::move(descriptor));
        break;
    }
  }
}

absl::Status Session::GoOn(MoveLink* link) {
  SessionDescriptors descriptors;
  UniqueFd record;
  std::map<uint64_t, UniqueFd> shared_host;
  RETURN_IF_ERROR(ReceiveKept(link, &record, &descriptors, &shared_host));
  ASSIGN_OR_RETURN(const RestingSession resting, ReadRecord(record.get()));
  const std::optional<SessionState> decoded = DecodeSessionState(resting.state);
  if (!decoded.has_value() || !descriptors.socket.valid() ||
      decoded->rings != descriptors.rings.valid()) {
    return absl::DataLossError("its record cannot be read");
  }
  const SessionState& state = *decoded;
  for (const SessionState::SharedHostMemory& memory : state.shared_host) {
    descriptors.shared_host.push_back(std::move(shared_host[memory.number]));
    shared_host_told_.insert(memory.number);
  }
  RETURN_IF_ERROR(RestoreMemory(state, &descriptors, link));
  images_told_ = descriptors.images.valid();
  if (images_told_) images_.TakeUp(UniqueFd(fcntl(descriptors.images.get(), F_DUPFD_CLOEXEC, 0)));
  RETURN_IF_ERROR(
      RestoreObjects(state, descriptors, [this](std::span<const std::byte> from, uint64_t to) {
        return CopyVariable([&](CUstream stream) {
          return driver_.cuMemcpyHtoDAsync_v2(to, from.data(), from.size(), stream);
        });
      }));
  ChannelHandover handover;
  handover.in_vm = state.rings_in_vm;
  handover.memory_offset = state.rings_offset;
  handover.request_ring_bytes = state.request_ring_bytes;
  handover.reply_ring_bytes = state.reply_ring_bytes;
  handover.received = resting.position.received;
  handover.sent = resting.position.sent;
  ASSIGN_OR_RETURN(record_, SessionRecord::TakeUp(std::move(record)));
  ASSIGN_OR_RETURN(HostChannel opened, ResumeHostChannel(std::move(descriptors.socket),
                                                         std::move(descriptors.rings), handover));
  announced_ = true;
  if (auto log = RedoLog::TakeUp(std::move(descriptors.redo)); save_after_ != 0 && log.ok()) {
    redo_ = *std::move(log);
    redo_position_ = resting.position.received;
  }
  deferred_error_ = static_cast<CUresult>(resting.position.deferred_error);
  UseChannel(std::move(opened));
  line_->Restored();
  line_->Flush();
  line_->TellGoesOn();
  return absl::OkStatus();
}

}  // namespace consort::host
