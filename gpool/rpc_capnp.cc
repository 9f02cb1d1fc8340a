// SPDX-License-Identifier: Apache-2.0
#include "gpool/rpc_capnp.h"

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <kj/thread.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/log.h"
#include "gen/gpool/gpool.capnp.h"
#include "gpool/limits.h"

namespace consort::gpool {
namespace {

std::string Text(capnp::Text::Reader text) { return std::string(text.begin(), text.size()); }

std::string What(const kj::Exception& exception) {
  return std::string(exception.getDescription().begin(), exception.getDescription().size());
}

UsedAssembly FromRpc(rpc::Assembly::Reader from) {
  UsedAssembly assembly = {from.getId(), Text(from.getTenant()), Text(from.getApplication()), {}};
  for (const Gid gid : from.getGids()) assembly.gids.push_back(gid);
  return assembly;
}

void ToRpc(const UsedAssembly& assembly, rpc::Assembly::Builder to) {
  to.setId(assembly.id);
  to.setTenant(assembly.tenant);
  to.setApplication(assembly.application);
  auto gids = to.initGids(static_cast<unsigned>(assembly.gids.size()));
  for (unsigned i = 0; i < gids.size(); ++i) gids.set(i, assembly.gids[i]);
}

// ---- The mapper, as whoever talks to it meets it. Of the RPC thread.
struct Service {
  const Clock* clock = nullptr;
  std::unique_ptr<MapperState> state;
  std::shared_ptr<const Gmap> map = std::make_shared<Gmap>();
  bool active = false;         // we are the mapper
  std::set<std::string> told;  // nodes that have told what they use, since we became it
  Nanos gather_until = 0;
  bool changed = false;  // the history, since it was stored

  bool Ready() const {
    if (clock->Monotonic() >= gather_until) return true;
    for (const auto& [name, node] : map->nodes) {
      if (!told.contains(name)) return false;
    }
    return true;
  }
};

class MapperServer final : public rpc::Mapper::Server {
 public:
  MapperServer(Service* service, const std::string& peer) : service_(service), peer_(peer) {}

 protected:
  kj::Promise<void> place(PlaceContext context) override {
    KJ_REQUIRE(service_->active, "this node is not the mapper");
    const auto request = context.getParams();
    auto results = context.getResults();
    if (!service_->Ready()) {
      results.setLater(true);
      return kj::READY_NOW;
    }
    UsedAssembly who = {
        request.getId(), Text(request.getTenant()), Text(request.getApplication()), {}};
    for (const Gid gid : request.getOnly()) who.only.push_back(gid);
    if (!std::is_sorted(who.only.begin(), who.only.end())) {
      results.setRefusal("the GPUs that it may use are not in order");
      return kj::READY_NOW;
    }
    who.policy = Text(request.getPolicy());
    const auto placed = service_->state->Place(peer_, who, request.getVgpus(), request.getTry(),
                                               service_->clock->Unix());
    if (!placed.ok()) {
      results.setRefusal(std::string(placed.status().message()));
      return kj::READY_NOW;
    }
    auto vgpus = results.initVgpus(static_cast<unsigned>(placed->size()));
    for (unsigned i = 0; i < vgpus.size(); ++i) {
      vgpus[i].setGid((*placed)[i].gid);
      vgpus[i].setWhy((*placed)[i].why);
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> use(UseContext context) override {
    KJ_REQUIRE(service_->active, "this node is not the mapper");
    const auto request = context.getParams();
    if (request.getAll()) {
      service_->state->Clear(peer_);
      service_->told.insert(peer_);
    }
    for (const auto assembly : request.getAssemblies()) {
      service_->state->Use(peer_, FromRpc(assembly), service_->clock->Unix());
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> release(ReleaseContext context) override {
    KJ_REQUIRE(service_->active, "this node is not the mapper");
    service_->state->Release(peer_, context.getParams().getId());
    return kj::READY_NOW;
  }

  kj::Promise<void> feedback(FeedbackContext context) override {
    KJ_REQUIRE(service_->active, "this node is not the mapper");
    for (const auto record : context.getParams().getRecords()) {
      const bool fresh = service_->state->Record(
          {Text(record.getId()), Text(record.getApplication()), Text(record.getModel()),
           record.getEndedUnixNanos(), record.getRuntime(), record.getGpuTime(),
           record.getTransferTime(), record.getBytes(), record.getSensitivity(),
           record.getBandwidth()});
      service_->changed = service_->changed || fresh;
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> loads(LoadsContext context) override {
    KJ_REQUIRE(service_->active, "this node is not the mapper");
    auto results = context.getResults();
    const std::vector<GpuUse> uses = service_->state->Uses();
    auto gpus = results.initGpus(static_cast<unsigned>(uses.size()));
    for (unsigned i = 0; i < gpus.size(); ++i) {
      gpus[i].setGid(uses[i].gid);
      gpus[i].setBound(uses[i].bound);
    }
    results.setPolicy(service_->state->policy());
    results.setByFeedback(service_->state->by_feedback());
    return kj::READY_NOW;
  }

 private:
  Service* const service_;
  const std::string peer_;
};

}  // namespace

struct RpcThread::Impl final : kj::TaskSet::ErrorHandler {
  struct Waiting {
    UsedAssembly who;
    uint32_t vgpus;
    bool trial;
    std::function<void(absl::StatusOr<std::vector<PlacedVgpu>>)> done;
    Nanos deadline;
  };
  // A stream with its conversation on it; the order is that of their making.
  struct Conversation {
    kj::Own<kj::AsyncIoStream> stream;
    kj::Own<capnp::TwoPartyClient> rpc;
  };

  const std::string node;
  const Dial dial;
  const Clock* const clock;
  const bool by_hand;  // the clock is not the system's
  std::thread thread;

  // For the others.
  const kj::Executor* executor = nullptr;
  kj::Own<kj::PromiseFulfiller<void>> stop;
  absl::Notification started;
  mutable absl::Mutex mutex;
  MapperLoads loads ABSL_GUARDED_BY(mutex);
  std::optional<std::pair<uint64_t, UniqueFd>> dialled ABSL_GUARDED_BY(mutex);  // era, result

  // Of the thread.
  Service service;
  kj::AsyncIoContext* io = nullptr;
  kj::Timer* timer = nullptr;
  kj::TimerImpl* hand_timer = nullptr;  // the same, if it is moved by hand
  kj::TaskSet* tasks = nullptr;
  std::optional<MapperRecord> mapper;
  uint64_t era = 0;  // counts the changes of mapper
  kj::Maybe<rpc::Mapper::Client> client;
  std::unique_ptr<Conversation> conversation;
  std::thread dialling;
  Nanos next_talk = 0;
  bool untold = false;  // the mapper may not know all that our applications use
  std::deque<Waiting> waiting;
  std::map<uint64_t, UsedAssembly> used;
  std::deque<FeedbackRecord> unsent;
  bool sending = false;  // the mapper has not answered to the latest measurements

  Impl(const std::string& our_node, Dial how, const Clock* given)
      : node(our_node),
        dial(std::move(how)),
        clock(given != nullptr ? given : Clock::System()),
        by_hand(given != nullptr) {}

  kj::TimePoint TimePoint() const {
    return kj::origin<kj::TimePoint>() + clock->Monotonic() * kj::NANOSECONDS;
  }

  void taskFailed(kj::Exception&& exception) override { VLOG(1) << "pool: " << What(exception); }

  // Runs `call` on the thread and waits for its end. Without effect once the thread is ending.
  template <typename Call>
  void Do(Call call) const {
    try {
      executor->executeSync([&call] { call(); });
    } catch (const kj::Exception& ending) {
      VLOG(1) << "pool: " << What(ending);
    }
  }

  void Run() {
    auto context = kj::setupAsyncIo();
    io = &context;
    kj::TimerImpl moved_by_hand(TimePoint());
    hand_timer = &moved_by_hand;
    timer = by_hand ? hand_timer : &io->provider->getTimer();
    auto set = kj::heap<kj::TaskSet>(*this);
    tasks = set.get();
    executor = &kj::getCurrentThreadExecutor();
    auto paf = kj::newPromiseAndFulfiller<void>();
    stop = kj::mv(paf.fulfiller);
    set->add(Tick());
    started.Notify();
    paf.promise.wait(context.waitScope);
    client = nullptr;
    conversation.reset();
    set = nullptr;
    for (Waiting& one : waiting) one.done(absl::CancelledError("consortd is stopping"));
    waiting.clear();
    tasks = nullptr;
  }

  // Every so often: what waits is tried or given up, loads are asked.
  kj::Promise<void> Tick() {
    return timer->afterDelay(kRpcTick / kMillisecond * kj::MILLISECONDS).then([this] {
      TakeDialled();
      Serve();
      if (clock->Monotonic() >= next_talk) {
        next_talk = clock->Monotonic() + kLoadsEvery;
        if (untold) Introduce();
        AskLoads();
        SendFeedback();
      }
      tasks->add(Tick());
    });
  }

  void Become(const std::optional<MapperRecord>& next, bool ours, const std::string& history) {
    if (next == mapper && ours == service.active) return;
    mapper = next;
    ++era;
    client = nullptr;
    conversation.reset();
    if (ours && !service.active) {
      service.state->Load(history);
      service.state->SetMap(*service.map);
      service.told.clear();
      service.gather_until = clock->Monotonic() + kGatherTime;
    }
    service.active = ours;
    if (ours) {
      client = rpc::Mapper::Client(kj::heap<MapperServer>(&service, node));
      Introduce();
    } else if (mapper.has_value() && mapper->node != node) {
      StartDialling();
    }
  }

  // One at a time, on a thread that this one only joins when it is done.
  void StartDialling() {
    if (dialling.joinable()) return;  // TakeDialled begins again
    dialling = std::thread([this, of_era = era, to = *mapper] {
      UniqueFd fd = dial(to);
      absl::MutexLock lock(&mutex);
      dialled = {of_era, std::move(fd)};
    });
  }

  void TakeDialled() {
    std::pair<uint64_t, UniqueFd> result;
    {
      absl::MutexLock lock(&mutex);
      if (!dialled.has_value()) return;
      result = std::move(*dialled);
      dialled.reset();
    }
    dialling.join();
    if (result.first == era && result.second.valid()) return Dialled(era, std::move(result.second));
    if (!service.active && mapper.has_value() && mapper->node != node) StartDialling();
  }

  void Dialled(uint64_t of_era, UniqueFd fd) {
    conversation = std::make_unique<Conversation>();
    conversation->stream = io->lowLevelProvider->wrapSocketFd(
        fd.Release(),
        kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP | kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC);
    conversation->rpc = kj::heap<capnp::TwoPartyClient>(*conversation->stream);
    client = conversation->rpc->bootstrap().castAs<rpc::Mapper>();
    tasks->add(conversation->rpc->onDisconnect().then([this, of_era] { Lost(of_era); }));
    Introduce();
  }

  // The mapper does not answer any more. It may still be it.
  void Lost(uint64_t of_era) {
    if (of_era != era) return;
    ++era;
    client = nullptr;
    // Not from within its own callback.
    tasks->add(kj::evalLater([this, lost = std::move(conversation), now = era]() mutable {
      lost.reset();
      if (now == era && mapper.has_value() && mapper->node != node) StartDialling();
    }));
  }

  // Tells a new mapper all that our applications use.
  void Introduce() {
    KJ_IF_MAYBE (to, client) {
      auto request = to->useRequest();
      request.setAll(true);
      auto list = request.initAssemblies(static_cast<unsigned>(used.size()));
      unsigned i = 0;
      for (const auto& [id, assembly] : used) ToRpc(assembly, list[i++]);
      untold = false;
      tasks->add(request.send().ignoreResult().then(
          [this, of_era = era] {
            if (of_era == era) Serve();
          },
          [this](kj::Exception&&) { untold = true; }));
    }
  }

  void TellUse(const UsedAssembly& assembly) {
    KJ_IF_MAYBE (to, client) {
      auto request = to->useRequest();
      ToRpc(assembly, request.initAssemblies(1)[0]);
      TellOrLater(request.send().ignoreResult());
      return;
    }
  }

  // What does not arrive is told whole, later.
  void TellOrLater(kj::Promise<void> told) {
    tasks->add(told.catch_([this](kj::Exception&&) { untold = true; }));
  }

  void Serve() {
    const Nanos now = clock->Monotonic();
    std::deque<Waiting> all;
    all.swap(waiting);
    for (Waiting& one : all) {
      if (one.deadline <= now) {
        one.done(absl::UnavailableError("the pool's mapper does not answer"));
      } else {
        Ask(std::move(one));
      }
    }
  }

  void Ask(Waiting one) {
    KJ_IF_MAYBE (to, client) {
      auto request = to->placeRequest();
      request.setId(one.who.id);
      request.setTenant(one.who.tenant);
      request.setApplication(one.who.application);
      request.setVgpus(one.vgpus);
      request.setTry(one.trial);
      auto only = request.initOnly(static_cast<unsigned>(one.who.only.size()));
      for (unsigned i = 0; i < only.size(); ++i) only.set(i, one.who.only[i]);
      request.setPolicy(one.who.policy);
      auto shared = std::make_shared<Waiting>(std::move(one));
      const Nanos left = std::max<Nanos>(shared->deadline - clock->Monotonic(), 0);
      kj::Promise<capnp::Response<rpc::Mapper::PlaceResults>> answer = request.send();
      tasks->add(timer->timeoutAfter(left / kMillisecond * kj::MILLISECONDS, kj::mv(answer))
                     .then(
                         [this, shared](capnp::Response<rpc::Mapper::PlaceResults>&& response) {
                           if (response.getLater()) {
                             waiting.push_back(std::move(*shared));
                             return;
                           }
                           if (response.hasRefusal()) {
                             shared->done(
                                 absl::ResourceExhaustedError(Text(response.getRefusal())));
                             return;
                           }
                           std::vector<PlacedVgpu> placed;
                           for (const auto vgpu : response.getVgpus()) {
                             placed.push_back({vgpu.getGid(), Text(vgpu.getWhy())});
                           }
                           if (!shared->trial && !placed.empty()) {
                             shared->who.gids = {placed[0].gid};
                             used[shared->who.id] = shared->who;
                           }
                           shared->done(std::move(placed));
                         },
                         [this, shared](kj::Exception&&) {
                           // Of a mapper that is gone or is none any more: the next one is asked.
                           waiting.push_back(std::move(*shared));
                         }));
      return;
    }
    waiting.push_back(std::move(one));
  }

  void SendFeedback() {
    if (unsent.empty() || sending) return;
    KJ_IF_MAYBE (to, client) {
      auto request = to->feedbackRequest();
      const size_t count = unsent.size();
      auto records = request.initRecords(static_cast<unsigned>(count));
      for (unsigned i = 0; i < count; ++i) {
        const FeedbackRecord& record = unsent[i];
        records[i].setId(record.id);
        records[i].setApplication(record.application);
        records[i].setModel(record.model);
        records[i].setEndedUnixNanos(record.ended_unix);
        records[i].setRuntime(record.runtime);
        records[i].setGpuTime(record.gpu_time);
        records[i].setTransferTime(record.transfer_time);
        records[i].setBytes(record.bytes);
        records[i].setSensitivity(record.sensitivity);
        records[i].setBandwidth(record.bandwidth);
      }
      const std::string last = unsent.back().id;
      sending = true;
      tasks->add(request.send().ignoreResult().then(
          [this, last] {
            sending = false;
            // Those, and nothing that came since.
            const auto end = std::find_if(unsent.begin(), unsent.end(),
                                          [&](const auto& record) { return record.id == last; });
            if (end != unsent.end()) unsent.erase(unsent.begin(), end + 1);
          },
          [this](kj::Exception&&) { sending = false; }));
    }
  }

  void AskLoads() {
    KJ_IF_MAYBE (to, client) {
      tasks->add(to->loadsRequest().send().then(
          [this](capnp::Response<rpc::Mapper::LoadsResults>&& response) {
            MapperLoads now;
            for (const auto gpu : response.getGpus()) {
              now.uses.push_back({gpu.getGid(), gpu.getBound()});
            }
            now.policy = Text(response.getPolicy());
            now.by_feedback = response.getByFeedback();
            absl::MutexLock lock(&mutex);
            loads = std::move(now);
          },
          // It is none for the moment, and does not hear what it is told.
          [this](kj::Exception&&) { untold = true; }));
    }
  }

  void TakeIn(const std::string& peer, UniqueFd fd) {
    auto stream = io->lowLevelProvider->wrapSocketFd(
        fd.Release(),
        kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP | kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC);
    // What a node says is bounded by the relay's speed and by these.
    capnp::ReaderOptions limits;
    limits.traversalLimitInWords = kRpcMessageBytesMax / sizeof(capnp::word);
    auto network =
        kj::heap<capnp::TwoPartyVatNetwork>(*stream, capnp::rpc::twoparty::Side::SERVER, limits);
    auto system = kj::heap<capnp::RpcSystem<capnp::rpc::twoparty::VatId>>(capnp::makeRpcServer(
        *network, rpc::Mapper::Client(kj::heap<MapperServer>(&service, peer))));
    auto gone = network->onDisconnect();
    // Each goes before what it stands on: attachments of one call would go the other way round.
    tasks->add(gone.attach(kj::mv(system)).attach(kj::mv(network)).attach(kj::mv(stream)));
  }
};

RpcThread::RpcThread(const std::string& node, std::unique_ptr<MapperState> state, Dial dial,
                     const Clock* clock)
    : impl_(std::make_unique<Impl>(node, std::move(dial), clock)) {
  impl_->service.clock = impl_->clock;
  impl_->service.state = std::move(state);
  impl_->thread = std::thread([impl = impl_.get()] { impl->Run(); });
  impl_->started.WaitForNotification();
}

RpcThread::~RpcThread() {
  impl_->Do([&] { impl_->stop->fulfill(); });
  impl_->thread.join();
  if (impl_->dialling.joinable()) impl_->dialling.join();
}

void RpcThread::Accept(const std::string& peer, UniqueFd fd) {
  impl_->Do([&] { impl_->TakeIn(peer, std::move(fd)); });
}

void RpcThread::SetMapper(const std::optional<MapperRecord>& mapper, bool ours,
                          const std::string& history) {
  impl_->Do([&] { impl_->Become(mapper, ours, history); });
}

void RpcThread::SetMap(std::shared_ptr<const Gmap> map) {
  impl_->Do([&] {
    impl_->service.map = std::move(map);
    if (impl_->service.active) impl_->service.state->SetMap(*impl_->service.map);
  });
}

void RpcThread::Place(const UsedAssembly& who, uint32_t vgpus, bool trial,
                      std::function<void(absl::StatusOr<std::vector<PlacedVgpu>>)> done) {
  impl_->Do([&] {
    impl_->Ask({who, vgpus, trial, std::move(done), impl_->clock->Monotonic() + kPlaceTimeout});
  });
}

void RpcThread::Use(const UsedAssembly& assembly) {
  impl_->Do([&] {
    impl_->used[assembly.id] = assembly;
    impl_->TellUse(assembly);
  });
}

void RpcThread::Release(uint64_t id) {
  impl_->Do([&] {
    if (impl_->used.erase(id) == 0) return;
    KJ_IF_MAYBE (to, impl_->client) {
      auto request = to->releaseRequest();
      request.setId(id);
      impl_->TellOrLater(request.send().ignoreResult());
    }
  });
}

void RpcThread::Record(const FeedbackRecord& record) {
  impl_->Do([&] {
    if (impl_->unsent.size() >= kFeedbackKept) impl_->unsent.pop_front();
    impl_->unsent.push_back(record);
  });
}

MapperLoads RpcThread::Loads() const {
  absl::MutexLock lock(&impl_->mutex);
  return impl_->loads;
}

void RpcThread::TimeMoved() {
  impl_->Do([&] {
    if (impl_->by_hand) impl_->hand_timer->advanceTo(impl_->TimePoint());
  });
}

std::optional<std::string> RpcThread::TakeHistory() {
  std::optional<std::string> history;
  impl_->Do([&] {
    if (!impl_->service.active || !impl_->service.changed) return;
    impl_->service.changed = false;
    history = impl_->service.state->History();
  });
  return history;
}

}  // namespace consort::gpool
