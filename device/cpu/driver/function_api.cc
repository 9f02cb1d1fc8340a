// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/function_api.cc: properties of functions and kernels.
#include <utility>

#include "device/cpu/driver/limits.h"
#include "device/cpu/driver/state.h"

namespace consort::cpu {
namespace {

// Runs body(state, function): a function or a kernel, the handles are of one space.
template <typename Handle, typename Body>
CUresult WithFunction(Handle handle, Body&& body) {
  return WithState([&](State& state) {
    const std::shared_ptr<Function> function =
        state.functions.Find(reinterpret_cast<CUfunction>(handle));
    if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return body(state, *function);
  });
}

// The settings of `function` on `device`: what a launch there will go by.
CUresult SettingsOn(State& state, const Function& function, CUdevice device,
                    KernelSettings** settings) {
  if (device < 0 || static_cast<size_t>(device) >= state.devices.size()) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *settings = function.module != nullptr
                  ? &function.module->settings(function.index)
                  : &function.library->settings(*state.devices[device], function.index);
  return CUDA_SUCCESS;
}

CUresult GetAttribute(const KernelInfo& info, const KernelSettings& settings,
                      CUfunction_attribute attribute, int* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = static_cast<int>(info.threads_max);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = static_cast<int>(info.static_shared_bytes);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      *value = static_cast<int>(info.constant_bytes);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *value = static_cast<int>(info.local_bytes);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = static_cast<int>(info.register_count);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      *value = static_cast<int>(info.target);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = kCapabilityMajor * 10 + kCapabilityMinor;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = settings.dynamic_shared_bytes_max;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = settings.shared_carveout;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      *value = 0;  // no clusters
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult SetAttribute(const KernelInfo& info, KernelSettings& settings,
                      CUfunction_attribute attribute, int value) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 || info.static_shared_bytes > kSharedBytesOptIn ||
          static_cast<uint32_t>(value) > kSharedBytesOptIn - info.static_shared_bytes) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      settings.dynamic_shared_bytes_max = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
      settings.shared_carveout = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// Runs body(kernel) for a function or kernel in the current context.
template <typename Body>
CUresult WithKernel(CUfunction handle, Body&& body) {
  return WithContext([&](State&, const std::shared_ptr<Context>& context) {
    return WithFunction(handle, [&](State& state, const Function& function) {
      Kernel kernel;
      // A function of another context than the current one is meant in its own.
      const CUresult result =
          function.In(state, function.module != nullptr ? function.context() : context, &kernel);
      return result != CUDA_SUCCESS ? result : body(state, kernel);
    });
  });
}

CUresult ParamInfo(const KernelInfo& info, size_t index, size_t* offset, size_t* bytes) {
  if (offset == nullptr || index >= info.params.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = info.params[index].offset;
  if (bytes != nullptr) *bytes = info.params[index].bytes;
  return CUDA_SUCCESS;
}

CUresult SetCacheConfig(KernelSettings& settings, CUfunc_cache config) {
  if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  settings.cache_config = config;
  return CUDA_SUCCESS;
}

}  // namespace

}  // namespace consort::cpu

using namespace consort::cpu;  // the entry points are global: their prototypes are cuda.h's

extern "C" {

CUresult CUDAAPI cuFuncGetAttribute(int* pi, CUfunction_attribute attrib, CUfunction hfunc) {
  return WithKernel(hfunc, [&](State&, const Kernel& kernel) {
    return GetAttribute(kernel.info(), kernel.settings(), attrib, pi);
  });
}

CUresult CUDAAPI cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
  return WithKernel(hfunc, [&](State&, const Kernel& kernel) {
    return SetAttribute(kernel.info(), kernel.settings(), attrib, value);
  });
}

CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config) {
  return WithKernel(hfunc, [&](State&, const Kernel& kernel) {
    return SetCacheConfig(kernel.settings(), config);
  });
}

CUresult CUDAAPI cuFuncGetModule(CUmodule* hmod, CUfunction hfunc) {
  return WithKernel(hfunc, [&](State&, const Kernel& kernel) {
    if (hmod == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *hmod = kernel.module->handle;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuFuncGetName(const char** name, CUfunction hfunc) {
  return WithFunction(hfunc, [&](State&, const Function& function) {
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *name = function.info().name.c_str();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t* paramOffset,
                                    size_t* paramSize) {
  return WithFunction(func, [&](State&, const Function& function) {
    return ParamInfo(function.info(), paramIndex, paramOffset, paramSize);
  });
}

CUresult CUDAAPI cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
  return WithFunction(function, [&](State&, const Function&) {
    if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuFuncLoad(CUfunction function) {
  // Loading is eager: a handle is enough to know that it has happened.
  return WithFunction(function, [](State&, const Function&) { return CUDA_SUCCESS; });
}

CUresult CUDAAPI cuKernelGetFunction(CUfunction* pFunc, CUkernel kernel) {
  return WithKernel(reinterpret_cast<CUfunction>(kernel), [&](State& state, const Kernel& found) {
    if (pFunc == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pFunc = found.module->FunctionHandle(state, found.module, found.index);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuKernelGetLibrary(CUlibrary* pLib, CUkernel kernel) {
  return WithFunction(kernel, [&](State&, const Function& function) {
    if (pLib == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (function.library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *pLib = function.library->handle;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuKernelGetName(const char** name, CUkernel kernel) {
  if (name == nullptr || kernel == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return cuFuncGetName(name, reinterpret_cast<CUfunction>(kernel));
}

CUresult CUDAAPI cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t* paramOffset,
                                      size_t* paramSize) {
  return cuFuncGetParamInfo(reinterpret_cast<CUfunction>(kernel), paramIndex, paramOffset,
                            paramSize);
}

CUresult CUDAAPI cuKernelGetAttribute(int* pi, CUfunction_attribute attrib, CUkernel kernel,
                                      CUdevice dev) {
  return WithFunction(kernel, [&](State& state, const Function& function) {
    KernelSettings* settings = nullptr;
    const CUresult result = SettingsOn(state, function, dev, &settings);
    return result != CUDA_SUCCESS ? result : GetAttribute(function.info(), *settings, attrib, pi);
  });
}

CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel,
                                      CUdevice dev) {
  return WithFunction(kernel, [&](State& state, const Function& function) {
    KernelSettings* settings = nullptr;
    const CUresult result = SettingsOn(state, function, dev, &settings);
    return result != CUDA_SUCCESS ? result : SetAttribute(function.info(), *settings, attrib, val);
  });
}

CUresult CUDAAPI cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) {
  return WithFunction(kernel, [&](State& state, const Function& function) {
    KernelSettings* settings = nullptr;
    const CUresult result = SettingsOn(state, function, dev, &settings);
    return result != CUDA_SUCCESS ? result : SetCacheConfig(*settings, config);
  });
}

}  // extern "C"
