// SPDX-License-Identifier: Apache-2.0
// host/session/vm_session_test_support.h: a session over the CPU device whose program is in a
// virtual machine: FakeGuest's driver and sockets, the vsock device, a session, in one process. For
// tests and benchmarks that copy.
#ifndef CONSORT_HOST_SESSION_VM_SESSION_TEST_SUPPORT_H_
#define CONSORT_HOST_SESSION_VM_SESSION_TEST_SUPPORT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "gen/wire/requests.h"
#include "host/session/session.h"
#include "host/session/vm_machine_test_support.h"
#include "vmsock/copy_crew.h"
#include "vmsock/vhost_user/fake_guest.h"
#include "vmsock/vhost_user/vsock_device.h"

namespace consort::host {

// What the session has counted by its end.
struct VmSessionCounts {
  Bytes copied_by_worker = 0;
  Bytes bytes_to_device = 0;
  Bytes bytes_to_host = 0;
};

// Its program's calls, one at a time. What must not fail ends the process.
class VmSessionPeer {
 public:
  // `door`: as of OpenSession::channel; kVhostUserDoor has a conduit, others go through a socket.
  // `crew` copies with the machine's device, if there is one; borrowed for the object's life.
  explicit VmSessionPeer(const std::string& door, CopyCrew* crew = nullptr);
  ~VmSessionPeer();
  VmSessionPeer(const VmSessionPeer&) = delete;
  VmSessionPeer& operator=(const VmSessionPeer&) = delete;

  // Device memory.
  uint64_t Allocate(Bytes bytes);
  // Copies in pieces of kBulkBytesMax, as the guest library does, and waits for the stream.
  void CopyToDevice(uint64_t address, std::span<const std::byte> data);
  std::vector<std::byte> CopyToHost(uint64_t address, Bytes bytes);
  // So that the next CopyToDevice has nothing to encode: the frames of one of `data` to `address`.
  std::vector<std::byte> EncodeCopy(uint64_t address, std::span<const std::byte> data) const;
  void SendEncodedCopy(std::span<const std::byte> frames);

  vhost_user::VsockDeviceStats stats() const { return machine_.stats(); }
  // Ends the program and waits for the session.
  VmSessionCounts End();

 private:
  template <class Request>
  void Send(const Request& request, uint32_t call) {
    frames_.clear();
    Append(request, call, &frames_);
    CHECK(stream_->SendAll(frames_)) << "the device takes no more";
  }
  template <class Request>
  static void Append(const Request& request, uint32_t call, std::vector<std::byte>* frames);
  // Waits for the reply, which must be a success; its body.
  std::vector<std::byte> Await(uint32_t call);
  void Synchronize();
  void FillTo(size_t bytes);

  TestMachine machine_;
  UniqueFd host_end_;
  std::unique_ptr<vhost_user::FakeGuest> guest_;
  std::unique_ptr<vhost_user::GuestStream> stream_;
  std::thread session_thread_;
  VmSessionCounts counts_;

  std::vector<std::byte> frames_;
  std::vector<std::byte> received_;
  size_t taken_ = 0;  // of received_
  uint32_t next_call_ = 1;
  uint64_t next_transfer_ = 1;
  std::vector<std::byte> transfer_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_VM_SESSION_TEST_SUPPORT_H_
