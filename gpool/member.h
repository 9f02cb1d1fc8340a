// SPDX-License-Identifier: Apache-2.0
// gpool/member.h: one node's part in a pool: its lease, its record, what the others have, and
// whether it is the mapper.
//
//        ┌──────────── lease lapsed ◀───────────┐
//        ▼                                      │
//   outside ──lease, GIDs, nodes/NODE──▶ member ┴──no mapper: tries to become it──▶ mapper
//
// A daemon whose store does not answer goes on with what it knew: its applications and the links to
// others live without a store. By its own clock it is out of the pool when its lease would have
// lapsed, and neither takes a decision as the mapper then. The keys, under consort/POOL/:
//
//   nodes/NODE        gmap.h; on the node's lease
//   gids/N            "NODE/DEVICE/UUID": whose GPU it is, for good
//   mapper            {"node","address","boot"}; on the mapper's lease
//   tenants/TENANT    what all nodes say of a tenant, such as {"weight":2}; written for an operator
//   feedback          what the mapper has learned; written by the mapper, only while it is that
//
// One thread of its own; the store has others. Thread safe.
#ifndef CONSORT_GPOOL_MEMBER_H_
#define CONSORT_GPOOL_MEMBER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/units.h"
#include "gpool/gmap.h"
#include "gpool/store.h"

namespace consort::gpool {

struct MemberOptions {
  std::string pool;             // its name in the store
  std::string node;             // ours
  std::string address;          // where our links are taken
  std::vector<GpuRecord> gpus;  // ours; their gids are given here
};

// Who decides where applications run.
struct MapperRecord {
  std::string node;
  std::string address;
  std::string boot;
  Revision created = 0;  // of its key: another for each time somebody became the mapper

  friend bool operator==(const MapperRecord&, const MapperRecord&) = default;
};

// The values of tenants/TENANT by TENANT. What they mean is for whoever asks to say.
using TenantValues = std::map<std::string, std::string>;
// What the value of a tenant is to be, of what it is; empty: there is none.
using TenantEdit = std::function<absl::StatusOr<std::string>(const std::string& now)>;

class Member {
 public:
  // `store` is borrowed. `on_change` is called, from several threads, when what the methods below
  // tell may have changed; `on_tenants`, from a thread of the store's, when a tenant's value may
  // have.
  Member(Store* store, const MemberOptions& options, std::function<void()> on_change,
         std::function<void(const TenantValues&)> on_tenants);
  // Leaves the pool.
  ~Member();

  // Whether our lease holds.
  bool joined() const;
  // Why it does not; empty if it does.
  std::string problem() const;
  std::shared_ptr<const Gmap> map() const;
  std::optional<MapperRecord> mapper() const;
  // True: this node is the mapper, and its lease holds.
  bool is_mapper() const;

  // Changes a tenant's value, however many others do so at the same time: `edit` may be called
  // again. Errors of `edit`; kAborted: others were faster each time. Blocks.
  absl::Status ChangeTenant(const std::string& tenant, const TenantEdit& edit);

  // What the mapper has written; empty: nothing yet. Blocks.
  absl::StatusOr<std::string> ReadFeedback();
  // kFailedPrecondition: this node is not the mapper (any more). Blocks.
  absl::Status WriteFeedback(const std::string& value);

  const std::string& node() const { return options_.node; }
  const std::string& boot() const { return boot_; }

 private:
  void Run();
  absl::Status Join();
  absl::StatusOr<std::vector<GpuRecord>> TakeGids();
  void KeepAlive(LeaseId lease);
  void TryToMap(LeaseId lease);
  void Left(const std::string& why);
  std::string Key(const std::string& name) const { return prefix_ + name; }
  bool JoinedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Store* const store_;
  const MemberOptions options_;
  const std::function<void()> on_change_;
  const std::function<void(const TenantValues&)> on_tenants_;
  const std::string prefix_;
  const std::string boot_;

  mutable absl::Mutex mutex_;
  LeaseId lease_ ABSL_GUARDED_BY(mutex_) = 0;
  Nanos lease_ends_ ABSL_GUARDED_BY(mutex_) = 0;  // by our clock, at the earliest
  std::string problem_ ABSL_GUARDED_BY(mutex_) = "joining";
  std::shared_ptr<const Gmap> map_ ABSL_GUARDED_BY(mutex_) = std::make_shared<Gmap>();
  std::optional<MapperRecord> mapper_ ABSL_GUARDED_BY(mutex_);
  bool mapper_known_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::CondVar wake_;

  std::unique_ptr<Watch> nodes_watch_;
  std::unique_ptr<Watch> mapper_watch_;
  std::unique_ptr<Watch> tenants_watch_;
  std::thread thread_;
};

}  // namespace consort::gpool

#endif  // CONSORT_GPOOL_MEMBER_H_
