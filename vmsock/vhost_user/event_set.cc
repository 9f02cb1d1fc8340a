// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/event_set.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace consort::vhost_user {

EventSet::Watch& EventSet::Watch::operator=(Watch&& other) noexcept {
  if (this != &other) {
    Reset();
    epoll_fd_ = other.epoll_fd_;
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void EventSet::Watch::Reset() {
  if (fd_ < 0) return;
  PCHECK(epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd_, nullptr) == 0);
  fd_ = -1;
}

absl::StatusOr<EventSet> EventSet::Create() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) {
    return absl::ResourceExhaustedError(absl::StrCat("epoll_create1: ", std::strerror(errno)));
  }
  return EventSet(std::move(epoll));
}

absl::StatusOr<EventSet::Watch> EventSet::Add(int fd, uint32_t events, uint64_t token) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = token;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return Watch(epoll_.get(), fd);
  const std::string text = absl::StrCat("epoll_ctl: ", std::strerror(errno));
  if (errno == ENOSPC || errno == ENOMEM) return absl::ResourceExhaustedError(text);
  return absl::InvalidArgumentError(text);
}

std::span<epoll_event> EventSet::Wait(std::span<epoll_event> events, int timeout_ms) {
  const int count =
      epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  PCHECK(count >= 0 || errno == EINTR);
  return events.first(count > 0 ? count : 0);
}

}  // namespace consort::vhost_user
