// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/lane_shapes.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <vector>

#include "device/cpu/engine/thread_context.h"
#include "llvm/ADT/PostOrderIterator.h"
#include "llvm/Analysis/ValueTracking.h"
#include "llvm/IR/CFG.h"
#include "llvm/IR/GetElementPtrTypeIterator.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/Module.h"

namespace consort::cpu {
namespace {

using llvm::BasicBlock;
using llvm::Instruction;
using llvm::Loop;
using llvm::Value;

constexpr uint64_t kAlignMax = uint64_t{1} << 32;
// Larger strides are of no use, and smaller ones cannot overflow over a group's lanes.
constexpr int64_t kStrideMax = int64_t{1} << 24;

// What differs between the lanes of a group, in ThreadContext.
constexpr struct {
  size_t begin;
  size_t bytes;
} kLaneFields[] = {
    {offsetof(ThreadContext, tid), sizeof(ThreadContext::tid)},
    {offsetof(ThreadContext, lane), sizeof(ThreadContext::lane)},
    {offsetof(ThreadContext, thread_index), sizeof(ThreadContext::thread_index)},
};

uint64_t AlignOf(uint64_t value) {
  return value == 0 ? kAlignMax : std::min(kAlignMax, value & (~value + 1));
}

Shape Bounded(int64_t stride, uint64_t align, bool maybe) {
  if (stride > kStrideMax || stride < -kStrideMax) return Shape::Varying();
  // The same for all lanes, or not: nothing is gained by asking.
  if (stride == 0 && maybe) return Shape::Varying();
  return {Shape::Kind::kStrided, maybe, stride, std::clamp<uint64_t>(align, 1, kAlignMax)};
}

Shape Sum(const Shape& a, const Shape& b, int64_t scale) {
  if (a.kind == Shape::Kind::kUnknown || b.kind == Shape::Kind::kUnknown) return {};
  if (a.kind == Shape::Kind::kVarying || b.kind == Shape::Kind::kVarying) return Shape::Varying();
  if (scale > kStrideMax || scale < -kStrideMax) {
    return b.IsUniform() ? Bounded(a.stride, 1, a.maybe) : Shape::Varying();
  }
  const uint64_t b_align = b.align * AlignOf(static_cast<uint64_t>(scale));
  return Bounded(a.stride + b.stride * scale, std::min(a.align, b_align), a.maybe || b.maybe);
}

// What a value is on two ways into a block.
Shape Merge(const Shape& a, const Shape& b) {
  if (a.kind == Shape::Kind::kUnknown) return b;
  if (b.kind == Shape::Kind::kUnknown) return a;
  if (a.kind == Shape::Kind::kVarying || b.kind == Shape::Kind::kVarying || a.stride != b.stride) {
    return Shape::Varying();
  }
  return Bounded(a.stride, std::min(a.align, b.align), a.maybe || b.maybe);
}

}  // namespace

int64_t ContextOffset(const llvm::LoadInst& load) {
  const llvm::DataLayout& layout = load.getModule()->getDataLayout();
  llvm::APInt offset(64, 0);
  const Value* base =
      load.getPointerOperand()->stripAndAccumulateConstantOffsets(layout, offset, true);
  return base == load.getFunction()->getArg(0) ? offset.getSExtValue() : -1;
}

bool ReadsLaneField(const llvm::LoadInst& load) {
  const int64_t offset = ContextOffset(load);
  if (offset < 0) return false;
  const auto begin = static_cast<size_t>(offset);
  const size_t end =
      begin + load.getModule()->getDataLayout().getTypeStoreSize(load.getType()).getFixedValue();
  return std::ranges::any_of(kLaneFields, [&](const auto& field) {
    return begin < field.begin + field.bytes && field.begin < end;
  });
}

void LoadLaneFieldsAsIntegers(llvm::Function& function) {
  for (Instruction& instruction : llvm::make_early_inc_range(llvm::instructions(function))) {
    auto* load = llvm::dyn_cast<llvm::LoadInst>(&instruction);
    if (load == nullptr || load->getType()->isIntegerTy() || !ReadsLaneField(*load) ||
        load->getType()->getPrimitiveSizeInBits() != 32) {
      continue;
    }
    llvm::IRBuilder<> ir(load);
    Value* word =
        ir.CreateAlignedLoad(ir.getInt32Ty(), load->getPointerOperand(), load->getAlign());
    load->replaceAllUsesWith(ir.CreateBitCast(word, load->getType()));
    load->eraseFromParent();
  }
}

LaneShapes::LaneShapes(llvm::Function& function, const LaneGroup& group)
    : function_(function),
      group_(group),
      layout_(function.getParent()->getDataLayout()),
      dominators_(function),
      post_dominators_(function),
      loops_(dominators_) {
  Solve();
}

Shape LaneShapes::Of(const Value* value) const {
  if (const auto* constant = llvm::dyn_cast<llvm::ConstantInt>(value)) {
    return Shape::Uniform(constant->getBitWidth() <= 64 ? AlignOf(constant->getZExtValue())
                                                        : uint64_t{1});
  }
  if (!llvm::isa<Instruction>(value)) return Shape::Uniform();
  const auto found = shapes_.find(value);
  return found == shapes_.end() ? Shape() : found->second;
}

void LaneShapes::Solve() {
  bool changed = true;
  while (changed) {
    changed = UpdateValues();
    // Control follows values and values follow control; both only get worse.
    changed |= UpdateControl();
  }
}

bool LaneShapes::UpdateValues() {
  bool changed = false;
  llvm::ReversePostOrderTraversal<llvm::Function*> order(&function_);
  for (BasicBlock* block : order) {
    for (Instruction& instruction : *block) {
      if (instruction.getType()->isVoidTy()) continue;
      Shape next = Transfer(instruction);
      Shape& known = shapes_[&instruction];
      if (known.kind != Shape::Kind::kUnknown && next.kind == Shape::Kind::kStrided) {
        // Down only, so that the search ends.
        if (known.kind == Shape::Kind::kVarying || known.stride != next.stride ||
            (known.maybe && !next.maybe)) {
          next = Shape::Varying();
        }
        next.align = std::min(next.align, known.align);
      }
      if (next == known || next.kind == Shape::Kind::kUnknown) continue;
      known = next;
      changed = true;
    }
  }
  return changed;
}

// A side of a branch from which the kernel is left without doing anything more.
bool LaneShapes::LeavesKernel(const BasicBlock* block) const {
  for (int steps = 0; steps < 8; ++steps) {
    for (const Instruction& instruction : *block) {
      if (llvm::isa<llvm::ReturnInst>(instruction)) return true;
      if (llvm::isa<llvm::UnreachableInst>(instruction)) return true;
      if (instruction.isTerminator()) break;
      if (!llvm::isa<llvm::PHINode>(instruction) && !llvm::isa<llvm::CallInst>(instruction)) {
        return false;
      }
      // A trap ends the launch and may be called on the way.
      if (llvm::isa<llvm::CallInst>(instruction) &&
          !llvm::isa<llvm::UnreachableInst>(block->getTerminator())) {
        return false;
      }
    }
    block = block->getSingleSuccessor();
    if (block == nullptr) return false;
  }
  return false;
}

int LaneShapes::ForwardPredecessors(const BasicBlock* block) const {
  const Loop* loop = loops_.getLoopFor(block);
  const bool is_header = loop != nullptr && loop->getHeader() == block;
  int count = 0;
  for (const BasicBlock* from : llvm::predecessors(block)) {
    if (!is_header || !loop->contains(from)) ++count;
  }
  return count;
}

bool LaneShapes::UpdateControl() {
  bool changed = false;
  // Everything from `from`'s sides up to where all of them meet.
  auto control = [&](const BasicBlock* from, llvm::DenseSet<const BasicBlock*>& into,
                     llvm::DenseSet<const BasicBlock*>* joins) {
    const auto* node = post_dominators_.getNode(from);
    const BasicBlock* meet =
        node != nullptr && node->getIDom() != nullptr ? node->getIDom()->getBlock() : nullptr;
    llvm::DenseSet<const BasicBlock*> seen;
    std::vector<const BasicBlock*> open = {from};
    while (!open.empty()) {
      const BasicBlock* at = open.back();
      open.pop_back();
      for (const BasicBlock* next : llvm::successors(at)) {
        const Loop* loop = loops_.getLoopFor(next);
        const bool is_back = loop != nullptr && loop->getHeader() == next && loop->contains(at);
        if (is_back || !seen.insert(next).second) continue;
        if (joins != nullptr && ForwardPredecessors(next) > 1) {
          changed |= joins->insert(next).second;
        }
        if (next == meet) continue;
        changed |= into.insert(next).second;
        open.push_back(next);
      }
    }
  };
  for (const BasicBlock& block : function_) {
    const auto* branch = llvm::dyn_cast<llvm::BranchInst>(block.getTerminator());
    if (branch == nullptr || !branch->isConditional()) continue;
    const Shape condition = Of(branch->getCondition());
    if (condition.kind == Shape::Kind::kUnknown || condition.IsUniform()) continue;
    changed |= divergent_.insert(&block).second;
    control(&block, controlled_, &joins_);
    if (LeavesKernel(branch->getSuccessor(0)) || LeavesKernel(branch->getSuccessor(1))) continue;
    control(&block, apart_, nullptr);
  }
  for (const Loop* loop : loops_.getLoopsInPreorder()) {
    llvm::SmallVector<BasicBlock*, 8> exiting;
    loop->getExitingBlocks(exiting);
    for (const BasicBlock* block : exiting) {
      // A part of the lanes leaves, by its own choice or because only a part is here.
      auto parts = [&](const llvm::DenseSet<const BasicBlock*>& controlled,
                       const llvm::DenseSet<const Loop*>& loops) {
        if (controlled.contains(block) && !controlled.contains(loop->getHeader())) return true;
        for (const Loop* inner = loops_.getLoopFor(block); inner != loop;
             inner = inner->getParentLoop()) {
          if (loops.contains(inner)) return true;
        }
        // Controlled from outside the loop, and perhaps from inside as well.
        if (!controlled.contains(block)) return false;
        for (const BasicBlock* from : loop->blocks()) {
          if (divergent_.contains(from)) return true;
        }
        return false;
      };
      const bool chooses = divergent_.contains(block);
      if (chooses || parts(controlled_, divergent_loops_)) {
        changed |= divergent_loops_.insert(loop).second;
      }
      const auto* branch = llvm::cast<llvm::BranchInst>(block->getTerminator());
      bool leaves = false;
      for (const BasicBlock* next : branch->successors()) leaves |= LeavesKernel(next);
      if ((chooses && !leaves) || parts(apart_, apart_loops_)) {
        changed |= apart_loops_.insert(loop).second;
      }
    }
    if (!divergent_loops_.contains(loop)) continue;
    llvm::SmallVector<BasicBlock*, 8> exits;
    loop->getExitBlocks(exits);
    for (const BasicBlock* exit : exits) changed |= joins_.insert(exit).second;
  }
  return changed;
}

bool LaneShapes::IsTogether(const BasicBlock* block) const {
  if (apart_.contains(block)) return false;
  for (const Loop* loop = loops_.getLoopFor(block); loop != nullptr; loop = loop->getParentLoop()) {
    if (apart_loops_.contains(loop)) return false;
  }
  return true;
}

Shape LaneShapes::Transfer(const Instruction& instruction) const {
  if (const auto* phi = llvm::dyn_cast<llvm::PHINode>(&instruction)) {
    if (joins_.contains(phi->getParent())) return Shape::Varying();
    Shape shape;
    for (const Value* value : phi->incoming_values()) shape = Merge(shape, Of(value));
    return shape;
  }
  if (const auto* load = llvm::dyn_cast<llvm::LoadInst>(&instruction)) return OfLoad(*load);
  if (const auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction)) return OfCall(*call);
  if (const auto* slot = llvm::dyn_cast<llvm::AllocaInst>(&instruction)) {
    const uint64_t bytes = slot->getAllocationSize(layout_).value().getFixedValue();
    const uint64_t align = slot->getAlign().value();
    return Bounded(static_cast<int64_t>((bytes + align - 1) / align * align), align, false);
  }
  if (instruction.isAtomic()) return Shape::Varying();
  if (const auto* operation = llvm::dyn_cast<llvm::BinaryOperator>(&instruction)) {
    return OfBinary(*operation);
  }
  if (const auto* compare = llvm::dyn_cast<llvm::CmpInst>(&instruction)) return OfCompare(*compare);
  if (const auto* address = llvm::dyn_cast<llvm::GetElementPtrInst>(&instruction)) {
    return OfAddress(*address);
  }
  if (const auto* cast = llvm::dyn_cast<llvm::CastInst>(&instruction)) {
    const Shape from = Of(cast->getOperand(0));
    switch (cast->getOpcode()) {
      case Instruction::SExt:
      case Instruction::ZExt:
        return Extend(*cast);
      case Instruction::Trunc:
        // The doubt is about the high bits; what is cut holds either way, but not what is left.
        return from.maybe ? Shape::Varying() : from;
      case Instruction::IntToPtr:
      case Instruction::PtrToInt:
        return cast->getSrcTy()->getScalarSizeInBits() == 64 ||
                       cast->getDestTy()->getScalarSizeInBits() == 64
                   ? from
                   : Shape::Varying();
      default:
        break;
    }
  }
  if (const auto* select = llvm::dyn_cast<llvm::SelectInst>(&instruction)) {
    if (Of(select->getCondition()).kind == Shape::Kind::kUnknown) return {};
    if (Of(select->getCondition()).IsUniform()) {
      return Merge(Of(select->getTrueValue()), Of(select->getFalseValue()));
    }
    return Shape::Varying();
  }
  bool unknown = false;
  for (const Value* operand : instruction.operands()) {
    const Shape shape = Of(operand);
    unknown |= shape.kind == Shape::Kind::kUnknown;
    if (shape.kind != Shape::Kind::kUnknown && !shape.IsUniform()) return Shape::Varying();
  }
  return unknown ? Shape() : Shape::Uniform();
}

Shape LaneShapes::OfLoad(const llvm::LoadInst& load) const {
  const int64_t offset = ContextOffset(load);
  auto is = [&](size_t field, size_t index = 0) {
    return offset == static_cast<int64_t>(field + index * sizeof(uint32_t));
  };
  const uint64_t lanes = group_.lanes;
  if (is(offsetof(ThreadContext, tid))) {
    return group_.rows ? Shape::Strided(1, lanes) : Shape::Varying();
  }
  if (is(offsetof(ThreadContext, tid), 1) || is(offsetof(ThreadContext, tid), 2)) {
    if (group_.flat) return Shape::Uniform(kAlignMax);  // zero
    return group_.rows ? Shape::Uniform() : Shape::Varying();
  }
  if (is(offsetof(ThreadContext, lane)) || is(offsetof(ThreadContext, thread_index))) {
    return Shape::Strided(1, lanes);
  }
  if (is(offsetof(ThreadContext, ntid)) && group_.rows && !group_.flat) {
    return Shape::Uniform(lanes);
  }
  const Shape pointer = Of(load.getPointerOperand());
  if (pointer.kind == Shape::Kind::kUnknown) return {};
  return pointer.IsUniform() ? Shape::Uniform() : Shape::Varying();
}

Shape LaneShapes::OfCall(const llvm::CallInst& call) const {
  const llvm::Function* callee = call.getCalledFunction();
  if (callee == nullptr) return Shape::Varying();
  const llvm::StringRef name = callee->getName();
  if (name == "consort_rt_clock" || name == "consort_rt_global_timer" ||
      name == "consort_rt_active_mask" || name == "consort_rt_barrier_reduce") {
    return Shape::Uniform();
  }
  bool uniform = true;
  bool unknown = false;
  for (const Value* argument : call.args()) {
    const Shape shape = Of(argument);
    unknown |= shape.kind == Shape::Kind::kUnknown;
    uniform &= shape.IsUniform();
  }
  if (unknown) return {};
  if (name == "consort_rt_vote") {
    return Of(call.getArgOperand(3)).IsUniform() ? Shape::Uniform() : Shape::Varying();
  }
  if (!uniform || !call.doesNotAccessMemory()) return Shape::Varying();
  return Shape::Uniform();
}

Shape LaneShapes::OfBinary(const llvm::BinaryOperator& operation) const {
  const Shape a = Of(operation.getOperand(0));
  const Shape b = Of(operation.getOperand(1));
  if (a.kind == Shape::Kind::kUnknown || b.kind == Shape::Kind::kUnknown) return {};
  const bool uniform = a.IsUniform() && b.IsUniform();
  if (!operation.getType()->isIntegerTy() || operation.getType()->getIntegerBitWidth() > 64) {
    return uniform ? Shape::Uniform() : Shape::Varying();
  }
  const auto* constant = llvm::dyn_cast<llvm::ConstantInt>(operation.getOperand(1));
  switch (operation.getOpcode()) {
    case Instruction::Add:
      return Sum(a, b, 1);
    case Instruction::Sub:
      return Sum(a, b, -1);
    case Instruction::Mul:
      if (uniform) return Shape::Uniform(std::min(kAlignMax, a.align * b.align));
      if (constant == nullptr) return Shape::Varying();
      return Sum(Shape::Uniform(kAlignMax), a, constant->getSExtValue());
    case Instruction::Shl:
      if (constant == nullptr || constant->getValue().uge(24)) break;
      return Sum(Shape::Uniform(kAlignMax), a, int64_t{1} << constant->getZExtValue());
    case Instruction::Or:
      if (llvm::cast<llvm::PossiblyDisjointInst>(operation).isDisjoint()) return Sum(a, b, 1);
      break;
    case Instruction::LShr:
    case Instruction::AShr:
      // Lanes that count up by one from a multiple of 2^n share what is above the low n bits.
      if (constant != nullptr && a.IsScalar() && a.stride == 1 && a.align >= group_.lanes &&
          constant->getValue().ult(operation.getType()->getIntegerBitWidth()) &&
          constant->getZExtValue() >= static_cast<uint64_t>(std::countr_zero(group_.lanes))) {
        return Shape::Uniform();
      }
      break;
    case Instruction::And:
      if (constant != nullptr && a.IsScalar() && a.stride == 1 && a.align >= group_.lanes) {
        const uint64_t mask = constant->getZExtValue();
        if ((mask & (group_.lanes - 1)) == group_.lanes - 1) {
          return Shape::Strided(1, std::min<uint64_t>(a.align, group_.lanes));
        }
        if ((mask & (group_.lanes - 1)) == 0) return Shape::Uniform();
      }
      if (uniform) return Shape::Uniform(std::max(a.align, b.align));
      break;
    default:
      break;
  }
  return uniform ? Shape::Uniform() : Shape::Varying();
}

Shape LaneShapes::OfCompare(const llvm::CmpInst& compare) const {
  const Shape a = Of(compare.getOperand(0));
  const Shape b = Of(compare.getOperand(1));
  if (a.kind == Shape::Kind::kUnknown || b.kind == Shape::Kind::kUnknown) return {};
  if (a.IsUniform() && b.IsUniform()) return Shape::Uniform();
  // Lanes that count up from a multiple of their number are all on one side of such a multiple.
  const auto* constant = llvm::dyn_cast<llvm::ConstantInt>(compare.getOperand(1));
  if (constant == nullptr || !a.IsScalar() || a.stride != 1 || a.align < group_.lanes) {
    return Shape::Varying();
  }
  const uint64_t value = constant->getZExtValue();
  switch (compare.getPredicate()) {
    case llvm::CmpInst::ICMP_ULT:
    case llvm::CmpInst::ICMP_SLT:
    case llvm::CmpInst::ICMP_UGE:
    case llvm::CmpInst::ICMP_SGE:
      return value % group_.lanes == 0 ? Shape::Uniform() : Shape::Varying();
    case llvm::CmpInst::ICMP_UGT:
    case llvm::CmpInst::ICMP_SGT:
    case llvm::CmpInst::ICMP_ULE:
    case llvm::CmpInst::ICMP_SLE:
      return (value + 1) % group_.lanes == 0 ? Shape::Uniform() : Shape::Varying();
    default:
      return Shape::Varying();
  }
}

Shape LaneShapes::OfAddress(const llvm::GetElementPtrInst& address) const {
  Shape shape = Of(address.getPointerOperand());
  for (auto at = llvm::gep_type_begin(address); at != llvm::gep_type_end(address); ++at) {
    Shape index = Of(at.getOperand());
    if (at.isStruct()) {
      if (index.kind == Shape::Kind::kUnknown) return {};
      continue;
    }
    // Indices are sign-extended to the width of pointers.
    if (at.getOperand()->getType()->getScalarSizeInBits() != 64 && !index.IsUniform() &&
        index.kind == Shape::Kind::kStrided) {
      index = Shape::Varying();
    }
    shape = Sum(shape, index,
                static_cast<int64_t>(at.getSequentialElementStride(layout_).getFixedValue()));
  }
  return shape;
}

Shape LaneShapes::Extend(const llvm::CastInst& cast) const {
  Shape shape = Of(cast.getOperand(0));
  if (shape.kind != Shape::Kind::kStrided || shape.IsUniform()) return shape;
  if (shape.maybe || cast.getSrcTy()->getScalarSizeInBits() < 32) return Shape::Varying();
  // With a clear sign bit in each lane, neighbours differ by exactly the stride.
  shape.maybe =
      !llvm::computeKnownBits(cast.getOperand(0), layout_, 0, nullptr, &cast, &dominators_)
           .isNonNegative();
  return shape;
}

}  // namespace consort::cpu
