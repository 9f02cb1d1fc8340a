// SPDX-License-Identifier: Apache-2.0
#include "guest/session.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "guest/log.h"
#include "guest/thread_state.h"

namespace consort::guest {
namespace {

// A reply that is a kernel launch away arrives within this; longer waits sleep. Costs at most this
// much of a core a synchronisation.
constexpr Nanos kReplySpin = 20 * kMicrosecond;
constexpr Nanos kForever = -1;
// How long a blocked sender sleeps before it looks again whether it can help receiving.
constexpr Nanos kBlockedSenderWait = 2 * kMillisecond;
// Host functions that a program has enqueued and that have not run.
constexpr size_t kHostFunctionsMax = 1 << 20;
// A descriptor is sent before the reply that announces it, so it is there or about to be.
constexpr Nanos kDescriptorWait = 2 * kSecond;

bool ReserveWindow(const wire::Welcome& welcome) {
  if (welcome.window_bytes == 0) return false;
  void* at = reinterpret_cast<void*>(welcome.window_base);
#ifndef MAP_FIXED_NOREPLACE
  constexpr int MAP_FIXED_NOREPLACE = 0x100000;
#endif
  void* got = mmap(at, welcome.window_bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == at) return true;
  // A kernel older than 4.17 takes the address as a hint.
  if (got != MAP_FAILED) munmap(got, welcome.window_bytes);
  return false;
}

}  // namespace

void PrintedText::Show() {
  // What stdio cannot write is lost, as with the driver.
  if (!out.empty()) fwrite(out.data(), 1, out.size(), stdout);
  if (!error.empty()) fwrite(error.data(), 1, error.size(), stderr);
  out.clear();
  error.clear();
}

Session::Session(std::unique_ptr<Channel> channel, const wire::Welcome& welcome,
                 const DialOptions& dial, uint32_t resume_seconds)
    : channel_(std::move(channel)),
      welcome_(welcome),
      dial_(dial),
      resume_seconds_(resume_seconds),
      window_reserved_(ReserveWindow(welcome)) {}

void Session::Fail(CUresult result) {
  CUresult none = CUDA_SUCCESS;
  failure_.compare_exchange_strong(none, result, std::memory_order_relaxed);
}

void Session::Lost() {
  lost_.store(true, std::memory_order_relaxed);
  Fail(CUDA_ERROR_DEVICE_UNAVAILABLE);
  if (!told_.exchange(true)) {
    LogLine("the connection to the host was lost (%s); CUDA calls of this process fail from now on",
            channel_->name());
  }
}

CUresult Session::Broken() {
  if (!told_.exchange(true))
    LogLine("the host answered with a malformed frame; the connection is closed");
  lost_.store(true, std::memory_order_relaxed);
  Fail(CUDA_ERROR_DEVICE_UNAVAILABLE);
  channel_->Close();
  return CUDA_ERROR_DEVICE_UNAVAILABLE;
}

std::byte* Session::Reserve(uint32_t frame_bytes) {
  while (!lost_.load(std::memory_order_relaxed)) {
    if (std::byte* at = channel_->TryReserve(frame_bytes)) return at;
    const ChannelStatus flushed = channel_->Flush();
    if (flushed == ChannelStatus::kClosed || flushed == ChannelStatus::kProtocol) break;
    HelpReceive();
    const ChannelStatus waited =
        channel_->Wait(Channel::kWritable | Channel::kReadable, 0, kBlockedSenderWait);
    if (waited == ChannelStatus::kClosed || waited == ChannelStatus::kProtocol) break;
  }
  Lost();
  return nullptr;
}

bool Session::FlushAll() {
  while (true) {
    switch (channel_->Flush()) {
      case ChannelStatus::kOk:
        return true;
      case ChannelStatus::kAgain:
        HelpReceive();
        channel_->Wait(Channel::kWritable | Channel::kReadable, 0, kBlockedSenderWait);
        break;
      default:
        // What it had to say is said; who receives sees how the stream ended.
        if (MayEnd()) return true;
        Lost();
        return false;
    }
  }
}

ReplySlot* Session::TakeSlot(uint32_t* call) {
  ThreadState& thread = CurrentThread();
  for (const ThreadState::Slot& slot : thread.slots) {
    if (slot.session == this) {
      *call = slot.call;
      slot.slot->done = false;
      slot.slot->body.clear();
      return slot.slot;
    }
  }
  MutexLock lock(&receive_mutex_);
  uint32_t index = 0;
  while (index < slots_.size() && slots_[index]->in_use) ++index;
  if (index == slots_.size()) slots_.push_back(new ReplySlot);
  ReplySlot* slot = slots_[index];
  slot->in_use = true;
  slot->done = false;
  slot->body.clear();
  *call = index + 1;
  thread.slots.push_back({this, slot, index + 1});
  return slot;
}

CUresult Session::WaitFor(ReplySlot* slot) {
  receive_mutex_.Lock();
  while (!slot->done) {
    if (lost_.load(std::memory_order_relaxed)) {
      receive_mutex_.Unlock();
      return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    if (leader_ || leaving_ == Leaving::kAway) {
      received_.Wait(&receive_mutex_);
      continue;
    }
    leader_ = true;
    bool alive = true;
    while (alive && !slot->done) {
      receive_mutex_.Unlock();
      const ChannelStatus status = channel_->Wait(Channel::kReadable, kReplySpin, kForever);
      if (status == ChannelStatus::kProtocol) Broken();
      alive = DrainReceived() && status != ChannelStatus::kProtocol;
      receive_mutex_.Lock();
    }
    leader_ = false;
    if (!alive) StreamEnded();
    received_.Broadcast();
  }
  const CUresult result = slot->result;
  receive_mutex_.Unlock();
  if (!slot->printed.empty()) slot->printed.Show();
  return result;
}

void Session::HelpReceive() {
  {
    MutexLock lock(&receive_mutex_);
    if (leader_ || leaving_ == Leaving::kAway) return;
    leader_ = true;
  }
  const bool alive = DrainReceived();
  MutexLock lock(&receive_mutex_);
  leader_ = false;
  if (!alive) StreamEnded();
  received_.Broadcast();
}

bool Session::DrainReceived() {
  Frame frame;
  while (true) {
    const ChannelStatus status = channel_->TryReceive(&frame);
    if (status == ChannelStatus::kAgain) return true;
    if (status != ChannelStatus::kOk) return false;
    Handle(frame);
    channel_->Release(frame);
  }
}

void Session::Handle(const Frame& frame) {
  if (frame.header.flags & wire::kFrameReply) {
    MutexLock lock(&receive_mutex_);
    const uint32_t index = frame.header.call - 1;
    if (index >= slots_.size() || slots_[index]->done) {
      Broken();
      return;
    }
    ReplySlot* slot = slots_[index];
    slot->body.assign(frame.body.begin(), frame.body.end());
    slot->result = static_cast<CUresult>(frame.header.value);
    slot->printed.Swap(&printed_);
    slot->done = true;
    received_.Broadcast();
    return;
  }
  switch (static_cast<wire::Opcode>(frame.header.opcode)) {
    case wire::Opcode::kTransferData:
      HandleTransferData(frame);
      return;
    case wire::Opcode::kRunHostFunction: {
      wire::Decoder decoder(frame.body);
      wire::RunHostFunctionEvent event;
      if (!event.Decode(decoder)) break;
      MutexLock lock(&receive_mutex_);
      for (HostFunctionEntry& entry : host_functions_) {
        if (entry.id != event.callback) continue;
        entry.due = true;
        entry.printed.Swap(&printed_);
      }
      received_.Broadcast();
      return;
    }
    case wire::Opcode::kDeviceOutput:
      HandleDeviceOutput(frame);
      return;
    case wire::Opcode::kSessionLeaves: {
      wire::Decoder decoder(frame.body);
      wire::SessionLeavesEvent event;
      if (!standby_ || !event.Decode(decoder)) break;
      HandleSessionLeaves(event.number);
      return;
    }
    case wire::Opcode::kSessionStays:
      HandleSessionStays();
      return;
    case wire::Opcode::kDeviceFailed: {
      wire::Decoder decoder(frame.body);
      wire::DeviceFailedEvent event;
      if (!event.Decode(decoder) || event.result == CUDA_SUCCESS) break;
      MutexLock lock(&receive_mutex_);
      Fail(static_cast<CUresult>(event.result));
      received_.Broadcast();  // the service thread has host functions to end
      return;
    }
    default:
      break;
  }
  Broken();
}

void Session::SetQuiet(uint32_t context, uint64_t stream, const Sent& sent) {
  MutexLock lock(&quiet_mutex_);
  quiet_context_ = context;
  quiet_stream_ = stream;
  quiet_at_ = sent;
}

bool Session::IsQuiet(uint32_t context, uint64_t stream) {
  MutexLock lock(&quiet_mutex_);
  return IsQuietHeld(context, stream);
}

bool Session::IsIdle(uint32_t context, uint64_t stream) {
  MutexLock lock(&quiet_mutex_);
  return quiet_at_.staged == sent().staged && IsQuietHeld(context, stream);
}

bool Session::HasGoneAhead(uint32_t context, uint64_t stream) {
  MutexLock lock(&quiet_mutex_);
  return ahead_sent_.load(std::memory_order_relaxed) > quiet_at_.staged &&
         IsQuietHeld(context, stream);
}

bool Session::IsQuietHeld(uint32_t context, uint64_t stream) const {
  return quiet_at_.work == sent().work && quiet_context_ == context &&
         (quiet_stream_ == stream || quiet_stream_ == kAllStreams);
}

uint64_t Session::BeginTransfer(const Transfer& transfer) {
  MutexLock lock(&transfer_mutex_);
  for (size_t index = 0; index < transfers_.size(); ++index) {
    if (transfers_[index].rows == 0) {
      transfers_[index] = transfer;
      return index;
    }
  }
  transfers_.push_back(transfer);
  return transfers_.size() - 1;
}

void Session::CancelTransfer(uint64_t id) {
  MutexLock lock(&transfer_mutex_);
  transfers_[id] = Transfer();
}

bool Session::TransfersOutstanding() {
  MutexLock lock(&transfer_mutex_);
  for (const Transfer& transfer : transfers_) {
    if (transfer.rows != 0) return true;
  }
  return false;
}

bool Session::TransferOverlaps(const void* start, uint64_t bytes) {
  const auto* begin = static_cast<const std::byte*>(start);
  MutexLock lock(&transfer_mutex_);
  for (const Transfer& transfer : transfers_) {
    if (transfer.rows == 0) continue;
    const std::byte* end =
        transfer.destination + transfer.pitch * (transfer.rows - 1) + transfer.width;
    if (begin < end && transfer.destination < begin + bytes) return true;
  }
  return false;
}

void Session::HandleTransferData(const Frame& frame) {
  wire::Decoder decoder(frame.body);
  wire::TransferDataEvent event;
  if (!event.Decode(decoder)) {
    Broken();
    return;
  }
  Transfer transfer;
  {
    MutexLock lock(&transfer_mutex_);
    if (event.transfer >= transfers_.size()) {
      Broken();
      return;
    }
    transfer = transfers_[event.transfer];
  }
  const uint64_t total = transfer.width * transfer.rows;
  uint64_t bytes = event.data.size();
  if (transfer.rows == 0 || event.offset > total || bytes > total - event.offset) {
    Broken();
    return;
  }
  // Only the leader gets here, so the destination is written without a lock.
  const std::byte* from = event.data.data();
  for (uint64_t offset = event.offset; bytes > 0;) {
    const uint64_t row = offset / transfer.width;
    const uint64_t column = offset % transfer.width;
    uint64_t piece = transfer.pitch == transfer.width ? bytes : transfer.width - column;
    if (piece > bytes) piece = bytes;
    std::memcpy(transfer.destination + row * transfer.pitch + column, from, piece);
    from += piece;
    offset += piece;
    bytes -= piece;
  }
  MutexLock lock(&transfer_mutex_);
  Transfer& entry = transfers_[event.transfer];
  entry.received += event.data.size();
  if (entry.received == total) entry = Transfer();
}

void Session::HandleDeviceOutput(const Frame& frame) {
  wire::Decoder decoder(frame.body);
  wire::DeviceOutputEvent event;
  if (!event.Decode(decoder) ||
      (event.descriptor != STDOUT_FILENO && event.descriptor != STDERR_FILENO)) {
    Broken();
    return;
  }
  MutexLock lock(&receive_mutex_);
  std::vector<std::byte>& to = event.descriptor == STDERR_FILENO ? printed_.error : printed_.out;
  to.insert(to.end(), event.text.begin(), event.text.end());
}

int Session::ReceiveDescriptor() { return channel_->ReceiveDescriptor(kDescriptorWait); }
bool Session::SendDescriptor(int fd) { return channel_->SendDescriptor(fd); }

bool Session::StartThread(void* (*main)(void* session)) {
  pthread_t thread;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  const int failed = pthread_create(&thread, &attributes, main, this);
  pthread_attr_destroy(&attributes);
  return failed == 0;
}

uint64_t Session::AddHostFunction(void (*function)(void*), void* argument, AfterFailure after) {
  MutexLock lock(&receive_mutex_);
  if (host_functions_.size() >= kHostFunctionsMax) return 0;
  if (!service_started_) service_started_ = StartThread(&Session::ServiceMain);
  if (!service_started_) return 0;
  const uint64_t id = next_host_function_++;
  HostFunctionEntry entry;
  entry.id = id;
  entry.function = function;
  entry.argument = argument;
  entry.after_failure = after;
  host_functions_.push_back(entry);
  if (service_waiting_) received_.Broadcast();
  return id;
}

bool Session::CancelHostFunction(uint64_t callback) {
  MutexLock lock(&receive_mutex_);
  for (size_t i = 0; i < host_functions_.size(); ++i) {
    if (host_functions_[i].id != callback || host_functions_[i].running) continue;
    host_functions_.erase(host_functions_.begin() + i);
    return true;
  }
  return false;
}

bool Session::HostFunctionsOutstanding() {
  MutexLock lock(&receive_mutex_);
  return !host_functions_.empty();
}

void* Session::ServiceMain(void* session) {
  CurrentThread().service = true;
  static_cast<Session*>(session)->RunService();
  return nullptr;
}

bool Session::OnServiceThread() { return CurrentThread().service; }

void Session::RunService() {
  receive_mutex_.Lock();
  while (true) {
    // After a failure nothing becomes due any more; what is left ends in the order of its calls.
    const bool failed = failure() != CUDA_SUCCESS;
    size_t due = 0;
    while (due < host_functions_.size() && !host_functions_[due].due && !failed) ++due;
    if (due < host_functions_.size()) {
      host_functions_[due].running = true;
      HostFunctionEntry entry = host_functions_[due];
      receive_mutex_.Unlock();
      entry.printed.Show();
      if (!failed || entry.after_failure == AfterFailure::kRun) entry.function(entry.argument);
      wire::HostFunctionDoneRequest done;
      done.callback = entry.id;
      Post(0, done);
      receive_mutex_.Lock();
      for (size_t i = 0; i < host_functions_.size(); ++i) {
        if (host_functions_[i].id == entry.id) {
          host_functions_.erase(host_functions_.begin() + i);
          break;
        }
      }
      continue;
    }
    if (lost_.load(std::memory_order_relaxed)) break;
    if (leader_ || leaving_ == Leaving::kAway || host_functions_.empty()) {
      service_waiting_ = true;
      received_.Wait(&receive_mutex_);
      service_waiting_ = false;
      continue;
    }
    leader_ = true;
    receive_mutex_.Unlock();
    channel_->Wait(Channel::kReadable, 0, kForever);
    const bool alive = DrainReceived();
    receive_mutex_.Lock();
    leader_ = false;
    if (!alive) StreamEnded();
    received_.Broadcast();
  }
  receive_mutex_.Unlock();
}

}  // namespace consort::guest
