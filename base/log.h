// SPDX-License-Identifier: Apache-2.0
// base/log.h: LOG, VLOG and CHECK for host-side code.
//
// They are glog's: Debian 12's Abseil has no absl/log. Severities: ERROR, someone must act;
// WARNING, odd but handled; INFO, a state change worth keeping; VLOG for the rest. The guest
// library must not include this file: it prints nothing.
#ifndef CONSORT_BASE_LOG_H_
#define CONSORT_BASE_LOG_H_

#include <glog/logging.h>

namespace consort {

// Sends all log lines to stderr, `program` naming the process in each line's origin. Call once,
// first in main. `verbosity` is VLOG's level, 0 for none.
void StartLogging(const char* program, int verbosity);

}  // namespace consort

#endif  // CONSORT_BASE_LOG_H_
