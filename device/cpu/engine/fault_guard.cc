// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/engine/fault_guard.h"

#include <immintrin.h>
#include <ucontext.h>

#include <cstdint>

#include "absl/base/call_once.h"
#include "base/log.h"
#include "device/cpu/engine/block_runner.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace consort::cpu {
namespace {

// The handler itself needs little; a previous handler that prints a stack trace needs more.
constexpr size_t kSignalStackBytes = 64 * 1024;
// Masked exceptions, round to nearest, no flushing. Source: Intel SDM volume 1, 10.2.3 "MXCSR".
constexpr unsigned kDefaultControlWord = 0x1F80;

struct PreviousHandlers {
  struct sigaction segv;
  struct sigaction bus;
};
PreviousHandlers g_previous;
absl::once_flag g_install_once;

[[noreturn]] void Land() { BlockRunner::Running()->Abandon(LaunchFault::kIllegalAddress); }
[[noreturn]] void LandOverflown() { BlockRunner::Running()->Abandon(LaunchFault::kStackOverflow); }

void Chain(int number, siginfo_t* info, void* context) {
  const struct sigaction& previous = number == SIGBUS ? g_previous.bus : g_previous.segv;
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(number, info, context);
  } else if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
    // Faults cannot be ignored: the instruction runs again and meets the default action.
    struct sigaction fallback = {};
    fallback.sa_handler = SIG_DFL;
    sigaction(number, &fallback, nullptr);
  } else {
    previous.sa_handler(number);
  }
}

void Handle(int number, siginfo_t* info, void* context) {
  const BlockRunner* runner = BlockRunner::Running();
  // si_code <= 0: sent by kill or raise, no fault of the kernel.
  if (runner == nullptr || info->si_code <= 0) {
    Chain(number, info, context);
    return;
  }
#if defined(__SANITIZE_ADDRESS__)
  // The frames that are dropped here leave their red zones where Land's will be.
  ASAN_UNPOISON_MEMORY_REGION(runner->RunningStackLow(),
                              runner->RunningStackHigh() - runner->RunningStackLow());
#endif
  auto* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  // As if the topmost frame of the fiber had called Land: 8 bytes past an aligned stack.
  const uintptr_t top = reinterpret_cast<uintptr_t>(runner->RunningStackHigh());
  registers[REG_RSP] = static_cast<greg_t>(top - 64 - 8);
  const bool overflown = runner->IsBelowRunningStack(reinterpret_cast<uintptr_t>(info->si_addr));
  registers[REG_RIP] = reinterpret_cast<greg_t>(overflown ? &LandOverflown : &Land);
}

}  // namespace

void InstallFaultHandlers() {
  absl::call_once(g_install_once, [] {
    struct sigaction action = {};
    action.sa_sigaction = &Handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    CHECK_EQ(sigaction(SIGSEGV, &action, &g_previous.segv), 0);
    CHECK_EQ(sigaction(SIGBUS, &action, &g_previous.bus), 0);
  });
}

FaultGuard::FaultGuard() : stack_(new char[kSignalStackBytes]), control_word_(_mm_getcsr()) {
  stack_t stack = {};
  stack.ss_sp = stack_.get();
  stack.ss_size = kSignalStackBytes;
  CHECK_EQ(sigaltstack(&stack, &previous_), 0);
  _mm_setcsr(kDefaultControlWord);
}

FaultGuard::~FaultGuard() {
  _mm_setcsr(control_word_);
  if ((previous_.ss_flags & SS_DISABLE) != 0) previous_.ss_size = kSignalStackBytes;
  CHECK_EQ(sigaltstack(&previous_, nullptr), 0);
}

}  // namespace consort::cpu
