// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/event_set.h: an epoll instance whose registrations end with their owner.
//
// Owned by the device's thread. Closing a descriptor does not end its registration while another
// process holds the same open file, and QEMU holds all of ours: hence a Watch, which removes what
// it added.
#ifndef CONSORT_VMSOCK_VHOST_USER_EVENT_SET_H_
#define CONSORT_VMSOCK_VHOST_USER_EVENT_SET_H_

#include <sys/epoll.h>

#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace consort::vhost_user {

class EventSet {
 public:
  // One registration. Destroy it before its descriptor is closed, and before the set.
  class Watch {
   public:
    Watch() = default;
    Watch(Watch&& other) noexcept : epoll_fd_(other.epoll_fd_), fd_(std::exchange(other.fd_, -1)) {}
    Watch& operator=(Watch&& other) noexcept;
    ~Watch() { Reset(); }
    void Reset();
    bool valid() const { return fd_ >= 0; }

   private:
    friend class EventSet;
    Watch(int epoll_fd, int fd) : epoll_fd_(epoll_fd), fd_(fd) {}
    int epoll_fd_ = -1;
    int fd_ = -1;
  };

  static absl::StatusOr<EventSet> Create();

  // Reports `events` of `fd` under `token` until the Watch goes. kInvalidArgument: a kind of
  // descriptor that cannot be waited for. kResourceExhausted: the system's limit.
  absl::StatusOr<Watch> Add(int fd, uint32_t events, uint64_t token);

  // Waits until there is an event or timeout_ms have passed (-1: no limit); the filled part of
  // `events`.
  std::span<epoll_event> Wait(std::span<epoll_event> events, int timeout_ms);

 private:
  explicit EventSet(UniqueFd epoll) : epoll_(std::move(epoll)) {}
  UniqueFd epoll_;
};

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_EVENT_SET_H_
