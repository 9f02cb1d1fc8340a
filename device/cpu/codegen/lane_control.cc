// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/lane_emitter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "llvm/ADT/DenseSet.h"
#include "llvm/IR/CFG.h"

namespace consort::cpu {
namespace {

using llvm::BasicBlock;
using llvm::Instruction;
using llvm::Loop;
using llvm::Value;

}  // namespace

// The loop directly in `region` (null: the function) that `block` is in; null: none.
Loop* LaneEmitter::ChildLoop(Loop* region, const BasicBlock* block) const {
  Loop* loop = shapes_.loops().getLoopFor(block);
  if (loop == region) return nullptr;
  while (loop->getParentLoop() != region) loop = loop->getParentLoop();
  return loop;
}

// The blocks directly in `region` and the headers of the loops in it, each after all that lead to
// it.
std::vector<BasicBlock*> LaneEmitter::Order(Loop* region) const {
  BasicBlock* first = region != nullptr ? region->getHeader() : &scalar_.getEntryBlock();
  auto successors = [&](BasicBlock* node) {
    std::vector<BasicBlock*> found;
    auto add = [&](BasicBlock* to) {
      if (to == first || (region != nullptr && !region->contains(to))) return;
      Loop* child = ChildLoop(region, to);
      found.push_back(child != nullptr ? child->getHeader() : to);
    };
    Loop* loop = ChildLoop(region, node);
    if (loop == nullptr) {
      for (BasicBlock* to : llvm::successors(node)) add(to);
    } else {
      llvm::SmallVector<BasicBlock*, 8> exits;
      loop->getExitBlocks(exits);
      for (BasicBlock* to : exits) add(to);
    }
    std::reverse(found.begin(), found.end());
    return found;
  };
  std::vector<BasicBlock*> order;
  llvm::DenseSet<BasicBlock*> seen = {first};
  struct Open {
    BasicBlock* node;
    std::vector<BasicBlock*> rest;
  };
  std::vector<Open> open;
  open.push_back({first, successors(first)});
  while (!open.empty()) {
    if (open.back().rest.empty()) {
      order.push_back(open.back().node);
      open.pop_back();
      continue;
    }
    BasicBlock* next = open.back().rest.back();
    open.back().rest.pop_back();
    if (seen.insert(next).second) open.push_back({next, successors(next)});
  }
  std::reverse(order.begin(), order.end());
  return order;
}

void LaneEmitter::EmitRegion(Loop* region) {
  const std::vector<BasicBlock*> order = Order(region);
  for (BasicBlock* node : order) {
    if (node == order.front()) continue;
    const Activation& activation = ActivationOf(node);
    llvm::AllocaInst* slot = activation.mask != nullptr ? activation.mask : activation.reached;
    ir_.CreateStore(llvm::Constant::getNullValue(slot->getAllocatedType()), slot);
  }
  for (BasicBlock* node : order) {
    Loop* loop = ChildLoop(region, node);
    BasicBlock* after = nullptr;
    if (node != order.front() && !(loop == nullptr && IsCheap(node))) {
      const Activation& activation = ActivationOf(node);
      Value* needed =
          activation.mask != nullptr
              ? Any(ir_.CreateLoad(activation.mask->getAllocatedType(), activation.mask))
              : ir_.CreateLoad(ir_.getInt1Ty(), activation.reached);
      BasicBlock* body = NewBlock();
      after = NewBlock();
      ir_.CreateCondBr(needed, body, after);
      ir_.SetInsertPoint(body);
    }
    if (loop != nullptr) {
      EmitLoop(loop);
    } else {
      EmitBlock(node);
    }
    if (after != nullptr) {
      ir_.CreateBr(after);
      ir_.SetInsertPoint(after);
    }
  }
}

void LaneEmitter::EmitLoop(Loop* loop) {
  llvm::AllocaInst*& again = again_[loop];
  again = EntrySlot(ir_.getInt1Ty());
  llvm::AllocaInst* const slot = again;
  BasicBlock* turn = NewBlock();
  BasicBlock* done = NewBlock();
  ir_.CreateBr(turn);
  ir_.SetInsertPoint(turn);
  ir_.CreateStore(ir_.getFalse(), slot);
  EmitRegion(loop);
  ir_.CreateCondBr(ir_.CreateLoad(ir_.getInt1Ty(), slot), turn, done);
  ir_.SetInsertPoint(done);
}

// A block that does no harm and costs little with no lane.
bool LaneEmitter::IsCheap(const BasicBlock* block) const {
  constexpr size_t kInstructionsMax = 10;
  if (!HoldsMask(block) || block->size() > kInstructionsMax) return false;
  const auto* branch = llvm::dyn_cast<llvm::BranchInst>(block->getTerminator());
  if (branch == nullptr || branch->isConditional()) return false;
  // Values of the next block must stay as they are with no lane: a join selects by the mask.
  const BasicBlock* to = branch->getSuccessor(0);
  const Loop* loop = shapes_.loops().getLoopFor(to);
  if (loop != nullptr && loop->getHeader() == to) return false;
  for (const llvm::PHINode& phi : to->phis()) {
    if (IsScalar(&phi) || IsDoubtful(&phi) || !shapes_.IsJoin(to)) return false;
  }
  for (const Instruction& instruction : *block) {
    if (instruction.mayReadOrWriteMemory()) return false;
    const unsigned opcode = instruction.getOpcode();
    if (opcode == Instruction::UDiv || opcode == Instruction::SDiv || opcode == Instruction::URem ||
        opcode == Instruction::SRem) {
      return false;
    }
  }
  return true;
}

// Lanes of `mask` go from one block to another.
void LaneEmitter::EmitEdge(BasicBlock* from, BasicBlock* to, Value* mask) {
  const Loop* loop = shapes_.loops().getLoopFor(to);
  const bool is_back = loop != nullptr && loop->getHeader() == to && loop->contains(from);
  std::vector<std::pair<Value*, llvm::AllocaInst*>> copies;
  for (llvm::PHINode& phi : to->phis()) {
    Value* incoming = phi.getIncomingValueForBlock(from);
    if (llvm::isa<llvm::UndefValue>(incoming)) continue;
    llvm::AllocaInst* slot = SlotOf(phi);
    if (IsDoubtful(&phi)) {
      // Never where sides of a divergent branch meet.
      const Doubt doubt = DoubtOf(incoming);
      const DoubtSlots slots = DoubtSlotsOf(&phi);
      copies.emplace_back(Scalar(incoming), slot);
      copies.emplace_back(doubt.beyond, slots.beyond);
      copies.emplace_back(doubt.strided, slots.strided);
      continue;
    }
    Value* value = IsScalar(&phi) ? Scalar(incoming) : Vector(incoming);
    if (!IsScalar(&phi) && shapes_.IsJoin(to) && !is_back && !IsAllOnes(mask)) {
      value = ir_.CreateSelect(Widen(mask, Elements(phi.getType())), value,
                               ir_.CreateLoad(slot->getAllocatedType(), slot));
    }
    copies.emplace_back(value, slot);
  }
  for (const auto& [value, slot] : copies) ir_.CreateStore(value, slot);
  if (is_back) {
    if (HoldsMask(to) && shapes_.Diverges(loop)) {
      ir_.CreateStore(mask, ActivationOf(to).mask);
      ir_.CreateStore(Any(mask), again_[loop]);
    } else {
      ir_.CreateStore(ir_.getTrue(), again_[loop]);
    }
    return;
  }
  const Activation& activation = ActivationOf(to);
  if (activation.mask != nullptr) {
    Value* before = ir_.CreateLoad(activation.mask->getAllocatedType(), activation.mask);
    ir_.CreateStore(ir_.CreateOr(before, mask), activation.mask);
  } else {
    // A cheap block is passed through even where no lane got to it.
    Value* reached =
        IsCheap(from) ? ir_.CreateOr(ir_.CreateLoad(ir_.getInt1Ty(), activation.reached), Any(mask))
                      : ir_.getTrue();
    ir_.CreateStore(reached, activation.reached);
  }
}

void LaneEmitter::EmitBlock(BasicBlock* block) {
  local_.clear();
  local_doubts_.clear();
  block_ = block;
  for (Instruction& instruction : *block) {
    if (!llvm::isa<llvm::PHINode>(instruction) && !instruction.isTerminator()) {
      EmitInstruction(instruction);
    }
  }
  Instruction* end = block->getTerminator();
  if (llvm::isa<llvm::UnreachableInst>(end)) {
    ir_.CreateUnreachable();
    ir_.SetInsertPoint(NewBlock());
    return;
  }
  auto* branch = llvm::dyn_cast<llvm::BranchInst>(end);
  if (branch == nullptr) return;  // return
  if (!branch->isConditional()) {
    EmitEdge(block, branch->getSuccessor(0), MaskOf(block));
    return;
  }
  Value* condition = branch->getCondition();
  if (!shapes_.Diverges(block)) {
    BasicBlock* sides[2] = {NewBlock(), NewBlock()};
    BasicBlock* after = NewBlock();
    ir_.CreateCondBr(Scalar(condition), sides[0], sides[1]);
    for (unsigned i = 0; i < 2; ++i) {
      ir_.SetInsertPoint(sides[i]);
      EmitEdge(block, branch->getSuccessor(i), MaskOf(block));
      ir_.CreateBr(after);
    }
    ir_.SetInsertPoint(after);
    return;
  }
  Value* mask = MaskOf(block);
  Value* taken = Vector(condition);
  EmitEdge(block, branch->getSuccessor(0), And(mask, taken));
  EmitEdge(block, branch->getSuccessor(1), And(mask, Not(taken)));
}

}  // namespace consort::cpu
