// SPDX-License-Identifier: Apache-2.0
// host/daemon/daemon.h: consortd: doors, greetings, workers, windows, accounts.
//
//   door ─▶ Greeter ─Hello─▶ decide ─┬─ query: answered here from the workers' snapshots
//                                    ├─ refused with a text
//                                    └─ session: window taken, connection passed to the device's
//                                    worker
//
// A device's worker is replaced when it dies or is retired; a retired one stays until its
// sessions have left. Everything runs on the loop's thread. See docs/ARCHITECTURE.md, processes.
#ifndef CONSORT_HOST_DAEMON_DAEMON_H_
#define CONSORT_HOST_DAEMON_DAEMON_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/inherited_fds.h"
#include "base/unique_fd.h"
#include "host/checkpoint/holding.h"
#include "host/control/messages.h"
#include "host/daemon/account.h"
#include "host/daemon/admin_doors.h"
#include "host/daemon/binder.h"
#include "host/daemon/connection.h"
#include "host/daemon/daemon_state.h"
#include "host/daemon/event_log.h"
#include "host/daemon/event_loop.h"
#include "host/daemon/front_doors.h"
#include "host/daemon/greeter.h"
#include "host/daemon/history.h"
#include "host/daemon/keeper.h"
#include "host/daemon/moves.h"
#include "host/daemon/options.h"
#include "host/daemon/pool_sessions.h"
#include "host/daemon/recent_use.h"
#include "host/daemon/settings.h"
#include "host/daemon/share_window.h"
#include "host/daemon/status.h"
#include "host/daemon/task_threads.h"
#include "host/daemon/trace_book.h"
#include "host/daemon/upgrade.h"
#include "host/daemon/upgrade_record.h"
#include "host/daemon/usage_book.h"
#include "host/daemon/vm_doors.h"
#include "host/daemon/window_pool.h"
#include "host/daemon/worker_process.h"

namespace consort::host {

class Daemon final : private AdminActions {
 public:
  Daemon(EventLoop* loop, DaemonOptions options, Settings settings);
  ~Daemon() override;

  // Starts the workers, and opens the doors once all of them are ready; then `on_ready` is called.
  // `on_end` is called when the daemon cannot go on (with an error) or has ended after Stop.
  absl::Status Start(std::function<void()> on_ready, std::function<void(absl::Status)> on_end);
  // Instead of Start: goes on from what the last binary of this process left. An error: it cannot,
  // and the workers end with this object.
  absl::Status Resume(const DaemonState& state, std::function<void()> on_ready,
                      std::function<void(absl::Status)> on_end);
  // Closes the doors, ends the sessions and the workers. Idempotent.
  void Stop();
  // Reaps ended children. Call when SIGCHLD arrived.
  void OnChildSignal();
  // Reads the tenants' file and the VMs' files again: weights and the policy go to the workers,
  // sockets are opened, changed and closed accordingly; isolation and priority are for sessions
  // that begin later. A mistake in a file is logged, and what it says stays as it was.
  void Reload();
  // How things are now.
  DaemonStatus Status() const override;
  std::string Page(const PageRequest& request) const override;

 private:
  struct WaitingSession {
    Connection connection;
    wire::Hello hello;
    Nanos deadline;
  };
  struct Device;
  // Where a device has a worker: one for all packed tenants, always; and one for each tenant that
  // wants a process of its own, while that has sessions.
  struct Slot {
    Device* device = nullptr;
    std::string tenant;               // whose own it is; empty: of all that are packed
    WorkerProcess* worker = nullptr;  // that takes new sessions; null while none runs
    EventLoop::TimerId restart = 0;
    Nanos back_off = 0;                // before the last start; 0: the first one
    WorkerProcess* standby = nullptr;  // takes its place; null: none, or none yet
    EventLoop::TimerId standby_start = 0;
    std::deque<WaitingSession> waiting;
    uint32_t recovering = 0;  // sessions that wait for a worker or go on in one

    // New sessions may come.
    bool ready() const {
      return worker != nullptr && worker->state == WorkerProcess::State::kReady && recovering == 0;
    }
  };
  struct Device {
    Device(uint32_t index, uint64_t first_window);

    const uint32_t index;
    std::optional<Ready> info;  // of its latest worker
    // Where that matters: in a pool, or with --balance.
    bool calibrating = false;
    std::optional<Calibrated> speed;
    MemoryReport memory;  // the latest of the packed tenants' worker
    uint64_t worker_starts = 0;
    uint64_t workers_retired = 0;
    Slot packed;
    std::map<std::string, Slot> own;  // by tenant
    ShareWindow shares;
    WindowPool windows;
    bool drained = false;           // takes no new applications
    Nanos used = 0;                 // when an application last worked on it; for Balance
    std::deque<uint64_t> to_leave;  // sessions that are still to be moved for that
  };
  struct RunningWorker {
    std::unique_ptr<WorkerProcess> process;
    Slot* slot = nullptr;
    bool outdated = false;      // of an earlier binary: replaced when it has no sessions
    std::optional<Ready> told;  // what it said of its device; none: it is starting
  };
  struct Session {
    // One that moves is two: on its old device until it has left, on the new one from its arrival
    // on. One whose worker has died arrives in another. A held one is in a checkpoint and has no
    // worker.
    enum class Stage { kOpen, kArriving, kLeaving, kHeld };
    Stage stage = Stage::kOpen;
    OpenSession open;  // as its worker got it
    SessionIdentity identity;
    Window window;
    bool owns_window = true;  // false: it arrives where it has been held, and that one has it
    uint64_t assembly;
    uint32_t vgpu;
    std::string why;        // it has its device
    WorkerProcess* worker;  // null: it waits for one
    // Shared with the thread that restores it. Without a socket its program has still to come.
    std::shared_ptr<HeldSession> held;
    bool leaves = false;  // its connection, once it is held
    uint32_t weight = 1;
    uint64_t started_unix_seconds;
    Nanos started;
    RecentUse recent;
    Nanos asked = 0;           // when Balance last told it to go
    uint32_t times_asked = 0;  // on this device, so often
    bool bound = true;         // false: its device is chosen when it first uses one
    Nanos bound_at = 0;
    Bytes bound_bytes = 0;  // of memory that it had then
    SessionEnded told;      // by the lines of the account that it has already
    // Of its VM's memory; null: nothing. Shared by what a session is while it moves.
    std::shared_ptr<VmLoan> loan;
  };

  void AddDevice(uint32_t index);
  void CheckAllReady();
  // Those that are not open.
  absl::Status OpenDoors();
  // The doors accept unless somebody must wait.
  void PaceDoors();
  absl::Status JoinPool();
  void Fail(absl::Status status);
  void CheckStopped();

  // --- Workers. daemon_workers.cc
  // The place of the worker that takes a tenant's sessions.
  Slot* SlotOf(Device* device, const std::string& tenant);
  Slot* OwnSlot(Device* device, const std::string& tenant);
  WorkerOptions OptionsFor(const Slot& slot) const;
  // The process of one, which is nobody's yet.
  absl::StatusOr<WorkerProcess*> StartProcess(Slot* slot);
  absl::Status StartWorker(Slot* slot);
  void ScheduleStart(Slot* slot, bool was_ready);
  // Ends a tenant's own worker that nobody needs any more, or one to be replaced.
  void EndIfUnused(Slot* slot);
  void OnPacket(WorkerProcess* worker, ControlPacket& packet);
  void OnReadyMessage(WorkerProcess* worker, const Ready& ready);
  // One that is ready is its slot's from here on.
  void TakeOver(WorkerProcess* worker);
  // Whether all devices have been measured. One after the other, as they share the host's buses.
  absl::StatusOr<bool> CalibrateAll();
  void OnCalibrated(WorkerProcess* worker, const Calibrated& speed);
  // It gets no new sessions from here on.
  void Retire(WorkerProcess* worker, EventLevel level, const std::string& reason);
  // A worker that should be ending.
  void KillLater(pid_t pid);
  void OnGone(WorkerProcess* worker);
  size_t SessionsOf(const WorkerProcess* worker) const;

  // --- Workers that stand by. daemon_standby.cc
  bool IsStandby(const WorkerProcess* worker) const;
  // Sees to it that a worker stands by for a slot whose own is ready, after a while.
  void AwaitStandby(Slot* slot, Nanos after);
  // False: none stands by for the worker that the slot has lost.
  bool PutStandbyInPlace(Slot* slot);
  // It is gone, or of no use.
  void LoseStandby(WorkerProcess* worker, const std::string& why);

  // --- Programs' sessions. daemon_sessions.cc
  bool MayUse(const std::string& tenant, const Device& device) const;
  // What a connection is shown, by index: its device 0, 1, ...
  std::vector<uint32_t> DevicesFor(const Connection& connection) const;
  void Refuse(Connection connection, uint32_t status, const std::string& text);
  void OnHello(Connection connection, const wire::Hello& hello);
  // On the device that the program calls `hello.device`.
  void OpenShown(Connection connection, const wire::Hello& hello);
  std::string WhyShown(const Connection& connection, uint32_t vgpu, size_t shown) const;
  void OpenOn(uint32_t index, Connection connection, const wire::Hello& hello);
  uint32_t WeightOf(const Connection& connection) const;
  // What a session of the tenant is told of it.
  OpenSession TermsOf(const std::string& tenant) const;
  void StartSession(Slot* slot, Connection connection, const wire::Hello& hello);
  // Of the windows that the tenant's sessions have, on all devices.
  SlotSet SlotsOf(const std::string& tenant) const;
  void ServeWaiting(Slot* slot);
  void ExpireWaiting(Slot* slot);
  void EndSession(SessionEnded ended);
  void Account(const SessionIdentity& identity, const SessionEnded& used);
  void AccountOpenSessions();

  // --- What programs ask. daemon_queries.cc
  // kPurposeQuery, and kPurposeStatus with `status`.
  void AnswerQuery(Connection connection, const wire::Hello& hello);
  // What a kPurposeStatus is told beyond the snapshots.
  std::vector<wire::DeviceUse> UsesOf(const Connection& connection,
                                      const std::vector<uint32_t>& shown) const;
  std::vector<wire::ProcessUse> ProcessesOf(const Connection& connection,
                                            const std::vector<uint32_t>& shown) const;

  // --- What operators set. daemon_settings.cc
  void ReopenAccount();
  absl::Status ReloadTenants();
  // Tells the workers what is not as it was before.
  void TellChanges(const std::string& policy, const std::map<std::string, Tenant>& before);
  // Makes the tenants' sockets those of the file.
  absl::Status OpenTenantDoors();
  // Makes the VMs' sockets those of their files.
  absl::Status OpenVmDoors();
  absl::Status SetPolicy(const std::optional<std::string>& policy, const std::string& who) override;
  void SetTenant(const TenantChange& change, const std::string& who,
                 std::function<void(const absl::Status&)> done) override;
  void Denied(const std::string& who, const std::string& what) override;
  // The policy as it is set, to a worker that runs.
  void SendSettings(WorkerProcess* worker);
  // Tells the workers what has changed of a tenant.
  void SendTerms(const Tenant& before, const Tenant& now);
  // Of all tenants, some of which may have other terms than `before`.
  void SendTerms(std::map<std::string, Tenant> before);
  // Logs what of a tenant's terms has changed, and who changed it.
  void TellTerms(const Tenant& before, const Tenant& now, const std::string& who);
  absl::Status SetTenantHere(const TenantChange& change, const std::string& who);
  // The pool says something else of tenants.
  void TakePoolTenants(const gpool::TenantValues& values);

  // --- Applications that move. daemon_moves.cc
  std::string Moves() const override;
  absl::Status MoveSession(uint64_t session, uint32_t device, const std::string& who) override;
  absl::Status SetDrained(uint32_t device, bool drained, const std::string& who) override;
  // An open session that nobody moves.
  absl::StatusOr<Session*> FindToMove(uint64_t session);
  absl::StatusOr<uint64_t> BeginArrival(const Session& session, uint32_t device,
                                        const UniqueFd& link);
  void EndArrival(uint64_t session);
  void SendMoveOut(const Session& session, bool leaves, const UniqueFd& link);
  absl::Status BeginMove(uint64_t session, uint32_t device);
  void OnMoveEnded(const MoveEnded& ended);
  // Whether it is still being written: a checkpoint that has not ended, well or not.
  bool IsWritten(const MoveRecord& record) const;
  void EndMove(uint64_t session, const absl::Status& status);
  void ContinueDrain(uint32_t device);
  const Device* FindPlace(const Device& from, const std::string& tenant,
                          const Window* window) const;

  // --- Applications that are bound when they first use a device. daemon_binding.cc
  // False: the packet is about something else.
  bool OnBindPacket(ControlPacket& packet);
  // The device for one that has `bytes` of memory.
  Binder::Choice ChooseDevice(const Session& wanted, Bytes bytes);
  void NoteBound(Session* session, const std::string& why);
  // What it took, for later choices.
  void RecordBound(const Session& session, const SessionEnded& ended);

  // --- Applications that go to idle devices. daemon_balance.cc
  // Looks each second, from the first call on.
  void Balance();

  // --- Applications that are held in a checkpoint. daemon_checkpoints.cc
  absl::Status CheckpointSession(const CheckpointRequest& request, const std::string& who) override;
  absl::Status RestoreSession(const RestoreRequest& request, const std::string& who) override;
  absl::Status MayBegin() const;
  static CheckpointManifest AboutCheckpoint(const Session& session, const std::string& who);
  // Whether a session is held, or about to be, that was with this slot's worker.
  bool AnyHeldFor(const Slot& slot) const;
  void EraseHeld(uint64_t session);
  std::unique_ptr<MoveLink> TaskLink(UniqueFd socket);
  void OnCheckpointed(uint64_t session, absl::StatusOr<HeldSession> held);
  void EndCheckpoint(MoveRecord* record);
  void OnRestored(uint64_t session, Nanos took, const absl::StatusOr<Bytes>& restored);
  // Ends what is held if its program ends.
  void WatchHeld(uint64_t session);
  void UnwatchHeld(const Session& session);
  void EndHeld(uint64_t session, const std::string& why);

  // --- Applications that leave with their machine, and come with one. daemon_guests.cc
  // Tells a program that all is said.
  void LetProgramGo(uint64_t session);
  void EndConnection(uint64_t session);
  void AwaitProgram(const AwaitRequest& request, const std::string& who,
                    std::function<void(const absl::Status&)> done) override;
  absl::Status TakeAwaited(AwaitedSession awaited, const AwaitRequest& request,
                           const std::string& who);
  // A program that says it has a session.
  void OnResume(Connection connection, const wire::Hello& hello);
  void RestoreResumed(uint64_t session);
  void EndAwaited(uint64_t session);

  // --- Sessions that outlive their workers. daemon_keeper.cc
  struct Recovery {
    Slot* slot = nullptr;
    Nanos died_at = 0;  // the worker that served it last
    uint32_t attempts = 0;
    bool lost = false;  // with its device memory: it is computed again
  };
  // False: the packet is about something else.
  bool OnKeeperPacket(ControlPacket& packet);
  bool GoOnElsewhere(Slot* slot, const SessionEnded& ended);
  // Likewise of a worker that lives and is of no use any more.
  bool GoOnWithout(WorkerProcess* worker, const SessionEnded& ended);
  // To the slot's new worker.
  void PassOnKept(Slot* slot);
  absl::Status PassOn(uint64_t session, WorkerProcess* worker);
  void OnWentOn(uint64_t session);
  void EndRecovery(std::map<uint64_t, Recovery>::iterator recovery);

  // --- Sessions that are saved by themselves. daemon_saves.cc
  struct Saves {
    UniqueFd lock;                            // of the folder with all of theirs
    std::deque<uint64_t> wanted;              // sessions, in the order in which they asked
    uint64_t session = 0;                     // that is being saved; 0: none
    std::string writing;                      // its folder
    Nanos next = 0;                           // not before
    bool waits = false;                       // a timer is set for that
    std::map<uint64_t, std::string> folders;  // by session
    std::map<uint64_t, std::string> told;     // why they get none, likewise
    uint64_t written = 0;
    uint64_t failed = 0;
    uint64_t used = 0;  // sessions that went on from one
  };
  absl::Status OpenSaves();
  void OnSaveWanted(uint64_t session);
  void TendSaves();
  absl::Status BeginSave(uint64_t session);
  void OnSaved(uint64_t session, const absl::StatusOr<SavedSession>& saved);
  // The session is over: its folder goes.
  void DropSave(uint64_t session);
  // Whether a session whose worker has died can be computed again from its checkpoint.
  absl::Status CheckComputesAgain(uint64_t session) const;
  absl::Status PassOnLost(uint64_t session);
  // Those that wait for a worker of this slot, which does not start, go on in another device's.
  void LeaveSlot(Slot* slot);
  // False: there is no other device for it.
  bool LeaveDevice(uint64_t session);

  // --- Sessions that reach each other's memory. daemon_peers.cc
  struct PeerPair {
    uint64_t session = 0;
    uint64_t peer = 0;
    PeerUse use = PeerUse::kCopies;
    uint32_t device = 0;  // of the session
    Window window;        // of the peer; on that device it is taken for the pairs that KeepsWindow
  };
  static bool KeepsWindow(const PeerPair& pair) { return pair.use != PeerUse::kCopies; }
  // False: the packet is about something else.
  bool OnPeerPacket(ControlPacket& packet);
  absl::Status LinkPeers(const PeerWanted& wanted);
  void RefusePeer(const PeerWanted& wanted, const absl::Status& why);
  void FetchMemory(const MemoryWanted& wanted);
  void PassOnMemory(const MemoryFetched& fetched, const UniqueFd& memory);
  void EndPeers(const std::function<bool(const PeerPair&)>& of);
  // Whether the session has the peer's window, for whatever use.
  bool HasPeerWindow(uint64_t session, uint64_t peer) const;
  // Of the windows of all sessions on other devices.
  SlotSet SlotsOfOtherDevices(const Device& device) const;

  // --- What VMs share with this host. daemon_vm_memory.cc
  // The memory of the connection's VM, if the greeting shows that its program sees it. Or null.
  std::shared_ptr<VmMemoryFile> SeenMemory(const Connection& connection,
                                           const wire::Hello& hello) const;
  // Rings for a session that is to have them there; null: the machine has no room, or does not see
  // its memory.
  std::shared_ptr<VmLoan> LendRings(const Connection& connection, const wire::Hello& hello,
                                    uint64_t* offset);
  // False: the packet is about something else.
  bool OnVmMemoryPacket(WorkerProcess* worker, ControlPacket& packet);
  // Nobody else gets what the session has of a VM's memory before the process has ended.
  void KeepLoan(const Session& session, pid_t pid);
  absl::Status RestoreLoans(const DaemonState& state);

  // --- Schedulers' traces. daemon_traces.cc
  void Trace(const TraceRequest& request, const std::string& who,
             std::function<void(const absl::Status&)> done) override;
  std::string Traces() const override;
  // The worker's trace begins or ends, as traces_ says.
  void SendTrace(WorkerProcess* worker);
  void OnTraceEnded(const TraceEnded& trace);
  // Tells those who ended a recording once its files are complete.
  void CheckTraces();

  // --- The next binary. daemon_upgrade.cc
  // Whether there is nothing that would be lost.
  absl::Status MayUpgrade() const;
  absl::Status Upgrade(const std::string& who) override;
  std::string Upgrades() const override;
  void OnRehearsed(int wait_status);
  // Once nobody waits for a worker, or at the deadline.
  void HandOver(Nanos deadline);
  void RefuseUpgrade(const absl::Status& why);
  // While the VMs' doors are paused.
  DaemonState State() const;
  void RestoreBooks(const DaemonState& state);
  absl::Status RestoreWorkers(const DaemonState& state, InheritedFds* fds);
  absl::Status RestoreSessions(const DaemonState& state);
  absl::Status RestoreDoors(const DaemonState& state, InheritedFds* fds);
  // Those of the last binary are replaced as soon as they have no sessions.
  void RenewWorkers(uint64_t description_hash);

  // --- How things are. daemon_status.cc
  void AddShares(const Device& device, DaemonStatus* status) const;
  void SampleHistory();

  EventLoop* const loop_;
  const DaemonOptions options_;
  Settings settings_;
  std::function<void()> on_ready_;
  std::function<void(absl::Status)> on_end_;
  bool ready_ = false;
  bool stopping_ = false;
  EventLoop::TimerId stop_timer_ = 0;

  std::optional<AccountFile> account_;
  Greeter greeter_;
  std::map<std::string, std::unique_ptr<Door>> unix_doors_;  // by path
  OnConnection greet_;
  std::unique_ptr<Door> vsock_door_;
  std::unique_ptr<VmDoors> vm_doors_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::map<WorkerProcess*, RunningWorker> workers_;
  std::map<pid_t, uint32_t> children_;  // not reaped yet, with their device
  std::map<pid_t, std::vector<std::shared_ptr<VmLoan>>> kept_loans_;
  uint64_t next_session_ = 1;
  std::map<uint64_t, Session> sessions_;
  const std::string node_;  // this host's name
  UsageBook usage_;
  EventLog events_;
  TraceBook traces_;
  std::vector<std::function<void(const absl::Status&)>> traces_awaited_;
  History history_;
  MoveBook moves_;
  std::unique_ptr<Binder> binder_;  // null: applications are bound when they connect
  std::vector<PeerPair> peers_;
  Saves saves_;
  Keeper keeper_;
  std::map<uint64_t, Recovery> recoveries_;            // by session
  std::atomic<bool> cancel_tasks_{false};              // relaxed: the tasks look again and again
  std::map<std::string, uint64_t> refused_;            // by reason
  std::map<std::string, uint64_t> unsupported_calls_;  // by function
  std::map<std::string, uint64_t> errors_;             // by kind
  bool reload_failed_ = false;
  UpgradeRecord upgrade_;
  std::unique_ptr<Rehearsal> rehearsal_;  // while there is one
  EventLoop::TimerId upgrade_timer_ = 0;
  std::string upgrade_binary_;  // FileIdentity of what is rehearsed
  bool handing_over_ = false;
  uint64_t started_unix_seconds_;
  std::unique_ptr<AdminDoors> admin_doors_;
  std::unique_ptr<PoolSessions> pool_;  // null: this host is in no pool
  TaskThreads tasks_;                   // ends before what its work uses
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_DAEMON_H_
