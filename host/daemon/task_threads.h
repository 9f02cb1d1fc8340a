// SPDX-License-Identifier: Apache-2.0
// host/daemon/task_threads.h: work that waits, for a disk or for another process, and so must not
// be done on consortd's loop: a thread for each, whose result comes back to the loop.
//
// Owned by the loop; `work` runs on its own thread, `done` on the loop's. What is still at work
// when this ends is waited for, and its `done` is not called.
#ifndef CONSORT_HOST_DAEMON_TASK_THREADS_H_
#define CONSORT_HOST_DAEMON_TASK_THREADS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "host/daemon/event_loop.h"

namespace consort::host {

class TaskThreads {
 public:
  explicit TaskThreads(EventLoop* loop) : loop_(loop) {}
  ~TaskThreads();
  TaskThreads(const TaskThreads&) = delete;
  TaskThreads& operator=(const TaskThreads&) = delete;

  template <class Result>
  void Start(std::function<Result()> work, std::function<void(Result)> done) {
    // Shared by the two calls, which are made one after the other.
    const auto result = std::make_shared<std::optional<Result>>();
    StartThread([work = std::move(work), result] { result->emplace(work()); },
                [done = std::move(done), result] { done(std::move(**result)); });
  }
  size_t running() const { return threads_.size(); }

 private:
  void StartThread(std::function<void()> work, std::function<void()> done);

  EventLoop* const loop_;
  uint64_t next_ = 1;
  std::map<uint64_t, std::thread> threads_;
  // Shared with calls that were posted: null once this has ended.
  const std::shared_ptr<TaskThreads*> self_ = std::make_shared<TaskThreads*>(this);
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_TASK_THREADS_H_
