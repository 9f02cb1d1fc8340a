// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/lane_emitter.h"

#include <cstdint>
#include <vector>

namespace consort::cpu {
namespace {

using llvm::BasicBlock;
using llvm::Instruction;
using llvm::Loop;
using llvm::Value;

}  // namespace

uint32_t LaneEmitter::Elements(const llvm::Type* type) const {
  const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(type);
  return vector != nullptr ? vector->getNumElements() : 1;
}

// Of a vector type, the lanes' vectors one after the other.
llvm::Type* LaneEmitter::VectorType(llvm::Type* type) const {
  return llvm::FixedVectorType::get(type->getScalarType(), lanes_ * Elements(type));
}

llvm::AllocaInst* LaneEmitter::EntrySlot(llvm::Type* type) {
  return llvm::IRBuilder<>(entry_end_).CreateAlloca(type);
}

bool LaneEmitter::LeavesBlock(const Instruction& instruction) const {
  if (llvm::isa<llvm::PHINode>(instruction)) return true;
  for (const llvm::User* user : instruction.users()) {
    const auto* by = llvm::cast<Instruction>(user);
    if (by->getParent() != instruction.getParent() || llvm::isa<llvm::PHINode>(by)) return true;
  }
  return false;
}

llvm::AllocaInst* LaneEmitter::SlotOf(Instruction& instruction) {
  llvm::AllocaInst*& slot = slots_[&instruction];
  if (slot == nullptr) {
    llvm::Type* type = instruction.getType();
    const bool one = IsScalar(&instruction) || IsDoubtful(&instruction);
    slot = EntrySlot(one ? type : VectorType(type));
  }
  return slot;
}

void LaneEmitter::Define(Instruction& instruction, Value* value) {
  local_[&instruction] = value;
  if (LeavesBlock(instruction)) ir_.CreateStore(value, SlotOf(instruction));
}

Value* LaneEmitter::Iota(uint32_t bits) {
  std::vector<llvm::Constant*> numbers;
  for (uint32_t i = 0; i < lanes_; ++i) {
    numbers.push_back(llvm::ConstantInt::get(ir_.getIntNTy(bits), i));
  }
  return llvm::ConstantVector::get(numbers);
}

Value* LaneEmitter::Splat(Value* scalar) {
  const uint32_t elements = Elements(scalar->getType());
  if (elements == 1) return ir_.CreateVectorSplat(lanes_, scalar);
  std::vector<int> from;
  for (uint32_t i = 0; i < lanes_ * elements; ++i) from.push_back(static_cast<int>(i % elements));
  return ir_.CreateShuffleVector(scalar, from);
}

Value* LaneEmitter::Spread(Value* base, int64_t stride) {
  Value* all = Splat(base);
  if (stride == 0) return all;
  llvm::Type* type = base->getType();
  Value* offsets = Strides(type->isPointerTy() ? 64 : type->getIntegerBitWidth(), stride);
  if (type->isPointerTy()) return ir_.CreateGEP(ir_.getInt8Ty(), all, offsets);
  return ir_.CreateAdd(all, offsets);
}

// Multiples of the stride, a lane each.
llvm::Constant* LaneEmitter::Strides(uint32_t bits, int64_t stride) const {
  std::vector<llvm::Constant*> numbers;
  for (uint32_t i = 0; i < lanes_; ++i) {
    const auto number = static_cast<uint64_t>(stride * int64_t{i});
    numbers.push_back(llvm::ConstantInt::get(scalar_.getContext(),
                                             llvm::APInt(64, number, true).sextOrTrunc(bits)));
  }
  return llvm::ConstantVector::get(numbers);
}

LaneEmitter::DoubtSlots& LaneEmitter::DoubtSlotsOf(const Value* value) {
  const auto [at, is_new] = doubt_slots_.try_emplace(value);
  if (is_new) {
    llvm::Type* type = value->getType();
    at->second.beyond = EntrySlot(VectorType(type->isPointerTy() ? ir_.getInt64Ty() : type));
    at->second.strided = EntrySlot(ir_.getInt1Ty());
  }
  return at->second;
}

// Of what is strided beyond doubt as well.
LaneEmitter::Doubt LaneEmitter::DoubtOf(Value* value) {
  const Shape shape = shapes_.Of(value);
  if (!shape.maybe) {
    llvm::Type* type = value->getType();
    return {Strides(type->isPointerTy() ? 64 : type->getIntegerBitWidth(), shape.stride),
            ir_.getTrue()};
  }
  const auto found = local_doubts_.find(value);
  if (found != local_doubts_.end()) return found->second;
  const DoubtSlots slots = DoubtSlotsOf(value);
  return {ir_.CreateLoad(slots.beyond->getAllocatedType(), slots.beyond),
          ir_.CreateLoad(slots.strided->getAllocatedType(), slots.strided)};
}

// Of a value that is scalar by its shape, or may be: the base.
Value* LaneEmitter::Scalar(Value* value) {
  if (auto* argument = llvm::dyn_cast<llvm::Argument>(value)) {
    return out_.getArg(argument->getArgNo());
  }
  auto* instruction = llvm::dyn_cast<Instruction>(value);
  if (instruction == nullptr) return value;
  if (Value* local = local_.lookup(value)) return local;
  llvm::AllocaInst* slot = SlotOf(*instruction);
  return ir_.CreateLoad(slot->getAllocatedType(), slot);
}

Value* LaneEmitter::Vector(Value* value) {
  const Shape shape = shapes_.Of(value);
  if (shape.IsScalar()) return Spread(Scalar(value), shape.stride);
  if (!shape.maybe) return Scalar(value);
  Value* all = Splat(Scalar(value));
  Value* beyond = DoubtOf(value).beyond;
  if (all->getType()->isPtrOrPtrVectorTy()) return ir_.CreateGEP(ir_.getInt8Ty(), all, beyond);
  return ir_.CreateAdd(all, beyond);
}

// --- Masks ---

Value* LaneEmitter::AllLanes() const {
  return llvm::Constant::getAllOnesValue(
      llvm::FixedVectorType::get(llvm::Type::getInt1Ty(scalar_.getContext()), lanes_));
}

bool IsAllOnes(const Value* mask) {
  const auto* constant = llvm::dyn_cast<llvm::Constant>(mask);
  return constant != nullptr && constant->isAllOnesValue();
}

Value* LaneEmitter::And(Value* a, Value* b) {
  if (IsAllOnes(a)) return b;
  if (IsAllOnes(b)) return a;
  return ir_.CreateAnd(a, b);
}

Value* LaneEmitter::Not(Value* a) { return ir_.CreateNot(a); }

Value* LaneEmitter::Bits(Value* mask) { return ir_.CreateBitCast(mask, ir_.getIntNTy(lanes_)); }

Value* LaneEmitter::Any(Value* mask) {
  if (IsAllOnes(mask)) return ir_.getTrue();
  return ir_.CreateICmpNE(Bits(mask), llvm::ConstantInt::get(ir_.getIntNTy(lanes_), 0));
}

// For vectors of several elements a lane.
Value* LaneEmitter::Widen(Value* mask, uint32_t elements) {
  if (elements == 1) return mask;
  std::vector<int> from;
  for (uint32_t i = 0; i < lanes_ * elements; ++i) from.push_back(static_cast<int>(i / elements));
  return ir_.CreateShuffleVector(mask, from);
}

bool LaneEmitter::HoldsMask(const BasicBlock* block) const {
  if (shapes_.IsControlled(block)) return true;
  const Loop* loop = shapes_.loops().getLoopFor(block);
  return loop != nullptr && loop->getHeader() == block && shapes_.Diverges(loop);
}

// The block whose mask `block` has; null: that of the group.
const BasicBlock* LaneEmitter::MaskHolder(const BasicBlock* block) const {
  while (!HoldsMask(block)) {
    const Loop* loop = shapes_.loops().getLoopFor(block);
    if (loop != nullptr && loop->getHeader() == block) loop = loop->getParentLoop();
    if (loop == nullptr) return nullptr;
    block = loop->getHeader();
  }
  return block;
}

Value* LaneEmitter::MaskOf(const BasicBlock* block) {
  const BasicBlock* holder = MaskHolder(block);
  if (holder == nullptr) return entry_mask_;
  llvm::AllocaInst* slot = ActivationOf(holder).mask;
  return ir_.CreateLoad(slot->getAllocatedType(), slot);
}

LaneEmitter::Activation& LaneEmitter::ActivationOf(const BasicBlock* block) {
  const auto [at, is_new] = activations_.try_emplace(block);
  if (is_new) {
    if (HoldsMask(block)) {
      at->second.mask = EntrySlot(AllLanes()->getType());
    } else {
      at->second.reached = EntrySlot(ir_.getInt1Ty());
    }
  }
  return at->second;
}

}  // namespace consort::cpu
