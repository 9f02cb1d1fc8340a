// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/coroutine.h: makes a kernel a coroutine in LLVM's switched-resume form:
// CoroSplit moves what is live across a wait into a frame, which the engine provides.
// Source: LLVM 19, "Coroutines in LLVM".
#ifndef CONSORT_DEVICE_CPU_CODEGEN_COROUTINE_H_
#define CONSORT_DEVICE_CPU_CODEGEN_COROUTINE_H_

#include "llvm/IR/IRBuilder.h"

namespace consort::cpu {

struct CoroutineBlocks {
  llvm::BasicBlock* leave = nullptr;  // for the thread to branch to when it is done
  llvm::BasicBlock* end = nullptr;    // of every part of the coroutine
};

// Emits the beginning at the builder's place, in the entry block. The function's first argument is
// its ThreadContext.
CoroutineBlocks BeginCoroutine(llvm::IRBuilder<>& builder, llvm::Function& function);

// Suspends; the builder goes on where the coroutine is resumed.
void EmitSuspend(llvm::IRBuilder<>& builder, const CoroutineBlocks& blocks);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_CODEGEN_COROUTINE_H_
