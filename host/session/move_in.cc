// SPDX-License-Identifier: Apache-2.0
// A session that comes from another worker, on the side that gets it. Its window is there already;
// see move_link.h. Whatever fails here, the session goes on where it was.
#include <fcntl.h>
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "device/driver/driver_loader.h"
#include "gen/wire/opcodes.h"
#include "host/limits.h"
#include "host/session/session.h"
#include "vmsock/ring_channel.h"

namespace consort::host {
namespace {

// While memory comes to the device.
constexpr Nanos kLookEvery = 1 * kMillisecond;

// A channel that is not this worker's yet: to be left alone if it never is.
struct AbandonChannel {
  void operator()(Channel* channel) const {
    channel->Abandon();
    delete channel;
  }
};

template <class Request>
bool Decode(const JournalEntry& entry, Request* request) {
  wire::Decoder decoder(entry.body);
  return request->Decode(decoder);
}

}  // namespace

absl::Status Session::Arrive(MoveLink* link) {
  PeerMemory peer(driver_, device_.device());
  ASSIGN_OR_RETURN(const std::unique_ptr<MoveSlots> slots, MoveSlots::Create(device_));
  RETURN_IF_ERROR(PrepareArrival(link, slots.get(), &peer));
  SessionState state;
  SessionDescriptors descriptors;
  std::vector<std::byte> encoded;
  RETURN_IF_ERROR(ReceiveSession(link, &encoded, &state, &descriptors));
  MoveRestored restored;
  Nanos since = MonotonicNow();
  const auto lap = [&since] {
    const Nanos now = MonotonicNow();
    return static_cast<uint64_t>(now - std::exchange(since, now));
  };
  RETURN_IF_ERROR(RestoreMemory(state, &descriptors, link));
  restored.times.memory_nanos = lap();
  RETURN_IF_ERROR(RestoreObjects(
      state, descriptors,
      [&slots](std::span<const std::byte> from, uint64_t to) { return slots->CopyIn(from, to); }));
  restored.times.objects_nanos = lap();
  RETURN_IF_ERROR(slots->ReceiveContents(link, peer, [this](uint64_t address, Bytes bytes) {
    return bytes != 0 && window_->Contains(address, bytes);
  }));
  restored.times.contents_nanos = lap();
  window_->NoteWriteAnywhere();
  ChannelHandover handover;
  handover.in_vm = state.rings_in_vm;
  handover.memory_offset = state.rings_offset;
  handover.request_ring_bytes = state.request_ring_bytes;
  handover.reply_ring_bytes = state.reply_ring_bytes;
  handover.received = state.received;
  handover.sent = state.sent;
  handover.unread = state.unread;
  if (open_.origin == OpenSession::kRedone) {
    ASSIGN_OR_RETURN(redo_, RedoLog::TakeUp(std::move(descriptors.redo)));
    handover.received = redo_->received();
    if (!ReadRepliesUntil(descriptors.rings.get(), handover.memory_offset, &handover.sent)) {
      return absl::InternalError("its rings cannot be read");
    }
  }
  // A conduit changes the stream, which is this worker's from MoveCommit on.
  const bool conduit = ComesThroughConduit() && !descriptors.rings.valid();
  HostChannel opened;
  if (!conduit) {
    ASSIGN_OR_RETURN(opened, ResumeHostChannel(std::move(descriptors.socket),
                                               std::move(descriptors.rings), handover));
  }
  std::unique_ptr<Channel, AbandonChannel> channel(opened.channel.release());
  RETURN_IF_ERROR(link->Send(restored));
  MoveCommit commit;
  RETURN_IF_ERROR(link->Expect(&commit));
  opened.channel.reset(channel.release());
  if (conduit) {
    ASSIGN_OR_RETURN(opened,
                     OpenConduit(std::move(descriptors.socket), state.unread, kHandshakeTimeout));
  }
  deferred_error_ = static_cast<CUresult>(state.deferred_error);
  if (open_.origin == OpenSession::kRedone) {
    PrepareRedo(std::move(opened), handover);
  } else {
    UseChannel(std::move(opened));
  }
  return absl::OkStatus();
}

absl::Status Session::PrepareArrival(MoveLink* link, MoveSlots* slots, PeerMemory* peer) {
  MoveReady ready;
  static_assert(sizeof(ready.uuid) == sizeof(wire::DeviceSnapshot::uuid));
  std::memcpy(ready.uuid, device_.snapshot().uuid, sizeof(ready.uuid));
  RETURN_IF_ERROR(link->Send(ready, slots->memory()));
  SessionState coming;
  RETURN_IF_ERROR(ReceivePreparation(link, &coming));
  absl::Status direct;
  MoveMemoryEnd end;
  for (ControlPacket packet;;) {
    RETURN_IF_ERROR(link->Receive(&packet));
    if (packet.As(&end)) break;
    MoveMemory memory;
    if (!packet.As(&memory)) return absl::InternalError("the other worker says something else");
    if (direct.ok()) direct = peer->Add(memory.address, memory.bytes, packet.descriptor());
  }
  // A broker may move what is in a window.
  if (!residency_->swaps()) window_->Prepare(coming.window.extents);
  if (direct.ok() && !peer->empty()) direct = slots->Try(peer);
  if (!direct.ok()) {
    LOG(WARNING) << "session " << open_.session
                 << " comes through host memory: " << direct.message();
    slots->Settle();
    peer->Clear();
  }
  MovePrepared prepared;
  prepared.direct = peer->empty() ? 0 : 1;
  if (peer->empty()) slots->Pin();
  return link->Send(prepared);
}

absl::Status Session::RestoreMemory(const SessionState& state, SessionDescriptors* descriptors,
                                    MoveLink* link) {
  const auto fails = [this](const char* what, CUresult result) {
    return absl::UnavailableError(absl::StrCat(what, ": ", device::ResultName(driver_, result)));
  };
  if (!state.shared_host.empty() && shared_host_ == nullptr) {
    return absl::InternalError("shared host memory without a place for it");
  }
  if (state.rings_in_vm) {
    UseVmMemory(UniqueFd(fcntl(descriptors->rings.get(), F_DUPFD_CLOEXEC, 0)));
  }
  for (size_t i = 0; i < state.shared_host.size(); ++i) {
    const SessionState::SharedHostMemory& memory = state.shared_host[i];
    const CUresult result = shared_host_->TakeUp(
        {memory.address, memory.bytes, memory.offset, -1, memory.lent, memory.number},
        std::move(descriptors->shared_host[i]));
    if (result != CUDA_SUCCESS) return fails("its pinned memory", result);
    host_allocations_.emplace(memory.address, memory.context);
    if (memory.own) own_host_.insert(memory.address);
  }
  if (state.reserved_bytes != 0 &&
      memory_client_->Reserve(state.reserved_bytes) != MemoryClient::Answer::kYes) {
    return absl::ResourceExhaustedError("the device has not the memory that it has reserved");
  }
  const CUresult result = window_->Restore(state.window);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    return absl::ResourceExhaustedError("the device has not the memory that it needs");
  }
  if (result != CUDA_SUCCESS) return fails("its device memory", result);
  for (const SessionState::Owned& owned : state.allocations) {
    allocations_.emplace(owned.address, owned.context);
  }
  // What the device had no room for comes once others have made way. Nobody but Check can say that
  // it is there: until then the window may be the broker's.
  MemoryNeed everything;
  everything.everything = true;
  const Nanos deadline = MonotonicNow() + kMoveSilenceMax / 2;
  while (residency_->swaps()) {
    const Nanos now = MonotonicNow();
    const Residency::Verdict verdict = residency_->Check(everything, now);
    if (verdict == Residency::Verdict::kGo) break;
    if (verdict == Residency::Verdict::kRefuse || now > deadline) {
      return absl::ResourceExhaustedError("the device has not the memory that it needs");
    }
    if (residency_->wants_rest()) residency_->Rest(now);
    link->Await(kLookEvery);
  }
  return absl::OkStatus();
}

absl::Status Session::RestoreObjects(const SessionState& state,
                                     const SessionDescriptors& descriptors,
                                     const CopyToVariable& copy) {
  std::map<uint64_t, KeptImage> images;
  for (const SessionState::Image& image : state.images) images[image.library] = image.kept;
  for (const JournalEntry& entry : state.journal) {
    wire::LibraryLoadRequest load;
    if (entry.object.kind == ObjectKind::kLibrary && Decode(entry, &load)) {
      auto image = ReadKeptImage(descriptors.images.get(), images[load.library]);
      if (!image.has_value()) return absl::InternalError("a module's image is lost");
      modules_.AddImage(load.image, *std::move(image));
      if (open_.origin == OpenSession::kGoesOn) images_.FindNext(images[load.library]);
    }
    const CUresult result = Replay(entry);
    if (result != CUDA_SUCCESS) {
      return absl::UnavailableError(absl::StrCat("the device does not take ",
                                                 wire::OpcodeName(entry.opcode), ": ",
                                                 device::ResultName(driver_, result)));
    }
  }
  std::vector<std::string> elsewhere;
  for (const SessionState::Variable& variable : state.variables) {
    Modules::Variable here;
    CUresult result = modules_.FindVariable(variable.library, variable.name, &here);
    if (result == CUDA_SUCCESS && here.bytes != variable.contents.size()) {
      result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result != CUDA_SUCCESS) {
      return absl::UnavailableError(absl::StrCat("the module variable ", variable.name, ": ",
                                                 device::ResultName(driver_, result)));
    }
    if (variable.told) {
      VLOG(1) << "session " << open_.session << ": the program knows the module variable "
              << variable.name << " of " << here.bytes << " bytes at "
              << absl::StrCat(absl::Hex(variable.address), ", here it is at ",
                              absl::Hex(here.address));
      if (here.address != variable.address) elsewhere.push_back(variable.name);
      modules_.NoteTold(here);
    }
    if (variable.copy != 0) {
      VLOG(1) << "session " << open_.session << ": the module variable " << variable.name
              << " was at "
              << absl::StrCat(absl::Hex(variable.address), " and is at ", absl::Hex(here.address),
                              "; the program knows it at ", absl::Hex(variable.copy));
      const auto place = window_->Find(variable.copy);
      if (!place.has_value() || place->address != variable.copy || place->bytes < here.bytes) {
        return absl::DataLossError("there is no copy of a module variable");
      }
      copies_.Add(variable.copy, {variable.library, variable.name, here.address, here.bytes});
    }
    RETURN_IF_ERROR(copy(variable.contents, here.address));
  }
  if (!elsewhere.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the program knows the address of the module variable ", elsewhere.front(),
        ", which is another there",
        elsewhere.size() == 1 ? "" : absl::StrCat(", and of ", elsewhere.size() - 1, " more")));
  }
  return absl::OkStatus();
}

// Carries a request of the journal out as if it had come again.
CUresult Session::Replay(const JournalEntry& entry) {
  wire::FrameHeader header;
  header.opcode = entry.opcode;
  header.value = entry.context;
  // For requests with a reply, and those without.
  const auto asked = [&]<class Request>(CUresult (Session::*handler)(
                         const wire::FrameHeader&, const Request&, typename Request::Reply*)) {
    Request request;
    typename Request::Reply reply;
    if (!Decode(entry, &request)) return CUDA_ERROR_INVALID_VALUE;
    return (this->*handler)(header, request, &reply);
  };
  const auto posted =
      [&]<class Request>(CUresult (Session::*handler)(const wire::FrameHeader&, const Request&)) {
        Request request;
        if (!Decode(entry, &request)) return CUDA_ERROR_INVALID_VALUE;
        return (this->*handler)(header, request);
      };
  switch (static_cast<wire::Opcode>(entry.opcode)) {
    case wire::Opcode::kStreamCreate:
      return posted(&Session::StreamCreate);
    case wire::Opcode::kGreenContextCreate:
      return posted(&Session::GreenContextCreate);
    case wire::Opcode::kEventCreate:
      return posted(&Session::EventCreate);
    case wire::Opcode::kLibraryLoad:
      return asked(&Session::LibraryLoad);
    case wire::Opcode::kKernelGet:
      return asked(&Session::KernelGet);
    case wire::Opcode::kFunctionSetAttribute:
      return asked(&Session::FunctionSetAttribute);
    case wire::Opcode::kContextSetLimit:
      return asked(&Session::ContextSetLimit);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace consort::host
