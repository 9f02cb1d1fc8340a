// SPDX-License-Identifier: Apache-2.0
// host/checkpoint/holding.h: an end of a move link (host/session/move_link.h) where there is no
// worker but a checkpoint.
//
//   worker ──session──▶ HoldSession ──▶ folder and HeldSession     the program waits
//   worker ◀──session── RestoreSession ◀── folder and HeldSession  it goes on
//
// The folder gets what was on the device. What joins the session with its program stays: its
// descriptors. A session that is held is nobody's but its HeldSession's; until RestoreSession has
// succeeded it can be restored again, from any whole copy of its folder.
//
// Both wait for the disk and for the worker: they belong on a thread of their own.
#ifndef CONSORT_HOST_CHECKPOINT_HOLDING_H_
#define CONSORT_HOST_CHECKPOINT_HOLDING_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "host/checkpoint/manifest.h"
#include "host/session/move_link.h"
#include "host/session/session_transfer.h"

namespace consort::host {

struct HeldSession {
  CheckpointId id = {};
  std::string folder;  // that it was written to
  UniqueFd lock;       // of that folder: nobody writes another checkpoint over it
  SessionDescriptors descriptors;
};

// Takes a session that departs, into `folder`. `about` says whose it is; what it has is filled in.
// Whatever fails, the session stays where it was and is told why.
absl::StatusOr<HeldSession> HoldSession(MoveLink* link, const std::string& folder,
                                        CheckpointManifest about);

struct SavedSession {
  CheckpointManifest manifest;
  Nanos took = 0;  // since its work had ended
};
// Writes a session that goes on where it is into `folder`, in the place of what was written of it
// before. `about` as above. Whatever fails, the session goes on and is told why.
absl::StatusOr<SavedSession> SaveSession(MoveLink* link, const std::string& folder,
                                         CheckpointManifest about);

// What is kept of a session whose worker has died.
struct LostSession {
  UniqueFd socket;
  UniqueFd rings;
  UniqueFd redo;                             // host/session/redo_log.h
  std::map<uint64_t, UniqueFd> shared_host;  // by SharedHost::Share::number
};
// Gives a session that arrives what SaveSession has written of it, and its log, which it carries
// out after that. The result and errors as RestoreSession, and kFailedPrecondition: the log does
// not go on from there.
absl::StatusOr<Bytes> RedoSession(MoveLink* link, const LostSession& lost,
                                  const std::string& folder);

// A session in a folder whose program has left its connection and has still to come.
struct AwaitedSession {
  HeldSession held;  // without descriptors but the lock
  CheckpointManifest manifest;
};
// kFailedPrecondition: its connection is held where it was taken, or it is another build's, or
// somebody has the folder. Else as CheckpointReader::Open.
absl::StatusOr<AwaitedSession> AwaitSession(const std::string& folder);

// Gives a session that arrives what `held` and `folder`, its own or a copy of that, have. The
// result is how many bytes of device memory went. Whatever fails, `held` is as it was, and the
// other end is told why. kInvalidArgument, kFailedPrecondition, kDataLoss, kNotFound: the folder is
// of no use.
absl::StatusOr<Bytes> RestoreSession(MoveLink* link, const HeldSession& held,
                                     const std::string& folder);

}  // namespace consort::host

#endif  // CONSORT_HOST_CHECKPOINT_HOLDING_H_
