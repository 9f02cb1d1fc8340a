// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/emit_warp.cc: barriers and the collectives of a warp; the engine does the
// waiting. Source: PTX ISA 9.0, 9.7.9.6 shfl.sync, 9.7.13 "Parallel Synchronization and
// Communication".
#include <cstddef>

#include "device/cpu/codegen/emit.h"
#include "device/cpu/engine/runtime.h"
#include "device/cpu/engine/thread_context.h"

namespace consort::cpu {
namespace {

using llvm::Value;
using ptx::Type;

// Expected thread counts: 0 stands for all threads of the block.
Value* CountOperand(Step& step, size_t index) {
  if (index >= step.operand_count()) return step.ir().getInt32(0);
  return step.Read(index, Type::kU32);
}

}  // namespace

void EmitBarrier(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* context = step.f.context();
  if (step.Has("warp")) {
    if (!step.Has("sync") || step.operand_count() != 1) return step.Unsupported();
    step.f.CallWaiting("consort_rt_warp_sync", ir.getVoidTy(), {context, step.Read(0, Type::kU32)});
    return;
  }
  if (step.Has("red")) {
    // d, barrier [, count], predicate
    if (step.operand_count() < 3) return step.Unsupported();
    const size_t last = step.operand_count() - 1;
    const std::string_view name = step.OneOf("popc and or");
    const BarrierReduce op = name == "popc"  ? BarrierReduce::kPopc
                             : name == "and" ? BarrierReduce::kAnd
                                             : BarrierReduce::kOr;
    if (name.empty()) return step.Unsupported();
    Value* count = last == 3 ? step.Read(2, Type::kU32) : ir.getInt32(0);
    Value* result = step.f.CallWaiting(
        "consort_rt_barrier_reduce", ir.getInt32Ty(),
        {context, step.Read(1, Type::kU32), count, ir.getInt32(static_cast<uint32_t>(op)),
         ir.CreateZExt(step.Read(last, Type::kPred), ir.getInt32Ty())});
    if (op == BarrierReduce::kPopc) {
      step.Write(0, Type::kU32, result);
    } else {
      step.Write(0, Type::kPred, ir.CreateIsNotNull(result));
    }
    return;
  }
  if (step.operand_count() > 2) return step.Unsupported();
  if (step.Has("arrive")) {
    if (step.operand_count() != 2) return step.Unsupported();
    step.f.CallRuntime("consort_rt_barrier_arrive", ir.getVoidTy(),
                       {context, step.Read(0, Type::kU32), CountOperand(step, 1)});
  } else if (step.Has("sync")) {
    step.f.CallWaiting("consort_rt_barrier", ir.getVoidTy(),
                       {context, step.Read(0, Type::kU32), CountOperand(step, 1)});
  } else {
    step.Unsupported();
  }
}

void EmitShuffle(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const std::string_view name = step.OneOf("up down bfly idx");
  // Without .sync (removed for sm_70 and later) there is no member mask.
  if (!step.Has("sync") || name.empty() || step.operand_count() != 5) return step.Unsupported();
  const ShuffleMode mode = name == "up"     ? ShuffleMode::kUp
                           : name == "down" ? ShuffleMode::kDown
                           : name == "bfly" ? ShuffleMode::kButterfly
                                            : ShuffleMode::kIndex;
  Value* packed = step.f.CallWaiting(
      "consort_rt_shuffle", ir.getInt64Ty(),
      {step.f.context(), ir.getInt32(static_cast<uint32_t>(mode)), step.Read(1, Type::kU32),
       step.Read(2, Type::kU32), step.Read(3, Type::kU32), step.Read(4, Type::kU32)});
  // The value in the low half, the in-range predicate in bit 32.
  Value* value = ir.CreateTrunc(packed, ir.getInt32Ty());
  const ptx::Operand& to = step.operand(0);
  const bool is_pair = to.kind == ptx::OperandKind::kPair;
  step.f.Write(is_pair ? to.elements[0] : to, Type::kB32, value);
  if (is_pair) {
    step.f.Write(to.elements[1], Type::kPred,
                 ir.CreateTrunc(ir.CreateLShr(packed, 32), ir.getInt1Ty()));
  }
}

void EmitVote(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const std::string_view name = step.OneOf("all any uni ballot");
  if (!step.Has("sync") || name.empty() || step.operand_count() != 3) return step.Unsupported();
  const VoteMode mode = name == "all"   ? VoteMode::kAll
                        : name == "any" ? VoteMode::kAny
                        : name == "uni" ? VoteMode::kUniform
                                        : VoteMode::kBallot;
  Value* result = step.f.CallWaiting(
      "consort_rt_vote", ir.getInt32Ty(),
      {step.f.context(), ir.getInt32(static_cast<uint32_t>(mode)),
       ir.CreateZExt(step.Read(1, Type::kPred), ir.getInt32Ty()), step.Read(2, Type::kU32)});
  if (mode == VoteMode::kBallot) {
    step.Write(0, Type::kB32, result);
  } else {
    step.Write(0, Type::kPred, ir.CreateIsNotNull(result));
  }
}

void EmitActiveMask(Step& step) {
  // The line tells places in the program apart: lanes that arrive at one are active together.
  Value* place = step.ir().getInt32(static_cast<uint32_t>(step.instruction.line));
  step.Write(step.f.CallWaiting("consort_rt_active_mask", step.ir().getInt32Ty(),
                                {step.f.context(), place}));
}

void EmitMatch(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const bool all = step.Has("all");
  if (!step.Has("sync") || all == step.Has("any")) return step.Unsupported();
  Value* packed =
      step.f.CallWaiting("consort_rt_match", ir.getInt64Ty(),
                         {step.f.context(), ir.getInt32(all ? 1 : 0),
                          ir.CreateZExt(step.Read(1), ir.getInt64Ty()), step.Read(2, Type::kU32)});
  const ptx::Operand& to = step.operand(0);
  const bool is_pair = to.kind == ptx::OperandKind::kPair;
  step.f.Write(is_pair ? to.elements[0] : to, Type::kB32, ir.CreateTrunc(packed, ir.getInt32Ty()));
  if (is_pair) {
    step.f.Write(to.elements[1], Type::kPred,
                 ir.CreateTrunc(ir.CreateLShr(packed, 32), ir.getInt1Ty()));
  }
}

void EmitWarpReduce(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const std::string_view name = step.OneOf("add min max and or xor");
  if (!step.Has("sync") || name.empty()) return step.Unsupported();
  const bool is_signed = ptx::IsSigned(step.type());
  const WarpReduce op = name == "add"   ? WarpReduce::kAdd
                        : name == "and" ? WarpReduce::kAnd
                        : name == "or"  ? WarpReduce::kOr
                        : name == "xor" ? WarpReduce::kXor
                        : name == "min"
                            ? (is_signed ? WarpReduce::kMinSigned : WarpReduce::kMinUnsigned)
                            : (is_signed ? WarpReduce::kMaxSigned : WarpReduce::kMaxUnsigned);
  step.Write(step.f.CallWaiting("consort_rt_warp_reduce", ir.getInt32Ty(),
                                {step.f.context(), ir.getInt32(static_cast<uint32_t>(op)),
                                 step.Read(1), step.Read(2, Type::kU32)}));
}

void EmitElect(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  if (!step.Has("sync")) return step.Unsupported();
  // elect.sync d|p, mask: the lowest lane of the mask is elected.
  Value* mask = step.Read(1, Type::kU32);
  step.f.CallWaiting("consort_rt_warp_sync", ir.getVoidTy(), {step.f.context(), mask});
  Value* leader = ir.CreateBinaryIntrinsic(llvm::Intrinsic::cttz, mask, ir.getFalse());
  Value* lane = step.f.Field(offsetof(ThreadContext, lane), 32);
  const ptx::Operand& to = step.operand(0);
  const bool is_pair = to.kind == ptx::OperandKind::kPair;
  if (!is_pair) return step.Unsupported();
  step.f.Write(to.elements[0], Type::kB32, leader);
  step.f.Write(to.elements[1], Type::kPred, ir.CreateICmpEQ(lane, leader));
}

}  // namespace consort::cpu
