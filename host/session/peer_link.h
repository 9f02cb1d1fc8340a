// SPDX-License-Identifier: Apache-2.0
// host/session/peer_link.h: two workers while a session of the one (it reaches) uses device memory
// of a session of the other (it lends); both are one program's, on two devices.
//
//   lends (peer_lender.h)                      reaches (peer_reach.h)
//   PeerMemoryMade, descriptor ───────────────►  maps it
//                     ◄──────── PeerTaken ─────
//   ... all that there is
//   PeerMemoryTold ───────────────────────────►  the program's call that asked for it ends
//                     ◄──────── PeerTaken ─────
//   PeerMemoryMade, PeerMemoryGone ───────────►  memory that is made later, or goes
//                     ◄──────── PeerTaken ─────
//
// consortd makes the link and gives each worker an end. Whoever lends waits for each answer, so
// that memory is mapped before its address is told, and not mapped any more before it is used
// again. The link ends with either side: what was mapped then stays mapped until the session that
// reaches ends, as memory that nobody else may have any more.
#ifndef CONSORT_HOST_SESSION_PEER_LINK_H_
#define CONSORT_HOST_SESSION_PEER_LINK_H_

#include <cstdint>

#include "host/control/messages.h"

namespace consort::host {

// Device memory, with its descriptor.
struct PeerMemoryMade {
  static constexpr MessageKind kKind = MessageKind::kPeerMemory;
  uint64_t address = 0;
  uint64_t bytes = 0;
};
struct PeerMemoryGone {
  static constexpr MessageKind kKind = MessageKind::kPeerMemoryGone;
  uint64_t address = 0;
};
// All that there is has been told.
struct PeerMemoryTold {
  static constexpr MessageKind kKind = MessageKind::kPeerMemoryTold;
  uint64_t reserved = 0;
};
struct PeerTaken {
  static constexpr MessageKind kKind = MessageKind::kPeerTaken;
  char text[128] = {};  // what failed; empty: nothing
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_PEER_LINK_H_
