// SPDX-License-Identifier: Apache-2.0
// host/daemon/pool_sessions.h: applications of this host on GPUs of the pool, and sessions of other
// nodes' applications on ours.
//
//   query    ─▶ the pool places the application: an assembly, one GPU for each vGPU
//            ◀─ snapshots of those GPUs, and the assembly's number
//   session  ─▶ its assembly's GPU: ours ─▶ a session as any other
//                                   another node's ─▶ link ─▶ that node's consortd ─▶ its worker
//
// Between the two the program may wait for days; its number says which GPUs it was shown. What it
// says is only used to find an assembly of the same tenant and VM. An assembly that has no session
// for kAssemblyIdle gives its places back and keeps its GPUs; of those the oldest is forgotten when
// there are kAssembliesMax.
//
// A relay is a thread; all else belongs to consortd's loop.
#ifndef CONSORT_HOST_DAEMON_POOL_SESSIONS_H_
#define CONSORT_HOST_DAEMON_POOL_SESSIONS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "gpool/pool.h"
#include "host/daemon/connection.h"
#include "host/daemon/event_loop.h"
#include "host/daemon/options.h"
#include "host/daemon/status.h"
#include "host/daemon/task_threads.h"
#include "host/daemon/tenant_change.h"
#include "host/daemon/tenants.h"
#include "vmsock/wire/handshake.h"

namespace consort::host {

// What a node needs to know of another's GPU to show it to a program: GpuRecord::description.
// Plain values of fixed layout, like those of wire/handshake.h.
struct GpuDescription {
  uint32_t driver_version = 0;
  uint32_t wire_version = wire::kWireVersion;
  char driver_release[64] = {};
  wire::DeviceSnapshot snapshot;
};

// What consortd says to another about a session: LinkHello::payload. Likewise.
struct RemoteSessionRequest {
  uint32_t device = 0;  // of the node that is asked
  uint32_t weight = 0;  // of the tenant
  TenantRates rates;    // likewise
  char tenant[64] = {};
  char vm[64] = {};
  SlotSet slots_taken = {};  // by other sessions of the application
  wire::Hello hello;         // as the program said it
};
static_assert(sizeof(RemoteSessionRequest) <= sizeof(gpool::LinkHello::payload));

// One of our own devices.
struct PoolDevice {
  Ready ready;
  Calibrated speed;
};

class PoolSessions {
 public:
  struct Hooks {
    // A session on our own device; its connection says the assembly.
    std::function<void(Connection, const wire::Hello&, uint32_t device)> open_local;
    std::function<void(Connection, uint32_t status, const std::string& text)> refuse;
    std::function<void(Connection, std::string bytes)> answer;
    std::function<uint32_t(const Connection&)> weight;
    // With what was set at run time.
    std::function<Tenant(const std::string& tenant)> tenant;
    // What the pool says of tenants has changed.
    std::function<void(const gpool::TenantValues&)> tenants;
    // An operator's requests.
    std::function<void(UniqueFd, const gpool::Identity&)> administer;
    // What a program is shown while the pool cannot place it: our own devices.
    std::function<void(Connection)> answer_alone;
  };

  // Joins the pool with our devices. All but `windows` is borrowed. Errors of
  // gpool::Pool::Start.
  static absl::StatusOr<std::unique_ptr<PoolSessions>> Start(EventLoop* loop,
                                                             const PoolMemberOptions& options,
                                                             const std::vector<PoolDevice>& devices,
                                                             const WindowLayout& windows,
                                                             Hooks hooks);
  // Ends all relays, and leaves the pool.
  ~PoolSessions();

  void Query(Connection connection, const wire::Hello& hello);
  // A session whose hello names an assembly.
  void Open(Connection connection, const wire::Hello& hello);
  // One of our own devices has begun, ended a session of an assembly.
  void LocalBegan(uint64_t assembly, const Window& window);
  void LocalEnded(uint64_t assembly);

  // What a session on one of our own devices used, whoever's it was: the pool learns from it.
  void Record(const std::string& application, const PoolDevice& device, const SessionEnded& ended);

  // Changes what the pool says of a tenant to all its hosts; `done` is told how it went. One change
  // at a time: kUnavailable while another is under way.
  void ChangeTenant(const TenantChange& change, const std::string& who,
                    std::function<void(const absl::Status&)> done);
  // Of our own device; none: the pool has not told yet.
  std::optional<gpool::Gid> GidOf(uint32_t device) const;
  PoolStatus Status() const;

 private:
  struct Assembly {
    std::string tenant;
    std::string vm;
    std::string application;
    uint32_t pid = 0;
    std::vector<gpool::Vgpu> vgpus;
    uint32_t sessions = 0;
    SlotSet slots = {};  // of its sessions' windows
    Nanos idle_since = 0;
    std::vector<gpool::Gid> used;  // that the pool counts
  };
  struct Remote {
    uint64_t assembly = 0;
    std::string node;
    gpool::Gid gid = 0;
    std::thread thread;
  };

  PoolSessions(EventLoop* loop, const PoolMemberOptions& options, const WindowLayout& windows,
               Hooks hooks);
  absl::StatusOr<UniqueFd> OnLink(const gpool::Identity& peer, const gpool::LinkHello& hello);
  void OnRemoteSession(Connection connection, const RemoteSessionRequest& request);
  void OnPlaced(uint64_t id, Connection connection, const wire::Hello& hello,
                const absl::StatusOr<std::vector<gpool::Vgpu>>& vgpus);
  void TellUse(uint64_t id, gpool::Gid gid);
  void OpenRemote(uint64_t id, const gpool::Vgpu& vgpu, Connection connection,
                  const wire::Hello& hello);
  void RelayRemote(uint64_t id, std::shared_ptr<Connection> connection, gpool::Vgpu vgpu,
                   const gpool::LinkHello& hello);
  void Began(uint64_t assembly, const Window& window);
  void Ended(uint64_t assembly);
  void Sweep();

  EventLoop* const loop_;
  const PoolMemberOptions options_;
  const WindowLayout windows_;
  const Hooks hooks_;
  // Calls that come from other threads find out here whether this object is still there.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  UniqueFd stop_event_;  // readable when the relays are to end
  bool has_devices_ = false;
  std::map<uint64_t, Assembly> assemblies_;
  uint64_t next_remote_ = 1;
  std::map<uint64_t, Remote> remotes_;
  EventLoop::TimerId sweep_ = 0;
  std::unique_ptr<gpool::Pool> pool_;
  std::optional<TaskThreads> changes_;  // of tenants in the pool's store; ends before the pool
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_POOL_SESSIONS_H_
