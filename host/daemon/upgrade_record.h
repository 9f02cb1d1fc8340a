// SPDX-License-Identifier: Apache-2.0
// host/daemon/upgrade_record.h: how the latest upgrade of consortd went, for who asked for it.
#ifndef CONSORT_HOST_DAEMON_UPGRADE_RECORD_H_
#define CONSORT_HOST_DAEMON_UPGRADE_RECORD_H_

#include <cstdint>
#include <string>

namespace consort::host {

struct UpgradeRecord {
  enum class State { kNone, kTrying, kRefused, kDone };

  uint64_t number = 0;  // of this process, from 1 on
  State state = State::kNone;
  std::string by;
  std::string text;  // refused: why
};

// "none", "trying", "refused", "done".
inline const char* UpgradeStateName(UpgradeRecord::State state) {
  switch (state) {
    case UpgradeRecord::State::kTrying:
      return "trying";
    case UpgradeRecord::State::kRefused:
      return "refused";
    case UpgradeRecord::State::kDone:
      return "done";
    case UpgradeRecord::State::kNone:
      break;
  }
  return "none";
}

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_UPGRADE_RECORD_H_
