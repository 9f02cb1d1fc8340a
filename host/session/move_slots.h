// SPDX-License-Identifier: Apache-2.0
// host/session/move_slots.h: the slots by which contents go from one worker to another, on one of
// the two sides; see move_link.h. Everything here belongs to one session's thread.
#ifndef CONSORT_HOST_SESSION_MOVE_SLOTS_H_
#define CONSORT_HOST_SESSION_MOVE_SLOTS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "host/limits.h"
#include "host/session/move_link.h"
#include "host/session/peer_memory.h"
#include "host/session/slot_memory.h"
#include "host/session/worker_device.h"
#include "memmgr/address_window.h"

namespace consort::host {

// The slots, on one side. Calls need the worker's context.
class MoveSlots {
 public:
  // Makes the memory, or maps `memory` of the other side.
  static absl::StatusOr<std::unique_ptr<MoveSlots>> Create(const WorkerDevice& device,
                                                           UniqueFd memory = UniqueFd());
  ~MoveSlots();
  MoveSlots(const MoveSlots&) = delete;
  MoveSlots& operator=(const MoveSlots&) = delete;

  int memory() const { return memory_->fd(); }
  // For much that goes through them. Without, copies are slow and right.
  void Pin();

  // Copies between host and device, and waits for it.
  absl::Status CopyOut(uint64_t from, std::span<std::byte> to);
  absl::Status CopyIn(std::span<const std::byte> from, uint64_t to);
  // Copies a little from each mapping of the peer, and waits for it.
  absl::Status Try(PeerMemory* peer);
  // Waits for copies that are under way, whatever becomes of them.
  void Settle() { (void)Finish("", CUDA_SUCCESS); }
  // Sends what is in the pieces. The result is how many bytes went.
  absl::StatusOr<Bytes> SendContents(MoveLink* link,
                                     const std::vector<memmgr::AddressWindow::Piece>& pieces);
  // Takes pieces up to MoveContentsEnd, those that are named alone from `peer`; `valid` says of
  // each whether it may be written.
  absl::Status ReceiveContents(MoveLink* link, const PeerMemory& peer,
                               const std::function<bool(uint64_t, Bytes)>& valid);

 private:
  struct InFlight {
    uint64_t slot = 0;
    MovePiece piece;
    CUevent event = nullptr;
  };
  MoveSlots(const WorkerDevice& device, std::unique_ptr<SlotMemory> memory)
      : device_(device), driver_(device.driver()), memory_(std::move(memory)) {}
  std::byte* At(uint64_t slot) const { return memory_->At(slot); }
  absl::Status Take(const MovePiece& piece);
  absl::Status Fetch(const MoveDirect& piece, const PeerMemory& peer);
  absl::Status Failure(const char* what, CUresult result) const;
  absl::Status Finish(const char* what, CUresult submitted);
  // Whether the device has passed the first that is in flight.
  absl::StatusOr<bool> FirstDone();
  absl::Status Record(uint64_t slot, const MovePiece& piece);
  // Sends the pieces whose copies are done; waits for a slot, and for all if `all`.
  absl::Status TurnOut(MoveLink* link, bool all);
  absl::Status CopyAway(const memmgr::AddressWindow::Piece& from, Bytes offset, Bytes bytes,
                        std::byte* to);

  const WorkerDevice& device_;
  const device::DriverTable& driver_;
  const std::unique_ptr<SlotMemory> memory_;
  bool registered_ = false;
  CUstream stream_ = nullptr;
  CUevent events_[kMoveSlots] = {};
  std::deque<InFlight> in_flight_;  // copies, in the order of the stream
  std::vector<uint64_t> free_;      // slots; of the side that sends
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_MOVE_SLOTS_H_
