// SPDX-License-Identifier: Apache-2.0
// guest/log.h: the rare line that this library writes to stderr. It is a guest in someone's
// process: it speaks only when a person must act (no backend) or when a program meets something
// that is not supported, once each. CONSORT_LOG=off silences it; CONSORT_LOG=errors adds every call
// that fails (guest/entry.h).
#ifndef CONSORT_GUEST_LOG_H_
#define CONSORT_GUEST_LOG_H_

namespace consort::guest {

// Writes "consort: " and the formatted text as one line, one write(2). Any thread.
void LogLine(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace consort::guest

#endif  // CONSORT_GUEST_LOG_H_
