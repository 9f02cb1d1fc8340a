// SPDX-License-Identifier: Apache-2.0
// guest/processors.h: how many processors this process may run on.
#ifndef CONSORT_GUEST_PROCESSORS_H_
#define CONSORT_GUEST_PROCESSORS_H_

#include <sched.h>

#include <atomic>

namespace consort::guest {

// At least 1; of the first time that anyone asked, for copies and waits ask often.
inline int ProcessorCount() {
  static std::atomic<int> known{0};
  int count = known.load(std::memory_order_relaxed);
  if (count == 0) {
    cpu_set_t cpus;
    count = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
    known.store(count, std::memory_order_relaxed);
  }
  return count;
}

}  // namespace consort::guest

#endif  // CONSORT_GUEST_PROCESSORS_H_
