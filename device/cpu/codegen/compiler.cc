// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/compiler.h"

#include <cstring>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "device/cpu/codegen/build_id.h"
#include "device/cpu/codegen/function_emitter.h"
#include "device/cpu/codegen/lane_vectoriser.h"
#include "device/cpu/engine/runtime.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/ExecutionEngine/Orc/CompileUtils.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/Verifier.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Transforms/IPO/AlwaysInliner.h"
#include "llvm/Transforms/IPO/GlobalDCE.h"
#include "llvm/Transforms/InstCombine/InstCombine.h"
#include "llvm/Transforms/Scalar/ADCE.h"
#include "llvm/Transforms/Scalar/CorrelatedValuePropagation.h"
#include "llvm/Transforms/Scalar/EarlyCSE.h"
#include "llvm/Transforms/Scalar/SROA.h"
#include "llvm/Transforms/Scalar/SimplifyCFG.h"
#include "llvm/Transforms/Utils/FixIrreducible.h"
#include "llvm/Transforms/Utils/LCSSA.h"
#include "llvm/Transforms/Utils/LoopSimplify.h"
#include "llvm/Transforms/Utils/LowerAtomic.h"
#include "llvm/Transforms/Utils/LowerSwitch.h"
#include "llvm/Transforms/Utils/UnifyFunctionExitNodes.h"

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

// What a key of the cache has of them.
std::string OptionsText(const CodeOptions& options) {
  return absl::StrCat(options.optimise ? "o" : "", options.check_accesses ? "c" : "",
                      options.watch_time ? "w" : "");
}

// Malformed code is a bug of an emit function; found here, it is an error of one module only.
absl::Status Verify(const llvm::Function& function) {
  std::string problems;
  llvm::raw_string_ostream stream(problems);
  if (!llvm::verifyFunction(function, &stream)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("generated code is not well-formed: ", problems));
}

// Declares `functions` (indices into ptx.functions) in `ir`, and the table for indirect calls.
EmitterShared Declare(const ptx::Module& ptx, const ModuleLayout& layout, llvm::Module& ir,
                      const std::vector<uint32_t>& functions, uint32_t external,
                      const CodeOptions& options) {
  EmitterShared shared{ptx, layout, ir, {}};
  shared.check_accesses = options.check_accesses;
  shared.watch_time = options.watch_time;
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
    // Touches each page of a large frame, lest deep calls step over the page below the stack.
    if (!ptx.functions[index].is_entry) function->addFnAttr("probe-stack", "inline-asm");
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

// Atomics that only one thread of this process can see need not be any.
void LowerLocalAtomics(llvm::Module& ir) {
  for (llvm::Function& function : ir) {
    for (llvm::Instruction& instruction :
         llvm::make_early_inc_range(llvm::instructions(function))) {
      if (auto* change = llvm::dyn_cast<llvm::AtomicRMWInst>(&instruction)) {
        if (change->getSyncScopeID() == llvm::SyncScope::SingleThread) {
          llvm::lowerAtomicRMWInst(change);
        }
      } else if (auto* exchange = llvm::dyn_cast<llvm::AtomicCmpXchgInst>(&instruction)) {
        if (exchange->getSyncScopeID() == llvm::SyncScope::SingleThread) {
          llvm::lowerAtomicCmpXchgInst(exchange);
        }
      }
    }
  }
}

}  // namespace

// Code in the making.
struct Compiler::Unit {
  std::unique_ptr<llvm::LLVMContext> context;
  std::unique_ptr<llvm::Module> ir;
  llvm::Function* kernel = nullptr;
};

struct Compiler::Jit {
  std::unique_ptr<llvm::TargetMachine> machine;
  std::unique_ptr<llvm::orc::LLJIT> jit;

  void Optimise(llvm::Module& ir, bool thoroughly) {
    Run(ir, [thoroughly](llvm::PassBuilder& builder) {
      return thoroughly ? builder.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O2)
                        : builder.buildO0DefaultPipeline(llvm::OptimizationLevel::O0);
    });
  }

  // Brings code of one thread into the form that LaneShapes asks for.
  void PrepareForLanes(llvm::Module& ir) {
    for (llvm::Function& function : ir) {
      if (!function.isDeclaration() && function.hasLocalLinkage()) {
        function.addFnAttr(llvm::Attribute::AlwaysInline);
      }
    }
    Run(ir, [](llvm::PassBuilder&) {
      llvm::ModulePassManager passes;
      passes.addPass(llvm::AlwaysInlinerPass());
      passes.addPass(llvm::GlobalDCEPass());
      llvm::FunctionPassManager each;
      each.addPass(llvm::SROAPass(llvm::SROAOptions::ModifyCFG));
      each.addPass(llvm::EarlyCSEPass(true));
      each.addPass(llvm::SimplifyCFGPass());
      each.addPass(llvm::InstCombinePass());
      each.addPass(llvm::CorrelatedValuePropagationPass());
      each.addPass(llvm::SimplifyCFGPass());
      each.addPass(llvm::InstCombinePass());
      each.addPass(llvm::ADCEPass());
      each.addPass(llvm::LowerSwitchPass());
      each.addPass(llvm::FixIrreduciblePass());
      each.addPass(llvm::UnifyFunctionExitNodesPass());
      each.addPass(llvm::LoopSimplifyPass());
      each.addPass(llvm::LCSSAPass());
      passes.addPass(llvm::createModuleToFunctionPassAdaptor(std::move(each)));
      return passes;
    });
  }

 private:
  template <typename MakePasses>
  void Run(llvm::Module& ir, MakePasses make_passes) {
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
    make_passes(builder).run(ir, modules);
  }
};

Compiler::Compiler(const ptx::Module& ptx, const ModuleLayout& layout, const CodeCache& cache,
                   const CodeOptions& options, std::unique_ptr<Jit> jit)
    : ptx_(ptx), layout_(layout), cache_(cache), options_(options), jit_(std::move(jit)) {
  const llvm::TargetMachine& machine = *jit_->machine;
  const std::string build = BuildId();
  // Code of an unknown build fits nothing.
  if (!cache_.enabled() || build.empty()) return;
  identity_ = CodeCache::Key({build, LLVM_VERSION_STRING, machine.getTargetTriple().str(),
                              machine.getTargetCPU().str(), machine.getTargetFeatureString().str(),
                              OptionsText(options), ptx.text});
}

Compiler::~Compiler() = default;

absl::StatusOr<std::unique_ptr<Compiler>> Compiler::Create(
    const ptx::Module& ptx, const ModuleLayout& layout,
    const std::vector<void*>& variable_addresses, const CodeCache& cache,
    const CodeOptions& options) {
  InitialiseLlvmOnce();
  auto host = llvm::orc::JITTargetMachineBuilder::detectHost();
  if (!host) return LlvmError("no target for this machine", host.takeError());
  // These instructions' conversions to bfloat make zeros of subnormals.
  host->addFeatures({"-avx512bf16", "-avxneconvert"});
  // Code is linked wherever there is room, far from what it refers to.
  host->setRelocationModel(llvm::Reloc::PIC_);
  host->setCodeModel(llvm::CodeModel::Small);
  if (!options.optimise) host->setCodeGenOptLevel(llvm::CodeGenOptLevel::None);
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
  symbols[jit->jit->mangleAndIntern(kVariableTable)] = {
      llvm::orc::ExecutorAddr::fromPtr(variable_addresses.data()), llvm::JITSymbolFlags::Exported};
  if (auto error =
          jit->jit->getMainJITDylib().define(llvm::orc::absoluteSymbols(std::move(symbols)))) {
    return LlvmError("runtime functions", std::move(error));
  }
  return std::unique_ptr<Compiler>(new Compiler(ptx, layout, cache, options, std::move(jit)));
}

std::string Compiler::Key(std::string_view what) const {
  return identity_.empty() ? std::string() : CodeCache::Key({identity_, what});
}

absl::Status Compiler::Check() {
  const std::string key = Key("checked");
  if (!key.empty() && cache_.Find(key)) return absl::OkStatus();
  llvm::LLVMContext context;
  llvm::Module ir("check", context);
  ir.setDataLayout(jit_->jit->getDataLayout());
  std::vector<uint32_t> all;
  for (uint32_t i = 0; i < ptx_.functions.size(); ++i) all.push_back(i);
  EmitterShared shared = Declare(ptx_, layout_, ir, all, ptx::kNone, options_);
  for (const uint32_t index : all) {
    if (shared.functions[index] == nullptr) continue;
    RETURN_IF_ERROR(FunctionEmitter(shared, index).Emit());
    RETURN_IF_ERROR(Verify(*shared.functions[index]));
    // The body has served: a large module is never whole in memory.
    shared.functions[index]->deleteBody();
  }
  if (!key.empty()) cache_.Put(key, "");
  return absl::OkStatus();
}

// Fewer threads than this are not worth code of their own.
constexpr uint32_t kThreadsVectorMin = 8;

GroupShape GroupShape::Of(const uint32_t block[3]) {
  GroupShape shape;
  const uint32_t threads = block[0] * block[1] * block[2];
  if (threads < kThreadsVectorMin) return shape;
  shape.flat = block[1] * block[2] == 1;
  shape.lanes = kWarpLanes;
  shape.rows = shape.flat || block[0] % kWarpLanes == 0;
  // Half or quarter warps where the rows of the block are shorter.
  for (const uint32_t lanes : {kWarpLanes / 2, kWarpLanes / 4}) {
    if (shape.rows || block[0] % lanes != 0) continue;
    shape.lanes = lanes;
    shape.rows = true;
  }
  shape.partial = threads % shape.lanes != 0;
  return shape;
}

uint32_t GroupShape::Number() const {
  const uint32_t width = lanes == 1 ? 0 : lanes == kWarpLanes ? 1 : lanes == kWarpLanes / 2 ? 2 : 3;
  return width << 3 | uint32_t{rows} << 2 | uint32_t{flat} << 1 | uint32_t{partial};
}

// Emits the kernel and all it may call into a module of its own.
absl::StatusOr<Compiler::Unit> Compiler::Emit(uint32_t function, bool one_thread) {
  Unit unit;
  unit.context = std::make_unique<llvm::LLVMContext>();
  unit.ir = std::make_unique<llvm::Module>("kernel", *unit.context);
  unit.ir->setDataLayout(jit_->jit->getDataLayout());
  unit.ir->setTargetTriple(jit_->machine->getTargetTriple().str());
  const std::vector<uint32_t>& functions = layout_.kernels[function].functions;
  EmitterShared shared = Declare(ptx_, layout_, *unit.ir, functions, function, options_);
  shared.one_thread = one_thread;
  for (const uint32_t index : functions) {
    if (shared.functions[index] == nullptr) continue;
    RETURN_IF_ERROR(FunctionEmitter(shared, index).Emit());
  }
  unit.kernel = shared.functions[function];
  return unit;
}

// Optimises and makes an object of the unit.
absl::Status Compiler::Finish(Unit unit, const GroupShape& shape, Object& object) {
  object.symbol = absl::StrCat(unit.kernel->getName().str(), ".", shape.Number());
  unit.kernel->setName(object.symbol);
  LowerLocalAtomics(*unit.ir);
  jit_->Optimise(*unit.ir, options_.optimise);
  auto made = llvm::orc::SimpleCompiler(*jit_->machine)(*unit.ir);
  if (!made) return LlvmError("cannot make code", made.takeError());
  object.bytes = (*made)->getBuffer().str();
  return absl::OkStatus();
}

absl::StatusOr<Compiler::Object> Compiler::Make(uint32_t function, const GroupShape& shape) {
  ++compilations_;
  Object object;
  std::vector<GroupShape> tries;
  // Without masks, gathers and scatters of its own, the CPU would do lane by lane most of what this
  // is for, in code that takes LLVM very long to make.
  const bool has_masks = jit_->machine->getTargetFeatureString().contains("+avx512vl") &&
                         jit_->machine->getTargetFeatureString().contains("+avx512bw");
  // A check names the thread that it is of; memory of alloca is of one size a thread.
  const bool alone = options_.check_accesses || layout_.kernels[function].uses_alloca;
  if (has_masks && !alone && shape.lanes > 1) tries.push_back(shape);
  // Whole warps for what warps do together.
  if (!alone && shape.lanes > 1 && shape.lanes < kWarpLanes)
    tries.push_back({kWarpLanes, false, false, true});
  for (const GroupShape& wanted : tries) {
    ASSIGN_OR_RETURN(Unit unit, Emit(function, true));
    object.mode = layout_.kernels[function].mode;
    if (object.mode == ThreadsMode::kBlockLoop) object.mode = ThreadsMode::kLoop;
    object.lanes = wanted.lanes;
    llvm::Function* scalar = unit.kernel;
    const std::string name = scalar->getName().str();
    jit_->PrepareForLanes(*unit.ir);
    const std::string refusal = VectoriseLanes(
        *scalar, {wanted.lanes, wanted.rows, wanted.flat, wanted.partial}, object.mode);
    if (!refusal.empty()) {
      VLOG(1) << name << " runs thread by thread: " << refusal;
      continue;
    }
    unit.kernel = unit.ir->getFunction(name);
    RETURN_IF_ERROR(Verify(*unit.kernel));
    RETURN_IF_ERROR(Finish(std::move(unit), wanted, object));
    return object;
  }
  object.mode = layout_.kernels[function].mode;
  object.lanes = 1;
  // The thread must be known by its context.
  const bool no_loop = options_.check_accesses && object.mode == ThreadsMode::kBlockLoop;
  if (no_loop) object.mode = ThreadsMode::kLoop;
  ASSIGN_OR_RETURN(Unit unit, Emit(function, no_loop));
  RETURN_IF_ERROR(Finish(std::move(unit), GroupShape(), object));
  return object;
}

// In the cache: u32 mode, u32 lanes, u32 bytes of the symbol, the symbol, the object.

std::optional<Compiler::Object> Compiler::FindObject(const std::string& key) const {
  const std::optional<std::string> entry = cache_.Find(key);
  uint32_t numbers[3];
  if (!entry || entry->size() < sizeof(numbers)) return std::nullopt;
  std::memcpy(numbers, entry->data(), sizeof(numbers));
  Object object;
  object.mode = static_cast<ThreadsMode>(numbers[0]);
  object.lanes = numbers[1];
  object.symbol = entry->substr(sizeof(numbers), numbers[2]);
  object.bytes = entry->substr(sizeof(numbers) + object.symbol.size());
  return object;
}

void Compiler::PutObject(const std::string& key, const Object& object) const {
  const uint32_t numbers[3] = {static_cast<uint32_t>(object.mode), object.lanes,
                               static_cast<uint32_t>(object.symbol.size())};
  std::string entry(sizeof(numbers), '\0');
  std::memcpy(entry.data(), numbers, sizeof(numbers));
  cache_.Put(key, absl::StrCat(entry, object.symbol, object.bytes));
}

absl::StatusOr<CompiledKernel> Compiler::Compile(uint32_t function, const GroupShape& shape) {
  const std::string key = Key(absl::StrCat(function, " ", shape.Number()));
  std::optional<Object> object;
  if (!key.empty()) object = FindObject(key);
  if (!object) {
    ASSIGN_OR_RETURN(object, Make(function, shape));
    if (!key.empty()) PutObject(key, *object);
  }
  CompiledKernel kernel;
  kernel.mode = object->mode;
  kernel.lanes = object->lanes;
  // Several shapes may have the same code.
  KernelEntry& entry = linked_[object->symbol];
  if (entry == nullptr) {
    if (auto error = jit_->jit->addObjectFile(
            llvm::MemoryBuffer::getMemBufferCopy(object->bytes, object->symbol))) {
      return LlvmError("cannot add code", std::move(error));
    }
    auto address = jit_->jit->lookup(object->symbol);
    if (!address) return LlvmError("cannot link code", address.takeError());
    entry = address->toPtr<KernelEntry>();
  }
  kernel.entry = entry;
  return kernel;
}

}  // namespace consort::cpu
