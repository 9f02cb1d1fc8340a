// SPDX-License-Identifier: Apache-2.0
#include "host/session/session.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "gen/wire/opcodes.h"
#include "host/control/control_socket.h"
#include "host/limits.h"
#include "vmsock/deadline.h"
#include "vmsock/listen.h"

namespace consort::host {
namespace {

// A loop with nothing to do looks this often whether it is to stop.
constexpr Nanos kIdleWait = 1 * kSecond;

// Whether the request gives device memory back.
bool IsFree(uint16_t opcode) {
  return opcode == static_cast<uint16_t>(wire::Opcode::kMemFree) ||
         opcode == static_cast<uint16_t>(wire::Opcode::kContextDestroy);
}

MemoryTerms TermsOf(const OpenSession& open) {
  MemoryTerms terms;
  terms.tenant = GetText(open.tenant);
  terms.soft = open.memory_soft;
  terms.hard = open.memory_hard;
  terms.wait = static_cast<Nanos>(open.memory_wait_ms) * kMillisecond;
  terms.priority = open.priority;
  return terms;
}

// Before the next look at the device, for something that has taken `waited` so far.
Nanos PollSleep(Nanos waited) {
  return std::clamp(waited / kPollSleepPart, kPollSleepLeast, kPollSleepMost);
}

void SleepFor(Nanos nanos) {
  const timespec time = {nanos / kSecond, nanos % kSecond};
  nanosleep(&time, nullptr);
}

}  // namespace

Session::Session(const WorkerDevice& device, DeviceHealth* health, Scheduler* scheduler,
                 RateLimit* rate, MemoryBroker* broker, const OpenSession& open,
                 UniqueFd connection)
    : device_(device),
      driver_(device.driver()),
      health_(health),
      open_(open),
      connection_(std::move(connection)),
      events_(driver_, CU_EVENT_DISABLE_TIMING),
      vm_lender_(open.session),
      memory_client_(broker->Join(TermsOf(open))),
      residency_(std::make_unique<Residency>(memory_client_.get())),
      textures_(driver_),
      staging_(device_),
      modules_(driver_, device.device(), device.capability(), device.shared_libraries(), &images_),
      links_(driver_),
      graphs_(driver_, device.context()),
      streams_(driver_, &events_, static_cast<PriorityLevel>(open.stream_priority),
               device.snapshot().stream_priority_least, device.snapshot().stream_priority_greatest),
      print_turn_(driver_, device.shared_output(), &streams_, &output_),
      gate_(driver_, scheduler, rate, &streams_),
      poll_spin_(static_cast<PriorityLevel>(open.stream_priority) == PriorityLevel::kHigh
                     ? kPollSpinUrgent
                     : kPollSpin),
      device_time_(driver_, device.resident_threads()),
      pending_(driver_, this) {}

Session::~Session() = default;

// The channel sees a local socket whichever way the guest came; the daemon knows the door.
std::string Session::ChannelName() const {
  const std::string own = channel_->name();
  const std::string door = GetText(open_.channel);
  return door.empty() ? own : door + own.substr(std::min(own.find('+'), own.size()));
}

bool Session::Run(SessionEnded* ended) {
  // Of this thread: short sleeps are meant. Where it can't be set they are 50 us longer.
  (void)prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(kTimerSlack));
  started_ = MonotonicNow();
  account_.started_unix_seconds = static_cast<uint64_t>(time(nullptr));
  const absl::Status opened = Open();
  if (opened.ok()) {
    LOG(INFO) << "session " << open_.session << ": " << GetText(open_.hello.application) << " (pid "
              << open_.hello.pid << ") of " << GetText(open_.tenant) << " over " << ChannelName();
    SetText(account_.channel, ChannelName());
    gate_.Join(GetText(open_.tenant), open_.weight, open_.session);
    if (redo_channel_ == nullptr || Redo()) Loop();
    if (record_ != nullptr) record_->BeginWork();
    if (redo_ != nullptr && account_.lost == 0) redo_->Spoil("it has ended");
    VLOG(1) << "session " << open_.session << ": " << copied_bytes() << " bytes of "
            << account_.bytes_to_device + account_.bytes_to_host << " of copies by a CPU";
    channel_->Close();
    UnshareAll();
    lenders_.clear();
  } else {
    LOG(WARNING) << "session " << open_.session << " of " << GetText(open_.tenant)
                 << " not opened: " << opened;
    end_reason_ = std::string(opened.message());
  }
  RefuseDepartures();
  memory_client_->Retire();
  const bool clean = Drain();
  print_turn_.End(clean);
  gate_.Leave();
  device_time_.Poll(gate_.alone());
  FillAccount(ended);
  VLOG(1) << "session " << open_.session << " waited for " << round_trips_.count()
          << " answers: " << round_trips_.Text() << "; " << chained_ << " of "
          << device_time_.launches() << " launches went in chains";
  if (repeated_ != nullptr) {
    VLOG(1) << "session " << open_.session << " launched " << repeated_->launched()
            << " kernels by " << repeated_->made() << " graphs of their own";
  }
  return clean;
}

void Session::UseVmMemory(UniqueFd file) {
  vm_lender_.set_file(std::move(file));
  if (shared_host_ != nullptr) shared_host_->LendBy(&vm_lender_);
}

void Session::Stop() {
  vm_lender_.Stop();
  absl::MutexLock lock(&channel_mutex_);
  stop_ = true;
  if (channel_ != nullptr) channel_->Close();
}

absl::Status Session::Open() {
  absl::Status status = absl::OkStatus();
  std::optional<MoveLink> link;
  if (open_.origin != OpenSession::kNew) {
    link.emplace(std::move(connection_), [this] {
      absl::MutexLock lock(&channel_mutex_);
      return stop_;
    });
  }
  const uint64_t device_bytes = open_.window_bytes - open_.shared_host_bytes;
  CUresult result = health_->result();
  if (result == CUDA_SUCCESS) result = device_.MakeCurrent();
  if (result == CUDA_SUCCESS) {
    memmgr::WindowOptions options;
    options.device = device_.device();
    options.base = open_.window_base;
    options.bytes = device_bytes;
    options.budget = memory_client_.get();
    options.may_be_away = memory_client_->swaps();
    options.chunk_granules = memory_client_->chunk_granules();
    options.notes = device_.allocation_notes();
    options.exportable = device_.reached();
    if (consortd_ != nullptr) {
      line_ = std::make_unique<KeeperLine>(driver_, consortd_, open_.session,
                                           open_.origin == OpenSession::kGoesOn);
      if (keeps_memory_) options.maker = line_.get();
    }
    result = memmgr::AddressWindow::Create(driver_, options, &window_);
  }
  if (result == CUDA_SUCCESS) {
    memory_client_->set_window(window_.get());
    residency_->set_window(window_.get());
    window_->MakeAway(residency_->deferred());
    virtual_memory_ = std::make_unique<VirtualMemory>(driver_, device_.device(), window_.get(),
                                                      memory_client_.get(), device_.reached());
  }
  if (result != CUDA_SUCCESS) {
    status = absl::UnavailableError(
        absl::StrCat("the device cannot take a session: ", device::ResultName(driver_, result)));
  } else if (open_.shared_host_bytes != 0) {
    auto shared =
        SharedHost::Create(device_, open_.window_base + device_bytes, open_.shared_host_bytes);
    status = shared.status();
    if (shared.ok()) shared_host_ = *std::move(shared);
    if (shared.ok() && vm_lender_.file() >= 0) shared_host_->LendBy(&vm_lender_);
  }
  streams_.set_output(device_.set_stream_output(), &output_);
  if (status.ok() && !open_.partition.empty()) {
    auto partition = CreatePartition(driver_, device_.device(), open_.partition);
    status = partition.status();
    if (partition.ok()) {
      partition_ = *std::move(partition);
      streams_.set_partition(partition_);
      LOG(INFO) << "session " << open_.session << ": " << partition_->multiprocessors()
                << " multiprocessors of its own";
    }
  }
  if (link.has_value()) {
    const bool moves = open_.origin != OpenSession::kGoesOn;
    if (status.ok()) status = moves ? Arrive(&*link) : GoOn(&*link);
    if (status.ok()) status = BeginKeeping();
    if (!status.ok() && moves) {
      MoveFailed failed;
      SetText(failed.text, std::string(status.message()));
      // The other worker may have failed itself.
      (void)link->Send(failed);
    }
    return status;
  }
  if (!status.ok()) {
    // The client may be gone; there is nobody else to tell.
    (void)RefuseClient(connection_.get(), wire::kWelcomeRefused, std::string(status.message()),
                       kHandshakeTimeout);
    return status;
  }
  return OpenChannel();
}

absl::Status Session::OpenChannel() {
  int driver_version = 0;
  driver_.cuDriverGetVersion(&driver_version);
  wire::Welcome welcome;
  welcome.driver_version = static_cast<uint32_t>(driver_version);
  welcome.window_base = open_.window_base;
  welcome.window_bytes = open_.window_bytes;
  if (shared_host_ != nullptr) {
    welcome.shared_host_base = open_.window_base + open_.window_bytes - open_.shared_host_bytes;
    welcome.shared_host_bytes = open_.shared_host_bytes;
  }
  welcome.resume_token = open_.resume_token;
  if (!open_.resume_token.empty()) welcome.features |= wire::kFeatureResume;
  HostChannelOptions options;
  options.conduit = ComesThroughConduit();
  options.vm_memory = vm_lender_.file();
  options.vm_rings_offset = open_.vm_rings_offset;
  if (options.vm_memory >= 0) options.ring_sizes = kVmRingSizes;
  ASSIGN_OR_RETURN(HostChannel opened,
                   OpenHostChannel(std::move(connection_), open_.hello, welcome, options));
  UseChannel(std::move(opened));
  return BeginKeeping();
}

bool Session::ComesThroughConduit() const { return GetText(open_.channel) == kVhostUserDoor; }

void Session::UseChannel(HostChannel opened) {
  rings_ = !opened.shared_memory.empty();
  channel_in_memory_ = rings_ || opened.conduit != nullptr;
  rings_memory_ = opened.shared_memory;
  ring_memory_ = opened.conduit != nullptr ? opened.conduit->device_memory() : opened.shared_memory;
  ConduitChannel* const conduit =
      opened.conduit != nullptr && RegisterRings() ? opened.conduit : nullptr;
  static_assert(kConduitBulkBytes >= Staging::kBytes);
  if (conduit != nullptr) staging_.Use(conduit->bulk_memory());
  outbox_ = std::make_unique<Outbox>(opened.channel.get(), &staging_, conduit);
  absl::MutexLock lock(&channel_mutex_);
  channel_ = std::move(opened.channel);
  if (stop_) channel_->Close();
}

bool Session::RegisterRings() {
  if (!registered_rings_.empty()) return true;
  // Once: what did not work will not.
  const std::span<std::byte> memory = std::exchange(ring_memory_, {});
  if (memory.empty()) return false;
  const CUresult registered = device_.Register(memory, CU_MEMHOSTREGISTER_PORTABLE);
  if (registered == CUDA_SUCCESS) {
    registered_rings_ = memory;
  } else {
    LOG(WARNING) << "rings not registered (" << device::ResultName(driver_, registered)
                 << "): copies take one more step";
  }
  return registered == CUDA_SUCCESS;
}

void Session::Loop() {
  last_progress_ = MonotonicNow();
  while (!failed()) {
    if (departs_.load(std::memory_order_relaxed) && TurnDeparture()) break;
    if (device_result() != CUDA_SUCCESS && !device_failure_seen_) {
      device_failure_seen_ = true;
      // Its guest hears of it, and nothing goes on elsewhere.
      if (record_ != nullptr) record_->BeginWork();
      // Until a departure is over nothing has changed, so it takes no part in what becomes of it.
      if (departure_.has_value()) EndDeparture(CheckMovable());
      if (IsInnocent()) {
        // Another worker goes on with it: its guest is not to notice the end of this one's channel.
        account_.lost = 1;
        end_reason_ = "lost";
        channel_->Abandon();
        break;
      }
      rest_hopeless_ = true;
      // Whatever is being moved ends with the same error; handlers may use the window again.
      memory_client_->Retire();
      residency_->Abandon();
      StayHere();
      copy_to_host_.active = false;
      AnnounceFailure();
      pending_.FailAll(device_result());
      // The guest's answers change nothing any more; what waits for them fails.
      held_.ReleaseAll();
    }
    if (Turn()) continue;
    TendRecord();
    Wait();
  }
}

bool Session::Turn() {
  bool progress = pending_.Poll();
  progress |= ContinueCopyToHost();
  if (!copy_to_host_.active && in_work_ != RequestCost::kNone) EndDeviceWork();
  progress |= ReplayHeld();
  progress |= TurnPeers();
  progress |= Receive();
  outbox_->Pump();
  progress |= gate_.Turn(/*quiet=*/!progress, /*awaited=*/!pending_.empty() || signalled_);
  if (!progress) signalled_ = false;
  PublishUsage();
  print_turn_.Tend();
  if (!progress || residency_->wants_rest() || !waiting_allocations_.empty()) TendMemory();
  if (progress) {
    last_progress_ = MonotonicNow();
  } else {
    device_time_.Poll(gate_.alone());
    streams_.CollectDestroyed();
  }
  return progress;
}

bool Session::CanReplay() const {
  return outbox_->empty() && !copy_to_host_.active && staging_.Has(kStagingPieceBytes) &&
         staging_.Has(kStagingSmallPieceBytes);
}

bool Session::CanProcess() const {
  return stalled_ == 0 && !held_.walking() && !held_next_.has_value() && CanReplay();
}

bool Session::HoldBack(const Frame& frame) {
  HeldWork::Request request;
  // A malformed frame is Dispatch's business.
  if (!OrderOf(frame, &request.order)) return false;
  if (request.order.has_stream) {
    request.stream = streams_.NameOf(frame.header.value, request.order.stream);
  }
  if (request.order.records) held_.DropRecords(request.order.events[0], request.stream);
  if (!held_.MustWait(request.order, frame.header.value, request.stream)) return false;
  if (request.order.observes) {
    ReplyNow(frame.header, CUDA_ERROR_NOT_READY);
    return true;
  }
  if (request.order.records && IsSharedEvent(request.order.events[0])) {
    // Another session that waits for the event would not learn that its record is kept here.
    LOG(WARNING) << "session " << open_.session
                 << ": an event that processes share was recorded behind a host function";
    Failed(frame.header, CUDA_ERROR_NOT_SUPPORTED);
    return true;
  }
  const bool frees = IsFree(frame.header.opcode);
  request.header = frame.header;
  request.body.assign(frame.body.begin(), frame.body.end());
  if (held_.Keep(std::move(request))) {
    if (frees) ++frees_held_;
  } else if (frame.header.call != 0) {
    ReplyNow(frame.header, CUDA_ERROR_OUT_OF_MEMORY);
  } else {
    Failed(frame.header, CUDA_ERROR_OUT_OF_MEMORY);
  }
  return true;
}

bool Session::ReplayHeld() {
  bool any = false;
  // A turn that what is next does not need comes to nothing.
  while (!failed() && CanReplay() && (held_.walking() || held_next_.has_value()) &&
         MayGo(RequestCost::kCopy)) {
    if (!held_next_.has_value()) {
      HeldWork::Request next;
      if (!held_.Next(&next)) break;
      held_next_ = std::move(next);
      any = true;
    }
    Frame frame;
    frame.header = held_next_->header;
    frame.body = held_next_->body;
    if (!MemoryReady(frame) || !MayPrint(frame)) break;
    const HeldWork::Request request = *std::exchange(held_next_, std::nullopt);
    frame.body = request.body;
    any = true;
    if (IsFree(request.header.opcode)) --frees_held_;
    const Frame* const outer_frame = std::exchange(frame_, &frame);
    const bool outer_replaying = std::exchange(replaying_, true);
    CHECK(DispatchWork(frame)) << "a request that was decoded before";
    replaying_ = outer_replaying;
    frame_ = outer_frame;
  }
  return any;
}

bool Session::Receive() {
  memory_waiting_ = held_next_.has_value();
  uint32_t count = 0;
  for (; count < kRequestsPerTurn && !failed(); ++count) {
    if (chains_ != nullptr) {
      if (const uint32_t launched = LaunchWaiting(); launched != 0) {
        count += launched - 1;
        continue;
      }
    }
    Frame frame;
    bool can_process = CanProcess();
    if (can_process && !backlog_.empty())
      can_process = MemoryReady(backlog_.front()) && MayPrint(backlog_.front()) &&
                    MayGo(CostHere(backlog_.front()));
    if (can_process && !backlog_.empty()) {
      frame = backlog_.front();
      backlog_.pop_front();
    } else {
      // What comes next may be another worker's.
      if (!can_process && awaits_device()) break;
      // A host function's end is behind other requests.
      if (stopped_to_move() && !held_.active()) break;
      const ChannelStatus received = TakeFrame(&frame);
      if (received == ChannelStatus::kAgain) break;
      if (received != ChannelStatus::kOk) {
        end_reason_ = received == ChannelStatus::kClosed ? "closed" : "no valid frame";
        break;
      }
      if (can_process) {
        can_process = MemoryReady(frame) && MayPrint(frame) && MayGo(CostHere(frame));
      }
      if (!can_process &&
          frame.header.opcode != static_cast<uint16_t>(wire::Opcode::kHostFunctionDone)) {
        backlog_.push_back(frame);
        continue;
      }
    }
    Process(frame);
  }
  return count != 0;
}

void Session::Process(const Frame& frame) {
  if (line_ != nullptr) BeginKeptWork(frame);
  ++account_.calls;
  if (frame.header.call != 0) round_trips_.Count(frame.header.opcode);
  const Frame* const outer_frame = std::exchange(frame_, &frame);
  const bool outer_keep = std::exchange(keep_frame_, false);
  if (held_.active() && frame.header.flags == 0 && HoldBack(frame)) {
    // Answered, or carried out later.
    fate_ = Fate::kGoes;
  } else if (frame.header.flags != 0 || !DispatchWork(frame)) {
    const char* name = wire::OpcodeName(frame.header.opcode);
    Fail(absl::StrCat("malformed request ", frame.header.opcode, " (",
                      name != nullptr ? name : "unknown", ") of ", frame.body.size(), " bytes"));
  }
  if (!keep_frame_) channel_->Release(frame);
  keep_frame_ = outer_keep;
  frame_ = outer_frame;
}

bool Session::MayPrint(const Frame& frame) {
  if (!print_turn_.needed() || !modules_.any_prints() || device_result() != CUDA_SUCCESS) {
    return true;
  }
  wire::Decoder decoder(frame.body);
  if (frame.header.opcode == static_cast<uint16_t>(wire::Opcode::kGraphLaunch)) {
    wire::GraphLaunchRequest request;
    return !request.Decode(decoder) || !graphs_.Prints(request.exec) || print_turn_.MayLaunch();
  }
  if (frame.header.opcode != static_cast<uint16_t>(wire::Opcode::kLaunch)) return true;
  wire::LaunchRequest request;
  const Kernel* kernel = request.Decode(decoder) ? modules_.FindKernel(request.kernel) : nullptr;
  return kernel == nullptr || !kernel->prints || print_turn_.MayLaunch();
}

bool Session::MayGo(RequestCost cost) {
  return device_result() != CUDA_SUCCESS || gate_.Admit(cost);
}

bool Session::DispatchWork(const Frame& frame) {
  if (const Fate fate = std::exchange(fate_, Fate::kGoes); fate != Fate::kGoes) {
    EndBy(fate, frame);
    return true;
  }
  // In the middle of a copy to the host only what is no device work comes through.
  if (in_work_ != RequestCost::kNone) return Dispatch(frame, driver_, *this);
  in_work_ = CostHere(frame);
  work_bytes_ = 0;
  if (frame.header.opcode != static_cast<uint16_t>(wire::Opcode::kLaunch)) {
    device_time_.Interrupt();
  }
  gate_.BeginRequest(in_work_);
  const bool dispatched = Dispatch(frame, driver_, *this);
  channel_->Expect();
  if (copies_.written()) UpdateVariables(frame);
  if (!copy_to_host_.active) EndDeviceWork();
  return dispatched;
}

void Session::EndBy(Fate fate, const Frame& frame) {
  if (fate == Fate::kAway) return ServeAway();
  if (frame.header.call != 0) {
    ReplyNow(frame.header, CUDA_ERROR_OUT_OF_MEMORY);
  } else {
    Failed(frame.header, CUDA_ERROR_OUT_OF_MEMORY);
  }
}

void Session::UpdateVariables(const Frame& frame) {
  const std::vector<VariableCopies::Piece> pieces = copies_.TakeWritten();
  RequestOrder order;
  CUstream stream = nullptr;
  // Where it has no stream it has failed and has written nothing.
  if (!OrderOf(frame, &order) || !order.has_stream ||
      UseStream(frame.header.value, order.stream, &stream) != CUDA_SUCCESS) {
    return;
  }
  for (const VariableCopies::Piece& piece : pieces) {
    const CUresult result = driver_.cuMemcpyAsync(piece.to, piece.from, piece.bytes, stream);
    if (result != CUDA_SUCCESS) return Failed(frame.header, result);
  }
}

void Session::EndDeviceWork() {
  Nanos estimate = 1;
  if (in_work_ == RequestCost::kKernel) {
    estimate = static_cast<Nanos>(device_time_.latest_nanos());
    if (!gate_.measures()) untracked_kernel_nanos_ += device_time_.latest_nanos();
  } else if (in_work_ != RequestCost::kNone) {
    // 10 GB/s: a bus does more, so a batch of copies gets smaller than it might.
    estimate += static_cast<Nanos>(work_bytes_ / 10);
    if (gate_.measures() && in_work_ == RequestCost::kToDevice)
      timed_bytes_to_device_ += work_bytes_;
    if (gate_.measures() && in_work_ == RequestCost::kToHost) timed_bytes_to_host_ += work_bytes_;
  }
  const DeviceTime::Launched launched = device_time_.TakeLaunched();
  // Streams of a partition run on a part of the device: others have the rest, however much is
  // asked.
  gate_.EndRequest(std::exchange(in_work_, RequestCost::kNone),
                   {.estimate = estimate,
                    .alone = static_cast<Nanos>(launched.alone_nanos),
                    .fills = launched.fills && partition_ == nullptr,
                    .bytes = work_bytes_});
}

void Session::Wait() {
  if (awaits_device()) return SleepFor(kGatePoll);
  if (memory_waiting_ || print_turn_.waiting()) {
    channel_->Wait(Channel::kReadable, 0, kGatePoll);
    return;
  }
  if (stopped_to_move()) {
    // What the guest sends meanwhile is no reason to look.
    SleepFor(kPollSleepLeast);
    return;
  }
  if (gate_.waiting() && !gate_.over_rate()) {
    gate_.Await(std::min(PollSleep(MonotonicNow() - last_progress_), kGatePoll));
    return;
  }
  const Nanos sleep_max = std::min({gate_.sleep_max(), MemorySleepMax(), print_turn_.sleep_max()});
  // The outbox may have become empty since requests were last looked at.
  if (!gate_.over_rate() &&
      ((!backlog_.empty() && CanProcess()) || (held_.walking() && CanReplay())))
    return;
  const uint32_t events =
      Channel::kReadable | (outbox_->flushed() ? 0 : uint32_t{Channel::kWritable});
  if (pending_.empty() && !copy_to_host_.active && !AwaitsRest() && !AwaitsPeers() &&
      !departure_.has_value()) {
    // Only the guest can bring something new. Waiting tells too when it is gone.
    if (KeptVigil(events)) return;
    const bool spin = MonotonicNow() - last_progress_ < poll_spin_;
    channel_->Wait(events, spin ? poll_spin_ : 0, std::min(kIdleWait, sleep_max));
    return;
  }
  const Nanos waited = MonotonicNow() - last_progress_;
  if (waited < poll_spin_) {
    __builtin_ia32_pause();
    return;
  }
  channel_->Wait(events, 0, std::min(PollSleep(waited), sleep_max));
}

void Session::RestBeforeLook(Nanos waited) {
  if (waited < poll_spin_) {
    __builtin_ia32_pause();
  } else {
    SleepFor(PollSleep(waited));
  }
}

void Session::TurnWhileStalled() {
  ++stalled_;
  const bool progress = pending_.Poll() | ReplayHeld() | Receive();
  outbox_->Pump();
  gate_.Turn(/*quiet=*/!progress, /*awaited=*/true);
  --stalled_;
  if (!progress) {
    channel_->Wait(Channel::kReadable | Channel::kWritable, 0, kPollSleepLeast);
  }
}

void Session::Fail(const std::string& what) {
  if (failed()) return;
  LOG(ERROR) << "session " << open_.session << " of " << GetText(open_.tenant) << " ("
             << GetText(open_.hello.application) << ") ended: " << what;
  end_reason_ = what;
}

void Session::NoteResult(CUresult result, const char* where) {
  if (!IsSticky(result) || health_->result() != CUDA_SUCCESS) return;
  health_->Poison(result,
                  absl::StrCat(device::ResultName(driver_, result), " in ", where, " of session ",
                               open_.session, ", ", GetText(open_.hello.application), " of ",
                               GetText(open_.tenant)));
}

// Lets the device finish. False: it did not within kDrainTimeout, or its context is broken, and
// then releasing anything may wait for ever.
bool Session::Drain() {
  for (const Frame& frame : backlog_) channel_->Release(frame);
  backlog_.clear();
  copy_to_host_.active = false;
  std::shared_ptr<Fence> fence;
  CUresult result = device_result();
  if (result == CUDA_SUCCESS && window_ != nullptr) result = streams_.FenceAll(&fence);
  if (fence != nullptr) {
    const Nanos begin = MonotonicNow();
    const Nanos deadline = begin + kDrainTimeout;
    while (!fence->Reached() && device_result() == CUDA_SUCCESS) {
      if (MonotonicNow() > deadline) {
        // Nothing but the end of the process stops a kernel; the neighbours can go on beside it.
        health_->Retire(absl::StrCat("work of session ", open_.session, ", ",
                                     GetText(open_.hello.application), " of ",
                                     GetText(open_.tenant), ", did not end within ",
                                     kDrainTimeout / kSecond, " s after it had left"));
        return false;
      }
      SleepFor(PollSleep(MonotonicNow() - begin));
    }
    result = fence->result();
  }
  NoteResult(result, "the end");
  return device_result() == CUDA_SUCCESS;
}

void Session::Release() {
  // The guest is gone: what was for it is dropped. Not an error of the device.
  if (outbox_ != nullptr) pending_.FailAll(CUDA_ERROR_NOT_READY);
  user_events_.clear();
  if (!registered_rings_.empty()) driver_.cuMemHostUnregister(registered_rings_.data());
  registered_rings_ = {};
}

std::vector<host::UnsupportedCalls> Session::TakeUnsupportedCalls() {
  std::vector<host::UnsupportedCalls> taken;
  absl::MutexLock lock(&unsupported_mutex_);
  for (auto& [name, count] : unsupported_) {
    if (count.calls == count.taken) continue;
    host::UnsupportedCalls& message = taken.emplace_back();
    message.session = open_.session;
    message.calls = count.calls - count.taken;
    SetText(message.name, name);
    count.taken = count.calls;
  }
  return taken;
}

void Session::PublishUsage() {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  published_.calls.store(account_.calls, kRelaxed);
  published_.round_trips.store(round_trips_.count(), kRelaxed);
  published_.bytes_to_device.store(account_.bytes_to_device, kRelaxed);
  published_.bytes_to_host.store(account_.bytes_to_host, kRelaxed);
  published_.kernel_launches.store(device_time_.launches(), kRelaxed);
  published_.kernel_nanos.store(device_time_.nanos(), kRelaxed);
  published_.untracked_kernel_nanos.store(untracked_kernel_nanos_, kRelaxed);
  published_.timed_bytes_to_device.store(timed_bytes_to_device_, kRelaxed);
  published_.timed_bytes_to_host.store(timed_bytes_to_host_, kRelaxed);
  published_.rate_waited_nanos.store(static_cast<uint64_t>(gate_.rate_waited()), kRelaxed);
  published_.phase.store(static_cast<uint32_t>(gate_.phase()), kRelaxed);
  const Bytes held = window_->used_bytes() + virtual_memory_->memory_bytes();
  if (held != memory_held_) {
    memory_held_ = held;
    memory_meter_.Set(held, MonotonicNow());
  }
}

SessionUsage Session::Usage() const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  SessionUsage usage;
  usage.session = open_.session;
  usage.calls = published_.calls.load(kRelaxed);
  usage.round_trips = published_.round_trips.load(kRelaxed);
  usage.bytes_to_device = published_.bytes_to_device.load(kRelaxed);
  usage.bytes_to_host = published_.bytes_to_host.load(kRelaxed);
  usage.kernel_launches = published_.kernel_launches.load(kRelaxed);
  usage.kernel_nanos = published_.kernel_nanos.load(kRelaxed);
  usage.device_nanos = published_.untracked_kernel_nanos.load(kRelaxed);
  usage.timed_bytes_to_device = published_.timed_bytes_to_device.load(kRelaxed);
  usage.timed_bytes_to_host = published_.timed_bytes_to_host.load(kRelaxed);
  usage.rate_waited_nanos = published_.rate_waited_nanos.load(kRelaxed);
  usage.phase = published_.phase.load(kRelaxed);
  const MemoryMeter::Reading memory = memory_meter_.Read(MonotonicNow());
  usage.memory_bytes = memory.held;
  usage.memory_byte_seconds = memory.byte_seconds;
  return usage;
}

SessionUsage Session::FinalUsage() {
  if (window_ != nullptr) PublishUsage();  // else it was not opened
  SessionUsage usage = Usage();
  AddScheduling(gate_.usage(), &usage);
  return usage;
}

void AddScheduling(const ApplicationUsage& scheduled, SessionUsage* usage) {
  const auto of = [&](schedule::Phase phase) {
    return static_cast<uint64_t>(scheduled.device_time[static_cast<size_t>(phase)]);
  };
  usage->device_nanos += static_cast<uint64_t>(scheduled.device_time_sum());
  usage->to_device_nanos = of(schedule::Phase::kToDevice);
  usage->to_host_nanos = of(schedule::Phase::kToHost);
  usage->queued_nanos = static_cast<uint64_t>(scheduled.waited);
  usage->batches = scheduled.batches;
  std::copy(scheduled.delays.begin(), scheduled.delays.end(), std::begin(usage->delays));
}

void Session::FillAccount(SessionEnded* ended) const {
  *ended = account_;
  ended->round_trips = round_trips_.count();
  ended->lasted_nanos = static_cast<uint64_t>(MonotonicNow() - started_);
  ended->kernel_launches = device_time_.launches();
  ended->kernel_nanos = device_time_.nanos();
  ended->device_nanos =
      untracked_kernel_nanos_ + static_cast<uint64_t>(gate_.usage().device_time_sum());
  ended->queued_nanos = static_cast<uint64_t>(gate_.usage().waited);
  const MemoryMeter::Reading memory = memory_meter_.Read(MonotonicNow());
  ended->memory_peak_bytes = memory.peak;
  ended->memory_byte_seconds = memory.byte_seconds;
  ended->weight = open_.weight;
  SetText(ended->reason, end_reason_);
}

}  // namespace consort::host
