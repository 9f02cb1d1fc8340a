// SPDX-License-Identifier: Apache-2.0
// vmsock/prefetch.h: asks for memory before it is needed, where another processor has had it last:
// a miss of that kind takes 100 to 200 ns, and several at once take no longer. Any thread; any
// address is harmless.
#ifndef CONSORT_VMSOCK_PREFETCH_H_
#define CONSORT_VMSOCK_PREFETCH_H_

#include <cstddef>
#include <cstdint>

namespace consort {

inline constexpr size_t kCacheLineBytes = 64;

// GCC takes a function that only asks for memory for one without effect, and leaves its calls out
// (12.2, of inline ones), unless the instruction is said to have one.
inline void PrefetchForRead(const void* at) {
#if defined(__x86_64__)
  asm volatile("prefetcht0 (%0)" ::"r"(at));
#else
  __builtin_prefetch(at, 0);
#endif
}

// The lines of `bytes`, for this processor alone, as the first store would ask for them.
inline void PrefetchForWrite(const void* at, size_t bytes) {
  auto line = reinterpret_cast<uintptr_t>(at) & ~uintptr_t{kCacheLineBytes - 1};
  for (const uintptr_t end = reinterpret_cast<uintptr_t>(at) + bytes; line < end;
       line += kCacheLineBytes) {
#if defined(__x86_64__)
    // The compiler would ask for it to be read unless it is told of a newer processor; older ones
    // take this for no operation.
    asm volatile("prefetchw (%0)" ::"r"(line));
#else
    __builtin_prefetch(reinterpret_cast<const void*>(line), 1);
#endif
  }
}

}  // namespace consort

#endif  // CONSORT_VMSOCK_PREFETCH_H_
