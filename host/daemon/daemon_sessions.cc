// SPDX-License-Identifier: Apache-2.0
// consortd: a program that wants a device, from its Hello to the last line of its account.
//
//   OnHello ─▶ OpenShown: which device it means ─▶ OpenOn: may it, does a worker run ─┬▶ waiting
//                                                       StartSession ◀────────────────┴──┘
//                                                            └▶ window, worker ─▶ EndSession
#include <sys/random.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "gen/wire/opcodes.h"
#include "host/daemon/daemon.h"
#include "host/daemon/device_choice.h"
#include "host/limits.h"

namespace consort::host {
namespace {

// No device and no GPU of a pool has it.
constexpr uint32_t kNoNumber = UINT32_MAX;

}  // namespace

bool Daemon::MayUse(const std::string& tenant, const Device& device) const {
  const GpuList list = settings_.Find(tenant).gpus;
  if (list.all()) return true;
  std::optional<uint32_t> number = device.index;
  if (pool_ != nullptr) number = pool_->GidOf(device.index);
  const wire::DeviceSnapshot& snapshot = device.info->snapshot;
  return list.Has(number.value_or(kNoNumber), UuidText(snapshot.uuid),
                  PrintableName(GetText(snapshot.name)));
}

std::vector<uint32_t> Daemon::DevicesFor(const Connection& connection) const {
  std::vector<uint32_t> shown;
  for (const auto& device : devices_) {
    if (shown.size() >= connection.devices_max) break;
    if (MayUse(connection.tenant, *device)) shown.push_back(device->index);
  }
  return shown;
}

void Daemon::Refuse(Connection connection, uint32_t status, const std::string& text) {
  LOG(WARNING) << connection.tenant << " (" << connection.front_door << ", " << connection.peer
               << ") refused: " << text;
  ++refused_[RefusalReason(status)];
  events_.Add(EventLevel::kWarning, absl::StrCat(PrintableName(connection.tenant),
                                                 " was refused: ", PrintableName(text)));
  greeter_.Answer(std::move(connection), RefusalBytes(status, text));
}

void Daemon::OnHello(Connection connection, const wire::Hello& hello) {
  const absl::Status same_build = CheckHello(hello, wire::kDescriptionHash);
  if (!same_build.ok()) {
    return Refuse(std::move(connection), wire::kWelcomeVersionMismatch,
                  std::string(same_build.message()));
  }
  const bool status = hello.purpose == wire::kPurposeStatus;
  if (hello.purpose == wire::kPurposeQuery || status) {
    if (pool_ != nullptr && !status) return pool_->Query(std::move(connection), hello);
    return AnswerQuery(std::move(connection), hello);
  }
  if (hello.purpose == wire::kPurposeResume) return OnResume(std::move(connection), hello);
  if (hello.purpose != wire::kPurposeSession) {
    return Refuse(std::move(connection), wire::kWelcomeRefused,
                  absl::StrCat("unknown purpose ", hello.purpose));
  }
  if (pool_ != nullptr && hello.assembly != 0) return pool_->Open(std::move(connection), hello);
  OpenShown(std::move(connection), hello);
}

void Daemon::OpenShown(Connection connection, const wire::Hello& hello) {
  const std::vector<uint32_t> now = DevicesFor(connection);
  const std::vector<uint32_t> shown = hello.assembly != 0 ? DevicesOf(hello.assembly) : now;
  if (hello.device >= shown.size()) {
    return Refuse(std::move(connection), wire::kWelcomeNoDevice,
                  absl::StrCat("no device ", hello.device, "; there are ", shown.size()));
  }
  const uint32_t index = shown[hello.device];
  if (std::find(now.begin(), now.end(), index) == now.end()) {
    return Refuse(std::move(connection), wire::kWelcomeRefused,
                  absl::StrCat("device ", hello.device,
                               " is not this program's any more; start the program again"));
  }
  connection.vgpu = hello.device;
  connection.why = WhyShown(connection, hello.device, shown.size());
  OpenOn(index, std::move(connection), hello);
}

// A host by itself gives every program the same devices, in the order of their numbers.
std::string Daemon::WhyShown(const Connection& connection, uint32_t vgpu, size_t shown) const {
  std::string why =
      absl::StrCat("the program uses device ", vgpu, " of ", shown, " that it sees: ");
  const GpuList gpus = settings_.Find(connection.tenant).gpus;
  if (gpus.all()) {
    absl::StrAppend(&why, "its tenant may use all ", devices_.size(), " of this host");
  } else {
    absl::StrAppend(&why, "its tenant may use ", gpus.Text(), " only");
  }
  if (connection.devices_max < devices_.size()) {
    absl::StrAppend(&why, ", its machine sees ", connection.devices_max);
  }
  return why;
}

void Daemon::OpenOn(uint32_t index, Connection connection, const wire::Hello& hello) {
  if (index >= devices_.size()) {
    return Refuse(std::move(connection), wire::kWelcomeNoDevice,
                  absl::StrCat("no device ", index, "; there are ", devices_.size()));
  }
  if (!MayUse(connection.tenant, *devices_[index])) {
    const std::string text =
        MayNotUseText(connection.tenant, settings_.Find(connection.tenant).gpus,
                      absl::StrCat("device ", index, " of host ", node_));
    return Refuse(std::move(connection), wire::kWelcomeRefused, text);
  }
  if (devices_[index]->drained) {
    const Device* other = FindPlace(*devices_[index], connection.tenant, /*window=*/nullptr);
    if (other == nullptr) {
      return Refuse(std::move(connection), wire::kWelcomeRefused,
                    absl::StrCat("device ", index, " is drained, and there is no other"));
    }
    index = other->index;
  }
  Slot* slot = SlotOf(devices_[index].get(), connection.tenant);
  if (!slot->ready()) {
    if (slot->waiting.size() >= kSessionsPerWorker) {
      return Refuse(std::move(connection), wire::kWelcomeRefused,
                    "the device is starting and too many wait for it; try again");
    }
    slot->waiting.push_back({std::move(connection), hello, MonotonicNow() + kWorkerStartTimeout});
    loop_->After(kWorkerStartTimeout, [this, slot] { ExpireWaiting(slot); });
    if (slot->worker == nullptr && slot->restart == 0) ScheduleStart(slot, /*was_ready=*/true);
    return;
  }
  StartSession(slot, std::move(connection), hello);
}

uint32_t Daemon::WeightOf(const Connection& connection) const {
  return connection.weight != 0 ? connection.weight : settings_.WeightOf(connection.tenant);
}

OpenSession Daemon::TermsOf(const std::string& name) const {
  const Tenant tenant = settings_.Find(name);
  OpenSession open;
  SetText(open.tenant, name);
  open.weight = settings_.WeightOf(name);
  open.priority = tenant.priority;
  open.memory_soft = tenant.memory_soft;
  open.memory_hard = tenant.memory_hard;
  open.memory_wait_ms = tenant.memory_wait_ms;
  open.stream_priority = static_cast<uint32_t>(tenant.stream_priority);
  open.rates = tenant.rates;
  open.partition = settings_.tenants().PartitionOf(name);
  return open;
}

void Daemon::StartSession(Slot* slot, Connection connection, const wire::Hello& hello) {
  Device* device = slot->device;
  if (SessionsOf(slot->worker) >= kSessionsPerWorker) {
    return Refuse(std::move(connection), wire::kWelcomeRefused,
                  absl::StrCat("device ", device->index, " has its limit of ", kSessionsPerWorker,
                               " applications"));
  }
  SlotSet except = SlotsOf(connection.tenant);
  for (size_t i = 0; i < except.size(); ++i) except[i] |= connection.slots_taken[i];
  // Other devices can only reach its memory where its addresses are free there.
  const std::optional<Window> window = device->windows.Take(
      kWindowMemoryMultiple * device->info->snapshot.total_bytes + kWindowSharedHostBytes, except,
      SlotsOfOtherDevices(*device));
  if (!window.has_value()) {
    return Refuse(
        std::move(connection), wire::kWelcomeRefused,
        absl::StrCat("no address window of device ", device->index, " is free: a device has ",
                     kWindowSlots, ", and so many has a tenant on all devices"));
  }
  OpenSession open = TermsOf(connection.tenant);
  open.session = next_session_++;
  SetText(open.channel, connection.front_door);
  open.weight = WeightOf(connection);
  open.rates = connection.rates.value_or(open.rates);
  open.hello = hello;
  // What passes descriptors ends at this daemon, whatever the guest believes.
  uint32_t& features = open.hello.features;
  if (!connection.shares_memory) features &= ~wire::kFeatureRings;
  std::shared_ptr<VmLoan> loan = LendRings(connection, hello, &open.vm_rings_offset);
  if (loan == nullptr) features &= ~wire::kFeatureVmMemory;
  constexpr uint32_t kShares = wire::kFeatureRings | wire::kFeatureVmMemory;
  if ((features & kShares) != 0 || pool_ != nullptr) features &= ~wire::kFeatureResume;
  const bool resumes = (features & wire::kFeatureResume) != 0;
  // Up to 256 bytes come whole or not at all. Source: getrandom(2).
  if (resumes) {
    CHECK(getrandom(&open.resume_token, sizeof(open.resume_token), 0) == sizeof(open.resume_token));
  }
  open.deferred = options_.bind_at_launch ? 1 : 0;
  open.window_base = window->base;
  open.window_bytes = window->bytes;
  const bool shares = (connection.shares_memory || loan != nullptr) && !resumes;
  open.shared_host_bytes = shares ? kWindowSharedHostBytes : 0;
  absl::Status sent;
  if (loan != nullptr) {
    GiveVmMemory memory;
    memory.session = open.session;
    sent = slot->worker->control().Send(memory, loan->file().fd());
  }
  if (sent.ok()) sent = slot->worker->control().Send(open, connection.fd.get());
  if (!sent.ok()) {
    device->windows.Return(*window);
    return Refuse(std::move(connection), wire::kWelcomeRefused,
                  "the device's worker does not answer; try again");
  }
  Session session;
  session.open = open;
  session.identity.tenant = connection.tenant;
  session.identity.vm = connection.vm.empty() ? connection.tenant : connection.vm;
  session.identity.front_door = connection.front_door;
  session.identity.application = GetText(hello.application);
  session.identity.pid = hello.pid;
  session.identity.device = GetText(device->info->snapshot.name);
  session.identity.device_index = device->index;
  session.window = *window;
  session.assembly = connection.assembly;
  session.vgpu = connection.vgpu;
  session.why = connection.why;
  session.loan = std::move(loan);
  session.bound = open.deferred == 0;
  if (pool_ != nullptr) pool_->LocalBegan(connection.assembly, *window);
  session.worker = slot->worker;
  session.weight = open.weight;
  session.started_unix_seconds = static_cast<uint64_t>(time(nullptr));
  session.started = MonotonicNow();
  usage_.Begin(open.session, {session.identity.tenant, session.identity.application,
                              session.identity.device_index});
  sessions_.emplace(open.session, std::move(session));
}

SlotSet Daemon::SlotsOf(const std::string& tenant) const {
  SlotSet slots = {};
  for (const auto& [id, session] : sessions_) {
    if (session.identity.tenant == tenant) kWindowLayout.Add(session.window, &slots);
  }
  return slots;
}

void Daemon::ServeWaiting(Slot* slot) {
  std::deque<WaitingSession> waiting;
  waiting.swap(slot->waiting);
  for (WaitingSession& session : waiting) {
    StartSession(slot, std::move(session.connection), session.hello);
  }
  EndIfUnused(slot);
}

void Daemon::ExpireWaiting(Slot* slot) {
  while (!slot->waiting.empty() && slot->waiting.front().deadline <= MonotonicNow()) {
    WaitingSession session = std::move(slot->waiting.front());
    slot->waiting.pop_front();
    Refuse(
        std::move(session.connection), wire::kWelcomeRefused,
        absl::StrCat("device ", slot->device->index, " did not start in time; see consortd's log"));
  }
}

void Daemon::EndSession(SessionEnded ended) {
  const auto it = sessions_.find(ended.session);
  if (it == sessions_.end()) {
    LOG(ERROR) << "a worker ended session " << ended.session << ", which is not there";
    return;
  }
  const bool left = it->second.stage == Session::Stage::kLeaving;
  if (moves_.Find(ended.session) != nullptr && !left) {
    EndMove(ended.session, absl::CancelledError("the application has ended"));
  }
  const Session& session = it->second;
  const SessionIdentity& identity = session.identity;
  // One that never arrived was never here; one that has served was, whoever says so first.
  if (session.stage != Session::Stage::kArriving || ended.calls != 0) {
    usage_.End(&ended);
    const std::string line = AccountLine(identity, ended);
    LOG(INFO) << "session " << ended.session << " ended: " << line.substr(0, line.size() - 1);
    Account(identity, AccountSince(ended, session.told));
  }
  RecordBound(session, ended);
  keeper_.End(ended.session);
  DropSave(ended.session);
  EndPeers([&](const PeerPair& pair) { return pair.session == ended.session; });
  if (session.owns_window) devices_[identity.device_index]->windows.Return(session.window);
  if (pool_ != nullptr) {
    pool_->LocalEnded(session.assembly);
    const Device& device = *devices_[identity.device_index];
    pool_->Record(identity.application, {*device.info, *device.speed}, ended);
  }
  WorkerProcess* worker = session.worker;
  if (ended.stuck != 0 && worker != nullptr) KeepLoan(session, worker->pid());
  const auto recovery = recoveries_.find(ended.session);
  sessions_.erase(it);
  if (recovery != recoveries_.end()) EndRecovery(recovery);
  if (MoveRecord* record = moves_.Find(ended.session); record != nullptr && left) {
    record->left = true;
    EndCheckpoint(record);
  }
  if (const MoveRecord* record = moves_.FindBecoming(ended.session);
      record != nullptr && !record->text.empty()) {
    // It could not stay where it was to be restored.
    EndMove(record->session, absl::FailedPreconditionError(record->text));
  }
  if (const auto running = workers_.find(worker); running != workers_.end()) {
    EndIfUnused(running->second.slot);
  }
}

void Daemon::Account(const SessionIdentity& identity, const SessionEnded& used) {
  if (!account_.has_value()) return;
  const std::string line = AccountLine(identity, used);
  const absl::Status appended = account_->Append(line);
  if (appended.ok()) return;
  LOG(ERROR) << appended.message() << "; lost: " << line;
  ++errors_[kErrorAccount];
  events_.Add(EventLevel::kError, PrintableName(std::string(appended.message())));
}

void Daemon::AccountOpenSessions() {
  for (auto& [id, session] : sessions_) {
    if (session.stage == Session::Stage::kArriving || session.stage == Session::Stage::kHeld) {
      continue;
    }
    const SessionUsage usage = usage_.Latest(id);
    SessionEnded total = session.told;
    total.started_unix_seconds = session.started_unix_seconds;
    total.lasted_nanos = static_cast<uint64_t>(MonotonicNow() - session.started);
    total.calls = usage.calls;
    total.round_trips = usage.round_trips;
    total.bytes_to_device = usage.bytes_to_device;
    total.bytes_to_host = usage.bytes_to_host;
    total.kernel_launches = usage.kernel_launches;
    total.kernel_nanos = usage.kernel_nanos;
    total.device_nanos = usage.device_nanos;
    total.queued_nanos = usage.queued_nanos;
    total.memory_byte_seconds = usage.memory_byte_seconds;
    total.memory_peak_bytes = usage.memory_bytes;
    total.weight = settings_.WeightOf(session.identity.tenant);
    SetText(total.reason, "open");
    if (total.calls == session.told.calls && total.device_nanos == session.told.device_nanos &&
        total.memory_byte_seconds == session.told.memory_byte_seconds) {
      continue;  // it used nothing
    }
    Account(session.identity, AccountSince(total, session.told));
    session.told = total;
  }
  loop_->After(options_.account_every, [this] { AccountOpenSessions(); });
}

}  // namespace consort::host
