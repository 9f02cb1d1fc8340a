// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/lane_emitter.h: the state of lane_vectoriser.h's work on one function.
//
//   lane_calls.cc         what calls become of a group, and what has to go lane by lane
//   lane_control.cc       blocks, loops and edges under masks
//   lane_instructions.cc  what computes
//   lane_memory.cc        loads and stores: whole, gathered, scattered
//   lane_refusal.cc       what cannot be done
//   lane_values.cc        scalars, vectors and masks, and the slots that blocks share them by
//
// Thread compatible.
#ifndef CONSORT_DEVICE_CPU_CODEGEN_LANE_EMITTER_H_
#define CONSORT_DEVICE_CPU_CODEGEN_LANE_EMITTER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "device/cpu/codegen/coroutine.h"
#include "device/cpu/codegen/lane_shapes.h"
#include "device/cpu/engine/thread_context.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/Module.h"

namespace consort::cpu {

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
  kTexture,
};

CallKind KindOf(const llvm::CallInst& call);
// Whether all lanes of the group must be where this call is.
bool NeedsAllLanes(const llvm::CallInst& call);
// The memory by which lanes bring registers to matrix instructions and fragments.
llvm::DenseSet<const llvm::Value*> MatrixBuffersOf(const llvm::Function& function);
// Of a mask or of bits: whether that is known already.
bool IsAllOnes(const llvm::Value* mask);

class LaneEmitter {
 public:
  LaneEmitter(llvm::Function& scalar, llvm::Function& out, const LaneGroup& group, ThreadsMode mode)
      : scalar_(scalar),
        out_(out),
        group_(group),
        lanes_(group.lanes),
        mode_(mode),
        layout_(scalar.getParent()->getDataLayout()),
        shapes_(scalar, group),
        matrix_buffers_(MatrixBuffersOf(scalar)),
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

  // Of a value that may be strided: what lanes have beyond the base, and whether those are
  // multiples of the stride.
  struct Doubt {
    llvm::Value* beyond = nullptr;  // integers, a lane each
    llvm::Value* strided = nullptr;
  };
  struct DoubtSlots {
    llvm::AllocaInst* beyond = nullptr;
    llvm::AllocaInst* strided = nullptr;
  };

  // --- Values ---
  bool IsDoubtful(const llvm::Value* value) const { return shapes_.Of(value).maybe; }
  bool IsScalar(const llvm::Value* value) const { return shapes_.Of(value).IsScalar(); }
  llvm::Type* VectorType(llvm::Type* type) const;
  uint32_t Elements(const llvm::Type* type) const;
  llvm::Value* Scalar(llvm::Value* value);
  llvm::Value* Vector(llvm::Value* value);
  llvm::Value* Spread(llvm::Value* base, int64_t stride);
  llvm::Constant* Strides(uint32_t bits, int64_t stride) const;
  Doubt DoubtOf(llvm::Value* value);
  DoubtSlots& DoubtSlotsOf(const llvm::Value* value);
  llvm::Value* Splat(llvm::Value* scalar);
  // The vector, or the base of what may be strided.
  void Define(llvm::Instruction& instruction, llvm::Value* value);
  llvm::AllocaInst* SlotOf(llvm::Instruction& instruction);
  llvm::AllocaInst* EntrySlot(llvm::Type* type);
  bool LeavesBlock(const llvm::Instruction& instruction) const;
  llvm::Value* Iota(uint32_t bits);

  // --- Masks ---
  llvm::Value* AllLanes() const;
  llvm::Value* And(llvm::Value* a, llvm::Value* b);
  llvm::Value* Not(llvm::Value* a);
  llvm::Value* Any(llvm::Value* mask);
  llvm::Value* Bits(llvm::Value* mask);
  llvm::Value* Widen(llvm::Value* mask, uint32_t elements);
  const llvm::BasicBlock* MaskHolder(const llvm::BasicBlock* block) const;
  bool HoldsMask(const llvm::BasicBlock* block) const;
  llvm::Value* MaskOf(const llvm::BasicBlock* block);
  Activation& ActivationOf(const llvm::BasicBlock* block);

  // --- Control ---
  std::vector<llvm::BasicBlock*> Order(llvm::Loop* loop) const;
  llvm::Loop* ChildLoop(llvm::Loop* region, const llvm::BasicBlock* block) const;
  void EmitRegion(llvm::Loop* loop);
  void EmitLoop(llvm::Loop* loop);
  void EmitBlock(llvm::BasicBlock* block);
  void EmitEdge(llvm::BasicBlock* from, llvm::BasicBlock* to, llvm::Value* mask);
  bool IsCheap(const llvm::BasicBlock* block) const;
  llvm::BasicBlock* NewBlock() { return llvm::BasicBlock::Create(ir_.getContext(), "", &out_); }

  // --- Instructions ---
  void EmitPrologue();
  void EmitInstruction(llvm::Instruction& instruction);
  void EmitScalar(llvm::Instruction& instruction);
  void EmitDoubtful(llvm::Instruction& instruction);
  llvm::Value* Base(llvm::Instruction& instruction);
  Doubt DoubtAfter(llvm::Instruction& instruction, llvm::Value* base);
  llvm::Value* EmitVector(llvm::Instruction& instruction);
  llvm::Value* EmitLoad(llvm::LoadInst& load);
  void EmitStore(llvm::StoreInst& store);
  llvm::Value* LoadFrom(llvm::LoadInst& load, llvm::Value* base);
  bool IsQuad(llvm::Type* type) const;
  void MoveQuads(llvm::StringRef how, llvm::Value* quads, llvm::Value* pointers, llvm::Value* mask);
  llvm::Value* Gather(llvm::LoadInst& load);
  llvm::Value* GatherSmall(llvm::Type* element, llvm::Value* pointers, llvm::Value* mask);
  void StoreTo(llvm::StoreInst& store, llvm::Value* base);
  void Scatter(llvm::StoreInst& store);
  void ScatterUnder(llvm::StoreInst& store, llvm::Value* mask);
  llvm::Value* LastActive(llvm::Value* vector, llvm::Value* mask);
  void ForEachLane(llvm::Value* mask, const std::function<void(llvm::Value*)>& body);
  llvm::Value* EachLane(llvm::Instruction& instruction);
  void EmitCall(llvm::CallInst& call);
  llvm::Value* EmitVote(llvm::CallInst& call);
  llvm::Value* EmitCollective(llvm::CallInst& call);
  void EmitMatrix(llvm::CallInst& call);
  llvm::Value* MatrixPlace(llvm::Value* pointer);
  llvm::Value* EmitTexture(llvm::CallInst& call);
  llvm::Value* Spill(llvm::Value* vector, llvm::Type* element);
  // Memory until the next call of ReleaseScratch, so that a thousand atomics share one place.
  llvm::AllocaInst* Scratch(llvm::Type* type);
  void ReleaseScratch() { scratch_used_.clear(); }
  llvm::Value* ContextField(size_t offset, uint32_t bits);
  llvm::CallInst* CallRuntime(llvm::StringRef name, llvm::Type* result,
                              const std::vector<llvm::Value*>& arguments);

  llvm::Function& scalar_;
  llvm::Function& out_;
  const LaneGroup group_;
  const uint32_t lanes_;
  const ThreadsMode mode_;
  const llvm::DataLayout& layout_;
  LaneShapes shapes_;
  const llvm::DenseSet<const llvm::Value*> matrix_buffers_;
  llvm::IRBuilder<> ir_;
  llvm::BasicBlock* entry_ = nullptr;
  llvm::Instruction* entry_end_ = nullptr;
  CoroutineBlocks coroutine_;
  llvm::Value* entry_mask_ = nullptr;
  llvm::Value* tid_[3] = {};  // vectors, where lanes differ in more than x
  llvm::DenseMap<const llvm::Value*, llvm::Value*> local_;  // of the block being made
  llvm::DenseMap<const llvm::Value*, Doubt> local_doubts_;
  llvm::DenseMap<const llvm::Value*, llvm::AllocaInst*> slots_;
  llvm::DenseMap<const llvm::Value*, DoubtSlots> doubt_slots_;
  llvm::DenseMap<const llvm::BasicBlock*, Activation> activations_;
  llvm::DenseMap<const llvm::Loop*, llvm::AllocaInst*> again_;
  llvm::DenseMap<llvm::Type*, std::vector<llvm::AllocaInst*>> scratch_;
  llvm::DenseMap<llvm::Type*, size_t> scratch_used_;
  llvm::BasicBlock* block_ = nullptr;
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_CODEGEN_LANE_EMITTER_H_
