// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/module.h: loaded code: modules, libraries and the functions in them.
//
// A Module is one Program with its variables, in one context. A Library belongs to no context: it
// holds the PTX and makes a Module in each context that uses it. A Function is a handle's object: a
// kernel of one module (CUfunction), or of a library in whatever context is current (CUkernel).
// Thread safe. Shared: work in a stream keeps the module that it runs.
#ifndef CONSORT_DEVICE_CPU_DRIVER_MODULE_H_
#define CONSORT_DEVICE_CPU_DRIVER_MODULE_H_

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "device/cpu/driver/context.h"
#include "device/cpu/driver/cuda_api.h"
#include "device/cpu/driver/limits.h"
#include "device/cpu/program.h"

namespace consort::cpu {

struct State;
class Library;

// What programs may set on a kernel, for one device.
struct KernelSettings {
  std::atomic<int> dynamic_shared_bytes_max{0};  // set to the default when the module is made
  std::atomic<int> shared_carveout{-1};
  std::atomic<CUfunc_cache> cache_config{CU_FUNC_CACHE_PREFER_NONE};
};

// Those of all kernels of a program, in order. Kept by the library and by its modules.
using KernelSettingsList = std::vector<KernelSettings>;
std::shared_ptr<KernelSettingsList> NewKernelSettings(std::span<const KernelInfo> kernels);

class Module {
 public:
  // `library` is null for a module that was loaded by itself.
  Module(State& state, std::shared_ptr<Context> context, std::unique_ptr<Program> program,
         std::shared_ptr<KernelSettingsList> settings, const Library* library);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const std::shared_ptr<Context>& context() const { return context_; }
  const Program& program() const { return *program_; }
  const KernelInfo& kernel(size_t index) const { return program_->kernels()[index]; }
  KernelSettings& settings(size_t index) const { return (*settings_)[index]; }
  const Library* library() const { return library_; }
  // The variable of that name, or null.
  const VariableInfo* FindVariable(std::string_view name) const;

  // This module's handle, set once it is in the table.
  CUmodule handle = nullptr;
  // Handle of kernel `index`, the same each time. `self` is this module.
  CUfunction FunctionHandle(State& state, const std::shared_ptr<Module>& self, size_t index);

 private:
  State& state_;
  const std::shared_ptr<Context> context_;
  const std::unique_ptr<Program> program_;
  const std::shared_ptr<KernelSettingsList> settings_;
  const Library* const library_;
  absl::Mutex mutex_;
  absl::flat_hash_map<size_t, CUfunction> functions_ ABSL_GUARDED_BY(mutex_);
};

class Library {
 public:
  // `program` is what `ptx` compiled to: it becomes the module of the first context.
  Library(std::string ptx, std::unique_ptr<Program> program);
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  std::span<const KernelInfo> kernels() const { return kernels_; }
  KernelSettings& settings(const Device& device, size_t index) const {
    return (*settings_[device.index()])[index];
  }
  // The library's module in `context`, compiled now if this is the first use there, and entered
  // into the table of modules.
  std::shared_ptr<Module> ModuleIn(State& state, const std::shared_ptr<Context>& context);
  // Drops the module in `context`, which is going away.
  void ForgetContext(const Context* context);
  // Takes out all modules.
  std::vector<std::shared_ptr<Module>> TakeModules();

  // Handles of the kernels, in order; set when the library is entered into the table, then fixed.
  std::vector<CUkernel> kernel_handles;
  CUlibrary handle = nullptr;

 private:
  const std::string ptx_;
  const std::vector<KernelInfo> kernels_;
  const std::array<std::shared_ptr<KernelSettingsList>, kDeviceCountMax> settings_;
  absl::Mutex mutex_;
  std::unique_ptr<Program> first_program_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Module>> modules_ ABSL_GUARDED_BY(mutex_);
};

// A kernel in a context: what a launch or a query works on.
struct Kernel {
  std::shared_ptr<Module> module;
  size_t index = 0;

  const KernelInfo& info() const { return module->kernel(index); }
  KernelSettings& settings() const { return module->settings(index); }
};

// Exactly one of `module` and `library` is set.
struct Function {
  std::shared_ptr<Module> module;
  std::shared_ptr<Library> library;
  size_t index = 0;

  // The context of a CUfunction; null for a CUkernel, which has none.
  std::shared_ptr<Context> context() const {
    return module == nullptr ? nullptr : module->context();
  }
  // CUDA_ERROR_INVALID_HANDLE: of another context.
  CUresult In(State& state, const std::shared_ptr<Context>& context, Kernel* kernel) const;
  const KernelInfo& info() const {
    return module != nullptr ? module->kernel(index) : library->kernels()[index];
  }
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_MODULE_H_
