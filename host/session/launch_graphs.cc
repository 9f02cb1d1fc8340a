// SPDX-License-Identifier: Apache-2.0
// Launches of one session that go to the driver as graphs: those that wait one behind the other as
// a chain (launch_chain.h), and one that comes again and again by itself (repeated_launches.h).
// Everything else that a launch does happens for each of them as in handlers.cc.
#include <utility>

#include "gen/wire/opcodes.h"
#include "host/limits.h"
#include "host/session/session.h"

namespace consort::host {
namespace {

bool IsLaunch(const Frame& frame) {
  // Who asks for an answer gets it from the launch itself.
  return frame.header.opcode == static_cast<uint16_t>(wire::Opcode::kLaunch) &&
         frame.header.flags == 0 && frame.header.call == 0;
}

// Where no driver takes it the launch gives its own error.
bool HasShape(const wire::LaunchRequest& request) {
  return request.grid_x != 0 && request.grid_y != 0 && request.grid_z != 0 &&
         request.block_x != 0 && request.block_y != 0 && request.block_z != 0;
}

}  // namespace

PlainLaunch Session::PlainLaunchOf(const Kernel& kernel, const wire::LaunchRequest& request) {
  return {kernel.handle,
          {request.grid_x, request.grid_y, request.grid_z, request.block_x, request.block_y,
           request.block_z, request.shared_bytes},
          request.params};
}

bool Session::LaunchRepeated(const Stream& stream, const Kernel& kernel,
                             const wire::LaunchRequest& request) {
  // A graph would run anywhere on the device, and one that is measured is measured as it was.
  return repeated_ != nullptr && request.attributes.empty() && !kernel.prints &&
         stream.multiprocessors == nullptr && !device_time_.sampling() &&
         repeated_->Launch(stream.driver, stream.priority, PlainLaunchOf(kernel, request));
}

void Session::ForgetLaunchGraphs(const Kernel* kernel) {
  if (chains_ != nullptr) chains_->Clear();
  if (repeated_ == nullptr) return;
  if (kernel != nullptr) {
    repeated_->Forget(kernel->handle);
  } else {
    repeated_->Clear();
  }
}

bool Session::MayChain() const {
  return !chains_->broken() && CanProcess() && !held_.active() && !stopped_to_move() &&
         fate_ == Fate::kGoes && in_work_ == RequestCost::kNone && !residency_->swaps() &&
         partition_ == nullptr && device_result() == CUDA_SUCCESS && !device_time_.sampling();
}

const Kernel* Session::ChainableKernel(const wire::LaunchRequest& request) {
  const Kernel* const kernel = modules_.FindKernel(request.kernel);
  if (kernel == nullptr || kernel->prints || !request.attributes.empty() || !HasShape(request) ||
      request.params.size() < kernel->parameter_bytes ||
      request.shared_bytes > kernel->dynamic_shared_max ||
      request.params.size() > kNodeArgumentBytesMax ||
      DeviceTime::SamplesNextOfChain(*kernel->time) || !chains_->Takes(kernel->handle)) {
    return nullptr;
  }
  return kernel;
}

void Session::LookAhead() {
  while (backlog_.size() < LaunchChains::kLengthMost &&
         (backlog_.empty() || IsLaunch(backlog_.back()))) {
    Frame frame;
    if (TakeFrame(&frame) != ChannelStatus::kOk) return;
    backlog_.push_back(frame);
  }
}

uint32_t Session::LaunchWaiting() {
  if (unchained_ != 0) {
    --unchained_;
    return 0;
  }
  if (!MayChain()) return 0;
  LookAhead();
  if (backlog_.size() < LaunchChains::kLengthLeast) {
    // No chain comes of them: they go one by one, and are not looked at again.
    unchained_ = backlog_.empty() ? 0 : static_cast<uint32_t>(backlog_.size()) - 1;
    return 0;
  }
  // One that has to wait for its turn is looked at again then.
  if (IsLaunch(backlog_.front()) && !MayGo(RequestCost::kKernel)) return 0;
  uint32_t count = 0;
  Nanos estimate = 0;  // of those
  const wire::FrameHeader* first = nullptr;
  uint64_t stream_id = 0;
  for (const Frame& frame : backlog_) {
    wire::LaunchRequest request;
    wire::Decoder decoder(frame.body);
    if (count == items_kernels_.size() || !gate_.HasRoomAfter(count, estimate) ||
        !IsLaunch(frame) || !request.Decode(decoder)) {
      break;
    }
    if (first == nullptr) {
      first = &frame.header;
      stream_id = request.stream;
    }
    if (frame.header.value != first->value || request.stream != stream_id) break;
    const Kernel* const kernel = ChainableKernel(request);
    if (kernel == nullptr) break;
    items_[count] = PlainLaunchOf(*kernel, request);
    items_kernels_[count++] = kernel;
    estimate += static_cast<Nanos>(kernel->time->latest_nanos);
  }
  const uint32_t length = LaunchChains::LengthOf(count);
  // These have been looked at: they go one by one.
  unchained_ = length != 0 || count == 0 ? 0 : count - 1;
  if (length == 0) return 0;
  if (!LaunchChain(*first, stream_id, length)) {
    unchained_ = LaunchChains::kLengthLeast - 1;
    return 0;
  }
  for (uint32_t i = 0; i < length; ++i) {
    channel_->Release(backlog_.front());
    backlog_.pop_front();
  }
  return length;
}

bool Session::LaunchChain(const wire::FrameHeader& header, uint64_t stream_id, uint32_t length) {
  Stream* stream = nullptr;
  if (gate_.limited() || streams_.Observe(header.value, stream_id, &stream) != CUDA_SUCCESS ||
      stream->recording || stream->multiprocessors != nullptr ||
      !chains_->Prepare(stream->priority, std::span(items_).first(length))) {
    return false;
  }
  if (line_ != nullptr) {
    for (uint32_t i = 0; i < length; ++i) BeginKeptWork(backlog_[i]);
  }
  gate_.BeginRequest(RequestCost::kKernel);
  bool launched = true;
  for (uint32_t i = 0; i < length && launched; ++i) {
    launched = streams_.Use(header.value, stream_id, &stream) == CUDA_SUCCESS;
  }
  launched = launched && chains_->Launch(stream->driver) == CUDA_SUCCESS;
  if (!launched) {
    gate_.EndRequest(RequestCost::kKernel, {});
    // They come once more, one by one.
    if (redo_ != nullptr) redo_->Spoil("a chain of launches was refused");
    return false;
  }
  account_.calls += length;
  chained_ += length;
  const bool measured = gate_.measures();
  RequestWork work = {.fills = true, .requests = length};
  bool alone_known = true;
  for (uint32_t i = 0; i < length; ++i) {
    const DeviceTime::Launched kernel =
        device_time_.CountChained(items_kernels_[i]->time.get(), items_[i].threads());
    if (!measured) untracked_kernel_nanos_ += kernel.nanos;
    work.estimate += static_cast<Nanos>(kernel.nanos);
    work.alone += static_cast<Nanos>(kernel.alone_nanos);
    alone_known &= kernel.alone_nanos != 0;
    work.fills &= kernel.fills;
    streams_.NoteKernel(stream, kernel.alone_nanos, gate_.holds_back());
  }
  if (!alone_known) work.alone = 0;
  gate_.EndRequest(RequestCost::kKernel, work);
  return true;
}

}  // namespace consort::host
