// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/instruction_table.h: every PTX instruction that the CPU device knows, with the
// function that emits it. To add an instruction, write its emit function in an emit_*.cc and its
// row in instruction_table.cc; a new modifier goes into the row and into the emit function.
//
// Values; any thread. Source: PTX ISA 9.0, 9.7 "Instructions".
#ifndef CONSORT_DEVICE_CPU_CODEGEN_INSTRUCTION_TABLE_H_
#define CONSORT_DEVICE_CPU_CODEGEN_INSTRUCTION_TABLE_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "device/cpu/codegen/function_emitter.h"
#include "device/cpu/ptx/ast.h"

namespace consort::cpu {

// One instruction while it is emitted: the table has checked the operand count and each modifier.
struct Step {
  Step(FunctionEmitter& emitter, const ptx::Instruction& instruction);

  FunctionEmitter& f;
  const ptx::Instruction& instruction;
  absl::InlinedVector<ptx::Type, 2> types;  // the type modifiers, in order

  llvm::IRBuilder<>& ir() { return f.ir(); }
  ptx::Type type() const { return types[0]; }
  bool Has(std::string_view modifier) const;
  // The first of the space-separated `names` that is a modifier here; empty if none is.
  std::string_view OneOf(std::string_view names) const;
  // Without a cache policy, which is the last one: a hint that nothing here needs.
  size_t operand_count() const {
    return instruction.operands.size() - (Has("L2::cache_hint") ? 1 : 0);
  }
  const ptx::Operand& operand(size_t index) const { return instruction.operands[index]; }
  llvm::Value* Read(size_t index, ptx::Type as) { return f.Read(operand(index), as); }
  llvm::Value* Read(size_t index) { return Read(index, type()); }
  void Write(size_t index, ptx::Type as, llvm::Value* value) { f.Write(operand(index), as, value); }
  void Write(llvm::Value* value) { Write(0, type(), value); }
  // kUnimplemented: this combination of modifiers is not known.
  void Unsupported();
  // The state space modifier; kRegister when there is none, which means generic addressing.
  ptx::Space space() const;
};

using EmitFunction = void (*)(Step& step);

struct InstructionRow {
  std::string_view opcode;
  std::string_view modifiers;  // that may follow, space-separated; types apart
  std::string_view types;      // that may follow
  size_t types_min;
  size_t operands_min;
  size_t operands_max;
  EmitFunction emit;
};

// The row for the opcode whose modifiers and types take in all of the instruction's; null if none.
const InstructionRow* FindInstruction(const ptx::Instruction& instruction);

// "ld.global.u32", for messages.
std::string InstructionText(const ptx::Instruction& instruction);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_CODEGEN_INSTRUCTION_TABLE_H_
