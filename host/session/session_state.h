// SPDX-License-Identifier: Apache-2.0
// host/session/session_state.h: all that makes a session, but for the contents of its device memory
// and what goes as descriptors: what a worker tells another one that takes the session over.
//
// Encoded as the wire encodes fields, so that the one bounded decoder reads it. Both workers are of
// one build; an encoding lives for the time of a move, or in a checkpoint (host/checkpoint), which
// says by which version it was written. Plain values.
#ifndef CONSORT_HOST_SESSION_SESSION_STATE_H_
#define CONSORT_HOST_SESSION_SESSION_STATE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "host/session/image_store.h"
#include "host/session/journal.h"
#include "memmgr/address_window.h"

namespace consort::host {

// Raised with every change of what is encoded.
inline constexpr uint32_t kSessionStateVersion = 4;

struct SessionState {
  // The channel: see ChannelHandover.
  bool rings = false;
  bool rings_in_vm = false;
  uint64_t rings_offset = 0;
  uint64_t request_ring_bytes = 0;
  uint64_t reply_ring_bytes = 0;
  uint64_t received = 0;
  uint64_t sent = 0;
  std::vector<std::byte> unread;
  uint32_t deferred_error = 0;

  // In the order in which they are carried out again.
  std::vector<JournalEntry> journal;
  struct Image {
    uint64_t library = 0;
    KeptImage kept;  // in the file that goes as a descriptor
  };
  std::vector<Image> images;
  struct Variable {
    uint64_t library = 0;
    std::string name;
    uint64_t address = 0;
    bool told = false;  // the program knows its address
    uint64_t copy = 0;  // which the program knows instead (variable_copies.h); 0: none
    std::vector<std::byte> contents;
  };
  std::vector<Variable> variables;

  memmgr::AddressWindow::Layout window;
  struct Owned {
    uint64_t address = 0;
    uint32_t context = 0;
  };
  std::vector<Owned> allocations;
  struct SharedHostMemory {
    uint64_t address = 0;
    uint64_t bytes = 0;
    uint64_t offset = 0;  // of its file
    uint32_t context = 0;
    uint64_t number = 0;  // see SharedHost::Share
    bool lent = false;    // likewise
    bool own = false;     // of the guest's library: no kernel has its address
  };
  std::vector<SharedHostMemory> shared_host;  // in the order of their descriptors
  uint64_t reserved_bytes = 0;                // by consort_reserve
};

std::vector<std::byte> Encode(const SessionState& state);
// Nothing: it is no encoding of a state.
std::optional<SessionState> DecodeSessionState(std::span<const std::byte> bytes);

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_SESSION_STATE_H_
