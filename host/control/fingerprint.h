// SPDX-License-Identifier: Apache-2.0
// host/control/fingerprint.h: whether a consortd understands the workers that an earlier build of
// it started (host/daemon/daemon_state.h): only where their messages are the same.
#ifndef CONSORT_HOST_CONTROL_FINGERPRINT_H_
#define CONSORT_HOST_CONTROL_FINGERPRINT_H_

#include <cstdint>

#include "base/fnv.h"
#include "host/control/messages.h"

namespace consort::host {

// One more where a message between consortd and a worker changes and keeps its size.
inline constexpr uint64_t kControlVersion = 1;

// Equal for two builds whose consortd and workers understand each other.
constexpr uint64_t ControlFingerprint() {
  uint64_t hash = kFnvBasis;
  const auto add = [&hash](uint64_t number) { hash = FnvStep(hash, number); };
  const auto add_messages = [&]<class... Message>(const Message&...) {
    (add(static_cast<uint64_t>(Message::kKind) << 32 | sizeof(Message)), ...);
  };
  add(kControlVersion);
  add_messages(StartFailed(), Ready(), SessionEnded(), UsageReport(), MemoryReport(), Calibrated(),
               TraceEnded(), UnsupportedCalls(), Retired(), MoveEnded(), OpenSession(), MoveOut(),
               SetScheduler(), SetWeight(), SetRates(), SetTrace(), Calibrate(), Shutdown(), Keep(),
               LetGo(), WentOn(), KeptEnd(), PeerWanted(), PeerGone(), PeerLink(), PeerRefused(),
               MemoryWanted(), MemoryFetch(), MemoryFetched(), GiveVmMemory(), VmMemoryWanted(),
               VmMemoryLent(), VmMemoryBack(), SaveWanted(), BindWanted(), Bound());
  return hash;
}

}  // namespace consort::host

#endif  // CONSORT_HOST_CONTROL_FINGERPRINT_H_
