// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/coroutine.h"

#include <cstddef>

#include "device/cpu/engine/thread_context.h"
#include "llvm/IR/Intrinsics.h"
#include "llvm/IR/Module.h"

namespace consort::cpu {

CoroutineBlocks BeginCoroutine(llvm::IRBuilder<>& builder, llvm::Function& function) {
  function.setPresplitCoroutine();
  llvm::Module& module = *function.getParent();
  llvm::Value* context = function.getArg(0);
  llvm::Value* null = llvm::ConstantPointerNull::get(builder.getPtrTy());
  llvm::Value* none = llvm::ConstantTokenNone::get(builder.getContext());
  llvm::Value* id = builder.CreateIntrinsic(llvm::Intrinsic::coro_id, {},
                                            {builder.getInt32(kFrameAlign), null, null, null});
  llvm::Value* bytes =
      builder.CreateIntrinsic(llvm::Intrinsic::coro_size, {builder.getInt32Ty()}, {});
  llvm::FunctionCallee take_frame = module.getOrInsertFunction(
      "consort_rt_frame", builder.getPtrTy(), builder.getPtrTy(), builder.getInt32Ty());
  llvm::Value* memory = builder.CreateCall(take_frame, {context, bytes});
  llvm::Value* frame = builder.CreateIntrinsic(llvm::Intrinsic::coro_begin, {}, {id, memory});
  builder.CreateStore(frame, builder.CreateConstGEP1_64(builder.getInt8Ty(), context,
                                                        offsetof(ThreadContext, frame)));
  CoroutineBlocks blocks;
  const auto insert_point = builder.saveIP();
  blocks.leave = llvm::BasicBlock::Create(builder.getContext(), "", &function);
  blocks.end = llvm::BasicBlock::Create(builder.getContext(), "", &function);
  builder.SetInsertPoint(blocks.leave);
  builder.CreateCall(
      module.getOrInsertFunction("consort_rt_done", builder.getVoidTy(), builder.getPtrTy()),
      {context});
  builder.CreateBr(blocks.end);
  builder.SetInsertPoint(blocks.end);
  builder.CreateIntrinsic(llvm::Intrinsic::coro_end, {}, {frame, builder.getFalse(), none});
  builder.CreateRetVoid();
  builder.restoreIP(insert_point);
  return blocks;
}

void EmitSuspend(llvm::IRBuilder<>& builder, const CoroutineBlocks& blocks) {
  llvm::Value* none = llvm::ConstantTokenNone::get(builder.getContext());
  llvm::Value* how =
      builder.CreateIntrinsic(llvm::Intrinsic::coro_suspend, {}, {none, builder.getFalse()});
  llvm::BasicBlock* resumed =
      llvm::BasicBlock::Create(builder.getContext(), "", builder.GetInsertBlock()->getParent());
  // Frames are never destroyed: the engine uses their memory anew.
  builder.CreateSwitch(how, blocks.end, 1)->addCase(builder.getInt8(0), resumed);
  builder.SetInsertPoint(resumed);
}

}  // namespace consort::cpu
