// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/event_loop.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace consort::host {
namespace {

constexpr int kEventsPerTurn = 64;

}  // namespace

Nanos MonotonicNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

uint64_t UnixMillisNow() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1'000'000;
}

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::Create() {
  UniqueFd poll(epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wakeup(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!poll.valid() || !wakeup.valid()) {
    return absl::InternalError(absl::StrCat("event loop: ", strerror(errno)));
  }
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<uint32_t>(wakeup.get());
  if (epoll_ctl(poll.get(), EPOLL_CTL_ADD, wakeup.get(), &event) != 0) {
    return absl::InternalError(absl::StrCat("event loop: ", strerror(errno)));
  }
  return std::unique_ptr<EventLoop>(new EventLoop(std::move(poll), std::move(wakeup)));
}

EventLoop::EventLoop(UniqueFd poll, UniqueFd wakeup)
    : poll_(std::move(poll)), wakeup_(std::move(wakeup)) {}

// An event carries the descriptor's number and the low 32 bits of its watch's generation.
absl::Status EventLoop::Watch(int fd, uint32_t events, std::function<void(uint32_t)> on_events) {
  const uint64_t generation = next_generation_++;
  epoll_event event = {};
  event.events = events;
  event.data.u64 = static_cast<uint32_t>(fd) | generation << 32;
  if (epoll_ctl(poll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return absl::InternalError(absl::StrCat("epoll_ctl: ", strerror(errno)));
  }
  watched_[fd] = std::make_shared<Watched>(Watched{generation, std::move(on_events)});
  return absl::OkStatus();
}

void EventLoop::Rearm(int fd, uint32_t events) {
  const auto it = watched_.find(fd);
  CHECK(it != watched_.end());
  epoll_event event = {};
  event.events = events;
  event.data.u64 = static_cast<uint32_t>(fd) | it->second->generation << 32;
  PCHECK(epoll_ctl(poll_.get(), EPOLL_CTL_MOD, fd, &event) == 0);
}

void EventLoop::Unwatch(int fd) {
  if (watched_.erase(fd) == 0) return;
  PCHECK(epoll_ctl(poll_.get(), EPOLL_CTL_DEL, fd, nullptr) == 0);
}

EventLoop::TimerId EventLoop::After(Nanos delay, std::function<void()> on_time) {
  const TimerId timer = next_timer_++;
  const Nanos time = MonotonicNow() + delay;
  timers_.emplace(std::make_pair(time, timer), std::move(on_time));
  timer_times_[timer] = time;
  return timer;
}

void EventLoop::Cancel(TimerId timer) {
  const auto it = timer_times_.find(timer);
  if (it == timer_times_.end()) return;
  timers_.erase({it->second, timer});
  timer_times_.erase(it);
}

void EventLoop::Post(std::function<void()> call) {
  {
    absl::MutexLock lock(&mutex_);
    posted_.push_back(std::move(call));
  }
  Wake();
}

void EventLoop::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the loop is being woken already.
  [[maybe_unused]] const ssize_t written = write(wakeup_.get(), &one, sizeof(one));
}

void EventLoop::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  Wake();
}

// Runs what is due; gives the milliseconds to the next timer, -1 for none.
int EventLoop::RunTimers() {
  while (!timers_.empty()) {
    const auto first = timers_.begin();
    const Nanos now = MonotonicNow();
    if (first->first.first > now) {
      return static_cast<int>(
          std::min<Nanos>((first->first.first - now) / kMillisecond + 1, INT32_MAX));
    }
    std::function<void()> on_time = std::move(first->second);
    timer_times_.erase(first->first.second);
    timers_.erase(first);
    on_time();
  }
  return -1;
}

void EventLoop::RunPosted() {
  std::vector<std::function<void()>> posted;
  {
    absl::MutexLock lock(&mutex_);
    posted.swap(posted_);
  }
  for (auto& call : posted) call();
}

void EventLoop::Run() {
  while (true) {
    RunPosted();
    const int timeout_ms = RunTimers();
    {
      absl::MutexLock lock(&mutex_);
      if (stop_ && posted_.empty()) return;
    }
    epoll_event events[kEventsPerTurn];
    const int count = epoll_wait(poll_.get(), events, kEventsPerTurn, timeout_ms);
    for (int i = 0; i < count; ++i) {
      const int fd = static_cast<int>(events[i].data.u64 & UINT32_MAX);
      if (fd == wakeup_.get()) {
        uint64_t ignored;
        [[maybe_unused]] const ssize_t got = read(wakeup_.get(), &ignored, sizeof(ignored));
        continue;
      }
      const auto it = watched_.find(fd);
      if (it == watched_.end() ||
          static_cast<uint32_t>(it->second->generation) != events[i].data.u64 >> 32) {
        continue;  // an earlier callback of this turn removed it
      }
      const std::shared_ptr<Watched> watched = it->second;
      watched->on_events(events[i].events);
    }
  }
}

}  // namespace consort::host
