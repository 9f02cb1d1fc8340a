// SPDX-License-Identifier: Apache-2.0
// vmsock/listen.h: the host's side of dial.h: listen, accept, answer the greeting, make the
// channel.
//
// A client costs nothing but its socket until it has sent a valid Hello: all reads are of fixed
// size and limited in time, and nothing is allocated for it before. Host only.
//
//   accept ─► ReadHello ─► CheckHello ─┬─► RefuseClient                         (socket closed)
//                                      ├─► SendWelcome with snapshots  (a query; socket closed)
//                                      └─► OpenHostChannel: Welcome, memory ─► Channel
#ifndef CONSORT_VMSOCK_LISTEN_H_
#define CONSORT_VMSOCK_LISTEN_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "vmsock/channel.h"
#include "vmsock/conduit_channel.h"
#include "vmsock/limits.h"
#include "vmsock/ring_channel.h"
#include "vmsock/vm_memory.h"
#include "vmsock/wire/handshake.h"

namespace consort {

// Who connected, as the kernel says. Fields of other kinds are zero.
struct Peer {
  enum class Kind : uint8_t { kUnix, kVsock, kTcp };
  Kind kind = Kind::kUnix;
  uid_t uid = 0;     // kUnix: when it connected
  gid_t gid = 0;     // kUnix
  pid_t pid = 0;     // kUnix; may be another process by now
  uint32_t cid = 0;  // kVsock: the VM
  std::string text;  // for people: "unix uid 1000 pid 77", "vsock cid 3", "tcp 127.0.0.1:4711"
};

struct Accepted {
  UniqueFd socket;  // non-blocking, close-on-exec
  Peer peer;
};

struct UnixListenOptions {
  std::string path;    // absolute, at most 107 bytes
  mode_t mode = 0660;  // of the socket: who may connect
};

// A listening socket. Thread safe after creation: any number of threads may Accept.
class Listener {
 public:
  // Binds options.path. A socket file that a dead daemon left is replaced; a live one is not:
  // kAlreadyExists. A file `path`.lock, locked as long as the listener lives, keeps two daemons
  // that start together apart; it stays behind. kFailedPrecondition: `path` is there and no socket.
  // kInvalidArgument: not a possible path. Else the kernel's errors.
  static absl::StatusOr<std::unique_ptr<Listener>> ListenUnix(const UnixListenOptions& options);

  // Goes on with what ListenUnix made in an earlier process image: takes its socket and its lock.
  // kInvalidArgument: `socket` does not listen, or not at `path`.
  static absl::StatusOr<std::unique_ptr<Listener>> AdoptUnix(const std::string& path,
                                                             UniqueFd socket, UniqueFd lock);
  // Likewise of ListenVsock.
  static absl::StatusOr<std::unique_ptr<Listener>> AdoptVsock(UniqueFd socket);

  // Binds `port` for every VM whose kernel vhost-vsock device is on this host. kUnavailable: this
  // kernel has no vsock. kAlreadyExists: the port is taken.
  static absl::StatusOr<std::unique_ptr<Listener>> ListenVsock(uint32_t port);

  // Binds 127.0.0.1:`port`; 0 lets the kernel choose, see endpoint().
  static absl::StatusOr<std::unique_ptr<Listener>> ListenTcpLoopback(uint16_t port);

  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  // Removes the UNIX socket file if it is still the one that was made.
  ~Listener();

  // The next client. kDeadlineExceeded: none within `timeout` (negative: no limit). kAborted: it
  // was gone again before it was accepted. kResourceExhausted: no descriptor is left for it; it
  // keeps waiting.
  absl::StatusOr<Accepted> Accept(Nanos timeout);

  // For poll(2), readable when Accept(0) may succeed. Owned by the listener.
  int fd() const { return socket_.get(); }
  // ListenUnix's, as long as the listener lives; -1 for others.
  int lock_fd() const { return lock_.get(); }
  // What a client on this machine dials, in dial.h's form.
  const std::string& endpoint() const { return endpoint_; }

 private:
  Listener(UniqueFd socket, std::string endpoint)
      : socket_(std::move(socket)), endpoint_(std::move(endpoint)) {}

  // Remembers which file is the socket's.
  absl::Status TakeFile(const std::string& path);

  UniqueFd socket_;
  std::string endpoint_;
  // ListenUnix only.
  UniqueFd lock_;
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// Reads a client's greeting. `fd` is non-blocking. The application's name is terminated.
// kDeadlineExceeded, kUnavailable (it hung up), kInvalidArgument (garbage, or a purpose that does
// not exist): close the socket, there is nobody to answer.
absl::StatusOr<wire::Hello> ReadHello(int fd, Nanos timeout);

// kFailedPrecondition with a text that names both sides if the client speaks another version of the
// wire or of the API description.
absl::Status CheckHello(const wire::Hello& hello, uint64_t description_hash);

// Sends `welcome`, then `snapshots`; `memory` (-1: none) travels with the first byte. kUnavailable,
// kDeadlineExceeded. `fd` is non-blocking.
absl::Status SendWelcome(int fd, const wire::Welcome& welcome, int memory,
                         std::span<const wire::DeviceSnapshot> snapshots, Nanos timeout);

// Says no: `status` is one of wire::kWelcome..., `text` tells a person what to do.
absl::Status RefuseClient(int fd, uint32_t status, const std::string& text, Nanos timeout);

// A session's channel, as the host holds it.
struct HostChannel {
  std::unique_ptr<Channel> channel;
  // The rings' memory, to be registered with a device; empty without rings. Part of `channel`.
  std::span<std::byte> shared_memory;
  // `channel`, where it is one.
  ConduitChannel* conduit = nullptr;
};

struct HostChannelOptions {
  bool allow_rings = true;
  // The other end is our vsock device, which makes conduits (conduit.h); then there are no rings
  // but in the machine's memory.
  bool conduit = false;
  RingSizes ring_sizes;
  // The machine's shared memory, borrowed, if the guest is to have its rings there and the host has
  // the pages; -1: it is not.
  int vm_memory = -1;
  Bytes vm_rings_offset = 0;  // of a part of it that nobody else uses
  Nanos timeout = kHandshakeTimeout;
};

// Accepts the session that `hello` asks for: agrees on features, makes the rings' memory if there
// are any, completes `welcome` (features, ring sizes) and sends it. kInvalidArgument: ring sizes
// out of range. kUnavailable, kDeadlineExceeded: the client. kResourceExhausted: no memory or
// descriptors.
absl::StatusOr<HostChannel> OpenHostChannel(UniqueFd socket, const wire::Hello& hello,
                                            wire::Welcome welcome,
                                            const HostChannelOptions& options);

// Gives the pages of a part of a machine's shared memory back to the host. Whoever reads it sees
// zeros. The errors of fallocate(2).
absl::Status ReleaseVmMemory(int file, Bytes offset, Bytes bytes);
// Makes a part all zero, of pages that are there: a host without room says so here, and not by a
// signal to whoever writes them first. kResourceExhausted: it has none.
absl::Status ClearVmMemory(int file, Bytes offset, Bytes bytes);

// What rings of these sizes take of a machine's shared memory.
constexpr Bytes VmRingBytes(const RingSizes& sizes) {
  return AlignUp(RingMemoryBytes(sizes), kVmMemoryUnit);
}

// The channel of a session whose Welcome was sent, to our vsock device, with what was read of the
// stream since then. As ConduitChannel::Open.
absl::StatusOr<HostChannel> OpenConduit(UniqueFd socket, std::span<const std::byte> unread,
                                        Nanos timeout);

// Goes on with a session's channel that another process has described and abandons. `from` names
// its descriptors, of which this takes over `socket` and `memory` (empty without rings or conduit).
// kInvalidArgument: it cannot be such a channel's. kResourceExhausted: no memory.
absl::StatusOr<HostChannel> ResumeHostChannel(UniqueFd socket, UniqueFd memory,
                                              const ChannelHandover& from);

}  // namespace consort

#endif  // CONSORT_VMSOCK_LISTEN_H_
