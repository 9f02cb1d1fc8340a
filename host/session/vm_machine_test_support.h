// SPDX-License-Identifier: Apache-2.0
// host/session/vm_machine_test_support.h: a virtual machine without a guest: its vsock device and
// the thread that runs it, and the front end that QEMU would be. For tests and benchmarks, which
// bring a guest (fake_guest.h, fast_guest.h).
#ifndef CONSORT_HOST_SESSION_VM_MACHINE_TEST_SUPPORT_H_
#define CONSORT_HOST_SESSION_VM_MACHINE_TEST_SUPPORT_H_

#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "base/unique_fd.h"
#include "vmsock/copy_crew.h"
#include "vmsock/vhost_user/fake_frontend.h"
#include "vmsock/vhost_user/vsock_device.h"

namespace consort::host {

// What must not fail ends the process. Guests go before it.
class TestMachine {
 public:
  static constexpr uint32_t kCid = 3;

  // `crew` copies with the machine's device, if there is one; borrowed for the object's life.
  explicit TestMachine(CopyCrew* crew);
  ~TestMachine();
  TestMachine(const TestMachine&) = delete;
  TestMachine& operator=(const TestMachine&) = delete;

  // Initialised; its queues are started by whoever has made a guest of it.
  vhost_user::FakeFrontend* frontend() { return frontend_.get(); }
  vhost_user::VsockDeviceStats stats() const { return device_->stats(); }
  // The host's end of the only stream. Once; waits for the guest to connect.
  UniqueFd TakeHostEnd() { return connected_.get_future().get(); }

 private:
  std::string directory_;
  std::promise<UniqueFd> connected_;  // by the device's thread
  std::unique_ptr<vhost_user::VsockDevice> device_;
  std::thread device_thread_;
  std::unique_ptr<vhost_user::FakeFrontend> frontend_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_VM_MACHINE_TEST_SUPPORT_H_
