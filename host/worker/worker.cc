// SPDX-License-Identifier: Apache-2.0
#include "host/worker/worker.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "host/limits.h"
#include "host/worker/calibration.h"
#include "vmsock/deadline.h"

namespace consort::host {

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(ControlSocket* control,
                                                       const WorkerDevice* device,
                                                       Scheduler* scheduler, MemoryBroker* broker) {
  UniqueFd ended_event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!ended_event.valid()) {
    return absl::InternalError(absl::StrCat("eventfd: ", strerror(errno)));
  }
  return std::unique_ptr<Worker>(
      new Worker(control, device, scheduler, broker, std::move(ended_event)));
}

Worker::Worker(ControlSocket* control, const WorkerDevice* device, Scheduler* scheduler,
               MemoryBroker* broker, UniqueFd ended_event)
    : control_(control),
      device_(device),
      scheduler_(scheduler),
      broker_(broker),
      ended_event_(std::move(ended_event)),
      health_([this](const std::string& reason) {
        LOG(ERROR) << "no new sessions here: " << reason;
        Retired retired;
        SetText(retired.reason, reason);
        const absl::Status sent = control_->Send(retired);
        LOG_IF(ERROR, !sent.ok()) << "telling consortd: " << sent;
      }) {}

bool Worker::Run() {
  while (true) {
    if (health_.retired() && AllServed()) {
      absl::MutexLock lock(&mutex_);
      for (const auto& [id, running] : sessions_) {
        if (running.account.has_value()) Send(*running.account);
      }
      return sessions_.empty() && !any_stuck_;
    }
    pollfd polled[2] = {{control_->fd(), POLLIN, 0}, {ended_event_.get(), POLLIN, 0}};
    int timeout_ms = -1;
    if (!NoSessions()) {
      const Nanos left = next_report_ - MonotonicNow();
      if (left <= 0) {
        ReportUsage();
        ReportMemory();
        WriteTrace();
        next_report_ = MonotonicNow() + kUsageReportEvery;
      }
      timeout_ms = static_cast<int>((next_report_ - MonotonicNow()) / kMillisecond) + 1;
    }
    if (poll(polled, 2, timeout_ms) < 0 && errno != EINTR) {
      LOG(ERROR) << "poll: " << strerror(errno);
      return EndAll();
    }
    if (polled[1].revents != 0) ReapEnded();
    if (polled[0].revents != 0 && !HandlePacket()) return EndAll();
  }
}

bool Worker::HandlePacket() {
  ControlPacket packet;
  const absl::Status received = control_->Receive(/*wait=*/false, &packet);
  if (absl::IsDeadlineExceeded(received)) return true;
  if (!received.ok()) {
    LOG(INFO) << "consortd is gone; ending";
    return false;
  }
  OpenSession open;
  if (packet.As(&open)) {
    Open(open, std::move(packet.descriptor()));
    return true;
  }
  MoveOut move;
  if (packet.As(&move)) {
    Move(move, std::move(packet.descriptor()));
    return true;
  }
  PeerLink peer;
  if (packet.As(&peer)) {
    absl::MutexLock lock(&mutex_);
    // One that has ended needs none, and the other end of the link tells the other one.
    if (Session* session = FindLocked(peer.session); session != nullptr) {
      session->TakePeerLink(peer, std::move(packet.descriptor()));
    }
    return true;
  }
  GiveVmMemory vm_memory;
  if (packet.As(&vm_memory)) {
    vm_memory_.session = vm_memory.session;
    vm_memory_.file = std::move(packet.descriptor());
    return true;
  }
  VmMemoryLent lent;
  if (packet.As(&lent)) {
    absl::MutexLock lock(&mutex_);
    // Of one that has ended all goes back by itself.
    if (Session* session = FindLocked(lent.session); session != nullptr) {
      session->TakeVmMemory(lent);
    }
    return true;
  }
  MemoryFetch fetch;
  if (packet.As(&fetch)) {
    FetchMemory(fetch);
    return true;
  }
  MemoryFetched fetched;
  if (packet.As(&fetched)) {
    absl::MutexLock lock(&mutex_);
    if (Session* session = FindLocked(fetched.session); session != nullptr) {
      session->TakeFetched(fetched, std::move(packet.descriptor()));
    }
    return true;
  }
  PeerRefused refused;
  if (packet.As(&refused)) {
    absl::MutexLock lock(&mutex_);
    if (Session* session = FindLocked(refused.session); session != nullptr) {
      session->TakePeerRefusal(refused);
    }
    return true;
  }
  Bound bound;
  if (packet.As(&bound)) {
    absl::MutexLock lock(&mutex_);
    if (Session* session = FindLocked(bound.session); session != nullptr) session->TakeBound();
    return true;
  }
  SetScheduler policy;
  if (packet.As(&policy)) {
    SwitchPolicy(GetText(policy.name));
    return true;
  }
  SetWeight weight;
  if (packet.As(&weight)) {
    scheduler_->SetWeight(GetText(weight.tenant), static_cast<uint32_t>(weight.weight),
                          MonotonicNow());
    return true;
  }
  SetTrace trace;
  if (packet.As(&trace)) {
    SwitchTrace(trace);
    return true;
  }
  SetRates rates;
  if (packet.As(&rates)) {
    // Of a tenant without a session here the next one brings them.
    if (const auto it = rates_.find(GetText(rates.tenant)); it != rates_.end()) {
      it->second->Set(rates.rates);
    }
    return true;
  }
  Calibrate calibrate;
  if (packet.As(&calibrate)) {
    MeasureSpeed();
    return true;
  }
  return false;  // Shutdown is the only other message
}

void Worker::SwitchPolicy(const std::string& name) {
  std::unique_ptr<schedule::Policy> policy;
  CHECK(MakeSchedulerPolicy(name, &policy)) << "consortd is of the same build";
  scheduler_->SetPolicy(name, std::move(policy), MonotonicNow());
  SetText(trace_terms_.policy, name);
}

void Worker::MeasureSpeed() {
  const absl::StatusOr<Calibrated> measured = CalibrateDevice(*device_);
  LOG_IF(WARNING, !measured.ok()) << "the device's speed cannot be measured: " << measured.status();
  const absl::Status sent = control_->Send(measured.value_or(Calibrated()));
  LOG_IF(ERROR, !sent.ok()) << "telling consortd the device's speed: " << sent;
}

void Worker::SwitchTrace(const SetTrace& wanted) {
  const std::string name = GetText(wanted.policy);
  std::unique_ptr<schedule::Policy> policy;
  CHECK(MakeSchedulerPolicy(name, &policy)) << "consortd is of the same build";
  if (trace_.is_open()) {
    AppendTrace(scheduler_->StopTrace(name, std::move(policy), MonotonicNow()));
    // It may have been full.
    if (trace_.is_open()) TellTraceEnded("");
    CHECK(MakeSchedulerPolicy(name, &policy));
  }
  if (wanted.path[0] == '\0') return;
  trace_.clear();
  trace_.open(GetText(wanted.path), std::ios::trunc);
  trace_terms_ = wanted;
  trace_bytes_ = 0;
  if (!trace_) {
    EndTrace(strerror(errno));
    return;
  }
  scheduler_->StartTrace(name, std::move(policy), MonotonicNow());
}

void Worker::WriteTrace() {
  if (!trace_.is_open()) return;
  bool full = false;
  AppendTrace(scheduler_->TakeTrace(&full));
  if (full && trace_.is_open()) EndTrace("it grew faster than it was written");
}

void Worker::AppendTrace(const std::string& lines) {
  // Whole ones: half a line could not be replayed.
  size_t bytes = lines.size();
  const uint64_t room = trace_terms_.bytes_max - trace_bytes_;
  const bool ends = trace_terms_.bytes_max != 0 && bytes > room;
  if (ends) bytes = room == 0 ? 0 : lines.rfind('\n', room - 1) + 1;
  trace_.write(lines.data(), static_cast<std::streamsize>(bytes));
  trace_.flush();
  trace_bytes_ += bytes;
  if (!trace_) {
    EndTrace("its file cannot be written");
  } else if (ends) {
    EndTrace("its file is full");
  }
}

void Worker::EndTrace(const std::string& why) {
  const std::string name = GetText(trace_terms_.policy);
  std::unique_ptr<schedule::Policy> policy;
  CHECK(MakeSchedulerPolicy(name, &policy));
  scheduler_->StopTrace(name, std::move(policy), MonotonicNow());  // nobody reads the rest
  LOG(WARNING) << "the scheduler's trace " << GetText(trace_terms_.path) << " ends: " << why;
  TellTraceEnded(why);
}

void Worker::TellTraceEnded(const std::string& why) {
  trace_.close();
  TraceEnded ended;
  SetText(ended.path, GetText(trace_terms_.path));
  SetText(ended.reason, why);
  const absl::Status sent = control_->Send(ended);
  LOG_IF(ERROR, !sent.ok()) << "telling consortd: " << sent;
}

void Worker::Open(const OpenSession& open, UniqueFd connection) {
  const std::string tenant = GetText(open.tenant);
  std::unique_ptr<RateLimit>& rate = rates_[tenant];
  if (rate == nullptr) rate = std::make_unique<RateLimit>();
  rate->Set(open.rates);
  auto session = std::make_unique<Session>(*device_, &health_, scheduler_, rate.get(), broker_,
                                           open, std::move(connection));
  if (keeps_memory_) session->KeepBy(control_);
  if (save_after_ != 0) session->SaveBy(control_, save_after_);
  if (launches_graphs_) {
    session->ChainLaunches();
    session->RepeatLaunches();
  }
  if (open.deferred != 0 && open.origin == OpenSession::kNew) session->BindBy(control_);
  session->FindPeersBy(control_);
  session->LendVmMemoryBy(control_);
  if (vm_memory_.session == open.session && vm_memory_.file.valid()) {
    session->UseVmMemory(std::move(vm_memory_.file));
  }
  Session* borrowed = session.get();
  absl::MutexLock lock(&mutex_);
  Running& running = sessions_[open.session];
  running.session = std::move(session);
  running.tenant = tenant;
  running.thread = std::thread([this, borrowed, id = open.session] { RunSession(borrowed, id); });
}

void Worker::Move(const MoveOut& move, UniqueFd link) {
  const auto tell = [this](const MoveEnded& ended) {
    const absl::Status sent = control_->Send(ended);
    LOG_IF(ERROR, !sent.ok()) << "telling consortd how a move went: " << sent;
  };
  {
    // Under the lock, so that it is not destroyed meanwhile.
    absl::MutexLock lock(&mutex_);
    if (Session* session = FindLocked(move.session); session != nullptr) {
      return session->MoveOut(std::move(link), move, tell);
    }
  }
  MoveEnded ended;
  ended.session = move.session;
  SetText(ended.text, "the application has ended");
  tell(ended);
}

void Worker::FetchMemory(const MemoryFetch& fetch) {
  MemoryFetched fetched;
  fetched.session = fetch.wanted.session;
  fetched.number = fetch.wanted.number;
  UniqueFd memory;
  const auto found = device_->exports().Find({fetch.wanted.token_high, fetch.wanted.token_low},
                                             GetText(fetch.tenant));
  if (found.has_value() && found->memory != nullptr && found->session == fetch.wanted.owner) {
    CUresult result = device_->MakeCurrent();
    int descriptor = -1;
    if (result == CUDA_SUCCESS) {
      result = device_->driver().cuMemExportToShareableHandle(
          &descriptor, found->memory->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    }
    if (result == CUDA_SUCCESS) {
      memory.Reset(descriptor);
      fetched.bytes = found->memory->bytes;
      fetched.offset = found->offset;
      fetched.allocation_bytes = found->allocation_bytes;
    } else {
      LOG(ERROR) << "memory of session " << fetch.wanted.owner << " for session " << fetched.session
                 << " cannot be exported: " << device::ResultName(device_->driver(), result);
    }
  }
  const absl::Status sent = control_->Send(fetched, memory.get());
  LOG_IF(ERROR, !sent.ok()) << "telling consortd of exported memory: " << sent;
}

Session* Worker::FindLocked(uint64_t id) {
  const auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : it->second.session.get();
}

void Worker::RunSession(Session* session, uint64_t id) {
  SessionEnded ended;
  const bool clean = session->Run(&ended);
  ended.stuck = clean ? 0 : 1;
  std::unique_ptr<Session> owned;
  {
    absl::MutexLock lock(&mutex_);
    Running& running = sessions_.at(id);
    owned = std::move(running.session);
    ended.session = id;
    running.account = ended;
    if (!clean) any_stuck_ = true;
  }
  Wake();
  UsageReport report;
  report.count = 1;
  report.entries[0] = owned->FinalUsage();
  // Where this is lost SessionEnded makes up for most of it.
  (void)control_->Send(report);
  Send(owned->TakeUnsupportedCalls());
  if (clean) {
    owned->Release();
    owned.reset();
  } else {
    // The device may still use what the session holds: only the process's end frees it.
    (void)owned.release();
  }
  {
    // Under the lock, so that Run does not send it too.
    absl::MutexLock lock(&mutex_);
    Send(ended);
    sessions_.at(id).account.reset();
    ended_.push_back(id);
  }
  Wake();
}

void Worker::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the main thread is being woken already.
  [[maybe_unused]] const ssize_t written = write(ended_event_.get(), &one, sizeof(one));
}

void Worker::Send(const SessionEnded& ended) {
  const absl::Status sent = control_->Send(ended);
  // Unavailable: consortd is gone and does not need it.
  LOG_IF(ERROR, !sent.ok() && !absl::IsUnavailable(sent)) << "session's account: " << sent;
}

void Worker::Send(const std::vector<UnsupportedCalls>& unsupported) {
  for (const UnsupportedCalls& calls : unsupported) {
    // Counts for people: what a full queue loses is not worth a wait.
    if (!control_->Send(calls).ok()) return;
  }
}

void Worker::ReportUsage() {
  std::vector<SessionUsage> changed;
  std::vector<UnsupportedCalls> unsupported;
  std::map<uint64_t, ApplicationState> scheduled;
  for (ApplicationState& state : scheduler_->States(MonotonicNow()))
    scheduled[state.session] = state;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, running] : sessions_) {
      if (running.session == nullptr) continue;
      const std::vector<UnsupportedCalls> taken = running.session->TakeUnsupportedCalls();
      unsupported.insert(unsupported.end(), taken.begin(), taken.end());
      SessionUsage usage = running.session->Usage();
      if (const auto it = scheduled.find(id); it != scheduled.end()) {
        AddScheduling(it->second.usage, &usage);
        usage.waiting = it->second.waits ? 1 : 0;
        usage.in_flight = it->second.in_flight;
      }
      if (usage != running.reported) changed.push_back(usage);
    }
  }
  Send(unsupported);
  // At least one packet: that nothing has changed is a fact too.
  for (size_t first = 0; first == 0 || first < changed.size(); first += kUsageEntriesMax) {
    UsageReport report;
    report.count = std::min<size_t>(changed.size() - first, kUsageEntriesMax);
    report.last = first + report.count == changed.size() ? 1 : 0;
    std::copy_n(changed.begin() + static_cast<ptrdiff_t>(first), report.count, report.entries);
    // A full queue: these are totals, so the next report makes up for it.
    if (!control_->Send(report).ok()) return;
    absl::MutexLock lock(&mutex_);
    for (uint64_t i = 0; i < report.count; ++i) {
      const SessionUsage& usage = report.entries[i];
      const auto it = sessions_.find(usage.session);
      if (it != sessions_.end()) it->second.reported = usage;
    }
  }
}

void Worker::ReportMemory() {
  const MemoryTotals totals = broker_->Totals();
  MemoryReport report;
  report.limit = totals.capacity;
  report.promised = totals.promised;
  report.on_device = totals.on_device;
  report.swapped_pinned = totals.swapped[0];
  report.swapped_pageable = totals.swapped[1];
  report.swapped_file = totals.swapped[2];
  report.swap_capacity = totals.swap_capacity;
  report.waiting = totals.waiting;
  report.out_bytes = totals.swapped_out_bytes;
  report.in_bytes = totals.swapped_in_bytes;
  report.clean_bytes = totals.clean_bytes;
  report.out_nanos = totals.swap_out_nanos;
  report.in_nanos = totals.swap_in_nanos;
  report.refused = totals.refused;
  if (report == memory_reported_) return;
  // A full queue: the next one makes up for it.
  if (control_->Send(report).ok()) memory_reported_ = report;
}

void Worker::ReapEnded() {
  uint64_t ignored;
  [[maybe_unused]] const ssize_t got = read(ended_event_.get(), &ignored, sizeof(ignored));
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mutex_);
    for (const uint64_t id : ended_) {
      const auto it = sessions_.find(id);
      threads.push_back(std::move(it->second.thread));
      sessions_.erase(it);
    }
    ended_.clear();
    if (rates_.size() > kUsageTenantsMax) {
      std::erase_if(rates_, [this](const auto& rate) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return std::none_of(sessions_.begin(), sessions_.end(), [&rate](const auto& session) {
          return session.second.tenant == rate.first;
        });
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  ReportMemory();
}

bool Worker::NoSessions() {
  absl::MutexLock lock(&mutex_);
  return sessions_.empty();
}

// A session that lets go of the device waits for work that may never end.
bool Worker::AllServed() {
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, running] : sessions_) {
    if (running.session != nullptr) return false;
  }
  return true;
}

bool Worker::AllReleased() {
  absl::MutexLock lock(&mutex_);
  return sessions_.empty() && !any_stuck_;
}

bool Worker::EndAll() {
  WriteTrace();
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [id, running] : sessions_) {
      if (running.session != nullptr) running.session->Stop();
    }
  }
  // A session ends within kDrainTimeout, or says that it is stuck.
  const Nanos deadline = MonotonicNow() + kDrainTimeout + kSecond;
  while (!NoSessions() && MonotonicNow() < deadline) {
    pollfd polled = {ended_event_.get(), POLLIN, 0};
    poll(&polled, 1, static_cast<int>((deadline - MonotonicNow()) / kMillisecond) + 1);
    ReapEnded();
  }
  LOG_IF(ERROR, !NoSessions()) << "some sessions did not end";
  return AllReleased();
}

}  // namespace consort::host
