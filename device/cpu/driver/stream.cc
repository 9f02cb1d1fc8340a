// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/driver/stream.h"

#include <pthread.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/cpu/driver/context.h"
#include "device/cpu/driver/graph.h"
#include "device/cpu/driver/handle_table.h"
#include "device/cpu/driver/limits.h"

namespace consort::cpu {

Stream::Stream(std::shared_ptr<Context> context, unsigned int flags, int priority)
    : context_(std::move(context)), flags_(flags), priority_(priority), id_(NewHandleValue()) {}

void Stream::SetOutput(const LaunchOutput& output) {
  absl::MutexLock lock(&mutex_);
  output_ = output;
}

LaunchOutput Stream::output() {
  absl::MutexLock lock(&mutex_);
  return output_;
}

bool Stream::BeginCapture(StreamCapture capture) {
  absl::MutexLock lock(&mutex_);
  if (capture_.graph != nullptr) return false;
  capture_ = std::move(capture);
  return true;
}

StreamCapture Stream::EndCapture() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(capture_, {});
}

StreamCapture Stream::capture() {
  absl::MutexLock lock(&mutex_);
  return capture_;
}

bool Stream::Capture(Operation* operation) {
  absl::MutexLock lock(&mutex_);
  if (capture_.graph == nullptr) return false;
  GraphNode node;
  node.operation = std::move(*operation);
  capture_.graph->Add(*capture_.nodes, std::move(node));
  return true;
}

void Stream::WaitForRoom() {
  const auto has_room = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return queue_.size() < kStreamOperationsMax;
  };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&has_room));
}

void Stream::Enqueue(Operation operation, std::vector<StreamPoint> after) {
  mutex_.Lock();
  if (closed_) {
    // Destroyed by another thread in the middle of a call that names it.
    mutex_.Unlock();
    operation(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    return;
  }
  if (!started_) {
    // The thread keeps the stream alive until it has run everything.
    std::thread([self = shared_from_this()] { self->Run(); }).detach();
    started_ = true;
  }
  queue_.push_back({std::move(operation), std::move(after)});
  ++submitted_;
  mutex_.Unlock();
}

StreamPoint Stream::Last() {
  absl::MutexLock lock(&mutex_);
  return {shared_from_this(), submitted_};
}

bool Stream::Pending() {
  absl::MutexLock lock(&mutex_);
  return completed_ < submitted_;
}

void Stream::Wait(uint64_t sequence) {
  const auto reached = [this, sequence]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return completed_ >= sequence; };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&reached));
}

void Stream::Close() {
  bool started = false;
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    started = started_;
  }
  // A thread forgets the stream itself when it is done.
  if (!started) context_->Forget(this);
}

void Stream::Run() {
  pthread_setname_np(pthread_self(), absl::StrCat("stream-", (id_ >> 4) & 0xFFFFFF).c_str());
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !queue_.empty() || closed_;
  };
  while (true) {
    Item item;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      if (queue_.empty()) break;
      item = std::move(queue_.front());
      queue_.pop_front();
    }
    for (const StreamPoint& point : item.after) point.stream->Wait(point.sequence);
    item.operation(context_->destroyed() ? CUDA_ERROR_CONTEXT_IS_DESTROYED : context_->error());
    // What the operation holds (modules, staging memory) goes before anyone is told that it is
    // done.
    item = Item();
    absl::MutexLock lock(&mutex_);
    ++completed_;
  }
  context_->Forget(this);
}

}  // namespace consort::cpu
