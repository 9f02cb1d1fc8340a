// SPDX-License-Identifier: Apache-2.0
// guest/consort.h: what a program may tell Consort about its use of device memory. C99, nothing to
// link.
//
// Every function acts for the calling thread's current context's device. Results are CUresult
// values: 0 for success; 801 (CUDA_ERROR_NOT_SUPPORTED) where the program does not run on Consort,
// so that programs need no other build for it. May be called from any thread.
#ifndef CONSORT_GUEST_CONSORT_H_
#define CONSORT_GUEST_CONSORT_H_

#include <dlfcn.h>
#include <stddef.h>

enum {
  CONSORT_NOT_SUPPORTED = 801,
  // The program will not use the device for a while: its memory may make way for others' now.
  CONSORT_HINT_CPU_PHASE = 1
};

// NULL: not on Consort, or CUDA was not loaded yet in this process.
static inline void* consort_find(const char* name) {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  return library == NULL ? NULL : dlsym(library, name);
}

// Keeps room for `bytes` of the program's allocations on the device, those that it has included, so
// that they succeed later; 0 gives it back. Waits for at most `wait_ms` milliseconds.
// 2 (CUDA_ERROR_OUT_OF_MEMORY): no room in time, or more than the tenant may have.
static inline int consort_reserve(size_t bytes, unsigned long long wait_ms) {
  int (*function)(size_t, unsigned long long);
  *(void**)&function = consort_find("consortReserve");
  return function == NULL ? CONSORT_NOT_SUPPORTED : function(bytes, wait_ms);
}

static inline int consort_release(void) { return consort_reserve(0, 0); }

// 1 (CUDA_ERROR_INVALID_VALUE): an unknown hint.
static inline int consort_hint(unsigned hint) {
  int (*function)(unsigned);
  *(void**)&function = consort_find("consortHint");
  return function == NULL ? CONSORT_NOT_SUPPORTED : function(hint);
}

#endif  // CONSORT_GUEST_CONSORT_H_
