// SPDX-License-Identifier: Apache-2.0
// A session that goes to another worker, on the side that has it.
//
//   serving ─MoveOut─▶ serving, the other worker prepares ─MovePrepared─▶ serving
//      ▲                                                                     │ nothing goes on, or
//      │                                                                     ▼ kMovePatience is
//      over │                                                                takes no new requests
//      │                                                                     │ nothing goes on
//      └── anything fails, or kMoveStopMax is over ◄──────── Depart ◄────────┘
//                                                              │ MoveCommit
//                                                              ▼ gone: the channel is the other's
//
// One that leaves its connection too asks its guest first, and is sure of nothing from it
// afterwards. Until MoveCommit nothing here has changed, so going on is always possible. See
// move_link.h and docs/ARCHITECTURE.md, moving.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "host/limits.h"
#include "host/session/session.h"

namespace consort::host {
namespace {

absl::Status Stays(const char* why) { return absl::FailedPreconditionError(why); }

}  // namespace

void Session::MoveOut(UniqueFd link, const host::MoveOut& how,
                      std::function<void(const MoveEnded&)> on_end) {
  Departure departure;
  departure.leaves = how.leaves != 0;
  departure.stays = how.stays != 0;
  departure.link = std::make_unique<MoveLink>(std::move(link), [this] {
    absl::MutexLock lock(&channel_mutex_);
    return stop_;
  });
  departure.on_end = std::move(on_end);
  departure.heard_at = MonotonicNow();
  MoveEnded refused;
  refused.session = open_.session;
  {
    absl::MutexLock lock(&channel_mutex_);
    if (!over_ && !departs_.load(std::memory_order_relaxed)) {
      asked_departure_ = std::move(departure);
      departs_.store(true, std::memory_order_relaxed);
      return;
    }
    SetText(refused.text, over_ ? "the application has ended" : "it is being moved already");
  }
  departure.on_end(refused);
}

bool Session::TurnDeparture() {
  if (!departure_.has_value()) {
    absl::MutexLock lock(&channel_mutex_);
    departure_ = std::move(asked_departure_);
    asked_departure_.reset();
  }
  if (departure_->slots == nullptr) {
    const absl::Status ready = AwaitOther();
    if (absl::IsDeadlineExceeded(ready)) return false;
    if (!ready.ok()) {
      EndDeparture(ready);
      return false;
    }
  }
  if (departure_->leaves && !departure_->guest_ready) {
    const absl::Status ready = AwaitGuest();
    if (absl::IsDeadlineExceeded(ready)) return false;
    if (!ready.ok()) {
      EndDeparture(ready);
      return false;
    }
  }
  const absl::Status quiet = CheckQuiet();
  if (!stopped_to_move()) {
    // Most programs wait for the device now and then.
    const Nanos now = MonotonicNow();
    // One that is saved by itself is at work again: what it has submitted ends, and no more.
    const Nanos patience = departure_->stays ? 0 : kMovePatience;
    if (absl::IsUnavailable(quiet) && now - departure_->heard_at < patience) return false;
    departure_->stopped_at = now;
  }
  if (absl::IsUnavailable(quiet) && MonotonicNow() - departure_->stopped_at < kMoveStopMax) {
    return false;
  }
  const absl::StatusOr<Bytes> moved = quiet.ok() ? Depart() : absl::StatusOr<Bytes>(quiet);
  const bool gone = moved.ok() && !departure_->stays;
  if (gone) end_reason_ = departure_->held ? "held" : "moved";
  EndDeparture(moved);
  return gone;
}

// kDeadlineExceeded: it is not ready yet.
absl::Status Session::AwaitOther() {
  RETURN_IF_ERROR(CheckMovable());
  if (departure_->stage == Departure::Stage::kOffers) return MakeOffers();
  ControlPacket packet;
  const absl::Status received = departure_->link->TryReceive(&packet);
  if (absl::IsDeadlineExceeded(received) &&
      MonotonicNow() - departure_->heard_at > kMoveSilenceMax) {
    return absl::UnavailableError("the other device's worker does not answer");
  }
  RETURN_IF_ERROR(received);
  departure_->heard_at = MonotonicNow();
  MoveReady ready;
  MovePrepared prepared;
  if (departure_->stage == Departure::Stage::kAsked && packet.As(&ready)) {
    departure_->slot_memory = std::move(packet.descriptor());
    departure_->direct = device_.ReachedBy(ready.uuid);
    std::copy(std::begin(ready.id), std::end(ready.id), departure_->saved_as.begin());
    departure_->stage = Departure::Stage::kOffers;
    return absl::DeadlineExceededError("it prepares");
  }
  if (departure_->stage != Departure::Stage::kOffered || !packet.As(&prepared)) {
    return absl::InternalError("the other worker says something else");
  }
  departure_->direct = prepared.direct != 0;
  ASSIGN_OR_RETURN(departure_->slots,
                   MoveSlots::Create(device_, std::move(departure_->slot_memory)));
  if (!departure_->direct) departure_->slots->Pin();
  return absl::OkStatus();
}

// Asks the guest to say its last on this connection. kDeadlineExceeded: it has not yet.
absl::Status Session::AwaitGuest() {
  RETURN_IF_ERROR(CheckMovable());
  const Nanos now = MonotonicNow();
  if (departure_->number == 0) {
    departure_->number = ++leaves_asked_;
    departure_->asked_at = now;
    wire::SessionLeavesEvent event;
    event.number = departure_->number;
    SendEvent(event);
    outbox_->Pump();
  }
  if (now - departure_->asked_at > kLeavePatience) {
    return absl::UnavailableError("its program does not answer: is it stopped?");
  }
  return absl::DeadlineExceededError("its program has not said its last");
}

CUresult Session::ReadyToLeave(const wire::FrameHeader&, const wire::ReadyToLeaveRequest& request) {
  if (request.number == 0 || request.number > leaves_asked_) {
    Fail("a program left that was not asked to");
  } else if (departure_.has_value() && departure_->number == request.number) {
    departure_->guest_ready = true;
    departure_->heard_at = MonotonicNow();
  }
  return CUDA_SUCCESS;
}

// Tells what memory there is. Always kDeadlineExceeded, or what failed.
absl::Status Session::MakeOffers() {
  const absl::Status later = absl::DeadlineExceededError("it prepares");
  // Else it is being swapped.
  if (residency_->CheckTable(MonotonicNow()) != Residency::Verdict::kGo) return later;
  Departure& departure = *departure_;
  if (!departure.described) {
    SessionState state;
    state.window = window_->Describe();
    RETURN_IF_ERROR(SendPreparation(departure.link.get(), Encode(state)));
    departure.described = true;
    if (departure.direct) departure.offers = window_->Pieces();
  }
  for (size_t i = 0; i < kMoveOffersPerTurn && !departure.offers.empty(); ++i) {
    const memmgr::AddressWindow::Piece piece = departure.offers.back();
    departure.offers.pop_back();
    UniqueFd memory;
    const CUresult exported =
        piece.here ? window_->Export(piece, &memory) : CUDA_ERROR_INVALID_VALUE;
    if (exported != CUDA_SUCCESS) {
      VLOG(1) << "session " << open_.session << ": " << piece.bytes
              << " bytes of its memory are not exported: " << device::ResultName(driver_, exported);
      continue;
    }
    MoveMemory offer;
    offer.address = piece.address;
    offer.bytes = piece.bytes;
    RETURN_IF_ERROR(departure.link->Send(offer, memory.get()));
    departure.offered[piece.address] = piece.made;
  }
  if (!departure.offers.empty()) return later;
  RETURN_IF_ERROR(departure.link->Send(MoveMemoryEnd()));
  departure.stage = Departure::Stage::kOffered;
  departure.heard_at = MonotonicNow();
  return later;
}

void Session::EndDeparture(const absl::StatusOr<Bytes>& moved) {
  MoveEnded ended;
  ended.session = open_.session;
  ended.moved = moved.ok() && !departure_->stays ? 1 : 0;
  if (departure_->stopped_at != 0) {
    ended.stopped_nanos = static_cast<uint64_t>(MonotonicNow() - departure_->stopped_at);
  }
  if (moved.ok()) {
    ended.bytes = *moved;
    ended.direct_bytes = departure_->direct_bytes;
    ended.times = departure_->times;
  } else {
    SetText(ended.text, std::string(moved.status().message()));
    if (awaits_device()) StayHere();
    MoveFailed failed;
    SetText(failed.text, ended.text);
    // If it does not hear of it, it sees the link's end.
    (void)departure_->link->Send(failed);
    if (departure_->number != 0 && outbox_ != nullptr) {
      wire::SessionStaysEvent event;
      event.number = departure_->number;
      SendEvent(event);
    }
  }
  if (departure_->stays) {
    save_asked_ = false;
    work_since_save_ = 0;
    if (redo_ != nullptr) redo_->Announce({});
  }
  const Departure over = std::move(*departure_);
  departure_.reset();
  departs_.store(false, std::memory_order_relaxed);
  over.on_end(ended);
}

void Session::RefuseDepartures() {
  {
    absl::MutexLock lock(&channel_mutex_);
    over_ = true;
    if (!departure_.has_value()) departure_ = std::move(asked_departure_);
    asked_departure_.reset();
  }
  if (departure_.has_value()) EndDeparture(absl::CancelledError("the application has ended"));
}

absl::Status Session::CheckMovable() {
  if (device_result() != CUDA_SUCCESS) return Stays("its device is broken");
  if (!textures_.empty()) return Stays("it has arrays, textures or surfaces");
  if (!graphs_.empty()) return Stays("it has graphs with conditional nodes");
  if (!links_.empty()) return Stays("it is linking code (cuLinkCreate)");
  if (!virtual_memory_->empty()) {
    return Stays("it maps memory itself (cuMemCreate, cuMemAddressReserve)");
  }
  if (!shared_.empty() || !opened_.empty()) return Stays("it shares memory or events by IPC");
  if (HasPeers()) return Stays("it uses memory of two devices together (peer access)");
  if (departure_.has_value() && departure_->leaves &&
      (open_.resume_token.empty() || rings_ || shared_host_ != nullptr)) {
    return Stays(
        "it shares memory with this host: only programs in virtual machines that share none can "
        "leave it");
  }
  for (const auto& [id, event] : user_events_) {
    if (event->shared != nullptr) return Stays("it shares memory or events by IPC");
  }
  return modules_.KeptLibraries().status();
}

// kUnavailable: something will end.
absl::Status Session::CheckQuiet() {
  const auto later = [](const char* what) { return absl::UnavailableError(what); };
  RETURN_IF_ERROR(CheckMovable());
  if (held_.active() || held_.size() != 0 || held_next_.has_value()) {
    return later("a host function of the program has not ended");
  }
  if (!waiting_allocations_.empty()) return later("an allocation waits for room");
  if (copy_to_host_.active || !pending_.empty()) {
    return later("its work on the device has not ended");
  }
  // What waits for the device that the session goes to is received there.
  if (awaits_device() && channel_->PutBack()) backlog_.clear();
  if (!backlog_.empty()) return later("its work waits for its turn");
  if (modules_.expects_load()) return later("a module is on its way");
  std::shared_ptr<Fence> fence;
  const CUresult fenced = streams_.FenceAll(&fence);
  if (fenced != CUDA_SUCCESS) return Stays("its work on the device has failed");
  if (!fence->Reached()) return later("its work on the device has not ended");
  if (fence->result() != CUDA_SUCCESS) {
    NoteResult(fence->result(), "work on the device");
    return Stays("its work on the device has failed");
  }
  // Nobody else knows of it.
  SendOutput();
  outbox_->Pump();
  if (!outbox_->flushed()) return later("the program does not take its replies");
  ChannelHandover handover;
  if (!channel_->Describe(&handover)) return later("its channel is not at rest");
  // The window is this session's from here until the next Rest.
  if (residency_->CheckTable(MonotonicNow()) != Residency::Verdict::kGo) {
    return later("its memory is being swapped");
  }
  return absl::OkStatus();
}

absl::Status Session::DescribeTo(SessionState* state, BorrowedDescriptors* descriptors) {
  ChannelHandover channel;
  if (!channel_->Describe(&channel)) return absl::InternalError("its channel is not at rest");
  // A connection that ends here takes no memory along.
  state->rings = channel.memory >= 0 && !departure_->leaves;
  state->rings_in_vm = channel.in_vm;
  state->rings_offset = channel.memory_offset;
  state->request_ring_bytes = channel.request_ring_bytes;
  state->reply_ring_bytes = channel.reply_ring_bytes;
  state->received = channel.received;
  state->sent = channel.sent;
  if (!state->rings) state->unread.assign(channel.unread.begin(), channel.unread.end());
  state->deferred_error = deferred_error_;
  descriptors->emplace_back(MoveDescriptor::kSocket, channel.socket);
  if (state->rings) descriptors->emplace_back(MoveDescriptor::kRings, channel.memory);

  ASSIGN_OR_RETURN(const auto variables, modules_.Variables());
  RETURN_IF_ERROR(DescribeObjects(variables, state));
  for (SessionState::Variable& variable : state->variables) {
    RETURN_IF_ERROR(departure_->slots->CopyOut(variable.address, variable.contents));
  }
  if (images_.fd() >= 0) descriptors->emplace_back(MoveDescriptor::kImages, images_.fd());
  if (shared_host_ != nullptr) {
    for (const SharedHost::Share& share : shared_host_->Shares()) {
      descriptors->emplace_back(MoveDescriptor::kSharedHost, share.memory);
    }
  }
  return absl::OkStatus();
}

absl::Status Session::DescribeObjects(const std::vector<Modules::Variable>& variables,
                                      SessionState* state) {
  for (const JournalEntry* entry : journal_.Entries()) state->journal.push_back(*entry);
  ASSIGN_OR_RETURN(const auto libraries, modules_.KeptLibraries());
  for (const Modules::KeptLibrary& library : libraries) {
    state->images.push_back({library.library, library.image});
  }
  for (const Modules::Variable& variable : variables) {
    SessionState::Variable& out = state->variables.emplace_back();
    out.library = variable.library;
    out.name = variable.name;
    out.address = variable.address;
    out.told = variable.told;
    out.copy = copies_.Find(variable.library, variable.name);
    out.contents.resize(variable.bytes);
  }
  state->window = window_->Describe();
  for (const auto& [address, context] : allocations_) {
    state->allocations.push_back({address, context});
  }
  if (shared_host_ != nullptr) {
    for (const SharedHost::Share& share : shared_host_->Shares()) {
      const auto owned = host_allocations_.find(share.address);
      state->shared_host.push_back({share.address, share.bytes, share.offset,
                                    owned == host_allocations_.end() ? 0 : owned->second,
                                    share.number, share.lent, own_host_.contains(share.address)});
    }
  }
  state->reserved_bytes = memory_client_->reserved();
  return absl::OkStatus();
}

// The result is how many bytes went.
absl::StatusOr<Bytes> Session::SendContents() {
  std::vector<memmgr::AddressWindow::Piece> others;
  for (const memmgr::AddressWindow::Piece& piece : window_->Pieces()) {
    const auto offered = departure_->offered.find(piece.address);
    // What was made since then at the same address is other memory.
    if (!departure_->direct || !piece.here || offered == departure_->offered.end() ||
        offered->second != piece.made) {
      others.push_back(piece);
      continue;
    }
    MoveDirect direct;
    direct.address = piece.address;
    direct.bytes = piece.bytes;
    RETURN_IF_ERROR(departure_->link->Send(direct));
    departure_->direct_bytes += piece.bytes;
  }
  ASSIGN_OR_RETURN(const Bytes bytes,
                   departure_->slots->SendContents(departure_->link.get(), others));
  return bytes + departure_->direct_bytes;
}

absl::StatusOr<Bytes> Session::Depart() {
  MoveLink* const link = departure_->link.get();
  const Nanos quiet_at = MonotonicNow();
  SessionState state;
  BorrowedDescriptors descriptors;
  RETURN_IF_ERROR(DescribeTo(&state, &descriptors));
  if (departure_->stays) RETURN_IF_ERROR(AnnounceSave(state));
  RETURN_IF_ERROR(SendSession(link, Encode(state), descriptors));
  const Nanos told_at = MonotonicNow();
  ASSIGN_OR_RETURN(const Bytes bytes, SendContents());
  while (true) {
    ControlPacket packet;
    RETURN_IF_ERROR(link->Receive(&packet));
    MoveRestored restored;
    MovePieceTaken taken;
    if (packet.As(&restored)) {
      departure_->held = restored.held != 0;
      departure_->times = restored.times;
      departure_->times.quiet_nanos = static_cast<uint64_t>(quiet_at - departure_->stopped_at);
      departure_->times.state_nanos = static_cast<uint64_t>(told_at - quiet_at);
      break;
    }
    if (!packet.As(&taken)) return absl::InternalError("the other worker says something else");
  }
  if (departure_->stays) {
    BeginRedo();
    RETURN_IF_ERROR(link->Send(MoveStays()));
    return bytes;
  }
  RETURN_IF_ERROR(EndKeeping());
  RETURN_IF_ERROR(link->Send(MoveCommit()));
  channel_->Abandon();
  return bytes;
}

}  // namespace consort::host
