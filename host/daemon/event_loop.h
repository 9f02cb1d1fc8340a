// SPDX-License-Identifier: Apache-2.0
// host/daemon/event_loop.h: consortd's one thread: descriptors, timers and posted calls.
//
// Everything runs on the thread that calls Run, except Post and Stop, which are thread safe. No
// callback may block. A callback may add and remove watches and timers, its own included.
#ifndef CONSORT_HOST_DAEMON_EVENT_LOOP_H_
#define CONSORT_HOST_DAEMON_EVENT_LOOP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "base/units.h"

namespace consort::host {

// Nanoseconds on CLOCK_MONOTONIC.
Nanos MonotonicNow();
// Milliseconds since 1970: for people and logs, never for measuring.
uint64_t UnixMillisNow();

class EventLoop {
 public:
  using TimerId = uint64_t;  // 0 is no timer

  static absl::StatusOr<std::unique_ptr<EventLoop>> Create();

  // Calls `on_events` with the EPOLL... events of `fd` (level triggered; EPOLLERR and EPOLLHUP
  // always). `fd` is borrowed and must be removed before it is closed.
  absl::Status Watch(int fd, uint32_t events, std::function<void(uint32_t)> on_events);
  // What to wait for from now on; 0 pauses all but errors.
  void Rearm(int fd, uint32_t events);
  void Unwatch(int fd);

  // Calls `on_time` once, `delay` from now.
  TimerId After(Nanos delay, std::function<void()> on_time);
  void Cancel(TimerId timer);

  // Calls `call` on the loop's thread soon. Thread safe.
  void Post(std::function<void()> call);

  // Runs until Stop; calls that were posted before are made.
  void Run();
  void Stop();

 private:
  EventLoop(UniqueFd poll, UniqueFd wakeup);
  void Wake();
  int RunTimers();
  void RunPosted();

  struct Watched {
    uint64_t generation;  // tells a descriptor number's present user from an earlier one
    std::function<void(uint32_t)> on_events;
  };

  UniqueFd poll_;
  UniqueFd wakeup_;
  uint64_t next_generation_ = 1;
  absl::flat_hash_map<int, std::shared_ptr<Watched>> watched_;  // shared with the running callback
  TimerId next_timer_ = 1;
  std::map<std::pair<Nanos, TimerId>, std::function<void()>> timers_;
  absl::flat_hash_map<TimerId, Nanos> timer_times_;

  absl::Mutex mutex_;
  std::vector<std::function<void()>> posted_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_EVENT_LOOP_H_
