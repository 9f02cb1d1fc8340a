// SPDX-License-Identifier: Apache-2.0
// guest/unsupported.h: calls, or uses of a call, that Consort does not have yet.
#ifndef CONSORT_GUEST_UNSUPPORTED_H_
#define CONSORT_GUEST_UNSUPPORTED_H_

#include <cstdint>

namespace consort::guest {

class Session;

// Names of the exported functions that are not described; generated.
extern const uint32_t kUnsupportedCount;
extern const char* const kUnsupportedNames[];

// The body of such a function: counts, says its name the first time, returns
// CUDA_ERROR_NOT_SUPPORTED.
int Unsupported(uint32_t index);
// How often it was called.
uint32_t UnsupportedCalls(uint32_t index);
// Tells the host of the calls that were made before the process had a session. Later ones are told
// by Unsupported, each time their number is a power of two.
void ReportUnsupportedSoFar(Session* session);

// Says once a process and call that `call` was used in a way that is not supported. `what` and
// `call` are literals.
void NoteUnsupported(const char* call, const char* what);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_UNSUPPORTED_H_
