// SPDX-License-Identifier: Apache-2.0
// guest/default_stream.h: which stream a call means when it names none (or NULL).
// Source: CUDA Driver API, stream synchronization behavior.
#ifndef CONSORT_GUEST_DEFAULT_STREAM_H_
#define CONSORT_GUEST_DEFAULT_STREAM_H_

#include <cstdint>

namespace consort::guest {

enum class DefaultStream : uint8_t {
  kLegacy,     // the context's own, as in cuMemcpy
  kPerThread,  // the calling thread's, as in cuMemcpy_ptds
};

}  // namespace consort::guest

#endif  // CONSORT_GUEST_DEFAULT_STREAM_H_
