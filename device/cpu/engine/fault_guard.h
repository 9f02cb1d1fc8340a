// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/fault_guard.h: SIGSEGV and SIGBUS in kernel code end the launch, not the
// process.
//
// The handler acts only when the faulting thread is inside a kernel (BlockRunner::Running); it then
// makes the thread go on in BlockRunner::Abandon, at the top of the fiber's stack, whose frames are
// all dropped. Any other fault goes to the handler that was there before.
#ifndef CONSORT_DEVICE_CPU_ENGINE_FAULT_GUARD_H_
#define CONSORT_DEVICE_CPU_ENGINE_FAULT_GUARD_H_

#include <csignal>
#include <cstddef>
#include <memory>

namespace consort::cpu {

// Gives the calling thread an alternate signal stack and the default floating point control word
// for its life, and puts back what was there. On the stack of the thread it guards.
class FaultGuard {
 public:
  FaultGuard();
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

 private:
  std::unique_ptr<char[]> stack_;
  stack_t previous_ = {};
  unsigned control_word_ = 0;
};

// Installs the handlers, once a process.
void InstallFaultHandlers();

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_FAULT_GUARD_H_
