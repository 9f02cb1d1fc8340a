// SPDX-License-Identifier: Apache-2.0
// policies/admission/admission.h: who gets device memory next, of those that wait for it.
//
// Pure: the queue in, a place in it out. From schedGPU (Reano et al., TPDS 2018):
//
//   fifo            the first; while it does not fit, everybody waits
//   mmu             the first that fits (maximum memory utilisation); a large one may wait for long
//   priority-fifo   as fifo, among those of the highest priority
//   priority-mmu    as mmu, higher priorities first
//
// In each, who is within its soft quota comes before those that are not.
#ifndef CONSORT_POLICIES_ADMISSION_ADMISSION_H_
#define CONSORT_POLICIES_ADMISSION_ADMISSION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace consort::admission {

enum class Order : uint8_t { kFifo, kMmu, kPriorityFifo, kPriorityMmu };

// The order of that name; nothing if there is none.
std::optional<Order> OrderByName(std::string_view name);
std::string_view OrderName(Order order);
std::vector<std::string_view> OrderNames();

struct Waiter {
  Bytes bytes = 0;         // that it needs more
  uint32_t priority = 0;   // higher first, where the order asks for it
  bool over_soft = false;  // it would have more than its tenant's soft quota
};

// The index of the one to admit now, with `free` bytes of room; nothing: all wait. `waiters` are in
// the order of their arrival.
std::optional<size_t> NextAdmitted(Order order, std::span<const Waiter> waiters, Bytes free);

}  // namespace consort::admission

#endif  // CONSORT_POLICIES_ADMISSION_ADMISSION_H_
