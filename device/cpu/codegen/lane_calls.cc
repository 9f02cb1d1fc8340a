// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/lane_emitter.h"

#include <cstddef>
#include <functional>
#include <vector>

#include "device/cpu/engine/runtime.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Analysis/ValueTracking.h"
#include "llvm/Analysis/VectorUtils.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"

namespace consort::cpu {
namespace {

using llvm::BasicBlock;
using llvm::Instruction;
using llvm::StringRef;
using llvm::Value;

}  // namespace

CallKind KindOf(const llvm::CallInst& call) {
  const llvm::Function* callee = call.getCalledFunction();
  if (callee == nullptr) return CallKind::kUnknown;
  if (callee->isIntrinsic()) {
    const llvm::Intrinsic::ID id = callee->getIntrinsicID();
    if (id == llvm::Intrinsic::memcpy || id == llvm::Intrinsic::memset ||
        id == llvm::Intrinsic::memmove) {
      return CallKind::kEachLane;
    }
    if (id == llvm::Intrinsic::assume || id == llvm::Intrinsic::lifetime_start ||
        id == llvm::Intrinsic::lifetime_end || call.isDebugOrPseudoInst()) {
      return CallKind::kNothing;
    }
    const bool elementwise = llvm::isTriviallyVectorizable(id) ||
                             id == llvm::Intrinsic::is_fpclass || id == llvm::Intrinsic::bitreverse;
    return elementwise && !call.getType()->isStructTy() ? CallKind::kIntrinsic : CallKind::kUnknown;
  }
  return llvm::StringSwitch<CallKind>(callee->getName())
      .Case("consort_rt_warp_sync", CallKind::kNothing)
      .Cases("consort_rt_clock", "consort_rt_global_timer", "consort_rt_watch_time",
             CallKind::kOnce)
      .Cases("consort_rt_trap", "consort_rt_bad_call", "consort_rt_barrier_arrive", CallKind::kOnce)
      .Case("consort_rt_barrier", CallKind::kBarrier)
      .Case("consort_rt_barrier_reduce", CallKind::kBarrierRed)
      .Case("consort_rt_vote", CallKind::kVote)
      .Cases("consort_rt_shuffle", "consort_rt_match", "consort_rt_warp_reduce",
             "consort_rt_matrix", "consort_rt_fragment", CallKind::kCollective)
      .Case("consort_rt_active_mask", CallKind::kActiveMask)
      .Case("consort_rt_texture", CallKind::kTexture)
      .Cases("consort_rt_exit", "consort_rt_yield", "consort_rt_frame", "consort_rt_done",
             CallKind::kUnknown)
      .Default(callee->isDeclaration() && !callee->isVarArg() ? CallKind::kEachLane
                                                              : CallKind::kUnknown);
}

bool NeedsAllLanes(const llvm::CallInst& call) {
  switch (KindOf(call)) {
    case CallKind::kBarrier:
    case CallKind::kBarrierRed:
    case CallKind::kVote:
    case CallKind::kCollective:
      return true;
    default: {
      const llvm::Function* callee = call.getCalledFunction();
      return callee != nullptr && (callee->getName() == "consort_rt_warp_sync" ||
                                   callee->getName() == "consort_rt_barrier_arrive");
    }
  }
}

llvm::DenseSet<const Value*> MatrixBuffersOf(const llvm::Function& function) {
  llvm::DenseSet<const Value*> buffers;
  for (const Instruction& instruction : llvm::instructions(function)) {
    const auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
    if (call != nullptr && KindOf(*call) == CallKind::kCollective && call->getType()->isVoidTy()) {
      buffers.insert(call->getArgOperand(call->arg_size() - 1));
    }
  }
  return buffers;
}

// --- Lane by lane ---

// Calls `body` with the number (i64) of each lane of `mask` in turn.
void LaneEmitter::ForEachLane(Value* mask, const std::function<void(Value*)>& body) {
  llvm::IntegerType* type = ir_.getIntNTy(lanes_);
  Value* all = Bits(mask);
  BasicBlock* before = ir_.GetInsertBlock();
  BasicBlock* head = NewBlock();
  BasicBlock* turn = NewBlock();
  BasicBlock* done = NewBlock();
  ir_.CreateBr(head);
  ir_.SetInsertPoint(head);
  llvm::PHINode* rest = ir_.CreatePHI(type, 2);
  rest->addIncoming(all, before);
  ir_.CreateCondBr(ir_.CreateIsNotNull(rest), turn, done);
  ir_.SetInsertPoint(turn);
  Value* lane = ir_.CreateBinaryIntrinsic(llvm::Intrinsic::cttz, rest, ir_.getTrue());
  body(ir_.CreateZExt(lane, ir_.getInt64Ty()));
  rest->addIncoming(ir_.CreateAnd(rest, ir_.CreateSub(rest, llvm::ConstantInt::get(type, 1))),
                    ir_.GetInsertBlock());
  ir_.CreateBr(head);
  ir_.SetInsertPoint(done);
}

llvm::AllocaInst* LaneEmitter::Scratch(llvm::Type* type) {
  std::vector<llvm::AllocaInst*>& slots = scratch_[type];
  size_t& used = scratch_used_[type];
  if (used == slots.size()) slots.push_back(EntrySlot(type));
  return slots[used++];
}

// An array in memory with a lane's value in each element.
Value* LaneEmitter::Spill(Value* vector, llvm::Type* element) {
  if (element->isIntegerTy(1)) {
    vector = ir_.CreateZExt(vector, VectorType(ir_.getInt8Ty()));
    element = ir_.getInt8Ty();
  }
  llvm::AllocaInst* array = Scratch(vector->getType());
  ir_.CreateStore(vector, array);
  return array;
}

// Runs the scalar instruction for each active lane.
Value* LaneEmitter::EachLane(Instruction& instruction) {
  ReleaseScratch();
  llvm::Type* type = instruction.getType();
  if (llvm::isa<llvm::AtomicCmpXchgInst>(instruction)) type = type->getStructElementType(0);
  const bool is_predicate = type->isIntegerTy(1);
  llvm::Type* stored = is_predicate ? ir_.getInt8Ty() : type;
  llvm::AllocaInst* results = type->isVoidTy() ? nullptr : Scratch(VectorType(stored));
  struct Operand {
    Value* whole = nullptr;  // the value or base; else
    Value* array = nullptr;
    int64_t stride = 0;
  };
  std::vector<Operand> operands;
  for (Value* value : instruction.operands()) {
    const Shape shape = shapes_.Of(value);
    if (llvm::isa<llvm::Function>(value)) {
      operands.push_back({value, nullptr, 0});
    } else if (shape.IsScalar()) {
      operands.push_back({Scalar(value), nullptr, shape.stride});
    } else {
      operands.push_back({nullptr, Spill(Vector(value), value->getType()), 0});
    }
  }
  ForEachLane(MaskOf(block_), [&](Value* lane) {
    auto element = [&](Value* array, llvm::Type* of) { return ir_.CreateGEP(of, array, lane); };
    Instruction* copy = instruction.clone();
    for (unsigned i = 0; i < operands.size(); ++i) {
      llvm::Type* of = instruction.getOperand(i)->getType();
      Value* value = operands[i].whole;
      if (value == nullptr && of->isIntegerTy(1)) {
        value = ir_.CreateTrunc(
            ir_.CreateLoad(ir_.getInt8Ty(), element(operands[i].array, ir_.getInt8Ty())), of);
      } else if (value == nullptr) {
        value = ir_.CreateAlignedLoad(of, element(operands[i].array, of), llvm::Align(1));
      } else if (operands[i].stride != 0 && of->isPointerTy()) {
        value = ir_.CreateGEP(
            ir_.getInt8Ty(), value,
            ir_.CreateMul(lane, ir_.getInt64(static_cast<uint64_t>(operands[i].stride))));
      } else if (operands[i].stride != 0) {
        Value* times = ir_.CreateMul(
            ir_.CreateZExtOrTrunc(lane, of),
            llvm::ConstantInt::get(of, static_cast<uint64_t>(operands[i].stride), true));
        value = ir_.CreateAdd(value, times);
      }
      copy->setOperand(i, value);
    }
    copy->dropUnknownNonDebugMetadata();
    if (const auto* call = llvm::dyn_cast<llvm::CallInst>(copy);
        call != nullptr && call->getCalledFunction()->getName() == "consort_rt_assertfail") {
      // It names the thread, which the context must say.
      CallRuntime("consort_rt_select_lane", ir_.getVoidTy(),
                  {out_.getArg(0), ir_.CreateTrunc(lane, ir_.getInt32Ty())});
    }
    ir_.Insert(copy);
    if (results == nullptr) return;
    Value* result = copy;
    if (llvm::isa<llvm::AtomicCmpXchgInst>(copy)) result = ir_.CreateExtractValue(copy, 0);
    if (is_predicate) result = ir_.CreateZExt(result, stored);
    ir_.CreateAlignedStore(result, element(results, stored), llvm::Align(1));
  });
  if (results == nullptr) return nullptr;
  Value* all = ir_.CreateLoad(results->getAllocatedType(), results);
  return is_predicate ? ir_.CreateTrunc(all, VectorType(type)) : all;
}

// --- Calls ---

void LaneEmitter::EmitCall(llvm::CallInst& call) {
  const Shape shape = shapes_.Of(&call);
  switch (KindOf(call)) {
    case CallKind::kNothing:
      return;
    case CallKind::kActiveMask:
      return Define(call, Bits(MaskOf(block_)));
    case CallKind::kVote:
      return Define(call, EmitVote(call));
    case CallKind::kCollective:
      if (call.getType()->isVoidTy()) return EmitMatrix(call);
      return Define(call, EmitCollective(call));
    case CallKind::kOnce: {
      std::vector<Value*> arguments;
      for (Value* argument : call.args()) arguments.push_back(Scalar(argument));
      llvm::CallInst* copy =
          CallRuntime(call.getCalledFunction()->getName(), call.getType(), arguments);
      if (!call.getType()->isVoidTy()) Define(call, copy);
      return;
    }
    case CallKind::kBarrier:
      CallRuntime("consort_rt_barrier", ir_.getVoidTy(),
                  {out_.getArg(0), Scalar(call.getArgOperand(1)), Scalar(call.getArgOperand(2))});
      if (coroutine_.end != nullptr) EmitSuspend(ir_, coroutine_);
      return;
    case CallKind::kBarrierRed: {
      // What the group's lanes contribute: how many there are, and how many say yes.
      Value* mask = MaskOf(block_);
      Value* votes = Vector(ir_.getInt32(0));
      votes = ir_.CreateICmpNE(Vector(call.getArgOperand(4)), votes);
      auto count = [&](Value* lanes) {
        return ir_.CreateZExtOrTrunc(ir_.CreateUnaryIntrinsic(llvm::Intrinsic::ctpop, Bits(lanes)),
                                     ir_.getInt32Ty());
      };
      Value* result =
          CallRuntime("consort_rt_group_barrier_reduce", ir_.getInt32Ty(),
                      {out_.getArg(0), Scalar(call.getArgOperand(1)), Scalar(call.getArgOperand(2)),
                       Scalar(call.getArgOperand(3)), count(And(mask, votes)), count(mask)});
      if (coroutine_.end != nullptr) {
        EmitSuspend(ir_, coroutine_);
        Value* pointer = ir_.CreateConstGEP1_64(ir_.getInt8Ty(), out_.getArg(0),
                                                offsetof(ThreadContext, result));
        result = ir_.CreateTrunc(ir_.CreateLoad(ir_.getInt64Ty(), pointer), ir_.getInt32Ty());
      }
      return Define(call, result);
    }
    case CallKind::kIntrinsic: {
      if (shape.IsScalar()) return EmitScalar(call);
      const llvm::Intrinsic::ID id = call.getCalledFunction()->getIntrinsicID();
      std::vector<Value*> arguments;
      std::vector<llvm::Type*> overloads;
      if (llvm::isVectorIntrinsicWithOverloadTypeAtArg(id, -1)) {
        overloads.push_back(VectorType(call.getType()));
      }
      for (unsigned i = 0; i < call.arg_size(); ++i) {
        Value* argument = call.getArgOperand(i);
        const bool is_scalar = llvm::isVectorIntrinsicWithScalarOpAtArg(id, i) ||
                               (id == llvm::Intrinsic::is_fpclass && i == 1);
        arguments.push_back(is_scalar ? Scalar(argument) : Vector(argument));
        if (llvm::isVectorIntrinsicWithOverloadTypeAtArg(id, static_cast<int>(i)) ||
            (id == llvm::Intrinsic::is_fpclass && i == 0)) {
          overloads.push_back(arguments.back()->getType());
        }
      }
      if (id == llvm::Intrinsic::is_fpclass) overloads = {arguments[0]->getType()};
      llvm::Function* callee = llvm::Intrinsic::getDeclaration(scalar_.getParent(), id, overloads);
      llvm::CallInst* made = ir_.CreateCall(callee, arguments);
      made->copyIRFlags(&call);
      return Define(call, made);
    }
    case CallKind::kTexture:
      return Define(call, EmitTexture(call));
    case CallKind::kEachLane:
    case CallKind::kUnknown: {
      if (!call.getType()->isVoidTy() && shape.IsScalar()) return EmitScalar(call);
      Value* result = EachLane(call);
      if (result != nullptr) Define(call, result);
      return;
    }
  }
}

Value* LaneEmitter::EmitVote(llvm::CallInst& call) {
  // consort_rt_vote(context, mode, predicate, members)
  Value* here = MaskOf(block_);
  Value* yes = ir_.CreateICmpNE(Vector(call.getArgOperand(2)), Vector(ir_.getInt32(0)));
  Value* ballot = Bits(And(here, yes));
  Value* members = call.getArgOperand(3);
  const bool uniform = shapes_.Of(members).IsUniform();
  Value* named = uniform ? Scalar(members) : Vector(members);
  Value* present = Bits(here);
  if (!uniform) {
    ballot = Splat(ballot);
    present = Splat(present);
    // A lane counts as named by itself.
    Value* own = ir_.CreateShl(llvm::ConstantInt::get(named->getType(), 1), Iota(32));
    named = ir_.CreateOr(named, own);
  }
  ballot = ir_.CreateAnd(ballot, named);
  present = ir_.CreateAnd(present, named);
  Value* none = ir_.CreateIsNull(ballot);
  Value* all = ir_.CreateICmpEQ(ballot, present);
  llvm::Type* type = ballot->getType();
  const auto mode = llvm::cast<llvm::ConstantInt>(call.getArgOperand(1))->getZExtValue();
  switch (static_cast<VoteMode>(mode)) {
    case VoteMode::kAll:
      return ir_.CreateZExt(all, type);
    case VoteMode::kAny:
      return ir_.CreateZExt(ir_.CreateNot(none), type);
    case VoteMode::kUniform:
      return ir_.CreateZExt(ir_.CreateOr(none, all), type);
    case VoteMode::kBallot:
      return ballot;
  }
  return ballot;
}

// Arguments and results by arrays, one element a lane.
Value* LaneEmitter::EmitCollective(llvm::CallInst& call) {
  const StringRef name = call.getCalledFunction()->getName();
  llvm::Type* wide = VectorType(ir_.getInt64Ty());
  const bool is_shuffle = name == "consort_rt_shuffle";
  auto array = [&](unsigned index, bool widen) {
    Value* vector = Vector(call.getArgOperand(index));
    if (widen) vector = ir_.CreateZExt(vector, wide);
    return Spill(vector, vector->getType()->getScalarType());
  };
  ReleaseScratch();
  llvm::AllocaInst* results = Scratch(wide);
  Value* here = Bits(MaskOf(block_));
  Value* mode = Scalar(call.getArgOperand(1));
  Value* values = array(2, true);
  if (is_shuffle) {
    CallRuntime("consort_rt_group_shuffle", ir_.getVoidTy(),
                {results, mode, values, array(3, false), array(4, false), array(5, false), here});
  } else {
    CallRuntime(name == "consort_rt_match" ? "consort_rt_group_match" : "consort_rt_group_reduce",
                ir_.getVoidTy(), {results, mode, values, array(3, false), here});
  }
  Value* result = ir_.CreateLoad(wide, results);
  return ir_.CreateTrunc(result, VectorType(call.getType()));
}

// consort_rt_matrix(context, operation, slots)
// consort_rt_fragment(context, operation, memory, pitch, slots)
void LaneEmitter::EmitMatrix(llvm::CallInst& call) {
  if (call.getCalledFunction()->getName() == "consort_rt_matrix") {
    CallRuntime("consort_rt_group_matrix", ir_.getVoidTy(),
                {Scalar(call.getArgOperand(1)), Scalar(call.getArgOperand(2)),
                 ir_.CreateZExtOrTrunc(Bits(MaskOf(block_)), ir_.getInt32Ty())});
    return;
  }
  // All lanes name one matrix, or the instruction does anything.
  auto same = [&](Value* value) {
    return shapes_.Of(value).IsUniform() ? Scalar(value)
                                         : LastActive(Vector(value), MaskOf(block_));
  };
  CallRuntime("consort_rt_group_fragment", ir_.getVoidTy(),
              {Scalar(call.getArgOperand(1)), same(call.getArgOperand(2)),
               same(call.getArgOperand(3)), Scalar(call.getArgOperand(4))});
}

// Where what lanes have at `pointer`, if that is in the slots of matrix instructions, lies for all
// of them, one after the other: see WarpMatrices (engine/matrix.h).
Value* LaneEmitter::MatrixPlace(Value* pointer) {
  int64_t offset = 0;
  Value* base = llvm::GetPointerBaseWithConstantOffset(pointer, offset, layout_);
  if (!matrix_buffers_.contains(base)) return nullptr;
  return ir_.CreateConstGEP1_64(ir_.getInt8Ty(), Scalar(base),
                                static_cast<uint64_t>(offset) * kWarpLanes);
}

// consort_rt_texture(context, what, handle, four coordinates): together where the lanes have one
// object.
Value* LaneEmitter::EmitTexture(llvm::CallInst& call) {
  const auto what = llvm::cast<llvm::ConstantInt>(call.getArgOperand(1))->getZExtValue();
  if (!shapes_.Of(call.getArgOperand(2)).IsUniform() || (what & kTextureGather) != 0) {
    return EachLane(call);
  }
  ReleaseScratch();
  llvm::AllocaInst* results = Scratch(VectorType(call.getType()));
  std::vector<Value*> arguments = {out_.getArg(0), results, Scalar(call.getArgOperand(1)),
                                   Scalar(call.getArgOperand(2))};
  for (unsigned i = 3; i < call.arg_size(); ++i) {
    Value* coordinate = call.getArgOperand(i);
    const auto* constant = llvm::dyn_cast<llvm::Constant>(coordinate);
    arguments.push_back(constant != nullptr && constant->isNullValue()
                            ? llvm::ConstantPointerNull::get(ir_.getPtrTy())
                            : Spill(Vector(coordinate), coordinate->getType()));
  }
  arguments.push_back(ir_.getInt32(lanes_));
  arguments.push_back(ir_.CreateZExtOrTrunc(Bits(MaskOf(block_)), ir_.getInt32Ty()));
  CallRuntime("consort_rt_group_texture", ir_.getVoidTy(), arguments);
  // From a channel after the other to a lane after the other, which is undone where a channel is
  // used.
  llvm::Type* channel = VectorType(ir_.getInt32Ty());
  auto pair = [&](uint32_t first) {
    Value* both[2];
    for (uint32_t i = 0; i < 2; ++i) {
      both[i] = ir_.CreateLoad(
          channel, ir_.CreateConstGEP1_64(ir_.getInt32Ty(), results, (first + i) * lanes_));
    }
    return llvm::concatenateVectors(ir_, both);
  };
  std::vector<int> from;
  for (uint32_t i = 0; i < 4 * lanes_; ++i)
    from.push_back(static_cast<int>(i % 4 * lanes_ + i / 4));
  return ir_.CreateShuffleVector(pair(0), pair(2), from);
}

}  // namespace consort::cpu
