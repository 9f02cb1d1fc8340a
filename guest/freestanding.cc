// SPDX-License-Identifier: Apache-2.0
// guest/freestanding.cc: the few symbols of the C++ runtime that this library needs, hidden, so
// that it depends on libc alone and brings no second libstdc++ into the programs that load it.

#include <cstddef>
#include <cstdlib>

#include "guest/log.h"

namespace {
void* AllocateOrDie(size_t bytes) {
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  // The program's own allocator has nothing left; no caller here could go on.
  if (memory == nullptr) std::abort();
  return memory;
}
}  // namespace

void* operator new(size_t bytes) { return AllocateOrDie(bytes); }
void* operator new[](size_t bytes) { return AllocateOrDie(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

// Looked for by device/driver/driver_loader.cc: a worker must not send its calls to a worker.
extern "C" {
__attribute__((visibility("default"))) extern const char consort_guest_library;
const char consort_guest_library = 1;
}

extern "C" void __cxa_pure_virtual() { std::abort(); }

namespace std {
void __throw_length_error(const char*) { abort(); }
void __throw_bad_alloc() { abort(); }
void __throw_bad_array_new_length() { abort(); }
void __throw_bad_function_call() { abort(); }
}  // namespace std
