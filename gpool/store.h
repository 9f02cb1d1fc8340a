// SPDX-License-Identifier: Apache-2.0
// gpool/store.h: where the state of a pool lies: keys, leases, watches, elections.
//
// The meaning is etcd's, cut to what a pool needs. Every change of the store has a revision; a key
// knows the revisions of its making and of its last change. A commit happens whole or not at all,
// and only if its conditions hold. A key may hang on a lease and goes with it; a lease lapses when
// its holder has not kept it alive for its time. Whoever wants to be the only one makes a key on
// its lease under the condition that there is none (Election in election.h does), and makes what it
// writes later depend on that key's revision: a holder that was cut off and does not know it yet
// cannot write.
//
// Implementations: LocalStore (this process, kept in a file), EtcdStore (a cluster). One
// conformance test holds both to this page. All methods are thread safe and may block, for at most
// kStoreCallTimeout. Errors: kUnavailable, the store cannot be reached or has no majority; whether
// a commit happened is not known then. kInvalidArgument: never with keys and values that a caller
// of ours makes.
#ifndef CONSORT_GPOOL_STORE_H_
#define CONSORT_GPOOL_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace consort::gpool {

using Revision = int64_t;  // 0: of no key
using LeaseId = int64_t;   // 0: no lease

struct KeyValue {
  std::string value;
  Revision created = 0;
  Revision modified = 0;
  LeaseId lease = 0;

  friend bool operator==(const KeyValue&, const KeyValue&) = default;
};

// Keys and what they hold, in order.
using Entries = std::map<std::string, KeyValue>;

// Holds if `key` was made at `created`; 0: if there is no such key. With `modified`: if it also has
// not changed since then.
struct Condition {
  std::string key;
  Revision created = 0;
  std::optional<Revision> modified = std::nullopt;
};

struct Change {
  std::string key;
  std::optional<std::string> value;  // none: the key is removed, if it is there
  LeaseId lease = 0;
};

// Ends when it is destroyed: no call is made or goes on after that. Not from its own callback.
class Watch {
 public:
  virtual ~Watch() = default;
};

class Store {
 public:
  virtual ~Store() = default;

  // All keys that begin with `prefix`, as a majority has them.
  virtual absl::StatusOr<Entries> List(const std::string& prefix) = 0;

  // Makes all `changes` at one revision if all `conditions` hold. The revision; none if a condition
  // did not hold. kNotFound: a lease has lapsed.
  virtual absl::StatusOr<std::optional<Revision>> Commit(const std::vector<Condition>& conditions,
                                                         const std::vector<Change>& changes) = 0;

  // A lease that lapses `seconds` after now, or after the last KeepAlive.
  virtual absl::StatusOr<LeaseId> Grant(int seconds) = 0;
  // kNotFound: it has lapsed, and its keys are gone.
  virtual absl::Status KeepAlive(LeaseId lease) = 0;
  // Ends the lease and removes its keys. Fine if there is none.
  virtual absl::Status Revoke(LeaseId lease) = 0;

  // Calls `on_entries` with all keys of `prefix`: soon, and again after they changed. What changes
  // fast may be told together; the last state is always told. While the store cannot be reached
  // nothing is told. The calls come one after the other from a thread of the store's, and may use
  // the store.
  virtual std::unique_ptr<Watch> Observe(const std::string& prefix,
                                         std::function<void(const Entries&)> on_entries) = 0;
};

}  // namespace consort::gpool

#endif  // CONSORT_GPOOL_STORE_H_
