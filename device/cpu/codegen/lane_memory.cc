// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/lane_emitter.h"

#include <cstddef>
#include <vector>

#include "device/cpu/engine/runtime.h"

namespace consort::cpu {
namespace {

using llvm::BasicBlock;
using llvm::Value;

}  // namespace

Value* LaneEmitter::LoadFrom(llvm::LoadInst& load, Value* base) {
  llvm::Type* type = VectorType(load.getType());
  Value* mask = MaskOf(block_);
  if (IsAllOnes(mask)) return ir_.CreateAlignedLoad(type, base, load.getAlign());
  return ir_.CreateMaskedLoad(type, base, load.getAlign(), Widen(mask, Elements(load.getType())),
                              llvm::PoisonValue::get(type));
}

// CPUs gather words; smaller values are cut out of the aligned words that they lie in, which cannot
// fault where the values do not.
Value* LaneEmitter::GatherSmall(llvm::Type* element, Value* pointers, Value* mask) {
  llvm::Type* wide = VectorType(ir_.getInt64Ty());
  llvm::Type* word = VectorType(ir_.getInt32Ty());
  Value* addresses = ir_.CreatePtrToInt(pointers, wide);
  Value* aligned = ir_.CreateAnd(addresses, llvm::ConstantInt::get(wide, ~uint64_t{3}));
  Value* words = ir_.CreateMaskedGather(word, ir_.CreateIntToPtr(aligned, pointers->getType()),
                                        llvm::Align(4), mask);
  Value* shift = ir_.CreateShl(
      ir_.CreateAnd(ir_.CreateTrunc(addresses, word), llvm::ConstantInt::get(word, 3)),
      llvm::ConstantInt::get(word, 3));
  const auto bits = static_cast<uint32_t>(element->getScalarSizeInBits());
  Value* cut = ir_.CreateTrunc(ir_.CreateLShr(words, shift), VectorType(ir_.getIntNTy(bits)));
  return ir_.CreateBitCast(cut, VectorType(element));
}

// Whether a lane's value is a vector of 16 bytes, which the CPU moves with one instruction: lane by
// lane is quicker then than element by element.
bool LaneEmitter::IsQuad(llvm::Type* type) const {
  return type->isVectorTy() && layout_.getTypeStoreSize(type) == kQuadBytes;
}

// Between `quads`, 16 bytes a lane, and where the lanes of `mask` point to.
void LaneEmitter::MoveQuads(llvm::StringRef how, Value* quads, Value* pointers, Value* mask) {
  Value* here = ir_.CreateZExtOrTrunc(Bits(mask), ir_.getInt32Ty());
  CallRuntime(how, ir_.getVoidTy(), {quads, Spill(pointers, ir_.getPtrTy()), here});
}

// Elements of vectors are fetched one kind after the other and then put together.
Value* LaneEmitter::Gather(llvm::LoadInst& load) {
  llvm::Type* element = load.getType()->getScalarType();
  const uint32_t elements = Elements(load.getType());
  const uint64_t bytes = layout_.getTypeStoreSize(element);
  Value* pointers = Vector(load.getPointerOperand());
  Value* mask = MaskOf(block_);
  if (IsQuad(load.getType())) {
    ReleaseScratch();
    llvm::AllocaInst* quads = Scratch(VectorType(load.getType()));
    MoveQuads("consort_rt_group_load_quads", quads, pointers, mask);
    return ir_.CreateLoad(quads->getAllocatedType(), quads);
  }
  Value* result = nullptr;
  for (uint32_t i = 0; i < elements; ++i) {
    Value* at =
        i == 0 ? pointers : ir_.CreateGEP(ir_.getInt8Ty(), pointers, ir_.getInt64(i * bytes));
    Value* part =
        bytes < 4 ? GatherSmall(element, at, mask)
                  : ir_.CreateMaskedGather(VectorType(element), at,
                                           llvm::commonAlignment(load.getAlign(), i * bytes), mask);
    if (elements == 1) return part;
    std::vector<int> spread;
    std::vector<int> from;
    for (uint32_t k = 0; k < lanes_ * elements; ++k) {
      spread.push_back(static_cast<int>(k / elements));
      from.push_back(static_cast<int>(k % elements == i ? lanes_ * elements + k : k));
    }
    Value* wide = ir_.CreateShuffleVector(part, spread);
    result = result == nullptr ? wide : ir_.CreateShuffleVector(result, wide, from);
  }
  return result;
}

Value* LaneEmitter::EmitLoad(llvm::LoadInst& load) {
  Value* pointer = load.getPointerOperand();
  const int64_t offset = ContextOffset(load);
  for (size_t i = 0; i < 3; ++i) {
    if (offset == static_cast<int64_t>(offsetof(ThreadContext, tid) + i * sizeof(uint32_t))) {
      return tid_[i];
    }
  }
  if (Value* place = MatrixPlace(pointer)) {
    return ir_.CreateAlignedLoad(VectorType(load.getType()), place, load.getAlign());
  }
  if (load.isAtomic() || load.isVolatile()) return EachLane(load);
  const Shape shape = shapes_.Of(pointer);
  const uint64_t bytes = layout_.getTypeStoreSize(load.getType());
  if (shape.kind != Shape::Kind::kStrided || shape.stride != static_cast<int64_t>(bytes)) {
    return Gather(load);
  }
  if (!shape.maybe) return LoadFrom(load, Scalar(pointer));
  BasicBlock* contiguous = NewBlock();
  BasicBlock* scattered = NewBlock();
  BasicBlock* after = NewBlock();
  ir_.CreateCondBr(DoubtOf(pointer).strided, contiguous, scattered);
  ir_.SetInsertPoint(contiguous);
  Value* whole = LoadFrom(load, Scalar(pointer));
  ir_.CreateBr(after);
  ir_.SetInsertPoint(scattered);
  Value* gathered = Gather(load);
  BasicBlock* scattered_end = ir_.GetInsertBlock();
  ir_.CreateBr(after);
  ir_.SetInsertPoint(after);
  llvm::PHINode* value = ir_.CreatePHI(whole->getType(), 2);
  value->addIncoming(whole, contiguous);
  value->addIncoming(gathered, scattered_end);
  return value;
}

void LaneEmitter::StoreTo(llvm::StoreInst& store, Value* base) {
  Value* value = Vector(store.getValueOperand());
  Value* mask = MaskOf(block_);
  if (IsAllOnes(mask)) {
    ir_.CreateAlignedStore(value, base, store.getAlign());
    return;
  }
  ir_.CreateMaskedStore(value, base, store.getAlign(),
                        Widen(mask, Elements(store.getValueOperand()->getType())));
}

void LaneEmitter::Scatter(llvm::StoreInst& store) {
  Value* mask = MaskOf(block_);
  if (IsAllOnes(mask)) return ScatterUnder(store, mask);
  // CPUs scatter words at best: other values are stored one by one, which is quicker where it need
  // not be asked for which lanes.
  if (layout_.getTypeStoreSize(store.getValueOperand()->getType()->getScalarType()) >= 4) {
    return ScatterUnder(store, mask);
  }
  BasicBlock* sides[2] = {NewBlock(), NewBlock()};
  BasicBlock* after = NewBlock();
  ir_.CreateCondBr(ir_.CreateICmpEQ(Bits(mask), Bits(AllLanes())), sides[0], sides[1]);
  ir_.SetInsertPoint(sides[0]);
  ScatterUnder(store, AllLanes());
  ir_.CreateBr(after);
  ir_.SetInsertPoint(sides[1]);
  EachLane(store);
  ir_.CreateBr(after);
  ir_.SetInsertPoint(after);
}

void LaneEmitter::ScatterUnder(llvm::StoreInst& store, Value* mask) {
  llvm::Type* type = store.getValueOperand()->getType();
  const uint32_t elements = Elements(type);
  const uint64_t bytes = layout_.getTypeStoreSize(type->getScalarType());
  Value* pointers = Vector(store.getPointerOperand());
  Value* values = Vector(store.getValueOperand());
  if (IsQuad(type)) {
    ReleaseScratch();
    MoveQuads("consort_rt_group_store_quads", Spill(values, type->getScalarType()), pointers, mask);
    return;
  }
  for (uint32_t i = 0; i < elements; ++i) {
    Value* part = values;
    Value* at = pointers;
    if (elements > 1) {
      std::vector<int> from;
      for (uint32_t k = 0; k < lanes_; ++k) from.push_back(static_cast<int>(k * elements + i));
      part = ir_.CreateShuffleVector(values, from);
      at = ir_.CreateGEP(ir_.getInt8Ty(), pointers, ir_.getInt64(i * bytes));
    }
    ir_.CreateMaskedScatter(part, at, llvm::commonAlignment(store.getAlign(), i * bytes), mask);
  }
}

Value* LaneEmitter::LastActive(Value* vector, Value* mask) {
  Value* leading = ir_.CreateBinaryIntrinsic(llvm::Intrinsic::ctlz, Bits(mask), ir_.getFalse());
  Value* last = ir_.CreateSub(llvm::ConstantInt::get(leading->getType(), lanes_ - 1), leading);
  const auto elements = static_cast<uint32_t>(
      llvm::cast<llvm::FixedVectorType>(vector->getType())->getNumElements() / lanes_);
  if (elements == 1) return ir_.CreateExtractElement(vector, last);
  llvm::Type* type = llvm::FixedVectorType::get(vector->getType()->getScalarType(), elements);
  Value* result = llvm::PoisonValue::get(type);
  for (uint32_t i = 0; i < elements; ++i) {
    Value* at =
        ir_.CreateAdd(ir_.CreateMul(ir_.CreateZExt(last, ir_.getInt64Ty()), ir_.getInt64(elements)),
                      ir_.getInt64(i));
    result = ir_.CreateInsertElement(result, ir_.CreateExtractElement(vector, at), uint64_t{i});
  }
  return result;
}

void LaneEmitter::EmitStore(llvm::StoreInst& store) {
  Value* pointer = store.getPointerOperand();
  Value* value = store.getValueOperand();
  if (Value* place = MatrixPlace(pointer)) {
    ir_.CreateAlignedStore(Vector(value), place, store.getAlign());
    return;
  }
  const Shape shape = shapes_.Of(pointer);
  if (shape.IsUniform()) {
    // Lanes in turn: what the last one writes stays.
    Value* last =
        shapes_.Of(value).IsUniform() ? Scalar(value) : LastActive(Vector(value), MaskOf(block_));
    llvm::StoreInst* copy =
        ir_.CreateAlignedStore(last, Scalar(pointer), store.getAlign(), store.isVolatile());
    copy->setAtomic(store.getOrdering(), store.getSyncScopeID());
    return;
  }
  if (store.isAtomic() || store.isVolatile()) {
    EachLane(store);
    return;
  }
  const uint64_t bytes = layout_.getTypeStoreSize(value->getType());
  if (shape.kind != Shape::Kind::kStrided || shape.stride != static_cast<int64_t>(bytes)) {
    return Scatter(store);
  }
  if (!shape.maybe) return StoreTo(store, Scalar(pointer));
  BasicBlock* contiguous = NewBlock();
  BasicBlock* scattered = NewBlock();
  BasicBlock* after = NewBlock();
  ir_.CreateCondBr(DoubtOf(pointer).strided, contiguous, scattered);
  ir_.SetInsertPoint(contiguous);
  StoreTo(store, Scalar(pointer));
  ir_.CreateBr(after);
  ir_.SetInsertPoint(scattered);
  Scatter(store);
  ir_.CreateBr(after);
  ir_.SetInsertPoint(after);
}

}  // namespace consort::cpu
