// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/emit_control.cc: branches, calls, exits, traps, the stack.
// Source: PTX ISA 9.0, 7.1 "Function Declarations and Definitions", 9.7.12 "Control Flow".
#include <algorithm>
#include <bit>
#include <cstddef>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "device/cpu/codegen/emit.h"
#include "device/cpu/engine/thread_context.h"

namespace consort::cpu {
namespace {

using llvm::Value;
using ptx::Operand;
using ptx::OperandKind;
using ptx::Space;
using ptx::Symbol;
using ptx::Type;

// The parts of a call instruction.
struct CallParts {
  const std::vector<Operand>* returns = nullptr;
  const Operand* target = nullptr;
  const std::vector<Operand>* arguments = nullptr;
};

bool SplitCall(const Step& step, CallParts& parts) {
  size_t at = 0;
  if (step.operand(at).kind == OperandKind::kList) parts.returns = &step.operand(at++).elements;
  if (at >= step.operand_count()) return false;
  parts.target = &step.operand(at++);
  if (at < step.operand_count() && step.operand(at).kind == OperandKind::kList) {
    parts.arguments = &step.operand(at++).elements;
  }
  // What is left is the prototype or target list of an indirect call, of which nothing is needed:
  // buffers are laid out by the arguments' own declarations.
  return at + 1 >= step.operand_count();
}

// Type, size and alignment of one argument or returned value.
struct Slot {
  Type type = Type::kB32;
  bool is_register = false;
  uint64_t bytes = 0;
  uint32_t align = 1;
};

Slot SlotOf(Step& step, const Operand& operand, const Symbol* parameter) {
  Slot slot;
  const Symbol* own =
      operand.kind == OperandKind::kSymbol ? &step.f.function().symbols[operand.symbol] : nullptr;
  slot.is_register = own == nullptr || own->space == Space::kRegister;
  const Symbol* declared = parameter != nullptr ? parameter : own;
  if (declared == nullptr) {
    step.f.FailSyntax("a constant argument of an indirect call has no type");
    return slot;
  }
  // Of a variadic function's last parameter only the caller knows the size.
  if (declared->IsUnsized() && !slot.is_register) declared = own;
  slot.type = declared->type;
  slot.bytes = declared->bytes != 0 ? declared->bytes : ptx::TypeBytes(declared->type);
  slot.align =
      declared->space == Space::kRegister ? ptx::TypeBytes(declared->type) : declared->align;
  if (!slot.is_register && own->bytes != slot.bytes) {
    step.f.FailSyntax(absl::StrCat("`", absl::string_view(own->name.data(), own->name.size()),
                                   "` and the parameter differ in size"));
  }
  return slot;
}

Value* ArgumentValue(Step& step, const std::vector<Operand>* arguments, size_t index, Type type) {
  if (arguments == nullptr || index >= arguments->size()) {
    step.f.FailSyntax("too few arguments");
    return llvm::Constant::getNullValue(step.f.IrType(type));
  }
  const Operand& operand = (*arguments)[index];
  if (operand.kind == OperandKind::kSymbol &&
      step.f.function().symbols[operand.symbol].space == Space::kParam) {
    return step.ir().CreateLoad(step.f.IrType(type), step.f.Storage(operand.symbol));
  }
  return step.f.Read(operand, type);
}

// Functions that CUDA's device runtime has and PTX only declares.
// Source: CUDA C++ Programming Guide, formatted output, assertion, dynamic global memory,
// conditional graph nodes.
// Returns false if `name` is none of them.
bool EmitBuiltin(Step& step, std::string_view name, const CallParts& parts) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* result = nullptr;
  Type result_type = Type::kU32;
  if (name == "vprintf") {
    result = step.f.CallRuntime("consort_rt_vprintf", ir.getInt32Ty(),
                                {ArgumentValue(step, parts.arguments, 0, Type::kU64),
                                 ArgumentValue(step, parts.arguments, 1, Type::kU64)});
  } else if (name == "__assertfail") {
    step.f.CallRuntime("consort_rt_assertfail", ir.getVoidTy(),
                       {step.f.context(), ArgumentValue(step, parts.arguments, 0, Type::kU64),
                        ArgumentValue(step, parts.arguments, 1, Type::kU64),
                        ArgumentValue(step, parts.arguments, 2, Type::kU32),
                        ArgumentValue(step, parts.arguments, 3, Type::kU64)});
  } else if (name == "malloc") {
    result_type = Type::kU64;
    const bool checks = step.f.shared().check_accesses;
    result =
        step.f.CallRuntime(checks ? "consort_rt_checked_malloc" : "consort_rt_malloc",
                           ir.getInt64Ty(), {ArgumentValue(step, parts.arguments, 0, Type::kU64)});
  } else if (name == "free") {
    Value* address = ArgumentValue(step, parts.arguments, 0, Type::kU64);
    if (step.f.shared().check_accesses) {
      step.f.CallRuntime("consort_rt_checked_free", ir.getVoidTy(),
                         {step.f.context(), address, step.f.Site()});
    } else {
      step.f.CallRuntime("consort_rt_free", ir.getVoidTy(), {address});
    }
  } else if (name == "cudaGraphSetConditional") {
    // A handle is its condition's address (device/cpu/driver/graph.h).
    Value* handle = ArgumentValue(step, parts.arguments, 0, Type::kU64);
    ir.CreateStore(ArgumentValue(step, parts.arguments, 1, Type::kU32),
                   ir.CreateIntToPtr(handle, ir.getPtrTy()));
  } else {
    return false;
  }
  if (result != nullptr && parts.returns != nullptr && !parts.returns->empty()) {
    const Operand& to = parts.returns->front();
    if (to.kind == OperandKind::kSymbol &&
        step.f.function().symbols[to.symbol].space == Space::kParam) {
      ir.CreateStore(result, step.f.Storage(to.symbol));
    } else {
      step.f.Write(to, result_type, result);
    }
  }
  return true;
}

// The function pointer that `token` (see FunctionToken) stands for; traps if it is none.
Value* IndirectTarget(Step& step, Value* token) {
  llvm::IRBuilder<>& ir = step.ir();
  EmitterShared& shared = step.f.shared();
  const uint64_t count = shared.functions.size();
  Value* index = ir.CreateSub(ir.CreateLShr(token, 4), ir.getInt64(1));
  Value* is_good = ir.CreateAnd(ir.CreateICmpULT(index, ir.getInt64(count)),
                                ir.CreateIsNull(ir.CreateAnd(token, 15)));
  Value* safe = ir.CreateSelect(is_good, index, ir.getInt64(0));
  Value* slot = ir.CreateGEP(ir.getPtrTy(), shared.function_table, safe);
  Value* target = ir.CreateLoad(ir.getPtrTy(), slot);
  Value* callable = ir.CreateAnd(is_good, ir.CreateIsNotNull(target));
  llvm::BasicBlock* bad = step.f.NewBlock();
  llvm::BasicBlock* good = step.f.NewBlock();
  ir.CreateCondBr(callable, good, bad);
  ir.SetInsertPoint(bad);
  step.f.CallRuntime("consort_rt_bad_call", ir.getVoidTy(), {step.f.context()});
  ir.CreateUnreachable();
  ir.SetInsertPoint(good);
  return target;
}

void EmitCallTo(Step& step, const CallParts& parts, Value* target, const ptx::Function* callee) {
  llvm::IRBuilder<>& ir = step.ir();
  static const std::vector<Operand> kNoOperands;
  const auto& arguments = parts.arguments != nullptr ? *parts.arguments : kNoOperands;
  const auto& returns = parts.returns != nullptr ? *parts.returns : kNoOperands;
  if (callee != nullptr &&
      (arguments.size() != callee->inputs.size() || returns.size() != callee->returns.size())) {
    step.f.FailSyntax("the number of arguments is not the function's");
    return;
  }
  auto parameter = [&](const std::vector<uint32_t>& list, size_t i) -> const Symbol* {
    return callee == nullptr ? nullptr : &callee->symbols[list[i]];
  };
  auto pack = [&](const std::vector<Operand>& operands, bool is_return, std::vector<Slot>& slots,
                  std::vector<uint64_t>& offsets) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < operands.size(); ++i) {
      const Symbol* declared =
          callee == nullptr ? nullptr : parameter(is_return ? callee->returns : callee->inputs, i);
      slots.push_back(SlotOf(step, operands[i], declared));
      const uint64_t align = std::max<uint64_t>(slots.back().align, 1);
      bytes = (bytes + align - 1) / align * align;
      offsets.push_back(bytes);
      bytes += slots.back().bytes;
    }
    return step.f.EntryAlloca(llvm::ArrayType::get(ir.getInt8Ty(), std::max<uint64_t>(bytes, 1)),
                              16);
  };
  std::vector<Slot> in_slots, out_slots;
  std::vector<uint64_t> in_offsets, out_offsets;
  Value* in = pack(arguments, false, in_slots, in_offsets);
  Value* out = pack(returns, true, out_slots, out_offsets);
  if (!step.f.status().ok()) return;
  auto at = [&](Value* buffer, uint64_t offset) {
    return ir.CreateConstGEP1_64(ir.getInt8Ty(), buffer, offset);
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    Value* to = at(in, in_offsets[i]);
    if (in_slots[i].is_register) {
      ir.CreateStore(step.f.Read(arguments[i], in_slots[i].type), to);
    } else {
      ir.CreateMemCpy(to, llvm::Align(1), step.f.Storage(arguments[i].symbol), llvm::Align(1),
                      in_slots[i].bytes);
    }
  }
  Value* const stack_blocks = step.f.EnterArguments(in, callee);
  ir.CreateCall(FunctionIrType(ir.getContext()), target, {step.f.context(), in, out})
      ->setDoesNotThrow();
  step.f.LeaveArguments(stack_blocks);
  for (size_t i = 0; i < returns.size(); ++i) {
    Value* from = at(out, out_offsets[i]);
    if (out_slots[i].is_register) {
      step.f.Write(returns[i], out_slots[i].type,
                   ir.CreateLoad(step.f.IrType(out_slots[i].type), from));
    } else {
      ir.CreateMemCpy(step.f.Storage(returns[i].symbol), llvm::Align(1), from, llvm::Align(1),
                      out_slots[i].bytes);
    }
  }
}

}  // namespace

void EmitBranch(Step& step) {
  // A thread that goes back to poll again lets others of its block run from time to time. Only
  // there: between a load and the store that depends on it, lanes of a warp must not change places,
  // as code that was written for warps in lockstep (tags in shared memory) relies on that.
  const std::vector<uint32_t>& polling = step.f.function_layout().polling_branches;
  const auto index =
      static_cast<uint32_t>(&step.instruction - step.f.function().instructions.data());
  if (std::binary_search(polling.begin(), polling.end(), index)) {
    step.f.CallWaiting("consort_rt_yield", step.ir().getVoidTy(), {step.f.context()});
  }
  const Operand& target = step.operand(0);
  if (target.kind == OperandKind::kLabel &&
      step.f.function().labels[target.label].instruction <= index) {
    step.f.WatchTime();
  }
  step.ir().CreateBr(step.f.LabelBlock(target));
  step.f.StartUnreachableBlock();
}

void EmitBranchIndexed(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const Operand& table = step.operand(1);
  if (!step.Has("idx") || table.kind != OperandKind::kLabel ||
      !step.f.function().labels[table.label].is_table) {
    step.f.FailSyntax("expected a .branchtargets label");
    return;
  }
  const std::vector<uint32_t>& targets = step.f.function().labels[table.label].targets;
  step.f.WatchTime();
  llvm::BasicBlock* bad = step.f.NewBlock();
  llvm::SwitchInst* branch =
      ir.CreateSwitch(step.Read(0, Type::kU32), bad, static_cast<unsigned>(targets.size()));
  for (uint32_t i = 0; i < targets.size(); ++i) {
    branch->addCase(ir.getInt32(i), step.f.LabelBlockAt(targets[i]));
  }
  ir.SetInsertPoint(bad);
  step.f.CallRuntime("consort_rt_bad_call", ir.getVoidTy(), {step.f.context()});
  ir.CreateUnreachable();
  step.f.StartUnreachableBlock();
}

void EmitCall(Step& step) {
  CallParts parts;
  if (!SplitCall(step, parts)) return step.f.FailSyntax("a call without a function");
  const Operand& target = *parts.target;
  EmitterShared& shared = step.f.shared();
  if (target.kind == OperandKind::kSymbol) {
    Value* pointer = IndirectTarget(step, step.f.Read(target, Type::kU64));
    return EmitCallTo(step, parts, pointer, nullptr);
  }
  const auto found = shared.ptx.function_by_name.find(target.text);
  if (target.kind != OperandKind::kName || found == shared.ptx.function_by_name.end()) {
    return step.f.FailSyntax("the call names no function");
  }
  const ptx::Function& callee = shared.ptx.functions[found->second];
  if (callee.has_body) {
    return EmitCallTo(step, parts, shared.functions[found->second], &callee);
  }
  if (!EmitBuiltin(step, callee.name, parts)) {
    step.f.Fail(absl::StatusCode::kOutOfRange,
                absl::StrCat("unresolved symbol `",
                             absl::string_view(target.text.data(), target.text.size()), "`"));
  }
}

void EmitRet(Step& step) {
  step.f.EmitReturn();
  step.f.StartUnreachableBlock();
}

void EmitExit(Step& step) {
  if (step.f.function().is_entry) return EmitRet(step);
  step.f.CallRuntime("consort_rt_exit", step.ir().getVoidTy(), {step.f.context()});
  step.ir().CreateUnreachable();
  step.f.StartUnreachableBlock();
}

void EmitTrap(Step& step) {
  step.f.CallRuntime("consort_rt_trap", step.ir().getVoidTy(), {step.f.context()});
  step.ir().CreateUnreachable();
  step.f.StartUnreachableBlock();
}

// Local addresses are generic ones. Source: PTX ISA 9.0, 9.7.15 "Stack Manipulation Instructions".
void EmitAlloca(Step& step) {
  constexpr uint64_t kAlignDefault = 8;
  constexpr uint64_t kAlignMax = 1 << 12;
  uint64_t align = kAlignDefault;
  if (step.operand_count() == 3) {
    align = static_cast<uint64_t>(step.operand(2).integer);
    if (step.operand(2).kind != OperandKind::kInteger || !std::has_single_bit(align) ||
        align > kAlignMax) {
      return step.f.FailSyntax("the alignment is no power of two, or too large");
    }
  }
  Value* memory = step.f.StackMemory(step.Read(1), static_cast<uint32_t>(align));
  step.Write(step.ir().CreatePtrToInt(memory, step.ir().getInt64Ty()));
}

void EmitStackSave(Step& step) {
  step.Write(step.ir().CreatePtrToInt(step.ir().CreateStackSave(), step.ir().getInt64Ty()));
}

// In checked code all memory lives until the function returns: its list goes through it.
void EmitStackRestore(Step& step) {
  if (step.f.shared().check_accesses) return;
  step.ir().CreateStackRestore(step.ir().CreateIntToPtr(step.Read(0), step.ir().getPtrTy()));
}

void EmitNothing(Step&) {}

void EmitNanosleep(Step& step) {
  // A hint to wait; other threads of the block may run meanwhile, where there are fibers for it.
  if (!step.f.function_layout().polling_branches.empty()) {
    step.f.CallWaiting("consort_rt_yield", step.ir().getVoidTy(), {step.f.context()});
  }
}

}  // namespace consort::cpu
