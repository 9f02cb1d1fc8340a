// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/lane_emitter.h"

#include <string>

#include "llvm/IR/InstIterator.h"

namespace consort::cpu {
namespace {

using llvm::BasicBlock;
using llvm::Instruction;
using llvm::StringRef;
using llvm::Value;

bool IsSimpleType(const llvm::Type* type) {
  if (const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(type)) {
    return IsSimpleType(vector->getElementType()) && !vector->getElementType()->isPointerTy();
  }
  return type->isIntegerTy() || type->isHalfTy() || type->isBFloatTy() || type->isFloatTy() ||
         type->isDoubleTy() || type->isPointerTy();
}

// What DoubtAfter knows.
bool CanBeDoubtful(const Instruction& instruction) {
  switch (instruction.getOpcode()) {
    case Instruction::PHI:
    case Instruction::SExt:
    case Instruction::ZExt:
    case Instruction::Add:
    case Instruction::Or:
    case Instruction::Sub:
    case Instruction::Select:
    case Instruction::GetElementPtr:
    case Instruction::IntToPtr:
    case Instruction::PtrToInt:
      return true;
    case Instruction::Mul:
    case Instruction::Shl:
      return llvm::isa<llvm::ConstantInt>(instruction.getOperand(1));
    default:
      return false;
  }
}

// Whether all that touches the slots of matrix instructions, or a part of them, does so in a way
// that LaneEmitter::MatrixPlace knows.
bool CanLieTogether(const Instruction& slots) {
  for (const llvm::User* user : slots.users()) {
    if (const auto* address = llvm::dyn_cast<llvm::GetElementPtrInst>(user)) {
      if (!address->hasAllConstantIndices() || !CanLieTogether(*address)) return false;
    } else if (llvm::isa<llvm::LoadInst>(user) || llvm::isa<llvm::StoreInst>(user)) {
      const llvm::Type* type = llvm::getLoadStoreType(const_cast<llvm::User*>(user));
      const auto* store = llvm::dyn_cast<llvm::StoreInst>(user);
      if (store != nullptr && store->getValueOperand() == &slots) return false;
      if (type->isVectorTy() ||
          (type->getPrimitiveSizeInBits() != 32 && type->getPrimitiveSizeInBits() != 64)) {
        return false;
      }
    } else if (const auto* call = llvm::dyn_cast<llvm::CallInst>(user);
               call == nullptr || KindOf(*call) != CallKind::kCollective) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::string LaneEmitter::Refusal() const {
  // LLVM's time for wide code, and for loops over lanes, grows faster than its length.
  constexpr size_t kInstructionsMax = 10000;
  constexpr size_t kLaneLoopsMax = 256;
  if (scalar_.getInstructionCount() > kInstructionsMax) return "too long";
  size_t lane_loops = 0;
  for (const Instruction& instruction : llvm::instructions(scalar_)) {
    const auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
    if (instruction.isAtomic() || (call != nullptr && KindOf(*call) == CallKind::kEachLane)) {
      ++lane_loops;
    }
  }
  if (lane_loops > kLaneLoopsMax) return "too much that has no vector form";
  for (const BasicBlock& block : scalar_) {
    for (const Instruction& instruction : block) {
      for (const Value* operand : instruction.operands()) {
        if (operand->getType()->isStructTy() && !llvm::isa<llvm::AtomicCmpXchgInst>(operand)) {
          return "a structure";
        }
      }
      if (shapes_.Of(&instruction).maybe && !CanBeDoubtful(instruction)) return "a doubt";
      switch (instruction.getOpcode()) {
        case Instruction::Ret:
        case Instruction::Br:
        case Instruction::Unreachable:
        case Instruction::Fence:
          break;
        case Instruction::Alloca:
          if (IsMatrixBuffer(&instruction) && !CanLieTogether(instruction)) return "a matrix";
          break;
        case Instruction::Store:
          if (!IsSimpleType(instruction.getOperand(0)->getType())) return "a store";
          break;
        case Instruction::AtomicCmpXchg:
          for (const llvm::User* user : instruction.users()) {
            const auto* extract = llvm::dyn_cast<llvm::ExtractValueInst>(user);
            if (extract == nullptr || extract->getParent() != &block) return "a structure";
          }
          break;
        case Instruction::ExtractValue:
          break;
        case Instruction::Call: {
          const auto& call = llvm::cast<llvm::CallInst>(instruction);
          const CallKind kind = KindOf(call);
          if (kind == CallKind::kUnknown ||
              (!call.getType()->isVoidTy() && !IsSimpleType(call.getType()))) {
            const llvm::Function* callee = call.getCalledFunction();
            return "a call of " + (callee == nullptr ? "an address" : callee->getName().str());
          }
          if (NeedsAllLanes(call) && !shapes_.IsTogether(&block)) return "lanes meet apart";
          if ((kind == CallKind::kVote || kind == CallKind::kCollective ||
               kind == CallKind::kActiveMask) &&
              lanes_ != kWarpLanes) {
            return "a warp in parts";
          }
          const StringRef name = call.getCalledFunction()->getName();
          if (name.starts_with("consort_rt_barrier")) {
            const unsigned uniform = kind == CallKind::kBarrierRed ? 4 : 3;
            for (unsigned i = 0; i < uniform; ++i) {
              if (!shapes_.Of(call.getArgOperand(i)).IsUniform()) return "several barriers";
            }
          }
          if (name == "consort_rt_shuffle" && !shapes_.Of(call.getArgOperand(1)).IsUniform()) {
            return "a shuffle";
          }
          break;
        }
        default:
          if (!IsSimpleType(instruction.getType())) return instruction.getOpcodeName();
          if (llvm::isa<llvm::GetElementPtrInst>(instruction) ||
              llvm::isa<llvm::PHINode>(instruction) || llvm::isa<llvm::LoadInst>(instruction) ||
              llvm::isa<llvm::AtomicRMWInst>(instruction) ||
              llvm::isa<llvm::BinaryOperator>(instruction) ||
              llvm::isa<llvm::CastInst>(instruction) || llvm::isa<llvm::CmpInst>(instruction) ||
              llvm::isa<llvm::SelectInst>(instruction) ||
              llvm::isa<llvm::FreezeInst>(instruction) ||
              llvm::isa<llvm::UnaryOperator>(instruction)) {
            break;
          }
          if (llvm::isa<llvm::ExtractElementInst>(instruction) &&
              llvm::isa<llvm::ConstantInt>(instruction.getOperand(1))) {
            break;
          }
          if (llvm::isa<llvm::InsertElementInst>(instruction) &&
              llvm::isa<llvm::ConstantInt>(instruction.getOperand(2))) {
            break;
          }
          if (llvm::isa<llvm::ShuffleVectorInst>(instruction)) break;
          return instruction.getOpcodeName();
      }
    }
  }
  return "";
}

}  // namespace consort::cpu
