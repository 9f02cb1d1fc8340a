// SPDX-License-Identifier: Apache-2.0
// host/session/held_work.h: requests that come after a host function which the guest has not run.
//
// A stream is held from its host function until the guest has run that. Nothing on the device waits
// meanwhile: what comes after is kept here and submitted later. (It could wait there, for a word
// that the guest's answer sets. But many driver calls wait for the whole context while they block
// all its other callers: freeing and unregistering memory, loading code, making a stream. On driver
// 580 one such call beside a waiting stream stopped a worker with all its tenants for good.)
//
//   kept:  [launch on s] [record e on s] [free] [t waits for e] [launch on t] [launch on s] ...
//
// A request is kept if its stream is held, or ordered with a held one by the rules of the default
// stream, or if an event of it has a record that is kept, or if it records or destroys an event
// that something kept refers to; and then its own stream is held too. When a host function is done
// the list is walked from its beginning with what is held anew, in the order of the program: what
// need not wait any more comes out, and may hold its stream again. The walk ends early where it has
// met again all that was held before.
//
// Pure logic: knows no driver and no session. Owned by the session loop.
#ifndef CONSORT_HOST_SESSION_HELD_WORK_H_
#define CONSORT_HOST_SESSION_HELD_WORK_H_

#include <cstdint>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "gen/host/handlers.h"
#include "vmsock/channel.h"

namespace consort::host {

class HeldWork {
 public:
  // A stream as order sees it; id 0 is the context's default stream, which counts as blocking.
  struct StreamName {
    uint32_t context = 0;
    uint64_t id = 0;
    bool blocking = true;
  };
  struct Request {
    wire::FrameHeader header;
    std::vector<std::byte> body;
    RequestOrder order;
    std::optional<StreamName> stream;
  };

  // --- Host functions

  // `stream` is held from here on by `callback`. False: that is there already.
  bool Hold(uint64_t callback, const StreamName& stream);
  // The guest was told to run it.
  void Announce(uint64_t callback);
  // The guest has run it. False: no such function, or it was not announced.
  bool Done(uint64_t callback);
  // As Done for all functions: the device is broken and nothing will run.
  void ReleaseAll();

  // --- Requests

  // Whether any stream is held.
  bool active() const { return !all_.streams.empty(); }
  // Whether a request of a frame of `context`, on `stream` if it has one, comes after something
  // held.
  bool MustWait(const RequestOrder& order, uint32_t context,
                const std::optional<StreamName>& stream) const {
    return all_.Holds(order, context, stream);
  }
  // Before an event is recorded on a stream that is not held: drops its records that are kept,
  // since this one replaces them, unless something kept refers to one of them. The result is how
  // many.
  size_t DropRecords(uint64_t event, const std::optional<StreamName>& stream);
  // Keeps a request that must wait. False: kHeldRequestsPerSession or kHeldBytesPerSession are
  // reached, nothing was kept.
  bool Keep(Request request);

  // Whether requests may have become free that Next has not looked at.
  bool walking() const { return walking_; }
  // The next request that need not wait any more, in the order of the program.
  bool Next(Request* request);

  size_t size() const { return requests_.size(); }

 private:
  // What is held, up to some point in the list.
  struct Held {
    absl::flat_hash_map<std::pair<uint32_t, uint64_t>, bool> streams;  // to: blocking
    absl::flat_hash_set<uint64_t> events;                              // with records that are kept
    absl::flat_hash_set<uint64_t> awaited;                // that something else kept refers to
    absl::flat_hash_map<uint32_t, uint32_t> in_context;   // streams
    absl::flat_hash_map<uint32_t, uint32_t> blocking_of;  // a context, but its default stream

    void Add(const StreamName& stream);
    bool Holds(const StreamName& stream) const;
    bool Holds(const RequestOrder& order, uint32_t context,
               const std::optional<StreamName>& stream) const;
    // What a kept request adds.
    void AddOf(const Request& request);
  };
  struct Function {
    StreamName stream;
    bool announced = false;
  };

  absl::flat_hash_map<uint64_t, Function> functions_;
  std::list<Request> requests_;
  uint64_t bytes_ = 0;
  Held all_;  // while a walk goes on: as before it, so never too little

  bool walking_ = false;
  bool restart_ = false;  // the walk must begin anew
  std::list<Request>::iterator next_;
  Held walked_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_HELD_WORK_H_
