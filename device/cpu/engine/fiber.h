// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/fiber.h: stacks that one thread switches between, for the threads of a block.
//
// A fiber is created once and started many times; starting again forgets whatever was on its stack,
// which is how faulting and deadlocked threads are dropped. Thread compatible: a fiber must always
// be run by one thread at a time. Knows AddressSanitizer's and ThreadSanitizer's fiber interfaces.
// x86-64 System V only. Source: System V ABI for AMD64, 3.2 (callee-saved registers, stack
// alignment).
#ifndef CONSORT_DEVICE_CPU_ENGINE_FIBER_H_
#define CONSORT_DEVICE_CPU_ENGINE_FIBER_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace consort::cpu {

class Fiber {
 public:
  using Body = void (*)(void* argument);

  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Maps a stack of at least `stack_bytes` with a guard page below it. Fibers of different `color`
  // begin at different offsets in their pages: with a thousand stacks in turn, equal offsets would
  // all compete for the same few sets of the first cache.
  // kResourceExhausted: no memory or too many mappings.
  absl::Status Allocate(size_t stack_bytes, size_t color);

  // Makes the next Resume call body(argument). The body must end in Suspend, never return.
  void Start(Body body, void* argument);

  // Runs the fiber until it suspends. Called by the thread that owns it, not from a fiber.
  void Resume();

  // From inside the fiber: back to the Resume call. With `for_good`, the fiber will be started
  // anew.
  void Suspend(bool for_good);

  // Whether the address is one that a stack which is too small reaches first.
  bool IsBelowStack(uintptr_t address) const {
    return address - reinterpret_cast<uintptr_t>(mapping_) <
           static_cast<uintptr_t>(stack_low_ - mapping_);
  }

  const uint8_t* stack_low() const { return stack_low_; }
  const uint8_t* stack_high() const { return stack_high_; }
  size_t stack_bytes() const { return static_cast<size_t>(stack_high_ - stack_low_); }

  // Tells the sanitizer that the thread came back to this stack; the first act of a body.
  void Entered();

 private:
  uint8_t* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  uint8_t* stack_low_ = nullptr;
  uint8_t* stack_high_ = nullptr;
  void* own_sp_ = nullptr;
  void* caller_sp_ = nullptr;
  Body body_ = nullptr;
  void* argument_ = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack_ = nullptr;
  void* caller_fake_stack_ = nullptr;
  const void* caller_stack_ = nullptr;
  size_t caller_stack_bytes_ = 0;
#endif
#if defined(__SANITIZE_THREAD__)
  void* tsan_fiber_ = nullptr;
  void* tsan_caller_ = nullptr;
  uint32_t tsan_starts_ = 0;
#endif

  static void Main(Fiber* fiber);
  friend struct FiberEntry;
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_FIBER_H_
