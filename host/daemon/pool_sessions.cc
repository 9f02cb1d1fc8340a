// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/pool_sessions.h"

#include <cuda.h>
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "gen/wire/opcodes.h"
#include "gpool/relay.h"
#include "host/control/control_socket.h"
#include "host/daemon/greeter.h"
#include "host/daemon/settings.h"
#include "host/limits.h"
#include "policies/placement/sensitivity.h"
#include "vmsock/listen.h"

namespace consort::host {
namespace {

// Nobody can guess another's; one who could would only reach its own tenant's.
uint64_t NewAssemblyId() {
  uint64_t id = 0;
  while (id == 0) PCHECK(getrandom(&id, sizeof(id), 0) == sizeof(id));
  return id;
}

std::optional<GpuDescription> Describe(const gpool::Vgpu& vgpu) {
  GpuDescription description;
  if (vgpu.description.size() != sizeof(description)) return std::nullopt;
  memcpy(&description, vgpu.description.data(), sizeof(description));
  if (description.wire_version != wire::kWireVersion) return std::nullopt;
  return description;
}

// What a tenant may use can change between a program's start and its use of a GPU.
bool MayUse(const GpuList& list, const gpool::Vgpu& vgpu) {
  const std::optional<GpuDescription> description = Describe(vgpu);
  return description.has_value() && list.Has(vgpu.gid, UuidText(description->snapshot.uuid),
                                             PrintableName(GetText(description->snapshot.name)));
}

// What a program tells devices apart by: two vGPUs may be one GPU, GPUs of two hosts may be in the
// same slot, and CPU devices of all hosts are equal.
class Names {
 public:
  // Changes what another of the program's vGPUs has already.
  void MakeUnique(gpool::Gid gid, wire::DeviceSnapshot* snapshot) {
    std::string uuid(reinterpret_cast<const char*>(snapshot->uuid), sizeof(snapshot->uuid));
    for (uint32_t mixed = gid; !uuids_.insert(uuid).second; ++mixed) {
      for (size_t i = 0; i < sizeof(mixed); ++i) {
        uuid[uuid.size() - 1 - i] = static_cast<char>(snapshot->uuid[uuid.size() - 1 - i] ^
                                                      static_cast<uint8_t>(mixed >> 8 * i));
      }
    }
    memcpy(snapshot->uuid, uuid.data(), uuid.size());
    // "0000:C0:00.0": domain, bus, device. Domains from 8000 on are of no real slot.
    std::string slot = GetText(snapshot->pci_bus_id);
    const std::string rest = slot.substr(std::min(slot.find(':'), slot.size()));
    for (uint32_t domain = gid; !slots_.insert(slot).second; ++domain) {
      slot = absl::StrFormat("%04X%s", kFirstDomain | (domain & (kFirstDomain - 1)), rest);
      snapshot->attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] =
          static_cast<int32_t>(kFirstDomain | (domain & (kFirstDomain - 1)));
    }
    SetText(snapshot->pci_bus_id, slot);
  }

 private:
  static constexpr uint32_t kFirstDomain = 0x8000;
  std::set<std::string> uuids_;
  std::set<std::string> slots_;
};

}  // namespace

PoolSessions::PoolSessions(EventLoop* loop, const PoolMemberOptions& options,
                           const WindowLayout& windows, Hooks hooks)
    : loop_(loop), options_(options), windows_(windows), hooks_(std::move(hooks)) {
  changes_.emplace(loop);
  stop_event_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  PCHECK(stop_event_.valid());
  Sweep();
}

absl::StatusOr<std::unique_ptr<PoolSessions>> PoolSessions::Start(
    EventLoop* loop, const PoolMemberOptions& options, const std::vector<PoolDevice>& devices,
    const WindowLayout& windows, Hooks hooks) {
  std::vector<gpool::GpuRecord> gpus;
  for (const auto& [ready, speed] : devices) {
    GpuDescription description;
    description.driver_version = ready.driver_version;
    SetText(description.driver_release,
            ready.release[0] != '\0' ? GetText(ready.release) : CONSORT_VERSION);
    description.snapshot = ready.snapshot;
    gpool::GpuRecord& gpu = gpus.emplace_back();
    gpu.device = static_cast<uint32_t>(gpus.size() - 1);
    gpu.uuid = UuidText(ready.snapshot.uuid);
    gpu.model = PrintableName(GetText(ready.snapshot.name));
    gpu.memory_bytes = ready.snapshot.total_bytes;
    gpu.speed = {speed.to_device, speed.to_host, speed.memory, speed.arithmetic};
    gpu.description.assign(reinterpret_cast<const char*>(&description), sizeof(description));
  }
  std::unique_ptr<PoolSessions> sessions(
      new PoolSessions(loop, options, windows, std::move(hooks)));
  sessions->has_devices_ = !gpus.empty();
  ASSIGN_OR_RETURN(
      sessions->pool_,
      gpool::Pool::Start(
          options.pool, std::move(gpus),
          [borrowed = sessions.get()](const gpool::Identity& peer, const gpool::LinkHello& hello) {
            return borrowed->OnLink(peer, hello);
          },
          [loop, borrowed = sessions.get(),
           alive = sessions->alive_](const gpool::TenantValues& values) {
            loop->Post([borrowed, alive, values] {
              if (*alive) borrowed->hooks_.tenants(values);
            });
          }));
  LOG(INFO) << "node " << options.pool.node << ": links of the pool on "
            << sessions->pool_->address();
  return sessions;
}

PoolSessions::~PoolSessions() {
  *alive_ = false;
  loop_->Cancel(sweep_);
  const uint64_t one = 1;
  PCHECK(write(stop_event_.get(), &one, sizeof(one)) == sizeof(one));
  for (auto& [id, remote] : remotes_) {
    if (remote.thread.joinable()) remote.thread.join();
  }
  changes_.reset();
  pool_.reset();
}

void PoolSessions::ChangeTenant(const TenantChange& change, const std::string& who,
                                std::function<void(const absl::Status&)> done) {
  if (changes_->running() != 0) {
    return done(
        absl::UnavailableError("another change of the pool's tenants is under way; try again"));
  }
  changes_->Start<absl::Status>(
      [this, change, who = absl::StrCat(who, " of node ", options_.pool.node)] {
        return pool_->ChangeTenant(change.tenant, [&](const std::string& now) {
          return Settings::PoolValue(now, change, who, static_cast<uint64_t>(time(nullptr)));
        });
      },
      std::move(done));
}

// ---- Other nodes' applications on our devices.

// On the link's thread.
absl::StatusOr<UniqueFd> PoolSessions::OnLink(const gpool::Identity& peer,
                                              const gpool::LinkHello& hello) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("socketpair: ", strerror(errno)));
  }
  UniqueFd ours(ends[0]);
  if (hello.kind == gpool::LinkKind::kAdmin) {
    auto theirs = std::make_shared<UniqueFd>(ends[1]);
    loop_->Post([this, alive = alive_, theirs, peer] {
      if (*alive) hooks_.administer(std::move(*theirs), peer);
    });
    return ours;
  }
  RemoteSessionRequest request;
  memcpy(&request, hello.payload, sizeof(request));
  // Shared: a function that can be posted must be copyable, and a descriptor is not.
  auto connection = std::make_shared<Connection>();
  connection->fd.Reset(ends[1]);
  connection->tenant = GetText(request.tenant);
  connection->vm = GetText(request.vm);
  connection->front_door = "pool";
  connection->peer = absl::StrCat("node ", peer.name);
  connection->weight = std::min(request.weight, kTenantWeightMax);
  connection->rates = request.rates;
  connection->slots_taken = request.slots_taken;
  loop_->Post([this, alive = alive_, connection, request] {
    if (*alive) OnRemoteSession(std::move(*connection), request);
  });
  return ours;
}

void PoolSessions::OnRemoteSession(Connection connection, const RemoteSessionRequest& request) {
  const absl::Status same_build = CheckHello(request.hello, wire::kDescriptionHash);
  if (!same_build.ok()) {
    return hooks_.refuse(std::move(connection), wire::kWelcomeVersionMismatch,
                         std::string(same_build.message()));
  }
  // What passes descriptors ends at the other node.
  wire::Hello hello = request.hello;
  hello.features = 0;
  connection.vgpu = hello.device;
  connection.why =
      absl::StrCat("for a program of ", connection.peer, ", which the pool's mapper placed here");
  hooks_.open_local(std::move(connection), hello, request.device);
}

// ---- Our applications.

void PoolSessions::Query(Connection connection, const wire::Hello& hello) {
  gpool::PlaceRequest request;
  request.application = PrintableName(GetText(hello.application));
  request.tenant = connection.tenant;
  const std::shared_ptr<const gpool::Gmap> map = pool_->member().map();
  size_t all = map->gpu_count();
  const Tenant tenant = hooks_.tenant(connection.tenant);
  request.policy = tenant.placement;
  const GpuList& may_use = tenant.gpus;
  if (!may_use.all()) {
    for (const auto& [name, node] : map->nodes) {
      for (const gpool::GpuRecord& gpu : node.gpus) {
        if (may_use.Has(gpu.gid, gpu.uuid, gpu.model)) request.only.push_back(gpu.gid);
      }
    }
    std::sort(request.only.begin(), request.only.end());
    all = request.only.size();
    if (all == 0) {
      if (!pool_->member().joined()) return hooks_.answer_alone(std::move(connection));
      const std::string tenant = connection.tenant;
      return hooks_.refuse(std::move(connection), wire::kWelcomeNoDevice,
                           MayNotUseText(tenant, may_use, "a GPU of the pool"));
    }
  }
  request.vgpus = std::min(connection.devices_max, options_.vgpus.value_or(all));
  request.vgpus = std::clamp<uint32_t>(request.vgpus, 1, kVgpusMax);
  request.id = NewAssemblyId();
  auto shared = std::make_shared<Connection>(std::move(connection));
  pool_->Place(request, [this, alive = alive_, loop = loop_, shared, id = request.id,
                         hello](absl::StatusOr<std::vector<gpool::Vgpu>> vgpus) {
    loop->Post([this, alive, shared, id, hello, vgpus = std::move(vgpus)] {
      if (*alive) OnPlaced(id, std::move(*shared), hello, vgpus);
    });
  });
}

void PoolSessions::OnPlaced(uint64_t id, Connection connection, const wire::Hello& hello,
                            const absl::StatusOr<std::vector<gpool::Vgpu>>& vgpus) {
  if (!vgpus.ok()) {
    LOG(WARNING) << connection.tenant << " (" << connection.peer
                 << ") is not placed by the pool: " << vgpus.status().message();
    if (has_devices_) return hooks_.answer_alone(std::move(connection));
    return hooks_.refuse(std::move(connection), wire::kWelcomeRefused,
                         absl::StrCat("this host has no GPU of its own, and the pool gives none: ",
                                      vgpus.status().message()));
  }
  Assembly assembly;
  assembly.tenant = connection.tenant;
  assembly.vm = connection.vm;
  assembly.application = PrintableName(GetText(hello.application));
  assembly.pid = hello.pid;
  assembly.idle_since = MonotonicNow();
  wire::Welcome welcome;
  std::string snapshots;
  Names names;
  for (const gpool::Vgpu& vgpu : *vgpus) {
    std::optional<GpuDescription> description = Describe(vgpu);
    if (!description.has_value()) {
      LOG(WARNING) << "GPU " << vgpu.gid << " of node " << vgpu.node
                   << " is left out: its daemon is of another version";
      continue;
    }
    if (snapshots.empty()) {
      welcome.driver_version = description->driver_version;
      SetText(welcome.driver_release, GetText(description->driver_release));
    }
    // A program must not use what one of its drivers lacks.
    welcome.driver_version = std::min(welcome.driver_version, description->driver_version);
    names.MakeUnique(vgpu.gid, &description->snapshot);
    // Memory cannot be shared with another host, nor with a program behind a guest's proxy.
    if (!vgpu.local || !connection.shares_memory) {
      description->snapshot.attributes[CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] = 0;
    }
    snapshots.append(reinterpret_cast<const char*>(&description->snapshot),
                     sizeof(description->snapshot));
    assembly.vgpus.push_back(vgpu);
  }
  welcome.device_count = static_cast<uint32_t>(assembly.vgpus.size());
  assembly.used = {vgpus->front().gid};
  if (assemblies_.size() >= kAssembliesMax) {
    const auto oldest =
        std::min_element(assemblies_.begin(), assemblies_.end(), [](const auto& a, const auto& b) {
          return std::pair(a.second.sessions != 0, a.second.idle_since) <
                 std::pair(b.second.sessions != 0, b.second.idle_since);
        });
    if (oldest->second.sessions != 0) {
      return hooks_.refuse(
          std::move(connection), wire::kWelcomeRefused,
          absl::StrCat("this host has its limit of ", kAssembliesMax, " applications on the pool"));
    }
    pool_->Release(oldest->first);
    assemblies_.erase(oldest);
  }
  welcome.assembly = id;
  assemblies_.emplace(welcome.assembly, std::move(assembly));
  std::string bytes(reinterpret_cast<const char*>(&welcome), sizeof(welcome));
  hooks_.answer(std::move(connection), bytes + snapshots);
}

void PoolSessions::Open(Connection connection, const wire::Hello& hello) {
  const auto it = assemblies_.find(hello.assembly);
  if (it == assemblies_.end() || it->second.tenant != connection.tenant ||
      it->second.vm != connection.vm) {
    return hooks_.refuse(std::move(connection), wire::kWelcomeRefused,
                         "consortd does not know this program's devices any more (it was started "
                         "again?); start the program again");
  }
  const Assembly& assembly = it->second;
  if (hello.device >= assembly.vgpus.size()) {
    return hooks_.refuse(
        std::move(connection), wire::kWelcomeNoDevice,
        absl::StrCat("no device ", hello.device, "; there are ", assembly.vgpus.size()));
  }
  const gpool::Vgpu& vgpu = assembly.vgpus[hello.device];
  if (const GpuList may_use = hooks_.tenant(connection.tenant).gpus; !MayUse(may_use, vgpu)) {
    const std::string tenant = connection.tenant;
    return hooks_.refuse(
        std::move(connection), wire::kWelcomeRefused,
        MayNotUseText(tenant, may_use, absl::StrCat("GPU ", vgpu.gid, " of the pool")));
  }
  connection.assembly = hello.assembly;
  connection.slots_taken = assembly.slots;
  connection.vgpu = hello.device;
  connection.why = vgpu.why;
  TellUse(hello.assembly, vgpu.gid);
  if (vgpu.local) return hooks_.open_local(std::move(connection), hello, vgpu.device);
  OpenRemote(hello.assembly, vgpu, std::move(connection), hello);
}

void PoolSessions::OpenRemote(uint64_t id, const gpool::Vgpu& vgpu, Connection connection,
                              const wire::Hello& hello) {
  if (remotes_.size() >= kRemoteSessionsMax) {
    return hooks_.refuse(std::move(connection), wire::kWelcomeRefused,
                         absl::StrCat("this host has its limit of ", kRemoteSessionsMax,
                                      " sessions on other nodes"));
  }
  RemoteSessionRequest request;
  request.device = vgpu.device;
  request.weight = hooks_.weight(connection);
  request.rates = hooks_.tenant(connection.tenant).rates;
  SetText(request.tenant, connection.tenant);
  SetText(request.vm, connection.vm);
  request.slots_taken = connection.slots_taken;
  request.hello = hello;
  gpool::LinkHello link_hello;
  link_hello.kind = gpool::LinkKind::kSession;
  memcpy(link_hello.payload, &request, sizeof(request));
  const uint64_t remote_id = next_remote_++;
  Remote& remote = remotes_[remote_id];
  remote.assembly = id;
  remote.node = vgpu.node;
  remote.gid = vgpu.gid;
  Began(id, Window());
  auto shared = std::make_shared<Connection>(std::move(connection));
  remote.thread = std::thread([this, remote_id, shared, vgpu, link_hello] {
    RelayRemote(remote_id, shared, vgpu, link_hello);
    loop_->Post([this, alive = alive_, remote_id] {
      if (!*alive) return;
      const auto it = remotes_.find(remote_id);
      it->second.thread.join();
      Ended(it->second.assembly);
      remotes_.erase(it);
    });
  });
}

// On the relay's thread, for as long as the session lasts.
void PoolSessions::RelayRemote(uint64_t id, std::shared_ptr<Connection> connection,
                               gpool::Vgpu vgpu, const gpool::LinkHello& hello) {
  const auto link = pool_->Dial(vgpu.address, vgpu.node, hello);
  if (!link.ok()) {
    loop_->Post([this, alive = alive_, connection,
                 text = absl::StrCat("its GPU is gone: ", link.status().message())] {
      if (*alive) hooks_.refuse(std::move(*connection), wire::kWelcomeRefused, text);
    });
    return;
  }
  gpool::RelayOptions relay;
  relay.stop_fd = stop_event_.get();
  relay.head_bytes = sizeof(wire::Welcome);
  relay.on_head = [&](std::span<const std::byte> head) {
    wire::Welcome welcome;
    if (head.size() < sizeof(welcome)) {
      const std::string refusal = RefusalBytes(
          wire::kWelcomeRefused, absl::StrCat("node ", vgpu.node, " took no session; see its log"));
      send(connection->fd.get(), refusal.data(), refusal.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      return;
    }
    memcpy(&welcome, head.data(), sizeof(welcome));
    loop_->Post(
        [this, alive = alive_, id, window = Window{welcome.window_base, welcome.window_bytes}] {
          if (!*alive) return;
          const auto remote = remotes_.find(id);
          const auto assembly = remote != remotes_.end() ? assemblies_.find(remote->second.assembly)
                                                         : assemblies_.end();
          if (assembly != assemblies_.end()) windows_.Add(window, &assembly->second.slots);
        });
  };
  gpool::Relay(connection->fd.get(), link->get(), relay);
}

void PoolSessions::Began(uint64_t id, const Window& window) {
  const auto it = assemblies_.find(id);
  if (it == assemblies_.end()) return;
  ++it->second.sessions;
  windows_.Add(window, &it->second.slots);
}

void PoolSessions::Ended(uint64_t id) {
  const auto it = assemblies_.find(id);
  if (it == assemblies_.end() || it->second.sessions == 0) return;
  if (--it->second.sessions != 0) return;
  it->second.idle_since = MonotonicNow();
  it->second.used.clear();
  pool_->Release(id);
}

void PoolSessions::TellUse(uint64_t id, gpool::Gid gid) {
  Assembly& assembly = assemblies_.at(id);
  if (std::find(assembly.used.begin(), assembly.used.end(), gid) != assembly.used.end()) return;
  assembly.used.push_back(gid);
  pool_->Use({id, assembly.tenant, assembly.application, assembly.used});
}

void PoolSessions::Record(const std::string& application, const PoolDevice& device,
                          const SessionEnded& ended) {
  const auto runtime = static_cast<Nanos>(ended.lasted_nanos);
  if (runtime <= 0) return;
  gpool::FeedbackRecord record;
  record.id = absl::StrCat(pool_->member().boot(), "/", ended.session);
  record.application = PrintableName(application);
  const wire::DeviceSnapshot& snapshot = device.ready.snapshot;
  record.model = gpool::ModelKey(PrintableName(GetText(snapshot.name)), snapshot.total_bytes);
  record.ended_unix = static_cast<Nanos>(ended.started_unix_seconds) * kSecond + runtime;
  record.runtime = runtime;
  record.gpu_time = static_cast<Nanos>(ended.kernel_nanos);
  // Copies are not timed while nobody else is active: as long as they would take at full speed.
  if (device.speed.to_device > 0 && device.speed.to_host > 0) {
    record.transfer_time = static_cast<Nanos>(
        static_cast<double>(ended.bytes_to_device) / device.speed.to_device * kSecond +
        static_cast<double>(ended.bytes_to_host) / device.speed.to_host * kSecond);
  }
  record.bytes = ended.bytes_to_device + ended.bytes_to_host;
  placement::SensitivityMeter meter({}, 0);
  meter.Add(record.bytes, ended.round_trips, runtime);
  record.sensitivity = meter.Value(runtime);
  pool_->Record(record);
}

void PoolSessions::LocalBegan(uint64_t assembly, const Window& window) { Began(assembly, window); }
void PoolSessions::LocalEnded(uint64_t assembly) { Ended(assembly); }

void PoolSessions::Sweep() {
  sweep_ = loop_->After(kAssemblyIdle / 2, [this] { Sweep(); });
  const Nanos now = MonotonicNow();
  for (auto& [id, assembly] : assemblies_) {
    if (assembly.sessions == 0 && !assembly.used.empty() &&
        now - assembly.idle_since > kAssemblyIdle) {
      assembly.used.clear();
      pool_->Release(id);
    }
  }
}

std::optional<gpool::Gid> PoolSessions::GidOf(uint32_t device) const {
  const std::shared_ptr<const gpool::Gmap> map = pool_->member().map();
  const auto node = map->nodes.find(options_.pool.node);
  if (node == map->nodes.end()) return std::nullopt;
  for (const gpool::GpuRecord& gpu : node->second.gpus) {
    if (gpu.device == device) return gpu.gid;
  }
  return std::nullopt;
}

PoolStatus PoolSessions::Status() const {
  PoolStatus status;
  status.pool = options_.pool.name;
  status.node = options_.pool.node;
  status.joined = pool_->member().joined();
  status.problem = pool_->member().problem();
  if (const auto mapper = pool_->member().mapper(); mapper.has_value()) {
    status.mapper = mapper->node;
  }
  status.map = *pool_->member().map();
  const gpool::MapperLoads loads = pool_->Loads();
  status.policy = loads.policy;
  for (const gpool::GpuUse& use : loads.uses) status.bound[use.gid] = use.bound;
  for (const auto& [id, assembly] : assemblies_) {
    if (assembly.sessions == 0) continue;
    AssemblyStatus& out = status.assemblies.emplace_back();
    out.id = id;
    out.tenant = assembly.tenant;
    out.vm = assembly.vm;
    out.application = assembly.application;
    out.pid = assembly.pid;
    out.sessions = assembly.sessions;
    for (const gpool::Vgpu& vgpu : assembly.vgpus) {
      out.vgpus.push_back({vgpu.gid, vgpu.node, vgpu.device, vgpu.local, vgpu.why});
    }
  }
  status.remote_sessions = static_cast<uint32_t>(remotes_.size());
  return status;
}

}  // namespace consort::host
