// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry: a consortd's state, behind a head that this build takes. What is read fits its
// bounds, and is written as it was read.
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "base/log.h"
#include "host/daemon/daemon_state.h"
#include "vmsock/vhost_user/device_state.h"

using namespace consort::host;  // a program of one function

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kHeadBytes = 24;  // daemon_state.h
  std::vector<std::byte> bytes = Encode(DaemonState());
  bytes.resize(kHeadBytes);
  const auto fields = std::as_bytes(std::span(data, size));
  bytes.insert(bytes.end(), fields.begin(), fields.end());
  const auto state = DecodeDaemonState(bytes);
  if (!state.ok()) return 0;
  std::set<int> descriptors;
  for (const int descriptor : DescriptorsOf(*state)) {
    CHECK_GT(descriptor, 2);
    CHECK(descriptors.insert(descriptor).second);
  }
  for (const DaemonState::Vm& vm : state->vms) {
    if (!consort::vhost_user::Check(vm.device).ok()) continue;
    for (const auto& frontend : vm.device.frontends) {
      CHECK_EQ(frontend.backend.queues.size(), size_t{2});
    }
  }
  const auto again = DecodeDaemonState(Encode(*state));
  CHECK(again.ok()) << again.status();
  return 0;
}
