// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/function_emitter.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/absl_text.h"
#include "device/cpu/codegen/coroutine.h"
#include "device/cpu/codegen/instruction_table.h"
#include "device/cpu/engine/matrix.h"
#include "device/cpu/engine/thread_context.h"
#include "llvm/IR/MDBuilder.h"

namespace consort::cpu {
namespace {

using ptx::Operand;
using ptx::OperandKind;
using ptx::Space;
using ptx::Symbol;
using ptx::SymbolKind;
using ptx::Type;

// Above the largest value that the field of ThreadContext at `offset` can have; 0: any.
// Source: CUDA C++ Programming Guide, compute capabilities: 1024 threads of a block, 2^31 - 1
// blocks in x.
uint64_t FieldEnd(size_t offset) {
  constexpr size_t kVectorBytes = 3 * sizeof(uint32_t);
  auto within = [offset](size_t field, size_t bytes) {
    return offset >= field && offset < field + bytes;
  };
  if (within(offsetof(ThreadContext, tid), kVectorBytes)) return 1024;
  if (within(offsetof(ThreadContext, ntid), kVectorBytes)) return 1025;
  if (within(offsetof(ThreadContext, ctaid), kVectorBytes)) return uint64_t{1} << 31;
  if (within(offsetof(ThreadContext, nctaid), kVectorBytes)) return uint64_t{1} << 31;
  if (within(offsetof(ThreadContext, lane), sizeof(uint32_t))) return kWarpLanes;
  if (within(offsetof(ThreadContext, warp), sizeof(uint32_t))) return kWarpLanes;
  if (within(offsetof(ThreadContext, thread_index), sizeof(uint32_t))) return 1024;
  return 0;
}

}  // namespace

std::string FunctionIrName(const ptx::Module& ptx, uint32_t index) {
  return absl::StrCat("ptx.", index, ".", AbslText(ptx.functions[index].name));
}

llvm::FunctionType* FunctionIrType(llvm::LLVMContext& context) {
  llvm::Type* pointer = llvm::PointerType::getUnqual(context);
  return llvm::FunctionType::get(llvm::Type::getVoidTy(context), {pointer, pointer, pointer},
                                 false);
}

FunctionEmitter::FunctionEmitter(EmitterShared& shared, uint32_t function_index)
    : shared_(shared),
      function_index_(function_index),
      function_(shared.ptx.functions[function_index]),
      layout_(shared.layout.functions[function_index]),
      ir_function_(shared.functions[function_index]),
      builder_(shared.ir.getContext()),
      storage_(function_.symbols.size(), nullptr),
      label_blocks_(function_.labels.size(), nullptr),
      is_temporary_(function_.symbols.size(), false) {}

void FunctionEmitter::Fail(absl::StatusCode code, std::string_view message) {
  if (!status_.ok()) return;
  status_ = absl::Status(
      code, absl::StrCat("line ", current_ != nullptr ? current_->line : function_.line, ": ",
                         AbslText(message)));
}

// Marks the registers that live in one straight run of instructions, which begins with an
// unconditional write. They need no zero at the entry, without which mem2reg handles them at once:
// most registers of large unrolled kernels are such ones.
void FunctionEmitter::FindTemporaries() {
  static constexpr std::string_view kNoDestination[] = {
      "bar", "barrier", "bra", "brx", "call", "cp", "nanosleep", "pmevent", "red", "st"};
  std::vector<bool> is_target(function_.instructions.size() + 1, false);
  for (const ptx::Label& label : function_.labels) is_target[label.instruction] = true;
  std::vector<uint32_t> run_of(function_.symbols.size(), ptx::kNone);
  uint32_t run = 0;
  for (size_t i = 0; i < function_.instructions.size(); ++i) {
    const ptx::Instruction& instruction = function_.instructions[i];
    if (is_target[i]) ++run;
    auto read = [&](auto&& self, const Operand& operand) -> void {
      for (const Operand& element : operand.elements) self(self, element);
      if (operand.kind != OperandKind::kSymbol) return;
      if (run_of[operand.symbol] != run) is_temporary_[operand.symbol] = false;
      run_of[operand.symbol] = run;
    };
    auto write = [&](const Operand& operand) {
      if (operand.kind != OperandKind::kSymbol) return read(read, operand);
      const bool is_first = run_of[operand.symbol] == ptx::kNone;
      const bool is_whole = instruction.guard == ptx::kNone && operand.component == 0;
      if (is_first && is_whole) {
        is_temporary_[operand.symbol] = true;
        run_of[operand.symbol] = run;
      }
      read(read, operand);
    };
    if (instruction.guard != ptx::kNone) {
      if (run_of[instruction.guard] != run) is_temporary_[instruction.guard] = false;
      run_of[instruction.guard] = run;
    }
    const bool has_destination = std::find(std::begin(kNoDestination), std::end(kNoDestination),
                                           instruction.opcode) == std::end(kNoDestination);
    for (size_t k = has_destination ? 1 : 0; k < instruction.operands.size(); ++k) {
      read(read, instruction.operands[k]);
    }
    if (has_destination && !instruction.operands.empty()) {
      const Operand& to = instruction.operands[0];
      if (to.kind == OperandKind::kPair || to.kind == OperandKind::kVector) {
        for (const Operand& element : to.elements) write(element);
      } else {
        write(to);
      }
    }
    if (instruction.opcode == "bra" || instruction.opcode == "brx" || instruction.opcode == "ret" ||
        instruction.opcode == "exit" || instruction.opcode == "trap") {
      ++run;
    }
  }
}

absl::Status FunctionEmitter::Emit() {
  FindTemporaries();
  EmitPrologue();
  std::vector<uint32_t> order(function_.labels.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return function_.labels[a].instruction < function_.labels[b].instruction;
  });
  size_t next_label = 0;
  for (uint32_t i = 0; i <= function_.instructions.size() && status_.ok(); ++i) {
    for (; next_label < order.size() && function_.labels[order[next_label]].instruction == i;
         ++next_label) {
      llvm::BasicBlock* block = LabelBlockAt(order[next_label]);
      builder_.CreateBr(block);
      builder_.SetInsertPoint(block);
    }
    if (i == function_.instructions.size()) break;
    current_ = &function_.instructions[i];
    EmitInstruction(*current_);
  }
  current_ = nullptr;
  EmitReturn();
  return status_;
}

void FunctionEmitter::EmitPrologue() {
  llvm::LLVMContext& llvm_context = builder_.getContext();
  entry_ = llvm::BasicBlock::Create(llvm_context, "entry", ir_function_);
  llvm::BasicBlock* body = llvm::BasicBlock::Create(llvm_context, "body", ir_function_);
  context_ = ir_function_->getArg(0);
  inputs_ = ir_function_->getArg(1);
  returns_ = ir_function_->getArg(2);
  builder_.SetInsertPoint(entry_);
  const ThreadsMode mode = function_.is_entry && !shared_.one_thread
                               ? shared_.layout.kernels[function_index_].mode
                               : ThreadsMode::kLoop;
  if (mode == ThreadsMode::kCoroutines) {
    coroutine_ = BeginCoroutine(builder_, *ir_function_);
    leave_ = coroutine_.leave;
  }
  if (mode == ThreadsMode::kBlockLoop) {
    llvm::BasicBlock* thread_begin = NewBlock();
    BeginBlockLoop(thread_begin);
    builder_.SetInsertPoint(thread_begin);
    thread_end_ = builder_.CreateBr(body);
  } else {
    entry_end_ = builder_.CreateBr(body);
    thread_end_ = entry_end_;
  }
  builder_.SetInsertPoint(body);
  if (shared_.check_accesses) EnterStackBlocks();
  for (size_t i = 0; i < function_.inputs.size(); ++i) {
    const uint32_t symbol = function_.inputs[i];
    if (function_.symbols[symbol].space != Space::kRegister) continue;
    llvm::AllocaInst* slot = Register(symbol);
    llvm::Value* from =
        builder_.CreateConstGEP1_64(builder_.getInt8Ty(), inputs_, layout_.inputs.offsets[i]);
    builder_.CreateStore(builder_.CreateLoad(slot->getAllocatedType(), from), slot);
  }
}

// In checked code: enters what of this function's stack the program has addresses of.
void FunctionEmitter::EnterStackBlocks() {
  if (function_.is_entry) {
    builder_.CreateStore(llvm::ConstantPointerNull::get(builder_.getPtrTy()),
                         FieldPointer(offsetof(ThreadContext, stack_blocks)));
  } else {
    stack_blocks_before_ = builder_.CreateLoad(builder_.getPtrTy(),
                                               FieldPointer(offsetof(ThreadContext, stack_blocks)));
  }
  std::vector<bool> entered(function_.symbols.size(), false);
  auto enter = [&](uint32_t symbol) {
    // The caller has entered what has no size here.
    if (entered[symbol] || function_.symbols[symbol].IsUnsized()) return;
    entered[symbol] = true;
    EnterStackBlock(EntryAlloca(StackBlockType(), alignof(StackBlock)), Storage(symbol),
                    builder_.getInt64(function_.symbols[symbol].bytes));
  };
  for (uint32_t i = 0; i < function_.symbols.size(); ++i) {
    if (function_.symbols[i].kind == SymbolKind::kLocal) enter(i);
  }
  for (const ptx::Instruction& instruction : function_.instructions) {
    if (instruction.opcode != "mov" && instruction.opcode != "cvta") continue;
    for (const Operand& operand : instruction.operands) {
      if (operand.kind != OperandKind::kSymbol) continue;
      const Symbol& symbol = function_.symbols[operand.symbol];
      if (symbol.space == Space::kRegister || symbol.kind == SymbolKind::kVariable) continue;
      // A kernel's parameters are known to the engine, and are only to be read.
      if (!function_.is_entry || symbol.kind != SymbolKind::kInput) enter(operand.symbol);
    }
  }
}

llvm::Value* FunctionEmitter::EnterArguments(llvm::Value* arguments, const ptx::Function* callee) {
  const bool has_address =
      callee == nullptr ||
      (!callee->inputs.empty() && callee->symbols[callee->inputs.back()].IsUnsized());
  if (!shared_.check_accesses || !has_address) return nullptr;
  llvm::Value* before =
      builder_.CreateLoad(builder_.getPtrTy(), FieldPointer(offsetof(ThreadContext, stack_blocks)));
  const uint64_t bytes =
      llvm::cast<llvm::AllocaInst>(arguments)->getAllocatedType()->getArrayNumElements();
  EnterStackBlock(EntryAlloca(StackBlockType(), alignof(StackBlock)), arguments,
                  builder_.getInt64(bytes));
  return before;
}

void FunctionEmitter::LeaveArguments(llvm::Value* before) {
  if (before != nullptr) {
    builder_.CreateStore(before, FieldPointer(offsetof(ThreadContext, stack_blocks)));
  }
}

llvm::StructType* FunctionEmitter::StackBlockType() {
  static_assert(sizeof(StackBlock) == 24 && offsetof(StackBlock, bytes) == 16);
  return llvm::StructType::get(builder_.getContext(),
                               {builder_.getPtrTy(), builder_.getInt64Ty(), builder_.getInt64Ty()});
}

void FunctionEmitter::EnterStackBlock(llvm::Value* block, llvm::Value* address,
                                      llvm::Value* bytes) {
  llvm::Value* head = FieldPointer(offsetof(ThreadContext, stack_blocks));
  llvm::Value* values[] = {builder_.CreateLoad(builder_.getPtrTy(), head),
                           builder_.CreatePtrToInt(address, builder_.getInt64Ty()), bytes};
  for (unsigned i = 0; i < 3; ++i) {
    builder_.CreateStore(values[i], builder_.CreateStructGEP(StackBlockType(), block, i));
  }
  builder_.CreateStore(block, head);
}

llvm::Value* FunctionEmitter::StackMemory(llvm::Value* bytes, uint32_t align) {
  // What other functions need, and signal handlers.
  constexpr uint64_t kStackKept = 16 << 10;
  llvm::Value* low = Field(offsetof(ThreadContext, stack_low), 64);
  llvm::Value* top = builder_.CreatePtrToInt(builder_.CreateStackSave(), builder_.getInt64Ty());
  llvm::Value* room = builder_.CreateBinaryIntrinsic(
      llvm::Intrinsic::usub_sat, builder_.CreateSub(top, low), builder_.getInt64(kStackKept));
  llvm::BasicBlock* too_much = NewBlock();
  llvm::BasicBlock* fits = NewBlock();
  builder_.CreateCondBr(builder_.CreateICmpULE(bytes, room), fits, too_much);
  builder_.SetInsertPoint(too_much);
  CallRuntime("consort_rt_stack_overflow", builder_.getVoidTy(), {context_});
  builder_.CreateUnreachable();
  builder_.SetInsertPoint(fits);
  llvm::AllocaInst* memory = builder_.CreateAlloca(builder_.getInt8Ty(), bytes);
  memory->setAlignment(llvm::Align(align));
  if (shared_.check_accesses) {
    // One each time, as alloca may be in a loop.
    llvm::AllocaInst* block = builder_.CreateAlloca(StackBlockType());
    block->setAlignment(llvm::Align(alignof(StackBlock)));
    EnterStackBlock(block, memory, bytes);
  }
  return memory;
}

llvm::Value* FunctionEmitter::Site() {
  const uint64_t index =
      current_ == nullptr ? 0 : static_cast<uint64_t>(current_ - function_.instructions.data());
  return builder_.getInt64(uint64_t{function_index_} << 32 | index);
}

void FunctionEmitter::WatchTime() {
  if (!shared_.watch_time) return;
  CallRuntime("consort_rt_watch_time", builder_.getVoidTy(), {context_});
}

llvm::Value* FunctionEmitter::Access(const Operand& address, Space space, AccessKind kind,
                                     uint32_t bytes) {
  llvm::Value* pointer = Pointer(address, space);
  if (!shared_.check_accesses || !status_.ok()) return pointer;
  const Operand& base = address.elements[0];
  if (base.kind == OperandKind::kSymbol) {
    const Symbol& symbol = function_.symbols[base.symbol];
    // Parameters that are named are in reach of no arithmetic: their offsets are constants.
    const bool is_named_parameter = symbol.space != Space::kRegister &&
                                    symbol.kind != SymbolKind::kVariable &&
                                    symbol.kind != SymbolKind::kLocal;
    if (is_named_parameter) return pointer;
    // As Pointer has it.
    if (symbol.kind == SymbolKind::kVariable &&
        shared_.ptx.variables[symbol.index].space == Space::kShared) {
      space = Space::kShared;
    }
  } else if (base.kind == OperandKind::kName) {
    const auto variable = shared_.ptx.variable_by_name.find(base.text);
    if (variable != shared_.ptx.variable_by_name.end() &&
        shared_.ptx.variables[variable->second].space == Space::kShared) {
      space = Space::kShared;
    }
  }
  CheckAccess(pointer, space, kind, bytes);
  return pointer;
}

void FunctionEmitter::CheckAccess(llvm::Value* pointer, Space space, AccessKind kind,
                                  uint32_t bytes, llvm::Value* enabled) {
  if (!shared_.check_accesses) return;
  cpu::Access access;
  access.kind = kind;
  access.bytes = bytes;
  access.space = space == Space::kGlobal   ? AccessSpace::kGlobal
                 : space == Space::kShared ? AccessSpace::kShared
                 : space == Space::kLocal  ? AccessSpace::kLocal
                 : space == Space::kConst  ? AccessSpace::kConst
                 : space == Space::kParam  ? AccessSpace::kParam
                                           : AccessSpace::kGeneric;
  llvm::Value* packed = builder_.getInt32(access.Pack());
  if (enabled != nullptr) packed = builder_.CreateSelect(enabled, packed, builder_.getInt32(0));
  CallRuntime("consort_rt_check_access", builder_.getVoidTy(),
              {context_, builder_.CreatePtrToInt(pointer, builder_.getInt64Ty()), packed, Site()});
}

llvm::Value* FunctionEmitter::CallWaiting(std::string_view name, llvm::Type* result,
                                          const std::vector<llvm::Value*>& arguments) {
  llvm::Value* value = CallRuntime(name, result, arguments);
  // Whatever makes fewer or other threads meet here would change what the kernel does.
  if (auto* call = llvm::dyn_cast<llvm::CallInst>(value)) call->setConvergent();
  if (coroutine_.end == nullptr) return value;
  EmitSuspend(builder_, coroutine_);
  if (result->isVoidTy()) return nullptr;
  return builder_.CreateTrunc(
      builder_.CreateLoad(IntType(64), FieldPointer(offsetof(ThreadContext, result))), result);
}

// Three loops over tid, x innermost, around the code of one thread, which starts at `thread_begin`.
void FunctionEmitter::BeginBlockLoop(llvm::BasicBlock* thread_begin) {
  llvm::BasicBlock* loops[3];
  llvm::PHINode* tid[3];
  for (llvm::BasicBlock*& loop : loops) loop = NewBlock();
  entry_end_ = builder_.CreateBr(loops[2]);
  for (int i = 2; i >= 0; --i) {
    builder_.SetInsertPoint(loops[i]);
    tid[i] = builder_.CreatePHI(IntType(32), 2);
    tid[i]->addIncoming(builder_.getInt32(0), i == 2 ? entry_ : loops[i + 1]);
    if (i > 0) builder_.CreateBr(loops[i - 1]);
  }
  llvm::Value* ntid[3];
  for (size_t i = 0; i < 3; ++i) {
    ntid[i] = Field(offsetof(ThreadContext, ntid) + i * sizeof(uint32_t), 32);
    fields_[offsetof(ThreadContext, tid) + i * sizeof(uint32_t)] = tid[i];
  }
  builder_.SetInsertPoint(loops[0]);
  llvm::Value* row = builder_.CreateAdd(builder_.CreateMul(tid[2], ntid[1]), tid[1]);
  llvm::Value* index = builder_.CreateAdd(builder_.CreateMul(row, ntid[0]), tid[0]);
  fields_[offsetof(ThreadContext, lane)] =
      builder_.CreateAnd(index, builder_.getInt32(kWarpLanes - 1));
  fields_[offsetof(ThreadContext, warp)] =
      builder_.CreateUDiv(index, builder_.getInt32(kWarpLanes));
  fields_[offsetof(ThreadContext, thread_index)] = index;
  builder_.CreateBr(thread_begin);
  llvm::BasicBlock* latch = NewBlock();
  leave_ = latch;
  for (int i = 0; i < 3; ++i) {
    builder_.SetInsertPoint(latch);
    llvm::Value* next = builder_.CreateNUWAdd(tid[i], builder_.getInt32(1));
    tid[i]->addIncoming(next, latch);
    latch = NewBlock();
    builder_.CreateCondBr(builder_.CreateICmpULT(next, ntid[i]), loops[i], latch);
  }
  builder_.SetInsertPoint(latch);
  builder_.CreateRetVoid();
}

void FunctionEmitter::EmitReturn() {
  if (leave_ != nullptr) {  // a kernel, which returns nothing
    builder_.CreateBr(leave_);
    return;
  }
  for (size_t i = 0; i < function_.returns.size(); ++i) {
    const uint32_t symbol = function_.returns[i];
    if (function_.symbols[symbol].space != Space::kRegister) continue;
    llvm::AllocaInst* slot = Register(symbol);
    llvm::Value* to =
        builder_.CreateConstGEP1_64(builder_.getInt8Ty(), returns_, layout_.returns.offsets[i]);
    builder_.CreateStore(builder_.CreateLoad(slot->getAllocatedType(), slot), to);
  }
  if (stack_blocks_before_ != nullptr) {
    builder_.CreateStore(stack_blocks_before_, FieldPointer(offsetof(ThreadContext, stack_blocks)));
  }
  builder_.CreateRetVoid();
}

void FunctionEmitter::EmitInstruction(const ptx::Instruction& instruction) {
  const InstructionRow* row = FindInstruction(instruction);
  if (row == nullptr) {
    Fail(absl::StatusCode::kUnimplemented,
         absl::StrCat("instruction `", InstructionText(instruction), "` is not supported"));
    return;
  }
  Step step(*this, instruction);
  const size_t operands = instruction.operands.size();
  const size_t hints = operands - step.operand_count();
  if (operands < row->operands_min + hints || operands > row->operands_max + hints) {
    FailSyntax(absl::StrCat("instruction `", InstructionText(instruction), "` does not take ",
                            operands, " operands"));
    return;
  }
  if (hints != 0) step.Read(operands - 1, ptx::Type::kU64);
  if (step.types.size() < row->types_min) {
    FailSyntax(absl::StrCat("instruction `", InstructionText(instruction), "` lacks a type"));
    return;
  }
  if (instruction.guard == ptx::kNone) {
    row->emit(step);
    return;
  }
  llvm::Value* guard = builder_.CreateLoad(builder_.getInt1Ty(), Register(instruction.guard));
  if (instruction.guard_negated) guard = builder_.CreateNot(guard);
  llvm::BasicBlock* then = NewBlock();
  llvm::BasicBlock* after = NewBlock();
  builder_.CreateCondBr(guard, then, after);
  builder_.SetInsertPoint(then);
  row->emit(step);
  builder_.CreateBr(after);
  builder_.SetInsertPoint(after);
}

llvm::BasicBlock* FunctionEmitter::NewBlock() {
  return llvm::BasicBlock::Create(builder_.getContext(), "", ir_function_);
}

void FunctionEmitter::StartUnreachableBlock() { builder_.SetInsertPoint(NewBlock()); }

llvm::BasicBlock* FunctionEmitter::LabelBlockAt(uint32_t label) {
  if (label_blocks_[label] == nullptr) label_blocks_[label] = NewBlock();
  return label_blocks_[label];
}

llvm::BasicBlock* FunctionEmitter::LabelBlock(const Operand& operand) {
  if (operand.kind != OperandKind::kLabel || function_.labels[operand.label].is_table) {
    FailSyntax("expected a label");
    return NewBlock();
  }
  return LabelBlockAt(operand.label);
}

llvm::Type* FunctionEmitter::IrType(Type type) {
  switch (type) {
    case Type::kF16:
      return builder_.getHalfTy();
    case Type::kF16x2:
      return llvm::FixedVectorType::get(builder_.getHalfTy(), 2);
    case Type::kBf16:
      return builder_.getBFloatTy();
    case Type::kBf16x2:
      return llvm::FixedVectorType::get(builder_.getBFloatTy(), 2);
    case Type::kU16x2:
    case Type::kS16x2:
      return llvm::FixedVectorType::get(builder_.getInt16Ty(), 2);
    case Type::kF32:
      return builder_.getFloatTy();
    case Type::kF64:
      return builder_.getDoubleTy();
    default:
      return IntType(ptx::TypeBits(type));
  }
}

llvm::Value* FunctionEmitter::Cast(llvm::Value* value, llvm::Type* type) {
  return value->getType() == type ? value : builder_.CreateBitCast(value, type);
}

llvm::Value* FunctionEmitter::EntryAlloca(llvm::Type* type, uint32_t align) {
  llvm::IRBuilder<> at_entry(entry_end_);
  llvm::AllocaInst* slot = at_entry.CreateAlloca(type);
  slot->setAlignment(llvm::Align(align));
  return slot;
}

llvm::Value* FunctionEmitter::MatrixBuffer() {
  if (matrix_buffer_ == nullptr) {
    matrix_buffer_ = EntryAlloca(llvm::ArrayType::get(IntType(8), sizeof(MatrixSlots)), 8);
  }
  return matrix_buffer_;
}

llvm::AllocaInst* FunctionEmitter::Register(uint32_t symbol) {
  llvm::AllocaInst*& slot = storage_[symbol];
  if (slot != nullptr) return slot;
  const Symbol& declared = function_.symbols[symbol];
  llvm::Type* type = IntType(ptx::TypeBits(declared.type));
  if (declared.vector_width > 1) type = llvm::ArrayType::get(type, declared.vector_width);
  llvm::IRBuilder<> at_entry(entry_end_);
  slot = at_entry.CreateAlloca(type);
  // A parameter in a register is also used where no instruction names it.
  if (!is_temporary_[symbol] || declared.kind != SymbolKind::kRegister) {
    llvm::IRBuilder<>(thread_end_).CreateStore(llvm::Constant::getNullValue(type), slot);
  }
  return slot;
}

llvm::Value* FunctionEmitter::CarryFlag() {
  if (carry_ == nullptr) {
    llvm::IRBuilder<> at_entry(entry_end_);
    carry_ = at_entry.CreateAlloca(at_entry.getInt1Ty());
    llvm::IRBuilder<>(thread_end_).CreateStore(builder_.getFalse(), carry_);
  }
  return carry_;
}

llvm::Value* FunctionEmitter::Storage(uint32_t symbol) {
  const Symbol& declared = function_.symbols[symbol];
  switch (declared.kind) {
    case SymbolKind::kInput:
      return builder_.CreateConstGEP1_64(builder_.getInt8Ty(), inputs_,
                                         layout_.inputs.offsets[declared.index]);
    case SymbolKind::kReturn:
      return builder_.CreateConstGEP1_64(builder_.getInt8Ty(), returns_,
                                         layout_.returns.offsets[declared.index]);
    default:
      break;
  }
  if (storage_[symbol] == nullptr) {
    llvm::IRBuilder<> at_entry(entry_end_);
    storage_[symbol] = at_entry.CreateAlloca(
        llvm::ArrayType::get(builder_.getInt8Ty(), std::max<uint64_t>(declared.bytes, 1)));
    storage_[symbol]->setAlignment(llvm::Align(std::max<uint32_t>(declared.align, 8)));
  }
  return storage_[symbol];
}

llvm::Value* FunctionEmitter::FieldPointer(size_t offset) {
  return builder_.CreateConstGEP1_64(builder_.getInt8Ty(), context_, offset);
}

llvm::Value* FunctionEmitter::Field(size_t offset, uint32_t bits) {
  llvm::Value*& cached = fields_[offset];
  if (cached != nullptr) return cached;
  llvm::IRBuilder<> at_entry(entry_end_);
  llvm::Value* pointer = at_entry.CreateConstGEP1_64(at_entry.getInt8Ty(), context_, offset);
  llvm::LoadInst* load = at_entry.CreateLoad(IntType(bits), pointer);
  if (const uint64_t end = FieldEnd(offset); end != 0) {
    load->setMetadata(llvm::LLVMContext::MD_range,
                      llvm::MDBuilder(builder_.getContext())
                          .createRange(llvm::APInt(bits, 0), llvm::APInt(bits, end)));
  }
  // The engine writes the field before the thread starts and not while it runs.
  load->setMetadata(llvm::LLVMContext::MD_invariant_load,
                    llvm::MDNode::get(builder_.getContext(), {}));
  cached = load;
  return cached;
}

llvm::Value* FunctionEmitter::SharedBase() { return Field(offsetof(ThreadContext, shared), 64); }

llvm::Value* FunctionEmitter::CallRuntime(std::string_view name, llvm::Type* result,
                                          const std::vector<llvm::Value*>& arguments) {
  std::vector<llvm::Type*> types;
  for (llvm::Value* argument : arguments) types.push_back(argument->getType());
  llvm::FunctionCallee callee = shared_.ir.getOrInsertFunction(
      llvm::StringRef(name.data(), name.size()), llvm::FunctionType::get(result, types, false));
  llvm::CallInst* call = builder_.CreateCall(callee, arguments);
  call->setDoesNotThrow();
  return call;
}

llvm::Value* FunctionEmitter::Constant(const Operand& operand, Type type) {
  llvm::Type* ir_type = IrType(type);
  if (operand.kind == OperandKind::kInteger) {
    if (ptx::IsFloat(type)) return llvm::ConstantFP::get(ir_type, double(operand.integer));
    const uint64_t bits = static_cast<uint64_t>(operand.integer);
    return Cast(builder_.getInt(llvm::APInt(ptx::TypeBits(type), bits)), ir_type);
  }
  // A literal of the type's width keeps its bits, NaNs included.
  const uint32_t width = ptx::TypeBits(type);
  if (!ptx::IsFloat(type) || width == operand.float_bits) {
    const uint64_t bits = static_cast<uint64_t>(operand.integer);
    return Cast(builder_.getInt(llvm::APInt(width, bits)), ir_type);
  }
  return llvm::ConstantFP::get(ir_type, operand.real);
}

llvm::Value* FunctionEmitter::VariableAddress(uint32_t variable) {
  const ptx::Variable& declared = shared_.ptx.variables[variable];
  if (declared.space != Space::kShared) {
    llvm::Value*& address = variables_[variable];
    if (address != nullptr) return address;
    llvm::IRBuilder<> at_entry(entry_end_);
    llvm::Value* table = shared_.ir.getOrInsertGlobal(kVariableTable, at_entry.getInt64Ty());
    llvm::LoadInst* load = at_entry.CreateLoad(
        at_entry.getInt64Ty(), at_entry.CreateConstGEP1_64(at_entry.getInt64Ty(), table, variable));
    load->setMetadata(llvm::LLVMContext::MD_invariant_load,
                      llvm::MDNode::get(builder_.getContext(), {}));
    address = load;
    return address;
  }
  if (!declared.is_extern) return builder_.getInt64(shared_.layout.shared_offsets[variable]);
  return builder_.CreateZExt(Field(offsetof(ThreadContext, static_shared_bytes), 32), IntType(64));
}

llvm::Value* FunctionEmitter::AddressOf(const Operand& operand) {
  llvm::Value* base = nullptr;
  if (operand.kind == OperandKind::kSymbol) {
    const Symbol& symbol = function_.symbols[operand.symbol];
    if (symbol.kind == SymbolKind::kVariable) {
      base = VariableAddress(symbol.index);
    } else {
      base = builder_.CreatePtrToInt(Storage(operand.symbol), IntType(64));
    }
  } else {
    const auto variable = shared_.ptx.variable_by_name.find(operand.text);
    const auto function = shared_.ptx.function_by_name.find(operand.text);
    if (variable != shared_.ptx.variable_by_name.end()) {
      base = VariableAddress(variable->second);
    } else if (function != shared_.ptx.function_by_name.end()) {
      base = builder_.getInt64(FunctionToken(function->second));
    } else {
      Fail(absl::StatusCode::kOutOfRange,
           absl::StrCat("unresolved symbol `", AbslText(operand.text), "`"));
      return builder_.getInt64(0);
    }
  }
  return builder_.CreateAdd(base, builder_.getInt64(static_cast<uint64_t>(operand.integer)));
}

llvm::Value* FunctionEmitter::Read(const Operand& operand, Type type) {
  llvm::Type* ir_type = IrType(type);
  const uint32_t bits = ptx::TypeBits(type);
  llvm::Value* value = nullptr;
  if (!operand.selector.empty()) FailNoComponent(operand);
  switch (operand.kind) {
    case OperandKind::kInteger:
    case OperandKind::kFloat:
      if (type == Type::kPred) return builder_.getInt1(operand.integer != 0);
      return Constant(operand, type);
    case OperandKind::kSpecial:
      value = SpecialRegister(operand);
      break;
    case OperandKind::kName:
      value = AddressOf(operand);
      break;
    case OperandKind::kSymbol: {
      const Symbol& symbol = function_.symbols[operand.symbol];
      if (symbol.space != Space::kRegister) {
        value = AddressOf(operand);
        break;
      }
      llvm::Type* element = IntType(ptx::TypeBits(symbol.type));
      llvm::Value* slot = Register(operand.symbol);
      if (operand.component != 0) {
        const uint32_t at = static_cast<uint32_t>(std::string_view("xyzw").find(operand.component));
        if (at >= symbol.vector_width) {
          FailSyntax(absl::StrCat("`", AbslText(symbol.name), "` has no such component"));
          return llvm::Constant::getNullValue(ir_type);
        }
        slot = builder_.CreateConstGEP1_64(element, slot, at);
      } else if (symbol.vector_width > 1) {
        FailSyntax(absl::StrCat("`", AbslText(symbol.name), "` is a vector"));
        return llvm::Constant::getNullValue(ir_type);
      }
      value = builder_.CreateLoad(element, slot);
      if (operand.integer != 0) {
        value = builder_.CreateAdd(
            value,
            llvm::ConstantInt::getSigned(llvm::cast<llvm::IntegerType>(element), operand.integer));
      }
      break;
    }
    default:
      FailSyntax("expected a register or a constant");
      return llvm::Constant::getNullValue(ir_type);
  }
  const uint32_t have = value->getType()->getIntegerBitWidth();
  if ((have == 1) != (bits == 1)) {
    FailSyntax(bits == 1 ? "expected a predicate" : "a predicate where a value is expected");
    return llvm::Constant::getNullValue(ir_type);
  }
  if (operand.negated) value = builder_.CreateNot(value);
  return Cast(builder_.CreateZExtOrTrunc(value, IntType(bits)), ir_type);
}

bool FunctionEmitter::IsPredicate(const Operand& operand) const {
  if (operand.kind != OperandKind::kSymbol) return false;
  const Symbol& symbol = function_.symbols[operand.symbol];
  return symbol.space == Space::kRegister && symbol.type == Type::kPred;
}

void FunctionEmitter::FailNoComponent(const Operand& operand) {
  FailSyntax(absl::StrCat("no component `.", AbslText(operand.selector), "`"));
}

void FunctionEmitter::Write(const Operand& operand, Type type, llvm::Value* value) {
  if (operand.kind == OperandKind::kSink) return;
  if (!operand.selector.empty()) return FailNoComponent(operand);
  if (operand.kind != OperandKind::kSymbol ||
      function_.symbols[operand.symbol].space != Space::kRegister) {
    FailSyntax("the destination is no register");
    return;
  }
  const Symbol& symbol = function_.symbols[operand.symbol];
  const uint32_t width = ptx::TypeBits(symbol.type);
  if ((width == 1) != (type == Type::kPred)) {
    FailSyntax(absl::StrCat("`", AbslText(symbol.name), "` has another type than the result"));
    return;
  }
  llvm::Value* bits = Cast(value, IntType(ptx::TypeBits(type)));
  bits = ptx::IsSigned(type) ? builder_.CreateSExtOrTrunc(bits, IntType(width))
                             : builder_.CreateZExtOrTrunc(bits, IntType(width));
  llvm::Value* slot = Register(operand.symbol);
  if (operand.component != 0) {
    const uint32_t at = static_cast<uint32_t>(std::string_view("xyzw").find(operand.component));
    if (at >= symbol.vector_width) {
      FailSyntax(absl::StrCat("`", AbslText(symbol.name), "` has no such component"));
      return;
    }
    slot = builder_.CreateConstGEP1_64(IntType(width), slot, at);
  } else if (symbol.vector_width > 1) {
    FailSyntax(absl::StrCat("`", AbslText(symbol.name), "` is a vector"));
    return;
  }
  builder_.CreateStore(bits, slot);
}

llvm::Value* FunctionEmitter::ReadPacked(const Operand& operand, Type type) {
  if (const Operand& one = ElementOfOne(operand); one.kind != OperandKind::kVector) {
    return Read(one, type);
  }
  const uint32_t bits = ptx::TypeBits(type);
  const uint32_t count = static_cast<uint32_t>(operand.elements.size());
  if (count < 2 || bits % count != 0 || bits / count < 8) {
    FailSyntax("the vector does not fit the type");
    return llvm::Constant::getNullValue(IrType(type));
  }
  const uint32_t part = bits / count;
  const Type part_type = part == 8    ? Type::kB8
                         : part == 16 ? Type::kB16
                         : part == 32 ? Type::kB32
                                      : Type::kB64;
  llvm::Value* joined = llvm::ConstantInt::get(IntType(bits), 0);
  for (uint32_t i = 0; i < count; ++i) {
    llvm::Value* element = builder_.CreateZExt(Read(operand.elements[i], part_type), IntType(bits));
    joined = builder_.CreateOr(joined, builder_.CreateShl(element, uint64_t{i} * part));
  }
  return Cast(joined, IrType(type));
}

void FunctionEmitter::WritePacked(const Operand& operand, Type type, llvm::Value* value) {
  if (const Operand& one = ElementOfOne(operand); one.kind != OperandKind::kVector) {
    return Write(one, type, value);
  }
  const uint32_t bits = ptx::TypeBits(type);
  const uint32_t count = static_cast<uint32_t>(operand.elements.size());
  if (count < 2 || bits % count != 0 || bits / count < 8) {
    FailSyntax("the vector does not fit the type");
    return;
  }
  const uint32_t part = bits / count;
  const Type part_type = part == 8    ? Type::kB8
                         : part == 16 ? Type::kB16
                         : part == 32 ? Type::kB32
                                      : Type::kB64;
  value = Cast(value, IntType(bits));
  for (uint32_t i = 0; i < count; ++i) {
    llvm::Value* shifted = builder_.CreateLShr(value, uint64_t{i} * part);
    Write(operand.elements[i], part_type, builder_.CreateTrunc(shifted, IntType(part)));
  }
}

llvm::Value* FunctionEmitter::Pointer(const Operand& address, Space space) {
  llvm::PointerType* pointer_type = builder_.getPtrTy();
  if (address.kind != OperandKind::kAddress || address.elements.size() != 1) {
    FailSyntax("expected an address [base+offset]");
    return llvm::ConstantPointerNull::get(pointer_type);
  }
  const Operand& base = address.elements[0];
  llvm::Value* value = nullptr;
  if (base.kind == OperandKind::kSymbol) {
    const Symbol& symbol = function_.symbols[base.symbol];
    if (symbol.kind == SymbolKind::kVariable) {
      value = AddressOf(base);
      if (shared_.ptx.variables[symbol.index].space == Space::kShared) space = Space::kShared;
    } else if (symbol.space == Space::kRegister) {
      if (ptx::TypeBits(symbol.type) < 32) {
        FailSyntax("an address takes a register of 32 or 64 bits");
        return llvm::ConstantPointerNull::get(pointer_type);
      }
      Operand without_offset = base;
      without_offset.integer = 0;
      value = builder_.CreateAdd(Read(without_offset, Type::kU64),
                                 builder_.getInt64(static_cast<uint64_t>(base.integer)));
    } else {
      return builder_.CreateConstGEP1_64(builder_.getInt8Ty(), Storage(base.symbol),
                                         static_cast<uint64_t>(base.integer));
    }
  } else if (base.kind == OperandKind::kName) {
    value = AddressOf(base);
    const auto variable = shared_.ptx.variable_by_name.find(base.text);
    if (variable != shared_.ptx.variable_by_name.end() &&
        shared_.ptx.variables[variable->second].space == Space::kShared) {
      space = Space::kShared;
    }
  } else {
    value = Read(base, Type::kU64);
  }
  if (space == Space::kShared) {
    // Offsets into the shared window wrap at 32 bits, which keeps every access inside the reserved
    // address range of the window (see SharedWindow).
    value = builder_.CreateZExt(builder_.CreateTrunc(value, IntType(32)), IntType(64));
    llvm::Value* window = builder_.CreateIntToPtr(SharedBase(), pointer_type);
    return builder_.CreateGEP(builder_.getInt8Ty(), window, value);
  }
  return builder_.CreateIntToPtr(value, pointer_type);
}

}  // namespace consort::cpu
