// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/engine/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

extern "C" {

// Saves the callee-saved registers on the present stack and its pointer in *save, then takes the
// stack `load` and the registers saved there. The x87 and MXCSR control words are the same on all
// stacks of a thread and are left alone. Jumps where it could return: the processor takes it that a
// `ret` leads to where the last call was, which cost a quarter of the time of kernels that wait.
void consort_fiber_switch(void** save, void* load);
// The first return address on a new stack: calls consort_fiber_main(r12).
void consort_fiber_thunk();
}

asm(R"(
    .text
    .globl consort_fiber_switch
    .hidden consort_fiber_switch
    .type consort_fiber_switch, @function
    .p2align 4
consort_fiber_switch:
    .cfi_startproc
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmp *%rcx
    .cfi_endproc
    .size consort_fiber_switch, .-consort_fiber_switch

    .globl consort_fiber_thunk
    .hidden consort_fiber_thunk
    .type consort_fiber_thunk, @function
    .p2align 4
consort_fiber_thunk:
    .cfi_startproc
    .cfi_undefined rip
    movq %r12, %rdi
    call consort_fiber_main
    ud2
    .cfi_endproc
    .size consort_fiber_thunk, .-consort_fiber_thunk
)");

namespace consort::cpu {

struct FiberEntry {
  static void Run(Fiber* fiber) { Fiber::Main(fiber); }
};

}  // namespace consort::cpu

extern "C" __attribute__((visibility("hidden"), used)) void consort_fiber_main(
    consort::cpu::Fiber* fiber) {
  consort::cpu::FiberEntry::Run(fiber);
}

namespace consort::cpu {

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  if (tsan_fiber_ != nullptr) __tsan_destroy_fiber(tsan_fiber_);
#endif
  if (mapping_ == nullptr) return;
#if defined(__SANITIZE_ADDRESS__)
  // As in Start: whoever is given these addresses next has no red zones there.
  ASAN_UNPOISON_MEMORY_REGION(mapping_, mapping_bytes_);
#endif
  munmap(mapping_, mapping_bytes_);
}

absl::Status Fiber::Allocate(size_t stack_bytes, size_t color) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  // The guard page, and one more for the color.
  const size_t bytes = (stack_bytes + page - 1) / page * page + 2 * page;
  void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no stack of ", bytes, " bytes: ", std::strerror(errno)));
  }
  if (mprotect(mapping, page, PROT_NONE) != 0) {
    const int error = errno;
    munmap(mapping, bytes);
    return absl::ResourceExhaustedError(
        absl::StrCat("no guard page for a stack: ", std::strerror(error)));
  }
  mapping_ = static_cast<uint8_t*>(mapping);
  mapping_bytes_ = bytes;
  stack_low_ = mapping_ + page;
  // An odd number of cache lines steps through all of them.
  constexpr size_t kColorBytes = 5 * 64;
  stack_high_ = mapping_ + bytes - color * kColorBytes % page;
  return absl::OkStatus();
}

void Fiber::Start(Body body, void* argument) {
  body_ = body;
  argument_ = argument;
#if defined(__SANITIZE_ADDRESS__)
  // Frames that were dropped leave their red zones behind.
  ASAN_UNPOISON_MEMORY_REGION(stack_low_, stack_bytes());
  fake_stack_ = nullptr;
#endif
#if defined(__SANITIZE_THREAD__)
  // Functions of a dropped stack never return: they pile up in the sanitizer's records, about five
  // a start, and 65536 are the most. A new one each time would cost milliseconds.
  constexpr uint32_t kStartsPerTsanFiber = 1024;
  if (tsan_starts_++ % kStartsPerTsanFiber == 0) {
    if (tsan_fiber_ != nullptr) __tsan_destroy_fiber(tsan_fiber_);
    tsan_fiber_ = __tsan_create_fiber(0);
  }
#endif
  // Six registers and the return address, such that the thunk starts with an aligned stack, as
  // after a return: its call then aligns consort_fiber_main as the ABI asks.
  void** top = reinterpret_cast<void**>(stack_high_) - 3;
  *top = reinterpret_cast<void*>(&consort_fiber_thunk);
  for (int i = 1; i <= 6; ++i) top[-i] = nullptr;
  top[-3] = this;  // r12: rbp, rbx, r12 in order of pushing
  own_sp_ = top - 6;
}

void Fiber::Main(Fiber* fiber) {
  fiber->Entered();
  fiber->body_(fiber->argument_);
  __builtin_trap();  // a body never returns
}

void Fiber::Entered() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &caller_stack_, &caller_stack_bytes_);
#endif
}

void Fiber::Resume() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&caller_fake_stack_, stack_low_, stack_bytes());
#endif
#if defined(__SANITIZE_THREAD__)
  tsan_caller_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_fiber_, 0);
#endif
  consort_fiber_switch(&caller_sp_, own_sp_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(caller_fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::Suspend([[maybe_unused]] bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack_, caller_stack_,
                                 caller_stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(tsan_caller_, 0);
#endif
  consort_fiber_switch(&own_sp_, caller_sp_);
  Entered();
}

}  // namespace consort::cpu
