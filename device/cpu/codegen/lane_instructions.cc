// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/lane_emitter.h"

#include <cstddef>
#include <vector>

#include "llvm/IR/GetElementPtrTypeIterator.h"

namespace consort::cpu {
namespace {

using llvm::BasicBlock;
using llvm::Instruction;
using llvm::StringRef;
using llvm::Value;

}  // namespace

Value* LaneEmitter::ContextField(size_t offset, uint32_t bits) {
  Value* pointer = ir_.CreateConstGEP1_64(ir_.getInt8Ty(), out_.getArg(0), offset);
  llvm::LoadInst* load = ir_.CreateLoad(ir_.getIntNTy(bits), pointer);
  load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(ir_.getContext(), {}));
  return load;
}

llvm::CallInst* LaneEmitter::CallRuntime(StringRef name, llvm::Type* result,
                                         const std::vector<Value*>& arguments) {
  std::vector<llvm::Type*> types;
  for (Value* argument : arguments) types.push_back(argument->getType());
  llvm::CallInst* call = ir_.CreateCall(
      scalar_.getParent()->getOrInsertFunction(name, llvm::FunctionType::get(result, types, false)),
      arguments);
  call->setDoesNotThrow();
  return call;
}

void LaneEmitter::EmitPrologue() {
  entry_ = BasicBlock::Create(ir_.getContext(), "entry", &out_);
  ir_.SetInsertPoint(entry_);
  if (mode_ == ThreadsMode::kCoroutines) coroutine_ = BeginCoroutine(ir_, out_);
  entry_mask_ = AllLanes();
  if (!group_.partial && group_.rows) return;
  Value* first = ContextField(offsetof(ThreadContext, thread_index), 32);
  Value* index = ir_.CreateAdd(Splat(first), Iota(32));
  Value* ntid[3];
  for (size_t i = 0; i < 3; ++i) {
    ntid[i] = ContextField(offsetof(ThreadContext, ntid) + i * sizeof(uint32_t), 32);
  }
  if (group_.partial) {
    Value* threads = ir_.CreateMul(ir_.CreateMul(ntid[0], ntid[1]), ntid[2]);
    entry_mask_ = ir_.CreateICmpULT(index, Splat(threads));
  }
  if (group_.rows) return;
  // Division by multiplication with the reciprocal rounded up, which is exact for numbers so small.
  llvm::Type* wide = VectorType(ir_.getInt64Ty());
  Value* rest = index;
  for (size_t i = 0; i < 2; ++i) {
    Value* divisor = ir_.CreateZExt(ntid[i], ir_.getInt64Ty());
    Value* reciprocal =
        ir_.CreateUDiv(ir_.CreateAdd(ir_.getInt64((uint64_t{1} << 32) - 1), divisor), divisor);
    Value* product = ir_.CreateMul(ir_.CreateZExt(rest, wide), Splat(reciprocal));
    Value* quotient = ir_.CreateTrunc(ir_.CreateLShr(product, 32), rest->getType());
    tid_[i] = ir_.CreateSub(rest, ir_.CreateMul(quotient, Splat(ntid[i])));
    rest = quotient;
  }
  tid_[2] = rest;
}

void LaneEmitter::EmitInstruction(Instruction& instruction) {
  if (auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction)) return EmitCall(*call);
  if (auto* store = llvm::dyn_cast<llvm::StoreInst>(&instruction)) return EmitStore(*store);
  if (auto* extract = llvm::dyn_cast<llvm::ExtractValueInst>(&instruction)) {
    auto* exchange = llvm::cast<llvm::AtomicCmpXchgInst>(extract->getAggregateOperand());
    Value* old = local_.lookup(exchange);
    Define(instruction, extract->getIndices()[0] == 0
                            ? old
                            : ir_.CreateICmpEQ(old, Vector(exchange->getCompareOperand())));
    return;
  }
  if (llvm::isa<llvm::FenceInst>(instruction)) {
    ir_.Insert(instruction.clone());
    return;
  }
  if (llvm::isa<llvm::AtomicRMWInst>(instruction) ||
      llvm::isa<llvm::AtomicCmpXchgInst>(instruction)) {
    return Define(instruction, EachLane(instruction));
  }
  if (IsScalar(&instruction)) return EmitScalar(instruction);
  if (IsDoubtful(&instruction)) return EmitDoubtful(instruction);
  if (auto* load = llvm::dyn_cast<llvm::LoadInst>(&instruction)) {
    return Define(instruction, EmitLoad(*load));
  }
  Define(instruction, EmitVector(instruction));
}

// The base, from the operands' bases.
void LaneEmitter::EmitScalar(Instruction& instruction) {
  const Shape shape = shapes_.Of(&instruction);
  if (auto* slot = llvm::dyn_cast<llvm::AllocaInst>(&instruction)) {
    // One copy a lane, each a stride apart.
    llvm::IRBuilder<> at_entry(entry_end_);
    llvm::AllocaInst* copies = at_entry.CreateAlloca(
        llvm::ArrayType::get(at_entry.getInt8Ty(), static_cast<uint64_t>(shape.stride) * lanes_));
    copies->setAlignment(slot->getAlign());
    return Define(instruction, copies);
  }
  if (auto* extension = llvm::dyn_cast<llvm::CastInst>(&instruction);
      extension != nullptr && shape.stride != 0 &&
      (extension->getOpcode() == Instruction::ZExt ||
       extension->getOpcode() == Instruction::SExt)) {
    // No active lane is negative, but the base's lane need not be active.
    return Define(instruction,
                  ir_.CreateSExt(Scalar(extension->getOperand(0)), extension->getDestTy()));
  }
  Define(instruction, Base(instruction));
}

Value* LaneEmitter::Base(Instruction& instruction) {
  if (instruction.getOpcode() == Instruction::Or && shapes_.Of(&instruction).stride != 0) {
    return ir_.CreateAdd(Scalar(instruction.getOperand(0)), Scalar(instruction.getOperand(1)));
  }
  // A lane's fields of the context are those of the group's first thread, from which the others
  // count up.
  Instruction* copy = instruction.clone();
  for (llvm::Use& operand : copy->operands()) {
    if (!llvm::isa<BasicBlock>(operand.get())) operand.set(Scalar(operand.get()));
  }
  if (!llvm::isa<llvm::CallInst>(copy)) {
    copy->dropPoisonGeneratingFlags();
    copy->dropUnknownNonDebugMetadata({llvm::LLVMContext::MD_invariant_load});
  }
  return ir_.Insert(copy);
}

// What may be strided (see Refusal for which instructions that are): the base as of a scalar, and
// the doubt.
void LaneEmitter::EmitDoubtful(Instruction& instruction) {
  Value* base = Base(instruction);
  const Doubt doubt = DoubtAfter(instruction, base);
  local_doubts_[&instruction] = doubt;
  if (LeavesBlock(instruction)) {
    const DoubtSlots slots = DoubtSlotsOf(&instruction);
    ir_.CreateStore(doubt.beyond, slots.beyond);
    ir_.CreateStore(doubt.strided, slots.strided);
  }
  Define(instruction, base);
}

LaneEmitter::Doubt LaneEmitter::DoubtAfter(Instruction& instruction, Value* base) {
  auto both = [&](const Doubt& a, const Doubt& b) { return And(a.strided, b.strided); };
  if (auto* address = llvm::dyn_cast<llvm::GetElementPtrInst>(&instruction)) {
    Doubt sum = DoubtOf(address->getPointerOperand());
    for (auto at = llvm::gep_type_begin(address); at != llvm::gep_type_end(address); ++at) {
      if (at.isStruct() || shapes_.Of(at.getOperand()).IsUniform()) continue;
      const Doubt index = DoubtOf(at.getOperand());
      const uint64_t stride = at.getSequentialElementStride(layout_).getFixedValue();
      Value* times = llvm::ConstantInt::get(index.beyond->getType(), stride);
      sum = {ir_.CreateAdd(sum.beyond, ir_.CreateMul(index.beyond, times)), both(sum, index)};
    }
    return sum;
  }
  Value* first = instruction.getOperand(0);
  switch (instruction.getOpcode()) {
    case Instruction::SExt:
    case Instruction::ZExt: {
      const auto opcode = llvm::cast<llvm::CastInst>(instruction).getOpcode();
      llvm::Type* type = instruction.getType();
      const int64_t span = shapes_.Of(first).stride * int64_t{lanes_ - 1};
      Value* last =
          ir_.CreateAdd(Scalar(first), llvm::ConstantInt::getSigned(first->getType(), span));
      // A value wraps once at most between the first lane and the last.
      Value* strided = ir_.CreateICmpEQ(ir_.CreateSub(ir_.CreateCast(opcode, last, type), base),
                                        llvm::ConstantInt::getSigned(type, span));
      Value* all = ir_.CreateCast(opcode, Vector(first), VectorType(type));
      return {ir_.CreateSub(all, Splat(base)), strided};
    }
    case Instruction::Add:
    case Instruction::Or: {
      const Doubt a = DoubtOf(first), b = DoubtOf(instruction.getOperand(1));
      return {ir_.CreateAdd(a.beyond, b.beyond), both(a, b)};
    }
    case Instruction::Sub: {
      const Doubt a = DoubtOf(first), b = DoubtOf(instruction.getOperand(1));
      return {ir_.CreateSub(a.beyond, b.beyond), both(a, b)};
    }
    case Instruction::Mul:
    case Instruction::Shl: {
      const Doubt a = DoubtOf(first);
      auto* by = llvm::cast<llvm::ConstantInt>(instruction.getOperand(1));
      Value* splat = llvm::ConstantInt::get(a.beyond->getType(), by->getValue());
      const auto opcode = llvm::cast<llvm::BinaryOperator>(instruction).getOpcode();
      return {ir_.CreateBinOp(opcode, a.beyond, splat), a.strided};
    }
    case Instruction::Select: {
      Value* condition = Scalar(first);
      const Doubt a = DoubtOf(instruction.getOperand(1)), b = DoubtOf(instruction.getOperand(2));
      return {ir_.CreateSelect(condition, a.beyond, b.beyond),
              ir_.CreateSelect(condition, a.strided, b.strided)};
    }
    default:
      return DoubtOf(first);  // a cast between integer and pointer
  }
}

Value* LaneEmitter::EmitVector(Instruction& instruction) {
  llvm::Type* type = instruction.getType();
  auto vector = [&](unsigned index) { return Vector(instruction.getOperand(index)); };
  if (auto* operation = llvm::dyn_cast<llvm::BinaryOperator>(&instruction)) {
    Value* a = vector(0);
    Value* b = vector(1);
    switch (operation->getOpcode()) {
      case Instruction::UDiv:
      case Instruction::SDiv:
      case Instruction::URem:
      case Instruction::SRem: {
        Value* mask = MaskOf(block_);
        if (IsAllOnes(mask)) break;
        // Lanes that are not here must not divide by zero.
        b = ir_.CreateSelect(Widen(mask, Elements(type)), b,
                             llvm::ConstantInt::get(b->getType(), 1));
        break;
      }
      default:
        break;
    }
    Value* made = ir_.CreateBinOp(operation->getOpcode(), a, b);
    if (auto* copy = llvm::dyn_cast<Instruction>(made)) copy->copyIRFlags(&instruction);
    return made;
  }
  if (auto* operation = llvm::dyn_cast<llvm::UnaryOperator>(&instruction)) {
    return ir_.CreateUnOp(operation->getOpcode(), vector(0));
  }
  if (auto* cast = llvm::dyn_cast<llvm::CastInst>(&instruction)) {
    return ir_.CreateCast(cast->getOpcode(), vector(0), VectorType(type));
  }
  if (auto* compare = llvm::dyn_cast<llvm::CmpInst>(&instruction)) {
    return ir_.CreateCmp(compare->getPredicate(), vector(0), vector(1));
  }
  if (llvm::isa<llvm::SelectInst>(instruction)) {
    Value* condition = instruction.getOperand(0);
    if (shapes_.Of(condition).IsUniform()) {
      return ir_.CreateSelect(Scalar(condition), vector(1), vector(2));
    }
    Value* lanes = Vector(condition);
    if (!condition->getType()->isVectorTy()) lanes = Widen(lanes, Elements(type));
    return ir_.CreateSelect(lanes, vector(1), vector(2));
  }
  if (llvm::isa<llvm::FreezeInst>(instruction)) return ir_.CreateFreeze(vector(0));
  if (auto* address = llvm::dyn_cast<llvm::GetElementPtrInst>(&instruction)) {
    // Uniform operands stay scalars, but one must be a vector.
    Value* base = vector(0);
    std::vector<Value*> indices;
    for (Value* index : address->indices()) {
      indices.push_back(shapes_.Of(index).IsUniform() ? Scalar(index) : Vector(index));
    }
    return ir_.CreateGEP(address->getSourceElementType(), base, indices);
  }
  if (auto* extract = llvm::dyn_cast<llvm::ExtractElementInst>(&instruction)) {
    const auto at = static_cast<uint32_t>(
        llvm::cast<llvm::ConstantInt>(extract->getIndexOperand())->getZExtValue());
    const uint32_t elements = Elements(extract->getVectorOperandType());
    std::vector<int> from;
    for (uint32_t i = 0; i < lanes_; ++i) from.push_back(static_cast<int>(i * elements + at));
    return ir_.CreateShuffleVector(vector(0), from);
  }
  if (auto* insert = llvm::dyn_cast<llvm::InsertElementInst>(&instruction)) {
    const auto at =
        static_cast<uint32_t>(llvm::cast<llvm::ConstantInt>(insert->getOperand(2))->getZExtValue());
    const uint32_t elements = Elements(type);
    std::vector<int> spread;
    std::vector<int> from;
    for (uint32_t i = 0; i < lanes_ * elements; ++i) {
      spread.push_back(static_cast<int>(i / elements));
      from.push_back(static_cast<int>(i % elements == at ? lanes_ * elements + i : i));
    }
    Value* element = ir_.CreateShuffleVector(vector(1), spread);
    return ir_.CreateShuffleVector(vector(0), element, from);
  }
  auto& shuffle = llvm::cast<llvm::ShuffleVectorInst>(instruction);
  const auto in = static_cast<int>(Elements(shuffle.getOperand(0)->getType()));
  std::vector<int> from;
  for (uint32_t lane = 0; lane < lanes_; ++lane) {
    for (const int at : shuffle.getShuffleMask()) {
      const int first = static_cast<int>(lane) * in;
      from.push_back(at < 0    ? -1
                     : at < in ? first + at
                               : static_cast<int>(lanes_) * in + first + at - in);
    }
  }
  return ir_.CreateShuffleVector(vector(0), vector(1), from);
}

}  // namespace consort::cpu
