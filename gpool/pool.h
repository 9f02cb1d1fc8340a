// SPDX-License-Identifier: Apache-2.0
// gpool/pool.h: one daemon's pool, as its owner sees it: GPUs of all nodes, places on them for
// applications, links to them.
//
// Thread safe. Callbacks come from threads of the pool's own.
#ifndef CONSORT_GPOOL_POOL_H_
#define CONSORT_GPOOL_POOL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "gpool/etcd_store.h"
#include "gpool/gmap.h"
#include "gpool/link.h"
#include "gpool/mapper_state.h"
#include "gpool/member.h"
#include "gpool/rpc_capnp.h"
#include "gpool/store.h"
#include "gpool/tls.h"

namespace consort::gpool {

struct PoolOptions {
  std::string name = "default";
  std::string node;       // ours, as in our certificate
  std::string listen;     // numeric ADDRESS:PORT of our links
  std::string advertise;  // what the others dial; empty: as `listen`
  TlsFiles tls;
  EtcdOptions etcd;
  MapperOptions mapper;  // while this node is the mapper
};

// One device of an application: the GPU that it is bound to.
struct Vgpu {
  Gid gid = 0;
  std::string node;
  std::string address;
  uint32_t device = 0;      // its index on that node
  std::string description;  // as its owner gave it
  bool local = false;       // on our node
  std::string why;          // for an operator
};

struct PlaceRequest {
  uint64_t id = 0;  // of the caller's choice: no two applications of this node have the same
  std::string application;  // the guest's word
  std::string tenant;
  uint32_t vgpus = 1;
  std::vector<Gid> only = {};  // that the tenant may use, ascending; empty: all
  std::string policy = {};     // that the tenant is placed by; empty: the pool's
};

class Pool {
 public:
  // Joins in the background: a store that does not answer is asked again. `gpus` are ours, without
  // gids. `on_link` gives the socket that a session of another node's application is joined to;
  // `on_tenants` is as Member's.
  // Errors of TlsContext::Load, LinkServer::Listen; kInvalidArgument: the certificate is another
  // node's.
  static absl::StatusOr<std::unique_ptr<Pool>> Start(
      const PoolOptions& options, std::vector<GpuRecord> gpus, LinkServer::OnLink on_link,
      std::function<void(const TenantValues&)> on_tenants);
  ~Pool();

  // Where an application of ours should have its devices. The first of them counts as used from
  // then on. `done` is called once, from any thread. kUnavailable: nobody can tell now.
  // kResourceExhausted: the pool has no such place.
  void Place(const PlaceRequest& request,
             std::function<void(absl::StatusOr<std::vector<Vgpu>>)> done);
  // What the application uses now.
  void Use(const UsedAssembly& assembly) { rpc_->Use(assembly); }
  // It has ended, or does not use anything for now.
  void Release(uint64_t id) { rpc_->Release(id); }
  // One of its sessions on one of our GPUs has ended.
  void Record(const FeedbackRecord& record) { rpc_->Record(record); }
  MapperLoads Loads() const { return rpc_->Loads(); }

  // As DialLink. Blocks.
  absl::StatusOr<std::unique_ptr<TlsStream>> Dial(const std::string& address,
                                                  const std::string& node,
                                                  const LinkHello& hello) const;

  // As Member's. Blocks.
  absl::Status ChangeTenant(const std::string& tenant, const TenantEdit& edit) {
    return member_->ChangeTenant(tenant, edit);
  }

  const Member& member() const { return *member_; }
  const std::string& address() const { return member_options_.address; }

 private:
  Pool() = default;
  // Tells the RPC thread what the member knows.
  void Follow();
  absl::StatusOr<UniqueFd> OnLink(const Identity& peer, const LinkHello& hello,
                                  const LinkServer::OnLink& on_link);
  UniqueFd DialMapper(const MapperRecord& mapper);
  void StoreHistory();

  std::unique_ptr<TlsContext> tls_;
  std::unique_ptr<Store> store_;
  MemberOptions member_options_;
  std::unique_ptr<RpcThread> rpc_;
  std::unique_ptr<Member> member_;
  std::unique_ptr<LinkServer> links_;
  UniqueFd stop_event_;  // readable when the relays to mappers are to end

  absl::Mutex mutex_;
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;  // member_ is there
  bool was_mapper_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> relays_ ABSL_GUARDED_BY(mutex_);  // one a mapper that we talked to
  absl::CondVar wake_;
  std::thread history_thread_;
};

}  // namespace consort::gpool

#endif  // CONSORT_GPOOL_POOL_H_
