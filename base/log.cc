// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

namespace consort {

void StartLogging(const char* program, int verbosity) {
  FLAGS_logtostderr = true;
  FLAGS_v = verbosity;
  google::InitGoogleLogging(program);
  // A crash leaves its stack in the log, where the next person looks for it.
  google::InstallFailureSignalHandler();
}

}  // namespace consort
