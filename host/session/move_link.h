// SPDX-License-Identifier: Apache-2.0
// host/session/move_link.h: two workers while a session moves from one to the other.
//
//   the one that has it (move_out.cc)          the one that gets it (move_in.cc)
//                     ◄──────── MoveReady, slots ──── has a window; from here the session may stop
//   stops the session
//   MoveState, descriptors ────────────────────────►  makes its objects and its memory
//   MovePiece ... ─────────────────────────────────►  copies contents from a slot to the device
//                     ◄──────── MovePieceTaken ...
//   MoveContentsEnd ───────────────────────────────►
//                     ◄──────── MoveRestored ───────  the session is whole here
//   MoveCommit ────────────────────────────────────►  takes up the channel
//   either ─── MoveFailed, or the link ends: the session stays where it was
//
// consortd makes the link and gives each worker an end. Contents lie in slots, memory that both
// have mapped and registered with their devices. Everything here belongs to one session's thread.
#ifndef CONSORT_HOST_SESSION_MOVE_LINK_H_
#define CONSORT_HOST_SESSION_MOVE_LINK_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "gen/device/driver_table.h"
#include "host/control/control_socket.h"
#include "host/limits.h"
#include "memmgr/address_window.h"
#include "vmsock/deadline.h"

namespace consort::host {

struct MoveReady {
  static constexpr MessageKind kKind = MessageKind::kMoveReady;
  uint64_t reserved = 0;
};
struct MoveState {
  static constexpr MessageKind kKind = MessageKind::kMoveState;
  uint64_t bytes = 0;
  uint64_t descriptors = 0;  // MoveDescriptors that follow
};
struct MoveDescriptor {
  static constexpr MessageKind kKind = MessageKind::kMoveDescriptor;
  enum Role : uint64_t { kSocket, kRings, kImages, kSharedHost };
  uint64_t role = kSocket;
};
struct MovePiece {
  static constexpr MessageKind kKind = MessageKind::kMovePiece;
  uint64_t slot = 0;
  uint64_t address = 0;
  uint64_t bytes = 0;
};
struct MovePieceTaken {
  static constexpr MessageKind kKind = MessageKind::kMovePieceTaken;
  uint64_t slot = 0;
};
struct MoveContentsEnd {
  static constexpr MessageKind kKind = MessageKind::kMoveContentsEnd;
  uint64_t reserved = 0;
};
struct MoveRestored {
  static constexpr MessageKind kKind = MessageKind::kMoveRestored;
  uint64_t reserved = 0;
};
struct MoveCommit {
  static constexpr MessageKind kKind = MessageKind::kMoveCommit;
  uint64_t reserved = 0;
};
struct MoveFailed {
  static constexpr MessageKind kKind = MessageKind::kMoveFailed;
  char text[256] = {};
};

class MoveLink {
 public:
  // `stopped` is asked while waiting: whether the session is to end.
  MoveLink(UniqueFd socket, std::function<bool()> stopped)
      : socket_(std::move(socket)), stopped_(std::move(stopped)) {}

  // Waits while the queue is full. Errors: the other worker is gone or stuck.
  template <typename T>
  absl::Status Send(const T& message, int descriptor = -1) {
    while (true) {
      const absl::Status sent = socket_.Send(message, descriptor);
      if (absl::IsUnavailable(sent)) return WhyGone();
      if (!absl::IsResourceExhausted(sent)) return sent;
      const absl::Status room = AwaitRoom();
      if (!room.ok()) return room;
    }
  }
  // kDeadlineExceeded: nothing there yet. kAborted: the other side has failed, with its text.
  absl::Status TryReceive(ControlPacket* packet);
  // As TryReceive, and waits at most `timeout`.
  absl::Status Receive(ControlPacket* packet, Nanos timeout = kMoveSilenceMax);
  // Returns when something has come, or after `timeout`.
  void Await(Nanos timeout);
  // The next packet, which must be a T; `descriptor`, if wanted, gets what came with it.
  template <typename T>
  absl::Status Expect(T* message, UniqueFd* descriptor = nullptr) {
    ControlPacket packet;
    const absl::Status received = Receive(&packet);
    if (!received.ok()) return received;
    if (!packet.As(message)) return absl::InternalError("the other worker says something else");
    if (descriptor != nullptr) *descriptor = std::move(packet.descriptor());
    return absl::OkStatus();
  }

 private:
  absl::Status AwaitRoom();
  // What the other side said last.
  absl::Status WhyGone();

  ControlSocket socket_;
  const std::function<bool()> stopped_;
};

// The slots, on one side. Calls need the worker's context.
class MoveSlots {
 public:
  // Makes the memory, or maps `memory` of the other side.
  static absl::StatusOr<std::unique_ptr<MoveSlots>> Create(const device::DriverTable& driver,
                                                           UniqueFd memory = UniqueFd());
  ~MoveSlots();
  MoveSlots(const MoveSlots&) = delete;
  MoveSlots& operator=(const MoveSlots&) = delete;

  int memory() const { return memory_.get(); }

  // Copies between host and device, and waits for it.
  absl::Status CopyOut(uint64_t from, std::span<std::byte> to);
  absl::Status CopyIn(std::span<const std::byte> from, uint64_t to);
  // Sends what is in the pieces. The result is how many bytes went.
  absl::StatusOr<Bytes> SendContents(MoveLink* link,
                                     const std::vector<memmgr::AddressWindow::Piece>& pieces);
  // Takes pieces up to MoveContentsEnd; `valid` says of each whether it may be written.
  absl::Status ReceiveContents(MoveLink* link, const std::function<bool(uint64_t, Bytes)>& valid);

 private:
  struct InFlight {
    uint64_t slot = 0;
    MovePiece piece;
    CUevent event = nullptr;
  };
  MoveSlots(const device::DriverTable& driver, UniqueFd memory, std::byte* mapped)
      : driver_(driver), memory_(std::move(memory)), mapped_(mapped) {}
  std::byte* At(uint64_t slot) const { return mapped_ + slot * kMoveSlotBytes; }
  absl::Status Failure(const char* what, CUresult result) const;
  absl::Status Finish(const char* what, CUresult submitted);
  // Whether the device has passed the first that is in flight.
  absl::StatusOr<bool> FirstDone();
  absl::Status Record(uint64_t slot, const MovePiece& piece);
  // Sends the pieces whose copies are done; waits for a slot, and for all if `all`.
  absl::Status TurnOut(MoveLink* link, bool all);
  absl::Status CopyAway(const memmgr::AddressWindow::Piece& from, Bytes offset, Bytes bytes,
                        std::byte* to);

  const device::DriverTable& driver_;
  const UniqueFd memory_;
  std::byte* const mapped_;
  bool registered_ = false;
  CUstream stream_ = nullptr;
  CUevent events_[kMoveSlots] = {};
  std::deque<InFlight> in_flight_;  // copies, in the order of the stream
  std::vector<uint64_t> free_;      // slots; of the side that sends
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_MOVE_LINK_H_
