// SPDX-License-Identifier: Apache-2.0
#include "host/session/vm_machine_test_support.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/status/statusor.h"
#include "base/log.h"

namespace consort::host {

TestMachine::TestMachine(CopyCrew* crew) {
  char path[] = "/tmp/vm_machine.XXXXXX";
  PCHECK(mkdtemp(path) != nullptr);
  directory_ = path;
  vhost_user::VsockDeviceOptions options;
  options.socket_path = directory_ + "/vm.sock";
  options.guest_cid = kCid;
  options.copy_crew = crew;
  auto device = vhost_user::VsockDevice::Create(
      options, [this](uint32_t, uint32_t) -> absl::StatusOr<UniqueFd> {
        int ends[2];
        PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
        connected_.set_value(UniqueFd(ends[1]));
        return UniqueFd(ends[0]);
      });
  CHECK(device.ok()) << device.status();
  device_ = *std::move(device);
  device_thread_ = std::thread([this] { CHECK(device_->Run().ok()); });
  frontend_ =
      std::make_unique<vhost_user::FakeFrontend>(options.socket_path, vhost_user::kFeaturesOffered);
  CHECK_EQ(frontend_->Initialise(), uint64_t{kCid});
}

TestMachine::~TestMachine() {
  frontend_.reset();
  device_->Stop();
  device_thread_.join();
  device_.reset();
  rmdir(directory_.c_str());
}

}  // namespace consort::host
