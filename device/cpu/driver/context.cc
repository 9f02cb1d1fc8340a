// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/driver/context.h"

#include <algorithm>
#include <utility>

#include "device/cpu/driver/state.h"

namespace consort::cpu {

void Context::Fail(CUresult error) {
  CUresult none = CUDA_SUCCESS;
  error_.compare_exchange_strong(none, error, std::memory_order_acq_rel);
}

std::shared_ptr<Stream> Context::LegacyStream() {
  absl::MutexLock lock(&streams_mutex_);
  if (legacy_ == nullptr) {
    legacy_ = std::make_shared<Stream>(shared_from_this(), CU_STREAM_DEFAULT, 0);
    streams_.push_back(legacy_);
  }
  return legacy_;
}

std::shared_ptr<Stream> Context::NewStream(unsigned int flags, int priority) {
  auto stream = std::make_shared<Stream>(shared_from_this(), flags, priority);
  absl::MutexLock lock(&streams_mutex_);
  streams_.push_back(stream);
  return stream;
}

void Context::Forget(const Stream* stream) {
  // Destroyed outside the lock: it may be the last owner.
  std::shared_ptr<Stream> dropped;
  absl::MutexLock lock(&streams_mutex_);
  const auto it = std::find_if(streams_.begin(), streams_.end(),
                               [stream](const auto& other) { return other.get() == stream; });
  if (it == streams_.end()) return;
  dropped = std::move(*it);
  streams_.erase(it);
}

std::vector<std::shared_ptr<Stream>> Context::Streams() {
  absl::MutexLock lock(&streams_mutex_);
  return streams_;
}

std::vector<StreamPoint> Context::OrderedAfter(const Stream& stream) {
  std::vector<StreamPoint> points;
  if (!stream.blocking()) return points;
  std::shared_ptr<Stream> legacy;
  std::vector<std::shared_ptr<Stream>> streams;
  {
    absl::MutexLock lock(&streams_mutex_);
    legacy = legacy_;
    if (legacy.get() == &stream) streams = streams_;
  }
  if (legacy == nullptr) return points;
  if (legacy.get() != &stream) {
    if (legacy->Pending()) points.push_back(legacy->Last());
    return points;
  }
  for (const std::shared_ptr<Stream>& other : streams) {
    if (other != legacy && other->blocking() && other->Pending()) points.push_back(other->Last());
  }
  return points;
}

void Context::Submit(const std::shared_ptr<Stream>& stream, Operation operation) {
  if (stream->Capture(&operation)) return;
  stream->WaitForRoom();
  if (!stream->blocking()) {
    stream->Enqueue(std::move(operation), {});
    return;
  }
  absl::MutexLock lock(&order_mutex_);
  stream->Enqueue(std::move(operation), OrderedAfter(*stream));
}

CUresult Context::RunNow(const std::shared_ptr<Stream>& stream, const Operation& operation) {
  if (stream->capture().graph != nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  std::vector<StreamPoint> points;
  {
    absl::MutexLock lock(&order_mutex_);
    points = OrderedAfter(*stream);
    points.push_back(stream->Last());
  }
  for (const StreamPoint& point : points) point.stream->Wait(point.sequence);
  operation(destroyed() ? CUDA_ERROR_CONTEXT_IS_DESTROYED : error());
  return error();
}

bool Context::Pending(const std::shared_ptr<Stream>& stream) {
  absl::MutexLock lock(&order_mutex_);
  return stream->Pending() || !OrderedAfter(*stream).empty();
}

CUresult Context::Synchronize() {
  std::vector<StreamPoint> points;
  for (const std::shared_ptr<Stream>& stream : Streams()) points.push_back(stream->Last());
  for (const StreamPoint& point : points) point.stream->Wait(point.sequence);
  return error();
}

void Context::Destroy() {
  destroyed_.store(true, std::memory_order_release);
  for (const std::shared_ptr<Stream>& stream : Streams()) {
    const StreamPoint last = stream->Last();
    stream->Close();
    stream->Wait(last.sequence);
  }
  absl::MutexLock lock(&streams_mutex_);
  legacy_ = nullptr;
}

void DestroyContext(State& state, const std::shared_ptr<Context>& context) {
  context->Destroy();
  const auto is_here = [&](const auto& object) { return object.context() == context; };
  state.streams.RemoveIf(is_here);
  state.events.RemoveIf(is_here);
  state.functions.RemoveIf([&](const Function& function) { return function.context() == context; });
  state.modules.RemoveIf(is_here);
  state.textures.RemoveIf(is_here);
  state.arrays.RemoveIf(is_here);
  state.libraries.RemoveIf([&](Library& library) {
    library.ForgetContext(context.get());
    return false;
  });
  state.address_space.FreeContext(context->id());
}

}  // namespace consort::cpu
