// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/lane_shapes.h: how each value of one thread's code differs between the lanes
// of a group of threads that run in step, and which of its blocks only some of the lanes may reach.
//
// A shape is the best of these that holds for all active lanes:
//
//   strided     lane i has base + i * stride, for arithmetic modulo the value's width; stride 0 is
//               a uniform value
//   maybe       strided unless a value that it comes of wrapped, at its smaller width, between two
//               lanes; where that is so is known at run time
//   varying     anything
//
// A branch diverges if its condition is not uniform. What it decides, up to where its sides meet
// again, is *controlled*: entered with a part of the lanes. A loop that lanes leave in different
// turns *diverges*. The analysis runs to a fixed point, from the best shapes down.
//
// Works on reducible code with simplified loops, in LCSSA form, without switches, after
// LoadLaneFieldsAsIntegers, and changes nothing. Thread compatible.
// Source: Moll and Hack, "Partial Control-Flow Linearization", PLDI 2018, for the words.
#ifndef CONSORT_DEVICE_CPU_CODEGEN_LANE_SHAPES_H_
#define CONSORT_DEVICE_CPU_CODEGEN_LANE_SHAPES_H_

#include <cstdint>

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/Analysis/LoopInfo.h"
#include "llvm/Analysis/PostDominators.h"
#include "llvm/IR/Dominators.h"
#include "llvm/IR/Function.h"

namespace consort::cpu {

// For which blocks of threads code is made that runs several of them in step.
struct LaneGroup {
  uint32_t lanes = 1;    // threads of a group: consecutive in the block
  bool rows = false;     // threads of a group differ in tid.x alone
  bool flat = false;     // ntid.y and ntid.z are 1
  bool partial = false;  // the last group of a block has fewer threads

  bool operator==(const LaneGroup&) const = default;
};

struct Shape {
  enum class Kind : uint8_t { kUnknown, kStrided, kVarying };
  Kind kind = Kind::kUnknown;
  bool maybe = false;
  int64_t stride = 0;  // bytes for pointers
  uint64_t align = 1;  // a power of two that divides the base

  bool IsUniform() const { return kind == Kind::kStrided && stride == 0 && !maybe; }
  // The base stands for the whole value.
  bool IsScalar() const { return kind == Kind::kStrided && !maybe; }
  bool operator==(const Shape&) const = default;

  static Shape Strided(int64_t stride, uint64_t align) {
    return {Kind::kStrided, false, stride, align};
  }
  static Shape Uniform(uint64_t align = 1) { return Strided(0, align); }
  static Shape Varying() { return {Kind::kVarying, false, 0, 1}; }
};

class LaneShapes {
 public:
  LaneShapes(llvm::Function& function, const LaneGroup& group);

  Shape Of(const llvm::Value* value) const;
  bool Diverges(const llvm::BasicBlock* block) const { return divergent_.contains(block); }
  bool Diverges(const llvm::Loop* loop) const { return divergent_loops_.contains(loop); }
  bool IsControlled(const llvm::BasicBlock* block) const { return controlled_.contains(block); }
  // Sides of a divergent branch meet here, or lanes that left a loop in different turns.
  bool IsJoin(const llvm::BasicBlock* block) const { return joins_.contains(block); }
  // All lanes that have not left the kernel are here together.
  bool IsTogether(const llvm::BasicBlock* block) const;
  const llvm::LoopInfo& loops() const { return loops_; }

 private:
  void Solve();
  bool UpdateValues();
  bool UpdateControl();
  Shape Transfer(const llvm::Instruction& instruction) const;
  Shape OfLoad(const llvm::LoadInst& load) const;
  Shape OfCall(const llvm::CallInst& call) const;
  Shape OfBinary(const llvm::BinaryOperator& operation) const;
  Shape OfCompare(const llvm::CmpInst& compare) const;
  Shape OfAddress(const llvm::GetElementPtrInst& address) const;
  Shape Extend(const llvm::CastInst& cast) const;
  int ForwardPredecessors(const llvm::BasicBlock* block) const;
  bool LeavesKernel(const llvm::BasicBlock* block) const;

  llvm::Function& function_;
  const LaneGroup group_;
  const llvm::DataLayout& layout_;
  llvm::DominatorTree dominators_;
  llvm::PostDominatorTree post_dominators_;
  llvm::LoopInfo loops_;
  llvm::DenseMap<const llvm::Value*, Shape> shapes_;
  llvm::DenseSet<const llvm::BasicBlock*> divergent_;
  llvm::DenseSet<const llvm::BasicBlock*> controlled_;
  llvm::DenseSet<const llvm::BasicBlock*> joins_;
  llvm::DenseSet<const llvm::Loop*> divergent_loops_;
  // The same, but for branches one of whose sides leaves the kernel.
  llvm::DenseSet<const llvm::BasicBlock*> apart_;
  llvm::DenseSet<const llvm::Loop*> apart_loops_;
};

// The offset in ThreadContext that `load` reads, or -1.
int64_t ContextOffset(const llvm::LoadInst& load);

// It reads something of ThreadContext that differs between lanes: `tid`, `lane`, `thread_index`, or
// a part of them. LaneShapes knows only such loads of i32.
bool ReadsLaneField(const llvm::LoadInst& load);

// Turns such loads of other types of 32 bits into loads of i32 with a bitcast: LLVM's InstCombine
// makes them of `mov.b32 %f, %tid.x`.
void LoadLaneFieldsAsIntegers(llvm::Function& function);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_CODEGEN_LANE_SHAPES_H_
