// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/lane_emitter.h"

#include <optional>
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

// Counts the instructions that move registers to and from `slots` of matrix instructions, or a part
// of them. Nothing if one does so in a way that LaneEmitter::MatrixPlace does not know.
std::optional<size_t> CountMoves(const Value& slots) {
  size_t count = 0;
  for (const llvm::User* user : slots.users()) {
    if (const auto* address = llvm::dyn_cast<llvm::GetElementPtrInst>(user)) {
      const std::optional<size_t> more = CountMoves(*address);
      if (!address->hasAllConstantIndices() || !more) return std::nullopt;
      count += 1 + *more;
      continue;
    }
    const auto* load = llvm::dyn_cast<llvm::LoadInst>(user);
    const auto* store = llvm::dyn_cast<llvm::StoreInst>(user);
    if (load == nullptr && store == nullptr) {
      const auto* call = llvm::dyn_cast<llvm::CallInst>(user);
      if (call == nullptr || KindOf(*call) != CallKind::kCollective) return std::nullopt;
      continue;
    }
    const Value* moved = load != nullptr ? load : store->getValueOperand();
    const uint64_t bits = moved->getType()->getPrimitiveSizeInBits();
    if (moved == &slots || moved->getType()->isVectorTy() || (bits != 32 && bits != 64)) {
      return std::nullopt;
    }
    ++count;
  }
  return count;
}

}  // namespace

std::string LaneEmitter::Refusal() const {
  // LLVM's time for wide code, and for loops over lanes, grows faster than its length.
  constexpr size_t kInstructionsMax = 10000;
  constexpr size_t kLaneLoopsMax = 256;
  size_t length = scalar_.getInstructionCount();
  for (const Value* buffer : matrix_buffers_) {
    const std::optional<size_t> moves =
        llvm::isa<llvm::AllocaInst>(buffer) ? CountMoves(*buffer) : std::nullopt;
    if (!moves) return "a matrix";
    // A vector each, as it is.
    length -= *moves;
  }
  if (length > kInstructionsMax) return "too long";
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
        case Instruction::Alloca:
          break;
        case Instruction::Load:
          if (!IsSimpleType(instruction.getType())) return "a load";
          if (ReadsLaneField(llvm::cast<llvm::LoadInst>(instruction)) &&
              !instruction.getType()->isIntegerTy(32)) {
            return "a part of where a thread is";
          }
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
              llvm::isa<llvm::PHINode>(instruction) ||
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
