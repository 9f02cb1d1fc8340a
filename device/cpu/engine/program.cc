// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/program.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "device/cpu/codegen/compiler.h"
#include "device/cpu/codegen/instruction_table.h"
#include "device/cpu/codegen/layout.h"
#include "device/cpu/engine/access_checker.h"
#include "device/cpu/engine/engine.h"
#include "device/cpu/engine/variable_memory.h"
#include "device/cpu/ptx/parser.h"

namespace consort::cpu {
namespace {

// Source: CUDA C++ Programming Guide, compute capabilities.
constexpr uint32_t kThreadsPerBlockMax = 1024;
constexpr uint32_t kRegistersMax = 255;
constexpr uint32_t kRegistersMultiprocessor = 65536;
// Of the cache of compiled code: thousands of kernels of ten to a hundred kilobytes each.
constexpr uint64_t kCacheBytesMax = uint64_t{512} << 20;

class CompiledProgram : public Program, public SiteNames {
 public:
  explicit CompiledProgram(const LoadOptions& options)
      : options_(options), cache_(options.cache_directory, kCacheBytesMax) {}

  static absl::StatusOr<std::unique_ptr<Program>> Make(std::string_view ptx,
                                                       const LoadOptions& options) {
    auto program = std::make_unique<CompiledProgram>(options);
    ASSIGN_OR_RETURN(program->module_, ptx::ParsePtx(std::string(ptx)));
    ASSIGN_OR_RETURN(program->layout_, ModuleLayout::Make(*program->module_));
    CodeOptions code;
    code.check_accesses = options.memory != nullptr;
    code.watch_time = options.time_limit > 0;
    RETURN_IF_ERROR(program->memory_.Fill(*program->module_, code.check_accesses, options.managed));
    ASSIGN_OR_RETURN(program->compiler_,
                     Compiler::Create(*program->module_, program->layout_,
                                      program->memory_.addresses(), program->cache_, code));
    RETURN_IF_ERROR(program->compiler_->Check());
    program->Describe();
    return program;
  }

  std::span<const KernelInfo> kernels() const override { return kernels_; }
  std::span<const VariableInfo> variables() const override { return variables_; }

  LaunchFault Run(size_t kernel_index, const LaunchShape& shape, const void* params,
                  int worker_count, const LaunchOutput& output) const override {
    const CompiledKernel* code = CodeFor(kernel_index, GroupShape::Of(shape.block));
    if (code == nullptr) return LaunchFault::kTrap;
    const KernelInfo& info = kernels_[kernel_index];
    const KernelLayout& layout = layout_.kernels[functions_[kernel_index]];
    // Vector loads of parameters expect the alignment that the kernel's declaration promises them.
    const std::unique_ptr<uint8_t, AlignedDelete> copy(static_cast<uint8_t*>(
        ::operator new (info.param_bytes + 1, std::align_val_t{kParamAlign})));
    if (info.param_bytes > 0) std::memcpy(copy.get(), params, info.param_bytes);
    LaunchJob job;
    job.entry = code->entry;
    job.mode = code->mode;
    job.lanes = code->lanes;
    job.may_poll = layout.may_poll;
    job.shape = shape;
    job.output = output;
    job.params = copy.get();
    job.static_shared_bytes = layout.static_shared_bytes;
    job.reserved_shared_bytes = layout.uses_reserved_shared ? kReservedSharedBytes : 0;
    job.local_bytes = layout.local_bytes;
    job.grid_id = grid_count_.fetch_add(1, std::memory_order_relaxed);
    CheckedLaunch checked;
    if (options_.memory != nullptr) {
      checked.memory = options_.memory;
      checked.sites = this;
      checked.kernel = info.name.c_str();
      checked.params = job.params;
      checked.param_bytes = info.param_bytes;
      checked.static_shared_bytes = job.static_shared_bytes;
      checked.reserved_shared_bytes = job.reserved_shared_bytes;
      job.checked = &checked;
    }
    if (options_.time_limit > 0) job.deadline = LaunchClockNow() + options_.time_limit;
    return Engine::Get().Run(job, worker_count);
  }

  // A site is the function's number, and in the low 32 bits the instruction's.
  std::string Describe(uint64_t site) const override {
    const ptx::Function& function = module_->functions[site >> 32];
    const ptx::Instruction& instruction =
        function.instructions[static_cast<uint32_t>(site & 0xFFFFFFFF)];
    std::string text =
        absl::StrCat("at ", absl::string_view(function.name.data(), function.name.size()));
    const auto file = module_->source_files.find(instruction.source_file);
    if (file != module_->source_files.end() && instruction.source_line != 0) {
      absl::StrAppend(&text, ", ", absl::string_view(file->second.data(), file->second.size()), ":",
                      instruction.source_line);
    }
    return absl::StrCat(text, ", line ", instruction.line,
                        " of the PTX: ", InstructionText(instruction));
  }

  uint64_t compilations() const override {
    absl::MutexLock lock(&compile_mutex_);
    return compiler_->compilations();
  }

 private:
  static constexpr size_t kParamAlign = 128;
  struct AlignedDelete {
    void operator()(uint8_t* memory) const {
      ::operator delete (memory, std::align_val_t{kParamAlign});
    }
  };

  // The kernel's code for blocks of that shape, compiled when one is first run. Null, once logged,
  // if LLVM fails on it.
  const CompiledKernel* CodeFor(size_t kernel_index, const GroupShape& shape) const {
    std::atomic<const CompiledKernel*>& known =
        codes_[kernel_index * kGroupShapes + shape.Number()];
    const CompiledKernel* code = known.load(std::memory_order_acquire);
    if (code != nullptr) return code;
    absl::MutexLock lock(&compile_mutex_);
    code = known.load(std::memory_order_relaxed);
    if (code != nullptr) return code;
    absl::StatusOr<CompiledKernel> compiled = compiler_->Compile(functions_[kernel_index], shape);
    if (!compiled.ok()) {
      LOG(ERROR) << "cannot compile kernel " << kernels_[kernel_index].name << ": "
                 << compiled.status();
      return nullptr;
    }
    compiled_.push_back(std::make_unique<CompiledKernel>(*compiled));
    known.store(compiled_.back().get(), std::memory_order_release);
    return compiled_.back().get();
  }

  void Describe() {
    const ptx::Module& module = *module_;
    uint32_t constant_bytes = 0;
    for (size_t i = 0; i < module.variables.size(); ++i) {
      const ptx::Variable& variable = module.variables[i];
      if (variable.space == ptx::Space::kShared) continue;
      VariableInfo info;
      info.name = std::string(variable.name);
      info.address = memory_.addresses()[i];
      info.bytes = variable.bytes;
      info.constant = variable.space == ptx::Space::kConst;
      info.managed = variable.is_managed && memory_.has_managed();
      if (info.constant) constant_bytes += static_cast<uint32_t>(variable.bytes);
      variables_.push_back(std::move(info));
    }
    for (uint32_t i = 0; i < module.functions.size(); ++i) {
      const ptx::Function& function = module.functions[i];
      if (!function.is_entry || !function.has_body) continue;
      const FunctionLayout& layout = layout_.functions[i];
      KernelInfo info;
      info.name = std::string(function.name);
      for (size_t p = 0; p < function.inputs.size(); ++p) {
        const ptx::Symbol& symbol = function.symbols[function.inputs[p]];
        info.params.push_back({layout.inputs.offsets[p], static_cast<uint32_t>(symbol.bytes)});
      }
      info.param_bytes = layout.inputs.bytes;
      info.static_shared_bytes = layout_.kernels[i].static_shared_bytes;
      info.constant_bytes = constant_bytes;
      info.local_bytes = layout_.kernels[i].local_bytes;
      info.threads_max = function.threads_max != 0 ? function.threads_max : kThreadsPerBlockMax;
      // Virtual registers are many times the physical ones that ptxas would use, which never are so
      // many that a block of threads_max would not fit a multiprocessor.
      const uint32_t most = std::clamp<uint32_t>(
          kRegistersMultiprocessor / std::min(info.threads_max, kThreadsPerBlockMax), 16,
          kRegistersMax);
      info.register_count = std::clamp<uint32_t>(layout.register_count / 4, 16, most);
      info.ptx_version = module.version;
      info.target = module.target;
      kernels_.push_back(std::move(info));
      functions_.push_back(i);
    }
    codes_ = std::vector<std::atomic<const CompiledKernel*>>(kernels_.size() * kGroupShapes);
  }

  const LoadOptions options_;
  const CodeCache cache_;
  std::unique_ptr<ptx::Module> module_;
  ModuleLayout layout_;
  VariableMemory memory_;
  std::vector<KernelInfo> kernels_;
  std::vector<VariableInfo> variables_;
  std::vector<uint32_t> functions_;  // by kernel: index into module_->functions
  mutable std::atomic<uint64_t> grid_count_{1};
  mutable absl::Mutex compile_mutex_;
  std::unique_ptr<Compiler> compiler_;  // Compile under compile_mutex_
  // Pushed to under compile_mutex_.
  mutable std::vector<std::unique_ptr<const CompiledKernel>> compiled_;
  // By kernel and shape. Stored under compile_mutex_ with release, read with acquire: whoever sees
  // an element sees its code.
  mutable std::vector<std::atomic<const CompiledKernel*>> codes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Program>> Program::Load(std::string_view ptx,
                                                       const LoadOptions& options) {
  return CompiledProgram::Make(ptx, options);
}

}  // namespace consort::cpu
