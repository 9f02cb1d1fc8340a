// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/lane_vectoriser.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "device/cpu/codegen/coroutine.h"
#include "device/cpu/engine/runtime.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Analysis/VectorUtils.h"
#include "llvm/IR/CFG.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/IntrinsicInst.h"

namespace consort::cpu {
namespace {

using llvm::BasicBlock;
using llvm::Instruction;
using llvm::Loop;
using llvm::StringRef;
using llvm::Value;

// What a call does when a group makes it.
enum class CallKind {
  kUnknown,
  kIntrinsic,   // of LLVM, elementwise
  kNothing,     // an order of memory that lanes in step have anyway
  kOnce,        // once for the group
  kEachLane,    // lane by lane
  kBarrier,     // waits for the other groups
  kBarrierRed,  // the same with a reduction
  kVote,
  kCollective,  // of a warp, through arrays in memory
  kActiveMask,
};

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
             "consort_rt_matrix", CallKind::kCollective)
      .Case("consort_rt_active_mask", CallKind::kActiveMask)
      .Cases("consort_rt_exit", "consort_rt_yield", "consort_rt_frame", "consort_rt_done",
             CallKind::kUnknown)
      .Default(callee->isDeclaration() && !callee->isVarArg() ? CallKind::kEachLane
                                                              : CallKind::kUnknown);
}

// All lanes must be here together.
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

bool IsSimpleType(const llvm::Type* type) {
  if (const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(type)) {
    return IsSimpleType(vector->getElementType()) && !vector->getElementType()->isPointerTy();
  }
  return type->isIntegerTy() || type->isHalfTy() || type->isBFloatTy() || type->isFloatTy() ||
         type->isDoubleTy() || type->isPointerTy();
}

class LaneVectoriser {
 public:
  LaneVectoriser(llvm::Function& scalar, llvm::Function& out, const LaneGroup& group,
                 ThreadsMode mode)
      : scalar_(scalar),
        out_(out),
        group_(group),
        lanes_(group.lanes),
        mode_(mode),
        layout_(scalar.getParent()->getDataLayout()),
        shapes_(scalar, group),
        ir_(scalar.getContext()) {}

  // Empty if Run can do it.
  std::string Refusal() const;
  void Run();

 private:
  // Which lanes want to enter a block, or whether any do.
  struct Activation {
    llvm::AllocaInst* mask = nullptr;     // of lanes
    llvm::AllocaInst* reached = nullptr;  // where all lanes of the region go or none
  };

  // --- Values ---
  bool IsScalar(const Value* value) const { return shapes_.Of(value).IsScalar(); }
  llvm::Type* VectorType(llvm::Type* type) const;
  uint32_t Elements(const llvm::Type* type) const;
  Value* Scalar(Value* value);
  Value* Vector(Value* value);
  Value* Spread(Value* base, int64_t stride);
  Value* Splat(Value* scalar);
  void Define(Instruction& instruction, Value* value);
  llvm::AllocaInst* SlotOf(Instruction& instruction);
  llvm::AllocaInst* EntrySlot(llvm::Type* type);
  bool LeavesBlock(const Instruction& instruction) const;
  Value* Iota(uint32_t bits);

  // --- Masks ---
  Value* AllLanes() const;
  Value* And(Value* a, Value* b);
  Value* Not(Value* a);
  Value* Any(Value* mask);
  Value* Bits(Value* mask);
  Value* Widen(Value* mask, uint32_t elements);
  const BasicBlock* MaskHolder(const BasicBlock* block) const;
  bool HoldsMask(const BasicBlock* block) const;
  Value* MaskOf(const BasicBlock* block);
  Activation& ActivationOf(const BasicBlock* block);

  // --- Control ---
  std::vector<BasicBlock*> Order(Loop* loop) const;
  Loop* ChildLoop(Loop* region, const BasicBlock* block) const;
  void EmitRegion(Loop* loop);
  void EmitLoop(Loop* loop);
  void EmitBlock(BasicBlock* block);
  void EmitEdge(BasicBlock* from, BasicBlock* to, Value* mask);
  bool IsCheap(const BasicBlock* block) const;
  BasicBlock* NewBlock() { return BasicBlock::Create(ir_.getContext(), "", &out_); }

  // --- Instructions ---
  void EmitPrologue();
  void EmitInstruction(Instruction& instruction);
  void EmitScalar(Instruction& instruction);
  Value* EmitVector(Instruction& instruction);
  Value* EmitLoad(llvm::LoadInst& load);
  void EmitStore(llvm::StoreInst& store);
  Value* LoadFrom(llvm::LoadInst& load, Value* base);
  Value* Gather(llvm::LoadInst& load);
  Value* GatherSmall(llvm::Type* element, Value* pointers, Value* mask);
  void StoreTo(llvm::StoreInst& store, Value* base);
  void Scatter(llvm::StoreInst& store);
  void ScatterUnder(llvm::StoreInst& store, Value* mask);
  Value* IsContiguous(Value* pointer, uint64_t bytes);
  Value* LastActive(Value* vector, Value* mask);
  void ForEachLane(Value* mask, const std::function<void(Value*)>& body);
  Value* EachLane(Instruction& instruction);
  void EmitCall(llvm::CallInst& call);
  Value* EmitVote(llvm::CallInst& call);
  Value* EmitCollective(llvm::CallInst& call);
  void EmitMatrix(llvm::CallInst& call);
  Value* Spill(Value* vector, llvm::Type* element);
  // Memory until the next call of ReleaseScratch, so that a thousand atomics share one place.
  llvm::AllocaInst* Scratch(llvm::Type* type);
  void ReleaseScratch() { scratch_used_.clear(); }
  Value* ContextField(size_t offset, uint32_t bits);
  llvm::CallInst* CallRuntime(StringRef name, llvm::Type* result,
                              const std::vector<Value*>& arguments);

  llvm::Function& scalar_;
  llvm::Function& out_;
  const LaneGroup group_;
  const uint32_t lanes_;
  const ThreadsMode mode_;
  const llvm::DataLayout& layout_;
  LaneShapes shapes_;
  llvm::IRBuilder<> ir_;
  BasicBlock* entry_ = nullptr;
  Instruction* entry_end_ = nullptr;
  CoroutineBlocks coroutine_;
  Value* entry_mask_ = nullptr;
  Value* tid_[3] = {};                          // vectors, where lanes differ in more than x
  llvm::DenseMap<const Value*, Value*> local_;  // of the block being made
  llvm::DenseMap<const Value*, llvm::AllocaInst*> slots_;
  llvm::DenseMap<const BasicBlock*, Activation> activations_;
  llvm::DenseMap<const Loop*, llvm::AllocaInst*> again_;
  llvm::DenseMap<llvm::Type*, std::vector<llvm::AllocaInst*>> scratch_;
  llvm::DenseMap<llvm::Type*, size_t> scratch_used_;
  BasicBlock* block_ = nullptr;
};

// --- What can be done ---

std::string LaneVectoriser::Refusal() const {
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
      switch (instruction.getOpcode()) {
        case Instruction::Ret:
        case Instruction::Br:
        case Instruction::Unreachable:
        case Instruction::Fence:
        case Instruction::Alloca:
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
          if (name == "consort_rt_matrix" && !shapes_.Of(call.getArgOperand(2)).IsScalar()) {
            return "a matrix";
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

// --- Values ---

uint32_t LaneVectoriser::Elements(const llvm::Type* type) const {
  const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(type);
  return vector != nullptr ? vector->getNumElements() : 1;
}

// Of a vector type, the lanes' vectors one after the other.
llvm::Type* LaneVectoriser::VectorType(llvm::Type* type) const {
  return llvm::FixedVectorType::get(type->getScalarType(), lanes_ * Elements(type));
}

llvm::AllocaInst* LaneVectoriser::EntrySlot(llvm::Type* type) {
  return llvm::IRBuilder<>(entry_end_).CreateAlloca(type);
}

bool LaneVectoriser::LeavesBlock(const Instruction& instruction) const {
  if (llvm::isa<llvm::PHINode>(instruction)) return true;
  for (const llvm::User* user : instruction.users()) {
    const auto* by = llvm::cast<Instruction>(user);
    if (by->getParent() != instruction.getParent() || llvm::isa<llvm::PHINode>(by)) return true;
  }
  return false;
}

llvm::AllocaInst* LaneVectoriser::SlotOf(Instruction& instruction) {
  llvm::AllocaInst*& slot = slots_[&instruction];
  if (slot == nullptr) {
    llvm::Type* type = instruction.getType();
    slot = EntrySlot(IsScalar(&instruction) ? type : VectorType(type));
  }
  return slot;
}

void LaneVectoriser::Define(Instruction& instruction, Value* value) {
  local_[&instruction] = value;
  if (LeavesBlock(instruction)) ir_.CreateStore(value, SlotOf(instruction));
}

Value* LaneVectoriser::Iota(uint32_t bits) {
  std::vector<llvm::Constant*> numbers;
  for (uint32_t i = 0; i < lanes_; ++i) {
    numbers.push_back(llvm::ConstantInt::get(ir_.getIntNTy(bits), i));
  }
  return llvm::ConstantVector::get(numbers);
}

Value* LaneVectoriser::Splat(Value* scalar) {
  const uint32_t elements = Elements(scalar->getType());
  if (elements == 1) return ir_.CreateVectorSplat(lanes_, scalar);
  std::vector<int> from;
  for (uint32_t i = 0; i < lanes_ * elements; ++i) from.push_back(static_cast<int>(i % elements));
  return ir_.CreateShuffleVector(scalar, from);
}

Value* LaneVectoriser::Spread(Value* base, int64_t stride) {
  Value* all = Splat(base);
  if (stride == 0) return all;
  llvm::Type* type = base->getType();
  const uint32_t bits = type->isPointerTy() ? 64 : type->getIntegerBitWidth();
  std::vector<llvm::Constant*> numbers;
  for (uint32_t i = 0; i < lanes_; ++i) {
    numbers.push_back(ir_.getInt(
        llvm::APInt(64, static_cast<uint64_t>(stride * int64_t{i}), true).sextOrTrunc(bits)));
  }
  Value* offsets = llvm::ConstantVector::get(numbers);
  if (type->isPointerTy()) return ir_.CreateGEP(ir_.getInt8Ty(), all, offsets);
  return ir_.CreateAdd(all, offsets);
}

// Of a value that is scalar by its shape: the base.
Value* LaneVectoriser::Scalar(Value* value) {
  if (auto* argument = llvm::dyn_cast<llvm::Argument>(value)) {
    return out_.getArg(argument->getArgNo());
  }
  auto* instruction = llvm::dyn_cast<Instruction>(value);
  if (instruction == nullptr) return value;
  if (Value* local = local_.lookup(value)) return local;
  llvm::AllocaInst* slot = SlotOf(*instruction);
  return ir_.CreateLoad(slot->getAllocatedType(), slot);
}

Value* LaneVectoriser::Vector(Value* value) {
  const Shape shape = shapes_.Of(value);
  if (shape.IsScalar()) return Spread(Scalar(value), shape.stride);
  return Scalar(value);
}

// --- Masks ---

Value* LaneVectoriser::AllLanes() const {
  return llvm::Constant::getAllOnesValue(
      llvm::FixedVectorType::get(llvm::Type::getInt1Ty(scalar_.getContext()), lanes_));
}

bool IsAllOnes(const Value* mask) {
  const auto* constant = llvm::dyn_cast<llvm::Constant>(mask);
  return constant != nullptr && constant->isAllOnesValue();
}

Value* LaneVectoriser::And(Value* a, Value* b) {
  if (IsAllOnes(a)) return b;
  if (IsAllOnes(b)) return a;
  return ir_.CreateAnd(a, b);
}

Value* LaneVectoriser::Not(Value* a) { return ir_.CreateNot(a); }

Value* LaneVectoriser::Bits(Value* mask) { return ir_.CreateBitCast(mask, ir_.getIntNTy(lanes_)); }

Value* LaneVectoriser::Any(Value* mask) {
  if (IsAllOnes(mask)) return ir_.getTrue();
  return ir_.CreateICmpNE(Bits(mask), llvm::ConstantInt::get(ir_.getIntNTy(lanes_), 0));
}

// For vectors of several elements a lane.
Value* LaneVectoriser::Widen(Value* mask, uint32_t elements) {
  if (elements == 1) return mask;
  std::vector<int> from;
  for (uint32_t i = 0; i < lanes_ * elements; ++i) from.push_back(static_cast<int>(i / elements));
  return ir_.CreateShuffleVector(mask, from);
}

bool LaneVectoriser::HoldsMask(const BasicBlock* block) const {
  if (shapes_.IsControlled(block)) return true;
  const Loop* loop = shapes_.loops().getLoopFor(block);
  return loop != nullptr && loop->getHeader() == block && shapes_.Diverges(loop);
}

// The block whose mask `block` has; null: that of the group.
const BasicBlock* LaneVectoriser::MaskHolder(const BasicBlock* block) const {
  while (!HoldsMask(block)) {
    const Loop* loop = shapes_.loops().getLoopFor(block);
    if (loop != nullptr && loop->getHeader() == block) loop = loop->getParentLoop();
    if (loop == nullptr) return nullptr;
    block = loop->getHeader();
  }
  return block;
}

Value* LaneVectoriser::MaskOf(const BasicBlock* block) {
  const BasicBlock* holder = MaskHolder(block);
  if (holder == nullptr) return entry_mask_;
  llvm::AllocaInst* slot = ActivationOf(holder).mask;
  return ir_.CreateLoad(slot->getAllocatedType(), slot);
}

LaneVectoriser::Activation& LaneVectoriser::ActivationOf(const BasicBlock* block) {
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

// --- Control ---

// The loop directly in `region` (null: the function) that `block` is in; null: none.
Loop* LaneVectoriser::ChildLoop(Loop* region, const BasicBlock* block) const {
  Loop* loop = shapes_.loops().getLoopFor(block);
  if (loop == region) return nullptr;
  while (loop->getParentLoop() != region) loop = loop->getParentLoop();
  return loop;
}

// The blocks directly in `region` and the headers of the loops in it, each after all that lead to
// it.
std::vector<BasicBlock*> LaneVectoriser::Order(Loop* region) const {
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

void LaneVectoriser::EmitRegion(Loop* region) {
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

void LaneVectoriser::EmitLoop(Loop* loop) {
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
bool LaneVectoriser::IsCheap(const BasicBlock* block) const {
  constexpr size_t kInstructionsMax = 10;
  if (!HoldsMask(block) || block->size() > kInstructionsMax) return false;
  const auto* branch = llvm::dyn_cast<llvm::BranchInst>(block->getTerminator());
  if (branch == nullptr || branch->isConditional()) return false;
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
void LaneVectoriser::EmitEdge(BasicBlock* from, BasicBlock* to, Value* mask) {
  const Loop* loop = shapes_.loops().getLoopFor(to);
  const bool is_back = loop != nullptr && loop->getHeader() == to && loop->contains(from);
  std::vector<std::pair<Value*, llvm::AllocaInst*>> copies;
  for (llvm::PHINode& phi : to->phis()) {
    Value* incoming = phi.getIncomingValueForBlock(from);
    if (llvm::isa<llvm::UndefValue>(incoming)) continue;
    llvm::AllocaInst* slot = SlotOf(phi);
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
    ir_.CreateStore(ir_.getTrue(), activation.reached);
  }
}

void LaneVectoriser::EmitBlock(BasicBlock* block) {
  local_.clear();
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

// --- Instructions ---

Value* LaneVectoriser::ContextField(size_t offset, uint32_t bits) {
  Value* pointer = ir_.CreateConstGEP1_64(ir_.getInt8Ty(), out_.getArg(0), offset);
  llvm::LoadInst* load = ir_.CreateLoad(ir_.getIntNTy(bits), pointer);
  load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(ir_.getContext(), {}));
  return load;
}

llvm::CallInst* LaneVectoriser::CallRuntime(StringRef name, llvm::Type* result,
                                            const std::vector<Value*>& arguments) {
  std::vector<llvm::Type*> types;
  for (Value* argument : arguments) types.push_back(argument->getType());
  llvm::CallInst* call = ir_.CreateCall(
      scalar_.getParent()->getOrInsertFunction(name, llvm::FunctionType::get(result, types, false)),
      arguments);
  call->setDoesNotThrow();
  return call;
}

void LaneVectoriser::EmitPrologue() {
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

void LaneVectoriser::EmitInstruction(Instruction& instruction) {
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
  if (auto* load = llvm::dyn_cast<llvm::LoadInst>(&instruction)) {
    return Define(instruction, EmitLoad(*load));
  }
  Define(instruction, EmitVector(instruction));
}

// The base, from the operands' bases.
void LaneVectoriser::EmitScalar(Instruction& instruction) {
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
  if (instruction.getOpcode() == Instruction::Or && shape.stride != 0) {
    return Define(instruction, ir_.CreateAdd(Scalar(instruction.getOperand(0)),
                                             Scalar(instruction.getOperand(1))));
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
  ir_.Insert(copy);
  Define(instruction, copy);
}

Value* LaneVectoriser::EmitVector(Instruction& instruction) {
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

// --- Memory ---

Value* LaneVectoriser::LoadFrom(llvm::LoadInst& load, Value* base) {
  llvm::Type* type = VectorType(load.getType());
  Value* mask = MaskOf(block_);
  if (IsAllOnes(mask)) return ir_.CreateAlignedLoad(type, base, load.getAlign());
  return ir_.CreateMaskedLoad(type, base, load.getAlign(), Widen(mask, Elements(load.getType())),
                              llvm::PoisonValue::get(type));
}

// CPUs gather words; smaller values are cut out of the aligned words that they lie in, which cannot
// fault where the values do not.
Value* LaneVectoriser::GatherSmall(llvm::Type* element, Value* pointers, Value* mask) {
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

// Elements of vectors are fetched one kind after the other and then put together.
Value* LaneVectoriser::Gather(llvm::LoadInst& load) {
  llvm::Type* element = load.getType()->getScalarType();
  const uint32_t elements = Elements(load.getType());
  const uint64_t bytes = layout_.getTypeStoreSize(element);
  Value* pointers = Vector(load.getPointerOperand());
  Value* mask = MaskOf(block_);
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

// Whether addresses that may have wrapped are `bytes` apart from the first lane to the last, and
// so, as a value wraps once at most, all of them.
Value* LaneVectoriser::IsContiguous(Value* pointer, uint64_t bytes) {
  Value* all = ir_.CreatePtrToInt(Vector(pointer), VectorType(ir_.getInt64Ty()));
  Value* distance = ir_.CreateSub(ir_.CreateExtractElement(all, uint64_t{lanes_ - 1}),
                                  ir_.CreateExtractElement(all, uint64_t{0}));
  return ir_.CreateICmpEQ(distance, ir_.getInt64(bytes * (lanes_ - 1)));
}

Value* LaneVectoriser::EmitLoad(llvm::LoadInst& load) {
  Value* pointer = load.getPointerOperand();
  const int64_t offset = ContextOffset(load);
  for (size_t i = 0; i < 3; ++i) {
    if (offset == static_cast<int64_t>(offsetof(ThreadContext, tid) + i * sizeof(uint32_t))) {
      return tid_[i];
    }
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
  ir_.CreateCondBr(IsContiguous(pointer, bytes), contiguous, scattered);
  ir_.SetInsertPoint(contiguous);
  Value* whole = LoadFrom(load, ir_.CreateExtractElement(Vector(pointer), uint64_t{0}));
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

void LaneVectoriser::StoreTo(llvm::StoreInst& store, Value* base) {
  Value* value = Vector(store.getValueOperand());
  Value* mask = MaskOf(block_);
  if (IsAllOnes(mask)) {
    ir_.CreateAlignedStore(value, base, store.getAlign());
    return;
  }
  ir_.CreateMaskedStore(value, base, store.getAlign(),
                        Widen(mask, Elements(store.getValueOperand()->getType())));
}

void LaneVectoriser::Scatter(llvm::StoreInst& store) {
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

void LaneVectoriser::ScatterUnder(llvm::StoreInst& store, Value* mask) {
  llvm::Type* type = store.getValueOperand()->getType();
  const uint32_t elements = Elements(type);
  const uint64_t bytes = layout_.getTypeStoreSize(type->getScalarType());
  Value* pointers = Vector(store.getPointerOperand());
  Value* values = Vector(store.getValueOperand());
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

Value* LaneVectoriser::LastActive(Value* vector, Value* mask) {
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

void LaneVectoriser::EmitStore(llvm::StoreInst& store) {
  Value* pointer = store.getPointerOperand();
  Value* value = store.getValueOperand();
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
  ir_.CreateCondBr(IsContiguous(pointer, bytes), contiguous, scattered);
  ir_.SetInsertPoint(contiguous);
  StoreTo(store, ir_.CreateExtractElement(Vector(pointer), uint64_t{0}));
  ir_.CreateBr(after);
  ir_.SetInsertPoint(scattered);
  Scatter(store);
  ir_.CreateBr(after);
  ir_.SetInsertPoint(after);
}

// --- Lane by lane ---

// Calls `body` with the number (i64) of each lane of `mask` in turn.
void LaneVectoriser::ForEachLane(Value* mask, const std::function<void(Value*)>& body) {
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

llvm::AllocaInst* LaneVectoriser::Scratch(llvm::Type* type) {
  std::vector<llvm::AllocaInst*>& slots = scratch_[type];
  size_t& used = scratch_used_[type];
  if (used == slots.size()) slots.push_back(EntrySlot(type));
  return slots[used++];
}

// An array in memory with a lane's value in each element.
Value* LaneVectoriser::Spill(Value* vector, llvm::Type* element) {
  if (element->isIntegerTy(1)) {
    vector = ir_.CreateZExt(vector, VectorType(ir_.getInt8Ty()));
    element = ir_.getInt8Ty();
  }
  llvm::AllocaInst* array = Scratch(vector->getType());
  ir_.CreateStore(vector, array);
  return array;
}

// Runs the scalar instruction for each active lane.
Value* LaneVectoriser::EachLane(Instruction& instruction) {
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

void LaneVectoriser::EmitCall(llvm::CallInst& call) {
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
    case CallKind::kEachLane:
    case CallKind::kUnknown: {
      if (!call.getType()->isVoidTy() && shape.IsScalar()) return EmitScalar(call);
      Value* result = EachLane(call);
      if (result != nullptr) Define(call, result);
      return;
    }
  }
}

Value* LaneVectoriser::EmitVote(llvm::CallInst& call) {
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
Value* LaneVectoriser::EmitCollective(llvm::CallInst& call) {
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
void LaneVectoriser::EmitMatrix(llvm::CallInst& call) {
  const Shape shape = shapes_.Of(call.getArgOperand(2));
  CallRuntime("consort_rt_group_matrix", ir_.getVoidTy(),
              {Scalar(call.getArgOperand(1)), Scalar(call.getArgOperand(2)),
               ir_.getInt64(static_cast<uint64_t>(shape.stride)), Bits(MaskOf(block_))});
}

void LaneVectoriser::Run() {
  EmitPrologue();
  BasicBlock* body = NewBlock();
  entry_end_ = ir_.CreateBr(body);
  ir_.SetInsertPoint(body);
  EmitRegion(nullptr);
  if (coroutine_.leave != nullptr) {
    ir_.CreateBr(coroutine_.leave);
  } else {
    ir_.CreateRetVoid();
  }
}

}  // namespace

std::string VectoriseLanes(llvm::Function& scalar, const LaneGroup& group, ThreadsMode mode) {
  llvm::Function* out =
      llvm::Function::Create(scalar.getFunctionType(), scalar.getLinkage(), "", scalar.getParent());
  out->copyAttributesFrom(&scalar);
  LaneVectoriser vectoriser(scalar, *out, group, mode);
  std::string refusal = vectoriser.Refusal();
  if (!refusal.empty()) {
    out->eraseFromParent();
    return refusal;
  }
  vectoriser.Run();
  out->takeName(&scalar);
  scalar.eraseFromParent();
  return "";
}

}  // namespace consort::cpu
