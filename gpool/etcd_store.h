// SPDX-License-Identifier: Apache-2.0
// gpool/etcd_store.h: a store that is an etcd cluster, 3.4 or later, through its JSON gateway.
//
// One HTTP request a call; one streamed request, with a thread, a watch. The members are tried in
// turn, beginning with the one that answered last. Readings are tried at every member; a commit
// only goes to another member if the first did not even take the connection, since it may have
// happened else. Thread safe. Sources: etcd documentation, "gRPC gateway"; etcd's rpc.proto and
// kv.proto for the meaning of each field.
#ifndef CONSORT_GPOOL_ETCD_STORE_H_
#define CONSORT_GPOOL_ETCD_STORE_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "gpool/store.h"

namespace consort::gpool {

struct EtcdOptions {
  std::vector<std::string> endpoints;  // http://HOST:PORT or https://HOST:PORT, at least one
  // For https, files in PEM form; empty: the system's authorities, no certificate of ours.
  std::string authority_file;
  std::string certificate_file;
  std::string key_file;
};

class EtcdStore final : public Store {
 public:
  // Asks nobody yet: kFailedPrecondition of a call says that what answers is no etcd with a
  // gateway.
  static std::unique_ptr<EtcdStore> Make(const EtcdOptions& options);
  // The same, if a member answers now.
  static absl::StatusOr<std::unique_ptr<EtcdStore>> Connect(const EtcdOptions& options);
  ~EtcdStore() override;

  absl::StatusOr<Entries> List(const std::string& prefix) override;
  absl::StatusOr<std::optional<Revision>> Commit(const std::vector<Condition>& conditions,
                                                 const std::vector<Change>& changes) override;
  absl::StatusOr<LeaseId> Grant(int seconds) override;
  absl::Status KeepAlive(LeaseId lease) override;
  absl::Status Revoke(LeaseId lease) override;
  std::unique_ptr<Watch> Observe(const std::string& prefix,
                                 std::function<void(const Entries&)> on_entries) override;

 private:
  class EtcdWatch;
  struct Listing {
    Entries entries;
    Revision revision;
  };

  explicit EtcdStore(const EtcdOptions& options) : options_(options) {}
  // The body of the answer to POST `path`. `anywhere`: it may be asked twice. Errors of etcd keep
  // their gRPC code.
  absl::StatusOr<std::string> Call(const std::string& path, const std::string& body, bool anywhere);
  absl::StatusOr<Listing> Read(const std::string& prefix);

  const EtcdOptions options_;
  std::atomic<size_t> current_{0};  // a hint; any order will do
};

}  // namespace consort::gpool

#endif  // CONSORT_GPOOL_ETCD_STORE_H_
