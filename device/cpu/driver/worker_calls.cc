// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/worker_calls.cc: what a worker tells this driver beside CUDA's calls: where in
// the mapped parts of a reservation the allocations of its tenants are, so that checked kernels
// keep to them (and whether kernels are checked); who gets what kernels of a stream print; and
// where managed variables lie, which programs have, too; and how boards are connected.
// device/driver/driver_loader.h looks for these functions by name. Any thread.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/cpu/driver/state.h"
#include "device/cpu/driver/thread_state.h"

using namespace consort::cpu;

extern "C" {

[[gnu::visibility("default")]] uint32_t consort_cpu_checks_memory();
[[gnu::visibility("default")]] void consort_cpu_allocation_placed(uint64_t address, uint64_t bytes);
[[gnu::visibility("default")]] void consort_cpu_allocation_gone(uint64_t address);
[[gnu::visibility("default")]] void consort_cpu_stream_output(
    CUstream stream, void (*write)(void* owner, int descriptor, const char* text, size_t bytes),
    void* owner);
[[gnu::visibility("default")]] void consort_cpu_managed_memory(
    void* (*take)(void* owner, uint64_t bytes, int* fresh), void* owner);
[[gnu::visibility("default")]] uint32_t consort_cpu_links(int index);

uint32_t consort_cpu_checks_memory() {
  const State* const state = GetState();
  return state != nullptr && state->address_space.remembers_freed() ? 1 : 0;
}

void consort_cpu_allocation_placed(uint64_t address, uint64_t bytes) {
  State* const state = GetState();
  if (state != nullptr) state->address_space.NotePlaced(address, bytes);
}

void consort_cpu_allocation_gone(uint64_t address) {
  State* const state = GetState();
  if (state != nullptr) state->address_space.NoteGone(address);
}

void consort_cpu_stream_output(CUstream stream,
                               void (*write)(void* owner, int descriptor, const char* text,
                                             size_t bytes),
                               void* owner) {
  WithStream(stream, [&](State&, const std::shared_ptr<Stream>& found) {
    found->SetOutput({write, owner});
    return CUDA_SUCCESS;
  });
}

void consort_cpu_managed_memory(void* (*take)(void* owner, uint64_t bytes, int* fresh),
                                void* owner) {
  ThisThread().managed = {take, owner};
}

uint32_t consort_cpu_links(int index) {
  const State* const state = GetState();
  if (state == nullptr || index < 0 || static_cast<size_t>(index) >= state->devices.size())
    return 0;
  return state->devices[static_cast<size_t>(index)]->links();
}

}  // extern "C"
