// SPDX-License-Identifier: Apache-2.0
// host/control/control_socket.h: one end of the pair between consortd and a worker.
//
// Send is thread safe (a packet is written by one system call); Receive belongs to one thread.
#ifndef CONSORT_HOST_CONTROL_CONTROL_SOCKET_H_
#define CONSORT_HOST_CONTROL_CONTROL_SOCKET_H_

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "host/control/messages.h"

namespace consort::host {

inline constexpr size_t kControlPacketBytesMax = 4096;

// A received packet.
class ControlPacket {
 public:
  MessageKind kind() const { return kind_; }
  // The message, if the packet has its kind and size.
  template <typename T>
  bool As(T* message) const {
    static_assert(std::is_trivially_copyable_v<T>);
    if (kind_ != T::kKind || bytes_ != sizeof(T)) return false;
    std::memcpy(message, body_, sizeof(T));
    return true;
  }
  // The descriptor that came with it; the caller takes it. May be empty.
  UniqueFd& descriptor() { return descriptor_; }

 private:
  friend class ControlSocket;
  MessageKind kind_{};
  size_t bytes_ = 0;
  alignas(8) std::byte body_[kControlPacketBytesMax];
  UniqueFd descriptor_;
};

class ControlSocket {
 public:
  // Takes ownership of a connected SOCK_SEQPACKET socket.
  explicit ControlSocket(UniqueFd fd) : fd_(std::move(fd)) {}

  // A connected pair, close-on-exec, both ends blocking.
  static absl::StatusOr<std::pair<UniqueFd, UniqueFd>> MakePair();

  // Sends one message, with `descriptor` beside it if >= 0 (borrowed). Never blocks.
  // kUnavailable: the other end is gone. kResourceExhausted: its queue is full (it is stuck).
  template <typename T>
  absl::Status Send(const T& message, int descriptor = -1) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kControlPacketBytesMax);
    return SendPacket(T::kKind, &message, sizeof(T), descriptor);
  }

  // Waits for the next packet if `wait`, else takes one that is there.
  // kUnavailable: the other end is gone. kDeadlineExceeded: none there.
  absl::Status Receive(bool wait, ControlPacket* packet);

  int fd() const { return fd_.get(); }

 private:
  absl::Status SendPacket(MessageKind kind, const void* body, size_t bytes, int descriptor);

  UniqueFd fd_;
};

// Copies `text` into a fixed array, cut to fit and NUL-terminated.
template <size_t N>
void SetText(char (&array)[N], std::string_view text) {
  const size_t count = text.size() < N - 1 ? text.size() : N - 1;
  std::memcpy(array, text.data(), count);
  std::memset(array + count, 0, N - count);
}

// The text in a fixed array that another process filled; ends at the first NUL or at the array's
// end.
template <size_t N>
std::string GetText(const char (&array)[N]) {
  return std::string(array, strnlen(array, N));
}

}  // namespace consort::host

#endif  // CONSORT_HOST_CONTROL_CONTROL_SOCKET_H_
