// SPDX-License-Identifier: Apache-2.0
// vmsock/streaming_copy.h: copies of bytes that this processor will not read again.
#ifndef CONSORT_VMSOCK_STREAMING_COPY_H_
#define CONSORT_VMSOCK_STREAMING_COPY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "vmsock/prefetch.h"

namespace consort {

// As memcpy, past the caches: lines that are written whole are neither read from memory nor taken
// from another processor's cache first. Seen by others after StreamingCopiesDone.
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, section 10.4.6.2
// (Caching of Temporal vs. Non-Temporal Data).
inline void StreamingCopy(void* to, const void* from, size_t bytes) {
#if defined(__x86_64__)
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  const size_t lead =
      std::min<size_t>(-reinterpret_cast<uintptr_t>(out) & (kCacheLineBytes - 1), bytes);
  std::memcpy(out, in, lead);
  out += lead;
  in += lead;
  bytes -= lead;
  for (; bytes >= kCacheLineBytes;
       bytes -= kCacheLineBytes, out += kCacheLineBytes, in += kCacheLineBytes) {
    const auto* const source = reinterpret_cast<const __m128i*>(in);
    auto* const target = reinterpret_cast<__m128i*>(out);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(out, in, bytes);
#else
  std::memcpy(to, from, bytes);
#endif
}

// Puts this thread's streaming copies before all that it stores from here on, as if they had been
// stores like others.
inline void StreamingCopiesDone() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace consort

#endif  // CONSORT_VMSOCK_STREAMING_COPY_H_
