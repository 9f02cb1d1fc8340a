// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/compiler.h"

#include <utility>

#include "absl/base/call_once.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "device/cpu/codegen/function_emitter.h"
#include "device/cpu/engine/runtime.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/IR/Verifier.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"

namespace consort::cpu {
namespace {

absl::Status LlvmError(std::string_view what, llvm::Error error) {
  return absl::InternalError(absl::StrCat(absl::string_view(what.data(), what.size()), ": ",
                                          llvm::toString(std::move(error))));
}

void InitialiseLlvmOnce() {
  static absl::once_flag once;
  absl::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
  });
}

// Malformed code is a bug of an emit function; found here, it is an error of one module only.
absl::Status Verify(const llvm::Function& function) {
  std::string problems;
  llvm::raw_string_ostream stream(problems);
  if (!llvm::verifyFunction(function, &stream)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("generated code is not well-formed: ", problems));
}

// Declares `functions` (indices into ptx.functions) in `ir`, and the table for indirect calls.
EmitterShared Declare(const ptx::Module& ptx, const ModuleLayout& layout,
                      const std::vector<void*>& addresses, llvm::Module& ir,
                      const std::vector<uint32_t>& functions, uint32_t external) {
  EmitterShared shared{ptx, layout, addresses, ir, {}, nullptr};
  shared.functions.assign(ptx.functions.size(), nullptr);
  llvm::LLVMContext& context = ir.getContext();
  llvm::PointerType* pointer = llvm::PointerType::getUnqual(context);
  std::vector<llvm::Constant*> table(ptx.functions.size(), llvm::ConstantPointerNull::get(pointer));
  bool has_indirect_call = false;
  for (const uint32_t index : functions) {
    if (!ptx.functions[index].has_body) continue;
    llvm::Function* function = llvm::Function::Create(
        FunctionIrType(context),
        index == external ? llvm::GlobalValue::ExternalLinkage : llvm::GlobalValue::InternalLinkage,
        FunctionIrName(ptx, index), ir);
    function->setDoesNotThrow();
    function->addFnAttr("frame-pointer", "all");
    shared.functions[index] = function;
    has_indirect_call |= layout.functions[index].has_indirect_call;
    if (layout.function_address_taken[index] && !ptx.functions[index].is_entry) {
      table[index] = function;
    }
  }
  if (has_indirect_call) {
    auto* type = llvm::ArrayType::get(pointer, table.size());
    shared.function_table =
        new llvm::GlobalVariable(ir, type, true, llvm::GlobalValue::InternalLinkage,
                                 llvm::ConstantArray::get(type, table), "consort.functions");
  }
  return shared;
}

}  // namespace

struct Compiler::Jit {
  std::unique_ptr<llvm::TargetMachine> machine;
  std::unique_ptr<llvm::orc::LLJIT> jit;

  void Optimise(llvm::Module& ir) {
    llvm::LoopAnalysisManager loops;
    llvm::FunctionAnalysisManager functions;
    llvm::CGSCCAnalysisManager call_graph;
    llvm::ModuleAnalysisManager modules;
    llvm::PassBuilder builder(machine.get());
    builder.registerModuleAnalyses(modules);
    builder.registerCGSCCAnalyses(call_graph);
    builder.registerFunctionAnalyses(functions);
    builder.registerLoopAnalyses(loops);
    builder.crossRegisterProxies(loops, functions, call_graph, modules);
    builder.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O2).run(ir, modules);
  }
};

Compiler::Compiler(const ptx::Module& ptx, const ModuleLayout& layout,
                   const std::vector<void*>& variable_addresses, std::unique_ptr<Jit> jit)
    : ptx_(ptx), layout_(layout), variable_addresses_(variable_addresses), jit_(std::move(jit)) {}

Compiler::~Compiler() = default;

absl::StatusOr<std::unique_ptr<Compiler>> Compiler::Create(
    const ptx::Module& ptx, const ModuleLayout& layout,
    const std::vector<void*>& variable_addresses) {
  InitialiseLlvmOnce();
  auto host = llvm::orc::JITTargetMachineBuilder::detectHost();
  if (!host) return LlvmError("no target for this machine", host.takeError());
  auto jit = std::make_unique<Jit>();
  auto machine = host->createTargetMachine();
  if (!machine) return LlvmError("no target machine", machine.takeError());
  jit->machine = std::move(*machine);
  auto made = llvm::orc::LLJITBuilder()
                  .setJITTargetMachineBuilder(std::move(*host))
                  .setLinkProcessSymbolsByDefault(false)
                  .setPlatformSetUp(llvm::orc::setUpInactivePlatform)
                  .create();
  if (!made) return LlvmError("no JIT", made.takeError());
  jit->jit = std::move(*made);
  llvm::orc::SymbolMap symbols;
  for (const RuntimeSymbol& symbol : RuntimeSymbols()) {
    symbols[jit->jit->mangleAndIntern(symbol.name)] = {
        llvm::orc::ExecutorAddr::fromPtr(symbol.address),
        llvm::JITSymbolFlags::Exported | llvm::JITSymbolFlags::Callable};
  }
  if (auto error =
          jit->jit->getMainJITDylib().define(llvm::orc::absoluteSymbols(std::move(symbols)))) {
    return LlvmError("runtime functions", std::move(error));
  }
  return std::unique_ptr<Compiler>(new Compiler(ptx, layout, variable_addresses, std::move(jit)));
}

absl::Status Compiler::Check() {
  llvm::LLVMContext context;
  llvm::Module ir("check", context);
  ir.setDataLayout(jit_->jit->getDataLayout());
  std::vector<uint32_t> all;
  for (uint32_t i = 0; i < ptx_.functions.size(); ++i) all.push_back(i);
  EmitterShared shared = Declare(ptx_, layout_, variable_addresses_, ir, all, ptx::kNone);
  for (const uint32_t index : all) {
    if (shared.functions[index] == nullptr) continue;
    RETURN_IF_ERROR(FunctionEmitter(shared, index).Emit());
    RETURN_IF_ERROR(Verify(*shared.functions[index]));
    // The body has served: a large module is never whole in memory.
    shared.functions[index]->deleteBody();
  }
  return absl::OkStatus();
}

absl::StatusOr<KernelEntry> Compiler::Compile(uint32_t function) {
  auto context = std::make_unique<llvm::LLVMContext>();
  auto ir = std::make_unique<llvm::Module>("kernel", *context);
  ir->setDataLayout(jit_->jit->getDataLayout());
  ir->setTargetTriple(jit_->machine->getTargetTriple().str());
  const std::vector<uint32_t>& functions = layout_.kernels[function].functions;
  EmitterShared shared = Declare(ptx_, layout_, variable_addresses_, *ir, functions, function);
  for (const uint32_t index : functions) {
    if (shared.functions[index] == nullptr) continue;
    RETURN_IF_ERROR(FunctionEmitter(shared, index).Emit());
  }
  jit_->Optimise(*ir);
  if (auto error =
          jit_->jit->addIRModule(llvm::orc::ThreadSafeModule(std::move(ir), std::move(context)))) {
    return LlvmError("cannot add code", std::move(error));
  }
  auto address = jit_->jit->lookup(FunctionIrName(ptx_, function));
  if (!address) return LlvmError("cannot make code", address.takeError());
  return address->toPtr<KernelEntry>();
}

}  // namespace consort::cpu
