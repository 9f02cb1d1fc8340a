// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/vsock_device.h: the virtio-vsock device of one VM, as a vhost-user backend for
// QEMU 7.2 and later.
//
// One object and one thread (that of Run) for each VM. The VM's identity is the socket that its VMM
// connects to: nothing that the guest says names it. Serves one frontend after the other; when a
// frontend goes, so do all of its connections. Guests open streams to host ports; the device opens
// none towards a guest.
//
//   socket file --messages--> Backend --rings--> Muxer --bytes--> descriptors of ConnectHandler
//
// QEMU: -chardev socket,id=vs,path=SOCKET -device vhost-user-vsock-pci,chardev=vs, and guest RAM
// that is shared (memory-backend-memfd,share=on). The socket must exist before QEMU starts. All
// bounds: limits.h. What must be known of QEMU and of guests is said where it is used.
#ifndef CONSORT_VMSOCK_VHOST_USER_VSOCK_DEVICE_H_
#define CONSORT_VMSOCK_VHOST_USER_VSOCK_DEVICE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/inherited_fds.h"
#include "base/units.h"
#include "vmsock/copy_crew.h"
#include "vmsock/vhost_user/attention.h"
#include "vmsock/vhost_user/device_state.h"
#include "vmsock/vhost_user/limits.h"
#include "vmsock/vhost_user/muxer.h"

namespace consort::vhost_user {

struct VsockDeviceOptions {
  // Where QEMU connects to; at most 107 characters.
  std::string socket_path;
  // Permissions and group of the socket file: whoever may connect is this VM.
  mode_t socket_mode = 0600;
  std::optional<gid_t> socket_group;
  // The guest's own address, 3 or more. It need not be unique on the host.
  uint32_t guest_cid = 3;
  // Most bytes that a connection's guest may have undelivered; from kReceiveWindowBytesMin to
  // kReceiveBudgetBytes. Many connections at once get less (limits.h).
  Bytes receive_window_bytes_max = kReceiveWindowBytesDefault;
  // Refuse guest RAM that the VMM could still shrink, which would end this process with SIGBUS.
  // memory-backend-memfd is sealed unless told otherwise; memory-backend-file cannot be.
  bool require_sealed_memory = false;
  // That copies between guest and conduits; borrowed for the device's life. Null: the device's
  // thread does.
  CopyCrew* copy_crew = nullptr;
};

// Since the device was created or restored.
struct VsockDeviceStats {
  uint64_t frontends = 0;      // VMMs that have connected
  uint64_t frontends_now = 0;  // one or none
  uint64_t connections_opened = 0;
  uint64_t connections_refused = 0;  // by the handler or a bound
  uint64_t connections_reset = 0;    // by us: a protocol error, or the host side failed
  uint64_t connections_now = 0;      // those being closed included
  uint64_t packets_from_guest = 0;
  uint64_t packets_to_guest = 0;
  uint64_t bytes_from_guest = 0;  // payload
  uint64_t bytes_to_guest = 0;
  // The part of these that went through a socket, and was copied once more at its other end.
  uint64_t socket_bytes_from_guest = 0;
  uint64_t socket_bytes_to_guest = 0;
  uint64_t kicks = 0;  // by the guest; those that came before the device looked count as one
  uint64_t interrupts = 0;
  uint64_t device_resets = 0;    // queues that started anew, the first start included
  uint64_t protocol_errors = 0;  // of guest and frontend
  uint64_t broken_rings = 0;
};

class VsockDevice {
 public:
  // `handler` is called on Run's thread when the guest connects to (CID 2, host_port). It returns a
  // connected, non-blocking SOCK_STREAM descriptor whose bytes the device then moves both ways, or
  // an error, upon which the guest's connect() fails with ECONNRESET. It must not block: all of the
  // VM's streams wait for it. Listens when it returns: start QEMU any time after. kInvalidArgument:
  // options out of range. Else as ListeningSocket::Create.
  static absl::StatusOr<std::unique_ptr<VsockDevice>> Create(const VsockDeviceOptions& options,
                                                             ConnectHandler handler);
  // Goes on with what Save told in an earlier image of the process, with its VMM and connections;
  // takes the descriptors of `state` from `fds`. `options` as they were. kInvalidArgument,
  // kFailedPrecondition, kInternal: it cannot; then connections and VMM see their sockets' end as
  // soon as `fds` does not have them either.
  static absl::StatusOr<std::unique_ptr<VsockDevice>> Restore(const VsockDeviceOptions& options,
                                                              ConnectHandler handler,
                                                              const VsockDeviceState& state,
                                                              InheritedFds* fds);
  // Removes the socket file. Run must have returned.
  ~VsockDevice();
  VsockDevice(const VsockDevice&) = delete;
  VsockDevice& operator=(const VsockDevice&) = delete;

  // Serves frontends until Stop, and may then be called again: what it served goes on.
  absl::Status Run();
  // Makes Run return soon. Any thread, any number of times, also before Run.
  void Stop();
  // What the device is at present, while nobody runs it. Descriptors stay the device's own.
  VsockDeviceState Save() const;
  // Any thread.
  VsockDeviceStats stats() const;

 private:
  struct Frontend;

  VsockDevice(const VsockDeviceOptions& options, ConnectHandler handler);
  static absl::StatusOr<std::unique_ptr<VsockDevice>> New(const VsockDeviceOptions& options,
                                                          ConnectHandler handler);
  absl::Status RestoreFrontend(const FrontendState& state, InheritedFds* fds);
  absl::Status WatchListener();
  absl::Status WatchFrontend(std::unique_ptr<Frontend> frontend);
  void AcceptFrontend();
  // Ends all that belongs to the frontend, logs why, and listens again.
  absl::Status DropFrontend(const absl::Status& why);
  // Carries out what the frontend asks for. An error: it has gone (kUnavailable) or must go.
  absl::Status ServeMessages();
  void PumpQueues();
  // Whether there is more. `rests`: as of Muxer::Pump.
  bool PumpOnce(bool rests);
  void Interrupt(const Muxer::PumpResult& result);
  // Ends all copies into and out of guest memory.
  void FinishCopies();

  const VsockDeviceOptions options_;
  const ConnectHandler handler_;
  Counters counters_;
  // Its members watch through it: first in, last out.
  std::unique_ptr<EventSet> events_;
  UniqueFd stop_event_;
  EventSet::Watch stop_watch_;
  std::unique_ptr<class ListeningSocket> listener_;
  EventSet::Watch listener_watch_;  // only while there is no frontend
  std::unique_ptr<Frontend> frontend_;
  bool pump_again_ = false;
  uint32_t idle_pumps_ = 0;  // in a row, that moved nothing
  Attention attention_;
};

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_VSOCK_DEVICE_H_
