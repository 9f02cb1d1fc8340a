// SPDX-License-Identifier: Apache-2.0
// guest/proc_table.h: the generated table behind cuGetProcAddress.
#ifndef CONSORT_GUEST_PROC_TABLE_H_
#define CONSORT_GUEST_PROC_TABLE_H_

#include <cstdint>

namespace consort::guest {

struct ProcEntry {
  const char* base;  // "cuMemcpyHtoDAsync"
  int version;       // the release that introduced this form: 3020
  bool per_thread;   // a _ptds or _ptsz form
  const void* function;
};

// Sorted by base, ordinary forms before per-thread ones, then by version.
extern const uint32_t kProcEntryCount;
extern const ProcEntry kProcEntries[];

}  // namespace consort::guest

#endif  // CONSORT_GUEST_PROC_TABLE_H_
