// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/layout.h"

#include <algorithm>
#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace consort::cpu {
namespace {

using ptx::Function;
using ptx::Instruction;
using ptx::Module;
using ptx::Operand;
using ptx::OperandKind;
using ptx::Space;
using ptx::SymbolKind;

bool HasModifier(const Instruction& instruction, std::string_view name) {
  return std::find(instruction.modifiers.begin(), instruction.modifiers.end(), name) !=
         instruction.modifiers.end();
}

// Instructions that wait for other threads.
bool IsCollective(const Instruction& instruction) {
  static constexpr std::string_view kCollectives[] = {
      "bar",   "barrier", "shfl", "vote",     "match",    "activemask", "redux",
      "elect", "mma",     "wmma", "ldmatrix", "stmatrix", "movmatrix"};
  return std::find(std::begin(kCollectives), std::end(kCollectives), instruction.opcode) !=
         std::end(kCollectives);
}

// Instructions with which a thread may wait for memory written by another one.
bool MayPoll(const Instruction& instruction) {
  if (instruction.opcode == "atom") {
    return HasModifier(instruction, "cas") || HasModifier(instruction, "exch");
  }
  if (instruction.opcode == "mbarrier") {
    return HasModifier(instruction, "test_wait") || HasModifier(instruction, "try_wait");
  }
  return instruction.opcode == "ld" &&
         (HasModifier(instruction, "volatile") || HasModifier(instruction, "acquire") ||
          HasModifier(instruction, "relaxed") || HasModifier(instruction, "cv"));
}

// Where every thread that comes along waits for all others of its block.
bool IsBlockBarrier(const Instruction& instruction) {
  return (instruction.opcode == "bar" || instruction.opcode == "barrier") &&
         HasModifier(instruction, "sync") && !HasModifier(instruction, "warp") &&
         instruction.guard == ptx::kNone;
}

// True if each turn of the loop from instruction `first` to the branch `last` passes a barrier of
// the block, as far as straight code at its beginning and end shows.
bool PassesBarrier(const Function& function, uint32_t first, uint32_t last) {
  std::vector<bool> is_target(function.instructions.size() + 1, false);
  for (const ptx::Label& label : function.labels) is_target[label.instruction] = true;
  const auto leaves = [&](uint32_t at) {
    const std::string_view opcode = function.instructions[at].opcode;
    return opcode == "bra" || opcode == "brx" || opcode == "ret" || opcode == "exit";
  };
  for (uint32_t at = first; at < last && !leaves(at) && (at == first || !is_target[at]); ++at) {
    if (IsBlockBarrier(function.instructions[at])) return true;
  }
  for (uint32_t at = last; at > first && !is_target[at] && !leaves(at - 1); --at) {
    if (IsBlockBarrier(function.instructions[at - 1])) return true;
  }
  return false;
}

class Analysis {
 public:
  Analysis(const Module& module, ModuleLayout& layout) : module_(module), layout_(layout) {}

  absl::Status Run() {
    layout_.functions.resize(module_.functions.size());
    layout_.kernels.resize(module_.functions.size());
    layout_.shared_offsets.assign(module_.variables.size(), 0);
    layout_.function_address_taken.assign(module_.functions.size(), false);
    RETURN_IF_ERROR(CheckRelocations());
    for (uint32_t i = 0; i < module_.functions.size(); ++i) RETURN_IF_ERROR(AnalyseFunction(i));
    for (uint32_t i = 0; i < module_.functions.size(); ++i) {
      if (module_.functions[i].is_entry) AnalyseKernel(i);
    }
    return PlaceShared();
  }

 private:
  absl::Status Unresolved(int line, std::string_view name) const {
    return absl::OutOfRangeError(absl::StrCat("line ", line, ": unresolved symbol `",
                                              absl::string_view(name.data(), name.size()), "`"));
  }

  absl::Status CheckRelocations() {
    for (const ptx::Variable& variable : module_.variables) {
      if (variable.is_extern && variable.space != Space::kShared) {
        return Unresolved(variable.line, variable.name);
      }
      for (const ptx::Relocation& relocation : variable.relocations) {
        if (module_.variable_by_name.contains(relocation.symbol)) continue;
        const auto found = module_.function_by_name.find(relocation.symbol);
        if (found == module_.function_by_name.end()) {
          return Unresolved(relocation.line, relocation.symbol);
        }
        layout_.function_address_taken[found->second] = true;
      }
    }
    return absl::OkStatus();
  }

  absl::Status VisitOperand(const Operand& operand, const Instruction& instruction,
                            const Function& function, FunctionLayout& out, bool is_call_target) {
    for (const Operand& element : operand.elements) {
      RETURN_IF_ERROR(VisitOperand(element, instruction, function, out, false));
    }
    if (operand.kind == OperandKind::kSpecial &&
        operand.text.starts_with("%reserved_smem_offset")) {
      out.uses_reserved_shared = true;
    }
    uint32_t variable = ptx::kNone;
    if (operand.kind == OperandKind::kSymbol &&
        function.symbols[operand.symbol].kind == SymbolKind::kVariable) {
      variable = function.symbols[operand.symbol].index;
    } else if (operand.kind == OperandKind::kName) {
      const auto found_variable = module_.variable_by_name.find(operand.text);
      const auto found_function = module_.function_by_name.find(operand.text);
      if (found_variable != module_.variable_by_name.end()) {
        variable = found_variable->second;
      } else if (found_function != module_.function_by_name.end()) {
        out.references.push_back(found_function->second);
        if (!is_call_target) layout_.function_address_taken[found_function->second] = true;
      } else {
        return Unresolved(instruction.line, operand.text);
      }
    }
    if (variable != ptx::kNone && module_.variables[variable].space == Space::kShared) {
      out.shared_variables.push_back(variable);
    }
    return absl::OkStatus();
  }

  absl::Status AnalyseFunction(uint32_t index) {
    const Function& function = module_.functions[index];
    FunctionLayout& out = layout_.functions[index];
    out.inputs = PackParams(function, function.inputs);
    out.returns = PackParams(function, function.returns);
    for (const ptx::Symbol& symbol : function.symbols) {
      if (symbol.kind == SymbolKind::kLocal) out.local_bytes += static_cast<uint32_t>(symbol.bytes);
      if (symbol.kind == SymbolKind::kRegister) ++out.register_count;
    }
    std::vector<uint32_t> polls_before(function.instructions.size() + 1, 0);
    for (uint32_t i = 0; i < function.instructions.size(); ++i) {
      polls_before[i + 1] = polls_before[i] + (MayPoll(function.instructions[i]) ? 1 : 0);
    }
    for (uint32_t i = 0; i < function.instructions.size(); ++i) {
      const Instruction& instruction = function.instructions[i];
      out.has_call |= instruction.opcode == "call";
      out.has_alloca |= instruction.opcode == "alloca";
      out.may_poll |= MayPoll(instruction) || instruction.opcode == "atom";
      if (IsCollective(instruction) || (instruction.opcode == "exit" && !function.is_entry)) {
        out.has_collective = true;
      }
      // The called function is the first operand that is no list.
      bool target_seen = instruction.opcode != "call";
      for (const Operand& operand : instruction.operands) {
        const bool is_target = !target_seen && operand.kind != OperandKind::kList;
        target_seen = target_seen || is_target;
        if (is_target && operand.kind == OperandKind::kSymbol) out.has_indirect_call = true;
        RETURN_IF_ERROR(VisitOperand(operand, instruction, function, out, is_target));
        if (operand.kind == OperandKind::kLabel && instruction.opcode == "bra") {
          const uint32_t target = function.labels[operand.label].instruction;
          // Who waits at a barrier in each turn lets the others run there.
          if (target <= i && polls_before[i] > polls_before[target] &&
              !PassesBarrier(function, target, i)) {
            out.polling_branches.push_back(i);
          }
        }
      }
    }
    SortUnique(out.references);
    SortUnique(out.shared_variables);
    return absl::OkStatus();
  }

  void AnalyseKernel(uint32_t index) {
    KernelLayout& kernel = layout_.kernels[index];
    bool waits = false;
    bool callee_waits = false;
    std::vector<uint32_t> open = {index};
    absl::flat_hash_set<uint32_t> seen = {index};
    while (!open.empty()) {
      const uint32_t at = open.back();
      open.pop_back();
      kernel.functions.push_back(at);
      const FunctionLayout& function = layout_.functions[at];
      if (function.has_collective || !function.polling_branches.empty()) {
        waits = true;
        callee_waits |= at != index;
      }
      kernel.local_bytes += function.local_bytes;
      kernel.uses_reserved_shared |= function.uses_reserved_shared;
      kernel.uses_alloca |= function.has_alloca;
      kernel.may_poll |= function.may_poll;
      for (const uint32_t next : function.references) {
        if (seen.insert(next).second) open.push_back(next);
      }
      if (!function.has_indirect_call) continue;
      for (uint32_t next = 0; next < module_.functions.size(); ++next) {
        if (layout_.function_address_taken[next] && seen.insert(next).second) open.push_back(next);
      }
    }
    std::sort(kernel.functions.begin(), kernel.functions.end());
    if (!waits) {
      kernel.mode = layout_.functions[index].has_call || kernel.uses_alloca
                        ? ThreadsMode::kLoop
                        : ThreadsMode::kBlockLoop;
    } else {
      // A coroutine keeps .local variables in its frame, where isspacep would not look for them.
      kernel.mode = callee_waits || kernel.local_bytes > 0 || kernel.uses_alloca
                        ? ThreadsMode::kFibers
                        : ThreadsMode::kCoroutines;
    }
  }

  // Gives each shared variable one offset for all kernels, as functions are compiled for any
  // caller, such that two variables of one kernel never overlap: first fit over the kernels that
  // use it.
  absl::Status PlaceShared() {
    std::vector<std::vector<uint32_t>> users(module_.variables.size());  // kernels
    std::vector<uint32_t> kernels;
    for (uint32_t k = 0; k < layout_.kernels.size(); ++k) {
      std::vector<uint32_t> used;
      for (const uint32_t f : layout_.kernels[k].functions) {
        const auto& variables = layout_.functions[f].shared_variables;
        used.insert(used.end(), variables.begin(), variables.end());
      }
      SortUnique(used);
      for (const uint32_t v : used) users[v].push_back(k);
    }
    // Kernels mostly use variables of their own, so packing at the end of what the users have so
    // far wastes nothing but in modules where functions share variables.
    for (uint32_t v = 0; v < module_.variables.size(); ++v) {
      const ptx::Variable& variable = module_.variables[v];
      if (variable.space != Space::kShared || variable.is_extern || users[v].empty()) continue;
      uint64_t offset = 0;
      for (const uint32_t k : users[v]) {
        offset = std::max<uint64_t>(offset, layout_.kernels[k].static_shared_bytes);
      }
      offset = (offset + variable.align - 1) / variable.align * variable.align;
      if (offset + variable.bytes > kSharedBytesMax) {
        return absl::InvalidArgumentError(absl::StrCat("line ", variable.line, ": more than ",
                                                       kSharedBytesMax, " bytes of shared memory"));
      }
      layout_.shared_offsets[v] = static_cast<uint32_t>(offset);
      for (const uint32_t k : users[v]) {
        layout_.kernels[k].static_shared_bytes = static_cast<uint32_t>(offset + variable.bytes);
      }
    }
    return absl::OkStatus();
  }

  static void SortUnique(std::vector<uint32_t>& values) {
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
  }

  // The most shared memory of a block on any GPU to date.
  // Source: CUDA C++ Programming Guide, compute capabilities (227 KiB on 9.0 and 10.0).
  static constexpr uint64_t kSharedBytesMax = 227 * 1024;

  const Module& module_;
  ModuleLayout& layout_;
};

}  // namespace

ParamLayout PackParams(const ptx::Function& function, const std::vector<uint32_t>& symbols) {
  ParamLayout layout;
  for (const uint32_t index : symbols) {
    const ptx::Symbol& symbol = function.symbols[index];
    layout.bytes = (layout.bytes + symbol.align - 1) / symbol.align * symbol.align;
    layout.offsets.push_back(layout.bytes);
    layout.bytes += static_cast<uint32_t>(symbol.bytes);
  }
  return layout;
}

absl::StatusOr<ModuleLayout> ModuleLayout::Make(const ptx::Module& module) {
  ModuleLayout layout;
  RETURN_IF_ERROR(Analysis(module, layout).Run());
  return layout;
}

}  // namespace consort::cpu
