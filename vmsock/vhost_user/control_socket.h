// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/control_socket.h: the UNIX socket that vhost-user messages and descriptors
// travel on.
//
// Owned by the device's thread. Never blocks: a frontend that stops in the middle of a message, or
// does not read its replies, cannot keep the thread from the rings or from Stop.
#ifndef CONSORT_VMSOCK_VHOST_USER_CONTROL_SOCKET_H_
#define CONSORT_VMSOCK_VHOST_USER_CONTROL_SOCKET_H_

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/inherited_fds.h"
#include "base/unique_fd.h"
#include "vmsock/vhost_user/device_state.h"
#include "vmsock/vhost_user/message.h"

namespace consort::vhost_user {

class ControlSocket {
 public:
  explicit ControlSocket(UniqueFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }

  // The next message, or nothing if it has not wholly arrived. kUnavailable: the peer has closed.
  // kInvalidArgument: not a message. After an error the socket is of no use.
  absl::StatusOr<std::optional<Message>> Receive();
  // kUnavailable: the peer has closed, or leaves so many replies unread that this one does not fit.
  absl::Status Send(std::span<const std::byte> bytes);

  ControlState Save() const;
  // Of a new object: goes on with the part of a message that had come. kInvalidArgument: it is no
  // part of one.
  absl::Status Restore(const ControlState& state, InheritedFds* fds);

 private:
  UniqueFd fd_;
  MessageAssembler assembler_;
};

// A listening UNIX socket at a path, which disappears with this object.
class ListeningSocket {
 public:
  struct Options {
    std::string path;
    mode_t mode = 0600;
    std::optional<gid_t> group;  // owner of the socket file; the process's own if not given
  };
  // Replaces a socket that nobody listens on any more. kAlreadyExists: somebody does, or the path
  // is something else. kInvalidArgument: path empty or too long. kPermissionDenied and kInternal:
  // as the system says.
  static absl::StatusOr<ListeningSocket> Create(const Options& options);
  // Goes on with what Create made at `path` in an earlier image of the process. kInvalidArgument:
  // `fd` is not that, or its file is gone.
  static absl::StatusOr<ListeningSocket> Adopt(const std::string& path, UniqueFd fd);
  ListeningSocket(ListeningSocket&& other) noexcept;
  ListeningSocket& operator=(ListeningSocket&&) = delete;
  ~ListeningSocket();

  int fd() const { return fd_.get(); }
  // A connection that was waiting; kUnavailable if there is none (any more).
  absl::StatusOr<UniqueFd> Accept();

 private:
  ListeningSocket(UniqueFd fd, std::string path, dev_t dev, ino_t inode)
      : fd_(std::move(fd)), path_(std::move(path)), dev_(dev), inode_(inode) {}

  UniqueFd fd_;
  std::string path_;  // empty once moved from
  // The file that we made: a successor's at the same path is left alone.
  dev_t dev_ = 0;
  ino_t inode_ = 0;
};

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_CONTROL_SOCKET_H_
