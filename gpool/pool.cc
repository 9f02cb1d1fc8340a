// SPDX-License-Identifier: Apache-2.0
#include "gpool/pool.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace consort::gpool {

absl::StatusOr<std::unique_ptr<Pool>> Pool::Start(const PoolOptions& options,
                                                  std::vector<GpuRecord> gpus,
                                                  LinkServer::OnLink on_session) {
  std::unique_ptr<Pool> pool(new Pool());
  ASSIGN_OR_RETURN(pool->tls_, TlsContext::Load(options.tls));
  if (!pool->tls_->Names(options.node)) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.tls.certificate, " is not the certificate of a node named ", options.node));
  }
  pool->store_ = EtcdStore::Make(options.etcd);
  ASSIGN_OR_RETURN(pool->links_,
                   LinkServer::Listen(pool->tls_.get(), options.listen, std::move(on_session)));
  pool->member_options_ = {options.name, options.node,
                           options.advertise.empty() ? pool->links_->address() : options.advertise,
                           std::move(gpus)};
  pool->member_ = std::make_unique<Member>(pool->store_.get(), pool->member_options_, [] {});
  return pool;
}

Pool::~Pool() {
  links_.reset();
  member_.reset();
}

void Pool::Place(const PlaceRequest& request, std::function<void(absl::StatusOr<Placement>)> done) {
  const std::shared_ptr<const Gmap> map = member_->map();
  Placement placement;
  const auto add = [&](const NodeRecord& node) {
    for (const GpuRecord& gpu : node.gpus) {
      if (placement.vgpus.size() == request.vgpus) return;
      placement.vgpus.push_back({gpu.gid, node.node, node.address, gpu.device, gpu.description,
                                 node.node == member_->node(), "in order"});
    }
  };
  // Ours first.
  if (const auto own = map->nodes.find(member_->node()); own != map->nodes.end()) add(own->second);
  for (const auto& [name, node] : map->nodes) {
    if (name != member_->node()) add(node);
  }
  if (placement.vgpus.empty()) {
    return done(absl::ResourceExhaustedError("the pool has no GPU"));
  }
  done(std::move(placement));
}

absl::StatusOr<std::unique_ptr<TlsStream>> Pool::Dial(const std::string& address,
                                                      const std::string& node,
                                                      const LinkHello& hello) const {
  return DialLink(*tls_, address, node, hello);
}

}  // namespace consort::gpool
