// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/module_api.cc: modules and libraries.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "device/cpu/driver/load.h"
#include "device/cpu/driver/state.h"
#include "device/image/image.h"

namespace consort::cpu {
namespace {

CUresult LoadModule(CUmodule* out, const void* image, const JitLog& log) {
  return WithContext([&](State& state, const std::shared_ptr<Context>& context) {
    if (out == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = log.Check(); result != CUDA_SUCCESS) return result;
    LoadedProgram loaded;
    if (const CUresult result = LoadProgram(image, log, &loaded); result != CUDA_SUCCESS) {
      return result;
    }
    auto settings = NewKernelSettings(loaded.program->kernels());
    auto module = std::make_shared<Module>(state, context, std::move(loaded.program),
                                           std::move(settings), nullptr);
    module->handle = state.modules.Insert(module);
    *out = module->handle;
    return CUDA_SUCCESS;
  });
}

// Runs body(state, module), unless the module's context has failed.
template <typename Body>
CUresult WithModule(CUmodule handle, Body&& body) {
  return WithContext([&](State& state, const std::shared_ptr<Context>&) {
    const std::shared_ptr<Module> module = state.modules.Find(handle);
    if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return body(state, module);
  });
}

template <typename Body>
CUresult WithLibrary(CUlibrary handle, Body&& body) {
  return WithState([&](State& state) {
    const std::shared_ptr<Library> library = state.libraries.Find(handle);
    if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return body(state, library);
  });
}

// Index of the kernel of that name, or kernels.size().
size_t FindKernel(std::span<const KernelInfo> kernels, const char* name) {
  const auto it = std::find_if(kernels.begin(), kernels.end(),
                               [&](const KernelInfo& kernel) { return kernel.name == name; });
  return static_cast<size_t>(it - kernels.begin());
}

// Address and size of the variable `name`, each where wanted.
CUresult GetVariable(const Module& module, const char* name, CUdeviceptr* address, size_t* bytes) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const VariableInfo* variable = module.FindVariable(name);
  if (variable == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (address != nullptr) *address = reinterpret_cast<uintptr_t>(variable->address);
  if (bytes != nullptr) *bytes = variable->bytes;
  return CUDA_SUCCESS;
}

// Takes `module` and its functions out of the tables.
void RemoveModule(State& state, const std::shared_ptr<Module>& module) {
  state.modules.Remove(module->handle);
  state.functions.RemoveIf([&](const Function& function) { return function.module == module; });
}

}  // namespace

}  // namespace consort::cpu

using namespace consort::cpu;  // the entry points are global: their prototypes are cuda.h's

extern "C" {

CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
  return LoadModule(module, image, JitLog(0, nullptr, nullptr));
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int numOptions,
                                    CUjit_option* options, void** optionValues) {
  return LoadModule(module, image, JitLog(numOptions, options, optionValues));
}

CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule* module, const void* fatCubin) {
  return LoadModule(module, fatCubin, JitLog(0, nullptr, nullptr));
}

CUresult CUDAAPI cuModuleLoad(CUmodule* module, const char* fname) {
  return WithState([&](State&) {
    if (fname == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::ifstream file(fname, std::ios::binary);
    if (!file.good()) return CUDA_ERROR_FILE_NOT_FOUND;
    // std::string ends in NUL, as PTX text must.
    const std::string bytes((std::istreambuf_iterator<char>(file)),
                            std::istreambuf_iterator<char>());
    // A file has a length, so what it claims about itself can be checked.
    const auto span = std::as_bytes(std::span(bytes.data(), bytes.size() + 1));
    if (!consort::image::ImageBytes(span).ok()) return CUDA_ERROR_INVALID_IMAGE;
    return LoadModule(module, bytes.data(), JitLog(0, nullptr, nullptr));
  });
}

CUresult CUDAAPI cuModuleUnload(CUmodule hmod) {
  return WithModule(hmod, [](State& state, const std::shared_ptr<Module>& module) {
    if (module->library() != nullptr) return CUDA_ERROR_NOT_PERMITTED;
    RemoveModule(state, module);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  return WithState([&](State&) {
    if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* hfunc, CUmodule hmod, const char* name) {
  return WithModule(hmod, [&](State& state, const std::shared_ptr<Module>& module) {
    if (hfunc == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const size_t index = FindKernel(module->program().kernels(), name);
    if (index == module->program().kernels().size()) return CUDA_ERROR_NOT_FOUND;
    *hfunc = module->FunctionHandle(state, module, index);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuModuleGetFunctionCount(unsigned int* count, CUmodule mod) {
  return WithModule(mod, [&](State&, const std::shared_ptr<Module>& module) {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<unsigned int>(module->program().kernels().size());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuModuleEnumerateFunctions(CUfunction* functions, unsigned int numFunctions,
                                            CUmodule mod) {
  return WithModule(mod, [&](State& state, const std::shared_ptr<Module>& module) {
    if (functions == nullptr || numFunctions == 0) return CUDA_ERROR_INVALID_VALUE;
    const size_t count = std::min<size_t>(numFunctions, module->program().kernels().size());
    for (size_t i = 0; i < count; ++i) functions[i] = module->FunctionHandle(state, module, i);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr* dptr, size_t* bytes, CUmodule hmod,
                                      const char* name) {
  return WithModule(hmod, [&](State&, const std::shared_ptr<Module>& module) {
    return GetVariable(*module, name, dptr, bytes);
  });
}

CUresult CUDAAPI cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jitOptions,
                                   void** jitOptionsValues, unsigned int numJitOptions,
                                   CUlibraryOption*, void**, unsigned int) {
  // Library options are about keeping the caller's bytes, of which nothing is kept here.
  return WithState([&](State& state) {
    if (library == nullptr || code == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const JitLog log(numJitOptions, jitOptions, jitOptionsValues);
    if (const CUresult result = log.Check(); result != CUDA_SUCCESS) return result;
    LoadedProgram loaded;
    if (const CUresult result = LoadProgram(code, log, &loaded); result != CUDA_SUCCESS) {
      return result;
    }
    auto made = std::make_shared<Library>(std::move(loaded.ptx), std::move(loaded.program));
    for (size_t i = 0; i < made->kernels().size(); ++i) {
      auto function = std::make_shared<Function>();
      function->library = made;
      function->index = i;
      made->kernel_handles.push_back(
          reinterpret_cast<CUkernel>(state.functions.Insert(std::move(function))));
    }
    made->handle = state.libraries.Insert(made);
    *library = made->handle;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary library) {
  return WithState([&](State& state) {
    const std::shared_ptr<Library> removed = state.libraries.Remove(library);
    if (removed == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    state.functions.RemoveIf([&](const Function& function) { return function.library == removed; });
    for (const std::shared_ptr<Module>& module : removed->TakeModules()) {
      RemoveModule(state, module);
    }
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel* pKernel, CUlibrary library, const char* name) {
  return WithLibrary(library, [&](State&, const std::shared_ptr<Library>& found) {
    if (pKernel == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const size_t index = FindKernel(found->kernels(), name);
    if (index == found->kernels().size()) return CUDA_ERROR_NOT_FOUND;
    *pKernel = found->kernel_handles[index];
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuLibraryGetKernelCount(unsigned int* count, CUlibrary lib) {
  return WithLibrary(lib, [&](State&, const std::shared_ptr<Library>& library) {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<unsigned int>(library->kernels().size());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int numKernels,
                                           CUlibrary lib) {
  return WithLibrary(lib, [&](State&, const std::shared_ptr<Library>& library) {
    if (kernels == nullptr || numKernels == 0) return CUDA_ERROR_INVALID_VALUE;
    const size_t count = std::min<size_t>(numKernels, library->kernels().size());
    std::copy_n(library->kernel_handles.begin(), count, kernels);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuLibraryGetModule(CUmodule* pMod, CUlibrary library) {
  return WithContext([&](State& state, const std::shared_ptr<Context>& context) {
    return WithLibrary(library, [&](State&, const std::shared_ptr<Library>& found) {
      if (pMod == nullptr) return CUDA_ERROR_INVALID_VALUE;
      *pMod = found->ModuleIn(state, context)->handle;
      return CUDA_SUCCESS;
    });
  });
}

CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr* dptr, size_t* bytes, CUlibrary library,
                                    const char* name) {
  return WithContext([&](State& state, const std::shared_ptr<Context>& context) {
    return WithLibrary(library, [&](State&, const std::shared_ptr<Library>& found) {
      return GetVariable(*found->ModuleIn(state, context), name, dptr, bytes);
    });
  });
}

CUresult CUDAAPI cuLibraryGetManaged(CUdeviceptr*, size_t*, CUlibrary library, const char* name) {
  // There is no managed memory, so there are no managed variables.
  return WithLibrary(library, [&](State&, const std::shared_ptr<Library>&) {
    return name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
  });
}

}  // extern "C"
