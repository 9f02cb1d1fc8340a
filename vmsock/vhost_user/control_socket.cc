// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/control_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace consort::vhost_user {
namespace {

absl::Status SystemError(const char* what, const std::string& path) {
  const int error = errno;
  const std::string text = absl::StrCat(what, " ", path, ": ", std::strerror(error));
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(text);
  return absl::InternalError(text);
}

// Takes over all descriptors of a received message, so that none is lost on any path.
std::vector<UniqueFd> TakeDescriptors(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(fd));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

// Removes a socket file without a listener.
absl::Status RemoveStale(const std::string& path, const sockaddr_un& address) {
  struct stat file {};
  if (lstat(path.c_str(), &file) != 0) return absl::OkStatus();  // bind tells what else is wrong
  if (!S_ISSOCK(file.st_mode)) return absl::AlreadyExistsError(absl::StrCat(path, " is no socket"));
  UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno != ECONNREFUSED) {
    return absl::AlreadyExistsError(absl::StrCat("somebody serves ", path));
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return SystemError("unlink", path);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::optional<Message>> ControlSocket::Receive() {
  while (true) {
    std::array<std::byte, kMessagePayloadBytesMax> bytes;
    iovec piece{bytes.data(), std::min(bytes.size(), assembler_.wanted_bytes())};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMemoryRegionsMax)> control;
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t count = recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return std::nullopt;
      return absl::UnavailableError(absl::StrCat("recvmsg: ", std::strerror(errno)));
    }
    std::vector<UniqueFd> fds = TakeDescriptors(message);
    if (count == 0) return absl::UnavailableError("frontend has closed");
    if (message.msg_flags & MSG_CTRUNC) {
      return absl::InvalidArgumentError("too many descriptors in one message");
    }
    RETURN_IF_ERROR(
        assembler_.Consume(std::span(bytes).first(static_cast<size_t>(count)), std::move(fds)));
    if (std::optional<Message> complete = assembler_.Take()) return complete;
  }
}

ControlState ControlSocket::Save() const {
  ControlState state = {.socket = fd_.get(), .bytes = {}, .descriptors = {}};
  assembler_.Save(state.bytes, state.descriptors);
  return state;
}

absl::Status ControlSocket::Restore(const ControlState& state, InheritedFds* fds) {
  std::vector<UniqueFd> descriptors;
  for (const int descriptor : state.descriptors) descriptors.push_back(fds->Take(descriptor));
  for (std::span<const std::byte> left(state.bytes); !left.empty();) {
    const size_t count = std::min(left.size(), assembler_.wanted_bytes());
    if (count == 0) return absl::InvalidArgumentError("more than a part of a message");
    RETURN_IF_ERROR(assembler_.Consume(left.first(count), std::exchange(descriptors, {})));
    left = left.subspan(count);
  }
  return absl::OkStatus();
}

absl::Status ControlSocket::Send(std::span<const std::byte> bytes) {
  ssize_t count = 0;
  do {
    count = send(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (count < 0 && errno == EINTR);
  if (count == static_cast<ssize_t>(bytes.size())) return absl::OkStatus();
  return absl::UnavailableError("frontend takes no reply");
}

absl::StatusOr<ListeningSocket> ListeningSocket::Create(const Options& options) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (options.path.empty() || options.path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("socket path of ", options.path.size(), " characters"));
  }
  std::memcpy(address.sun_path, options.path.data(), options.path.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return SystemError("socket for", options.path);
  RETURN_IF_ERROR(RemoveStale(options.path, address));
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == EADDRINUSE) return absl::AlreadyExistsError(options.path);
    return SystemError("bind", options.path);
  }
  struct stat file {};
  if (lstat(options.path.c_str(), &file) != 0) return SystemError("lstat", options.path);
  ListeningSocket result(std::move(fd), options.path, file.st_dev, file.st_ino);
  // Nobody can connect before listen, so there is no moment with other permissions.
  if (options.group.has_value() &&
      lchown(options.path.c_str(), static_cast<uid_t>(-1), *options.group) != 0) {
    return SystemError("chown", options.path);
  }
  if (chmod(options.path.c_str(), options.mode) != 0) return SystemError("chmod", options.path);
  // One frontend is served at a time; one more, started before its predecessor is quite gone, may
  // wait.
  if (listen(result.fd(), 1) != 0) return SystemError("listen", options.path);
  return result;
}

absl::StatusOr<ListeningSocket> ListeningSocket::Adopt(const std::string& path, UniqueFd fd) {
  sockaddr_un address{};
  socklen_t length = sizeof(address);
  struct stat file {};
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      address.sun_family != AF_UNIX || path != address.sun_path ||
      lstat(path.c_str(), &file) != 0 || !S_ISSOCK(file.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("no socket that listens at ", path));
  }
  return ListeningSocket(std::move(fd), path, file.st_dev, file.st_ino);
}

ListeningSocket::ListeningSocket(ListeningSocket&& other) noexcept
    : fd_(std::move(other.fd_)),
      path_(std::exchange(other.path_, {})),
      dev_(other.dev_),
      inode_(other.inode_) {}

ListeningSocket::~ListeningSocket() {
  if (path_.empty()) return;
  struct stat file {};
  if (lstat(path_.c_str(), &file) == 0 && file.st_dev == dev_ && file.st_ino == inode_) {
    unlink(path_.c_str());
  }
}

absl::StatusOr<UniqueFd> ListeningSocket::Accept() {
  UniqueFd fd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) return absl::UnavailableError(absl::StrCat("accept4: ", std::strerror(errno)));
  return fd;
}

}  // namespace consort::vhost_user
