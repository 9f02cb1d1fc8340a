// SPDX-License-Identifier: Apache-2.0
// host/daemon/device_choice.h: which of the host's devices a program was shown, in one number.
//
// Its sessions say the number again (wire::Welcome::assembly): what it calls device 1 stays that,
// whatever its tenant may use later. Bit N: device N.
#ifndef CONSORT_HOST_DAEMON_DEVICE_CHOICE_H_
#define CONSORT_HOST_DAEMON_DEVICE_CHOICE_H_

#include <cstdint>
#include <vector>

#include "host/limits.h"

namespace consort::host {

static_assert(kDevicesMax <= 64);

inline uint64_t ChoiceOf(const std::vector<uint32_t>& devices) {
  uint64_t choice = 0;
  for (const uint32_t index : devices) choice |= uint64_t{1} << index;
  return choice;
}

// In ascending order.
inline std::vector<uint32_t> DevicesOf(uint64_t choice) {
  std::vector<uint32_t> devices;
  for (uint32_t index = 0; index < kDevicesMax; ++index) {
    if ((choice >> index & 1) != 0) devices.push_back(index);
  }
  return devices;
}

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_DEVICE_CHOICE_H_
