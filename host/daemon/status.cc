// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/status.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_format.h"
#include "policies/schedule/policy.h"
#include "vmsock/wire/handshake.h"

namespace consort::host {

std::string RefusalReason(uint32_t status) {
  switch (status) {
    case wire::kWelcomeVersionMismatch:
      return "version_mismatch";
    case wire::kWelcomeNoDevice:
      return "no_device";
    default:
      return "limit";
  }
}

const char* PhaseName(uint32_t phase) {
  switch (static_cast<schedule::Phase>(phase)) {
    case schedule::Phase::kKernel:
      return "kernel";
    case schedule::Phase::kToDevice:
      return "to_device";
    case schedule::Phase::kToHost:
      return "to_host";
    case schedule::Phase::kNone:
      break;
  }
  return "none";
}

std::string UuidText(const uint8_t (&uuid)[16]) {
  if (std::all_of(std::begin(uuid), std::end(uuid), [](uint8_t byte) { return byte == 0; })) {
    return "";
  }
  std::string text = "GPU";
  for (size_t i = 0; i < sizeof(uuid); ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    absl::StrAppendFormat(&text, "%02x", uuid[i]);
  }
  return text;
}

}  // namespace consort::host
