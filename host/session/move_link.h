// SPDX-License-Identifier: Apache-2.0
// host/session/move_link.h: two workers while a session moves from one to the other.
//
//   the one that has it (move_out.cc)          the one that gets it (move_in.cc)
//                     ◄──────── MoveReady, slots ──── has a window
//   MovePrepare, MoveMemory ... MoveMemoryEnd ─────►  makes memory; maps the other device's, if it
//                     ◄──────── MovePrepared ───────  is one that it reaches
//   stops the session
//   MoveState, descriptors ────────────────────────►  makes its objects and its memory
//   MoveDirect ... ────────────────────────────────►  copies contents from the other device
//   MovePiece ... ─────────────────────────────────►  copies contents from a slot to the device
//                     ◄──────── MovePieceTaken ...
//   MoveContentsEnd ───────────────────────────────►
//                     ◄──────── MoveRestored ───────  the session is whole here
//   MoveCommit ────────────────────────────────────►  takes up the channel
//   or MoveStays ──────────────────────────────────►  is a checkpoint, and the session goes on here
//   either ─── MoveFailed, or the link ends: the session stays where it was
//
// consortd makes the link and gives each worker an end. Contents lie in slots (slot_memory.h) that
// both have mapped and registered with their devices (move_slots.h). Either end can be a checkpoint
// instead of a worker: host/checkpoint/holding.h. An end belongs to one thread.
#ifndef CONSORT_HOST_SESSION_MOVE_LINK_H_
#define CONSORT_HOST_SESSION_MOVE_LINK_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "base/unique_fd.h"
#include "host/control/control_socket.h"
#include "host/control/messages.h"
#include "host/limits.h"
#include "vmsock/deadline.h"

namespace consort::host {

struct MoveReady {
  static constexpr MessageKind kKind = MessageKind::kMoveReady;
  uint8_t uuid[16] = {};  // of the device; 0: a checkpoint
  uint8_t id[16] = {};    // of the checkpoint that is written
};
// With a file: a SessionState with the window of this moment, which may change until the session
// stops.
struct MovePrepare {
  static constexpr MessageKind kKind = MessageKind::kMovePrepare;
  uint64_t bytes = 0;
};
// Device memory, with its descriptor.
struct MoveMemory {
  static constexpr MessageKind kKind = MessageKind::kMoveMemory;
  uint64_t address = 0;
  uint64_t bytes = 0;
};
struct MoveMemoryEnd {
  static constexpr MessageKind kKind = MessageKind::kMoveMemoryEnd;
  uint64_t reserved = 0;
};
struct MovePrepared {
  static constexpr MessageKind kKind = MessageKind::kMovePrepared;
  uint64_t direct = 0;  // 1: MoveDirect may name what is in the memory that was passed
};
struct MoveState {
  static constexpr MessageKind kKind = MessageKind::kMoveState;
  uint64_t bytes = 0;
  uint64_t descriptors = 0;  // MoveDescriptors that follow
};
struct MoveDescriptor {
  static constexpr MessageKind kKind = MessageKind::kMoveDescriptor;
  enum Role : uint64_t { kSocket, kRings, kImages, kSharedHost, kRedo };
  uint64_t role = kSocket;
};
struct MoveDirect {
  static constexpr MessageKind kKind = MessageKind::kMoveDirect;
  uint64_t address = 0;
  uint64_t bytes = 0;
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
  uint64_t held = 0;  // 1: it is whole in a checkpoint, on no device
  MoveTimes times;    // of this side
};
struct MoveCommit {
  static constexpr MessageKind kKind = MessageKind::kMoveCommit;
  uint64_t reserved = 0;
};
// In place of MoveCommit: the session goes on where it is, and its log begins with the checkpoint.
struct MoveStays {
  static constexpr MessageKind kKind = MessageKind::kMoveStays;
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

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_MOVE_LINK_H_
