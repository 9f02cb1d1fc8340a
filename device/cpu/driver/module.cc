// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/driver/module.h"

#include <utility>

#include "base/log.h"
#include "device/cpu/driver/state.h"

namespace consort::cpu {

std::shared_ptr<KernelSettingsList> NewKernelSettings(std::span<const KernelInfo> kernels) {
  auto settings = std::make_shared<KernelSettingsList>(kernels.size());
  for (size_t i = 0; i < kernels.size(); ++i) {
    // What a block may have without opting in, less what the kernel declares itself.
    const uint32_t fixed = std::min(kernels[i].static_shared_bytes, kSharedBytesDefault);
    (*settings)[i].dynamic_shared_bytes_max = static_cast<int>(kSharedBytesDefault - fixed);
  }
  return settings;
}

Module::Module(State& state, std::shared_ptr<Context> context, std::unique_ptr<Program> program,
               std::shared_ptr<KernelSettingsList> settings, const Library* library)
    : state_(state),
      context_(std::move(context)),
      program_(std::move(program)),
      settings_(std::move(settings)),
      library_(library) {
  for (const VariableInfo& variable : program_->variables()) {
    if (variable.bytes == 0 || variable.managed) continue;
    Range range;
    range.base = reinterpret_cast<uintptr_t>(variable.address);
    range.bytes = variable.bytes;
    range.kind = RangeKind::kVariable;
    range.constant = variable.constant;
    range.device = &context_->device();
    range.context = context_->handle();
    range.context_id = context_->id();
    CHECK_EQ(state_.address_space.Enter(std::move(range)), CUDA_SUCCESS)
        << "variable " << variable.name << " overlaps memory of somebody else";
  }
}

Module::~Module() {
  for (const VariableInfo& variable : program_->variables()) {
    if (variable.managed) continue;
    state_.address_space.Remove(reinterpret_cast<uintptr_t>(variable.address),
                                RangeKind::kVariable);
  }
}

const VariableInfo* Module::FindVariable(std::string_view name) const {
  for (const VariableInfo& variable : program_->variables()) {
    if (variable.name == name) return &variable;
  }
  return nullptr;
}

CUfunction Module::FunctionHandle(State& state, const std::shared_ptr<Module>& self, size_t index) {
  absl::MutexLock lock(&mutex_);
  CUfunction& handle = functions_[index];
  if (handle == nullptr) {
    auto function = std::make_shared<Function>();
    function->module = self;
    function->index = index;
    handle = state.functions.Insert(std::move(function));
  }
  return handle;
}

Library::Library(std::string ptx, std::unique_ptr<Program> program)
    : ptx_(std::move(ptx)),
      kernels_(program->kernels().begin(), program->kernels().end()),
      settings_([this] {
        std::array<std::shared_ptr<KernelSettingsList>, kDeviceCountMax> settings;
        for (auto& of_device : settings) of_device = NewKernelSettings(kernels_);
        return settings;
      }()),
      first_program_(std::move(program)) {}

std::shared_ptr<Module> Library::ModuleIn(State& state, const std::shared_ptr<Context>& context) {
  // Held while compiling, so that two threads do not compile the same.
  absl::MutexLock lock(&mutex_);
  for (const std::shared_ptr<Module>& module : modules_) {
    if (module->context() == context) return module;
  }
  std::unique_ptr<Program> program = std::move(first_program_);
  if (program == nullptr) {
    auto loaded = Program::Load(ptx_, state.load_options);
    CHECK(loaded.ok()) << "PTX that compiled before does not now: " << loaded.status();
    program = *std::move(loaded);
  }
  auto module = std::make_shared<Module>(state, context, std::move(program),
                                         settings_[context->device().index()], this);
  module->handle = state.modules.Insert(module);
  modules_.push_back(module);
  return module;
}

void Library::ForgetContext(const Context* context) {
  std::vector<std::shared_ptr<Module>> dropped;  // destroyed after the lock is released
  absl::MutexLock lock(&mutex_);
  for (auto it = modules_.begin(); it != modules_.end();) {
    if ((*it)->context().get() == context) {
      dropped.push_back(std::move(*it));
      it = modules_.erase(it);
    } else {
      ++it;
    }
  }
}

std::vector<std::shared_ptr<Module>> Library::TakeModules() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(modules_, {});
}

CUresult Function::In(State& state, const std::shared_ptr<Context>& context, Kernel* kernel) const {
  if (module != nullptr && module->context() != context) return CUDA_ERROR_INVALID_HANDLE;
  kernel->module = module != nullptr ? module : library->ModuleIn(state, context);
  kernel->index = index;
  return CUDA_SUCCESS;
}

}  // namespace consort::cpu
