// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/allocation_notes.cc: what a worker tells this driver beside CUDA's calls: where
// in the mapped parts of a reservation the allocations of its tenants are, so that checked kernels
// keep to them. device/driver/driver_loader.h looks for these functions by name. Any thread.
#include <cstdint>

#include "device/cpu/driver/state.h"

using namespace consort::cpu;

extern "C" {

[[gnu::visibility("default")]] void consort_cpu_allocation_placed(uint64_t address, uint64_t bytes);
[[gnu::visibility("default")]] void consort_cpu_allocation_gone(uint64_t address);

void consort_cpu_allocation_placed(uint64_t address, uint64_t bytes) {
  State* const state = GetState();
  if (state != nullptr) state->address_space.NotePlaced(address, bytes);
}

void consort_cpu_allocation_gone(uint64_t address) {
  State* const state = GetState();
  if (state != nullptr) state->address_space.NoteGone(address);
}

}  // extern "C"
