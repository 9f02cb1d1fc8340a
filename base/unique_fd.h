// SPDX-License-Identifier: Apache-2.0
// base/unique_fd.h: a file descriptor that is closed when its owner goes. Thread compatible.
#ifndef CONSORT_BASE_UNIQUE_FD_H_
#define CONSORT_BASE_UNIQUE_FD_H_

#include <utility>

namespace consort {

class UniqueFd {
 public:
  UniqueFd() = default;
  // Takes ownership of `fd`; negative means none.
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Gives the descriptor away; this object is empty afterwards.
  int Release() { return std::exchange(fd_, -1); }
  // Closes the present descriptor, if any, and takes `fd`.
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

}  // namespace consort

#endif  // CONSORT_BASE_UNIQUE_FD_H_
