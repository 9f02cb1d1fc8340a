// SPDX-License-Identifier: Apache-2.0
// host/daemon/moves.h: what consortd knows of applications that were told to go to another device,
// into a checkpoint, or from one to a device.
//
//   Begin ──▶ moving ──▶ moved, or stayed and why
//
// A session that moves gets a new number on its new device, so a number moves once at most. The
// latest kMovesRemembered are kept for who asks. Owned by consortd's loop.
#ifndef CONSORT_HOST_DAEMON_MOVES_H_
#define CONSORT_HOST_DAEMON_MOVES_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/units.h"

namespace consort::host {

struct MoveRecord {
  enum class State { kMoving, kMoved, kStayed };

  uint64_t session = 0;  // where it was
  uint64_t becomes = 0;  // its number where it goes; 0: it was refused at once
  std::string application;
  std::optional<uint32_t> from;  // none: a checkpoint
  std::optional<uint32_t> to;    // likewise
  std::string folder;            // of the checkpoint
  bool left = false;             // it has gone from where it was
  // Said while the checkpoint was still being written; told when it is no more.
  std::optional<absl::Status> stays;
  State state = State::kMoving;
  std::string text;   // why it stays
  std::string binds;  // why there, of one that is bound by this; empty: it was told to go
  Nanos stopped = 0;
  Bytes bytes = 0;         // of device memory
  Bytes direct_bytes = 0;  // of them, those that went from device to device
};

class MoveBook {
 public:
  void Add(MoveRecord record);
  // The move of this session that goes on; null: none.
  MoveRecord* Find(uint64_t session);
  // Likewise of the session that it becomes.
  MoveRecord* FindBecoming(uint64_t session);
  bool AnyFrom(uint32_t device) const;
  // An object with an array, the latest last.
  std::string Json() const;

 private:
  // Of those that go on.
  template <class Matches>
  MoveRecord* FindIf(const Matches& matches);

  std::deque<MoveRecord> records_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_MOVES_H_
