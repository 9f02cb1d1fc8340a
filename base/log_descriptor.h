// SPDX-License-Identifier: Apache-2.0
// base/log_descriptor.h: the log of a process whose stderr is something else's.
#ifndef CONSORT_BASE_LOG_DESCRIPTOR_H_
#define CONSORT_BASE_LOG_DESCRIPTOR_H_

namespace consort {

// Sends all log lines to a duplicate of `descriptor` from now on, and a crash's stack too. After
// StartLogging; once, for the process's life.
void SendLogTo(int descriptor);

}  // namespace consort

#endif  // CONSORT_BASE_LOG_DESCRIPTOR_H_
