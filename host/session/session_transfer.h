// SPDX-License-Identifier: Apache-2.0
// host/session/session_transfer.h: how a session's state and descriptors go over a move link
// (move_link.h): what both ends of it say first. Functions; each belongs to the link's thread.
#ifndef CONSORT_HOST_SESSION_SESSION_TRANSFER_H_
#define CONSORT_HOST_SESSION_SESSION_TRANSFER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/unique_fd.h"
#include "host/session/move_link.h"
#include "host/session/session_state.h"

namespace consort::host {

// The descriptors of a session.
struct SessionDescriptors {
  UniqueFd socket;
  UniqueFd rings;                     // empty: its channel has none
  UniqueFd images;                    // empty: it has no modules
  std::vector<UniqueFd> shared_host;  // as in SessionState
  UniqueFd redo;                      // empty: it goes on from its state alone
};

// By role; borrowed.
using BorrowedDescriptors = std::vector<std::pair<MoveDescriptor::Role, int>>;

// Tells what is to be prepared: `state` is an encoded SessionState of which the window is used.
absl::Status SendPreparation(MoveLink* link, std::span<const std::byte> state);
absl::Status ReceivePreparation(MoveLink* link, SessionState* state);

// `state` is an encoded SessionState.
absl::Status SendSession(MoveLink* link, std::span<const std::byte> state,
                         const BorrowedDescriptors& descriptors);
// `encoded` gets what DecodeSessionState has taken as `state`. kInternal: the other side says what
// cannot be.
absl::Status ReceiveSession(MoveLink* link, std::vector<std::byte>* encoded, SessionState* state,
                            SessionDescriptors* descriptors);

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_SESSION_TRANSFER_H_
