// SPDX-License-Identifier: Apache-2.0
// host/session/journal.h: the requests that made the objects which a session has now, so that the
// session can be made again on another device.
//
//   StreamCreate 7 ─▶ {stream 7: [StreamCreate]}          StreamDestroy 7 ─▶ {}
//   LibraryLoad 3, KernelGet 9, FunctionSetAttribute 9 of a limit, twice
//                  ─▶ {library 3: [LibraryLoad], kernel 9 of it: [KernelGet, the later Set]}
//
// Guests choose the names of their objects, so requests that are carried out again in their order
// give the same objects. Kept is what made an object and, of what changed it since, the latest of
// each aspect; all goes with the object. So its size follows the objects that are there, which
// kHandlesPerKind bounds, and not the requests that came. Launches, copies and records of events
// are never noted. Pure; owned by the session loop.
#ifndef CONSORT_HOST_SESSION_JOURNAL_H_
#define CONSORT_HOST_SESSION_JOURNAL_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "vmsock/wire/encoder.h"

namespace consort::host {

enum class ObjectKind : uint8_t { kStream, kEvent, kLibrary, kKernel, kLimit, kGreenContext };

// What the guest calls it; of a limit, its number.
struct ObjectName {
  ObjectKind kind = ObjectKind::kStream;
  uint64_t id = 0;

  friend bool operator==(const ObjectName&, const ObjectName&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const ObjectName& name) {
    return H::combine(std::move(state), name.kind, name.id);
  }
};

// One request, as a frame has it.
struct JournalEntry {
  ObjectName object;
  uint64_t order = 0;  // ascending in the order of the requests
  uint16_t opcode = 0;
  uint32_t context = 0;  // the frame's
  std::vector<std::byte> body;
};

class Journal {
 public:
  // The request has made `object`. `owner`: with what it goes; nothing: with the context.
  template <class Request>
  void Make(const ObjectName& object, uint32_t context, const Request& request,
            const std::optional<ObjectName>& owner = std::nullopt) {
    AddMade(object, Entry(object, context, request), owner);
  }
  // The request has changed an aspect of `object`; one that is not there is made by it.
  template <class Request>
  void Change(const ObjectName& object, uint64_t aspect, uint32_t context, const Request& request) {
    AddChange(object, aspect, Entry(object, context, request));
  }
  // The object is gone, and what it owns. Nothing if it is not there.
  void Drop(const ObjectName& object);
  // As Drop, for all that a context owns.
  void DropContext(uint32_t context);

  // All entries in the order of the requests; valid until the next change.
  std::vector<const JournalEntry*> Entries() const;
  size_t size() const { return objects_.size(); }

 private:
  struct Object {
    uint32_t context = 0;
    std::optional<ObjectName> owner;
    bool lasts = false;  // longer than its context
    std::vector<ObjectName> owned;
    JournalEntry made;
    std::vector<std::pair<uint64_t, JournalEntry>> changes;  // by aspect
  };

  template <class Request>
  JournalEntry Entry(const ObjectName& object, uint32_t context, const Request& request) {
    JournalEntry entry;
    entry.object = object;
    entry.order = next_order_++;
    entry.opcode = static_cast<uint16_t>(Request::kOpcode);
    entry.context = context;
    entry.body.resize(request.BodyBytes());
    wire::Encoder encoder(entry.body.data(), entry.body.size());
    request.Encode(encoder);
    return entry;
  }
  void AddMade(const ObjectName& object, JournalEntry entry,
               const std::optional<ObjectName>& owner);
  void AddChange(const ObjectName& object, uint64_t aspect, JournalEntry entry);

  uint64_t next_order_ = 0;
  absl::flat_hash_map<ObjectName, Object> objects_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_JOURNAL_H_
