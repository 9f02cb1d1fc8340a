// SPDX-License-Identifier: Apache-2.0
#include "host/session/move_slots.h"

#include <time.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "device/driver/driver_loader.h"
#include "memmgr/limits.h"

namespace consort::host {
namespace {

// Between two looks at a copy: one of a slot takes 0.3 ms on a fast bus.
constexpr Nanos kLookEvery = 50 * kMicrosecond;

}  // namespace

absl::StatusOr<std::unique_ptr<MoveSlots>> MoveSlots::Create(const WorkerDevice& device,
                                                             UniqueFd memory) {
  ASSIGN_OR_RETURN(std::unique_ptr<SlotMemory> mapped, SlotMemory::Create(std::move(memory)));
  std::unique_ptr<MoveSlots> slots(new MoveSlots(device, std::move(mapped)));
  const device::DriverTable& driver = slots->driver_;
  CUresult result = driver.cuStreamCreateWithPriority(&slots->stream_, CU_STREAM_NON_BLOCKING, 0);
  for (size_t i = 0; i < kMoveSlots && result == CUDA_SUCCESS; ++i) {
    result = driver.cuEventCreate(&slots->events_[i], CU_EVENT_DISABLE_TIMING);
    slots->free_.push_back(i);
  }
  if (result != CUDA_SUCCESS) return slots->Failure("preparing to copy", result);
  return slots;
}

MoveSlots::~MoveSlots() {
  // The device must be done with the memory.
  if (stream_ != nullptr) Settle();
  for (const CUevent event : events_) {
    if (event != nullptr) driver_.cuEventDestroy_v2(event);
  }
  if (stream_ != nullptr) driver_.cuStreamDestroy_v2(stream_);
  if (registered_) driver_.cuMemHostUnregister(memory_->begin());
}

void MoveSlots::Pin() {
  const CUresult result =
      device_.Register({memory_->begin(), SlotMemory::kBytes}, CU_MEMHOSTREGISTER_PORTABLE);
  registered_ = result == CUDA_SUCCESS;
  LOG_IF(WARNING, !registered_) << "moving through memory that is not pinned: "
                                << device::ResultName(driver_, result);
}

absl::Status MoveSlots::Failure(const char* what, CUresult result) const {
  return absl::UnavailableError(absl::StrCat(what, ": ", device::ResultName(driver_, result)));
}

absl::Status MoveSlots::Finish(const char* what, CUresult result) {
  // Asks and sleeps: the driver's own waiting may keep others out.
  while (result == CUDA_SUCCESS) {
    result = driver_.cuStreamQuery(stream_);
    if (result != CUDA_ERROR_NOT_READY) break;
    const timespec time = {0, kLookEvery};
    nanosleep(&time, nullptr);
    result = CUDA_SUCCESS;
  }
  return result == CUDA_SUCCESS ? absl::OkStatus() : Failure(what, result);
}

absl::Status MoveSlots::CopyOut(uint64_t from, std::span<std::byte> to) {
  return Finish("reading a variable",
                driver_.cuMemcpyDtoHAsync_v2(to.data(), from, to.size(), stream_));
}

absl::Status MoveSlots::CopyIn(std::span<const std::byte> from, uint64_t to) {
  return Finish("writing a variable",
                driver_.cuMemcpyHtoDAsync_v2(to, from.data(), from.size(), stream_));
}

absl::Status MoveSlots::Try(PeerMemory* peer) {
  uint64_t scratch = 0;
  CUresult result = peer->Scratch(&scratch);
  for (const auto& [address, mapping] : peer->mappings()) {
    if (result == CUDA_SUCCESS) {
      result = driver_.cuMemcpyAsync(scratch, mapping.here, memmgr::kGranuleBytes, stream_);
    }
    if (result != CUDA_SUCCESS) return Failure("copying from the other device", result);
  }
  return Finish("copying from the other device", CUDA_SUCCESS);
}

absl::StatusOr<bool> MoveSlots::FirstDone() {
  const CUresult state = driver_.cuEventQuery(in_flight_.front().event);
  if (state == CUDA_ERROR_NOT_READY) return false;
  if (state != CUDA_SUCCESS) return Failure("copying", state);
  return true;
}

absl::Status MoveSlots::Record(uint64_t slot, const MovePiece& piece) {
  const CUresult recorded = driver_.cuEventRecord(events_[slot], stream_);
  if (recorded != CUDA_SUCCESS) return Failure("copying", recorded);
  in_flight_.push_back({slot, piece, events_[slot]});
  return absl::OkStatus();
}

absl::Status MoveSlots::TurnOut(MoveLink* link, bool all) {
  Nanos last_progress = MonotonicNow();
  while (true) {
    bool progress = false;
    while (!in_flight_.empty()) {
      ASSIGN_OR_RETURN(const bool done, FirstDone());
      if (!done) break;
      RETURN_IF_ERROR(link->Send(in_flight_.front().piece));
      in_flight_.pop_front();
      progress = true;
    }
    ControlPacket packet;
    absl::Status received;
    while ((received = link->TryReceive(&packet)).ok()) {
      MovePieceTaken taken;
      if (!packet.As(&taken) || taken.slot >= kMoveSlots ||
          std::find(free_.begin(), free_.end(), taken.slot) != free_.end()) {
        return absl::InternalError("the other worker gives back what it has not got");
      }
      free_.push_back(taken.slot);
      progress = true;
    }
    if (!absl::IsDeadlineExceeded(received)) return received;
    if (all ? in_flight_.empty() : !free_.empty()) return absl::OkStatus();
    const Nanos now = MonotonicNow();
    if (progress) last_progress = now;
    if (now - last_progress > kMoveSilenceMax) {
      return absl::DeadlineExceededError("the other device's worker takes nothing");
    }
    link->Await(kLookEvery);
  }
}

absl::Status MoveSlots::CopyAway(const memmgr::AddressWindow::Piece& from, Bytes offset,
                                 Bytes bytes, std::byte* to) {
  if (from.slot->tier() != memmgr::SwapTier::kFile) {
    from.slot->CopyTo(to, offset, bytes);
    return absl::OkStatus();
  }
  constexpr Bytes kPiece = memmgr::SwapStore::kFilePieceBytes;
  static_assert(kMoveSlotBytes % kPiece == 0);
  for (Bytes at = 0; at < bytes; at += kPiece) {
    RETURN_IF_ERROR(
        from.slot->Read((offset + at) / kPiece, {to + at, std::min(kPiece, bytes - at)}));
  }
  return absl::OkStatus();
}

absl::StatusOr<Bytes> MoveSlots::SendContents(
    MoveLink* link, const std::vector<memmgr::AddressWindow::Piece>& pieces) {
  Bytes sent = 0;
  for (const memmgr::AddressWindow::Piece& from : pieces) {
    if (!from.here && from.slot == nullptr) continue;
    for (Bytes offset = 0; offset < from.bytes; offset += kMoveSlotBytes) {
      RETURN_IF_ERROR(TurnOut(link, /*all=*/false));
      MovePiece piece;
      piece.slot = free_.back();
      piece.address = from.address + offset;
      piece.bytes = std::min(kMoveSlotBytes, from.bytes - offset);
      free_.pop_back();
      sent += piece.bytes;
      if (!from.here) {
        RETURN_IF_ERROR(CopyAway(from, offset, piece.bytes, At(piece.slot)));
        RETURN_IF_ERROR(link->Send(piece));
        continue;
      }
      const CUresult copied =
          driver_.cuMemcpyDtoHAsync_v2(At(piece.slot), piece.address, piece.bytes, stream_);
      if (copied != CUDA_SUCCESS) return Failure("copying from the device", copied);
      RETURN_IF_ERROR(Record(piece.slot, piece));
    }
  }
  RETURN_IF_ERROR(TurnOut(link, /*all=*/true));
  RETURN_IF_ERROR(link->Send(MoveContentsEnd()));
  return sent;
}

absl::Status MoveSlots::Take(const MovePiece& piece) {
  const CUresult copied =
      driver_.cuMemcpyHtoDAsync_v2(piece.address, At(piece.slot), piece.bytes, stream_);
  if (copied != CUDA_SUCCESS) return Failure("copying to the device", copied);
  return Record(piece.slot, piece);
}

absl::Status MoveSlots::Fetch(const MoveDirect& piece, const PeerMemory& peer) {
  const std::optional<uint64_t> from = peer.Find(piece.address, piece.bytes);
  if (!from.has_value()) return absl::InternalError("the other worker names what it has not got");
  const CUresult copied = driver_.cuMemcpyAsync(piece.address, *from, piece.bytes, stream_);
  return copied == CUDA_SUCCESS ? absl::OkStatus()
                                : Failure("copying from the other device", copied);
}

absl::Status MoveSlots::ReceiveContents(MoveLink* link, const PeerMemory& peer,
                                        const std::function<bool(uint64_t, Bytes)>& valid) {
  bool ended = false;
  while (!ended || !in_flight_.empty()) {
    while (!in_flight_.empty()) {
      ASSIGN_OR_RETURN(const bool done, FirstDone());
      if (!done) break;
      MovePieceTaken taken;
      taken.slot = in_flight_.front().slot;
      in_flight_.pop_front();
      RETURN_IF_ERROR(link->Send(taken));
    }
    if (ended) {
      link->Await(in_flight_.empty() ? 0 : kLookEvery);
      continue;
    }
    ControlPacket packet;
    const absl::Status received =
        in_flight_.empty() ? link->Receive(&packet) : link->TryReceive(&packet);
    if (!in_flight_.empty() && absl::IsDeadlineExceeded(received)) {
      link->Await(kLookEvery);
      continue;
    }
    RETURN_IF_ERROR(received);
    MovePiece piece;
    MoveDirect direct;
    MoveContentsEnd end;
    if (packet.As(&end)) {
      ended = true;
    } else if (packet.As(&direct) && valid(direct.address, direct.bytes)) {
      RETURN_IF_ERROR(Fetch(direct, peer));
    } else if (packet.As(&piece) && piece.slot < kMoveSlots && piece.bytes <= kMoveSlotBytes &&
               valid(piece.address, piece.bytes)) {
      RETURN_IF_ERROR(Take(piece));
    } else {
      return absl::InternalError("the other worker sends what belongs nowhere");
    }
  }
  return Finish("copying", CUDA_SUCCESS);
}

}  // namespace consort::host
