// SPDX-License-Identifier: Apache-2.0
// host/session/redo_log.h: the requests of a session since its latest checkpoint, in a memory file
// that outlives its worker: another worker that has restored the checkpoint carries them out again.
//
//   offset   bytes  field
//    0x000       8  mark of a log
//    0x008      16  base: the checkpoint that the entries come after
//    0x018      16  next: one that is being written, in which all of them are; 0: none
//    0x028       8  bytes of the entries that count
//    0x030       8  received: up to this position of the request ring all is in the checkpoint, in
//                   entries, or needs nothing
//    0x038       8  phase: 0 whole, 1 loose, 2 spoiled
//    0x080     256  why it is not whole, a text
//    0x1000      .  entries
//
//   entry:     0  8  received: the position after its request
//              8  8  answered: the position of the reply ring at which its answer begins, plus 1;
//                    0: it has none; 2: the program has all that it asked for
//             16  8  print of the answer, where it is to be the same again: of MemAlloc the
//                    address, which is asked for then
//             24  4  bytes of the frame
//             28  4  kind: RequestRedo
//             32  .  the frame
//
// What holds at every instant, as stores of a process that dies are in memory in their order:
//
//   A request is in an entry, or has spoiled the log or made it loose, before anything of it is
//   done; so what was done and is in no entry needs nothing.
//   An answer is noted before the program can see it. It begins at `answered`, and the ring's head
//   is beyond that once it was given. So who reads the head knows of each answer whether it was
//   given: of those the program must not hear again, of the others it must.
//
// Loose: what the program was told since it was last at rest is not known in full, or cannot be
// told again. Over at the next rest. Spoiled: something was done that cannot be done again from
// here. Over at the next checkpoint. Entries that only ask go when they are answered and nothing is
// behind them. Bound: kRedoBytesMax, beyond which the log is spoiled.
//
// Owned by the session loop.
#ifndef CONSORT_HOST_SESSION_REDO_LOG_H_
#define CONSORT_HOST_SESSION_REDO_LOG_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "gen/host/handlers.h"
#include "vmsock/channel.h"

namespace consort::host {

// Of a checkpoint; as CheckpointId of host/checkpoint/manifest.h.
using RedoBase = std::array<uint8_t, 16>;

struct RedoHeader;

class RedoLog {
 public:
  // A new one, spoiled, since there is no checkpoint.
  static absl::StatusOr<std::unique_ptr<RedoLog>> Create();
  // One that another process has left, and goes on with it. kFailedPrecondition: it is not whole.
  static absl::StatusOr<std::unique_ptr<RedoLog>> TakeUp(UniqueFd file);
  ~RedoLog();
  RedoLog(const RedoLog&) = delete;
  RedoLog& operator=(const RedoLog&) = delete;

  int fd() const { return file_.get(); }
  bool spoiled() const { return phase_ == kSpoiled; }
  bool loose() const { return phase_ == kLoose; }

  // A checkpoint is being written that has everything so far; all 0: it is not any more.
  void Announce(const RedoBase& next);
  // The log begins anew, after that checkpoint.
  void Begin(const RedoBase& base, uint64_t received);
  // It is of no use before the next checkpoint. The first reason stays.
  void Spoil(const std::string& why);
  void Loosen(const std::string& why);
  // Nothing goes on, and the program has all that it was told.
  void Rest();

  // Before anything of the request is done. Spoils the log if there is no room.
  void Append(const Frame& frame, RequestRedo kind, uint64_t received);
  // The request needs no entry.
  void Pass(uint64_t received);
  // An answer to the request of `call` is about to begin at `position` of the reply ring.
  void Answer(uint32_t call, uint64_t print, uint64_t position);
  // Bytes [offset, offset + bytes) of a CopyToHost, likewise. If they are not all the log is loose.
  void AnswerTransfer(uint64_t transfer, uint64_t offset, uint64_t bytes, uint64_t position);
  // What was answered is in the ring.
  void DropAnswered();

  // --- Of what another process has left, and this one carries out again.
  struct Entry {
    uint64_t answered = 0;  // as above
    uint64_t print = 0;
    RequestRedo kind = RequestRedo::kSpoils;
    Frame frame;
  };
  size_t size() const { return offsets_.size(); }
  // Valid until the log changes.
  Entry At(size_t index) const;
  uint64_t received() const;
  const RedoBase& base() const;
  // What was not given by `head` of the reply ring is not answered.
  void ForgetAnswersFrom(uint64_t head);

 private:
  friend absl::Status CheckRedo(int file);
  friend absl::Status SettleRedo(int file, const RedoBase& checkpoint);
  enum Phase : uint64_t { kWhole, kLoose, kSpoiled };

  RedoLog(UniqueFd file, std::byte* memory, Phase phase);
  static absl::StatusOr<std::unique_ptr<RedoLog>> Map(UniqueFd file);
  struct EntryHeader;
  EntryHeader* HeaderAt(uint32_t offset) const;
  void Explain(const std::string& why);
  void SetPhase(Phase phase);
  // Of entries that wait for an answer.
  void Expect(const EntryHeader& entry, uint32_t offset);
  void Clear();

  const UniqueFd file_;
  std::byte* const memory_;
  RedoHeader* const page_;
  Phase phase_;
  uint64_t end_ = 0;
  std::vector<uint32_t> offsets_;                  // of the entries
  size_t rested_ = 0;                              // so many of them were there at a rest
  absl::flat_hash_map<uint32_t, uint32_t> calls_;  // not answered: to the entry's offset
  struct Transfer {
    uint32_t offset = 0;  // of the entry
    uint64_t bytes = 0;
  };
  absl::flat_hash_map<uint64_t, Transfer> transfers_;  // likewise
};

// What an answer says, in 64 bits.
uint64_t PrintOf(uint32_t result, std::span<const std::byte> body);

// Whether what `file` has may be carried out again: SettleRedo has the last word.
// kFailedPrecondition: it may not, and why, for people. kInvalidArgument: it is no log.
absl::Status CheckRedo(int file);
// Makes what `file` has go on from `checkpoint`, which is the one that it comes after, or the one
// that was being written and has all of it. Errors as CheckRedo, and kFailedPrecondition: it is
// another.
absl::Status SettleRedo(int file, const RedoBase& checkpoint);

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_REDO_LOG_H_
