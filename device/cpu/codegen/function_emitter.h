// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/function_emitter.h: one PTX function to one LLVM function.
//
// Every PTX function becomes `void f(ThreadContext*, const uint8_t* inputs, uint8_t* returns)`,
// with parameters packed as PackParams says; the inliner and SROA take the buffers away again. A
// register is a stack slot of integer type (mem2reg makes it a value), zero at the start, so that
// reading an unwritten register is no undefined behaviour. Values are cast to what each instruction
// asks for.
//
// Thread compatible. Errors stick: the first one is kept, Read then returns zeros, and the caller
// looks at status() after each instruction.
#ifndef CONSORT_DEVICE_CPU_CODEGEN_FUNCTION_EMITTER_H_
#define CONSORT_DEVICE_CPU_CODEGEN_FUNCTION_EMITTER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "device/cpu/codegen/coroutine.h"
#include "device/cpu/codegen/layout.h"
#include "device/cpu/engine/access_checker.h"
#include "device/cpu/ptx/ast.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Module.h"

namespace consort::cpu {

// What the JIT calls the table of the addresses of the program's variables (void*, parallel to
// ptx.variables, null for .shared): code holds no address, so that it is good for other processes.
inline constexpr const char* kVariableTable = "consort.variables";

// What all functions of one LLVM module share.
struct EmitterShared {
  const ptx::Module& ptx;
  const ModuleLayout& layout;
  llvm::Module& ir;
  std::vector<llvm::Function*> functions;  // parallel to ptx.functions; null where not wanted
  llvm::GlobalVariable* function_table = nullptr;  // by function number, for indirect calls
  // Kernels become the code of one thread, in which waits are calls that return when it is over.
  bool one_thread = false;
  bool check_accesses = false;  // see CodeOptions
  bool watch_time = false;
};

// The name that an LLVM function has for PTX function number `index`.
std::string FunctionIrName(const ptx::Module& ptx, uint32_t index);

// The type of all functions.
llvm::FunctionType* FunctionIrType(llvm::LLVMContext& context);

// ptxas takes a vector of one, {%r}, for its element in ld, ldu, st and mov, and inline PTX such as
// NCCL's has it. Other operands are themselves.
inline const ptx::Operand& ElementOfOne(const ptx::Operand& operand) {
  const bool one = operand.kind == ptx::OperandKind::kVector && operand.elements.size() == 1;
  return one ? operand.elements[0] : operand;
}

class FunctionEmitter {
 public:
  FunctionEmitter(EmitterShared& shared, uint32_t function_index);

  // Emits the body. kUnimplemented, kInvalidArgument, kOutOfRange with "line N: ".
  absl::Status Emit();

  // --- For the emit functions of the instruction table ---

  llvm::IRBuilder<>& ir() { return builder_; }
  EmitterShared& shared() { return shared_; }
  const ptx::Function& function() const { return function_; }
  const FunctionLayout& function_layout() const { return layout_; }

  // Keeps the first error, at the line of the instruction being emitted.
  void Fail(absl::StatusCode code, std::string_view message);
  void FailSyntax(std::string_view message) { Fail(absl::StatusCode::kInvalidArgument, message); }
  const absl::Status& status() const { return status_; }

  // The LLVM type that values of `type` have: iN, half, float, double, <2 x half>, ...
  llvm::Type* IrType(ptx::Type type);
  llvm::IntegerType* IntType(uint32_t bits) { return builder_.getIntNTy(bits); }
  // Same bits, another type of the same size.
  llvm::Value* Cast(llvm::Value* value, llvm::Type* type);

  // The operand's value as `type`: a wider register is cut, a narrower one extended with zeros.
  llvm::Value* Read(const ptx::Operand& operand, ptx::Type type);
  // A register of one bit.
  bool IsPredicate(const ptx::Operand& operand) const;
  // Writes a value of IrType(type) to a register, extending by the type's signedness. A sink `_`
  // takes anything.
  void Write(const ptx::Operand& operand, ptx::Type type, llvm::Value* value);
  // Reads or writes an operand that may be a vector {a, b}: the elements' bits joined, the first
  // one lowest.
  llvm::Value* ReadPacked(const ptx::Operand& operand, ptx::Type type);
  void WritePacked(const ptx::Operand& operand, ptx::Type type, llvm::Value* value);

  // Pointer to what an address operand [...] names in `space` (kRegister: generic).
  llvm::Value* Pointer(const ptx::Operand& address, ptx::Space space);
  // The same for an access of `bytes` bytes that is about to follow, which checked code checks.
  llvm::Value* Access(const ptx::Operand& address, ptx::Space space, AccessKind kind,
                      uint32_t bytes);
  // In checked code, the check of an access; where `enabled` (i1, null: always) says so.
  void CheckAccess(llvm::Value* pointer, ptx::Space space, AccessKind kind, uint32_t bytes,
                   llvm::Value* enabled = nullptr);
  // What checked code calls this instruction, an i64; see SiteNames in program.cc.
  llvm::Value* Site();
  // In code that watches the time, before it goes back in the program.
  void WatchTime();
  // Storage of a parameter or .local symbol.
  llvm::Value* Storage(uint32_t symbol);
  // The value of the address of a variable or function, as mov gives it.
  llvm::Value* AddressOf(const ptx::Operand& operand);
  llvm::Value* VariableAddress(uint32_t variable);

  // A ThreadContext field of `bits` bits, loaded once at the entry.
  llvm::Value* Field(size_t offset, uint32_t bits);
  llvm::Value* FieldPointer(size_t offset);
  llvm::Value* context() { return context_; }
  // The parameters' buffer: in an entry, the kernel's.
  llvm::Value* inputs() { return inputs_; }
  llvm::Value* SharedBase();
  llvm::Value* SpecialRegister(const ptx::Operand& operand);

  llvm::Value* CallRuntime(std::string_view name, llvm::Type* result,
                           const std::vector<llvm::Value*>& arguments);
  // The same for a function in which the thread may wait. In a coroutine it only notes what the
  // thread waits for; the thread then suspends and finds the result in its context.
  llvm::Value* CallWaiting(std::string_view name, llvm::Type* result,
                           const std::vector<llvm::Value*>& arguments);
  llvm::Value* EntryAlloca(llvm::Type* type, uint32_t align);
  // Memory until the function returns, or the stack is what it was before. Ends the kernel if the
  // stack has not as much.
  llvm::Value* StackMemory(llvm::Value* bytes, uint32_t align);
  // A MatrixSlots (engine/matrix.h), the same for all matrix instructions of the function.
  llvm::Value* MatrixBuffer();

  // Around a call, in checked code: `arguments` (an alloca), to which a variadic function has
  // pointers; null `callee`: it is not known. What the one gives is for the other.
  llvm::Value* EnterArguments(llvm::Value* arguments, const ptx::Function* callee);
  void LeaveArguments(llvm::Value* before);

  // The condition code register's carry flag (PTX ISA, 9.7.2), a slot of type i1.
  llvm::Value* CarryFlag();

  // A branch target; kInvalidArgument if the label is a list.
  llvm::BasicBlock* LabelBlock(const ptx::Operand& operand);
  llvm::BasicBlock* LabelBlockAt(uint32_t label);
  llvm::BasicBlock* NewBlock();
  // Writes returned registers and leaves the function.
  void EmitReturn();
  // After an instruction that does not go on: what follows is emitted into a block of its own.
  void StartUnreachableBlock();

 private:
  // Only video instructions take parts of registers.
  void FailNoComponent(const ptx::Operand& operand);
  void FindTemporaries();
  void EmitPrologue();
  void EnterStackBlocks();
  llvm::StructType* StackBlockType();
  // `block`: memory for a StackBlock.
  void EnterStackBlock(llvm::Value* block, llvm::Value* address, llvm::Value* bytes);
  void BeginBlockLoop(llvm::BasicBlock* thread_begin);
  void EmitInstruction(const ptx::Instruction& instruction);
  llvm::AllocaInst* Register(uint32_t symbol);
  llvm::Value* Constant(const ptx::Operand& operand, ptx::Type type);

  EmitterShared& shared_;
  const uint32_t function_index_;
  const ptx::Function& function_;
  const FunctionLayout& layout_;
  llvm::Function* ir_function_ = nullptr;
  llvm::IRBuilder<> builder_;
  llvm::BasicBlock* entry_ = nullptr;
  // The entry block's branch; what is done once goes before it.
  llvm::Instruction* entry_end_ = nullptr;
  // What each thread begins with goes before it: entry_end_ but in a block loop.
  llvm::Instruction* thread_end_ = nullptr;
  // Where a thread leaves: the next turn of a block loop, or a coroutine's end. Null: plain return.
  llvm::BasicBlock* leave_ = nullptr;
  CoroutineBlocks coroutine_;
  llvm::Value* context_ = nullptr;
  llvm::Value* inputs_ = nullptr;
  llvm::Value* returns_ = nullptr;
  std::vector<llvm::AllocaInst*> storage_;       // by symbol
  std::vector<llvm::BasicBlock*> label_blocks_;  // by label
  std::vector<bool> is_temporary_;  // by symbol: written before it is read, in one straight run
  absl::flat_hash_map<size_t, llvm::Value*> fields_;
  absl::flat_hash_map<uint32_t, llvm::Value*> variables_;  // their addresses, loaded at the entry
  llvm::AllocaInst* carry_ = nullptr;
  llvm::Value* matrix_buffer_ = nullptr;
  llvm::Value* stack_blocks_before_ = nullptr;  // in checked code: the caller's
  const ptx::Instruction* current_ = nullptr;
  absl::Status status_;
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_CODEGEN_FUNCTION_EMITTER_H_
