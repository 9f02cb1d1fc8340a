// SPDX-License-Identifier: Apache-2.0
// gpool/local_store.h: a store inside this process, for one node that needs no cluster.
//
// Keys without a lease are kept in a file, if one is named; keys on leases end with the process,
// as their holders do. The file is JSON, written whole beside the old one and renamed over it:
//   {"schema":1,"revision":12,"keys":{"tenants/a":{"value":"...","created":3,"modified":7}}}
// Values are text. Thread safe; one thread of its own ends leases and calls watchers.
#ifndef CONSORT_GPOOL_LOCAL_STORE_H_
#define CONSORT_GPOOL_LOCAL_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/units.h"
#include "gpool/store.h"

namespace consort::gpool {

class LocalStore final : public Store {
 public:
  // `path`: the file; empty: nothing is kept. kFailedPrecondition: the file is not one of these.
  // kUnavailable: it cannot be read.
  static absl::StatusOr<std::unique_ptr<LocalStore>> Open(const std::string& path);
  ~LocalStore() override;

  absl::StatusOr<Entries> List(const std::string& prefix) override;
  absl::StatusOr<std::optional<Revision>> Commit(const std::vector<Condition>& conditions,
                                                 const std::vector<Change>& changes) override;
  absl::StatusOr<LeaseId> Grant(int seconds) override;
  absl::Status KeepAlive(LeaseId lease) override;
  absl::Status Revoke(LeaseId lease) override;
  std::unique_ptr<Watch> Observe(const std::string& prefix,
                                 std::function<void(const Entries&)> on_entries) override;

 private:
  class LocalWatch;
  struct Lease {
    Nanos duration;
    Nanos ends;
  };
  struct Watcher {
    std::string prefix;
    std::function<void(const Entries&)> on_entries;
    bool changed = true;  // since it was last called
  };

  explicit LocalStore(const std::string& path);
  absl::Status Load();
  absl::Status Save() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Entries Under(const std::string& prefix) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tell(const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLease(LeaseId lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunWatchers();

  const std::string path_;
  absl::Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
  Revision revision_ ABSL_GUARDED_BY(mutex_) = 0;
  LeaseId next_lease_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<LeaseId, Lease> leases_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_watcher_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Watcher> watchers_ ABSL_GUARDED_BY(mutex_);
  uint64_t called_ ABSL_GUARDED_BY(mutex_) = 0;  // the watcher whose callback runs
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::CondVar changed_;
  std::thread thread_;
};

}  // namespace consort::gpool

#endif  // CONSORT_GPOOL_LOCAL_STORE_H_
