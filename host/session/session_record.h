// SPDX-License-Identifier: Apache-2.0
// host/session/session_record.h: what another worker needs to go on with a session whose worker has
// died, in a memory file that outlives it.
//
//   offset   bytes  field
//    0x000       8  mark of a record
//    0x008       8  phase: 0 at work, 1 at rest
//    0x010       8  position: what the channel has received, as ChannelHandover
//    0x018       8            and sent
//    0x020       8            deferred error
//    0x028       8  bytes of the state
//    0x040     256  why the session cannot be kept, a text; empty: it can
//    0x1000      .  state: host/session/session_state.h
//
// At work a record says nothing but that: a request was begun or work on the device had not ended,
// and nobody can know how far it came. At rest everything in it is true and nothing goes on. So
//
//   BeginWork  stores the phase before anything of a request can be seen outside of the worker,
//   Write      changes the rest only at work,
//   Rest       stores the phase after it,
//
// and a worker that is killed between any two instructions leaves either a whole truth or "at
// work". One thread writes. Stores of a process that dies are in memory in their order as far as it
// came (x86's stores, and those of one thread anywhere once the kernel has ended it), so the order
// of the program is enough; who reads comes after the end of the writer's control socket. The
// writer is owned by the session loop; reading needs no writer.
#ifndef CONSORT_HOST_SESSION_SESSION_RECORD_H_
#define CONSORT_HOST_SESSION_SESSION_RECORD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace consort::host {

struct RecordedPosition {
  uint64_t received = 0;
  uint64_t sent = 0;
  uint32_t deferred_error = 0;
};

struct RecordHeader;

class SessionRecord {
 public:
  // A new one, at work.
  static absl::StatusOr<std::unique_ptr<SessionRecord>> Create();
  // One that another process has left at rest. kInvalidArgument: it is none.
  static absl::StatusOr<std::unique_ptr<SessionRecord>> TakeUp(UniqueFd file);
  ~SessionRecord();
  SessionRecord(const SessionRecord&) = delete;
  SessionRecord& operator=(const SessionRecord&) = delete;

  int fd() const { return file_.get(); }
  bool at_rest() const { return at_rest_; }

  // Before the first thing of a request is done.
  void BeginWork() {
    if (at_rest_) StoreWork();
  }
  // At work: replaces the state.
  absl::Status Write(std::span<const std::byte> state);
  // At work: says why the session cannot be kept; empty: it can.
  void Explain(const std::string& why);
  // Nothing goes on, and the state that was written last is what is so.
  void Rest(const RecordedPosition& position);

 private:
  SessionRecord(UniqueFd file, RecordHeader* page, bool at_rest)
      : file_(std::move(file)), page_(page), at_rest_(at_rest) {}
  static absl::StatusOr<std::unique_ptr<SessionRecord>> Map(UniqueFd file, bool at_rest);
  std::atomic_ref<uint64_t> Phase();
  void StoreWork();

  const UniqueFd file_;
  RecordHeader* const page_;
  bool at_rest_;
  std::string explained_;
};

struct RestingSession {
  RecordedPosition position;
  std::vector<std::byte> state;
};
// Whether the record is at rest. kFailedPrecondition: it is not, and why, for people.
// kInvalidArgument: it is none.
absl::Status CheckAtRest(int record);
// What a record says that is at rest. Errors as CheckAtRest, and kDataLoss: it is not whole.
absl::StatusOr<RestingSession> ReadRecord(int record);

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_SESSION_RECORD_H_
