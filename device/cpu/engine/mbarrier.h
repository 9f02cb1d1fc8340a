// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/mbarrier.h: mbarrier objects: barriers in shared memory that count arrivals
// and, beside them, bytes of copies.
//
// An object is a u64: bits 0-19 arrivals that the phase still waits for, 20-39 how many each phase
// waits for, 40-62 bytes that are still to come (signed), 63 the parity of the phase. The threads
// of a block take turns on one thread of the process, so nothing here is atomic. Source: PTX
// ISA 9.0, 9.7.13.15 "mbarrier".
#ifndef CONSORT_DEVICE_CPU_ENGINE_MBARRIER_H_
#define CONSORT_DEVICE_CPU_ENGINE_MBARRIER_H_

#include <cstdint>

namespace consort::cpu {

struct Mbarrier {
  uint32_t pending = 0;
  uint32_t expected = 0;
  int32_t bytes = 0;
  bool parity = false;

  static Mbarrier Unpack(uint64_t word);
  uint64_t Pack() const;
  // After a change: the next phase begins if nothing is waited for.
  void Complete();
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_MBARRIER_H_
