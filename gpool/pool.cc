// SPDX-License-Identifier: Apache-2.0
#include "gpool/pool.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "gpool/limits.h"
#include "gpool/relay.h"

namespace consort::gpool {
namespace {

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> MakePair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return absl::ResourceExhaustedError("no descriptors left");
  }
  return std::pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Pool>> Pool::Start(
    const PoolOptions& options, std::vector<GpuRecord> gpus, LinkServer::OnLink on_link,
    std::function<void(const TenantValues&)> on_tenants) {
  std::unique_ptr<Pool> pool(new Pool());
  ASSIGN_OR_RETURN(pool->tls_, TlsContext::Load(options.tls));
  if (!pool->tls_->Names(options.node)) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.tls.certificate, " is not the certificate of a node named ", options.node));
  }
  pool->stop_event_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!pool->stop_event_.valid()) return absl::ResourceExhaustedError("eventfd");
  ASSIGN_OR_RETURN(std::unique_ptr<MapperState> state, MapperState::Make(options.mapper));
  Pool* raw = pool.get();
  pool->rpc_ = std::make_unique<RpcThread>(
      options.node, std::move(state),
      [raw](const MapperRecord& mapper) { return raw->DialMapper(mapper); });
  pool->store_ = EtcdStore::Make(options.etcd);
  ASSIGN_OR_RETURN(pool->links_,
                   LinkServer::Listen(pool->tls_.get(), options.listen,
                                      [raw, on_link = std::move(on_link)](const Identity& peer,
                                                                          const LinkHello& hello) {
                                        return raw->OnLink(peer, hello, on_link);
                                      }));
  pool->member_options_ = {options.name, options.node,
                           options.advertise.empty() ? pool->links_->address() : options.advertise,
                           std::move(gpus)};
  pool->member_ = std::make_unique<Member>(
      pool->store_.get(), pool->member_options_, [raw] { raw->Follow(); }, std::move(on_tenants));
  {
    absl::MutexLock lock(&pool->mutex_);
    pool->ready_ = true;
  }
  pool->Follow();
  pool->history_thread_ = std::thread([raw] { raw->StoreHistory(); });
  return pool;
}

Pool::~Pool() {
  std::vector<std::thread> relays;
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    relays.swap(relays_);
  }
  wake_.SignalAll();
  if (history_thread_.joinable()) history_thread_.join();
  links_.reset();
  member_.reset();
  const uint64_t one = 1;
  if (stop_event_.valid()) PCHECK(write(stop_event_.get(), &one, sizeof(one)) == sizeof(one));
  rpc_.reset();
  for (std::thread& relay : relays) relay.join();
  absl::MutexLock lock(&mutex_);
  for (std::thread& relay : relays_) relay.join();
}

void Pool::Follow() {
  absl::MutexLock lock(&mutex_);
  if (!ready_ || stop_) return;  // the store's threads talk until member_ is gone
  rpc_->SetMap(member_->map());
  const bool ours = member_->is_mapper();
  std::string history;
  if (ours && !was_mapper_) {
    absl::StatusOr<std::string> read = member_->ReadFeedback();
    LOG_IF(WARNING, !read.ok()) << "the pool's history: " << read.status().message();
    history = read.value_or("");
  }
  was_mapper_ = ours;
  rpc_->SetMapper(member_->mapper(), ours, history);
}

// On the link's thread.
absl::StatusOr<UniqueFd> Pool::OnLink(const Identity& peer, const LinkHello& hello,
                                      const LinkServer::OnLink& on_link) {
  if (hello.kind == LinkKind::kSession || hello.kind == LinkKind::kAdmin) {
    return on_link(peer, hello);
  }
  if (hello.kind != LinkKind::kPool) return absl::InvalidArgumentError("a link of unknown kind");
  ASSIGN_OR_RETURN(auto pair, MakePair());
  rpc_->Accept(peer.name, std::move(pair.second));
  return std::move(pair.first);
}

// On a thread of the RPC's.
UniqueFd Pool::DialMapper(const MapperRecord& mapper) {
  LinkHello hello;
  hello.kind = LinkKind::kPool;
  auto link = Dial(mapper.address, mapper.node, hello);
  auto pair = MakePair();
  if (!link.ok() || !pair.ok()) {
    LOG(WARNING) << "the pool's mapper: " << (link.ok() ? pair.status() : link.status()).message();
    return UniqueFd();
  }
  absl::MutexLock lock(&mutex_);
  if (stop_) return UniqueFd();
  // Shared: a function must be copyable.
  auto stream = std::shared_ptr<TlsStream>(*std::move(link));
  auto ours = std::make_shared<UniqueFd>(std::move(pair->first));
  relays_.emplace_back([this, stream, ours] {
    RelayOptions options;
    options.stop_fd = stop_event_.get();
    Relay(ours->get(), stream.get(), options);
  });
  return std::move(pair->second);
}

void Pool::StoreHistory() {
  std::optional<std::string> unstored;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (!stop_) wake_.WaitWithTimeout(&mutex_, absl::Nanoseconds(kLoadsEvery));
      if (stop_) return;
    }
    if (std::optional<std::string> fresh = rpc_->TakeHistory(); fresh.has_value()) {
      unstored = std::move(fresh);
    }
    if (!unstored.has_value()) continue;
    const absl::Status stored = member_->WriteFeedback(*unstored);
    // A successor has what was stored before, and is told the rest by nobody: it is measured again.
    if (stored.ok() || absl::IsFailedPrecondition(stored)) {
      unstored.reset();
    } else {
      LOG(WARNING) << "storing the pool's history: " << stored.message();
    }
  }
}

void Pool::Place(const PlaceRequest& request,
                 std::function<void(absl::StatusOr<std::vector<Vgpu>>)> done) {
  if (!member_->joined()) return done(absl::UnavailableError(member_->problem()));
  const UsedAssembly who = {request.id, request.tenant, request.application,
                            {},         request.only,   request.policy};
  rpc_->Place(
      who, request.vgpus, /*trial=*/false,
      [this, done = std::move(done)](absl::StatusOr<std::vector<PlacedVgpu>> placed) {
        if (!placed.ok()) return done(placed.status());
        const std::shared_ptr<const Gmap> map = member_->map();
        std::vector<Vgpu> vgpus;
        for (PlacedVgpu& one : *placed) {
          const NodeRecord* node = nullptr;
          const GpuRecord* gpu = map->Find(one.gid, &node);
          if (gpu == nullptr) continue;  // it has left meanwhile
          vgpus.push_back({gpu->gid, node->node, node->address, gpu->device, gpu->description,
                           node->node == member_->node(), std::move(one.why)});
        }
        if (vgpus.empty()) return done(absl::UnavailableError("its GPUs have just left"));
        done(std::move(vgpus));
      });
}

absl::StatusOr<std::unique_ptr<TlsStream>> Pool::Dial(const std::string& address,
                                                      const std::string& node,
                                                      const LinkHello& hello) const {
  return DialLink(*tls_, address, node, hello);
}

}  // namespace consort::gpool
